"""Calls from within a call of the same thread, and waits that would never end.

Python runs signal handlers in its main thread, log handlers wherever something is logged, and
finalizers wherever memory is let go.  Any of them may multiply, and what they interrupt may be
anywhere in this package: arguments are set and not launched yet, a lock is held.  So each public
function that does such things is an `entry`, and a call that comes from within another one takes no
lock and launches nothing.

A log handler, moreover, holds a lock of its own while it works.  If it multiplies, and waits here
for a thread that logs, both wait for ever.  Locks under which something is logged are of the kind
`CheckedLock`: who must not wait for one computes on the host.  Under all others nothing is logged.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar, cast

from clgemm.errors import DeviceError
from clgemm.runtime import ending
from clgemm.runtime.ending import inside

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    Function = TypeVar("Function", bound="Callable[..., Any]")

LOOK_SECONDS = 0.005  # between looks at a lock that is taken: Ctrl-C is heard there on any system

WHY_HOST = (
    "it was called by a signal handler, a log handler or a finalizer from within another call "
    "of clgemm's"
)
"""Why a nested call is computed on the host."""

_HANDLER = logging.Handler.handle.__code__


class WouldDeadlockError(DeviceError):
    """A log handler has called while another thread, which may wait for it, holds what it needs."""


def entry(
    nested: Callable[..., Any] | None = None, *, background: bool = False
) -> Callable[[Function], Function]:
    """Make a function one whose thread is inside this package until it returns.

    Parameters
    ----------
    nested : callable, optional
        Is called in its place, with the same arguments, in a thread that is inside already, and
        where it would wait for ever.  By default the function itself is called, as one step of the
        other call, and the error is raised.
    background : bool
        Whether the interpreter's end need not wait for the function; see `ending.awaited`.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def entered(*args: Any, **more: Any) -> Any:
            me = get_ident()
            # The mark alone may be left over from a call that Ctrl-C ended, or from another thread.
            if me in inside and _is_within(_ENTERED):
                return (nested or function)(*args, **more)
            try:
                if background:
                    ending.background.add(me)
                inside.add(me)
                ending.leave()  # after the mark: the end waits for who has one
                return function(*args, **more)
            except WouldDeadlockError:
                if nested is None:
                    raise
                return nested(*args, **more)
            finally:
                inside.discard(me)
                if background:
                    ending.background.discard(me)

        return cast("Function", entered)

    return decorate


_ENTERED = cast("Any", entry()(lambda: None)).__code__
"""Of all entries: they differ in what they close over."""


def _is_within(code: CodeType) -> bool:
    """Tell whether the caller was called, at any depth, by a function with this code."""
    frame = sys._getframe(1).f_back  # noqa: SLF001 - there is no other way to ask
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


class _Hold:
    """One use of a lock; whenever Ctrl-C comes, it ends with its with block at the latest."""

    def __init__(self, lock: CheckedLock) -> None:
        self._lock = lock
        self.stay = ending.Stay()

    def __enter__(self) -> None:
        self._lock.take(self)

    def __exit__(self, *_: object) -> None:
        self._lock.release(self)


class CheckedLock:
    """A lock for what takes long and may log.  Use: ``with lock(): ...``.

    To take it raises WouldDeadlockError in a log handler, if another thread has it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: weakref.ref[_Hold] | None = None

    def __call__(self) -> _Hold:
        """Return a new use of the lock, to be had by a with block."""
        return _Hold(self)

    def locked(self) -> bool:
        """Tell whether somebody has it."""
        return self._holder is not None and self._holder() is not None

    def take(self, hold: _Hold) -> None:
        """Wait until nobody has the lock.

        In turns: no lock of Python's hears Ctrl-C on Windows before 3.14.
        """
        while not self._is_taken_by(hold):
            if _is_within(_HANDLER):
                raise WouldDeadlockError(
                    "a log handler has called while another thread finds out what the call needs: "
                    "call again when it has ended, or pass NumPy arrays"
                )
            time.sleep(LOOK_SECONDS)

    def _is_taken_by(self, hold: _Hold) -> bool:
        with self._lock:
            holder = None if self._holder is None else self._holder()
            # Nested calls take no lock: what is left over of this thread's own was interrupted.
            is_own = holder is not None and holder.stay.thread == hold.stay.thread
            if holder is not None and not (is_own or holder.stay.is_over()):
                return False
            self._holder = weakref.ref(hold)
            return True

    def release(self, hold: _Hold) -> None:
        """Let others have it."""
        with self._lock:
            if self._holder is not None and self._holder() is hold:
                self._holder = None
