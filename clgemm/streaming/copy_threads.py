"""Threads that copy between NumPy's memory and pinned memory, and what they need.

A device reads and writes pinned memory at the full rate of the bus, in both directions at a time,
and other memory at a fraction of it; one thread copies at a fraction of that rate too.  The threads
do nothing else: see copies.py.

Threads, pinned memory and idle device memory are given back after some seconds without a call.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.opencl import cl
from clgemm.streaming.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clgemm.runtime.device import Device

log = logging.getLogger(__name__)

THREADS = 14
PIECES = 2
"""For each thread: one to copy and one on its way.  More leave the caches before they are read."""
IDLE_SECONDS = 10.0


class Copy(NamedTuple):
    """What a thread does."""

    into: NDArray[Any]
    source: NDArray[Any]
    is_wanted: Callable[[], bool]
    """Asked when its turn comes."""
    done: Callable[[BaseException | None], None]
    """Called when it is done, left out or failed, from the thread."""


class CopyThreads:
    """The threads, queues and pinned memory of one device.

    Parameters
    ----------
    device : Device
        Its memory is trimmed when no call has come for a while.
    """

    def __init__(self, device: Device) -> None:
        self._context = device.context
        self._memory = device.memory
        self._running = device.running
        self._lock = threading.Lock()
        cores = _cores()
        self._most = max(1, min(THREADS, cores - cores // 8))
        self._threads = 0
        self._waiting: deque[Copy] = deque()
        self._later: deque[Callable[[], object]] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._calls = 0
        self._timer = IdleTimer(IDLE_SECONDS, self.rest)
        self._queues: tuple[cl.CommandQueue, cl.CommandQueue] | None = None
        self.staging = Staging(device.context, PIECES * self._most)

    @contextmanager
    def in_use(self) -> Iterator[tuple[cl.CommandQueue, cl.CommandQueue]]:
        """Keep threads and staging while a call copies; give the queue there and the one back."""
        self._running.append(None)
        with self._lock:
            self._calls += 1
            if self._queues is None:
                self._queues = cl.CommandQueue(self._context), cl.CommandQueue(self._context)
            queues = self._queues
        try:
            yield queues
        finally:
            with self._lock:
                self._calls -= 1
            self._running.pop()
            self._timer.touch()

    def post(self, copy: Copy, *, first: bool = False) -> None:
        """Have a thread copy, before all that waits if it comes first."""
        (self._waiting.appendleft if first else self._waiting.append)(copy)
        self._summon()

    def post_later(self, job: Callable[[], object]) -> None:
        """Have a thread do something when there is nothing to copy; it raises nothing."""
        self._later.append(job)
        self._summon()

    def _summon(self) -> None:
        """Have a thread do one more thing, or do it here if there is none and none starts."""
        if self._threads < self._most:
            self._start_thread()
        self._tokens.put(True)
        if not self._threads:
            with suppress(Empty):
                if self._tokens.get_nowait():
                    self._do_one()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="clgemm copy", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the system, or the interpreter ends
            log.info("no thread for copies could be started: %s", error)
            return
        with self._lock:
            self._threads += 1

    def _work(self) -> None:
        while self._tokens.get():
            self._do_one()

    def _do_one(self) -> None:
        """Make a copy, or do what waits for there being none; a thread keeps no arrays alive."""
        try:
            into, source, is_wanted, done = self._waiting.popleft()
        except IndexError:  # there is a token for each copy and each job
            self._later.popleft()()
            return
        error = None
        try:
            if is_wanted():
                np.copyto(into, source)
        except BaseException as caught:  # noqa: BLE001 - the call's own thread raises it
            error = caught
        done(error)

    def rest(self) -> None:
        """Give back threads, pinned memory and idle device memory, unless a call copies."""
        with self._lock:
            if self._calls:
                return
            self._running.append(None)
            for _ in range(self._threads):
                self._tokens.put(False)
            self._threads = 0
            self.staging.release()
            self._memory.trim()
            self._running.pop()


def _cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
