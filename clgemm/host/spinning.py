"""Ends OpenBLAS' idle threads before a long product of a CPU device.

After a product its threads look for another one, for some 100 ms, before they sleep.  A CPU device
that computes meanwhile gets half of each such core and takes up to twice as long.  So they are
ended before, as every `os.fork` makes OpenBLAS do; its next product starts new ones.  To end them
takes some 30 us, or 200 if they sleep already (measured with one, on two cores of a Zen 5), and is
done only while no other thread of Python can be inside that library.

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
from clgemm.host import openblas
from clgemm.runtime import processor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clgemm.host.openblas import OpenBlas

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
LONG_SECONDS = 3e-4
"""Of products before which threads are ended."""
LONG_FLOPS = 5e7
"""The same for each core, where no time is predicted."""
ENTRY = "blas_thread_shutdown_"
_WAITING = frozenset({threading.Condition.wait.__code__})
"""What a thread that is inside no BLAS for sure may be running."""
_thread = threading.local()


def lasts(flops: float, seconds: float | None) -> bool:
    """Tell whether a product with so many operations a core takes long enough to end threads."""
    return flops >= LONG_FLOPS if seconds is None else seconds >= LONG_SECONDS


@contextmanager
def kept(condition: bool) -> Iterator[None]:
    """Have `end` leave all threads alone inside a with block in this thread, on a condition.

    It is for calls that come from compiled code, whose other threads may be inside a BLAS now.
    """
    before = getattr(_thread, "keeps", False)
    _thread.keeps = before or condition
    try:
        yield
    finally:
        _thread.keeps = before


def end() -> bool:
    """End the idle threads of the libraries that are loaded, as far as that is possible now.

    Returns
    -------
    bool
        Whether there were some: their library was used since the last time.
    """
    ended = False
    if getattr(_thread, "keeps", False):
        return ended
    for library in (openblas.of_numpy(), openblas.of_scipy()):
        if library is None or not library.started.value or why_not(library) is not None:
            continue
        if library.threads() > processor.usable_cores():
            continue  # threads that are started later would have these cores alone for ever
        if _end_if_alone(library):
            ended = True
    return ended


def state(library: OpenBlas | None) -> str:
    """Say what idle threads of a library do, for people."""
    if library is None:
        return "are not OpenBLAS' and left alone"
    return why_not(library) or "are ended before a long product of a CPU device"


def why_not(library: OpenBlas) -> str | None:
    """Say why a library is not touched, None if it can be."""
    if library.parallel != openblas.PTHREADS:
        return "are OpenMP's and left alone: OMP_WAIT_POLICY=passive lets them sleep"
    if not settings.ends_spinning():
        return "spin on after a product: CLGEMM_HOST_SPIN=keep"
    shared = getattr(sys, "_is_gil_enabled", lambda: True)()  # else nothing keeps others out
    if not (shared and hasattr(library.library, ENTRY)):
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
    entries = (getattr(library.library, ENTRY),)
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
