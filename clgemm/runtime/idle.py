"""What is kept between calls is given back when no call comes for some seconds."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from clgemm.runtime import ending
from clgemm.runtime.reentry import entry

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class IdleTimer:
    """Runs an action, in a thread of its own, when it has not been touched for some seconds.

    The thread is there only while there is something to wait for, and ends with the interpreter.
    """

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._lock = threading.Lock()
        self._due = 0.0
        self._waits = False

    def touch(self) -> None:
        """Start, or start again, to wait.

        If no thread can be started, nothing is given back until a later touch succeeds.
        """
        begins = has_begun = False
        try:
            with self._lock:
                self._due = time.monotonic() + self._seconds
                if not self._waits:
                    self._waits = begins = True
            if begins:
                threading.Thread(target=self._run, name="clgemm idle timer", daemon=True).start()
                has_begun = True
        except RuntimeError as error:  # a limit of the system, or the interpreter ends
            log.debug("memory is kept, since no thread can be started: %s", error)
        finally:  # wherever Ctrl-C came
            if begins and not has_begun:
                self._waits = False

    @entry(background=True)
    def _run(self) -> None:
        while True:
            with self._lock:
                rest = self._due - time.monotonic()
                if rest <= 0:
                    self._waits = False
                    break
            threading.Event().wait(rest)  # as one that is inside no BLAS: see `host.spinning`
        with ending.awaited():
            self._action()
