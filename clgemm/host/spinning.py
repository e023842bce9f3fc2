"""Stops OpenBLAS' idle threads while a CPU device computes, or threads copy to another device.

After a product its threads look for another one, for some 100 ms, before they sleep.  A CPU device
that computes meanwhile gets half of each such core and takes up to twice as long.  So they are
parked during a product: 500 x 500 in double precision directly after another product of NumPy's
takes 1.1 ms instead of 2.2, and alone 1.2 (two cores of a Zen 5).

Beside a CPU device they leave the core that the caller is on, like the device's own threads.  Else
one may go there while the caller sleeps, since the device's look for work on the other cores, and
then the caller waits for it on one core while another is idle: a tenth of NumPy's products took 10
ms.  When no product comes for a while they may use all cores again.

Which threads are a library's own is found while they sleep: each waits for a word in its memory.
So the first product of a process waits until they do, if they have just been used.

Where threads cannot be parked they are ended before a long product, as every `os.fork` makes
OpenBLAS do; its next product starts new ones.  To end them takes some 30 us, or 200 if they sleep
already, and NumPy's next product may take milliseconds, in which a new thread waits for a core.
Both are done only while no other thread of Python can be inside that library.

To have them sleep sooner (``OPENBLAS_THREAD_TIMEOUT``) is no way out: in virtual machines a thread
that spins for a short time, sleeps and is woken may wait for 10 ms until it has a core.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from contextlib import contextmanager
from itertools import chain, islice
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.host import openblas, parking
from clgemm.runtime import ending, processor
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.mappings import Mappings
from clgemm.runtime.worker_threads import WorkerThreads, waiting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clgemm.host.openblas import OpenBlas

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
PARKED_SECONDS, PARKED_FLOPS = 5e-5, 5e6
"""Of products during which threads are parked; the operations of each core where no time is
predicted."""
ENDED_SECONDS, ENDED_FLOPS = 3e-4, 5e7
"""The same of those before which they are ended."""
END = "blas_thread_shutdown_"
_WAITING = frozenset({threading.Condition.wait.__code__})
"""What a thread that is inside no BLAS for sure may be running."""
_thread = threading.local()
REST_SECONDS = 0.02
"""Without a product, after which threads may use all cores: the device's sleep by then, and the
caller may wake up on the only core that they have, where each of NumPy's products takes 16 ms."""
SPIN_SECONDS, LOOK_SECONDS = 0.15, 0.005
"""For how long threads look for work, about, and how often they are looked at meanwhile."""


def parks() -> bool:
    """Tell whether threads are parked in this process."""
    return settings.stops_spinning() and parking.why_not() is None


def lasts(flops: float, seconds: float | None) -> bool:
    """Tell whether a product with so many operations a core takes long enough to stop threads."""
    can_park = parks()
    if seconds is None:
        return flops >= (PARKED_FLOPS if can_park else ENDED_FLOPS)
    return seconds >= (PARKED_SECONDS if can_park else ENDED_SECONDS)


@contextmanager
def kept(condition: bool) -> Iterator[None]:
    """Have `stop` leave all threads alone inside a with block in this thread, on a condition.

    It is for calls that come from compiled code, whose other threads may be inside a BLAS now.
    """
    before = getattr(_thread, "keeps", False)
    _thread.keeps = before or condition
    try:
        yield
    finally:
        _thread.keeps = before


def stop(*, leave_core: bool = True) -> bool:
    """Stop the idle threads of the libraries that are loaded, as far as that is possible now.

    Parameters
    ----------
    leave_core : bool
        Whether those that are parked leave the core of the caller, who computes there.

    Returns
    -------
    bool
        Whether some are parked: `go_on` is to be called after the product.
    """
    parked = False
    if getattr(_thread, "keeps", False) or not settings.stops_spinning():
        return parked
    can_park = parking.why_not() is None
    for library in (openblas.of_numpy(), openblas.of_scipy()):
        if library is None or library.parallel != openblas.PTHREADS or not library.started.value:
            continue
        if can_park:
            parked = _park(library, leave_core=leave_core) or parked
        elif _may_be_moved(library) and why_not(library) is None:
            _end_if_alone(library)
    return parked


def go_on() -> None:
    """Let threads that were parked look for work again."""
    parking.unpark()


@contextmanager
def stopped() -> Iterator[None]:
    """Stop idle threads for a with block, whatever computes inside: as after a rest.

    For `parking.LIMIT_SECONDS` at most.
    """
    parked = stop()
    try:
        yield
    finally:
        if parked:
            go_on()


def _park(library: OpenBlas, *, leave_core: bool) -> bool:
    """Park the threads of a library if any has run lately; tell whether there are such."""
    workers = _workers.of(library)
    if workers is None:
        return False
    try:
        awake = parking.awake(workers.threads)
    except ProcessLookupError:  # they have ended, as they do before a fork
        _workers.forget(library)
        return False
    if not (awake and _may_be_moved(library) and _alone() and parking.park(awake)):
        return False
    if leave_core:
        workers.leave_core()
        _rest.touch()
    return True


def _may_be_moved(library: OpenBlas) -> bool:
    """Tell whether threads may all have cores: what starts later shares these for ever."""
    return library.threads() <= processor.usable_cores()


class _Workers:
    """The threads of each library, as far as they are known."""

    def __init__(self) -> None:
        self._found: dict[object, WorkerThreads] = {}
        self._next_look: dict[object, float] = {}

    def of(self, library: OpenBlas) -> WorkerThreads | None:
        """Return a library's threads, None if they are not known now."""
        count = library.threads() - 1
        found = self._found.get(library.library)
        if (found is not None and len(found.threads) >= count) or not count:
            return found
        now, due = time.monotonic(), self._next_look.get(library.library)
        if due is not None and now < due:
            return None
        self._next_look[library.library] = now + 2 * SPIN_SECONDS
        return self._look(library, count, now if due is not None else now + SPIN_SECONDS)

    def _look(self, library: OpenBlas, count: int, until: float) -> WorkerThreads | None:
        """Find so many threads of a library, or more, as soon as they sleep."""
        try:
            memory = Mappings().library_around(library.address)
        except OSError:  # the system does not tell; nothing is logged, for calls may hold locks
            return None
        while len(threads := waiting_in(memory)) < count:
            if time.monotonic() >= until:
                return None
            time.sleep(LOOK_SECONDS)
        found = self._found[library.library] = WorkerThreads(tuple(sorted(threads)))
        return found

    def forget(self, library: OpenBlas) -> None:
        """Look for a library's threads anew: they have ended."""
        self._found.pop(library.library, None)

    def use_all_cores(self) -> None:
        """Undo that they have left the core of a caller."""
        for workers in tuple(self._found.values()):
            workers.use_all_cores()


_workers = _Workers()
_rest = IdleTimer(REST_SECONDS, _workers.use_all_cores)


def _has_lock() -> bool:
    """Tell whether the interpreter has the lock that keeps other threads out meanwhile."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _alone() -> bool:
    """Tell whether no other thread of Python may be inside a BLAS.

    One that enters next waits for the parked threads, for as long as a product takes.  This
    package's own threads in the background copy, or wait, and never enter one.
    """
    if not _has_lock():
        return False
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way to ask
    # A frame that is kept here keeps itself, and so the operands of the product, for ever.
    del frames[threading.get_ident()]
    return all(
        frame.f_code in _WAITING or thread in ending.background for thread, frame in frames.items()
    )


def state(library: OpenBlas | None) -> str:
    """Say what idle threads of a library do, for people."""
    if library is None:
        return "are not OpenBLAS' and left alone"
    can_park = parking.why_not() is None
    return why_not(library) or (
        "sleep while a CPU device computes, or threads copy to another one" if can_park else
        "are ended before a long product of a CPU device"
    )  # fmt: skip


def why_not(library: OpenBlas) -> str | None:
    """Say why a library is not touched, None if it can be."""
    if library.parallel != openblas.PTHREADS:
        return "are OpenMP's and left alone: OMP_WAIT_POLICY=passive lets them sleep"
    if not settings.stops_spinning():
        return "spin on after a product: CLGEMM_HOST_SPIN=keep"
    can_end = parking.why_not() is None or hasattr(library.library, END)
    if not (_has_lock() and can_end):
        return f"spin on after a product: set {VARIABLE} before NumPy is imported"
    return None


def _end_if_alone(library: OpenBlas) -> bool:
    """End a library's threads, unless another thread may be inside a BLAS; tell whether it did.

    Whoever is inside has a frame that called something, and what runs `Condition.wait` has not.
    Between looking at the frames and the call nobody may enter.  The interpreter's lock can change
    hands after each instruction of Python, and `OpenBlas.library` keeps it, so all of it is one
    instruction: iterators in C that `list` runs through.  What the garbage collector may call in
    between would be Python.
    """
    entries = (getattr(library.library, END),)
    steps: dict[bool, tuple[Callable[[], object], ...]] = {True: entries, False: ()}
    allowed = _WAITING | {_end_if_alone.__code__}  # the caller's own, which runs now
    frames = chain.from_iterable(map(dict.values, islice(iter(sys._current_frames, None), 1)))  # noqa: SLF001 - there is no other way to ask
    alone = map(allowed.issuperset, [map(attrgetter("f_code"), frames)])
    ended = map(methodcaller("__call__"), chain.from_iterable(map(steps.__getitem__, alone)))
    collects = gc.isenabled()
    gc.disable()
    try:
        return bool(list(ended))
    finally:
        if collects:
            gc.enable()
