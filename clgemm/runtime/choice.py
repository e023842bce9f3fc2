"""Which of the devices here calls run on: the best one, or those that `CLGEMM_DEVICE` names."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from clgemm import settings
from clgemm.errors import ClgemmWarning, DeviceError
from clgemm.runtime import devices, platforms
from clgemm.runtime.binaries import kept_for
from clgemm.runtime.devices import INSTALL_HINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.runtime.devices import Found
    from clgemm.runtime.opencl import cl
    from clgemm.traits import DeviceTraits

ALL = ":all"


class Choice(NamedTuple):
    """The devices that calls run on."""

    found: tuple[Found, ...]
    """At least one; the first is the one for what a single device does."""
    reason: str
    """Why these, in words."""
    contexts: tuple[cl.Context | None, ...]
    """Of each, in which it was probed."""


def _speed(traits: DeviceTraits) -> tuple[bool, int, bool, int]:
    """Order devices: GPUs first, then by lanes; of two runtimes for a CPU the quicker to launch."""
    lanes = traits.compute_units * traits.simd_bytes
    return traits.kind == "gpu", lanes, traits.system_svm, traits.clock_mhz


def wanted(found: tuple[Found, ...], wish: str) -> list[Found]:
    """List the devices that one name (``nvidia``, ``pocl:0``) stands for, best first."""
    name, _, index = wish.rpartition(":")
    if not (name and index.isdigit()):
        name, index = wish, ""
    matching = [f for f in found if f.matches(name)]
    if index:
        return matching[int(index) : int(index) + 1]
    # sorted() is stable: of equal devices the loader's first one wins.
    return sorted(matching, key=lambda f: _speed(f.traits), reverse=True)


def choose() -> Choice:
    """Choose the devices that calls run on.

    Returns
    -------
    Choice
        One device, or several if `CLGEMM_DEVICE` is a list or ends with ``:all``.

    Raises
    ------
    DeviceError
        If there is no OpenCL device, none works, or `CLGEMM_DEVICE` names one that is not here.
    """
    found, wish = devices.find(), settings.device()
    if not found:
        why = f" ({platforms.silent[0]})" if platforms.silent else ""
        raise DeviceError(f"no OpenCL device was found{why}: {INSTALL_HINT}")
    chosen: dict[Found, cl.Context | None] = {}
    candidates: list[Found] = []
    for name in _names(found, wish):
        candidates = wanted(found, name.removesuffix(ALL))
        if not candidates:
            names = "; ".join(f.traits.describe() for f in found)
            raise DeviceError(f"CLGEMM_DEVICE={name!r} names none of the devices here: {names}")
        working = _working(candidates)
        chosen.update(working if name.endswith(ALL) else islice(working, 1))
    if not chosen:
        raise DeviceError(f"none of the OpenCL devices here can run a kernel: {INSTALL_HINT}")
    first = next(iter(chosen))
    reason = f"CLGEMM_DEVICE={wish}" if wish else _reason(first, candidates)
    return Choice(tuple(chosen), reason, tuple(chosen.values()))


def _names(found: tuple[Found, ...], wish: str) -> list[str]:
    """Split a list of names; a vendor's name may hold a comma of its own."""
    if "," not in wish or wanted(found, wish):
        return [wish]
    return [name.strip() for name in wish.split(",") if name.strip()]


def _working(candidates: list[Found]) -> Iterator[tuple[Found, cl.Context | None]]:
    for candidate in candidates:
        fault, context = devices.probe(candidate.device, kept_for(candidate.traits))
        if not fault:
            yield candidate, context
            continue
        warnings.warn(
            f"OpenCL device {candidate.traits.describe()} is skipped, "
            f"it cannot run a kernel: {fault}",
            ClgemmWarning,
            stacklevel=4,
        )


def _reason(chosen: Found, candidates: list[Found]) -> str:
    if len(candidates) == 1:
        return "the only device"
    if chosen.traits.kind == "gpu":
        return "GPUs come before CPUs, the fastest first"
    return "the fastest of the CPU devices"
