"""What is raised in a callback is raised after it: nothing in C could pass it on.

Signal handlers run wherever Python runs, hence in callbacks, too, and what they raise belongs to
the program: Ctrl-C, or a time limit of its own.  It is kept, and raised in the main thread as soon
as that is back in a function of Python's.
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
import time
from ctypes import c_int64, c_ulong, py_object, pythonapi
from typing import TYPE_CHECKING, Any

from clgemm.interpose import stub
from clgemm.runtime import ending

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType

BLOCK = "block"
"""The name of a callback's argument."""
LOOK_SECONDS = 0.001

_waiting: set[_Kept] = set()
_callbacks: set[CodeType] = set()


class _Kept:
    """An exception that waits for the main thread to leave a callback."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        _waiting.add(self)  # nothing else keeps it until then

    def __bool__(self) -> bool:
        """Raise it.

        Called by Python between two instructions of the main thread: `PyObject_IsTrue` is one of
        the functions in C that take an object and return -1 if something was raised.
        """
        _waiting.discard(self)
        raise self._error


def is_the_programs(error: BaseException) -> bool:
    """Tell whether an exception is none of this package's: a signal handler raised it."""
    return not isinstance(error, Exception) or _of_handler(error) is not None


def _of_handler(error: BaseException) -> TracebackType | None:
    """Return an exception's traceback from a signal handler of Python's on, None without one."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    found: TracebackType | None = error.__traceback__
    while found is not None and found.tb_frame.f_code not in handlers:
        found = found.tb_next
    return found


def _code(handler: Any) -> Any:
    """Return the code that a signal handler runs first, None if it is not Python's."""
    if isinstance(handler, functools.partial):
        return _code(handler.func)
    function = getattr(handler, "__func__", handler)
    found = getattr(function, "__code__", None)
    return found or getattr(vars(type(handler)).get("__call__"), "__code__", None)


def keep(error: BaseException, block: int) -> None:
    """Raise an exception in this thread once it has left the callback.

    Parameters
    ----------
    error : BaseException
        The exception.
    block : int
        Address of what the stub has shown: it hands the exception on.
    """
    if threading.current_thread() is threading.main_thread():
        error.__traceback__ = _of_handler(error)  # where it came in is none of the program's
        answer = c_int64.from_address(block)
        c_int64.from_address(block + stub.STACK).value = id(_Kept(error))
        answer.value |= stub.RAISES
    elif not ending.has_begun():  # no signal handler runs here: somebody wants the thread to end
        me = threading.get_ident()
        threading.Thread(
            target=_raise_in, args=(me, type(error)), name="clgemm raise", daemon=True
        ).start()


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in a thread of Python's that is in no callback any more."""
    while _is_in_callback(thread):
        time.sleep(LOOK_SECONDS)
    pythonapi.PyThreadState_SetAsyncExc(c_ulong(thread), py_object(kind))


def _is_in_callback(thread: int) -> bool:
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - its documented name
    codes = _callbacks | {_unraisable.__code__}
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def callback(function: Callable[..., object]) -> None:
    """Register a function that ctypes calls, with an argument that is named `BLOCK`."""
    _callbacks.add(function.__code__)


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
    """Take what has left a callback, whose frame is still there, and the stub's block, too."""
    first = getattr(found.exc_value, "__traceback__", None)
    if first is not None and first.tb_frame.f_code in _callbacks:
        if isinstance(found.exc_value, RecursionError):
            return  # the program is as deep as it may be, and the original needs no depth
        keep(found.exc_value, first.tb_frame.f_locals[BLOCK])
    else:
        _before(found)
