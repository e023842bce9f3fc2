"""The only stopwatch: warm-up, repeats, median."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Timing(NamedTuple):
    """Seconds of one run."""

    median: float
    best: float
    runs: int


def measure(
    run: Callable[[], object],
    *,
    seconds: float = 0.04,
    least: int = 3,
    most: int = 50,
    give_up: float = float("inf"),
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
        A first run slower than this, in seconds, is the only one.

    Returns
    -------
    Timing
        Median and minimum; noise only ever adds, so the two together tell how noisy it was.
    """
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < most:
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        times.append(after - before)
        if after - before > give_up or (len(times) >= least and after - start > seconds):
            break
    return Timing(statistics.median(times), min(times), len(times))
