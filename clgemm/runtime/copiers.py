"""Copies between NumPy's memory and a device's, by threads that go through pinned memory.

A device reads and writes pinned memory at the full rate of the bus, in both directions at a time,
and other memory at a fraction of it.  So threads copy parts of an operand into pinned memory and
start their way to the device, and copy what came from it to where it belongs.  What such a thread
waits for is its own part on the bus, never a kernel, so no copy waits for another for long.

Threads, pinned memory and idle device memory are given back after some seconds without a call.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.moves import Job
from clgemm.runtime.opencl import cl
from clgemm.runtime.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from clgemm.runtime.memory import DeviceMemory
    from clgemm.runtime.moves import Move, Part

THREADS = 8
PIECES = 2  # for each thread: one is filled while the other is on its way
IDLE_SECONDS = 10.0


class Copiers:
    """The threads, queues and pinned memory of one context.

    Parameters
    ----------
    context : cl.Context
        Of one device.
    memory : DeviceMemory
        Trimmed when no call has come for a while.
    running : list
        Gets an entry while the device is in use: see `Session.running`.
    """

    def __init__(self, context: cl.Context, memory: DeviceMemory, running: list[None]) -> None:
        self._context = context
        self._memory = memory
        self._running = running
        self._lock = threading.Lock()
        self._most = min(THREADS, _cores())
        self._threads = 0
        self._waiting: deque[tuple[Move, Part]] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._enqueueing = threading.Lock()
        self._calls = 0
        self._timer = IdleTimer(IDLE_SECONDS, self.rest)
        self._up: Any = None
        self._down: Any = None
        self.staging = Staging(context, PIECES * self._most)

    @contextmanager
    def call(self) -> Iterator[Job]:
        """Keep threads and staging while a call copies.

        At its end, however it comes, no thread works for it and nothing of it is on its way.
        """
        job = Job()
        with self._in_use():
            try:
                yield job
            except BaseException:
                job.abandon()
                job.settle()
                with suppress(cl.Error):  # what went wrong is being raised already
                    self._up.finish()
                    self._down.finish()
                raise

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        self._running.append(None)
        with self._lock:
            self._calls += 1
            if self._up is None:
                self._up = cl.CommandQueue(self._context)
                self._down = cl.CommandQueue(self._context)
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
            self._running.pop()
            self._timer.touch()

    def carry(self, move: Move, queue: cl.CommandQueue) -> None:
        """Copy a tile in this thread, by commands on a queue of the caller's."""
        for part in move.parts:
            self._copy(move, part, queue)

    def post(self, move: Move) -> None:
        """Have a tile copied by threads; what comes back goes first, since it frees memory."""
        parts = [(move, part) for part in move.parts]
        if move.home:
            self._waiting.extendleft(reversed(parts))
        else:
            self._waiting.extend(parts)
        with self._lock:
            wanted = min(self._most, max(1, self.staging.allowed))
            new = max(0, min(wanted, len(self._waiting)) - self._threads)
            self._threads += new
        for _ in range(new):
            threading.Thread(target=self._work, name="clgemm copier", daemon=True).start()
        for _ in parts:
            self._tokens.put(True)

    def _work(self) -> None:
        while self._tokens.get():
            move, part = self._waiting.popleft()
            self._copy(move, part, self._down if move.home else self._up)
            del move, part  # a thread that waits keeps nobody's arrays alive

    def _copy(self, move: Move, part: Part, queue: cl.CommandQueue) -> None:
        copied = False
        try:
            if move.is_wanted:
                (self._fetch if move.home else self._send)(queue, move, *part)
                copied = True
        except BaseException as error:  # noqa: BLE001 - the call's own thread raises it
            move.job.fail(error)
        finally:
            move.done(copied=copied)

    # Each call that lets other threads run costs one or two of their wake-ups: these two make few.

    def _send(self, queue: cl.CommandQueue, move: Move, offset: int, x: NDArray[Any]) -> None:
        piece = self.staging.take(queue)
        try:
            memory = piece.memory[: x.nbytes]
            np.copyto(memory.view(x.dtype).reshape(x.shape), x)
            piece.event = cl.enqueue_copy(
                queue, move.buffer, memory, dst_offset=offset, is_blocking=False
            )
            queue.flush()
            move.events[threading.get_ident()] = piece.event
        finally:
            self.staging.give(piece)

    def _fetch(self, queue: cl.CommandQueue, move: Move, offset: int, x: NDArray[Any]) -> None:
        piece = self.staging.take(queue)
        try:
            memory = piece.memory[: x.nbytes]
            cl.enqueue_copy(queue, memory, move.buffer, src_offset=offset, is_blocking=True)
            np.copyto(x, memory.view(x.dtype).reshape(x.shape))
        finally:
            self.staging.give(piece)

    def rest(self) -> None:
        """Give back threads, pinned memory and idle device memory, unless a call copies."""
        with self._lock:
            if self._calls:
                return
            self._running.append(None)
            for _ in range(self._threads):
                self._tokens.put(False)
            self._threads = 0
            self.staging.release(self._up)
            self._memory.trim()
            self._running.pop()


def _cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
