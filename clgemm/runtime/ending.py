"""The end of the interpreter, which must find no other thread inside a driver.

Before Python 3.14 the interpreter ends a thread where it next asks for its lock: inside the driver,
or pyopencl, which takes the whole program down.  So the end waits here until the other threads have
left, and a call that one of them makes from then on ends that thread.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

TURN_SECONDS = 0.001
PATIENCE_SECONDS = 5.0  # that a program's end may wait for calls that cannot be cancelled

inside: set[int] = set()
"""Threads that are in an entry of this package."""
background: set[int] = set()
"""Those of them that wait for work, and of which the end may come."""
_has_begun = False


class Stay:
    """A call of this package by the thread that makes it: others can tell whether it is over.

    What a call has taken is left over if Ctrl-C came while it was given back.  It may be there for
    long, since whoever keeps the exception keeps the frames of the call.
    """

    def __init__(self) -> None:
        self.thread = get_ident()
        self._is_entry = self.thread in inside

    def is_over(self) -> bool:
        """Tell whether it has ended; its own thread asks in a later call, or in none.

        What was begun outside of any entry is not known to have ended.
        """
        return self._is_entry and (self.thread == get_ident() or self.thread not in inside)


def has_begun() -> bool:
    """Tell whether the interpreter is about to end."""
    return _has_begun


def leave() -> None:
    """End this thread if the interpreter is about to end, unless it is the main one."""
    if _has_begun and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def explains(error: BaseException | None) -> bool:
    """Tell whether a thread could not be started because the program's main thread has ended.

    That is some time before the end begins here.  All such errors of Python's say so.
    """
    return isinstance(error, RuntimeError) and "shutdown" in str(error)


@contextmanager
def awaited() -> Iterator[None]:
    """Have the end wait for a background thread inside a with block."""
    me = get_ident()
    was = me in background
    background.discard(me)
    try:
        leave()
        yield
    finally:
        if was:
            background.add(me)


def begin(cancel: Callable[[], None]) -> None:
    """Wait until no other thread is inside a driver, and let none in any more.

    Parameters
    ----------
    cancel : callable
        Makes what runs on the devices end early, if it can; called again and again.
    """
    global _has_begun  # noqa: PLW0603 - of the interpreter
    _has_begun = True
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _somebody_is_inside() and time.monotonic() < deadline:
        cancel()
        time.sleep(TURN_SECONDS)


def _somebody_is_inside() -> bool:
    """Tell whether another thread is in a call of this package, or in one of pyopencl's."""
    calls = inside - background
    return any(
        thread in calls or _is_in_pyopencl(frame)
        for thread, frame in sys._current_frames().items()  # noqa: SLF001 - its documented name
        if thread != get_ident()
    )


def _is_in_pyopencl(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "pyopencl":
            return True
        frame = frame.f_back
    return False
