"""Files of the cache directory, which are this user's alone.

Compiled programs run as they are read, so whoever can write them runs code here.  A folder is used
only if it belongs to the user of this process and nobody else may write to it; the same holds for
each file.  Names are looked up in the open folder that was checked, and links are not followed.
From any other folder nothing is read and nothing is written there; one warning says so.

What reads never raises.  What makes or changes files raises OSError if that cannot be done:
NotTrustedError, which is one, if the folder is not trusted.  Windows has no such owners and modes:
there a folder is as good as its place.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
import warnings
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, NamedTuple

from clgemm import settings
from clgemm.errors import ClgemmWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

LEFT_BEHIND_SECONDS = 60.0
BUSY_SECONDS = 1.0  # that a file may be open elsewhere, on Windows, when it is to be replaced
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HARMLESS = ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")  # a FIFO must not be waited for
_FLAGS = sum(getattr(os, name, 0) for name in _HARMLESS)

_warned: set[Path] = set()


class NotTrustedError(PermissionError):
    """A folder is not used because of who owns it or may write to it; that has been said."""


class Found(NamedTuple):
    """What lies under a name."""

    data: bytes | None
    """None if there is nothing, or nothing that is read."""
    why_not: str | None = None
    """Why it is not read, if there is something in a folder that is trusted."""


def why_not_trusted(folder: Path) -> str | None:
    """Return why a folder is not used; None if it is, or if there is none."""
    try:
        with _trusted(folder):
            return None
    except OSError as error:  # what is not there, or no folder, is the first write's to report
        return str(error.strerror) if isinstance(error, NotTrustedError) else None


def why_not_written(folder: Path) -> str | None:
    """Return why nothing can be kept in a folder that is trusted, or in one yet to be made."""
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not os.path.isdir(place):  # noqa: PTH112 - Path's own raises where one may not look
        return f"{place} is no directory"
    return None if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written to"


def make(folder: Path) -> None:
    """Make a folder that only this user may enter, unless it is there."""
    try:
        with _trusted(folder):
            return
    except FileNotFoundError:
        outer = _outer(folder)
    if outer is None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        make(outer)
        with _trusted(outer) as handle, suppress(FileExistsError):
            os.mkdir(_name(folder, handle), 0o700, dir_fd=handle)
    with _trusted(folder):  # somebody else may have made it meanwhile
        pass


def read(path: Path, most: int) -> Found:
    """Return what a regular file of at most so many bytes holds, if nobody else may write it."""
    try:
        with _opened(path, os.O_RDONLY) as handle:
            found = os.fstat(handle)
            why_not = _why_not_file(found) or _why_not_writers(found)
            if why_not is None and found.st_size > most:
                why_not = f"it has {found.st_size} bytes, more than {most}"
            if why_not is None:
                with os.fdopen(handle, "rb", closefd=False) as file:
                    return Found(file.read(most))
    except (FileNotFoundError, NotADirectoryError, NotTrustedError):
        return Found(None)
    except OSError as error:
        why_not = "it is a link" if error.errno == errno.ELOOP else str(error)
    log.info("%s is not read: %s", path, why_not)
    return Found(None, why_not)


def write(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old one or the new one, whole."""
    temporary = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.tmp")
    _clear_left_behind(path)
    try:
        with (
            _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as handle,
            os.fdopen(handle, "wb", closefd=False) as file,
        ):
            file.write(data)
        move(temporary, path)
    except BaseException:
        with suppress(OSError):  # what went wrong is worth more than this
            remove(temporary)
        raise


def open_lock(path: Path) -> int:
    """Open a regular file of this user that has no other name, or make it; to be locked."""
    with _opened(path, os.O_RDWR | os.O_CREAT) as handle:
        found = os.fstat(handle)
        why_not = _why_not_file(found) or _why_not_owner(found)
        if why_not is None and found.st_nlink > 1:
            why_not = "it has another name as well"
        if why_not is not None:
            raise PermissionError(errno.EPERM, why_not, str(path))
        return os.dup(handle)


def move(path: Path, to: Path) -> None:
    """Rename a file within its folder, over what is there.

    Windows refuses that while somebody reads what is there.
    """
    with _trusted(path.parent) as folder:
        old, new, deadline = _name(path, folder), _name(to, folder), time.monotonic() + BUSY_SECONDS
        while True:
            try:
                os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)
            except PermissionError:
                if folder is not None or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(0.01)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError), _trusted(path.parent) as folder:
        os.unlink(_name(path, folder), dir_fd=folder)


def names(folder: Path) -> list[str]:
    """List the names in a folder; there are none in one that is not trusted."""
    with suppress(OSError), _trusted(folder) as handle:
        return sorted(os.listdir(folder if handle is None else handle))  # noqa: PTH208 - it is open
    return []


def status(path: Path) -> os.stat_result | None:
    """Return what the system knows of a file or link; None if nothing is there or is trusted."""
    with suppress(OSError), _trusted(path.parent) as folder:
        return os.stat(_name(path, folder), dir_fd=folder, follow_symlinks=False)
    return None


def note_use(path: Path, every: float) -> None:
    """Set a file's time to now if it is older than so many seconds."""
    found = status(path)
    if found is not None and time.time() - found.st_mtime > every:
        with suppress(OSError), _trusted(path.parent) as folder:
            os.utime(_name(path, folder), dir_fd=folder, follow_symlinks=folder is None)


def _clear_left_behind(path: Path) -> None:
    """Remove what processes that were killed while they replaced a file left beside it."""
    for name in names(path.parent):
        if name.startswith(f"{path.stem}.") and name.endswith(".tmp"):
            left = path.with_name(name)
            found = status(left)
            if found is not None and time.time() - found.st_mtime > LEFT_BEHIND_SECONDS:
                with suppress(OSError):  # it is tried again at the next write
                    remove(left)


def _name(path: Path, folder: int | None) -> str:
    """Name a file for the system: within its open folder if there are such."""
    return str(path) if folder is None else path.name


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    with _trusted(path.parent) as folder:
        handle = os.open(_name(path, folder), flags | _FLAGS, 0o600, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _trusted(folder: Path) -> Iterator[int | None]:
    """Open a folder that is this user's alone, and yield its handle; None on Windows."""
    if _user() is None:
        folder.stat()  # as elsewhere: an error if it is not there
        yield None
        return
    outer = _outer(folder)
    with nullcontext() if outer is None else _trusted(outer) as around:
        handle = _open_folder(folder, around)
    try:
        yield handle
    finally:
        os.close(handle)


def _outer(folder: Path) -> Path | None:
    """Return the cache directory if a folder lies in it: then both must be trusted."""
    around = settings.cache_dir()
    return around if folder.parent == around != folder else None


def _open_folder(folder: Path, around: int | None) -> int:
    try:
        handle, why_not = _handle_of(folder, around)
    except PermissionError as error:
        handle, why_not = -1, f"it may not be entered ({error.strerror})"
    if why_not is None:
        return handle
    if handle >= 0:
        os.close(handle)
    if folder not in _warned:
        _warned.add(folder)
        warnings.warn(
            f"the directory {folder} is not used: {why_not}. Nothing is read from it or written "
            "to it; what is found is kept for this process only. If it is yours alone, run "
            f"`chmod 700 {folder}`; otherwise set CLGEMM_CACHE_DIR to a directory of your own",
            ClgemmWarning,
            stacklevel=2,
        )
    raise NotTrustedError(errno.EPERM, why_not, str(folder))


def _handle_of(folder: Path, around: int | None) -> tuple[int, str | None]:
    """Open a folder; return its handle, or -1, and why it is not trusted."""
    name, flags = _name(folder, around), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    found = os.stat(name, dir_fd=around, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        flags |= os.O_NOFOLLOW
    elif around is not None:
        return -1, "it is a link"
    elif found.st_uid != _user():
        return -1, f"it is a link of user {found.st_uid}, and this process runs as {_user()}"
    handle = os.open(name, flags, dir_fd=around)
    return handle, _why_not_writers(os.fstat(handle))


def _user() -> int | None:
    """Return the effective user, None on Windows."""
    asked = getattr(os, "geteuid", None)
    return None if asked is None else int(asked())


def _why_not_file(found: os.stat_result) -> str | None:
    return None if stat.S_ISREG(found.st_mode) else "it is no regular file"


def _why_not_owner(found: os.stat_result) -> str | None:
    if _user() in {None, found.st_uid}:
        return None
    return f"it belongs to user {found.st_uid}, and this process runs as {_user()}"


def _why_not_writers(found: os.stat_result) -> str | None:
    """Say who else may change a file or folder, None if nobody."""
    why_not = _why_not_owner(found)
    if why_not is None and _user() is not None and found.st_mode & OTHERS_WRITE:
        who = "everybody" if found.st_mode & stat.S_IWOTH else "its group"
        why_not = f"{who} may write to it (mode {stat.S_IMODE(found.st_mode):03o})"
    return why_not
