"""Times several ways to do the same in turn, so that they share what the machine does meanwhile.

`throughput` is what a user waits for per call of many; `call_times` what a call alone takes on the
host, while nobody waits for the device.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BLOCK_SECONDS = 0.02  # of runs between two looks at the clock: launching is hidden behind running
LONG_SECONDS = 1.0  # a first run of so long is as good as a second one
MOST_RUNS = 20_000  # of a block
BURST = 40  # calls that follow each other before their queue is waited for, or fewer ...
BURST_SECONDS = 0.04  # ... where their work takes longer than this
LEAST_BURST = 4
QUIET_TRIES = 8  # to find a block in which other processes hardly ran


def nothing() -> None:
    """Wait for what has ended."""


class Way(NamedTuple):
    """One way to do it."""

    run: Callable[[], object]
    """Computes, or enqueues."""
    finish: Callable[[], object] = nothing
    """Waits for what was enqueued."""


def throughput(
    ways: Mapping[str, Way], rounds: int, *, quiet: bool = False, together: float = 0.0
) -> dict[str, float]:
    """Return the seconds of one run of each way: medians of alternating blocks of many.

    Parameters
    ----------
    ways : mapping
        What to time, by name.
    rounds : int
        Blocks of each.
    quiet : bool
        For what computes on the host's cores: a block begins when no thread of this process
        computes any more, and is measured again if other processes ran meanwhile.
    together : float
        If given, blocks have equally many runs, as many as the fastest way makes in so many
        seconds, instead of equal lengths.
    """
    counts = {name: _count(way, together or BLOCK_SECONDS) for name, way in ways.items()}
    if together:
        counts = dict.fromkeys(ways, max(counts.values(), default=1))
    blocks: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(rounds):
        for name in order:
            block = _quiet_block if quiet else _warm_block
            blocks[name].append(block(ways[name], counts[name]))
        order.reverse()  # so that nobody always follows the one that heats the device most
    return {name: statistics.median(seconds) for name, seconds in blocks.items()}


def call_times(ways: Mapping[str, Way], rounds: int, bursts: int = 3) -> dict[str, float]:
    """Return the seconds of a call of each way on the host: the median of all calls.

    Each call is timed alone, while its queue is not waited for: that is done between bursts of
    calls.  What timing a call that does nothing takes is left out.

    Parameters
    ----------
    ways : mapping
        What to time, by name.
    rounds, bursts : int
        Times that each way has its turn, and bursts of each turn, a first one left out.
    """
    clock, empty = time.perf_counter, "a call that does nothing"
    times: dict[str, list[float]] = {name: [] for name in (*ways, empty)}
    everyone = {**ways, empty: Way(nothing)}
    lengths = {
        name: max(LEAST_BURST, min(BURST, _count(way, BURST_SECONDS)))
        for name, way in everyone.items()
    }
    for _ in range(rounds):
        for name, (run, finish) in everyone.items():
            timing.settle()
            for burst in range(bursts + 1):
                stamps = [clock()]
                for _ in range(lengths[name]):
                    run()
                    stamps.append(clock())
                finish()
                if burst:
                    times[name] += (y - x for x, y in pairwise(stamps))
    floor = statistics.median(times.pop(empty))
    return {name: statistics.median(found) - floor for name, found in times.items()}


def _count(way: Way, seconds: float) -> int:
    """Count the runs that fill a block."""
    for _ in range(2):
        start = time.perf_counter()
        way.run()
        way.finish()
        took = time.perf_counter() - start
        if took > LONG_SECONDS:
            break
    return max(1, min(MOST_RUNS, round(seconds / max(took, 1e-7))))


def _block(way: Way, count: int) -> float:
    """Return the seconds of one of `count` runs that follow each other."""
    run = way.run
    start = time.perf_counter()
    for _ in range(count):
        run()
    way.finish()
    return (time.perf_counter() - start) / count


def _warm_block(way: Way, count: int) -> float:
    """Run for a while before: a device turns from another program's work, clocks included."""
    _block(way, max(1, count // 4))
    return _block(way, count)


def _quiet_block(way: Way, count: int) -> float:
    timing.settle()
    least = float("inf")
    for _ in range(QUIET_TRIES):
        neighbours = timing.Neighbours()
        seconds = _block(way, count)
        if neighbours.share() < timing.FOREIGN_SHARE:
            return seconds
        least = min(least, seconds)
        time.sleep(timing.PAUSE)
    return least
