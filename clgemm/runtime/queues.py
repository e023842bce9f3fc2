"""What calls on one queue share, in the order of that queue."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

from clgemm.kernels.family import CELL_STEP
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl
from clgemm.runtime.scratch import ZERO, ScratchPool, zero_tickets


def finish(queue: cl.CommandQueue) -> bool:
    """Wait until a queue has done all; tell whether that is sure."""
    try:
        queue.finish()
    except cl.Error:
        return False
    return True


class LaunchState:
    """Scratch memory and counters of launches on one queue; nothing here waits.

    Commands on a queue that runs in order follow each other, so that they can use the same memory.

    Parameters
    ----------
    context : cl.Context
        The queue's, of one device.
    queue : cl.CommandQueue
        A queue that runs in order.
    scratch : cl.Buffer, optional
        Scratch memory to begin with.
    pool : ScratchPool, optional
        Whose tickets to use, if the queue is a device's own.
    """

    in_order: bool = True
    has_events: bool = False
    """Whether each launch makes an event: the queue runs in no order, or times its commands."""

    def __init__(
        self, context: cl.Context, queue: cl.CommandQueue, scratch: cl.Buffer | None = None, *,
        pool: ScratchPool | None = None,
    ) -> None:  # fmt: skip
        self._context = context
        self.queue = queue
        self.handle = ctypes.c_void_p(queue.int_ptr)
        self.used = True
        """Set by each call, cleared when the time since is counted."""
        self.last: cl.Event | None = None
        """The last launch of the last call, if the queue does not run in order."""
        self._scratch = scratch
        self._scratch_bytes = 0 if scratch is None else scratch.size
        self._counters: cl.Buffer | None = None
        self._tickets: cl.Buffer | None = None
        self._pool = pool
        self.version = 0
        """Counts up before scratch memory or tickets are given back: whoever set them, sets others.

        Like all that a launch takes it changes under the device's lock."""

    def begin(
        self, wait_for: list[cl.Event], scratch_bytes: int, *, counts: bool, takes_tickets: bool
    ) -> tuple[list[cl.Event] | None, tuple[Any, Any, Any]]:
        """Return what a call's first launch waits for, and its scratch, counters and tickets.

        Hold the device's lock from here until the last launch.
        """
        self.used = True
        if not self.in_order and self.last is not None:
            wait_for = [*wait_for, self.last]
        scratch = self._scratch_of(scratch_bytes) if scratch_bytes else None
        counters = None
        if counts:
            counters, wait_for = self._zeros(wait_for)
        if takes_tickets and self._tickets is None:
            wait_for = self._get_tickets(wait_for)
        return wait_for or None, (scratch, counters, self._tickets)

    def memory(self, scratch_bytes: int, *, takes_tickets: bool) -> tuple[Any, Any, Any]:
        """Return what `begin` does where the queue runs in order, for what takes no counters."""
        self.used = True
        if takes_tickets and self._tickets is None:
            self._get_tickets([])
        return self._scratch_of(scratch_bytes) if scratch_bytes else None, None, self._tickets

    def _scratch_of(self, nbytes: int) -> cl.Buffer:
        """Return scratch of at least `nbytes`; what was enqueued keeps a smaller one alive."""
        if self._scratch is None or self._scratch_bytes < nbytes:
            self.version += 1
            self._scratch = None
            self._scratch = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
            self._scratch_bytes = nbytes
        return self._scratch

    def use_scratch(self, scratch: cl.Buffer | None = None) -> None:
        """Use this scratch memory from now on, which nobody else uses meanwhile."""
        self.version += 1
        self._scratch = scratch
        self._scratch_bytes = 0 if scratch is None else scratch.size

    def _zeros(self, wait_for: list[cl.Event]) -> tuple[cl.Buffer, list[cl.Event]]:
        """Return counters that will be zero, and what to wait for until they are."""
        nbytes = CELL_STEP * 4
        if self._counters is None:
            self._counters = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
        event = cl.enqueue_fill_buffer(
            self.queue, self._counters, ZERO, 0, nbytes, wait_for=wait_for or None
        )
        return self._counters, [] if self.in_order else [event]

    def _get_tickets(self, wait_for: list[cl.Event]) -> list[cl.Event]:
        """Get tickets, and return what to wait for until they are zeros."""
        if self._pool is not None:
            self._tickets = self._pool.tickets(self.queue)
            return wait_for
        self._tickets, event = zero_tickets(self._context, self.queue)
        return wait_for if self.in_order else [*wait_for, event]

    def trim(self) -> None:
        """Give back memory that no call uses now; what is in flight keeps its own."""
        self.version += 1
        self.last = None
        self._scratch = None
        self._counters = None
        self._tickets = None
        if self._pool is not None:
            self._pool.drop_tickets()


class QueueState(LaunchState):
    """What calls on one queue of the caller's share: a pool for results, too.

    What one result leaves another may take.  On queues that run in no order each call waits for the
    one before, and results come from the driver.

    Parameters
    ----------
    context : cl.Context
        The queue's, of one device.
    queue : cl.CommandQueue
        The queue.  It is kept by a handle of our own: whether the caller still has it can be told.
    scratch : cl.Buffer, optional
        Scratch memory to begin with.
    """

    def __init__(
        self, context: cl.Context, queue: cl.CommandQueue, scratch: cl.Buffer | None = None
    ) -> None:
        others = queue.reference_count
        own = cl.CommandQueue.from_int_ptr(queue.int_ptr, retain=True)
        super().__init__(context, own, scratch)
        self._own = own.reference_count - others
        kinds, properties = cl.command_queue_properties, queue.properties
        self.in_order = not properties & kinds.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self.has_events = not self.in_order or bool(properties & kinds.PROFILING_ENABLE)

    @cached_property
    def allocator(self) -> Any:
        """What gives memory for results; None for the driver itself."""
        if not self.in_order:
            return None
        before = self.queue.reference_count
        tools = opencl.tools()
        pool = tools.MemoryPool(tools.ImmediateAllocator(self.queue))
        self._own += self.queue.reference_count - before
        return pool

    def trim(self) -> None:
        """Give back memory that no call uses now; what is in flight keeps its own."""
        super().trim()
        pool = self.__dict__.get("allocator")
        if pool is not None:
            pool.free_held()

    def is_dropped(self) -> bool:
        """Tell whether nobody but this object has the queue any more."""
        return self.queue.reference_count <= self._own
