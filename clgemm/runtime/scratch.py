"""Scratch memory, leased to one call at a time, and counters that kernels take tiles from."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.kernels.family import CANCEL, CELL_STEP, TICKETS
from clgemm.runtime import opencl
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from numpy.typing import NDArray

PAGE = 4096  # bytes
MOST_IDLE = 4  # pieces of scratch that are kept for as many threads
LARGE = 64 << 20  # bytes, of which none is kept when no call came for some seconds
IDLE_SECONDS = 10.0
COUNTERS = 1024  # launches until a counter comes round again
ZERO = np.zeros(1, np.uint32)


class ScratchPool:
    """The scratch memory and the counters of one context.

    On devices that follow host pointers both are host memory: arguments of one kind are set faster
    than mixed ones.

    Parameters
    ----------
    context : cl.Context
        Of one device.
    system_svm : bool
        Whether kernels may follow any host pointer.
    """

    def __init__(self, context: cl.Context, *, system_svm: bool) -> None:
        self._cl: Any = opencl.load()
        self._lock = threading.Lock()
        self._context = context
        self._system_svm = system_svm
        self._idle: list[Any] = []
        self._timer = IdleTimer(IDLE_SECONDS, self.trim)
        self._counters: Any = None
        self._tickets: tuple[Any, Any] = (None, None)
        """Tickets, and the queue whose launches take them."""
        self._cells = np.zeros(COUNTERS * CELL_STEP, np.uint32)
        self._cell = 0

    def lease(self, nbytes: int) -> Any:
        """Return scratch of at least `nbytes` that starts on a page and that nobody else uses.

        It is the caller's alone until it is given back by `release`, once the last command that
        uses it has ended.  What is not given back, since that cannot be proved, is not used again.
        """
        try:
            last = self._idle.pop()  # nearly always the one that the call before used
        except IndexError:
            last = None
        return last if last is not None and last.size >= nbytes else self._another(nbytes)

    def _another(self, nbytes: int) -> Any:
        """Return the smallest idle one that is large enough, or make one."""
        fitting = [x for x in self._idle.copy() if x.size >= nbytes]
        for chosen in sorted(fitting, key=lambda x: x.size):
            with suppress(ValueError):  # another thread has leased it meanwhile
                self._idle.remove(chosen)
                return chosen
        if self._system_svm:
            return self._cl.SVM(_pages(nbytes))
        return self._cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)

    def release(self, scratch: Any) -> None:
        """Take back what was leased, if anything was; no command uses it any more."""
        if scratch is not None:
            self._idle.append(scratch)
            if len(self._idle) > MOST_IDLE:
                with self._lock:
                    del self._idle[:-MOST_IDLE]
            if scratch.size > LARGE:
                self._timer.touch()

    def trim(self) -> None:
        """Give back what nobody uses."""
        self._idle.clear()

    def poison(self, queue: cl.CommandQueue, scratch: Any) -> None:
        """Fill leased scratch with NaN: a kernel that reads what it did not write is found out."""
        if self._system_svm:
            scratch.mem.view(np.float64)[...] = np.nan
            return
        size = scratch.size // 8 * 8
        cl.enqueue_fill_buffer(queue, scratch, np.array(np.nan), 0, size)

    def counter(self) -> tuple[Any, int]:
        """Return counters that kernels share with the host, and the first of a free line of zeros.

        Only for devices with unified memory.  A cell comes round again after `COUNTERS` launches,
        far more than can be waiting.
        """
        if self._counters is None:
            access = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            self._counters = (
                self._cl.SVM(self._cells)
                if self._system_svm
                else cl.Buffer(self._context, access, hostbuf=self._cells)
            )
        self._cell = (self._cell + CELL_STEP) % len(self._cells)
        self._cells[self._cell : self._cell + CELL_STEP] = 0
        return self._counters, self._cell

    def tickets(self, queue: cl.CommandQueue) -> Any:
        """Return the tickets of launches on the device's own queue, which runs in order.

        Hold the device's lock until the last launch.
        """
        if self._tickets[1] is not queue:
            self._tickets = zero_tickets(self._context, queue)[0], queue
        return self._tickets[0]

    def drop_tickets(self) -> None:
        """Have later launches take fresh zeros: one has failed, which may not have left any."""
        self._tickets = (None, None)

    def cancel(self, cell: int | None = None) -> None:
        """Let the launch with a `counter` end early, or every launch; what it computes is void."""
        if cell is None:
            self._cells[CANCEL::CELL_STEP] = 1
        else:
            self._cells[cell + CANCEL] = 1


def zero_tickets(context: cl.Context, queue: cl.CommandQueue) -> tuple[cl.Buffer, cl.Event]:
    """Make `TICKETS` zeros that each launch leaves as zeros, and tell when they are there."""
    tickets = cl.Buffer(context, cl.mem_flags.READ_WRITE, TICKETS * 4)
    return tickets, cl.enqueue_fill_buffer(queue, tickets, ZERO, 0, TICKETS * 4)


def _pages(nbytes: int) -> NDArray[np.uint8]:
    """Return at least `nbytes` of memory that start on a page and end with one."""
    memory = np.empty((nbytes // PAGE + 2) * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + (nbytes // PAGE + 1) * PAGE]
