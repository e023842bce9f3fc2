"""One JSON file of tuned parameters per device, in the user's cache directory.

The file is replaced atomically and merged on write, so that readers need no lock and several
processes may tune at once.  Nothing that is wrong with it ever fails a call: an unreadable file
counts as none, an unwritable one leaves the result in memory; each is said once.  This module keeps
dicts: it knows neither kernels nor OpenCL.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgemm.errors import ClgemmWarning

try:
    import fcntl
except (
    ImportError
):  # Windows: merging stays atomic per file, without the lock around read and replace
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SCHEMA = 1
LOCK_SECONDS = 2.0

_warned: set[str] = set()


def _warn_once(key: str, message: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, ClgemmWarning, stacklevel=3)


class Store:
    """The stored parameters of one device.

    Parameters
    ----------
    folder : Path
        The cache directory; made at the first write.
    fingerprint : str
        Names the file.
    identity : mapping
        What the fingerprint stands for, kept in clear and compared on read.
    kernels : str
        Hash of the kernel sources; parameters found with others are not used.
    """

    def __init__(
        self, folder: Path, fingerprint: str, identity: Mapping[str, Any], kernels: str
    ) -> None:
        self.path = folder / f"{fingerprint}.json"
        self._lock = folder / f"{fingerprint}.lock"
        self._journal = folder / f"{fingerprint}.trying.json"
        self._head = {"schema": SCHEMA, "identity": dict(identity), "kernels": kernels}

    def read(self) -> dict[str, Any]:
        """Return the entries by precision; empty if there is no file or it does not fit."""
        return self._entries(self.path)[0]

    def why_unused(self) -> str:
        """Say why the file on disk is not used; "" if it is, or if there is none."""
        return self._entries(self.path)[1]

    def read_shipped(self, path: Path) -> dict[str, Any]:
        """Return the entries of a file that came with the package, if it is for this device."""
        return self._entries(path)[0]

    def _entries(self, path: Path) -> tuple[dict[str, Any], str]:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}, ""
        except (OSError, ValueError, RecursionError) as error:
            _warn_once(
                str(path),
                f"the tuned parameters in {path} cannot be read ({error}); they are found again. "
                "Delete the file, or set CLGEMM_CACHE_DIR to another directory",
            )
            return {}, f"unreadable: {error}"
        if not isinstance(data, dict):
            return {}, "not a file of clgemm"
        for key, what in (("schema", "schema"), ("identity", "device or driver"),
                          ("kernels", "kernel source")):  # fmt: skip
            if data.get(key) != self._head[key]:
                return {}, f"{what} changed"
        entries = data.get("precisions")
        return (entries, "") if isinstance(entries, dict) else ({}, "no entries")

    def write(self, precision: str, entry: Mapping[str, Any]) -> bool:
        """Add or replace one precision's entry, keeping the others.

        Returns
        -------
        bool
            Whether it is on disk now.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self._lock):
                entries = self.read() | {precision: dict(entry)}
                _replace(self.path, self._head | {"precisions": entries})
        except OSError as error:
            _warn_once(
                str(self.path),
                f"tuned parameters cannot be written to {self.path} ({error}); they are kept "
                "for this process only. Set CLGEMM_CACHE_DIR to a directory that can be written",
            )
            return False
        return True

    def begin(self, candidate: Mapping[str, Any]) -> None:
        """Note a candidate that is about to run, in case it takes everything down with it."""
        self._note({"pid": os.getpid(), "candidate": dict(candidate)}, running=True)

    def end(self, candidate: Mapping[str, Any]) -> None:
        """Note that the candidate has ended, well or not."""
        self._note({"pid": os.getpid(), "candidate": dict(candidate)}, running=False)

    def interrupted(self) -> list[dict[str, Any]]:
        """Return the candidates that were running when a process was killed, last or earlier."""
        return [note["candidate"] for note in self._notes() if not _runs_elsewhere(note["pid"])]

    def _note(self, note: Mapping[str, Any], *, running: bool) -> None:
        with suppress(OSError):  # `write` reports a directory that cannot be written
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self._lock):
                notes = [x for x in self._notes() if x != note] + [dict(note)] * running
                if notes:
                    _replace(self._journal, {"kernels": self._head["kernels"], "running": notes})
                else:
                    self._journal.unlink(missing_ok=True)

    def _notes(self) -> list[dict[str, Any]]:
        try:
            data = json.loads(self._journal.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return []
        if not isinstance(data, dict) or data.get("kernels") != self._head["kernels"]:
            return []
        notes = data.get("running")
        return [
            note
            for note in (notes if isinstance(notes, list) else [])
            if isinstance(note, dict)
            and isinstance(note.get("pid"), int)
            and isinstance(note.get("candidate"), dict)
        ]


def _runs_elsewhere(pid: int) -> bool:
    """Tell whether another process with this number is alive; False where asking would hurt."""
    if os.name != "posix" or pid <= 0 or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # another user's
    return True


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the new one, whole."""
    handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock while merging; after `LOCK_SECONDS` go on without it, never stall."""
    if fcntl is None:
        yield
        return
    with path.open("a") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:  # held by another process, or a file system without locks
                time.sleep(0.02)
        yield
