"""What files of the cache directory hold: bounded values of known names, and nothing else.

A file may have been edited, cut short, or made by somebody else.  Whatever is not of its form here
is not read, and never written again.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clgemm.kernels import BY_NAME, source
from clgemm.kernels.costs import Costs
from clgemm.kernels.family import INT32_MAX
from clgemm.problem import PRECISIONS
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.outcome import config_as_json, config_from_json
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits

NAMES = {f"gemm.{code}": precision for code, precision in PRECISIONS.items()} | {
    f"gemm.{code}-fma": p for code, p in PRECISIONS.items() if not p.is_double
}
"""Of entries, with the precision of each; see `lookup.entry_name`."""

NOT_READABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What comes of reading a file that somebody edited."""
MOST_ITEMS = 256
MOST_TRIALS = 100_000
STATUSES = "ok|build|run|wrong|crash|hang|late"


def keep(data: Any, form: Any) -> Any:
    """Return what is known of data that was JSON; raise one of NOT_READABLE if nothing is.

    Its form is a function that returns a value or raises, [form of each item], {name: form}, or
    {ANY: form of each value}.
    """
    if callable(form):
        return form(data)
    if not isinstance(data, type(form)) or len(data) > MOST_ITEMS:
        raise ValueError(f"{type(data).__name__} where at most {MOST_ITEMS} values should be")
    if isinstance(form, list):
        return [keep(x, form[0]) for x in data]
    if ANY in form:
        return {_text(name): keep(x, form[ANY]) for name, x in data.items()}
    return {name: keep(data.get(name, DEFAULTS.get(name)), f) for name, f in form.items()}


def keep_readable(data: Any, form: Any) -> list[Any]:
    """Return what is known of the items of a list that can be read."""
    found = []
    for x in data[-MOST_TRIALS:] if isinstance(data, list) else ():
        with suppress(*NOT_READABLE):
            found.append(keep(x, form))
    return found


def _number(least: float, most: float, *, whole: bool = False) -> Callable[[Any], Any]:
    kind = "whole number" if whole else "number"

    def read(x: Any) -> Any:
        if not isinstance(x, int if whole else int | float) or not least <= x <= most:
            shown = repr(x)[:40] if isinstance(x, float) else type(x).__name__
            raise ValueError(f"{shown} where a {kind} from {least:g} to {most:g} should be")
        return x

    return read


def _word(pattern: str, most: int = 64) -> Callable[[Any], str]:
    def read(x: Any) -> str:
        if not isinstance(x, str) or not re.fullmatch(pattern, x[:most], re.DOTALL):
            raise ValueError(f"{type(x).__name__} where text like {pattern} should be")
        return x[:most]

    return read


def _shape(sizes: Any) -> list[int]:
    m, n, k, batch, trans_a, trans_b = sizes
    return [*map(_SIZE, (m, n, k, batch)), *map(_number(0, 1, whole=True), (trans_a, trans_b))]


def _times(rows: Any) -> list[list[float]]:
    """Read the shapes and seconds of products, of which there must be one."""
    extent, flag = _number(1, 1 << 16, whole=True), _number(0, 1, whole=True)
    forms = *[extent] * 4, flag, flag, _SECONDS
    if not rows or not isinstance(rows, list):
        raise ValueError("no times")
    return [[form(x) for form, x in zip(forms, row, strict=True)] for row in rows[:MOST_ITEMS]]


def _rates(data: Any) -> dict[str, float]:
    rates: dict[str, float] = keep(data, {ANY: _number(0, 1e3)})
    return {name: rates[name] for name in Costs._fields} if rates else {}


ANY = "*"
DEFAULTS: dict[str, Any] = {
    "tuned": "", "clgemm": "", "search_seconds": 0, "sources": {}, "side": 0, "spread": {},
    "clock": "",
}  # fmt: skip
_SIZE = _number(1, INT32_MAX, whole=True)
_SECONDS = _number(1e-9, 1e6)  # of a product: logarithms are taken
_TIME = _number(0, 1e9)
_text, _LONG_TEXT, SOURCE = _word(".*"), _word(".*", 4096), _word(r"\w+")
_CONFIG = {"family": SOURCE, "params": {ANY: _number(-INT32_MAX, INT32_MAX, whole=True)}}
ENTRY = {
    "tuned": _text, "clgemm": _text, "sources": {ANY: _text}, "search_seconds": _TIME,
    "shapes": {ANY: _shape},
    "variants": [_CONFIG | {"rates": _rates, "seconds": {ANY: _SECONDS}}],
}  # fmt: skip
"""What a search found for one routine and precision; its trials are read apart."""
TRIAL = {
    "config": _CONFIG, "status": _word(STATUSES), "detail": _LONG_TEXT, "seconds": {ANY: _TIME},
    "side": _number(0, INT32_MAX, whole=True), "spread": {ANY: _TIME}, "clock": _LONG_TEXT,
}  # fmt: skip
VERIFIED = {"config": _CONFIG, "source": SOURCE, "entry": _text}
TRYING = {"config": _CONFIG, "source": SOURCE, "process": SOURCE}
BREAK_EVEN = {
    "stamp": SOURCE, "tries": _number(0, 1000, whole=True), "host": _times, "device": _times,
    "library": {"kernels": _text, "threads": _number(0, INT32_MAX, whole=True)},
}  # fmt: skip


def variant_as_json(variant: Variant) -> dict[str, Any]:
    """Turn into what `read_variants` reads."""
    rates = dict(zip(Costs._fields, variant.rates, strict=True)) if variant.rates else {}
    return config_as_json(variant.config) | {"rates": rates, "seconds": dict(variant.seconds)}


def read_variants(entry: Mapping[str, Any]) -> tuple[dict[str, Shape], list[Variant]]:
    """Read the shapes and the variants of an entry that is of its form."""
    shapes = {n: Shape(*x[:4], *map(bool, x[4:])) for n, x in entry["shapes"].items()}
    variants = [
        Variant(config_from_json(data), tuple(data["rates"].values()), data["seconds"])
        for data in entry["variants"]
    ]
    return shapes, variants


def current_trials(entry: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return an entry's trials of families whose sources have not changed since."""
    trials = keep_readable(entry.get("trials"), TRIAL) if entry else []
    return [x for x in trials if entry and is_current(entry, x["config"]["family"])]


def is_current(entry: Mapping[str, Any], family: str) -> bool:
    """Tell whether an entry was found with the sources that a family has now."""
    return bool(entry["sources"].get(family) == source.family_hash(family))


def why_outdated(entry: Mapping[str, Any]) -> str:
    """Say which sources changed since an entry's variants were found; "" if none did."""
    families = dict.fromkeys(variant["family"] for variant in entry["variants"])
    changed = [name for name in families if not is_current(entry, name)]
    return f"the sources of {' and '.join(changed)} changed" if changed else ""


def stored_config(data: Any, traits: DeviceTraits, precision: Precision) -> Config | None:
    """Read a configuration of a file; None unless it is a point of a family's space here."""
    config = config_from_json(data)
    family = BY_NAME.get(config.family)
    if family is None:
        return None
    try:
        space = family.space(traits, precision)
        inside = all(value in space.get(name, ()) for name, value in config.params)
        good = inside and family.supports(traits, precision)
        return config if good and family.is_valid(traits, precision, config) else None
    except NOT_READABLE:
        return None


def stored_model(
    entry: Mapping[str, Any], traits: DeviceTraits, precision: Precision
) -> Model | None:
    """Read an entry; None unless it has variants and each can run here."""
    shapes, variants = read_variants(entry)
    able = [stored_config(data, traits, precision) for data in entry["variants"]]
    if not able or None in able:
        return None
    return Model(traits, precision.code, shapes, tuple(variants))
