"""Threads that copy between NumPy's memory and pinned memory, and what they need.

A device reads and writes pinned memory at the full rate of the bus, in both directions at a time,
and other memory at a fraction of it; one thread copies at a fraction of that rate too.  The threads
do nothing else: see copies.py.

Threads, pinned memory and idle device memory are given back after some seconds without a call.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections import deque
from contextlib import contextmanager, suppress
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from clgemm.runtime import ending
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.opencl import cl
from clgemm.runtime.reentry import entry
from clgemm.streaming.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clgemm.runtime.device import Device

log = logging.getLogger(__name__)

THREADS = 14
BUFFERS = 2
"""For each thread: one to copy and one on its way.  More leave the caches before they are read."""
IDLE_SECONDS = 10.0

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14: contents stay as they are
PAGE = 4096
PAGES_BYTES = 4 << 20  # of pages populated at a time: two of the system's huge pages


class _Use:
    """A call, as far as threads are kept for it."""


class CopyThreads:
    """The threads, queues and pinned memory of one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        cores = _cores()
        self._most = max(1, min(THREADS, cores - cores // 8))
        self._count = 0
        self._jobs: deque[Callable[[], object]] = deque()
        self._idle_jobs: deque[Callable[[], object]] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        """True wakes a thread, False ends it."""
        self._calls: WeakSet[object] = WeakSet()
        """Weak: whenever Ctrl-C comes, none stays longer than its call."""
        self._timer = IdleTimer(IDLE_SECONDS, self.trim)
        self._queues: tuple[cl.CommandQueue, cl.CommandQueue] | None = None
        self.staging = Staging(device.context, BUFFERS * self._most)

    @contextmanager
    def in_use(self) -> Iterator[tuple[cl.CommandQueue, cl.CommandQueue]]:
        """Keep threads and staging while a call copies; give the queue there and the one back."""
        call = _Use()
        try:
            self.keep(call)
            with self._lock:
                if self._queues is None:
                    context = self._device.context
                    self._queues = cl.CommandQueue(context), cl.CommandQueue(context)
            yield self._queues
        finally:
            self.let_go(call)
            self.touch()

    def keep(self, call: object) -> None:
        """Keep threads and staging until `let_go`, or until nobody has the call any more."""
        with self._lock:
            self._calls.add(call)

    def let_go(self, call: object) -> None:
        """Have a call end that threads and staging were kept for."""
        self._calls.discard(call)

    def touch(self) -> None:
        """Keep what is idle for some seconds more."""
        self._timer.touch()

    def submit(self, job: Callable[[], object], *, first: bool = False) -> None:
        """Have a thread do a job that raises nothing, before all others if it comes first.

        Where there is no thread and none can be started, it is done here.
        """
        if not self._have_threads():
            job()
            return
        (self._jobs.appendleft if first else self._jobs.append)(job)
        self._tokens.put(True)

    def submit_idle(self, job: Callable[[], object]) -> None:
        """Have a thread do a job when there is nothing to copy; none does it without threads."""
        if self._have_threads():
            self._idle_jobs.append(job)
            self._tokens.put(True)

    def _have_threads(self) -> bool:
        """Start one more thread if there may be more; tell whether there is any that works."""
        if ending.has_begun():
            return False  # they do not run any more
        if self._count < self._most:
            try:
                threading.Thread(target=self._work, name="clgemm copy", daemon=True).start()
            except RuntimeError as error:  # a limit of the system, or the interpreter ends
                log.debug("no thread for copies can be started: %s", error)
            else:
                with self._lock:
                    self._count += 1
        return self._count > 0

    @entry(background=True)
    def _work(self) -> None:
        # All there is to do, not one job: Ctrl-C may have come between a job and its token.
        while self._tokens.get():
            while (job := self._next()) is not None:
                job()

    def _next(self) -> Callable[[], object] | None:
        for jobs in (self._jobs, self._idle_jobs):
            if jobs:
                with suppress(IndexError):  # another thread was first
                    return jobs.popleft()
        return None

    def trim(self) -> None:
        """Give back threads, pinned memory and idle device memory, unless a call copies."""
        with self._lock:
            if self._calls:
                return
            for _ in range(self._count):
                self._tokens.put(False)
            self._count = 0
            self.staging.trim()
            self._device.memory.trim()


def _cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _advise() -> Callable[[int, int, int], int] | None:
    """Return the system's `madvise`, or None where it is not known to populate pages."""
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    advise.restype = ctypes.c_int
    return advise


def page_ranges(x: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the address and bytes of ranges of pages that make up the memory of a dense array.

    They begin and end at multiples of their size, so that no two share a huge page, except for the
    first and the last one.
    """
    start = x.ctypes.data
    stop = start + x.nbytes
    start -= start % PAGE
    while start < stop:
        after = min(stop, start - start % PAGES_BYTES + PAGES_BYTES)
        yield start, after - start
        start = after


def populate(address: int, nbytes: int) -> bool:
    """Have the system provide pages, as far as they are not there yet; tell whether that worked.

    It provides a page, cleared, when that is first touched, and takes as long as copying what goes
    there: so it had better be done while threads have nothing to copy.  The interpreter is free
    meanwhile, and contents stay as they are.
    """
    advise = _advise()
    return advise is not None and advise(address, nbytes, POPULATE_WRITE) == 0
