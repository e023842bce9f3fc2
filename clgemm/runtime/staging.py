"""Pinned memory that copies go through: bounded, kept between calls, used in turn."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import settings
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from numpy.typing import NDArray

PIECE = 4 << 20  # bytes that are copied at a time


class Piece:
    """Pinned memory for one copy, or plain memory where no more may be pinned."""

    def __init__(self, memory: NDArray[Any], buffer: cl.Buffer | None = None) -> None:
        self.memory = memory
        self.buffer = buffer
        self.event: cl.Event | None = None
        """The last command that reads it."""

    def is_free(self) -> bool:
        """Tell whether no command uses it any more."""
        if self.event is None:
            return True
        done: Any = cl.command_execution_status.COMPLETE
        if self.event.command_execution_status > done:  # failed ones are below
            return False
        self.event = None
        return True

    def wait(self) -> None:
        """Wait until no command uses it any more."""
        if self.event is not None:
            # Its failure concerns the call that started it, whose kernel waits for it too.
            with suppress(cl.Error):
                self.event.wait()
            self.event = None


class Staging:
    """The pieces of one context.

    Parameters
    ----------
    context : cl.Context
        Of one device.
    most : int
        How many pieces are of use.
    """

    def __init__(self, context: cl.Context, most: int) -> None:
        self._context = context
        self._most = most
        self._lock = threading.Lock()
        self._spare: deque[Piece] = deque()
        self.count = 0
        """How many pinned pieces there are."""

    @property
    def allowed(self) -> int:
        """How many pinned pieces there may be: ``CLGEMM_STAGING_MB``."""
        return min(self._most, settings.staging_bytes() // PIECE)

    def take(self, queue: cl.CommandQueue) -> Piece:
        """Lend a piece that no command uses.

        Parameters
        ----------
        queue : cl.CommandQueue
            Where a new piece is mapped.
        """
        try:
            piece = self._spare.popleft()  # used the longest ago
        except IndexError:
            piece = None
        if piece is not None and piece.is_free():
            return piece
        if self.count < self.allowed:
            with self._lock:
                new = self._pinned(queue) if self.count < self.allowed else None
                self.count += new is not None
            if new is not None:
                self._spare.extendleft([piece] if piece is not None else [])
                return new
        if piece is None:
            return Piece(np.empty(PIECE, np.uint8))
        piece.wait()
        return piece

    def give(self, piece: Piece) -> None:
        """Take a piece back; a command that reads it may still run."""
        if piece.buffer is not None:
            self._spare.append(piece)

    def _pinned(self, queue: cl.CommandQueue) -> Piece | None:
        access: Any = cl.mem_flags
        both: Any = cl.map_flags.READ | cl.map_flags.WRITE
        try:
            buffer = cl.Buffer(self._context, access.READ_WRITE | access.ALLOC_HOST_PTR, PIECE)
            memory, _ = cl.enqueue_map_buffer(queue, buffer, both, 0, (PIECE,), np.dtype("u1"))
        except cl.Error as error:
            if not is_short_of_memory(error):
                raise
            return None  # plain memory is slower and as right
        return Piece(memory, buffer)

    def release(self, queue: cl.CommandQueue) -> None:
        """Give back the pieces that nobody has on loan."""
        while self._spare:
            piece = self._spare.popleft()
            piece.wait()
            base: Any = piece.memory.base
            base.release(queue)
            if piece.buffer is not None:
                piece.buffer.release()
            with self._lock:
                self.count -= 1
