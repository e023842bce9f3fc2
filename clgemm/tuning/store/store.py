"""One file of tuned parameters per device, in the user's cache directory, and one of its state.

Files are replaced atomically and merged on write, so that readers need no lock and several
processes may tune at once.  Nothing that is wrong with them ever fails a call: a damaged file is
found again, an unwritable one leaves the result in memory; each is said once.

The state is what makes parameters quick and safe to use: configurations that were verified here,
where the device breaks even with the host, and candidates that are tried now, of which those that
took their process down are not tried again.
"""

from __future__ import annotations

import logging
import stat
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm._version import __version__
from clgemm.errors import ClgemmWarning
from clgemm.kernels import source
from clgemm.runtime import private_files
from clgemm.tuning.store import entries, files, locks
from clgemm.tuning.store.files import SCHEMA, Contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

LOCK_SECONDS = 2.0
PATIENCE_SECONDS = 10.0  # on top of a search's budget: its child starts, its winner is checked

_warned: set[str] = set()


def warn_once(key: str, message: str) -> None:
    """Warn, unless that was done in this process."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, ClgemmWarning, stacklevel=3)


class State(NamedTuple):
    """What is known of a device beside its parameters."""

    verified: list[dict[str, Any]]
    """Notes of configurations, with the entry that they are right for."""
    trying: list[dict[str, Any]]
    """Notes of candidates, with the process that tries them: see `locks.own_name`."""
    break_evens: dict[str, dict[str, Any]]
    """Seconds of products on both sides, and what they depend on, by the name of an entry."""


def note_of(config: Mapping[str, Any], **more: str) -> dict[str, Any]:
    """Make a note of a configuration, which is good for what its family's sources are now."""
    return {"config": dict(config), "source": source.family_hash(config["family"])} | more


def _notes(data: Any, form: Any) -> list[dict[str, Any]]:
    notes = entries.keep_readable(data, form)
    return [x for x in notes if x["source"] == source.family_hash(x["config"]["family"])]


class Store:
    """The stored parameters of one device, and their state.

    The cache directory is made at the first write; the fingerprint names the files.  The identity
    that it stands for is kept in clear and compared on read; so is the architecture, what this
    device shares with others that its parameters may serve.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        identity: Mapping[str, Any],
        architecture: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = folder / f"{fingerprint}.v{SCHEMA}.json"
        self.state_path = folder / f"{fingerprint}.state.v{SCHEMA}.json"
        self._place = folder / fingerprint
        self._head = {"identity": dict(identity), "architecture": dict(architecture or {})}

    def _beside(self, ending: str) -> Path:
        return self._place.with_name(f"{self._place.name}.{ending}")

    def read(self) -> Contents:
        """Return what is stored; no entries if there is no file or it does not fit."""
        found = self._look()
        if found.why.startswith(("damaged", "unreadable")):
            warn_once(
                str(self.path),
                f"the tuned parameters in {self.path} cannot be read ({found.why}); they are found "
                "again. Delete the file, or set CLGEMM_CACHE_DIR to another directory",
            )
        if found.entries and private_files.status(self.path) is None:
            with suppress(OSError), self._merging():  # an older release found it: kept anew
                if private_files.status(self.path) is None:
                    self._replace(found.entries)
        return found

    def _look(self) -> Contents:
        """Read the file; that of an older release if there is none."""
        found = files.read_cached(self.path)
        if not found.head and not found.why:
            old = files.read_cached(self._beside("json"))
            found = Contents({}, {}) if old.why else old
        if found.entries and found.head["identity"] != self._head["identity"]:
            return Contents(found.head, {}, "device or driver changed")
        return found

    @contextmanager
    def _merging(self) -> Iterator[None]:
        private_files.make(self.path.parent)
        with locks.FileLock(self._beside("lock")) as lock:
            lock.take(LOCK_SECONDS)  # if that fails, go on without: never stall
            yield

    def _replace(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        kept = {
            name: entries.keep(entry, entries.ENTRY)
            | {"trials": entries.keep_readable(entry.get("trials"), entries.TRIAL)}
            for name, entry in found.items()
        }
        files.write_json(self.path, {"schema": SCHEMA, **self._head, "entries": kept})

    def write(self, name: str, entry: Mapping[str, Any]) -> bool:
        """Add or replace an entry, keeping the others; return whether it is on disk now.

        The entry is stored with the version of clgemm and, unless it names them, the sources that
        it belongs to.  A file that cannot be used is set aside.
        """
        configs = *entry["variants"], *(trial["config"] for trial in entry.get("trials", ()))
        sources = {x["family"]: source.family_hash(x["family"]) for x in configs}
        stamped = {"clgemm": __version__, "sources": sources} | dict(entry)
        try:
            with self._merging():
                found, lies = self._look(), private_files.status(self.path)
                if found.why and lies is not None and stat.S_ISREG(lies.st_mode):
                    private_files.move(self.path, self._beside(f"v{SCHEMA}.json.aside"))
                self._replace(dict(found.entries) | {name: stamped})
        except private_files.NotTrustedError:
            return False
        except OSError as error:
            warn_once(
                str(self.path),
                f"tuned parameters cannot be written to {self.path} ({error}); they are kept "
                "for this process only. Set CLGEMM_CACHE_DIR to a directory that can be written",
            )
            return False
        return True

    @contextmanager
    def turn(self, name: str, budget: float, waiting: Callable[[float], None]) -> Iterator[str]:
        """Search for an entry, or wait for the process that searches; see `locks.turn`.

        `waiting` is called with the seconds that it may take at most, before waiting.
        """
        patience = budget + PATIENCE_SECONDS
        with suppress(OSError):  # `write` reports a directory that cannot be written
            private_files.make(self.path.parent)
        place = self._beside(f"{name}.searching")
        with locks.turn(place, patience, lambda: waiting(patience)) as reason:
            yield reason

    def state(self) -> State:
        """Return what is known beside the parameters and still holds."""
        data = files.read_json(private_files.read(self.state_path, files.MOST_BYTES).data or b"{}")
        data = data if isinstance(data, dict) and data.get("schema") == SCHEMA else {}
        times = data.get("break_evens")
        times = times if isinstance(times, dict) else {}
        known = {
            name: entries.keep_readable([times.get(name)], entries.BREAK_EVEN)
            for name in entries.NAMES
        }
        return State(
            _notes(data.get("verified"), entries.VERIFIED),
            _notes(data.get("trying"), entries.TRYING),
            {name: found[0] for name, found in known.items() if found},
        )

    def change_state(self, change: Callable[[State], State]) -> None:
        """Replace the state by what a function makes of it; what cannot be written is left."""
        try:
            with self._merging():
                locks.remove_ended(self._place)
                before = self.state()
                after = change(before)
                if after != before:
                    files.write_json(self.state_path, {"schema": SCHEMA, **after._asdict()})
                own = locks.own_name(self._place)
                if all(note["process"] != own for note in after.trying):
                    locks.leave(self._place)
        except OSError as error:  # later processes find it out again
            log.debug("%s cannot be written: %s", self.state_path, error)

    def _change_trying(
        self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    ) -> None:
        self.change_state(lambda state: state._replace(trying=change(state.trying)))

    def begin(self, candidate: Mapping[str, Any]) -> None:
        """Note a candidate that is about to run, in case it takes everything down with it."""
        self._change_trying(
            lambda notes: [*notes, note_of(candidate, process=locks.enter(self._place))]
        )

    def end(self, candidate: Mapping[str, Any]) -> None:
        """Note that the candidate has ended, well or not."""
        note = note_of(candidate, process=locks.own_name(self._place))
        self._change_trying(lambda notes: [x for x in notes if x != note])

    def interrupted(self) -> list[dict[str, Any]]:
        """Return the candidates that were running when a process ended, and what this one left."""
        return [note["config"] for note in self.state().trying if self._is_over(note)]

    def forget_interrupted(self, candidate: Mapping[str, Any]) -> None:
        """Forget that processes ended while a candidate was running: it was not its fault."""
        self._change_trying(
            lambda notes: [x for x in notes if x["config"] != candidate or not self._is_over(x)]
        )

    def _is_over(self, note: Mapping[str, Any]) -> bool:
        name = note["process"]
        return name == locks.own_name(self._place) or locks.has_ended(self._place, name)
