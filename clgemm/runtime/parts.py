"""Parts of a call in threads of their own, whatever Ctrl-C does.

Python's own executors, and `Thread.start`, take locks that are written in Python.  Ctrl-C may leave
such a lock held: then the thread waits for it, and the caller, or the process at its end, for that
thread, for ever.  What is used here between the caller and the others is written in C.
"""

from __future__ import annotations

import _thread
import logging
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

log = logging.getLogger(__name__)

TURN_SECONDS = 0.1  # until a thread that waits hears of Ctrl-C where its lock does not


class _Part:
    """What one thread does."""

    def __init__(self, parts: Parts, work: Callable[[], object]) -> None:
        self._parts, self._work = parts, work
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        """Held while it works."""

    def __call__(self) -> None:
        """Work, unless the call is over."""
        with self.lock:
            if self._parts.is_over:
                return
            try:
                self._work()
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                self.error = error
        self._parts.ended.put(self)


class Parts:
    """The parts of one call; a with block waits at its end for those that have begun.

    Parameters
    ----------
    name : str
        Of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: list[_Part] = []
        self.ended: SimpleQueue[_Part] = SimpleQueue()
        self.is_over = False
        """Whether none is to begin any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        for part in self._parts:
            with part.lock:
                pass  # it has ended, or sees that the call is over

    def start(self, work: Callable[[], object]) -> None:
        """Have a thread do some work; where none can be started, this one does."""
        part = _Part(self, work)
        self._parts.append(part)  # from here on the end of the with block knows of it
        try:
            _thread.start_new_thread(self._begin, (part,))
        except RuntimeError as error:  # a limit of the system, or the interpreter ends
            log.debug("a part of a call has no thread of its own: %s", error)
            part()

    def _begin(self, part: _Part) -> None:
        """Start a thread of `threading`, for which the end of the process waits."""
        try:
            threading.Thread(target=part, name=self._name).start()
        except (RuntimeError, MemoryError) as error:
            log.debug("a part of a call is done by the thread that was to start one: %s", error)
            part()

    def wait(self) -> None:
        """Wait until all have ended, or one has failed."""
        for _ in self._parts:
            if self._next().error is not None:
                return

    def _next(self) -> _Part:
        while True:
            with suppress(Empty):
                return self.ended.get(timeout=TURN_SECONDS)

    def errors(self) -> list[BaseException]:
        """List what parts have raised that have ended."""
        return [part.error for part in self._parts if part.error is not None]
