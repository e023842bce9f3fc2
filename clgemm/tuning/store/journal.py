"""Which candidates are being tried now, on disk: what takes its process down is not tried again.

Each process that tries candidates holds a lock of its own meanwhile, which dies with it.  So a
candidate of a process that is alive counts as nobody's fault yet, whatever its number, container
or machine; process numbers are used again and mean nothing in another container.
"""

from __future__ import annotations

import fnmatch
import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clgemm.runtime import private_files
from clgemm.tuning.store.files import cached_json, replace
from clgemm.tuning.store.locks import FileLock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_lives: dict[tuple[Path, int], tuple[str, FileLock]] = {}
"""This process' name and lock, by journal; a forked child has its own."""


class Journal:
    """The candidates that processes are trying on one device.

    Whoever writes holds the lock of the store.

    Parameters
    ----------
    path : Path
        Of the file; locks lie beside it.
    kernels : str
        Hash of the kernel sources; notes made with others count for nothing.
    """

    def __init__(self, path: Path, kernels: str) -> None:
        self._path = path
        self._kernels = kernels

    def begin(self, candidate: Mapping[str, Any]) -> None:
        """Note a candidate that is about to run."""
        note = {"life": self._life(), "candidate": dict(candidate)}
        self._write([x for x in self._notes() if x != note] + [note])

    def end(self, candidate: Mapping[str, Any]) -> None:
        """Note that the candidate has ended, well or not."""
        own = self._own()
        notes = self._notes()
        left = [x for x in notes if x != {"life": own, "candidate": dict(candidate)}]
        if left != notes:
            self._write(left)
        if own and all(x["life"] != own for x in left):
            _, lock = _lives.pop((self._path, os.getpid()))
            lock.__exit__(None, None, None)
            private_files.remove(self._lock_path(own))

    def interrupted(self) -> list[dict[str, Any]]:
        """Return the candidates that were running when a process ended, and what this one left."""
        return [x["candidate"] for x in self._notes() if self._is_over(x)]

    def absolve(self, candidate: Mapping[str, Any]) -> None:
        """Forget that processes ended while a candidate was running: it was not its fault."""
        notes = self._notes()
        left = [x for x in notes if x["candidate"] != dict(candidate) or not self._is_over(x)]
        if left != notes:
            self._write(left)

    def _is_over(self, note: Mapping[str, Any]) -> bool:
        return note["life"] == self._own() or self._dead(note["life"])

    def _own(self) -> str:
        return _lives.get((self._path, os.getpid()), ("", None))[0]

    def _life(self) -> str:
        """Return this process' name; its lock is held from here on."""
        if not self._own():
            name = uuid.uuid4().hex
            lock = FileLock(self._lock_path(name)).__enter__()
            lock.take(0)
            _lives[self._path, os.getpid()] = name, lock
        return self._own()

    def _lock_path(self, life: str) -> Path:
        return self._path.with_name(f"{self._path.stem}.{life}.alive")

    def _dead(self, life: str) -> bool:
        path = self._lock_path(life)
        if private_files.status(path) is None:
            return True
        try:
            with FileLock(path) as lock:
                return lock.take(0)
        except OSError:  # removed meanwhile, or nobody can lock here
            return True

    def _write(self, notes: list[dict[str, Any]]) -> None:
        folder = self._path.parent
        for name in fnmatch.filter(private_files.names(folder), f"{self._path.stem}.*.alive"):
            life = name.split(".")[-2]
            if life != self._own() and self._dead(life):
                with suppress(OSError):  # on Windows while somebody looks at it
                    private_files.remove(folder / name)
        if notes:
            replace(self._path, {"kernels": self._kernels, "running": notes})
        else:
            private_files.remove(self._path)

    def _notes(self) -> list[dict[str, Any]]:
        data = cached_json(self._path)
        if not isinstance(data, dict) or data.get("kernels") != self._kernels:
            return []
        notes = data.get("running")
        return [
            note
            for note in (notes if isinstance(notes, list) else [])
            if isinstance(note, dict)
            and isinstance(note.get("life"), str)
            and note["life"].isalnum()
            and isinstance(note.get("candidate"), dict)
        ]
