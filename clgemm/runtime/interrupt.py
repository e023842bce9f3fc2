"""Waiting such that Ctrl-C is heard, and threads that end with the interpreter.

Python runs signal handlers in its main thread, between two of its own instructions: not while it
waits inside a driver.  So another thread waits there, and the main thread for that one.  To ask the
event in turns would not do: Intel's runtime computes on the thread that waits, too.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clgemm.runtime.device import Session
    from clgemm.runtime.opencl import cl


END_SECONDS = 5.0  # that a program's end may wait for calls that cannot be cancelled


@contextmanager
def in_use(session: Session) -> Iterator[None]:
    """Count a call that is on the device inside a with block."""
    session.running.append(None)
    try:
        if session.ending:
            end_thread()
        yield
    finally:
        session.running.pop()


class Stop:
    """Tells the parts of a call, in threads of their own, that nobody wants the result any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = threading.Event()
        self._cancels: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Tell whether to end."""
        return self._set.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the word to end, and tell whether it came."""
        return self._set.wait(seconds)

    def set(self) -> None:
        """Have every part end soon."""
        with self._lock:
            self._set.set()
            for cancel in self._cancels:
                cancel()

    @contextmanager
    def cancels(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Have `set` call something inside a with block, at once if it came before."""
        with self._lock:
            self._cancels.append(cancel)
            if self.is_set():
                cancel()
        try:
            yield
        finally:
            with self._lock:
                self._cancels.remove(cancel)


def end_calls(session: Session) -> None:
    """Let no other thread be inside the driver when the interpreter ends.

    Calls that other threads make from here on end these threads; those on the device are cancelled
    where they can be.
    """
    session.ending = True
    deadline = time.monotonic() + END_SECONDS
    while session.running and time.monotonic() < deadline:
        session.workspace.cancel()
        time.sleep(0.001)


def is_heard() -> bool:
    """Tell whether Ctrl-C may raise KeyboardInterrupt in this thread."""
    return threading.current_thread() is threading.main_thread()


def wait(event: cl.Event, cancel: Callable[[], None], memory: Any) -> None:
    """Wait for an event; if something is raised meanwhile, cancel, and raise it at the end.

    Parameters
    ----------
    event : cl.Event
        Of the last launch.
    cancel : callable
        Makes the launch end early, if it can.
    memory : object
        What the launch works on: kept alive until its end, even if Ctrl-C is pressed twice.
    """
    ended, failed = threading.Lock(), []

    def work(_memory: Any = memory) -> None:
        try:
            event.wait()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            failed.append(error)
        finally:
            ended.release()

    ended.acquire()
    try:
        threading.Thread(target=work, name="clgemm wait").start()
    except RuntimeError:  # no thread starts when the interpreter ends
        event.wait()
        return
    try:
        ended.acquire()
    except BaseException:
        cancel()
        ended.acquire()
        raise
    if failed:
        raise failed[0]


def end_thread() -> None:
    """End this thread, unless it is the main one, since the interpreter ends.

    The interpreter would end it anyway, inside the driver if it happens to be there, which takes
    the whole program down.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SystemExit
