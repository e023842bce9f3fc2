"""One call's copies.  Its own thread alone speaks with the device; other threads copy.

Threads that enqueue commands themselves wait for each other, for the interpreter's lock and the
driver's, longer than they copy.  So this thread hands a chunk and a staging buffer to a thread,
sends the buffer to the device when it is filled, starts the way back of what the device has
computed, and has a thread copy that out of staging when it is there.  It waits for nothing else
than for something to happen, and copies what no thread has begun for long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from clgemm.runtime.opencl import cl
from clgemm.runtime.queues import finish
from clgemm.streaming import copy_threads
from clgemm.streaming.staging import StagingBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.request import Write

PAUSE = 50e-6  # seconds until the device is looked at again
LATE_SECONDS = 0.02  # that a job may wait for a thread

Chunk = tuple[int, "NDArray[Any]"]
"""Bytes from the start of a device buffer, and the elements that lie there, in C order."""


def chunks(x: NDArray[Any], most: int) -> Iterator[Chunk]:
    """Divide a stack into chunks of at most so many bytes, one after the other in device memory.

    `x` is (batch, rows, columns); there its elements lie without gaps, the last axis fastest.
    """
    if x.nbytes <= most:
        yield 0, x
        return
    offset = 0
    for axis in range(x.ndim):
        unit = x[(0,) * (axis + 1)].nbytes  # bytes of what one index of this axis holds
        if unit <= most:
            break
    for index in np.ndindex(x.shape[:axis]):
        line = x[index]
        count = -(-line.nbytes // (most // unit * unit))
        step = -(-len(line) // count)
        for start in range(0, len(line), step):
            chunk = line[start : start + step]
            yield offset, chunk
            offset += chunk.nbytes


def has_ended(event: cl.Event) -> bool:
    """Tell whether a command has ended, without waiting; raise if it has failed."""
    status: int = event.command_execution_status
    if status < 0:
        event.wait()  # raises
    return status == 0


class BlockCopy:
    """One block on its way to a device buffer or back, in chunks that fit a staging buffer."""

    def __init__(
        self, buffer: cl.Buffer, chunks: Sequence[Chunk], *, to_host: bool,
        write: Write | None = None,
    ) -> None:  # fmt: skip
        self.buffer = buffer
        self.write = write
        """Writes what comes back, if not all of it is copied."""
        self.chunks = chunks
        self.to_host = to_host
        self.to_enqueue = len(chunks)
        """Chunks whose command is not in the queue yet."""
        self.on_device = len(chunks) * to_host
        """Chunks that are still in device memory only."""
        self.to_copy = len(chunks) * to_host
        """Chunks that are not yet where they belong."""
        self.event: cl.Event | None = None
        """The last command: their queue runs in order."""


class Caller(Protocol):
    """A call that has chunks copied."""

    is_over: bool
    """Whether nothing more is to be copied."""
    ended: SimpleQueue[Job]
    """Where jobs go that are done."""


class Job:
    """Copies an array into another one, in whatever thread.

    All is prepared by the thread that makes it: another one that has just woken up finds nothing in
    its caches, and holds up all others while it runs Python.
    """

    def __init__(
        self, call: Caller, into: NDArray[Any], values: NDArray[Any], write: Write | None = None
    ) -> None:
        self._call = call
        self._into, self._values, self._write = into, values, write
        self.error: BaseException | None = None
        self.is_begun = self.is_done = False
        self.lock = threading.Lock()
        """Held while it copies."""
        self._made = time.monotonic()

    def is_late(self) -> bool:
        """Tell whether no thread has begun it for long."""
        return not self.is_begun and time.monotonic() - self._made > LATE_SECONDS

    def __call__(self) -> None:
        """Copy, unless the call is over or somebody has begun to."""
        with self.lock:
            if self._call.is_over or self.is_begun:
                return
            self.is_begun = True
            try:
                (self._write or np.copyto)(self._into, self._values)
                self.is_done = True
            except BaseException as error:  # noqa: BLE001 - the call's own thread raises it
                self.error = error
        self._call.ended.put(self)


def next_ended(ended: SimpleQueue[Job], jobs: Iterable[Job], seconds: float) -> Job | None:
    """Wait for one of some jobs to end, and return it; None if none does for so long.

    Then the oldest is done here if no thread has begun it for long.  The threads may all be where
    they cannot copy: one that has just been started can run somebody's finalizer, which multiplies,
    and waits for the memory of the very call that waits here.
    """
    try:
        return ended.get(timeout=seconds)
    except Empty:
        oldest = next(iter(jobs))
        if oldest.is_late():
            oldest()
        return None


class Copies:
    """The copies of one call, in queues that run in order."""

    def __init__(
        self, threads: CopyThreads, to_device: cl.CommandQueue, to_host: cl.CommandQueue
    ) -> None:
        self._threads = threads
        self._to_device = to_device
        self._to_host = to_host
        self._to_send: deque[tuple[BlockCopy, Chunk]] = deque()
        self._to_fetch: deque[tuple[BlockCopy, Chunk]] = deque()
        self._jobs: dict[Job, tuple[StagingBuffer, BlockCopy, Chunk]] = {}
        self.ended: SimpleQueue[Job] = SimpleQueue()
        """Jobs that were done and not heard of yet."""
        self._sent: deque[tuple[cl.Event, StagingBuffer]] = deque()
        self._fetched: deque[tuple[cl.Event, StagingBuffer, BlockCopy, Chunk]] = deque()
        self._leased: dict[int, StagingBuffer] = {}
        self.is_over = False

    def start(self, copy: BlockCopy) -> None:
        """Begin to copy a block; `advance` carries on."""
        (self._to_fetch if copy.to_host else self._to_send).extend((copy, x) for x in copy.chunks)

    def populate(self, x: NDArray[Any]) -> None:
        """Have threads that have nothing to copy get the pages of a dense array."""

        def job(address: int, nbytes: int, _alive: NDArray[Any] = x) -> None:
            if not self.is_over:
                copy_threads.populate(address, nbytes)

        for pages in copy_threads.page_ranges(x):
            self._threads.submit_idle(partial(job, *pages))

    def advance(self, awaited: cl.Event | None = None, *, patient: bool = True) -> None:
        """Do all that can be done now; if that is nothing, wait until something may be.

        `awaited` is the next command that the caller waits for; unless `patient`, this returns at
        once.
        """
        # What frees staging goes first, copies to the host before others: they free memory too.
        happened = self._hear() | self._take_back() | self._unload()
        for waiting, begin in ((self._to_fetch, self._fetch), (self._to_send, self._copy)):
            while waiting and (staging := self._lease()):
                begin(staging, *waiting.popleft())
                happened = True
        if patient and not happened:
            self._wait(awaited)

    def _wait(self, awaited: cl.Event | None) -> None:
        """Wait for a thread, for a moment, or if none is busy for the device."""
        if self._jobs:
            job = next_ended(self.ended, self._jobs, PAUSE)
            if job is not None:
                self._end(job)
            return
        # Not by looking again and again: some runtimes work only while somebody waits.
        for queue in (self._sent, self._fetched):
            if queue:
                queue[0][0].wait()
                return
        if awaited is not None:
            awaited.wait()

    def _lease(self) -> StagingBuffer | None:
        """Return staging, or None while there is none and this call is about to release some."""
        staging = self._threads.staging.lease(self._to_device)
        if staging is None:
            # Not `_leased`: what a copy held that the device refused is released when all is over.
            if self._jobs or self._sent or self._fetched:
                return None
            staging = StagingBuffer.plain()  # rather than none at all
        self._leased[id(staging)] = staging
        return staging

    def _release(self, staging: StagingBuffer) -> None:
        del self._leased[id(staging)]
        self._threads.staging.release(staging)

    def _copy(self, staging: StagingBuffer, copy: BlockCopy, chunk: Chunk) -> None:
        """Have a chunk copied into its staging buffer, or out of it."""
        staged, x = staging.like(chunk[1]), chunk[1]
        job = Job(self, x, staged, copy.write) if copy.to_host else Job(self, staged, x)
        self._jobs[job] = staging, copy, chunk  # from here on `abandon` knows of it
        self._threads.submit(job, first=copy.to_host)

    def _hear(self) -> bool:
        """Take note of the jobs that have ended."""
        happened = False
        while not self.ended.empty():  # nobody else takes out of it
            self._end(self.ended.get())
            happened = True
        return happened

    def _end(self, job: Job) -> None:
        staging, copy, chunk = self._jobs.pop(job)
        if job.error is not None:
            raise job.error
        if copy.to_host:
            copy.to_copy -= 1
            self._release(staging)
        else:
            self._send(staging, copy, chunk)

    def _send(self, staging: StagingBuffer, copy: BlockCopy, chunk: Chunk) -> None:
        offset, x = chunk
        memory, queue = staging.memory[: x.nbytes], self._to_device
        event = cl.enqueue_copy(queue, copy.buffer, memory, dst_offset=offset, is_blocking=False)
        queue.flush()
        self._sent.append((event, staging))
        copy.event = event
        copy.to_enqueue -= 1

    def _take_back(self) -> bool:
        """Take back the staging buffers that have reached the device."""
        happened = False
        while self._sent and has_ended(self._sent[0][0]):
            self._release(self._sent.popleft()[1])
            happened = True
        return happened

    def _fetch(self, staging: StagingBuffer, copy: BlockCopy, chunk: Chunk) -> None:
        offset, x = chunk
        memory, queue = staging.memory[: x.nbytes], self._to_host
        event = cl.enqueue_copy(queue, memory, copy.buffer, src_offset=offset, is_blocking=False)
        queue.flush()
        self._fetched.append((event, staging, copy, chunk))
        copy.to_enqueue -= 1

    def _unload(self) -> bool:
        """Have copied out of staging what has arrived there."""
        happened = False
        while self._fetched and has_ended(self._fetched[0][0]):
            _, staging, copy, chunk = self._fetched.popleft()
            copy.on_device -= 1
            self._copy(staging, copy, chunk)
            happened = True
        return happened

    def only_to_host(self) -> bool:
        """Advance what is on its way to the host and nothing else; tell whether there is more."""
        self._to_send.clear()
        self.advance()
        return bool(self._to_fetch or self._fetched or self._jobs)

    def abandon(self, *queues: cl.CommandQueue) -> bool:
        """Leave out what has not begun, and wait for what has, in these queues too.

        Tells whether it is proved that no thread and no command uses the call's memory any more.
        """
        self.is_over = True
        for job, (_, copy, _) in self._jobs.items():
            with job.lock:
                pass  # it has ended, or sees that the call is over
            if copy.to_host and job.is_done:  # nobody has heard of it
                copy.to_copy -= 1
        # All are waited for, whatever one says.
        return not {finish(x) for x in (self._to_device, self._to_host, *queues)} & {False}

    def close(self, *, is_idle: bool) -> None:
        """Give back what is leased, or drop it if it may be in use for all we know."""
        self.is_over = True
        staging = self._threads.staging
        if not is_idle:
            staging.drop(self._leased.values())
            self._leased.clear()
        while self._leased:
            staging.release(self._leased.popitem()[1])
