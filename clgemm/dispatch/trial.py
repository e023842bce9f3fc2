"""Tries both sides of a product where predictions leave open which one is faster.

A prediction errs by a fifth and more; where the sides are nearer than that, a few runs of the very
product tell more than any model.  Each kind is tried once, before its first product is computed,
and what was found holds to the end of the process: equal calls give equal bits.  So does what was
not tried because trials had taken their share of the time.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.dispatch.route import DEVICE, HOST, SHORT, Route
from clgemm.host import spinning
from clgemm.runtime import reentry

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

NEAR = 2.5  # times as long as the other: what is further apart is believed
LONGEST = 5e-3  # seconds on the faster side: of longer products predictions err less
BLOCKS = 3  # of each side, of which the fastest counts: what disturbs one makes it slower
MOST_RUNS = 12  # of a block, of which the median counts
BLOCK_SECONDS = 3e-4  # of them in all, if they are short
WARM_SECONDS = 2e-4  # of runs before them, one at least: threads wake up
PAUSE = 3e-4  # seconds between the sides
FREE, SHARE = 0.05, 0.05  # seconds, and the share of a process' time, that trials may take
MOST_KINDS = 4096
CALL_SECONDS = 4e-6  # that a call on the device takes before and after what is timed here
GAIN = 0.95  # of the host's time: a device that is hardly faster disturbs those beside it
SHORT_GAIN = 0.88  # the same where the host takes less than SHORT: a trial errs by so much there

_begun = time.monotonic()


class Trials:
    """What was found for each kind of products, in one process."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Route] = {}
        self._lock = reentry.CheckedLock()
        self._spent = 0.0

    def settle(
        self,
        kind: Hashable,
        predicted: Route,
        sides: Callable[[], tuple[Any, Any]],
        usual: float | None = None,
    ) -> Route:
        """Return the faster side of a kind of products: tried, or as predicted.

        Parameters
        ----------
        kind : hashable
            What decides on the times.
        predicted : Route
            What the model says.
        sides : callable
            Returns two functions, of which one computes the product on the host and the other on
            the device.  Asked for only if they are to be tried.
        usual : float, optional
            About the seconds of either side, where nothing is predicted.
        """
        host, device = predicted.host_seconds or usual, predicted.device_seconds or usual
        if host is None or device is None:
            return predicted
        far = max(host, device) > NEAR * min(host, device)
        if far or min(host, device) > LONGEST:
            return predicted
        found = self._found.get(kind)
        if found is not None or len(self._found) >= MOST_KINDS:
            return found or predicted
        with self._lock():  # two threads find the same
            if kind not in self._found:
                expected = 2 * BLOCKS * PAUSE + max(
                    2 * BLOCKS * (host + device), 2 * BLOCKS * (WARM_SECONDS + BLOCK_SECONDS)
                )
                self._found[kind] = (
                    self._try(predicted, sides) if self._may_spend(expected) else predicted
                )
            return self._found[kind]

    def _may_spend(self, seconds: float) -> bool:
        return self._spent + seconds <= FREE + SHARE * (time.monotonic() - _begun)

    def _try(self, predicted: Route, sides: Callable[[], tuple[Any, Any]]) -> Route:
        start = time.perf_counter()
        try:
            with np.errstate(all="ignore"):
                by_host, by_device = sides()
                host = min(_block(by_host) for _ in range(BLOCKS))
                spinning.end()  # once: threads that start again disturb what follows
                device = min(_block(by_device) for _ in range(BLOCKS))
        finally:
            self._spent += time.perf_counter() - start
        gain = SHORT_GAIN if host < SHORT else GAIN
        faster = DEVICE if device + CALL_SECONDS <= gain * host else HOST
        return predicted._replace(
            where=faster, why=f"tried: the {faster} is faster", host_seconds=host,
            device_seconds=device,
        )  # fmt: skip


def _block(compute: Callable[[], object]) -> float:
    """Return the median time of a few runs, once threads are awake."""
    time.sleep(PAUSE)
    start = time.perf_counter()
    compute()
    while time.perf_counter() - start < WARM_SECONDS:
        compute()
    found: list[float] = []
    while not found or (sum(found) < BLOCK_SECONDS and len(found) < MOST_RUNS):
        before = time.perf_counter()
        compute()
        found.append(time.perf_counter() - before)
    return statistics.median(found)
