"""One call's copies.  Its own thread alone speaks with the device; the copiers' threads copy.

Threads that enqueue commands themselves wait for each other, for the interpreter's lock and the
driver's, longer than they copy.  So this thread hands a part and a piece of staging to a thread,
sends the piece off when it hears that it is filled, starts the way back of what the device has
computed, and has a thread copy it home when it sees that it has landed.  It waits for nothing else
than for something to happen.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.runtime.opencl import cl
from clgemm.streaming import pages
from clgemm.streaming.copy_threads import Copy
from clgemm.streaming.staging import Piece, plain_piece
from clgemm.streaming.transfers import is_over

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.transfers import Move, Part

PAUSE = 50e-6  # seconds until the device is looked at again


class Traffic:
    """The copies of one call.

    Parameters
    ----------
    threads : CopyThreads
        Threads and staging.
    up, down : cl.CommandQueue
        To the device and back.
    """

    def __init__(self, threads: CopyThreads, up: cl.CommandQueue, down: cl.CommandQueue) -> None:
        self._threads = threads
        self._up = up
        self._down = down
        self._inbox: SimpleQueue[tuple[Piece, Move, Part, BaseException | None]] = SimpleQueue()
        self._to_send: deque[tuple[Move, Part]] = deque()
        self._sent: deque[tuple[Piece, cl.Event]] = deque()
        self._to_fetch: deque[tuple[Move, Part]] = deque()
        self._landing: deque[tuple[Piece, cl.Event, Move, Part]] = deque()
        self._held: dict[int, Piece] = {}
        self._copying = 0
        self._abandoned = False

    def start(self, move: Move) -> None:
        """Begin to move a tile; `turn` carries on."""
        (self._to_fetch if move.home else self._to_send).extend((move, x) for x in move.parts)

    def prepare(self, x: NDArray[Any]) -> None:
        """Have threads that have nothing to copy take the pages of a dense array."""

        def job(address: int, nbytes: int, _alive: NDArray[Any] = x) -> None:
            if self._is_wanted():
                pages.take(address, nbytes)

        for chunk in pages.chunks(x):
            self._threads.post_later(partial(job, *chunk))

    def turn(self, awaited: cl.Event | None = None, *, patient: bool = True) -> None:
        """Do all that can be done now, and if that is nothing, wait until something may be.

        Parameters
        ----------
        awaited : cl.Event, optional
            The next command that the caller waits for.
        patient : bool
            If false, wait for nothing.

        Raises
        ------
        cl.Error
            If the device refuses or fails.
        """
        # What frees pieces goes first; what comes home before what goes out: it frees memory too.
        happened = self._hear()
        happened |= self._recycle()
        happened |= self._land()
        while self._to_fetch and (piece := self._take()):
            self._fetch(piece, *self._to_fetch.popleft())
            happened = True
        while self._to_send and (piece := self._take()):
            self._post(piece, *self._to_send.popleft())
            happened = True
        if patient and not happened:
            self._wait(awaited)

    def _wait(self, awaited: cl.Event | None) -> None:
        """Wait for a thread, for a moment, or if none is busy for the device."""
        if self._copying:
            with suppress(Empty):
                self._copied(*self._inbox.get(timeout=PAUSE))
            return
        # Not by looking again and again: some runtimes work only while somebody waits.
        for queue in (self._sent, self._landing):
            if queue:
                queue[0][1].wait()
                return
        if awaited is not None:
            awaited.wait()

    def _take(self) -> Piece | None:
        """Return a piece, or None while there is none and others are on their way."""
        piece = self._threads.staging.take(self._up)
        if piece is None:
            return None if self._held else self._take_any()
        self._held[id(piece)] = piece
        return piece

    def _take_any(self) -> Piece:
        """Return a piece that is not pinned rather than none at all."""
        piece = self._threads.staging.take(self._up) or plain_piece()
        self._held[id(piece)] = piece
        return piece

    def _give(self, piece: Piece) -> None:
        del self._held[id(piece)]
        self._threads.staging.give(piece)

    def _post(self, piece: Piece, move: Move, part: Part) -> None:
        """Have a thread copy a part into its piece, or out of it."""
        here, there = piece.like(part[1]), part[1]
        into, source = (there, here) if move.home else (here, there)

        def done(error: BaseException | None) -> None:
            self._inbox.put((piece, move, part, error))

        self._copying += 1
        self._threads.post(Copy(into, source, self._is_wanted, done), first=move.home)

    def _is_wanted(self) -> bool:
        return not self._abandoned

    def _hear(self) -> bool:
        """Take note of the copies that are done."""
        happened = False
        with suppress(Empty):
            while True:
                self._copied(*self._inbox.get_nowait())
                happened = True
        return happened

    def _copied(self, piece: Piece, move: Move, part: Part, error: BaseException | None) -> None:
        self._copying -= 1
        if error is not None:
            raise error
        if move.home:
            move.to_copy -= 1
            self._give(piece)
        else:
            self._send(self._up, piece, move, part)
            self._up.flush()

    def _send(self, queue: cl.CommandQueue, piece: Piece, move: Move, part: Part) -> None:
        offset, x = part
        memory = piece.memory[: x.nbytes]
        event = cl.enqueue_copy(queue, move.buffer, memory, dst_offset=offset, is_blocking=False)
        self._sent.append((piece, event))
        move.event = event
        move.to_enqueue -= 1

    def _recycle(self) -> bool:
        """Take back the pieces that have reached the device."""
        happened = False
        while self._sent and is_over(self._sent[0][1]):
            self._give(self._sent.popleft()[0])
            happened = True
        return happened

    def _fetch(self, piece: Piece, move: Move, part: Part) -> None:
        offset, x = part
        memory = piece.memory[: x.nbytes]
        event = cl.enqueue_copy(
            self._down, memory, move.buffer, src_offset=offset, is_blocking=False
        )
        self._down.flush()
        self._landing.append((piece, event, move, part))
        move.to_enqueue -= 1

    def _land(self) -> bool:
        """Have copied home what has landed."""
        happened = False
        while self._landing and is_over(self._landing[0][1]):
            piece, _, move, part = self._landing.popleft()
            move.to_land -= 1
            self._post(piece, move, part)
            happened = True
        return happened

    def send_now(self, queue: cl.CommandQueue, move: Move) -> None:
        """Send a tile off from this thread, in a queue of the caller's."""
        for part in move.parts:
            piece = self._take_any()
            np.copyto(piece.like(part[1]), part[1])
            self._send(queue, piece, move, part)

    def fetch_now(self, queue: cl.CommandQueue, move: Move) -> None:
        """Bring a tile home in this thread, behind what the queue does."""
        for offset, x in move.parts:
            piece = self._take_any()
            memory = piece.memory[: x.nbytes]
            cl.enqueue_copy(queue, memory, move.buffer, src_offset=offset, is_blocking=True)
            move.to_land -= 1
            np.copyto(x, piece.like(x))
            move.to_copy -= 1
            self._give(piece)

    def drop_what_goes_out(self) -> None:
        """Forget the parts that nobody has begun to send."""
        self._to_send.clear()

    def close(self, *, is_idle: bool) -> None:
        """Give back what is held, or leave it alone if it may be in use for all we know."""
        self._abandoned = True
        for piece in self._held.values():
            (self._threads.staging.give if is_idle else self._threads.staging.lose)(piece)
        self._held.clear()

    def abandon(self, *queues: cl.CommandQueue) -> None:
        """Leave out what is not under way, and wait for what is.

        Parameters
        ----------
        queues : cl.CommandQueue
            What else works with this call's memory.
        """
        self._abandoned = True
        while self._copying:
            self._inbox.get()
            self._copying -= 1
        for queue in (self._up, self._down, *queues):
            with suppress(cl.Error):  # what fails here has failed the call already
                queue.finish()
