"""What is raised in a callback is raised after it: nothing in C could pass it on.

Signal handlers run wherever Python runs, hence in callbacks, too, and what they raise belongs to
the program: Ctrl-C, or a time limit of its own.  It is kept, and raised in the main thread as soon
as that is back in a function of Python's.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType

_waiting: set[_Kept] = set()
_callbacks: set[CodeType] = set()
"""Of functions in which nothing may be raised."""
_shown: set[int] = set()
"""Identities of what ctypes calls."""


class _Kept:
    """An exception that waits for its thread to leave a callback."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __bool__(self) -> bool:
        """Raise it, or go on waiting.

        Called by Python between two instructions of the main thread: of all functions in C which
        take an object and return -1 if something was raised, `PyObject_IsTrue` is one.
        """
        if _is_in_callback():
            self.wait()
            return False
        _waiting.discard(self)
        raise self._error

    def wait(self) -> None:
        """Have Python call `__bool__` soon."""
        _waiting.add(self)  # lives until then
        _add_pending_call()(ctypes.pythonapi.PyObject_IsTrue, id(self))


@functools.cache
def _add_pending_call() -> Any:
    add = ctypes.PyDLL(None).Py_AddPendingCall
    add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def call(function: Any, argument: int) -> None:
        add(ctypes.cast(function, ctypes.c_void_p), argument)

    return call


def _is_in_callback() -> bool:
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to ask
    found: Any = frame
    while found is not None and found.f_code not in _callbacks:
        found = found.f_back
    return found is not None


def is_the_programs(error: BaseException) -> bool:
    """Tell whether an exception is none of this package's: a signal handler raised it."""
    if not isinstance(error, Exception):
        return True
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code not in handlers:
        found = found.tb_next
    return found is not None


def _code(handler: Any) -> Any:
    """Return the code that a signal handler runs first, None if it is not Python's."""
    if isinstance(handler, functools.partial):
        return _code(handler.func)
    function = getattr(handler, "__func__", handler)
    found = getattr(function, "__code__", None)
    return found or getattr(vars(type(handler)).get("__call__"), "__code__", None)


def keep(error: BaseException) -> None:
    """Raise an exception in this thread once it has left the callback."""
    if threading.current_thread() is threading.main_thread():
        _Kept(error).wait()
        return
    # Elsewhere no signal handler runs: somebody has asked for this thread to end.
    thread = ctypes.c_ulong(threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(type(error)))


def callback(function: Callable[..., object], shown: object) -> None:
    """Register a function that ctypes calls, and the object by which ctypes knows it."""
    _callbacks.add(function.__code__)
    _shown.add(id(shown))


def begin() -> None:
    """Keep what is raised before a callback's first instruction, too, which it cannot catch."""
    global _before
    if sys.unraisablehook is not _unraisable:
        _before, sys.unraisablehook = sys.unraisablehook, _unraisable


def end() -> None:
    """Leave that to the interpreter again, unless somebody has put something in its place."""
    if sys.unraisablehook is _unraisable:
        sys.unraisablehook = _before


_before: Callable[[Any], object] = sys.__unraisablehook__


def _unraisable(found: Any) -> None:
    if id(found.object) in _shown and found.exc_value is not None:
        keep(found.exc_value)
    else:
        _before(found)


_callbacks.add(_unraisable.__code__)
