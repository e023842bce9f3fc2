"""Waiting such that Ctrl-C is heard.

Python runs signal handlers in its main thread, between two of its own instructions: not while it
waits inside a driver.  So another thread waits there, and the main thread for that one.  To ask the
event in turns would not do: Intel's runtime computes on the thread that waits, too.  Here, turns
will do, and are needed: no lock of Python's hears Ctrl-C on Windows before 3.14.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION
from concurrent.futures import wait as wait_for_jobs
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from concurrent.futures import Future

    from clgemm.runtime.worker_threads import Holder

TURN_SECONDS = 0.1  # until a thread that waits hears of Ctrl-C where its lock does not
_in_flight: dict[int, object] = {}
"""What commands may work on that end after their call; freed when that was seen."""


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


def is_heard() -> bool:
    """Tell whether Ctrl-C may raise KeyboardInterrupt in this thread."""
    return threading.current_thread() is threading.main_thread()


def wait(
    event: cl.Event, cancel: Callable[[], None], memory: Any, holder: Holder | None = None
) -> None:
    """Wait for an event; if something is raised meanwhile, cancel, and raise it.

    Parameters
    ----------
    event : cl.Event
        Of the last launch.
    cancel : callable
        Makes the launch end early, if it can.
    memory : object
        What the launch works on: kept alive until its end, even if Ctrl-C is pressed twice.
    holder : Holder, optional
        Has the thread that waits begin on the caller's core.
    """
    _apart(event.wait, cancel, memory, holder)


def drain(queue: cl.CommandQueue, memory: Any) -> None:
    """Wait until a queue has done all it was given, whatever becomes of that.

    Parameters
    ----------
    queue : cl.CommandQueue
        The queue.
    memory : object
        What its commands work on: kept alive until the end, even if something is raised meanwhile.
    """
    _in_flight[id(memory)] = memory  # should something be raised before a thread has it

    def finish() -> None:
        with suppress(cl.Error):  # what failed has been raised, or the caller has given up
            queue.finish()
        _in_flight.pop(id(memory), None)

    _apart(finish, _nothing, memory)


def _apart(
    wait_for_it: Callable[[], object], cancel: Callable[[], None], memory: Any,
    holder: Holder | None = None,
) -> None:  # fmt: skip
    """Wait in a thread that keeps the memory alive, and for that thread in this one."""
    ended, failed, kept = threading.Lock(), [], [memory]
    hold, release = (holder.hold, holder.release) if holder else (_nothing, _nothing)

    def work() -> None:
        try:
            release()
            wait_for_it()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            failed.append(error)
        finally:
            kept.clear()  # first: this thread may end long after the call has returned
            ended.release()

    ended.acquire()
    try:
        hold()
        threading.Thread(target=work, name="clgemm wait").start()
    except RuntimeError:  # no thread can be started, or none any more
        release()
        wait_for_it()
        return
    except BaseException:
        release()
        raise
    try:
        _wait_for(ended, kept)
    except BaseException:
        cancel()
        _wait_for(ended, kept)
        raise
    if failed:
        raise failed[0]


def _nothing() -> None:
    """Do nothing."""


def _wait_for(ended: threading.Lock, kept: list[Any]) -> None:
    """Wait until a thread has released what it works on, and then the lock.

    Ctrl-C may come when the lock has just been taken, so the lock alone does not tell.
    """
    while kept and not ended.acquire(timeout=TURN_SECONDS):
        pass


def until_done(jobs: Collection[Future[Any]]) -> None:
    """Wait until all jobs have ended, or one has failed."""
    waiting = set(jobs)
    while waiting:
        done, waiting = wait_for_jobs(waiting, TURN_SECONDS, FIRST_EXCEPTION)
        if any(job.exception() for job in done):
            return
