"""Where a problem runs: on the device, or by the host's own BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from clgemm.dispatch.times import COPIED, SHORT, TIE, WORTH

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.dispatch.times import BreakEven
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

HOST: Literal["host"] = "host"
DEVICE: Literal["device"] = "device"

SMALL_FLOPS = 2 * 64**3
"""Up to a 64-square product a launch costs more than SciPy's whole call, wherever measured."""
SMALL_WITH_COPIES = 2 * 896**3
"""The same for devices with a memory of their own, where nothing was measured: an H200 breaks even
with 16 cores of a Xeon near here in fp32, copies and threads that wake up included."""


class Decision(NamedTuple):
    """Where a kind of call runs, and why."""

    where: Literal["device", "host"]
    why: str
    host_seconds: float | None = None
    """Predicted; None if nothing had to be compared."""
    device_seconds: float | None = None


def route(
    traits: DeviceTraits, problem: Gemm, wish: str, measured: Callable[[], BreakEven | None]
) -> Decision:
    """Choose for one problem.

    Parameters
    ----------
    traits : DeviceTraits
        Of the device in use.
    problem : Gemm
        The problem, with the layouts it has in the host's memory.
    wish : str
        `settings.route()`: "device" or "host" decides.
    measured : callable
        Gives the break-evens of device and precision, None if they are not to be measured; asked
        only if they decide.

    Returns
    -------
    Decision
        If the wish is "auto", the faster one.
    """
    if wish == HOST:
        return Decision(HOST, "CLGEMM_ROUTE=host")
    if wish == DEVICE:
        return Decision(DEVICE, "CLGEMM_ROUTE=device")
    if problem.flops <= SMALL_FLOPS:
        return Decision(HOST, "a launch costs more than so small a product")
    return _faster(traits, problem, measured())


def _faster(traits: DeviceTraits, problem: Gemm, found: BreakEven | None) -> Decision:
    """Choose what takes less time, as far as that was measured."""
    if found is None:
        small = SMALL_FLOPS if traits.unified_memory else SMALL_WITH_COPIES
        where = HOST if problem.flops <= small else DEVICE
        return Decision(where, "by size alone: nothing is measured here")
    host, device = found.host_seconds(problem), found.device_seconds(problem)
    if device <= _share(traits, host) * host:
        why = "the device is faster" if device < host else "the host is hardly faster"
        return Decision(DEVICE, why, host, device)
    why = "the host's BLAS is faster" if host < device else "the device is hardly faster"
    return Decision(HOST, why, host, device)


def _share(traits: DeviceTraits, host: float) -> float:
    """Return how much of the host's time a device may take."""
    if not traits.unified_memory:
        return COPIED
    return WORTH if traits.kind == "cpu" and host < SHORT else TIE
