"""Where known parameters come from: the user's file, a file shipped with clgemm, or defaults."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgemm import settings
from clgemm.kernels import BY_NAME, FAMILIES, source
from clgemm.problem import SIZE_CLASSES
from clgemm.tuning.outcome import config_from_json
from clgemm.tuning.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Config, KernelFamily
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits


@dataclass(frozen=True)
class Tuned:
    """The parameters in use for one precision."""

    choices: Mapping[str, Config]
    """By size class."""
    origin: str
    """Where they come from, in words."""


def competitors(traits: DeviceTraits, precision: Precision) -> list[KernelFamily]:
    """List the families that may win on a device."""
    return [f for f in FAMILIES if f.supports(traits, precision) and f.worth_tuning(traits)]


def store_for(traits: DeviceTraits) -> Store:
    """Return the store of a device's parameters."""
    return Store(settings.cache_dir(), traits.fingerprint(), traits.identity, source.package_hash())


def defaults(traits: DeviceTraits, precision: Precision, why: str) -> Tuned:
    """Take the first family's default for every size class."""
    families = competitors(traits, precision) or [BY_NAME["direct"]]
    config = families[0].default(traits, precision)
    return Tuned(dict.fromkeys(SIZE_CLASSES, config), f"defaults of {config.family} ({why})")


def stored_parameters(store: Store, traits: DeviceTraits, precision: Precision) -> Tuned | None:
    """Return what the user's file, or one shipped with clgemm, has for a precision."""
    shipped = Path(str(resources.files("clgemm.tuning.shipped") / store.path.name))
    for entries, origin in (
        (store.read(), str(store.path)),
        (store.read_shipped(shipped), f"shipped with clgemm: {shipped.name}"),
    ):
        choices = _choices(entries.get(entry_name(precision)), traits, precision)
        if choices is not None:
            return Tuned(choices, origin)
    return None


def entry_name(precision: Precision) -> str:
    """Name the entry of a precision; with ``CLGEMM_FP32=fma`` other families compete in s and c."""
    fma = precision.real == "float" and not settings.splits_fp32()
    return f"{precision.code}-fma" if fma else precision.code


def _choices(entry: Any, traits: DeviceTraits, precision: Precision) -> dict[str, Config] | None:
    """Read an entry's choices; None unless each is a configuration that this version can run."""
    choices = {}
    for name in SIZE_CLASSES:
        try:
            config = stored_config(entry["choices"][name], traits, precision)
        except (KeyError, TypeError):
            return None
        if config is None:
            return None
        choices[name] = config
    return choices


def stored_config(data: Any, traits: DeviceTraits, precision: Precision) -> Config | None:
    """Read a stored configuration; None unless it is a point of a family's space that runs here."""
    try:
        config = config_from_json(data)
        family = BY_NAME[config.family]
        space = family.space(traits, precision)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None
    inside = all(value in space.get(name, ()) for name, value in config.params)
    good = inside and family.supports(traits, precision)
    return config if good and family.is_valid(traits, precision, config) else None
