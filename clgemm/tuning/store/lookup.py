"""Where known parameters come from: the user's file, a file shipped with clgemm, or defaults.

Parameters of this device and driver in the user's file come first, then what ships for this device
or its architecture: either is used without a search.  What was found with another kernel source or
driver, and what ships for other devices of the vendor, is what a search tries first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clgemm import settings
from clgemm.kernels import BY_NAME, FAMILIES, source
from clgemm.problem import PRECISIONS
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.store import similar
from clgemm.tuning.store.entries import stored_config, stored_model
from clgemm.tuning.store.similar import Kinship
from clgemm.tuning.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from clgemm.kernels.family import Config, KernelFamily
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.store.files import Contents


@dataclass(frozen=True)
class Tuned:
    """The parameters in use for one precision."""

    model: Model
    """The variants, and which of them is the best for a shape."""
    origin: str
    """Where they come from, in words."""
    unverified: set[Config] = field(default_factory=set, compare=False)
    """Those from a file that were not checked in this process yet."""

    @property
    def configs(self) -> tuple[Config, ...]:
        """The variants' configurations, the best on the whole first."""
        return tuple(variant.config for variant in self.model.variants)

    def without(self, config: Config) -> Tuned:
        """Return the same without a configuration that is wrong on this device."""
        left = tuple(v for v in self.model.variants if v.config != config)
        model = replace(self.model, variants=left)
        return replace(self, model=model, unverified=self.unverified - {config})


def competitors(traits: DeviceTraits, precision: Precision) -> list[KernelFamily]:
    """List the families that may win on a device."""
    return [f for f in FAMILIES if f.supports(traits, precision) and f.worth_tuning(traits)]


def store_for(traits: DeviceTraits) -> Store:
    """Return the store of a device's parameters."""
    return Store(
        settings.cache_dir(),
        traits.fingerprint(),
        traits.identity,
        source.package_hash(),
        similar.architecture(traits),
    )


def defaults(traits: DeviceTraits, precision: Precision, why: str) -> Tuned:
    """Take the default of each family that may win: the first one that accepts a problem runs."""
    families = competitors(traits, precision) or [BY_NAME["direct"]]
    variants = tuple(Variant(f.default(traits, precision), (), {}) for f in families)
    names = ", ".join(family.name for family in families)
    return Tuned(Model(traits, precision.code, {}, variants), f"defaults of {names} ({why})")


def stored_parameters(store: Store, traits: DeviceTraits, precision: Precision) -> Tuned | None:
    """Return what the user's file, or one that ships for such a device, has for a precision."""
    name = entry_name(precision)
    model = stored_model(store.read().get(name), traits, precision)
    if model is not None:
        return _from_file(model, str(store.path))
    for kin in similar.shipped(traits):
        if kin.kinship is not Kinship.VENDOR:
            model = stored_model(kin.found.entries.get(name), traits, precision)
            if model is not None:
                return _from_file(model, kin.origin(name))
    return None


def _from_file(model: Model, origin: str) -> Tuned:
    return Tuned(model, origin, {variant.config for variant in model.variants})


def starting_points(store: Store, traits: DeviceTraits, precision: Precision) -> list[Config]:
    """List configurations that a search had better try first, the most promising first."""
    found: dict[Config, None] = {}
    for entry in _near_entries(store, traits, entry_name(precision)):
        for data in _items(entry.get("variants")):
            config = stored_config(data, traits, precision)
            if config is not None:
                found[config] = None
    return list(found)


def _near_entries(store: Store, traits: DeviceTraits, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield what is known of a precision and not good enough to be used without a search."""
    kin = [*similar.other_drivers(store.path.parent, traits), *similar.shipped(traits)]
    for entries in (store.read(), store.outdated(), *(k.found.entries for k in kin)):
        if name in entries:
            yield entries[name]


def _items(variants: Any) -> list[Any]:
    return variants if isinstance(variants, list) else []


def why_unused(store: Store, traits: DeviceTraits, precision: Precision) -> str:
    """Say why what is stored for a precision is not used; "" if it is, or if nothing is stored."""
    name = entry_name(precision)
    why, entry = store.why_unused(name), store.read().get(name)
    if entry is not None:
        usable = stored_model(entry, traits, precision) is not None
        return "" if usable else "the stored configurations cannot run in this version"
    if not why:
        for kin in similar.other_drivers(store.path.parent, traits):
            if name in kin.found.entries:
                return similar.driver_change(traits, kin.found.head)
    return why


def usage(path: Path, name: str, found: Contents, here: Mapping[str, DeviceTraits]) -> str:
    """Say whether an entry of a file in the cache directory is used on this machine.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Of the entry.
    found : Contents
        What the file holds.
    here : mapping
        Traits of this machine's devices by fingerprint.

    Returns
    -------
    str
        "used", or why not.
    """
    traits = here.get(path.stem)
    if traits is None:
        for device in here.values():
            if similar.kinship(device, found.head) is Kinship.DEVICE:
                return f"not used: {similar.driver_change(device, found.head)}"
        return "not used: no such device here"
    precision = PRECISIONS.get(name.removesuffix("-fma"))
    if precision is None:
        return "not used: no such precision"
    if name != entry_name(precision):
        return f"used {'with' if name.endswith('-fma') else 'without'} CLGEMM_FP32=fma"
    usable = stored_model(store_for(traits).read().get(name), traits, precision) is not None
    return "used" if usable else f"not used: {why_unused(store_for(traits), traits, precision)}"


def entry_name(precision: Precision) -> str:
    """Name the entry of a precision; with ``CLGEMM_FP32=fma`` other families compete in s and c."""
    fma = not precision.is_double and not settings.splits_fp32()
    return f"{precision.code}-fma" if fma else precision.code
