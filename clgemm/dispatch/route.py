"""Where a problem runs: on the device, or by the host's own BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

HOST: Literal["host"] = "host"
DEVICE: Literal["device"] = "device"

SMALL_FLOPS = 2 * 128**3
"""Up to a 128-square product a launch takes as long as SciPy's whole call, wherever measured, and
to look whether its kind is known would cost it a twentieth."""
SMALL_SHALLOW = 2 * 100**3
"""The same where k is below `DEEP`: such a product writes much for its operations."""
DEEP = 8
SMALL_STACK = 2 * 64**3
"""The same for stacks of small matrices, which NumPy multiplies one by one."""
SMALL_SHARED = SMALL_FLOPS
"""Up to here a CPU device is left alone where nothing was measured: most break even near it."""
SMALL_WITH_COPIES = 2 * 896**3
"""The same for devices with a memory of their own, where nothing was measured: an H200 breaks even
with 16 cores of a Xeon near here in fp32, copies and threads that wake up included."""

TIE = 0.92
"""Of the host's predicted time, that the device may take: both predictions err."""
WORTH = 0.75
"""The same for a CPU device's short products, of which the host's times are the least regular."""
LONGEST = 2e-2
"""Seconds of either side beyond which predictions err little: the faster one computes."""
SHORT = 0.4e-3  # seconds on the host: what takes longer outweighs threads that wake up or spin


class Times(Protocol):
    """Predicts the seconds of a problem on both sides."""

    def host_seconds(self, g: Gemm) -> float:
        """Predict the host's."""
        ...

    def device_seconds(self, g: Gemm) -> float:
        """Predict the device's, transfers included."""
        ...


class Route(NamedTuple):
    """Where a kind of call runs, and why."""

    where: Literal["device", "host"]
    why: str
    host_seconds: float | None = None
    """Predicted; None if nothing had to be compared."""
    device_seconds: float | None = None


def is_small(flops: float, batch: int, k: int) -> bool:
    """Tell whether the host computes a product, or a stack of them, whatever is known."""
    if batch != 1:
        return flops <= SMALL_STACK
    return flops <= (SMALL_FLOPS if k >= DEEP else SMALL_SHALLOW)


def small_flops(traits: DeviceTraits) -> int:
    """Return the operations up to which the host computes where nothing was measured."""
    return SMALL_SHARED if traits.unified_memory else SMALL_WITH_COPIES


def route(traits: DeviceTraits, problem: Gemm, wanted: str, measured: Times | None) -> Route:
    """Choose for one problem, from what is known.

    Parameters
    ----------
    traits : DeviceTraits
        Of the device in use.
    problem : Gemm
        The problem, with the layouts it has in the host's memory.
    wanted : str
        `settings.Modes.route`: "device" or "host" decides.
    measured : Times or None
        What predicts both sides.  Without it the size alone decides.

    Returns
    -------
    Route
        If "auto" is wanted, the faster one.
    """
    return by_rule(problem, wanted) or _faster(traits, problem, measured)


def by_rule(problem: Gemm, wanted: str, *, one_core: bool = False) -> Route | None:
    """Choose where no time of either side matters; None where one does.

    With `one_core` the user allows one of the cores that the machine has.
    """
    if wanted == HOST:
        return Route(HOST, "CLGEMM_ROUTE=host")
    if wanted == DEVICE:
        return Route(DEVICE, "CLGEMM_ROUTE=device")
    if is_small(problem.flops, problem.batch, problem.k):
        return Route(HOST, "a launch costs more than so small a product")
    if problem.m == 1 or problem.n == 1:
        return Route(HOST, "it is a product with a vector, which the host reads from its memory")
    if one_core:
        return Route(HOST, "one core may be used, and a device's thread beside the caller's is two")
    return None


def _faster(traits: DeviceTraits, problem: Gemm, found: Times | None) -> Route:
    """Choose what takes less time, as far as that was measured."""
    if found is None:
        where = HOST if problem.flops <= small_flops(traits) else DEVICE
        return Route(where, "by size alone: nothing is measured yet")
    host, device = found.host_seconds(problem), found.device_seconds(problem)
    if device <= _share(traits, host) * host:
        why = "the device is faster" if device < host else "the host is hardly faster"
        return Route(DEVICE, why, host, device)
    why = "the host's BLAS is faster" if host < device else "the device is hardly faster"
    return Route(HOST, why, host, device)


def _share(traits: DeviceTraits, host: float) -> float:
    """Return how much of the host's time a device may take."""
    if host > LONGEST:
        return 1.0
    return WORTH if traits.kind == "cpu" and host < SHORT else TIE
