"""One JSON file of tuned parameters per device, in the user's cache directory.

The file is replaced atomically and merged on write, so that readers need no lock and several
processes may tune at once.  Nothing that is wrong with it ever fails a call: a damaged file is set
aside, an unwritable one leaves the result in memory; each is said once.  This module keeps dicts:
it knows neither kernels nor OpenCL.
"""

from __future__ import annotations

import stat
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from clgemm._version import __version__
from clgemm.errors import ClgemmWarning
from clgemm.runtime import private_files
from clgemm.tuning.store import locks
from clgemm.tuning.store.files import SCHEMA, Contents, cached_contents, replace
from clgemm.tuning.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

LOCK_SECONDS = 2.0
PATIENCE_SECONDS = 10.0  # on top of a search's budget: its child starts, its winner is checked

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
        Hash of the kernel sources; parameters found with others are kept and not used.
    architecture : mapping, optional
        What this device shares with others that its parameters may serve, kept in clear.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        identity: Mapping[str, Any],
        kernels: str,
        architecture: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = folder / f"{fingerprint}.json"
        self.kernels = kernels
        self._lock = folder / f"{fingerprint}.lock"
        self._journal = Journal(folder / f"{fingerprint}.trying.json", kernels)
        self._aside = folder / f"{fingerprint}.json.aside"
        self._head = {
            "schema": SCHEMA, "identity": dict(identity), "architecture": dict(architecture or {}),
        }  # fmt: skip

    def read(self) -> dict[str, Any]:
        """Return the entries by precision; empty if there is no file or it does not fit."""
        entries = self._read().entries
        return {name: dict(e) for name, e in entries.items() if e.get("kernels") == self.kernels}

    def outdated(self) -> dict[str, Any]:
        """Return the entries that were found with another kernel source: where to start from."""
        entries = self._read().entries
        return {name: dict(e) for name, e in entries.items() if e.get("kernels") != self.kernels}

    def why_unused(self, precision: str = "") -> str:
        """Say why the file, or the entry of a precision, is not used; "" if it is, or is none."""
        found = self._read()
        entry = found.entries.get(precision)
        if entry is not None and entry.get("kernels") != self.kernels:
            return "kernel source changed"
        if not found.why and self._is_set_aside():
            return f"the file was damaged and is set aside as {self._aside.name}"
        return found.why

    def _read(self) -> Contents:
        found = self._look()
        if found.damaged:
            with suppress(OSError), self._merging():
                if self._look().damaged:  # not if another process has just replaced it
                    self._set_aside()
        if found.damaged or found.why.startswith("unreadable"):
            remedy = "Delete the file, or set CLGEMM_CACHE_DIR to another directory"
            if self._is_set_aside():
                remedy = f"The file is kept as {self._aside.name}"
            _warn_once(
                str(self.path),
                f"the tuned parameters in {self.path} cannot be read ({found.why}); they are found "
                f"again. {remedy}",
            )
        return found

    def _look(self) -> Contents:
        found = cached_contents(self.path)
        if found.head and not found.why and found.head.get("identity") != self._head["identity"]:
            return Contents(found.head, {}, "device or driver changed")
        return found

    def _set_aside(self) -> None:
        """Keep a file that is not used out of the way of the one that will be."""
        with suppress(FileNotFoundError):
            private_files.move(self.path, self._aside)

    def _is_set_aside(self) -> bool:
        there, aside = map(private_files.status, (self.path, self._aside))
        return there is None and aside is not None

    @contextmanager
    def _merging(self) -> Iterator[None]:
        private_files.make(self.path.parent)
        with locks.held(self._lock, LOCK_SECONDS):
            yield

    def write(self, precision: str, entry: Mapping[str, Any]) -> bool:
        """Add or replace one precision's entry, keeping the others.

        The entry is stored with the kernel source and the version of clgemm that it belongs to.

        Returns
        -------
        bool
            Whether it is on disk now.
        """
        stamped = {"clgemm": __version__, "kernels": self.kernels} | dict(entry)
        try:
            with self._merging():
                found = self._look()
                lies = private_files.status(self.path)
                if found.why and lies is not None and stat.S_ISREG(lies.st_mode):
                    self._set_aside()
                entries = dict(found.entries) | {precision: stamped}
                replace(self.path, self._head | {"precisions": entries})
        except private_files.NotTrustedError:
            return False
        except OSError as error:
            _warn_once(
                str(self.path),
                f"tuned parameters cannot be written to {self.path} ({error}); they are kept "
                "for this process only. Set CLGEMM_CACHE_DIR to a directory that can be written",
            )
            return False
        return True

    @contextmanager
    def turn(
        self, precision: str, budget: float, waiting: Callable[[float], None]
    ) -> Iterator[str]:
        """Search, or wait for the process that searches; see `locks.turn`.

        Parameters
        ----------
        precision : str
            What is searched for.
        budget : float
            Seconds that a search takes.
        waiting : callable
            Called with the seconds that it may take at most, before waiting for another process.
        """
        patience = budget + PATIENCE_SECONDS
        with suppress(OSError):  # `write` reports a directory that cannot be written
            private_files.make(self.path.parent)
        place = self.path.with_name(f"{self.path.stem}.{precision}.searching")
        with locks.turn(place, patience, lambda: waiting(patience)) as reason:
            yield reason

    def begin(self, candidate: Mapping[str, Any]) -> None:
        """Note a candidate that is about to run, in case it takes everything down with it."""
        with suppress(OSError), self._merging():  # `write` reports what cannot be written
            self._journal.begin(candidate)

    def end(self, candidate: Mapping[str, Any]) -> None:
        """Note that the candidate has ended, well or not."""
        with suppress(OSError), self._merging():
            self._journal.end(candidate)

    def interrupted(self) -> list[dict[str, Any]]:
        """Return the candidates that were running when a process was killed, last or earlier."""
        return self._journal.interrupted()

    def absolve(self, candidate: Mapping[str, Any]) -> None:
        """Forget that a process was killed while a candidate was running."""
        with suppress(OSError), self._merging():
            self._journal.absolve(candidate)
