"""Parameters found on devices like this one: shipped with clgemm, or left by another driver here.

What was found on the same device or the same architecture is used as it is.  What was found on
another device of the vendor is where a search starts.  Files are compared by the facts they keep
in clear; an entry names a family's parameters, so it outlives the kernel source it was found with
as long as they are points of the family's space.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm import settings
from clgemm.kernels import source
from clgemm.runtime import private_files
from clgemm.tuning.store.files import Contents, cached_contents, contents, files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from clgemm.traits import DeviceTraits

log = logging.getLogger(__name__)

DRIVER = ("platform_version", "driver_version")
"""The part of an identity that an update changes."""


class Kinship(IntEnum):
    """How near another device is."""

    DEVICE = 0
    """The same, perhaps with another driver."""
    ARCHITECTURE = 1
    VENDOR = 2
    """Another one of the vendor, of the same type."""

    @property
    def words(self) -> str:
        """What `info` says."""
        return ("this device", "this architecture", "this vendor")[self]


class Kin(NamedTuple):
    """A file of parameters from a device like this one."""

    name: str
    found: Contents
    kinship: Kinship

    def origin(self, precision: str) -> str:
        """Say where an entry comes from, for a user."""
        entry, words = self.found.entries[precision], f"found on {self.kinship.words}"
        if self.kinship is not Kinship.DEVICE:
            words = f"found on {described(self.found.head)}, {self.kinship.words}"
        if entry.get("kernels") != source.package_hash():
            words += ", with another kernel source"
        return f"{self.name} ({words})"


def architecture(traits: DeviceTraits) -> dict[str, str | int]:
    """Give the facts that devices share on which the same parameters are good, in clear.

    For a CPU that is the runtime, whose compiler makes the code, the processor's family and model
    (its name if they are not known), and the width of its SIMD registers; for an NVIDIA GPU its
    compute capability; the name of any other device, which is that of its chip.
    """
    facts: dict[str, str | int] = {
        "kind": traits.kind, "vendor": traits.vendor, "platform": traits.platform,
    }  # fmt: skip
    if traits.compute_capability is not None:
        major, minor = traits.compute_capability
        return facts | {"compute_capability": f"{major}.{minor}"}
    if traits.kind == "cpu":
        model = traits.processor or traits.name
        return facts | {"processor": model, "simd_bytes": traits.simd_bytes}
    return facts | {"name": traits.name}


def described(head: Mapping[str, Any]) -> str:
    """Name a file's device as messages do."""
    identity = head.get("identity")
    facts = identity if isinstance(identity, dict) else {}
    return f"{facts.get('name', 'an unnamed device')} [{facts.get('platform', '?')}]"


def without_driver(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Give the part of an identity that a driver's update leaves as it is."""
    return {name: value for name, value in identity.items() if name not in DRIVER}


def kinship(traits: DeviceTraits, head: Mapping[str, Any]) -> Kinship | None:
    """Tell how near the device of a file is; None if it is a stranger."""
    identity = head.get("identity")
    if not isinstance(identity, dict):
        return None
    if without_driver(identity) == without_driver(traits.identity):
        return Kinship.DEVICE
    ours, theirs = architecture(traits), head.get("architecture")
    if theirs == ours:
        return Kinship.ARCHITECTURE
    if isinstance(theirs, dict) and all(theirs.get(k) == ours[k] for k in ("kind", "vendor")):
        return Kinship.VENDOR
    return None


def shipped(traits: DeviceTraits) -> list[Kin]:
    """List what ships with clgemm for devices like this one, nearest first."""
    place = settings.shipped_dir()
    prefix = "" if place else "shipped with clgemm: "
    folder = place or resources.files("clgemm.tuning.shipped")
    kin = []
    for file in sorted(_listed(folder), key=lambda f: f.name):
        if file.name.endswith(".json"):
            found = contents(file)
            near = None if found.why else kinship(traits, found.head)
            if near is not None:
                kin.append(Kin(f"{prefix}{file if place else file.name}", found, near))
    return sorted(kin, key=lambda k: _distance(traits, k))


def _listed(folder: Path | Traversable) -> list[Path | Traversable]:
    try:
        return list(folder.iterdir())
    except OSError as error:  # CLGEMM_SHIPPED names no folder, which is a way to have none
        log.debug("no parameters in %s: %s", folder, error)
        return []


def _distance(traits: DeviceTraits, kin: Kin) -> tuple[int, bool, bool, int]:
    """Order files: by kinship, the same runtime and driver first, then by the number of cores."""
    identity = kin.found.head["identity"]
    units = identity.get("compute_units")
    apart = abs(units - traits.compute_units) if isinstance(units, int) else traits.compute_units
    return (
        kin.kinship,
        identity.get("platform") != traits.platform,
        any(identity.get(name) != traits.identity[name] for name in DRIVER),
        apart,
    )


def other_drivers(folder: Path, traits: DeviceTraits) -> Iterator[Kin]:
    """Yield the user's files of this device under other drivers, the newest first."""
    ours = f"{traits.fingerprint()}.json"
    paths = [path for path in files(folder) if path.name != ours]
    for path in sorted(paths, key=_age):
        found = cached_contents(path)
        if not found.why and kinship(traits, found.head) is Kinship.DEVICE:
            yield Kin(str(path), found, Kinship.DEVICE)


def _age(path: Path) -> float:
    found = private_files.status(path)
    return 0.0 if found is None else -found.st_mtime


def driver_change(traits: DeviceTraits, head: Mapping[str, Any]) -> str:
    """Say in which way the driver of a file of this device differs."""
    identity = head["identity"]
    changes = [
        f"{identity.get(name)} then, {traits.identity[name]} now"
        for name in DRIVER
        if identity.get(name) != traits.identity[name]
    ]
    return f"driver changed: {'; '.join(changes)}"
