"""Where known parameters come from: the user's file, a file shipped with clgemm, or defaults.

Parameters of this device and driver in the user's file come first, then what ships for this device
or its architecture: either is used without a search.  What was found with another kernel source or
driver, and what ships for other devices of the vendor, is what a search tries first.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from clgemm import settings
from clgemm.kernels import FAMILIES, LAST_RESORT
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.store import similar
from clgemm.tuning.store.entries import stored_config, stored_model, why_outdated
from clgemm.tuning.store.similar import Similarity
from clgemm.tuning.store.store import Store, warn_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.kernels.family import Config, KernelFamily
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits

T = TypeVar("T")

TROUBLE = (
    ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What files and models raise that nobody thought of."""


def find_or_default(find: Callable[[], T], default: Callable[[str], T]) -> T:
    """Return what a function finds in files; a default, after one warning, if it fails.

    Whatever is wrong with files or with what was found in them, products are computed.
    """
    try:
        return find()
    except TROUBLE as error:
        why = f"{type(error).__name__}: {error}"
        warn_once(
            why,
            f"stored parameters in {settings.cache_dir()} are not used ({why}); defaults take "
            "their place. `python -m clgemm cache clear` removes what is stored",
        )
        return default(f"stored parameters failed: {why}")


@dataclass(frozen=True)
class Tuned:
    """The parameters in use for one precision."""

    model: Model
    """The variants, and which of them is the best for a shape."""
    origin: str
    """Where they come from, in words."""
    unverified: set[Config] = field(default_factory=set, compare=False)
    """Those from a file that were not checked in this process yet."""
    is_default: bool = False
    """Whether these are defaults in place of a search that failed."""

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
    facts = traits.fingerprint(), traits.identity, similar.architecture(traits)
    return Store(settings.cache_dir(), *facts)


def defaults(traits: DeviceTraits, precision: Precision, why: str) -> Tuned:
    """Take the default of each family that may win: the first one that accepts a problem runs."""
    families = competitors(traits, precision) or [LAST_RESORT]
    return defaults_of(families, traits, precision, why)


def defaults_of(
    families: list[KernelFamily], traits: DeviceTraits, precision: Precision, why: str
) -> Tuned:
    """Take the default of each of these families."""
    variants = tuple(Variant(f.default(traits, precision), (), {}) for f in families)
    names = ", ".join(family.name for family in families)
    return Tuned(Model(traits, precision.code, {}, variants), f"defaults of {names} ({why})")


def to_be_verified(tuned: Tuned) -> Tuned:
    """Return defaults that have to be checked: a search has failed, perhaps since none is right."""
    return replace(tuned, unverified=set(tuned.configs), is_default=True)


def find_stored(store: Store, traits: DeviceTraits, precision: Precision) -> Tuned | None:
    """Return what the user's file, or one that ships for such a device, has for a precision."""
    name = entry_name(precision)
    entry = store.read().entries.get(name)
    known = [] if entry is None or why_outdated(entry) else [(entry, str(store.path))]
    known += [
        (file.found.entries[name], file.origin(name))
        for file in similar.find_shipped(traits)
        if file.similarity is not Similarity.VENDOR and name in file.found.entries
    ]
    for entry, origin in known:
        model = stored_model(entry, traits, precision)
        if model is not None:
            return Tuned(model, origin, {variant.config for variant in model.variants})
    return None


def find_starting_points(store: Store, traits: DeviceTraits, precision: Precision) -> list[Config]:
    """List configurations that a search had better try first, the most promising first."""
    name, known = entry_name(precision), [store.read()]
    known += [x.found for x in similar.find_other_drivers(store.path.parent, traits)]
    known += [x.found for x in similar.find_shipped(traits)]
    variants = (v for found in known for v in found.entries.get(name, {}).get("variants", ()))
    configs = (stored_config(data, traits, precision) for data in variants)
    return list(dict.fromkeys(config for config in configs if config is not None))


def why_unused(store: Store, traits: DeviceTraits, precision: Precision) -> str:
    """Say why what is stored for a precision is not used; "" if it is, or if nothing is stored."""
    name, found = entry_name(precision), store.read()
    entry = found.entries.get(name)
    if entry is not None:
        usable = stored_model(entry, traits, precision) is not None
        unusable = "" if usable else "the stored configurations cannot run in this version"
        return why_outdated(entry) or unusable
    why = found.why or found.bad.get(name, "")
    if not why:
        for file in similar.find_other_drivers(store.path.parent, traits):
            if name in file.found.entries:
                return similar.describe_change(traits, file.found.head)
    return why


def entry_name(precision: Precision) -> str:
    """Name the entry of a precision; with ``CLGEMM_FP32=fma`` other families compete in s and c."""
    fma = not precision.is_double and not settings.splits_fp32()
    return f"gemm.{precision.code}{'-fma' if fma else ''}"
