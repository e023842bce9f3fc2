"""Locks that die with their holder: the operating system releases them, however a process ends.

A file that is left behind locks nothing, so nobody ever has to guess whether a lock is stale.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from clgemm.errors import TuningError
from clgemm.runtime import private_files

if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # what is locked cannot be read by others: not where the text is

    def _lock(handle: int) -> None:
        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    def _unlock(handle: int) -> None:
        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, errno.EWOULDBLOCK})
POLL_SECONDS = 0.02
MOST_TEXT = 4096


class FileLock:
    """A lock that processes, and threads, take by the name of a file.

    Parameters
    ----------
    path : Path
        Made if it is not there; its folder is not.

    Raises
    ------
    OSError
        On entering a with block, if the file cannot be made or is not this user's own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._taken = False

    def __enter__(self) -> Self:
        self._handle = private_files.open_lock(self._path)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._taken:
            with suppress(OSError):  # closing releases it as well, unless a fork shares the file
                _unlock(self._handle)
        os.close(self._handle)

    def take(self, seconds: float) -> bool:
        """Wait for the lock.

        Parameters
        ----------
        seconds : float
            How long at most; 0 tries once.

        Returns
        -------
        bool
            False if another one still holds it.  True if it is taken, and on a file system without
            locks: nobody can be waited for there.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                _lock(self._handle)
            except OSError as error:
                if error.errno not in HELD:
                    return True
            else:
                self._taken = True
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)

    def text(self) -> str:
        """Return what the last holder wrote; for the holder."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        return os.read(self._handle, MOST_TEXT).decode("utf-8", errors="replace")

    def write(self, text: str) -> None:
        """Leave a text for the next holder; for the holder."""
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, text.encode()[:MOST_TEXT])


@contextmanager
def held(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock inside a with block; after `seconds` of waiting go on without it, never stall."""
    with FileLock(path) as lock:
        lock.take(seconds)
        yield


@contextmanager
def turn(path: Path, patience: float, waiting: Callable[[], None]) -> Iterator[str]:
    """Let one process do what all others wait for.

    Parameters
    ----------
    path : Path
        Names what is to be done.
    patience : float
        Seconds to wait for another process that does it.  If it takes longer, one more process goes
        on beside it.
    waiting : callable
        Called before waiting.

    Yields
    ------
    str
        "" for the process whose turn it is, which looks first whether it has been done meanwhile.
        Otherwise why it must not be tried again here: it failed, or two processes are at it.
    """
    with ExitStack() as stack:
        try:
            lock, reason = _queue(path, patience, waiting, stack)
        except OSError:  # a folder that cannot be written: each process works on its own
            lock, reason = None, ""
        try:
            yield reason
        except TuningError as error:
            if lock is not None:
                with suppress(OSError):  # those who wait then try for themselves
                    lock.write(f"it failed in another process: {error}")
            raise


def _queue(
    path: Path, patience: float, waiting: Callable[[], None], stack: ExitStack
) -> tuple[FileLock | None, str]:
    """Stand in line; return the lock, if that is what was got, and why not to go on."""
    lock = stack.enter_context(FileLock(path))
    if lock.take(0):
        lock.write("")  # what an earlier run left is of no interest to this one
        return lock, ""
    waiting()
    if lock.take(patience):
        return lock, lock.text()
    beside = stack.enter_context(FileLock(path.with_name(f"{path.name}-too")))
    if beside.take(0):
        return None, ""
    return None, f"two other processes have not ended it within {patience:g} s"
