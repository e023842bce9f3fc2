"""The file of tuned parameters: kept whole, merged, and never the reason why a call fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from helpers import PATIENCE, heard, quiet, run_python

import clgemm
from clgemm.kernels import source
from clgemm.kernels.costs import Costs
from clgemm.runtime import private_files
from clgemm.tuning.store import entries, files, locks
from clgemm.tuning.store import store as stores
from clgemm.tuning.store.store import Store

IDENTITY = {"platform": "A platform", "name": "A device", "compute_units": 4}
VARIANT = {"family": "f", "params": {"MR": 8}, "rates": {}, "seconds": {"square": 0.5}}
ENTRY = {"shapes": {"square": [9, 9, 9, 1, 0, 0]}, "variants": [VARIANT], "trials": []}
OTHER = {"family": "g", "params": {"NR": 4}}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Each test hears its own warnings."""
    monkeypatch.setattr(stores, "_warned", set())


def make(folder, fingerprint="0123", identity=IDENTITY):
    return Store(folder, fingerprint, identity)


def stamped(entry):
    """Give an entry as it is stored: it names what it was found with."""
    known = {"tuned": "", "search_seconds": 0, "clgemm": clgemm.__version__}
    return known | {"sources": {"f": source.family_hash("f")}} | entry


STORED = stamped(ENTRY)


def trial(number, family="f"):
    """Give a trial as a search stores it."""
    return {
        "config": {"family": family, "params": {"MR": number}}, "status": "ok", "detail": "",
        "seconds": {}, "side": 0, "spread": {}, "clock": "",
    }  # fmt: skip


def test_what_is_written_is_read(tmp_path):
    assert quiet(make(tmp_path).read) == ({}, {}, "", {})
    assert make(tmp_path).write("gemm.s", ENTRY) is True
    found = make(tmp_path).read()
    assert found.entries == {"gemm.s": STORED}
    assert (found.why, found.bad) == ("", {})


def test_the_folder_is_made(tmp_path):
    folder = tmp_path / "not" / "yet" / "there"
    assert make(folder).write("gemm.s", ENTRY)
    assert make(folder).read().entries == {"gemm.s": STORED}


def test_precisions_are_merged_and_replaced(tmp_path):
    other = ENTRY | {"trials": [trial(1, "f")]}
    make(tmp_path).write("gemm.s", ENTRY)
    make(tmp_path).write("gemm.d", ENTRY)
    make(tmp_path).write("gemm.s", other)
    assert make(tmp_path).read().entries == {"gemm.s": stamped(other), "gemm.d": STORED}


def test_devices_have_files_of_their_own(tmp_path):
    make(tmp_path, "aaaa").write("gemm.s", ENTRY)
    assert make(tmp_path, "bbbb").read().entries == {}
    assert make(tmp_path, "aaaa").path != make(tmp_path, "bbbb").path


def test_the_file_names_its_device_in_clear(tmp_path):
    store = make(tmp_path)
    store.write("gemm.s", ENTRY)
    assert store.path.name == "0123.v4.json"
    data = json.loads(store.path.read_text())
    assert data == {
        "schema": 4, "identity": IDENTITY, "architecture": {}, "entries": {"gemm.s": STORED},
    }  # fmt: skip
    Store(tmp_path, "4567", IDENTITY, {"kind": "cpu"}).write("gemm.s", ENTRY)
    data = json.loads((tmp_path / "4567.v4.json").read_text())
    assert data["architecture"] == {"kind": "cpu"}


def aside(store):
    return store.path.with_name(f"{store.path.name}.aside")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"identity": IDENTITY | {"compute_units": 8}}, "device or driver changed"),
        ({"schema": files.SCHEMA + 1}, "schema changed"),
        ({"entries": [ENTRY]}, "schema changed"),
    ],
)
def test_a_foreign_file_is_not_used(changed, why, tmp_path):
    store = make(tmp_path)
    store.write("gemm.s", ENTRY)
    store.path.write_text(json.dumps(json.loads(store.path.read_text()) | changed))
    assert quiet(store.read).entries == {}
    assert store.read().why == why
    before = store.path.read_bytes()
    assert store.write("gemm.d", ENTRY)
    assert store.read().entries == {"gemm.d": STORED}, "what was foreign is not carried on"
    assert aside(store).read_bytes() == before, "but kept: a newer clgemm may want it"


def test_entries_that_others_found_are_kept_as_they_are(tmp_path):
    store, before = make(tmp_path), ENTRY | {"sources": {"f": "before"}, "clgemm": "0.0"}
    store.write("gemm.s", before)
    store.write("gemm.d", ENTRY)
    kept = make(tmp_path).read().entries
    assert kept == {"gemm.s": stamped(before), "gemm.d": STORED}
    assert entries.why_outdated(kept["gemm.s"]) == "the sources of f changed"
    assert entries.why_outdated(kept["gemm.d"]) == ""


def test_each_family_is_outdated_by_its_own_sources(tmp_path, monkeypatch):
    store, other = make(tmp_path), VARIANT | {"family": "g"}
    both = {"variants": [VARIANT, other], "trials": [trial(1), trial(2, "g"), trial(3, "h")]}
    store.write("gemm.s", ENTRY | both)
    store.write("gemm.d", ENTRY | {"trials": [trial(4, "g")]})
    found = store.read().entries["gemm.s"]
    assert set(found["sources"]) == {"f", "g", "h"}
    assert entries.current_trials(found) == both["trials"]
    monkeypatch.setattr(source, "family_hash", lambda name: "new" if name == "g" else real(name))
    assert entries.why_outdated(found) == "the sources of g changed"
    assert entries.current_trials(found) == [trial(1), trial(3, "h")]
    found = store.read().entries["gemm.d"]
    assert entries.why_outdated(found) == "", "a loser's sources do not count"
    assert entries.current_trials(found) == []


real = source.family_hash


@pytest.mark.parametrize(
    "spoil",
    [
        None,
        [ENTRY],
        ENTRY | {"variants": 3},
        ENTRY | {"variants": [VARIANT] * 1000},
        ENTRY | {"variants": [VARIANT | {"rates": dict.fromkeys(Costs._fields, 1e308)}]},
        ENTRY | {"variants": [VARIANT | {"rates": dict.fromkeys(Costs._fields, -1.0)}]},
        ENTRY | {"variants": [VARIANT | {"rates": {"launches": 1.0}}]},
        ENTRY | {"variants": [VARIANT | {"seconds": {"square": float("inf")}}]},
        ENTRY | {"variants": [VARIANT | {"seconds": {"square": float("nan")}}]},
        ENTRY | {"variants": [VARIANT | {"seconds": {"square": 1e-320}}]},
        ENTRY | {"variants": [VARIANT | {"params": {"MR": 10**400}}]},
        ENTRY | {"variants": [VARIANT | {"params": {"MR": 8.5}}]},
        ENTRY | {"variants": [VARIANT | {"family": "../f"}]},
        ENTRY | {"shapes": {"square": [9, 9, 0, 1, 0, 0]}},
        ENTRY | {"shapes": {"square": [9, 9, 1 << 40, 1, 0, 0]}},
        ENTRY | {"sources": {"f": []}},
        ENTRY | {"search_seconds": float("inf")},
    ],
    ids=range(17),
)
def test_an_entry_of_another_form_is_not_read(spoil, tmp_path):
    store = make(tmp_path)
    store.write("gemm.s", ENTRY)
    data = json.loads(store.path.read_text())
    data["entries"] |= {"gemm.d": spoil}
    store.path.write_text(json.dumps(data))
    found = quiet(store.read)
    assert found.entries == {"gemm.s": STORED}
    assert set(found.bad) == {"gemm.d"}
    assert store.write("gemm.z", ENTRY)
    assert "gemm.d" not in store.path.read_text()


def deep(levels=900):
    """Give lists in lists that a parser reads, and much that is recursive does not."""
    data = []
    for _ in range(levels):
        data = [data]
    return data


def test_only_what_is_known_is_kept(tmp_path):
    store, odd = make(tmp_path), {"note": "mine", "deep": deep()}
    store.write("gemm.s", ENTRY | {"trials": [trial(1)]})
    text = store.path.read_text()
    data = json.loads(text)
    data |= odd
    data["identity"] |= {"deep": deep()}
    data["entries"]["gemm.s"] |= odd
    data["entries"]["gemm.s"]["trials"] += [deep(), trial(2) | odd, {}, trial(3) | {"status": 3}]
    data["entries"]["gemm.s"]["variants"][0] |= odd
    data["entries"]["x" * 900 + ".s"] = ENTRY
    (tmp_path / "0123.v4.json").write_text("".join(json.JSONEncoder().iterencode(data)))
    assert quiet(lambda: store.write("gemm.d", ENTRY))
    kept = store.read().entries
    assert kept.pop("gemm.d") == STORED
    assert kept == {"gemm.s": stamped(ENTRY | {"trials": [trial(1), trial(2)]})}
    assert "note" not in store.path.read_text()
    assert "deep" not in store.path.read_text()


@pytest.mark.parametrize("text", ["[1, 2]", '"text"', "null", "17"])
def test_json_that_is_no_object_is_not_used(text, tmp_path):
    store = make(tmp_path)
    store.path.write_text(text)
    assert heard(store.read)
    assert store.read().entries == {}
    assert store.read().why.startswith("damaged")


GARBAGE = {
    "empty": b"", "torn": b"{", "bytes": b"\xff\xfe\x00garbage", "open": b"[" * 200_000,
    "deep": b"[" * 2000 + b"]" * 2000,
}  # fmt: skip


@pytest.fixture(params=GARBAGE.values(), ids=GARBAGE)
def garbage(request):
    return request.param


def test_garbage_is_said_once_set_aside_by_a_write_and_replaced(garbage, tmp_path):
    store, neighbour = make(tmp_path), make(tmp_path, "4567")
    neighbour.write("gemm.s", ENTRY)
    store.path.write_bytes(garbage)
    (message,) = heard(lambda: [store.read(), make(tmp_path).read()])
    assert str(store.path) in message
    assert "damaged" in message
    assert store.read().entries == {}
    assert store.path.read_bytes() == garbage
    assert quiet(lambda: store.write("gemm.s", ENTRY))
    assert aside(store).read_bytes() == garbage
    assert quiet(store.read).entries == {"gemm.s": STORED}
    assert quiet(store.read).why == ""
    assert neighbour.read().entries == {"gemm.s": STORED}


def test_garbage_that_nobody_read_is_set_aside_by_a_write(garbage, tmp_path):
    store = make(tmp_path)
    store.path.write_bytes(garbage)
    assert quiet(lambda: store.write("gemm.s", ENTRY))
    assert quiet(store.read).entries == {"gemm.s": STORED}
    assert aside(store).read_bytes() == garbage


def test_a_folder_in_the_file_s_place_is_said_once(tmp_path):
    """Neither readable nor writable: two faults, one warning."""
    store = make(tmp_path)
    store.path.mkdir()
    assert len(heard(lambda: [store.read(), store.write("gemm.s", ENTRY)])) == 1
    assert store.read().entries == {}
    assert store.write("gemm.s", ENTRY) is False


def test_an_unwritable_folder_is_said_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = make(tmp_path / "file" / "folder")
    assert quiet(store.read).entries == {}
    assert quiet(lambda: store.begin(OTHER)) is None
    assert quiet(store.interrupted) == []
    assert quiet(lambda: store.end(OTHER)) is None
    (message,) = heard(lambda: [store.write(f"gemm.{code}", ENTRY) for code in "sd"])
    assert "CLGEMM_CACHE_DIR" in message
    assert store.write("gemm.s", ENTRY) is False
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    store = make(tmp_path)
    store.write("gemm.s", ENTRY)
    before = store.path.read_bytes()

    def full_disk(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "replace", full_disk)
    (message,) = heard(lambda: store.write("gemm.d", ENTRY))
    assert "No space left" in message
    assert store.write("gemm.d", ENTRY) is False
    assert store.path.read_bytes() == before
    assert list(tmp_path.glob("*.tmp")) == []


def test_threads_that_write_at_once_lose_nothing_and_tear_nothing(tmp_path, monkeypatch):
    """If all of them get the lock: who waits too long goes on without it, as on a slow disk."""
    monkeypatch.setattr(stores, "LOCK_SECONDS", PATIENCE)
    store, codes, torn, done = make(tmp_path), "sdcz", [], threading.Event()
    store.write("gemm.x", ENTRY)

    def read():
        try:
            while not done.is_set():
                data = json.loads(store.path.read_text())
                assert data["entries"]["gemm.x"] == STORED
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            torn.append(error)

    def write(code):
        for i in range(25):
            trials = [trial(number) for number in range(i * 4)]
            make(tmp_path).write(f"gemm.{code}", ENTRY | {"trials": trials})

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(code,)) for code in codes]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert torn == []
    last = stamped(ENTRY | {"trials": [trial(number) for number in range(24 * 4)]})
    expected = {"gemm.x": STORED} | {f"gemm.{code}": last for code in codes}
    assert store.read().entries == expected
    assert list(tmp_path.glob("*.tmp")) == []


WRITER = """
import json, sys
from pathlib import Path
from clgemm.tuning.store.store import Store
folder, identity, code = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for i in range(40):
    entry = {"shapes": {}, "variants": [], "tuned": code}
    assert Store(folder, "0123", identity).write(f"gemm.{code}{i}", entry)
"""


@pytest.mark.process
def test_processes_that_write_at_once_lose_nothing(tmp_path):
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, json.dumps(IDENTITY), code])
        for code in "sd"
    ]
    assert [child.wait(PATIENCE) for child in children] == [0, 0]
    found = {name: entry["tuned"] for name, entry in make(tmp_path).read().entries.items()}
    assert found == {f"gemm.{code}{i}": code for code in "sd" for i in range(40)}


def test_what_killed_writers_left_is_removed_when_it_is_old(tmp_path):
    store = make(tmp_path)
    old, new, other = (tmp_path / f"{n}.tmp" for n in ("0123.v4.old", "0123.v4.new", "4567.v4.old"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        then = time.time() - 2 * private_files.LEFT_BEHIND_SECONDS
        os.utime(path, (then, then))
    store.write("gemm.s", ENTRY)
    assert not old.exists()
    assert new.exists(), "another process may be about to use it"
    assert other.exists(), "the other device's lock is not held"


def test_a_lock_that_is_held_delays_but_does_not_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.1)
    store = make(tmp_path)
    store.write("gemm.s", ENTRY)
    with locks.FileLock(tmp_path / "0123.lock") as lock:
        assert lock.take(0)
        assert quiet(lambda: store.write("gemm.d", ENTRY))
    assert set(store.read().entries) == {"gemm.s", "gemm.d"}


def test_an_ended_candidate_leaves_no_trace(tmp_path):
    store, candidate = make(tmp_path), {"family": "f", "params": {"MR": 8}}
    assert store.interrupted() == []
    store.begin(candidate)
    store.end(candidate)
    assert store.interrupted() == []
    assert trying(tmp_path) == []
    assert list(tmp_path.glob("*.alive")) == []


KILLED = """
import json, os, sys
from pathlib import Path
from clgemm.tuning.store.store import Store
store = Store(Path(sys.argv[1]), "0123", json.loads(sys.argv[2]))
store.begin(json.loads(sys.argv[3]))
os._exit(7)
"""


def killed_while_trying(folder, candidate):
    run = run_python(KILLED, folder, json.dumps(IDENTITY), json.dumps(candidate))
    assert run.returncode == 7, run.stderr


@pytest.mark.process
def test_candidates_that_killed_their_process_are_remembered(tmp_path, monkeypatch):
    first, second = ({"family": "f", "params": {"MR": mr}} for mr in (8, 16))
    killed_while_trying(tmp_path, first)
    assert make(tmp_path).interrupted() == [first]
    # Neither a later search nor a later crash makes the first one harmless.
    make(tmp_path).begin(second)
    make(tmp_path).end(second)
    assert make(tmp_path).interrupted() == [first]
    killed_while_trying(tmp_path, second)
    assert make(tmp_path).interrupted() == [first, second]
    assert make(tmp_path, "4567").interrupted() == [], "another device"
    monkeypatch.setattr(source, "family_hash", lambda _name: "new")
    assert make(tmp_path).interrupted() == [], "other kernels, other faults"


ALIVE = KILLED.replace("os._exit(7)", "print('begun', flush=True); input(); os._exit(7)")


@pytest.mark.process
def test_a_candidate_that_another_process_tries_is_not_interrupted(tmp_path):
    store, candidate = make(tmp_path), {"family": "f", "params": {}}
    other = subprocess.Popen(
        [sys.executable, "-c", ALIVE, tmp_path, json.dumps(IDENTITY), json.dumps(candidate)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with other:
        assert other.stdout.readline() == b"begun\n"
        noted = trying(tmp_path)
        assert store.interrupted() == []
        store.begin(candidate)
        assert store.interrupted() == [candidate], "this process' own, which it has left"
        store.end(candidate)
        assert trying(tmp_path) == noted, "the other's note is its own"
        other.communicate(b"\n")
    assert store.interrupted() == [candidate], "now it has ended without a word"
    store.begin(OTHER)
    store.end(OTHER)
    assert store.interrupted() == [candidate]
    assert list(tmp_path.glob("*.alive")) == [], "locks of the dead are cleared away"


def trying(folder):
    return json.loads((folder / "0123.state.v4.json").read_text())["trying"]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_tries_for_itself(tmp_path):
    store, parent, own = make(tmp_path), OTHER | {"family": "parent"}, OTHER | {"family": "child"}
    store.begin(parent)
    child = os.fork()
    if not child:
        store.begin(own)
        os._exit(0)
    os.waitpid(child, 0)
    assert [note["config"] for note in trying(tmp_path)] == [parent, own]
    assert store.interrupted() == [parent, own]
    store.end(parent)
    assert store.interrupted() == [own]
    store.forget_interrupted(own)
    assert store.interrupted() == []


@pytest.mark.parametrize("name", ["/../../x", "../x", 3, None])
def test_a_name_in_a_state_leads_nowhere_else(name, tmp_path):
    store, elsewhere = make(tmp_path / "cache"), tmp_path / "x.alive"
    store.begin(OTHER)
    elsewhere.touch()
    state = json.loads(store.state_path.read_text())
    state["trying"].append(state["trying"][0] | {"process": name})
    store.state_path.write_text(json.dumps(state))
    store.end(OTHER)
    assert elsewhere.exists()
    assert store.interrupted() == []


TIMES = {
    "stamp": "0123", "library": {"kernels": "K", "threads": 2}, "tries": 1,
    "host": [[8, 8, 8, 1, 0, 1, 1e-6]], "device": [[8, 8, 8, 1, 0, 1, 1e-5]],
}  # fmt: skip


def filled(store):
    """Give a state in which there is one of all."""
    store.begin(OTHER)
    note = stores.note_of(OTHER, entry="gemm.s")
    store.change_state(lambda s: s._replace(verified=[note], break_evens={"gemm.s": TIMES}))
    store.end(OTHER)
    return stores.State([note], [], {"gemm.s": TIMES})


def test_what_is_noted_is_found_again_and_other_sources_forget_it(tmp_path, monkeypatch):
    expected = filled(make(tmp_path))
    assert make(tmp_path).state() == expected
    monkeypatch.setattr(source, "family_hash", lambda _name: "new")
    assert make(tmp_path).state() == expected._replace(verified=[])


@pytest.mark.parametrize(
    "spoil",
    [
        {"host": [[8, 8, 8, 1, 0, 0, float("inf")]]},
        {"host": [[float("inf"), 8, 8, 1, 0, 0, 1.0]]},
        {"host": [[1 << 40, 8, 8, 1, 0, 0, 1.0]]},
        {"host": [[8, 8, 8, 1, 0, 0, -1.0]]},
        {"host": [[8, 8, 8, 1.0]]},
        {"host": [[8, 8, 8, 1, 0, 2, 1.0]]},
        {"host": []},
        {"device": deep()},
        {"tries": float("nan")},
        {"library": None},
        {"stamp": deep()},
    ],
    ids=range(11),
)
def test_break_evens_of_another_form_are_not_read(spoil, tmp_path):
    store = make(tmp_path)
    expected = filled(store)
    data = json.loads(store.state_path.read_text())
    data["break_evens"] |= {"gemm.s": TIMES | spoil, "gemm.d": TIMES, "deep": deep()}
    store.state_path.write_text("".join(json.JSONEncoder().iterencode(data)))
    assert quiet(store.state) == expected._replace(break_evens={"gemm.d": TIMES})
    store.begin(OTHER)
    store.end(OTHER)
    assert quiet(store.state) == expected._replace(break_evens={"gemm.d": TIMES})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 3}',
        '{"schema": 4, "trying": 3, "verified": {}, "break_evens": []}',
        '{"schema": 4, "trying": [1, {}, {"process": 3, "config": {}}, {"process": "a"}]}',
        "[" * 200_000,
    ],
)
def test_a_garbled_state_is_an_empty_one(text, tmp_path):
    store = make(tmp_path)
    store.state_path.write_text(text)
    assert quiet(store.interrupted) == []
    store.begin(OTHER)
    assert store.interrupted() == [OTHER]
    store.end(OTHER)
    assert store.interrupted() == []
