"""Pinned memory that copies go through: bounded, and kept between calls."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from clgemm import settings
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

BYTES = 8 << 20  # of a buffer, and so of the largest copy
USUAL = 4 << 20  # bytes of a copy, if there are not too many of them


class StagingBuffer:
    """Pinned memory for one copy, or plain memory where no more may be pinned."""

    def __init__(self, memory: NDArray[Any], buffer: cl.Buffer | None = None) -> None:
        self.memory = memory
        self.buffer = buffer

    @classmethod
    def plain(cls) -> StagingBuffer:
        """Make one that is not pinned: copies are slower and as right."""
        return cls(np.empty(BYTES, np.uint8))

    def like(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return its first bytes as an array of the shape and type of `x`."""
        return self.memory[: x.nbytes].view(x.dtype).reshape(x.shape)


class Staging:
    """The staging buffers of one context, of which at most `most` are of use."""

    def __init__(self, context: cl.Context, most: int) -> None:
        self._context = context
        self._most = most
        self._lock = threading.Lock()
        self._spare: deque[StagingBuffer] = deque()
        self._pinned: WeakSet[StagingBuffer] = WeakSet()
        self._dropped: list[StagingBuffer] = []

    @property
    def count(self) -> int:
        """How many pinned buffers are in use or spare."""
        return len(self._pinned)

    def lease(self, queue: cl.CommandQueue) -> StagingBuffer | None:
        """Return a buffer that nobody uses, or None while there are as many as there may be.

        A new one is mapped in the queue.
        """
        try:
            return self._spare.pop()  # the one that caches know best
        except IndexError:
            allowed = min(self._most, settings.staging_bytes() // BYTES)
        if self.count >= allowed:
            return None
        with self._lock:
            return self._pin(queue) if self.count < allowed else None

    def release(self, staging: StagingBuffer) -> None:
        """Take a buffer back: no command and no thread uses it."""
        if staging.buffer is not None:
            self._spare.append(staging)

    def drop(self, leased: Iterable[StagingBuffer]) -> None:
        """Never use buffers again, nor free them: commands may still work on them."""
        self._dropped += leased
        self._pinned.difference_update(self._dropped)

    def _pin(self, queue: cl.CommandQueue) -> StagingBuffer:
        access: Any = cl.mem_flags
        both: Any = cl.map_flags.READ | cl.map_flags.WRITE
        try:
            buffer = cl.Buffer(self._context, access.READ_WRITE | access.ALLOC_HOST_PTR, BYTES)
            memory, _ = cl.enqueue_map_buffer(queue, buffer, both, 0, (BYTES,), np.dtype("u1"))
        except cl.Error as error:
            if not is_short_of_memory(error):
                raise
            return StagingBuffer.plain()
        staging = StagingBuffer(memory, buffer)
        self._pinned.add(staging)
        return staging

    def trim(self) -> None:
        """Give back the buffers that nobody uses."""
        while self._spare:
            staging = self._spare.pop()
            self._pinned.discard(staging)
            mapped: Any = staging.memory.base
            mapped.release()
            if staging.buffer is not None:
                staging.buffer.release()
