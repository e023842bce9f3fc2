"""Processes that need parameters at once, and processes that are killed while they search."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers import CPU, PATIENCE, run_python, wait_until

from clgemm.errors import TuningError
from clgemm.tuning.store import locks
from clgemm.tuning.store.locks import FileLock
from clgemm.tuning.store.store import Store

pytestmark = pytest.mark.process

COLD = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace

folder, mode, others = Path(sys.argv[1]), sys.argv[2], int(sys.argv[4]) - 1
sys.path.insert(0, sys.argv[3])
from helpers import CPU, PATIENCE, entry_with
from clgemm.errors import TuningError
from clgemm.runtime.programs import Programs
from clgemm.tuning.store import lookup, store
from clgemm.tuning import tuner, verification

def search(self, precision, store, effort):
    with (folder / "searches").open("a") as file:
        file.write("search\\n")
    first = len((folder / "searches").read_text().split()) == 1
    patience = time.monotonic() + PATIENCE / 2  # less than the others have
    while mode in ("works", "fails") and len(list(folder.glob("waiting*"))) < others:
        if time.monotonic() > patience:
            break
        time.sleep(0.005)
    if mode == "fails":
        raise TuningError("nothing works")
    if mode == "is killed" and first:
        time.sleep(0.3)
        os.kill(os.getpid(), 9)
    while mode == "hangs" and not (folder / "end").exists():
        time.sleep(0.01)
    found = lookup.defaults(CPU, precision, "found by a search")
    verification.remember(store, precision, found.configs)
    assert store.write("gemm.s", entry_with(*found.configs))
    return None, found

def note(record):
    if "waiting for its result" in record.getMessage():
        (folder / f"waiting{os.getpid()}").touch()
    return True

tuner.log.addFilter(note)
tuner.log.setLevel("INFO")
tuner.Parameters._search = search
store.PATIENCE_SECONDS = 0.3 if mode == "hangs" else PATIENCE
(folder / f"ready{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
parameters = tuner.Parameters(SimpleNamespace(traits=CPU, programs=Programs(None, CPU)))
print(parameters.of("s").origin, flush=True)
"""


class Cold:
    """Processes that start together, without parameters."""

    def __init__(self, folder, count, mode):
        self.folder = folder
        environment = {"CLGEMM_TUNE": "auto", "CLGEMM_TUNE_SECONDS": "0.2",
                       "CLGEMM_CACHE_DIR": str(folder / "cache")}  # fmt: skip
        self.children = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    COLD,
                    *map(str, (folder, mode, Path(__file__).parents[1], count)),
                ],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        wait_until(lambda: len(list(folder.glob("ready*"))) == count or self.ended(), "no start")
        assert self.ended() == [], "a process ended early"
        (folder / "go").touch()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for child in self.children:
            child.kill()
            child.communicate()

    def ended(self):
        return [child for child in self.children if child.poll() is not None]

    def origins(self):
        """Wait for all; return what each of those that did not die has its parameters from."""
        results = [
            (*child.communicate(timeout=PATIENCE), child.returncode) for child in self.children
        ]
        assert [err for _, err, code in results if code > 0] == []
        return [out.strip() for out, _, code in results if code == 0]

    def searches(self):
        return len((self.folder / "searches").read_text().split())


@pytest.mark.slow
def test_eight_processes_that_start_cold_at_once_search_once(tmp_path):
    with Cold(tmp_path, 8, "works") as cold:
        origins = cold.origins()
    assert cold.searches() == 1
    path = tmp_path / "cache" / f"{CPU.fingerprint()}.v4.json"
    assert sum("found by a search" in origin for origin in origins) == 1
    assert origins.count(str(path)) == 7
    assert set(json.loads(path.read_text())["entries"]) == {"gemm.s"}
    state = path.with_name(f"{CPU.fingerprint()}.state.v4.json")
    assert set((tmp_path / "cache").glob("*.json")) == {path, state}


@pytest.mark.skipif(os.name != "posix", reason="a process of this system cannot kill itself so")
def test_a_searcher_that_is_killed_keeps_nobody_waiting(tmp_path):
    with Cold(tmp_path, 4, "is killed") as cold:
        origins = cold.origins()
    assert cold.searches() == 2
    assert len(origins) == 3
    assert sum("found by a search" in origin for origin in origins) == 1


@pytest.mark.slow
def test_a_search_that_does_not_end_is_tried_once_more_and_not_more_often(tmp_path):
    with Cold(tmp_path, 5, "hangs") as cold:
        wait_until(lambda: len(cold.ended()) == 3, "three should have gone on with defaults")
        assert cold.searches() == 2
        (tmp_path / "end").touch()
        origins = cold.origins()
    assert cold.searches() == 2
    assert sum("found by a search" in origin for origin in origins) == 2
    given_up = [o for o in origins if "found by a search" not in o]
    assert all("defaults" in o and "two other processes" in o for o in given_up)


def test_a_search_that_fails_is_not_repeated_by_those_who_waited(tmp_path):
    with Cold(tmp_path, 4, "fails") as cold:
        origins = cold.origins()
    assert cold.searches() == 1
    assert sum("tuning failed: nothing works" in origin for origin in origins) == 1
    assert sum("failed in another process: nothing works" in origin for origin in origins) == 3


def turns(path, patience=PATIENCE):
    """Take a turn; say what was got and whether it was waited for."""
    waited = []
    return locks.turn(path, patience, lambda: waited.append(True)), waited


def test_a_turn_that_is_free_is_had_at_once(tmp_path):
    for _ in range(2):
        taken, waited = turns(tmp_path / "lock")
        with taken as refusal:
            assert refusal == ""
        assert waited == []


def waiter(turn):
    """Make a thread that takes a turn, and the list of what refuses it."""
    got = []

    def wait():
        with turn as refusal:
            got.append(refusal)

    return threading.Thread(target=wait), got


def test_who_waits_gets_the_turn_when_it_ends(tmp_path):
    (taken, _), (later, waited) = turns(tmp_path / "lock"), turns(tmp_path / "lock")
    thread, got = waiter(later)
    with taken:
        thread.start()
        wait_until(lambda: waited, "it did not wait")
        assert got == []
    thread.join(PATIENCE)
    assert got == [""]


def test_a_failure_is_told_to_those_who_wait_and_forgotten_after(tmp_path):
    (taken, _), (later, waited) = turns(tmp_path / "lock"), turns(tmp_path / "lock")
    thread, got = waiter(later)

    def fail():
        with taken:
            thread.start()
            wait_until(lambda: waited, "it did not wait")
            raise TuningError("no candidate")

    with pytest.raises(TuningError):
        fail()
    thread.join(PATIENCE)
    assert got == ["it failed in another process: no candidate"]
    with turns(tmp_path / "lock")[0] as refusal:
        assert refusal == "", "who did not wait tries"


def test_a_folder_that_cannot_be_written_makes_nobody_wait(tmp_path):
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "cache", "0123", {})
    for _ in range(2):
        with store.turn("s", 0.0, pytest.fail) as refusal:
            assert refusal == ""


def test_a_file_system_without_locks_makes_nobody_wait(tmp_path, monkeypatch):
    def refuse(_handle, **_how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "_lock", refuse)
    with turns(tmp_path / "lock")[0] as first, turns(tmp_path / "lock")[0] as second:
        assert first == second == ""


def test_a_lock_is_released_and_taken_again(tmp_path):
    with FileLock(tmp_path / "lock") as first, FileLock(tmp_path / "lock") as second:
        assert first.take(0)
        assert not second.take(0.05)
    with FileLock(tmp_path / "lock") as third:
        assert third.take(0)
        third.write("a longer text")
        third.write("text")
        assert third.text() == "text"


# Imports once and forks: fifty interpreters would take too long to start.
KILLED = """
import json, os, random, signal, sys, time
from pathlib import Path
from clgemm.tuning.store.store import Store

folder = Path(sys.argv[1])
store = Store(folder, "0123", {"name": "A device"})
chance = random.Random(11)

def trial(number):
    return {"config": {"family": "f", "params": {"number": number}}, "status": "ok", "detail": "",
            "seconds": {}, "side": 0}

def entry(*numbers):
    return {"shapes": {}, "variants": [], "trials": [trial(number) for number in numbers]}

assert store.write("gemm.d", entry(*range(500)))

def tune(turn, tell):
    "As the tuner does it: in turn, with a note of each candidate, all of it stored."
    with store.turn("s", 5.0, lambda seconds: None) as refusal:
        assert not refusal, refusal
        known = store.interrupted()
        for number in range(20):
            candidate = {"family": "f", "params": {"turn": turn, "number": number}}
            assert candidate not in known
            store.begin(candidate)
            time.sleep(0.001)
            store.end(candidate)
            name = f"gemm.{turn}-{number}"
            assert store.write(name, entry(*range(number + 1)))
            tell(name)

def read(path):
    return json.loads(path.read_text())

written = []
for turn in range(40):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            tune(turn, lambda name: os.write(writer, f"{name:>12}".encode()))
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(writer)
    told = [os.read(reader, 12) for _ in range(chance.randrange(5))]  # so far at least
    time.sleep(chance.uniform(0, 0.004))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    with os.fdopen(reader) as rest:
        written += b" ".join(told).decode().split() + rest.read().split()
    entries = read(store.path)["entries"]
    numbers = [x["config"]["params"]["number"] for x in entries["gemm.d"]["trials"]]
    assert numbers == list(range(500))
    assert set(written) <= set(entries), "an entry was lost"
    assert store.read().why == ""
    if store.state_path.exists():
        read(store.state_path)
assert written and store.interrupted()
tune(40, written.append)
assert set(written) <= set(store.read().entries)
assert len(store.interrupted()) <= 40
assert not list(folder.glob("*.alive")), "locks of the killed are cleared away"
print(len(written), len(store.interrupted()), len(list(folder.glob("*.aside"))))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_killed_at_any_moment_nothing_is_lost(tmp_path):
    run = run_python(KILLED, tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    written, interrupted, aside = map(int, run.stdout.split())
    assert written > 60, "the last run alone writes twenty"
    assert interrupted > 0
    assert aside == 0
