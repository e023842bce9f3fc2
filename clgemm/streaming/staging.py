"""Pinned memory that copies go through: bounded, and kept between calls."""

from __future__ import annotations

import threading
from collections import deque
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

    def like(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return its first bytes as an array of the shape and type of `x`."""
        return self.memory[: x.nbytes].view(x.dtype).reshape(x.shape)


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
        self._lost: list[Piece] = []
        self.count = 0
        """How many pinned pieces there are."""

    def take(self, queue: cl.CommandQueue) -> Piece | None:
        """Return a piece that nobody uses, or None while there are as many as there may be.

        Parameters
        ----------
        queue : cl.CommandQueue
            Where a new piece is mapped.
        """
        try:
            return self._spare.pop()  # the one that caches know best
        except IndexError:
            allowed = min(self._most, settings.staging_bytes() // PIECE)
        if self.count >= allowed:
            return None
        with self._lock:
            if self.count >= allowed:
                return None
            piece = self._pinned(queue)
            self.count += piece.buffer is not None
            return piece

    def give(self, piece: Piece) -> None:
        """Take a piece back."""
        if piece.buffer is not None:
            self._spare.append(piece)

    def lose(self, piece: Piece) -> None:
        """Never use a piece again, nor free it: a command may still work on it."""
        if piece.buffer is not None:
            self._lost.append(piece)
            with self._lock:
                self.count -= 1

    def _pinned(self, queue: cl.CommandQueue) -> Piece:
        access: Any = cl.mem_flags
        both: Any = cl.map_flags.READ | cl.map_flags.WRITE
        try:
            buffer = cl.Buffer(self._context, access.READ_WRITE | access.ALLOC_HOST_PTR, PIECE)
            memory, _ = cl.enqueue_map_buffer(queue, buffer, both, 0, (PIECE,), np.dtype("u1"))
        except cl.Error as error:
            if not is_short_of_memory(error):
                raise
            return plain_piece()
        return Piece(memory, buffer)

    def release(self) -> None:
        """Give back the pieces that nobody uses."""
        while self._spare:
            piece = self._spare.pop()
            mapped: Any = piece.memory.base
            mapped.release()
            if piece.buffer is not None:
                piece.buffer.release()
            with self._lock:
                self.count -= 1


def plain_piece() -> Piece:
    """Return a piece that is not pinned: copies are slower and as right."""
    return Piece(np.empty(PIECE, np.uint8))
