"""Threads that a CPU's runtime has bound to cores: they leave the core of the thread that calls.

Intel's runtime binds each of its own threads to one core when a context is made.  The thread that
waits for a launch computes as well, and is bound to none: where the system has it on the core of
one of the others, both take turns there while another core is idle.  The system may leave it so for
hundreds of products, after one of NumPy's above all, whose threads keep that other core for a
while.  So the runtime's threads may use all cores but the caller's, and are moved when that changes
(two cores of a Zen 5: 419 x 297 x 1026 in double precision, in turn with NumPy, 2.4 ms before, 1.6
after).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from pathlib import Path

log = logging.getLogger(__name__)

VARIABLES = ("SYCL_CPU_CU_AFFINITY", "DPCPP_CPU_CU_AFFINITY")
"""With which a user tells Intel's runtime how to bind its threads."""
LOOKS = 16  # launches, at the first of which they may not have bound themselves yet
_TASKS = Path("/proc/self/task")
_before: frozenset[int] | None = None


def of_process() -> frozenset[int]:
    """Return the threads of this process; none where the system does not tell, or binds none."""
    if sys.platform != "linux" or not hasattr(os, "sched_setaffinity"):
        return frozenset()
    try:
        return frozenset(int(path.name) for path in _TASKS.iterdir())
    except OSError as error:
        log.debug("threads are not known: %s", error)
        return frozenset()


def note() -> None:
    """Note which threads there are before a driver is asked for anything: they are not its own."""
    global _before  # noqa: PLW0603 - of the process
    if _before is None:
        _before = of_process()


def of_drivers() -> BoundThreads | None:
    """Return what moves threads of the drivers, as far as they bind themselves.

    None if the system does not tell, or if a user has told the runtime how to bind them.
    """
    return None if not _before or any(map(os.environ.get, VARIABLES)) else BoundThreads(_before)


class BoundThreads:
    """Threads of a runtime that bind themselves to cores, some time after a context is made.

    Parameters
    ----------
    before : frozenset of int
        The threads that there were before, by the system's numbers.
    """

    def __init__(self, before: frozenset[int]) -> None:
        self._before = before
        self._threads: tuple[int, ...] = ()
        # The interpreter's lock is kept: letting it go takes longer than asking.
        self._core = ctypes.PyDLL(None).sched_getcpu
        self._left = -1
        """The core that they may not use."""
        self._looks = LOOKS

    def leave_core(self) -> None:
        """Have them leave the core that the caller is on, if it is another one than before."""
        if self._threads:
            core = self._core()
            if core != self._left:
                self._leave(core)
        elif self._looks:
            self._look()

    def _look(self) -> None:
        """Find those that are bound to fewer cores than the caller is."""
        self._looks -= 1
        allowed = os.sched_getaffinity(0)
        new = of_process() - self._before - {t.native_id for t in threading.enumerate()}
        bound = [thread for thread in new if set() < _cores(thread) < allowed]
        if bound:
            self._threads = tuple(bound)
            self._leave(self._core())

    def _leave(self, core: int) -> None:
        others = os.sched_getaffinity(0) - {core}
        if others:  # else the caller may use a single core, and computes without them
            self._threads = tuple(thread for thread in self._threads if _move(thread, others))
        self._left = core


def _cores(thread: int) -> set[int]:
    """Return the cores that a thread may use; none if it has ended."""
    try:
        return os.sched_getaffinity(thread)
    except OSError as error:
        log.debug("the cores of thread %d are not known: %s", thread, error)
        return set()


def _move(thread: int, cores: set[int]) -> bool:
    """Bind a thread to other cores; tell whether that is done."""
    try:
        if not (_TASKS / str(thread)).exists():  # its number may come again, elsewhere
            return False
        os.sched_setaffinity(thread, cores)
    except OSError as error:
        log.debug("thread %d stays on its core: %s", thread, error)
        return False
    return True
