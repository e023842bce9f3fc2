"""Tries both sides of a product where predictions leave open which one is faster.

A prediction errs by a fifth and more; where the sides are nearer than that, a few runs of the very
product tell more than any model.  Each kind is tried once, before its first product is computed,
and what was found holds to the end of the process: equal calls give equal bits.  So does what was
not tried because trials had taken their share of the time.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from clgemm.dispatch.route import DEVICE, HOST, LONGEST, SHORT, Route
from clgemm.host import blas as host_blas
from clgemm.host import spinning
from clgemm.runtime import reentry

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

NEAR = 2.5  # times as long as the other: what is further apart is believed
BLOCKS = 4  # of each side, of which the fastest counts: what disturbs one makes it slower
CLEAR = 1.5  # times as long as the other, in two long blocks of each: there are no more then
MOST_RUNS = 12  # of a block
BLOCK_SECONDS = 3e-4  # of them in all, if they are short
WAITS = 4.0  # times as long as usual: a run waits for a core, ...
WAITING_SECONDS = 1e-2  # ... and for so long there are more of them
WARM_SECONDS = 2e-4  # of runs before them, one at least, in which threads wake up, ...
LONG = 2e-3  # ... but for runs of so many seconds, of which that is a small part
FIRST_SECONDS = 1e-2  # of the device's first runs in a process, which take thrice as long
PAUSE = 3e-4  # seconds between the sides
FREE, SHARE = 0.25, 0.05  # seconds, and the share of a process' time, that trials may take
FREE_BUILDS, SHARE_OF_BUILDS = 1.0, 0.1  # the same for the kernels that they need
MOST_KINDS = 4096
CALL_SECONDS, STACK_SECONDS = 4e-6, 8e-6
"""That a call on the device takes beside what is timed here, of matrices and of stacks."""
GAIN = 0.97  # of the host's time: a device that is hardly faster disturbs those beside it
SHORT_GAIN = 0.92  # the same where the host takes less than SHORT: a trial errs by so much there
TURN_GAIN = 1.1  # the same in turn with NumPy: half of programs mix, of which few lose by so much
TURNS = 5
OTHER = 200  # extent of NumPy's product before each: its library's threads all take part
LONGEST_TURN = 2e-3  # seconds on the device: what takes longer hardly notices who came before

UNTRIED = "it is short, nothing is measured yet, and trials had their share of the time"

_begun = time.monotonic()


class Sides(NamedTuple):
    """What computes one product."""

    host: Callable[[], object]
    device: Callable[[], object]
    call_seconds: float = CALL_SECONDS


class Trials:
    """What was found for each kind of products, in one process."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Route] = {}
        self._lock = reentry.CheckedLock()
        self._spent = self._spent_on_builds = 0.0
        self._awake = False

    def settle(
        self,
        kind: Hashable,
        predicted: Route,
        sides: Callable[[], Sides],
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
            Returns what computes the product.  Asked for only if it is to be tried.
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
                if self._may_spend(_expected(host) + _expected(device)):
                    self._found[kind] = self._try(predicted, sides, min(host, device))
                elif predicted.host_seconds is None and host < SHORT:
                    self._found[kind] = predicted._replace(where=HOST, why=UNTRIED)
                else:
                    self._found[kind] = predicted
            return self._found[kind]

    def _may_spend(self, seconds: float) -> bool:
        """Tell whether there is time for a trial; kernels are built once a machine."""
        age = time.monotonic() - _begun
        builds = FREE_BUILDS + SHARE_OF_BUILDS * age
        return self._spent + seconds <= FREE + SHARE * age and self._spent_on_builds <= builds

    def _try(self, predicted: Route, sides: Callable[[], Sides], usual: float) -> Route:
        begun = start = time.perf_counter()
        faster: Literal["host", "device"]
        try:
            with np.errstate(all="ignore"):
                found = sides()
                start = time.perf_counter()
                self._wake(found.device)
                host, device = _alone(found, usual)
                gain = SHORT_GAIN if host < SHORT else GAIN
                faster, why = HOST, "tried: the host is faster"
                if device + found.call_seconds <= gain * host:
                    faster, why = DEVICE, "tried: the device is faster"
                    if device < LONGEST_TURN and not _is_near_in_turn(found, host, device, gain):
                        faster, why = HOST, "tried: the host is faster where both take turns"
        finally:
            self._spent_on_builds += start - begun
            self._spent += time.perf_counter() - start
        return predicted._replace(where=faster, why=why, host_seconds=host, device_seconds=device)

    def _wake(self, compute: Callable[[], object]) -> None:
        """Have the device's threads begin before its first trial in this process."""
        until = time.perf_counter() + FIRST_SECONDS
        with spinning.stopped():
            while not self._awake and time.perf_counter() < until:
                compute()
        self._awake = True


def _expected(seconds: float) -> float:
    """Tell how long one side of a trial takes, of a product of so many seconds."""
    runs = seconds if seconds >= LONG else max(2 * seconds, WARM_SECONDS + BLOCK_SECONDS)
    return BLOCKS * (PAUSE + runs)


def _alone(sides: Sides, usual: float) -> tuple[float, float]:
    """Return the time of a few runs of the host and of the device, each as if it were alone.

    The host's threads sleep in most programs by the time that a product of the device begins.
    """
    host = device = math.inf
    for block in range(BLOCKS):
        host = min(host, _block(sides.host, usual))
        with spinning.stopped():
            device = min(device, _block(sides.device, usual))
        if usual >= LONG and block and CLEAR * min(host, device) < max(host, device):
            break
    return host, device


def _block(compute: Callable[[], object], usual: float) -> float:
    """Return the time of a few runs, once threads are awake: a quarter of them take less.

    On a busy system a run may wait for a core a hundred times as long as it computes.  While all
    have, there are more.
    """
    time.sleep(PAUSE)
    if usual < LONG:
        start = time.perf_counter()
        compute()
        while time.perf_counter() - start < WARM_SECONDS:
            compute()
    found: list[float] = []
    spent = 0.0
    while not found or (
        len(found) < MOST_RUNS
        and (spent < BLOCK_SECONDS or (spent < WAITING_SECONDS and min(found) > WAITS * usual))
    ):
        found.append(_seconds(compute))
        spent += found[-1]
    return sorted(found)[len(found) // 4]


def _is_near_in_turn(sides: Sides, host: float, device: float, gain: float) -> bool:
    """Tell whether the device is fast enough directly after NumPy, as most programs mix both."""
    host_in_turn, device_in_turn = _in_turn(sides.host), _in_turn(sides.device)
    if device_in_turn > TURN_GAIN * host_in_turn:
        return False
    return device + device_in_turn <= gain * (host + host_in_turn)


def _in_turn(compute: Callable[[], object]) -> float:
    """Return the time of a few runs directly after another product of NumPy's.

    No rest is between them.  After some milliseconds the device's threads sleep, and to wake them
    takes 40 us, but a program with so few products does not notice that.
    """
    other, found = np.ones((OTHER, OTHER), np.float32), list[float]()
    for _ in range(TURNS):
        host_blas.matmul(other, other)
        found.append(_seconds(compute))
    return sorted(found)[len(found) // 4]


def _seconds(compute: Callable[[], object]) -> float:
    before = time.perf_counter()
    compute()
    return time.perf_counter() - before
