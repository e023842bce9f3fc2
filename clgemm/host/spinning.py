"""Shortens the time for which OpenBLAS' idle threads keep their cores busy.

After a product its threads look for another one, for some 30 ms, before they sleep.  A CPU device
that computes meanwhile gets half of each such core and takes up to twice as long.  OpenBLAS reads
how long that is, ``OPENBLAS_THREAD_TIMEOUT``, when it is loaded, and goes by it when it starts its
threads.  So the variable is set while clgemm loads SciPy's library.  What was loaded before ends
its threads, reads the variable and starts them again, as every `os.fork` makes it do: once, when a
CPU device is in use, and only while no other thread of Python can be inside that library.

A shorter time costs little: threads that sleep are woken for the next product in some 20 us, and
products in a loop come before they sleep.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import sys
import threading
from contextlib import contextmanager
from itertools import chain, islice
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.host import openblas
from clgemm.lazy_imports import importing
from clgemm.runtime import processor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clgemm.host.openblas import OpenBlas

log = logging.getLogger(__name__)

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
EXPONENT = 18
"""Of two: ticks of x86's clock, 0.1 ms at 2.6 GHz.  Threads are still awake for the next product of
a loop, and a product of a millisecond that follows loses less than a tenth."""
MACHINES = frozenset({"x86_64", "AMD64"})
"""On others a tick has another length, which nothing tells."""
ENTRIES = (
    "blas_thread_shutdown_", "openblas_read_env", "blas_thread_init", "openblas_thread_timeout",
)  # fmt: skip
_WAITING = frozenset({threading.Condition.wait.__code__})
"""What a thread that is inside no BLAS for sure may be running."""


def shorten() -> None:
    """Shorten it for the libraries that are loaded, as far as that is possible now.

    Cheap if there is nothing to do: what cannot be done now may be at another call.
    """
    for library in (openblas.of_numpy(), openblas.of_scipy()):
        if library is None or _why_not(library) is not None or not _is_default(library):
            continue
        if library.threads() > processor.usable_cores():
            continue  # threads that are started now would have these cores alone for ever
        with importing, _variable():
            has_restarted = _is_default(library) and _restart_if_alone(library)
        if has_restarted:  # said with no lock held: see `runtime.reentry`
            log.debug("idle threads of %s sleep after 2**%d ticks", library, EXPONENT)


@contextmanager
def loading() -> Iterator[None]:
    """Load a library inside this block such that its idle threads soon sleep."""
    with importing:
        if VARIABLE in os.environ or _why_never() is not None:
            yield
        else:
            with _variable():
                yield


def state(library: OpenBlas | None) -> str:
    """Say what idle threads of a library do, for people."""
    if library is None:
        return "are not OpenBLAS' and left alone"
    why = _why_not(library)
    if why is not None:
        return why
    if _is_default(library):
        return "spin on for some 30 ms after a product, until a CPU device is used"
    ticks = library.library.openblas_thread_timeout()
    return f"sleep 2**{ticks} ticks after a product"


def _is_default(library: OpenBlas) -> bool:
    return not library.library.openblas_thread_timeout()


def _why_never() -> str | None:
    """Say why no library is touched here, None if some can be."""
    if not settings.shortens_spinning():
        return "spin on after a product: CLGEMM_HOST_SPIN=keep"
    shared = getattr(sys, "_is_gil_enabled", lambda: True)()  # else nothing keeps others out
    if platform.machine() not in MACHINES or not shared:
        return f"spin on after a product: set {VARIABLE} before NumPy is imported"
    return None


def _why_not(library: OpenBlas) -> str | None:
    """Say why a library is not touched, None if it can be."""
    if library.parallel != openblas.PTHREADS:
        return "are OpenMP's and left alone: OMP_WAIT_POLICY=passive lets them sleep"
    if not all(hasattr(library.library, name) for name in ENTRIES):
        return f"spin on after a product: set {VARIABLE} before NumPy is imported"
    return _why_never()


@contextmanager
def _variable() -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(EXPONENT)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _restart_if_alone(library: OpenBlas) -> bool:
    """Restart a library's threads, unless another thread may be inside a BLAS; tell whether it did.

    Whoever is inside has a frame that called something, and what runs `Condition.wait` has not.
    Between looking at the frames and the last call nobody may enter.  The interpreter's lock can
    change hands after each instruction of Python, and `OpenBlas.library` keeps it, so all of it is
    one instruction: iterators in C that `list` runs through.  What the garbage collector may call
    in between would be Python.
    """
    entries = tuple(getattr(library.library, name) for name in ENTRIES[:3])
    steps: dict[bool, tuple[Callable[[], object], ...]] = {True: entries, False: ()}
    allowed = _WAITING | {_restart_if_alone.__code__}  # the caller's own, which runs now
    frames = chain.from_iterable(map(dict.values, islice(iter(sys._current_frames, None), 1)))  # noqa: SLF001 - there is no other way to ask
    alone = map(allowed.issuperset, [map(attrgetter("f_code"), frames)])
    restart = map(methodcaller("__call__"), chain.from_iterable(map(steps.__getitem__, alone)))
    collects = gc.isenabled()
    gc.disable()
    try:
        return bool(list(restart))
    finally:
        if collects:
            gc.enable()
