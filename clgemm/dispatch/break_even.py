"""Measures where the device breaks even with the host's BLAS, once, and remembers it.

The times are those of whole calls, launches and transfers included.  They are kept in the state of
the device's tuned parameters, with what they depend on: the host and its BLAS, and the parameters
in use.  A change of either measures again.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import settings
from clgemm.dispatch.times import BreakEven, Curve
from clgemm.host import blas as host_blas
from clgemm.host import identity
from clgemm.problem import Call
from clgemm.runtime import processor
from clgemm.tuning.measure import timing
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clgemm.problem import Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.store.lookup import Tuned
    from clgemm.tuning.store.store import Store
    from clgemm.tuning.tuner import Parameters

    Product = Callable[[Call], object]

log = logging.getLogger(__name__)

EXTENT, BATCH = 4096, 2048
"""The largest extents and stacks that are drawn."""
PLAIN, STACKS = 72, 20
"""How many shapes are measured."""
LEAST_FLOPS, MOST_FLOPS = 2 * 40**3, 4e8
"""Of a product of reals: what is smaller goes to the host anyway, as vectors do, and what is larger
is like these."""
LARGE = (Shape(512, 512, 512), Shape(2048, 96, 512), Shape(96, 2048, 512), Shape(1024, 1024, 1024))
"""How it goes on beyond."""
ELEMENTS = 1024**2  # of a matrix or a stack
ROUNDS = 2  # of each side: a burst of foreign load spoils one of them
RETRIES = 3  # before larger shapes are given up
LEAST, MOST = 2, 8  # runs of each side, shape and round
BLOCK_SECONDS = 0.001  # of them in all, if they are short
LONG = 0.003  # seconds: longer products are timed in the first round only
LONGEST = 0.025  # seconds that one product may take
ENOUGH = 4  # measurements on a busy machine, of which the least times stay
MOST_SECONDS = 0.8
"""Of one measurement, builds of kernels aside, and half of it for each side: noise makes threads
that spin wait for each other, at up to ten times what a quiet machine needs.  What is left out
then, the second round and the largest shapes, is measured by later processes."""
ENOUGH_SHAPES = 0.5
"""Part of the shapes that each side must have been timed at: from less nothing is predicted, for
the smallest ones alone say nothing of the others."""
BUILD_SECONDS = 0.1  # a first run that takes longer has built a kernel


def _always(_: Call) -> bool:
    return True


class Limits(NamedTuple):
    """What a measurement may take."""

    until: float = math.inf
    """Of `time.monotonic`: what takes longer, builds of kernels included, is left out."""
    is_ready: Callable[[Call], bool] = _always
    """Whether the device may compute a call; what would take a build of a kernel is left out."""


NO_LIMITS = Limits()


class _Measured(NamedTuple):
    """What is stored of one precision."""

    times: BreakEven
    tries: int
    """How often it was measured on a busy machine, `ENOUGH` if on a quiet one."""

    @property
    def settled(self) -> bool:
        """Tell whether a process need not measure again."""
        return self.tries >= ENOUGH

    @property
    def predicts(self) -> bool:
        """Tell whether both sides were timed at enough shapes to go by."""
        return all(len(side.seconds) >= ENOUGH_SHAPES * len(SHAPES) for side in self.times)


class BreakEvens:
    """The break-evens of one device, by precision.

    What a process knows of them when it first asks is what it goes by until its end: equal calls
    then give equal bits.  Figures that are found later serve later processes.

    Parameters
    ----------
    device : Device
        The device.
    parameters : Parameters
        Its parameters: other ones break even elsewhere.
    """

    def __init__(self, device: Device, parameters: Parameters) -> None:
        self._device = device
        self._parameters = parameters
        self._known: dict[str, BreakEven | None] = {}
        self._lock = threading.Lock()

    def known(self, precision: Precision) -> BreakEven | None:
        """Return what is stored of a precision, None if nothing is, or too little to go by.

        Measures nothing.  With ``CLGEMM_TUNE=off`` nothing is read either.
        """
        name = lookup.entry_name(precision)
        if name not in self._known:
            tuned = self._parameters.stored(precision.code)
            store, found = lookup.store_for(self._device.traits), None
            if tuned is not None and settings.tuning_enabled():
                stamp = _stamp(tuned)
                found = lookup.find_or_default(lambda: _read(store, name, stamp), lambda _why: None)
            usable = found if found is not None and found.predicts else None
            self._known.setdefault(name, None if usable is None else usable.times)
        return self._known[name]

    def forget(self, precision: Precision) -> None:
        """Look again at what is stored of a precision: its parameters have changed."""
        self._known.pop(lookup.entry_name(precision), None)

    def is_missing(self, precision: Precision) -> bool:
        """Tell whether measuring once more would tell a later process something new."""
        tuned = self._parameters.known(precision.code)
        if tuned is None or not settings.tuning_enabled():
            return False
        store, name = lookup.store_for(self._device.traits), lookup.entry_name(precision)
        found = _read(store, name, _stamp(tuned))
        return found is None or not found.settled

    def measure(
        self, precision: Precision, on_device: Product, limits: Limits = NO_LIMITS
    ) -> BreakEven | None:
        """Measure a precision on both sides, unless that is done, and keep it for later processes.

        Parameters
        ----------
        precision : Precision
            What is multiplied.
        on_device : callable
            Computes a call on the device, transfers included.
        limits : Limits
            What it may take.

        Returns
        -------
        BreakEven or None
            None with ``CLGEMM_TUNE=off``: nothing is measured then.
        """
        if not settings.tuning_enabled():
            return None
        tuned = self._parameters.of(precision.code)
        with self._lock:
            return _read_or_measure(self._device, precision, _stamp(tuned), on_device, limits)


def _stamp(tuned: Tuned) -> str:
    """Hash what break-evens depend on: the host's BLAS and the parameters."""
    facts = identity.identity(), tuned.configs
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _read_or_measure(
    device: Device, precision: Precision, stamp: str, on_device: Product, limits: Limits
) -> BreakEven:
    store, name = lookup.store_for(device.traits), lookup.entry_name(precision)
    found = _read(store, name, stamp)
    if found is not None and found.settled:
        return found.times
    # One process after the other: side by side they would measure each other.
    with store.turn(f"{name}-route", MOST_SECONDS, lambda _seconds: None):
        before = _read(store, name, stamp)
        if before is not None and (before.settled or before != found):
            return before.times
        left_out: list[Call] = []

        def is_ready(call: Call) -> bool:
            ready = limits.is_ready(call)
            if not ready:
                left_out.append(call)
            return ready

        neighbours, start = timing.Neighbours(), time.perf_counter()
        times = measured(precision, on_device, limits._replace(is_ready=is_ready))
        busy = neighbours.share() > timing.FOREIGN_SHARE * processor.usable_cores()
        log.info(
            "measured where %sgemm breaks even with the host's BLAS in %.2f s%s",
            precision.code, time.perf_counter() - start, " on a busy machine" if busy else "",
        )  # fmt: skip
        tries = (before.tries if before is not None else 0) + 1
        if busy and before is not None:
            times = times.least(before.times)
        again = busy or left_out or time.monotonic() > limits.until
        found = _Measured(times, tries if again else ENOUGH)
        _write(store, name, stamp, found)
    return found.times


def _read(store: Store, name: str, stamp: str) -> _Measured | None:
    """Return what is stored of an entry, None if nothing is or it was of another host."""
    found = store.state().break_evens.get(name)
    if not found or found["stamp"] != stamp or found["library"] != identity.library():
        return None
    sides = (Curve.from_json(found[side]) for side in BreakEven._fields)
    return _Measured(BreakEven(*sides), found["tries"])


def _write(store: Store, name: str, stamp: str, found: _Measured) -> None:
    sides = {side: curve.as_json() for side, curve in found.times._asdict().items()}
    head = {"stamp": stamp, "library": identity.library(), "tries": found.tries}
    store.change_state(lambda s: s._replace(break_evens=s.break_evens | {name: head | sides}))


def _inverse(number: int, base: int) -> float:
    """Mirror the digits of a number at the point: van der Corput's sequence, even everywhere."""
    found, unit = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        unit /= base
        found += digit * unit
    return found


def drawn(plain: int = PLAIN, stacks: int = STACKS) -> tuple[Shape, ...]:
    """Draw shapes evenly over the logarithms of their extents (Halton's sequence).

    Returns
    -------
    tuple of Shape
        Small ones first; operands lie in all four ways.
    """
    found: list[Shape] = []
    number = 0
    while len(found) < plain + stacks:
        number += 1
        u, v, w, x, *ways = (_inverse(number, base) for base in (2, 3, 5, 7, 11, 13))
        stacked = len(found) >= plain
        most = 96.0 if stacked else EXTENT
        m, n, k = (round(most**y) for y in (u, v, w))
        batch = round(2 * (BATCH / 2) ** x) if stacked else 1
        shape = Shape(m, n, k, batch, *(way >= 0.5 for way in ways))
        flops, largest = 2 * m * n * k * batch, batch * max(m * k, k * n, m * n)
        if min(m, n) > 1 and LEAST_FLOPS <= flops <= MOST_FLOPS and largest <= ELEMENTS:
            found.append(shape)
    return tuple(sorted(found, key=lambda s: s.m * s.n * s.k * s.batch)) + LARGE


SHAPES = drawn()


def measured(precision: Precision, on_device: Product, limits: Limits = NO_LIMITS) -> BreakEven:
    """Time whole products of a few dozen shapes on both sides, the smallest ones in any case.

    Each side waits until the other's threads, which spin on for a while, leave it the cores.  Noise
    only adds: the least time stands for each.  The host is first, for it builds nothing: one build
    of a kernel may take all the time that is left.
    """
    rng = np.random.default_rng(11)
    memory = tuple(rng.random(ELEMENTS).astype(precision.dtype) for _ in "abc")
    host: dict[Shape, float] = {}
    device: dict[Shape, float] = {}
    on_host = limits._replace(is_ready=_always)
    for multiply, times, within in (
        (host_blas.multiply, host, on_host),
        (on_device, device, limits),
    ):
        start = time.perf_counter()
        timing.settle(MOST_SECONDS / 4)
        left = MOST_SECONDS / 2 - (time.perf_counter() - start)
        for _ in range(ROUNDS):
            left -= _pass(multiply, memory, times, left, within)
    return BreakEven(Curve.fitted(host), Curve.fitted(device))


def _call(shape: Shape, memory: tuple[NDArray[Any], ...]) -> Call:
    """Make a call of a shape, as one of a row-major result arrives."""
    m, n, k, batch = shape[:4]

    def matrices(flat: NDArray[Any], rows: int, columns: int, turned: bool) -> NDArray[Any]:
        x = flat[: batch * rows * columns]
        x = x.reshape((batch, rows, columns) if turned else (batch, columns, rows))
        x = x if turned else x.swapaxes(-1, -2)
        return x if batch > 1 else x[0]

    a, b, c = memory
    return Call(
        1.0, matrices(a, m, k, shape.trans_a), matrices(b, k, n, shape.trans_b),
        0.0, matrices(c, m, n, turned=False), transposed=True,
    )  # fmt: skip


def _pass(
    multiply: Product, memory: tuple[NDArray[Any], ...], least: dict[Shape, float], most: float,
    limits: Limits,
) -> float:  # fmt: skip
    """Time every shape that is not too large, or was timed before and is not long.

    Returns
    -------
    float
        The seconds that this took, builds aside: about `most` at the most, and less within limits.
    """
    again, spent = bool(least), 0.0
    for place, shape in enumerate(list(least) if again else SHAPES):
        if again and min(list(least.values())[place:]) > LONG:
            break
        call = _call(shape, memory)
        if least and not again and not limits.is_ready(call):
            continue
        for _ in range(RETRIES):
            if least and (spent > most or time.monotonic() > limits.until):
                return spent
            times = _timed(multiply, call)
            spent += sum(times) - (times[0] if times[0] > BUILD_SECONDS else 0)
            least[shape] = min(least.get(shape, math.inf), *times)
            if again or _next(shape, least[shape]) <= LONGEST:
                break
        else:  # what is larger would take too long, and not for a moment's noise alone
            break
    return spent


def _timed(multiply: Product, call: Call) -> list[float]:
    """Return the seconds of a few runs, of which the very first may have built a kernel."""
    found: list[float] = []
    while len(found) < LEAST or (sum(found) < BLOCK_SECONDS and len(found) < MOST):
        before = time.perf_counter()
        multiply(call)
        found.append(time.perf_counter() - before)
    return found


def _next(shape: Shape, seconds: float) -> float:
    """Predict the seconds of the shape that follows one, at the same rate."""
    following = SHAPES[SHAPES.index(shape) + 1 :]
    return seconds * math.prod(following[0][:4]) / math.prod(shape[:4]) if following else 0.0
