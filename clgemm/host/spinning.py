"""Stops OpenBLAS' idle threads while a CPU device computes.

After a product its threads look for another one, for some 100 ms, before they sleep.  A CPU device
that computes meanwhile gets half of each such core and takes up to twice as long.  So they are
parked during a product: 500 x 500 in double precision directly after another product of NumPy's
takes 1.1 ms instead of 2.2, and alone 1.2 (two cores of a Zen 5).

Like the device's own threads they leave the core that the caller is on.  Else one may go there
while the caller sleeps, since the device's look for work on the other cores, and then the caller
waits for it on one core while another is idle: a tenth of NumPy's products took 10 ms.  When no
product comes for a while they may use all cores again.

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
from contextlib import contextmanager
from itertools import chain, islice
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.host import openblas, parking
from clgemm.runtime import processor
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.worker_threads import WorkerThreads, of_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clgemm.host.openblas import OpenBlas

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
PARKED_SECONDS, PARKED_FLOPS = 5e-5, 5e6
"""Of products during which threads are parked; the operations of each core where no time is
predicted."""
ENDED_SECONDS, ENDED_FLOPS = 3e-4, 5e7
"""The same of those before which they are ended."""
END, START = "blas_thread_shutdown_", "blas_thread_init"
_WAITING = frozenset({threading.Condition.wait.__code__})
"""What a thread that is inside no BLAS for sure may be running."""
_thread = threading.local()
_known: dict[object, WorkerThreads] = {}
"""The threads of each library, as far as they are known."""
REST_SECONDS = 1.0
"""Without a product, after which they may use all cores."""


def lasts(flops: float, seconds: float | None) -> bool:
    """Tell whether a product with so many operations a core takes long enough to stop threads."""
    parks = settings.stops_spinning() and parking.why_not() is None
    if seconds is None:
        return flops >= (PARKED_FLOPS if parks else ENDED_FLOPS)
    return seconds >= (PARKED_SECONDS if parks else ENDED_SECONDS)


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


def stop() -> bool:
    """Stop the idle threads of the libraries that are loaded, as far as that is possible now.

    Returns
    -------
    bool
        Whether some are parked: `go_on` is to be called after the product.
    """
    parked = False
    if getattr(_thread, "keeps", False):
        return parked
    for library in (openblas.of_numpy(), openblas.of_scipy()):
        if library is None or not library.started.value:
            continue
        awake = _awake(library)
        if awake == [] or why_not(library) is not None:
            continue
        if library.threads() > processor.usable_cores():
            continue  # threads that are started later would have these cores alone for ever
        if not _parks(library):
            _end_if_alone(library)
        elif _alone():
            parked = _park(library, awake) or parked
    return parked


def go_on() -> None:
    """Let threads that were parked look for work again."""
    parking.unpark()


def _parks(library: OpenBlas) -> bool:
    return parking.why_not() is None and hasattr(library.library, START)


def _awake(library: OpenBlas) -> list[int] | None:
    """Return the threads of a library that have run lately, None if they are not known now."""
    workers = _known.get(library.library)
    if workers is None:
        return None
    try:
        return parking.awake(workers.threads)
    except ProcessLookupError:  # those that were known have ended: after a fork, say
        _known.pop(library.library, None)
        return None


def _park(library: OpenBlas, awake: Sequence[int] | None) -> bool:
    """Park the threads of a library; tell whether there are any."""
    if awake is None:
        awake = _started_anew(library)
    workers = _known.get(library.library)  # which another thread may have found to have ended
    if not awake or workers is None:
        return False
    parking.park(awake)
    workers.leave_core()
    _rest.touch()
    return True


def _started_anew(library: OpenBlas) -> tuple[int, ...]:
    """End the threads of a library and start them: whichever then are new are its own.

    None are found if another thread of Python may be inside the library now.
    """
    if not _end_if_alone(library):
        return ()
    others = of_process()
    getattr(library.library, START)()
    others |= {thread.native_id for thread in threading.enumerate() if thread.native_id}
    found = _known[library.library] = WorkerThreads(tuple(sorted(of_process() - others)))
    return found.threads


def _use_all_cores() -> None:
    for workers in tuple(_known.values()):
        workers.use_all_cores()


_rest = IdleTimer(REST_SECONDS, _use_all_cores)


def _alone() -> bool:
    """Tell whether no other thread of Python may be inside a BLAS.

    One that enters next waits for the parked threads, for as long as a product takes.
    """
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way to ask
    # A frame that is kept here keeps itself, and so the operands of the product, for ever.
    del frames[threading.get_ident()]
    return all(frame.f_code in _WAITING for frame in frames.values())


def state(library: OpenBlas | None) -> str:
    """Say what idle threads of a library do, for people."""
    if library is None:
        return "are not OpenBLAS' and left alone"
    found = why_not(library)
    if found is None:
        found = "sleep while a CPU device computes"
        if not _parks(library):
            found = "are ended before a long product of a CPU device"
    return found


def why_not(library: OpenBlas) -> str | None:
    """Say why a library is not touched, None if it can be."""
    if library.parallel != openblas.PTHREADS:
        return "are OpenMP's and left alone: OMP_WAIT_POLICY=passive lets them sleep"
    if not settings.stops_spinning():
        return "spin on after a product: CLGEMM_HOST_SPIN=keep"
    shared = getattr(sys, "_is_gil_enabled", lambda: True)()  # else nothing keeps others out
    if not (shared and hasattr(library.library, END)):
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
