"""The only stopwatch: warm-up, repeats, median, and a guard against noise."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PAUSE = 0.06  # seconds; OpenBLAS' workers spin that long after a call, on cores others need
SETTLE_SECONDS, SETTLE_STEP = 0.4, 0.01  # that threads may spin on for, at most; and each look
FOREIGN_SHARE = 0.08  # of one core: more than this taken by other processes spoils a block
BLOCK_SECONDS = 0.12
STEADY = 0.04  # a median this much above the least time is a quiet machine's
HOPELESS = 2  # runs: a single one may have had to wait for another process
STRETCH = 5  # times as long a noisy machine is measured


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
    give_up: float = float("inf"),
    stretch: float = 1,
    clock: Callable[[], float] | None = None,
) -> Timing:
    """Time `run`, which returns when its work is done.

    Parameters
    ----------
    run : callable
        Called once to warm up, then at least `least` and at most `most` times, until `seconds` have
        passed.
    seconds : float
        Time to spend, in seconds.
    least, most : int
        Bounds on the number of runs.
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
        if len(times) == HOPELESS and min(times) > give_up:
            break
        enough = len(times) >= most or (len(times) >= least and after - start > seconds)
        if enough and _settled(times, after - start, seconds, most, stretch):
            break
    return of_times(times)


def _settled(
    times: Sequence[float], passed: float, seconds: float, most: int, stretch: float
) -> bool:
    """Tell whether the times agree, or going on was tried for long enough."""
    if passed > stretch * seconds or len(times) >= stretch * most:
        return True
    return of_times(times).spread <= STEADY


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
    return user + nice + system + irq + soft + steal, (own.user + own.system) * os.sysconf(
        "SC_CLK_TCK"
    )


def quiet_measure(
    run: Callable[[], object],
    *,
    seconds: float = BLOCK_SECONDS,
    least: int = 3,
    most: int = 1000,
    tries: int = 12,
) -> Timing:
    """Time `run` in a block during which other processes took less than 8 % of a core.

    Parameters
    ----------
    run : callable
        See `measure`, as for `seconds`, `least` and `most`.
    tries : int
        Blocks to measure at most until a quiet one is found.
    """
    least_disturbed: tuple[float, Timing] | None = None
    for rejected in range(tries):
        neighbours = Neighbours()
        timing = measure(run, seconds=seconds, least=least, most=most)
        foreign = neighbours.share()
        if foreign < FOREIGN_SHARE:
            return timing._replace(rejected=rejected)
        if least_disturbed is None or foreign < least_disturbed[0]:
            least_disturbed = foreign, timing
        time.sleep(5 * PAUSE)
    assert least_disturbed is not None  # noqa: S101 - there was at least one try
    return least_disturbed[1]._replace(rejected=tries, noisy=True)


def side_by_side(
    runs: Mapping[str, Callable[[], object]], *, rounds: int = 3, seconds: float = BLOCK_SECONDS
) -> dict[str, Timing]:
    """Time several ways to do the same in alternating blocks with a pause between them.

    Parameters
    ----------
    runs : mapping
        What to time, by name.
    rounds : int
        Blocks of each.
    seconds : float
        Length of a block, in seconds.

    Returns
    -------
    dict
        The median of the blocks' medians, by name.
    """
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
