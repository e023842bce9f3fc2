"""Locks that end with their holder: the operating system releases them, however a process ends.

A file that is left behind locks nothing, so nobody ever has to guess whether a lock is stale, or
whether a process is still there: each that tries candidates holds a lock of its own meanwhile.
Process numbers would not do; they are used again, and mean nothing in another container.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import sys
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from clgemm.errors import TuningError
from clgemm.runtime import private_files

if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # what is locked cannot be read by others: not where the text is

    def _lock(handle: int, *, taken: bool) -> None:
        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK if taken else msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(handle: int, *, taken: bool) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if taken else fcntl.LOCK_UN)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, errno.EWOULDBLOCK})
POLL_SECONDS = 0.02
MOST_TEXT = 4096

_own: dict[tuple[Path, int], tuple[str, FileLock]] = {}
"""This process' name and lock, by place; a forked child has its own."""


class FileLock:
    """A lock that processes, and threads, take by the name of a file, which is made.

    Making one raises OSError if that cannot be done or the file is not this user's own.
    """

    def __init__(self, path: Path) -> None:
        self._handle = private_files.open_lock(path)
        self._taken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._taken:
            with suppress(OSError):  # closing releases it as well, unless a fork shares the file
                _lock(self._handle, taken=False)
        os.close(self._handle)

    def take(self, seconds: float) -> bool:
        """Wait for the lock, for so many seconds at most; return False if somebody still has it.

        On a file system without locks the answer is True: nobody can be waited for there.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                _lock(self._handle, taken=True)
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
def turn(path: Path, patience: float, waiting: Callable[[], None]) -> Iterator[str]:
    """Let one process do what all others wait for, after a call of `waiting`.

    If it takes longer than `patience` seconds, one more process goes on beside it.

    Yields
    ------
    str
        "" for the process whose turn it is, which looks first whether it has been done meanwhile.
        Otherwise why it must not be tried again here: it failed, or two processes are at it.
    """
    with ExitStack() as stack:
        lock, reason = None, ""
        with suppress(OSError):  # a folder that cannot be written: each process works on its own
            lock, reason = _queue(path, patience, waiting, stack)
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


def own_name(place: Path) -> str:
    """Return this process' name among those that try candidates at a place; "" if it does not."""
    return _own.get((place, os.getpid()), ("", None))[0]


def enter(place: Path) -> str:
    """Return this process' name, whose lock it holds from here on."""
    if not own_name(place):
        name = uuid.uuid4().hex
        lock = FileLock(_alive(place, name))
        lock.take(0)
        _own[place, os.getpid()] = name, lock
    return own_name(place)


def leave(place: Path) -> None:
    """Release the lock of this process' name, if it has one."""
    if name := own_name(place):
        _own.pop((place, os.getpid()))[1].__exit__()
        private_files.remove(_alive(place, name))


def has_ended(place: Path, name: str) -> bool:
    """Tell whether the process of a name has ended."""
    path = _alive(place, name)
    if private_files.status(path) is None:
        return True
    try:
        with FileLock(path) as lock:
            return lock.take(0)
    except OSError:  # removed meanwhile, or nobody can lock here
        return True


def remove_ended(place: Path) -> None:
    """Remove the locks of processes that have ended."""
    for file in fnmatch.filter(private_files.names(place.parent), f"{place.name}.*.alive"):
        name = file.split(".")[-2]
        if name != own_name(place) and has_ended(place, name):
            with suppress(OSError):  # on Windows while somebody looks at it
                private_files.remove(place.with_name(file))


def _alive(place: Path, name: str) -> Path:
    return place.with_name(f"{place.name}.{name}.alive")
