"""Parameters found on devices like this one: shipped with clgemm, or left by another driver here.

What was found on the same device or the same architecture is used as it is.  What was found on
another device of the vendor is where a search starts.  Files are compared by the facts they keep
in clear; an entry names a family's parameters, so it outlives the sources it was found with as long
as they are points of the family's space.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm import settings
from clgemm.runtime import private_files
from clgemm.tuning.store.entries import why_outdated
from clgemm.tuning.store.files import Contents, fingerprint_in, list_files, read_cached, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from clgemm.traits import DeviceTraits

log = logging.getLogger(__name__)

DRIVER = ("platform_version", "driver_version")
"""The part of an identity that an update changes."""


class Similarity(IntEnum):
    """What another device has in common with this one, the nearest first."""

    DEVICE = 0
    """It is the same, perhaps with another driver."""
    ARCHITECTURE = 1
    VENDOR = 2
    """It is another one of the vendor, of the same type."""

    @property
    def words(self) -> str:
        """What `info` says."""
        return ("this device", "this architecture", "this vendor")[self]


class Similar(NamedTuple):
    """A file of parameters from a device like this one."""

    name: str
    found: Contents
    similarity: Similarity

    def origin(self, name: str) -> str:
        """Say where an entry comes from, for a user."""
        words = f"found on {self.similarity.words}"
        if self.similarity is not Similarity.DEVICE:
            words = f"found on {describe(self.found.head)}, {self.similarity.words}"
        if why_outdated(self.found.entries[name]):
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


def describe(head: Mapping[str, Mapping[str, Any]]) -> str:
    """Name a file's device as messages do."""
    facts = head["identity"]
    return f"{facts.get('name', 'an unnamed device')} [{facts.get('platform', '?')}]"


def compare(traits: DeviceTraits, head: Mapping[str, Mapping[str, Any]]) -> Similarity | None:
    """Tell how near the device of a file is; None if it has nothing in common with this one."""
    theirs, ours = head["identity"].items(), traits.identity.items()
    if {x for x in theirs if x[0] not in DRIVER} == {x for x in ours if x[0] not in DRIVER}:
        return Similarity.DEVICE
    kind, facts = architecture(traits), head["architecture"]
    if facts == kind:
        return Similarity.ARCHITECTURE
    same_vendor = all(facts.get(name) == kind[name] for name in ("kind", "vendor"))
    return Similarity.VENDOR if same_vendor else None


def find_shipped(traits: DeviceTraits) -> list[Similar]:
    """List what ships with clgemm for devices like this one, the nearest first."""
    place = settings.shipped_dir()
    try:
        listed: list[Any] = list((place or resources.files("clgemm.tuning.shipped")).iterdir())
    except OSError as error:  # CLGEMM_SHIPPED names no folder, which is a way to have none
        log.debug("no parameters in %s: %s", place, error)
        return []
    similar = []
    for file in sorted((x for x in listed if x.name.endswith(".json")), key=lambda x: x.name):
        found = read_file(file)
        near = compare(traits, found.head) if found.entries else None
        if near is not None:
            name = str(file) if place else f"shipped with clgemm: {file.name}"
            similar.append(Similar(name, found, near))
    return sorted(similar, key=lambda file: _distance(traits, file))


def _distance(traits: DeviceTraits, file: Similar) -> tuple[int, bool, bool, int]:
    """Order files: by similarity, the same runtime and driver first, then by how many cores."""
    identity = file.found.head["identity"]
    units = identity.get("compute_units")
    return (
        file.similarity,
        identity.get("platform") != traits.platform,
        any(identity.get(name) != traits.identity[name] for name in DRIVER),
        abs((units if isinstance(units, int) else 0) - traits.compute_units),
    )


def find_other_drivers(folder: Path, traits: DeviceTraits) -> Iterator[Similar]:
    """Yield the user's files of this device under other drivers, the newest first."""
    paths = [x for x in list_files(folder) if fingerprint_in(x) != traits.fingerprint()]
    known = [(status.st_mtime, x) for x in paths if (status := private_files.status(x))]
    for _, path in sorted(known, reverse=True):
        found = read_cached(path)
        if found.entries and compare(traits, found.head) is Similarity.DEVICE:
            yield Similar(str(path), found, Similarity.DEVICE)


def describe_change(traits: DeviceTraits, head: Mapping[str, Mapping[str, Any]]) -> str:
    """Say in which way the driver of a file of this device differs."""
    then, now = head["identity"], traits.identity
    changes = [f"{then.get(x)} then, {now[x]} now" for x in DRIVER if then.get(x) != now[x]]
    return f"driver changed: {'; '.join(changes)}"
