"""How what a tuning run found is written to the store, and read from it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from clgemm.kernels import BY_NAME
from clgemm.kernels.costs import Costs
from clgemm.kernels.family import INT32_MAX
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.outcome import config_as_json, config_from_json
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits

NOT_READABLE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What comes of reading a file that somebody edited."""


def variant_as_json(variant: Variant) -> dict[str, Any]:
    """Turn into what `variants_from_json` reads."""
    rates = dict(zip(Costs._fields, variant.rates, strict=True)) if variant.rates else {}
    return config_as_json(variant.config) | {"rates": rates, "seconds": dict(variant.seconds)}


def variants_from_json(entry: Mapping[str, Any]) -> tuple[dict[str, Shape], list[Variant]]:
    """Read the shapes and the variants of an entry.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError, ArithmeticError
        If it has another form.
    """
    shapes = {str(name): _shape(sizes) for name, sizes in entry["shapes"].items()}
    return shapes, [_variant(data) for data in entry["variants"]]


def _shape(sizes: Any) -> Shape:
    m, n, k, batch, trans_a, trans_b = sizes
    shape = Shape(int(m), int(n), int(k), int(batch), bool(trans_a), bool(trans_b))
    if not all(0 < size <= INT32_MAX for size in shape[:4]):
        raise ValueError(f"{shape} is no product")
    return shape


def _variant(data: Mapping[str, Any]) -> Variant:
    rates = tuple(_seconds(data["rates"][name]) for name in Costs._fields) if data["rates"] else ()
    seconds = {str(name): _seconds(x) for name, x in data["seconds"].items()}
    return Variant(config_from_json(data), rates, seconds)


def _seconds(x: Any) -> float:
    seconds = float(x)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{x!r} is no time")
    return seconds


def stored_config(data: Any, traits: DeviceTraits, precision: Precision) -> Config | None:
    """Read a stored configuration; None unless it is a point of a family's space that runs here."""
    try:
        config = config_from_json(data)
    except NOT_READABLE:
        return None
    return config if runs_here(config, traits, precision) else None


def runs_here(config: Config, traits: DeviceTraits, precision: Precision) -> bool:
    """Tell whether a configuration is a point of a family's space, on this device."""
    family = BY_NAME.get(config.family)
    if family is None:
        return False
    try:
        space = family.space(traits, precision)
        inside = all(value in space.get(name, ()) for name, value in config.params)
        good = inside and family.supports(traits, precision)
        return good and family.is_valid(traits, precision, config)
    except NOT_READABLE:
        return False


def stored_model(entry: Any, traits: DeviceTraits, precision: Precision) -> Model | None:
    """Read an entry; None unless each variant is a configuration that this version can run."""
    try:
        shapes, variants = variants_from_json(entry)
    except NOT_READABLE:
        return None
    if not variants or not all(runs_here(v.config, traits, precision) for v in variants):
        return None
    return Model(traits, precision.code, shapes, tuple(variants))
