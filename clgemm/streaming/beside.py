"""Parts that other threads copy to or from pinned memory, while a call's own thread copies one.

The driver copies memory that is not pinned at the rate of one thread, and the calling thread waits
inside it.  So that thread hands out all parts but one, has the driver copy that one, and then sends
the others, which are in pinned memory by then: the bus takes a fifth of a thread's time for them.
Of the result it has all parts but one brought to pinned memory first, and hands them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from clgemm.streaming.copies import LATE_SECONDS, Job, next_ended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clgemm.runtime.device import Device
    from clgemm.runtime.opencl import cl
    from clgemm.streaming.copies import Chunk
    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.staging import StagingBuffer

Piece = tuple["cl.Buffer", "Chunk"]
"""A chunk and where on the device it belongs."""


@dataclass(eq=False)
class _Staged:
    """A piece in pinned memory, which one command copies and several threads do."""

    buffer: cl.Buffer
    offset: int
    memory: NDArray[Any]
    """Pinned, as bytes."""
    jobs: int
    """That have not ended."""


class CopiesBeside:
    """The pieces of one call's operands, and then of its result, that other threads copy.

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
        self._jobs: dict[Job, _Staged] = {}
        self._used: list[StagingBuffer] = []
        self._events: list[cl.Event] = []
        """Kept until their commands have ended: pyopencl waits for one that is dropped."""
        self.ended: SimpleQueue[Job] = SimpleQueue()
        """Jobs that were done and not heard of yet."""
        self.is_over = False

    def start(self, pieces: Sequence[Piece], helpers: int) -> list[Piece]:
        """Have so many threads copy these; return those for which there is no pinned memory."""
        self._threads.keep(self)  # else they might end before a job comes
        left = self._divide(pieces, helpers, to_host=False)
        for job in self._jobs:
            self._threads.submit(job)
        return left

    def send(self) -> None:
        """Send each to the device as it is in pinned memory; the queue runs in order."""
        while self._jobs:
            x = self._hear()
            if not x.jobs:
                event = self._copy(
                    self._queue, x.buffer, x.memory, dst_offset=x.offset, is_blocking=False
                )
                self._events.append(event)

    def fetch(self, pieces: Sequence[Piece], helpers: int) -> list[Piece]:
        """Have threads copy these from the device, where all was sent; return as `start` does."""
        left = self._divide(pieces, helpers, to_host=True)
        coming = {
            x: self._copy(self._queue, x.memory, x.buffer, src_offset=x.offset, is_blocking=False)
            for x in dict.fromkeys(self._jobs.values())
        }
        for job, x in self._jobs.items():
            coming[x].wait()
            self._threads.submit(job)
        return left

    def join(self) -> None:
        """Wait until all that is fetched is where it belongs."""
        while self._jobs:
            self._hear()

    def _divide(self, pieces: Sequence[Piece], helpers: int, *, to_host: bool) -> list[Piece]:
        """Make jobs for so many threads; return the pieces for which there is no pinned memory.

        What was sent through pinned memory may be overwritten: the queue runs in order.
        """
        left: list[Piece] = []
        free = self._used.copy()
        each = -(-helpers // max(1, len(pieces)))
        for buffer, (offset, x) in pieces:
            staging = free.pop() if free else self._lease()
            if staging is None:
                left.append((buffer, (offset, x)))
                continue
            memory = staging.like(x)
            step = -(-len(x) // each)
            starts = range(0, len(x), step)
            staged = _Staged(buffer, offset, staging.memory[: x.nbytes], len(starts))
            for start in starts:
                pair = memory[start : start + step], x[start : start + step]
                self._jobs[Job(self, *(pair[::-1] if to_host else pair))] = staged
        return left

    def _lease(self) -> StagingBuffer | None:
        """Take one more staging buffer, if it is pinned."""
        staging = self._threads.staging.lease(self._queue)
        if staging is None or staging.buffer is None:
            return None
        self._used.append(staging)
        return staging

    def _hear(self) -> _Staged:
        """Wait for a job, and tell of which piece it was."""
        while (job := next_ended(self.ended, self._jobs, LATE_SECONDS)) is None:
            pass
        staged = self._jobs.pop(job)
        if job.error is not None:
            raise job.error
        staged.jobs -= 1
        return staged

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
        if not is_idle:
            self._threads.staging.drop(self._used)
            return
        for staging in self._used:
            self._threads.staging.release(staging)
        self._used.clear()
