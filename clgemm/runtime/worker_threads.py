"""The threads of Intel's runtime on a CPU: they leave the core of the thread that calls.

The thread that waits for a launch computes as well, and may be on any core.  Where one of the
runtime's own threads is on the same core, both take turns there while another core is idle.  The
system may leave it so for hundreds of products: in some processes the runtime has bound its threads
to a core each when it made a context, and in all a thread that looked for work while one of NumPy's
had its core waits behind the caller until the system next balances its cores, long after a product.
So the runtime's threads may use all cores but the caller's, and are moved when that changes (two
cores of a Zen 5, after a product of NumPy's each: 1870 x 1107 x 54 in single precision 1.0 ms
before, 0.6 after, 0.55 alone).

Where another thread waits in the caller's place, it begins on the caller's core: the system puts a
new thread on any, where it takes turns with one of the runtime's while the caller's core is idle
(there, 3000 x 3000 x 3000 one after another: 460 GFLOP/s before, 505 after).
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from weakref import ref

log = logging.getLogger(__name__)

PLATFORMS = frozenset({"Intel(R) OpenCL"})
"""Of which a thread that waits computes too.  PoCL's sleeps, and its core is to be used."""
VARIABLES = ("SYCL_CPU_CU_AFFINITY", "DPCPP_CPU_CU_AFFINITY")
"""With which a user tells Intel's runtime how to bind its threads."""
_TASKS = Path("/proc/self/task")
_FUTEX = "202"  # by which a thread waits for a word to change, on x86-64
_before: frozenset[int] | None = None
_held: dict[int, set[int]] = {}
"""Threads that are held on one core for a moment, and the cores that they may use."""
_known: dict[int, ref[WorkerThreads]] = {}
"""All that are in use: those of several contexts of a runtime are the same threads."""


def of_process() -> frozenset[int]:
    """Return the threads of this process; none where the system does not tell, or binds none."""
    if sys.platform != "linux" or not hasattr(os, "sched_setaffinity"):
        return frozenset()
    try:
        return frozenset(int(path.name) for path in _TASKS.iterdir())
    except OSError as error:
        log.debug("threads are not known: %s", error)
        return frozenset()


def waiting_in(memory: range) -> frozenset[int]:
    """Return the threads that sleep until a word in a library's memory changes: its own.

    None where the system does not tell what a thread waits for.
    """
    found = set()
    for thread in of_process() - _of_python():
        with suppress(OSError):  # it has ended, or the system does not tell
            call = (_TASKS / str(thread) / "syscall").read_text(encoding="ascii").split()
            if call[:1] == [_FUTEX] and int(call[1], 16) in memory:
                found.add(thread)
    return frozenset(found)


def note() -> None:
    """Note which threads there are before a driver is asked for anything: they are not its own."""
    global _before  # noqa: PLW0603 - of the process
    if _before is None:
        _before = of_process()


def of_platform(name: str) -> WorkerThreads | None:
    """Return the threads that a runtime has started, once a context is made.

    None if its threads need not move, if the system does not tell, or if a user has told the
    runtime how to bind them.
    """
    if name not in PLATFORMS or not _before or any(map(os.environ.get, VARIABLES)):
        return None
    found = of_process() - _before - _of_python()
    return WorkerThreads(tuple(sorted(found))) if found else None


def _of_python() -> set[int | None]:
    return {thread.native_id for thread in threading.enumerate()}


class WorkerThreads:
    """Threads of a library, which compute beside the caller.

    Parameters
    ----------
    threads : tuple of int
        By the system's numbers.
    """

    def __init__(self, threads: tuple[int, ...]) -> None:
        self.threads = threads
        # The interpreter's lock is kept: letting it go takes longer than asking.
        self._core = ctypes.PyDLL(None).sched_getcpu
        self.left = -1
        """The core that they may not use, -1 if they may use all or are not known to have left."""
        key = id(self)
        _known[key] = ref(self, lambda _: _known.pop(key, None))

    def leave_core(self) -> None:
        """Have them leave the core that the caller is on, if it is another one than before."""
        core = self._core()
        if core != self.left:
            self._leave(core)

    def use_all_cores(self) -> None:
        """Have them use all cores that the process may use."""
        main = os.getpid()
        self._move_to(_held.get(main) or os.sched_getaffinity(main))
        self.left = -1

    def holder(self) -> Holder:
        """Return what has the caller's next thread begin on the caller's core.

        That is the one that these have left, but for calls of several threads at once.
        """
        return Holder(self._core())

    def _leave(self, core: int) -> None:
        others = os.sched_getaffinity(0) - {core}
        if others:  # else the caller may use a single core, and computes without them
            self._move_to(others)
        self.left = core

    def _move_to(self, cores: set[int]) -> None:
        self.threads = tuple(thread for thread in self.threads if _move(thread, cores))
        moved = set(self.threads)
        for reference in tuple(_known.values()):
            other = reference()
            if other is not None and other is not self and not moved.isdisjoint(other.threads):
                other.left = -1  # wherever its threads were, some are elsewhere now


class Holder:
    """Holds the calling thread on a core while it starts another, which begins there.

    Parameters
    ----------
    core : int
        The core; -1 if it is not known.
    """

    def __init__(self, core: int) -> None:
        self._core = core
        self._caller = threading.get_native_id()
        self._cores = os.sched_getaffinity(0)
        self._holds = core in self._cores and len(self._cores) > 1

    def hold(self) -> None:
        """Hold the calling thread, and what it starts, on the core."""
        if self._holds:
            _held[self._caller] = self._cores
            _move(self._caller, {self._core})

    def release(self) -> None:
        """Let both use all cores again: called in the thread that was started, or if none was."""
        if self._holds:
            for thread in {threading.get_native_id(), self._caller}:
                _move(thread, self._cores)
            _held.pop(self._caller, None)


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
