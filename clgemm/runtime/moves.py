"""What a call has copied: tiles on their way to a device or back, and whether that went well."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from clgemm.runtime.opencl import cl

Part = tuple[int, "NDArray[Any]"]
"""Bytes from the start of a device buffer, and the elements that lie there, in C order."""


class Job:
    """What one call has copied, and whether that went well."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self.abandoned = False
        """Whether results are of no use any more."""
        self.moves: list[Move] = []

    def fail(self, error: BaseException) -> None:
        """Keep the first error: `Move.wait` raises it, and nothing more goes to the device."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def abandon(self) -> None:
        """Leave out what waits for a thread, in both directions."""
        self.abandoned = True

    def settle(self) -> None:
        """Wait until no thread works for this call any more."""
        with self.changed:
            self.changed.wait_for(lambda: not any(move.left for move in self.moves))


class Move:
    """One tile on its way to the device or back.

    Parameters
    ----------
    job : Job
        The call it is part of.
    buffer : cl.Buffer
        Its device memory.
    parts : sequence of Part
        None longer than a piece of staging.
    home : bool
        Whether it comes back.
    """

    def __init__(self, job: Job, buffer: cl.Buffer, parts: Sequence[Part], *, home: bool) -> None:
        self.job = job
        self.buffer = buffer
        self.parts = parts
        self.home = home
        self.left = len(parts)
        self.missing = len(parts)
        """Parts that have not been copied, or not yet."""
        self.events: dict[int, cl.Event] = {}
        """Each thread's last command that carries a part to the device: queues run in order."""
        job.moves.append(self)

    @property
    def is_wanted(self) -> bool:
        """Whether its parts are still to be copied."""
        return not self.job.abandoned and (self.home or self.job.error is None)

    def done(self, *, copied: bool) -> None:
        """Count a part."""
        with self.job.changed:
            self.left -= 1
            self.missing -= copied
            if not self.left:
                self.job.changed.notify_all()

    def wait(self) -> None:
        """Wait until all parts are in the queue to the device or, on the way back, at home."""
        job = self.job
        with job.changed:
            job.changed.wait_for(lambda: not self.left or job.error is not None)
        if job.error is not None:
            raise job.error
