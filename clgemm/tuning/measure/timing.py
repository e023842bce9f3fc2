"""The only stopwatch: warm-up, repeats, median, a guard against noise, and whose clock counts.

The device's clock leaves out what launching and waiting cost, which is noise on a busy host; but
some drivers report nonsense.  So the first plan that a `Stopwatch` times is timed by both.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clgemm.kernels.family import Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.kernel_runner import Values

log = logging.getLogger(__name__)

PAUSE = 0.06  # seconds; OpenBLAS' workers spin that long after a call, on cores others need
SETTLE_SECONDS, SETTLE_STEP = 0.4, 0.01  # that threads may spin on for, at most; and each look
FOREIGN_SHARE = 0.08  # of one core: more than this taken by other processes spoils a block
BLOCK_SECONDS = 0.12
TRYING_SECONDS = 3.0
"""On a machine that is always busy more tries of long calls would take minutes."""
STEADY = 0.04  # a median this much above the least time is a quiet machine's
HOPELESS = 2  # runs: a single one may have had to wait for another process
STRETCH = 5  # times as long a noisy machine is measured

DEVICE_CLOCK = "the device's clock"
NANOSECOND = 1e-9
COMPARED = 6  # runs timed by both clocks
LAUNCH_SECONDS = 0.0005  # what launching and waiting may take on top of the device's work
SLACK = 1.05  # two clocks of a machine may run apart by this much
SHARE = 0.75  # of the host's time that the device must account for, launching aside


class Timing(NamedTuple):
    """Seconds of one run."""

    median: float
    best: float
    runs: int
    rejected: int = 0
    """Blocks in which other processes ran, measured again."""
    noisy: bool = False
    """No quiet block was found, so the least disturbed one stands."""
    quartile: float = 0.0
    """The lower quartile: neither what others delayed, nor a single lucky run."""

    @property
    def spread(self) -> float:
        """How far the median lies above the least time, as a part of it."""
        return self.median / self.best - 1 if self.best > 0 else 0.0


def of_times(times: Sequence[float]) -> Timing:
    """Summarise the seconds of several runs."""
    ordered = sorted(times)
    quartile = ordered[(len(ordered) - 1) // 4]
    return Timing(statistics.median(ordered), ordered[0], len(ordered), quartile=quartile)


def measure(
    run: Callable[[], object],
    *,
    seconds: float = 0.04,
    least: int = 3,
    most: int = 50,
    give_up: float = math.inf,
    stretch: float = 1,
    clock: Callable[[], float] | None = None,
) -> Timing:
    """Time `run`, which returns when its work is done.

    Parameters
    ----------
    run : callable
        Called once to warm up, then at least `least` and at most `most` times, until `seconds` have
        passed.
    give_up : float
        If the first two runs are slower than this, in seconds, no more follow.
    stretch : float
        Go on for up to so many times `seconds` (and `most`) while the times differ by more than
        `STEADY`: a noisy machine is measured for longer.
    clock : callable, optional
        Gives the seconds of the run before by another clock than the host's.

    Returns
    -------
    Timing
        Noise only ever adds, so median and minimum together tell how noisy it was.
    """
    run()
    times: list[float] = []
    start = time.perf_counter()
    while True:
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        times.append(clock() if clock else after - before)
        passed, count = after - start, len(times)
        if count == HOPELESS and min(times) > give_up:
            break
        if count < most and (count < least or passed <= seconds):
            continue
        tried = passed > stretch * seconds or count >= stretch * most
        if tried or of_times(times).spread <= STEADY:
            break
    return of_times(times)


def settle(most: float = SETTLE_SECONDS) -> None:
    """Wait until no thread of this process computes.

    OpenBLAS' threads spin on for 0.1 s or more after a call, on cores that others then lack: a CPU
    device computes with one core of two meanwhile.
    """
    deadline = time.perf_counter() + most
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(SETTLE_STEP)
        if time.process_time() - before < SETTLE_STEP / 4:
            return


class Neighbours:
    """Watches how much of the machine other processes take from now on."""

    def __init__(self) -> None:
        self._before, self._start = _busy_ticks(), time.perf_counter()

    def share(self) -> float:
        """Return how many cores they took on average; 0 where nothing tells."""
        after, wall = _busy_ticks(), time.perf_counter() - self._start
        if self._before is None or after is None:
            return 0.0
        ticks = (after[0] - self._before[0]) - (after[1] - self._before[1])
        return ticks / os.sysconf("SC_CLK_TCK") / wall


def _busy_ticks() -> tuple[float, float] | None:
    """Return the machine's and this process' busy time in clock ticks, None where nothing tells."""
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, soft, steal = (int(x) for x in lines[0].split()[1:9])
    own = os.times()
    ticks = os.sysconf("SC_CLK_TCK")
    return user + nice + system + irq + soft + steal, (own.user + own.system) * ticks


def quiet_measure(
    run: Callable[[], object],
    *,
    seconds: float = BLOCK_SECONDS,
    least: int = 3,
    most: int = 1000,
    tries: int = 12,
    clock: Callable[[], float] | None = None,
) -> Timing:
    """Time `run` in a block during which other processes took less than 8 % of a core.

    At most so many `tries` are made to find one, and after `TRYING_SECONDS` none; for the rest see
    `measure`.
    """
    least_disturbed: tuple[float, Timing] | None = None
    rejected, end = 0, time.monotonic() + TRYING_SECONDS
    while least_disturbed is None or (rejected < tries and time.monotonic() < end):
        neighbours = Neighbours()
        timing = measure(run, seconds=seconds, least=least, most=most, clock=clock)
        foreign = neighbours.share()
        if foreign < FOREIGN_SHARE:
            return timing._replace(rejected=rejected)
        if least_disturbed is None or foreign < least_disturbed[0]:
            least_disturbed = foreign, timing
        rejected += 1
        time.sleep(5 * PAUSE)
    return least_disturbed[1]._replace(rejected=rejected, noisy=True)


def side_by_side(
    runs: Mapping[str, Callable[[], object]], *, rounds: int = 3, seconds: float = BLOCK_SECONDS
) -> dict[str, Timing]:
    """Time several ways to do the same in alternating blocks; return the blocks' medians."""
    blocks: dict[str, list[Timing]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            settle()
            blocks[name].append(quiet_measure(run, seconds=seconds))
    return {
        name: Timing(
            statistics.median(t.median for t in timings),
            min(t.best for t in timings),
            sum(t.runs for t in timings),
            sum(t.rejected for t in timings),
            any(t.noisy for t in timings),
            statistics.median(t.quartile for t in timings),
        )
        for name, timings in blocks.items()
    }


class TracedPlan:
    """A plan with its values, which keeps the events of its last run."""

    def __init__(self, device: Device, problem: Gemm, plan: Plan, values: Values) -> None:
        self._runner = KernelRunner(device, problem, plan)
        self._values = values
        self._events: list[Any] = []

    def run(self) -> None:
        """Launch every step and wait for the last one."""
        self._events.clear()
        self._runner.execute(self._values, events=self._events)

    def seconds(self) -> float:
        """Return what the last run took by the device's clock, as `seconds_of` does."""
        return seconds_of(self._events)


def seconds_of(events: Sequence[cl.Event]) -> float:
    """Return the seconds from the first launch's start to the last one's end; NaN if not told."""
    try:
        ticks = events[-1].profile.end - events[0].profile.start
    except (cl.Error, IndexError) as error:
        log.info("no times of launches: %s", error)
        return math.nan
    return float(ticks * NANOSECOND)


class Stopwatch:
    """Times plans on one device, by its own clock where that can be trusted.

    Parameters
    ----------
    device : Device
        It gets a queue that times launches, so nothing else may use it.
    clock : str
        What an earlier stopwatch found, if times are to be compared with its.
    """

    def __init__(self, device: Device, clock: str = "") -> None:
        self.clock = clock
        """Whose clock is used, and why; "" until the first plan is timed."""
        try:
            device.queue = cl.CommandQueue(
                device.context, properties=cl.command_queue_properties.PROFILING_ENABLE
            )
        except cl.Error as error:
            log.info("%s times no launches: %s", device, error)
            self.clock = "the host's clock: the driver times no launches"

    def time(self, plan: TracedPlan, *, seconds: float, give_up: float = math.inf) -> Timing:
        """Time a plan for `seconds`, longer on a noisy machine; see `measure`."""
        if not self.clock:
            self._compare(plan)
        clock = plan.seconds if self.clock == DEVICE_CLOCK else None
        return measure(
            plan.run, seconds=seconds, least=2, give_up=give_up, stretch=STRETCH, clock=clock
        )

    def _compare(self, plan: TracedPlan) -> None:
        plan.run()  # the first run may still load the kernel
        pairs = []
        for _ in range(COMPARED):
            before = time.perf_counter()
            plan.run()
            pairs.append((time.perf_counter() - before, plan.seconds()))
        reason = why_not_trusted(pairs)
        self.clock = f"the host's clock: {reason}" if reason else DEVICE_CLOCK


def why_not_trusted(pairs: Sequence[tuple[float, float]]) -> str | None:
    """Say why a device's clock cannot be trusted, None if it can.

    Parameters
    ----------
    pairs : sequence
        Seconds of some runs by the host's clock and by the device's.
    """
    # The run that the host waited for the least: others may have had to share the CPU.
    host, quietest = min(pairs)
    if any(math.isnan(device) for _, device in pairs):
        return "the device reports no times"
    if any(device <= 0 for _, device in pairs):
        return "the device reports runs that took no time"
    if any(device > host * SLACK + LAUNCH_SECONDS for host, device in pairs):
        return "the device reports more time than has passed"
    if quietest < (host - LAUNCH_SECONDS) * SHARE:
        return "the device reports less time than its work took"
    if len(pairs) > 2 and len({device for _, device in pairs}) == 1:
        return "the device's clock is too coarse"
    return None
