"""Parts of operands that other threads copy to pinned memory, while a call's own thread copies one.

The driver copies memory that is not pinned at the rate of one thread, and the calling thread waits
inside it.  So that thread hands out all parts but one, has the driver copy that one, and then sends
the others, which are in pinned memory by then: the bus takes a fifth of a thread's time for them.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING

from clgemm.streaming.copies import BlockCopy, Job

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clgemm.runtime.device import Device
    from clgemm.runtime.opencl import cl
    from clgemm.streaming.copies import Chunk
    from clgemm.streaming.copy_threads import CopyThreads

Piece = tuple["cl.Buffer", "Chunk"]
"""A chunk and where on the device it belongs."""


class CopiesBeside:
    """The parts of one call's operands that other threads copy.

    Parameters
    ----------
    device : Device
        On whose own queue they are sent.
    threads : CopyThreads
        The threads, and their pinned memory.
    """

    def __init__(self, device: Device, threads: CopyThreads) -> None:
        self._queue = device.queue
        self._copy = device.cl.enqueue_copy
        self._threads = threads
        self._jobs: list[Job] = []
        self._events: list[cl.Event] = []
        """Kept until their commands have ended: pyopencl waits for one that is dropped."""
        self.ended: SimpleQueue[Job] = SimpleQueue()
        """Jobs that were done and not heard of yet."""
        self.is_over = False

    def start(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Have threads copy these; return those for which there is no pinned memory."""
        left: list[Piece] = []
        self._threads.keep(self)  # else they might end before a job comes
        for buffer, chunk in pieces:
            staging = None if left else self._threads.staging.lease(self._queue)
            if staging is None or staging.buffer is None:
                left.append((buffer, chunk))
                continue
            job = Job(self, BlockCopy(buffer, [chunk], to_host=False), chunk, staging)
            self._jobs.append(job)  # from here on `abandon` knows of it
            self._threads.submit(job)
        return left

    def send(self) -> None:
        """Send each to the device as it is in pinned memory; the queue runs in order."""
        for _ in self._jobs:
            job = self.ended.get()
            if job.error is not None:
                raise job.error
            offset, x = job.chunk
            memory = job.staging.memory[: x.nbytes]
            self._events.append(
                self._copy(
                    self._queue, job.copy.buffer, memory, dst_offset=offset, is_blocking=False
                )
            )

    def abandon(self) -> None:
        """Leave out what has not begun, and wait for the threads that have."""
        self.is_over = True
        for job in self._jobs:
            with job.lock:
                pass  # it has ended, or sees that the call is over

    def close(self, *, is_idle: bool) -> None:
        """Give back the pinned memory, or drop it if the device may read it for all we know."""
        self.is_over = True
        self._threads.let_go(self)
        used = [job.staging for job in self._jobs]
        if not is_idle:
            self._threads.staging.drop(used)
            return
        for staging in used:
            self._threads.staging.release(staging)
        self._jobs.clear()
