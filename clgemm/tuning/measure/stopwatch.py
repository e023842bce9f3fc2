"""Times plans by the device's own clock where that can be trusted, else by the host's.

The device's clock leaves out what launching and waiting cost, which is noise on a busy host; but
some drivers report nonsense.  So the first plan that is timed is timed by both.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.tuning.measure import profiling, timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clgemm.kernels.family import Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.kernel_runner import Values
    from clgemm.tuning.measure.timing import Timing

COMPARED = 6  # runs timed by both clocks
LAUNCH_SECONDS = 0.0005  # what launching and waiting may take on top of the device's work
SLACK = 1.05  # two clocks of a machine may run apart by this much
SHARE = 0.75  # of the host's time that the device must account for, launching aside

DEVICE = "the device's clock"


class Traced:
    """A plan that keeps the events of its last run.

    Parameters
    ----------
    device : Device
        Where it runs.
    problem : Gemm
        What it computes.
    plan : Plan
        What runs.
    values : Values
        What it works on.
    """

    def __init__(self, device: Device, problem: Gemm, plan: Plan, values: Values) -> None:
        self._runner = KernelRunner(device, problem, plan)
        self._values = values
        self._events: list[Any] = []

    def run(self) -> None:
        """Launch every step and wait for the last one."""
        self._events.clear()
        self._runner.execute(self._values, events=self._events)

    def seconds(self) -> float:
        """Return what the last run took by the device's clock; NaN if it does not tell."""
        return profiling.seconds(self._events)


def distrust(pairs: Sequence[tuple[float, float]]) -> str:
    """Say why a device's clock cannot be trusted, "" if it can.

    Parameters
    ----------
    pairs : sequence
        Seconds of some runs by the host's clock and by the device's.
    """
    if any(math.isnan(device) for _, device in pairs):
        return "the device reports no times"
    if any(device <= 0 for _, device in pairs):
        return "the device reports runs that took no time"
    if any(device > host * SLACK + LAUNCH_SECONDS for host, device in pairs):
        return "the device reports more time than has passed"
    if any(device < (host - LAUNCH_SECONDS) * SHARE for host, device in _quietest(pairs)):
        return "the device reports less time than its work took"
    if len(pairs) > 2 and len({device for _, device in pairs}) == 1:
        return "the device's clock is too coarse"
    return ""


def _quietest(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return the run that the host waited for the least: others may have had to share the CPU."""
    return sorted(pairs)[:1]


class Stopwatch:
    """Times plans on one device.

    Parameters
    ----------
    device : Device
        The device; it gets a queue that times launches, so nothing else may use it.
    clock : str, optional
        What an earlier stopwatch found, so that times can be compared.
    """

    def __init__(self, device: Device, clock: str = "") -> None:
        possible = profiling.enable(device)
        self.clock = clock if possible else "the host's clock: the driver times no launches"
        """Whose clock is used, and why; "" until the first plan is timed."""

    def time(self, plan: Traced, *, seconds: float, give_up: float = float("inf")) -> Timing:
        """Time a plan for `seconds`, longer on a noisy machine; see `timing.measure`."""
        if not self.clock:
            self._compare(plan)
        return timing.measure(
            plan.run,
            seconds=seconds,
            least=2,
            give_up=give_up,
            stretch=timing.STRETCH,
            clock=plan.seconds if self.clock == DEVICE else None,
        )

    def _compare(self, plan: Traced) -> None:
        plan.run()  # the first run may still load the kernel
        pairs = []
        for _ in range(COMPARED):
            before = time.perf_counter()
            plan.run()
            pairs.append((time.perf_counter() - before, plan.seconds()))
        reason = distrust(pairs)
        self.clock = f"the host's clock: {reason}" if reason else DEVICE
