"""The file of tuned parameters: kept whole, merged, and never the reason why a call fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from helpers import heard, quiet, run_python

import clgemm
from clgemm.runtime import private_files
from clgemm.tuning.store import locks
from clgemm.tuning.store import store as stores
from clgemm.tuning.store.store import Store

IDENTITY = {"platform": "A platform", "name": "A device", "compute_units": 4}
ENTRY = {"variants": [{"family": "f", "params": {"MR": 8}}], "trials": []}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Each test hears its own warnings."""
    monkeypatch.setattr(stores, "_warned", set())


def make(folder, fingerprint="0123", identity=IDENTITY, kernels="k1"):
    return Store(folder, fingerprint, identity, kernels)


def stamped(entry, kernels="k1"):
    """Give an entry as it is stored: it names what it was found with."""
    return {"clgemm": clgemm.__version__, "kernels": kernels} | entry


STORED = stamped(ENTRY)


def test_what_is_written_is_read(tmp_path):
    assert quiet(make(tmp_path).read) == {}
    assert quiet(make(tmp_path).why_unused) == ""
    assert make(tmp_path).write("s", ENTRY) is True
    assert make(tmp_path).read() == {"s": STORED}
    assert make(tmp_path).why_unused("s") == make(tmp_path).why_unused() == ""


def test_the_folder_is_made(tmp_path):
    folder = tmp_path / "not" / "yet" / "there"
    assert make(folder).write("s", ENTRY)
    assert make(folder).read() == {"s": STORED}


def test_precisions_are_merged_and_replaced(tmp_path):
    other = ENTRY | {"trials": [1]}
    make(tmp_path).write("s", ENTRY)
    make(tmp_path).write("d", ENTRY)
    make(tmp_path).write("s", other)
    assert make(tmp_path).read() == {"s": stamped(other), "d": STORED}


def test_devices_have_files_of_their_own(tmp_path):
    make(tmp_path, "aaaa").write("s", ENTRY)
    assert make(tmp_path, "bbbb").read() == {}
    assert make(tmp_path, "aaaa").path != make(tmp_path, "bbbb").path


def test_the_file_names_its_device_in_clear(tmp_path):
    store = make(tmp_path)
    store.write("s", ENTRY)
    data = json.loads(store.path.read_text())
    assert data["identity"] == IDENTITY
    assert data["precisions"] == {"s": STORED}
    assert data["schema"] == stores.SCHEMA
    assert data["architecture"] == {}
    Store(tmp_path, "4567", IDENTITY, "k1", {"kind": "cpu"}).write("s", ENTRY)
    data = json.loads((tmp_path / "4567.json").read_text())
    assert data["architecture"] == {"kind": "cpu"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"identity": IDENTITY | {"compute_units": 8}}, "device or driver changed"),
        ({"schema": stores.SCHEMA + 1}, "schema changed"),
        ({"precisions": [ENTRY]}, "no entries"),
    ],
)
def test_a_foreign_file_is_not_used(changed, why, tmp_path):
    store = make(tmp_path)
    store.write("s", ENTRY)
    store.path.write_text(json.dumps(json.loads(store.path.read_text()) | changed))
    assert quiet(store.read) == {}
    assert store.why_unused() == why
    before = store.path.read_bytes()
    assert store.write("d", ENTRY)
    assert store.read() == {"d": STORED}, "what was foreign is not carried on"
    assert store._aside.read_bytes() == before, "but kept: a newer clgemm may want it"


def test_entries_of_another_kernel_source_are_kept_and_not_used(tmp_path):
    make(tmp_path, kernels="k0").write("s", ENTRY)
    make(tmp_path, kernels="k0").write("d", ENTRY)
    store = make(tmp_path)
    assert store.read() == {}
    assert store.why_unused("s") == "kernel source changed"
    assert store.why_unused("z") == ""
    assert store.outdated() == dict.fromkeys("sd", stamped(ENTRY, "k0"))
    store.write("s", ENTRY)
    assert store.read() == {"s": STORED}
    assert store.outdated() == {"d": stamped(ENTRY, "k0")}
    assert store.why_unused("s") == ""
    assert make(tmp_path, kernels="k0").read() == {"d": stamped(ENTRY, "k0")}


def test_an_entry_of_another_form_is_not_read(tmp_path):
    store = make(tmp_path)
    store.write("s", ENTRY)
    data = json.loads(store.path.read_text())
    data["precisions"] |= {"d": None, "c": [ENTRY]}
    store.path.write_text(json.dumps(data))
    assert store.read() == {"s": STORED}


@pytest.mark.parametrize("text", ["[1, 2]", '"text"', "null", "17"])
def test_json_that_is_no_object_is_not_used(text, tmp_path):
    store = make(tmp_path)
    store.path.write_text(text)
    assert quiet(store.read) == {}
    assert store.why_unused() == "not a file of clgemm"


@pytest.fixture(params=[b"", b"{", b"\xff\xfe\x00garbage", b"[" * 200_000],
                ids=["empty", "torn", "bytes", "deep"])  # fmt: skip
def garbage(request):
    return request.param


def test_garbage_is_said_once_set_aside_and_replaced(garbage, tmp_path):
    store, neighbour = make(tmp_path), make(tmp_path, "4567")
    neighbour.write("s", ENTRY)
    store.path.write_bytes(garbage)
    (message,) = heard(lambda: [store.read(), store.why_unused(), make(tmp_path).read()])
    assert str(store.path) in message
    assert store._aside.name in message
    assert store._aside.read_bytes() == garbage
    assert not store.path.exists()
    assert store.read() == {}
    assert store._aside.name in store.why_unused()
    assert quiet(lambda: store.write("s", ENTRY))
    assert quiet(store.read) == {"s": STORED}
    assert quiet(store.why_unused) == ""
    assert neighbour.read() == {"s": STORED}


def test_garbage_that_nobody_read_is_set_aside_by_a_write(garbage, tmp_path):
    store = make(tmp_path)
    store.path.write_bytes(garbage)
    assert quiet(lambda: store.write("s", ENTRY))
    assert quiet(store.read) == {"s": STORED}
    assert store._aside.read_bytes() == garbage


def test_what_replaced_a_damaged_file_meanwhile_is_not_set_aside(tmp_path, monkeypatch):
    store, real = make(tmp_path), stores.cached_contents
    store.path.write_bytes(b"{")

    def look_and_be_overtaken(path):
        found = real(path)
        if found.damaged:
            monkeypatch.setattr(stores, "cached_contents", real)
            make(tmp_path).write("s", ENTRY)
        return found

    monkeypatch.setattr(stores, "cached_contents", look_and_be_overtaken)
    assert heard(store.read)
    assert quiet(store.read) == {"s": STORED}


def test_a_folder_in_the_file_s_place_is_said_once(tmp_path):
    """Neither readable nor writable: two faults, one warning."""
    store = make(tmp_path)
    store.path.mkdir()
    assert len(heard(lambda: [store.read(), store.write("s", ENTRY)])) == 1
    assert store.read() == {}
    assert store.write("s", ENTRY) is False


def test_an_unwritable_folder_is_said_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    store = make(tmp_path / "file" / "folder")
    assert quiet(store.read) == {}
    assert quiet(lambda: store.begin({"family": "f"})) is None
    assert quiet(store.interrupted) == []
    assert quiet(lambda: store.end({"family": "f"})) is None
    (message,) = heard(lambda: [store.write(code, ENTRY) for code in "sd"])
    assert "CLGEMM_CACHE_DIR" in message
    assert store.write("s", ENTRY) is False
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    store = make(tmp_path)
    store.write("s", ENTRY)
    before = store.path.read_bytes()

    def full_disk(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "replace", full_disk)
    (message,) = heard(lambda: store.write("d", ENTRY))
    assert "No space left" in message
    assert store.write("d", ENTRY) is False
    assert store.path.read_bytes() == before
    assert list(tmp_path.glob("*.tmp")) == []


def test_threads_that_write_at_once_lose_nothing_and_tear_nothing(tmp_path):
    store, codes, torn, done = make(tmp_path), "sdcz", [], threading.Event()
    store.write("x", ENTRY)

    def read():
        try:
            while not done.is_set():
                data = json.loads(store.path.read_text())
                assert data["precisions"]["x"] == STORED
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            torn.append(error)

    def write(code):
        for i in range(25):
            make(tmp_path).write(code, ENTRY | {"trials": list(range(i * 40))})

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
    last = ENTRY | {"trials": list(range(24 * 40))}
    assert store.read() == {"x": STORED} | dict.fromkeys(codes, stamped(last))
    assert list(tmp_path.glob("*.tmp")) == []


WRITER = """
import json, sys
from pathlib import Path
from clgemm.tuning.store.store import Store
folder, identity, code = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for i in range(40):
    assert Store(folder, "0123", identity, "k1").write(f"{code}{i}", {"writer": code})
"""


@pytest.mark.process
def test_processes_that_write_at_once_lose_nothing(tmp_path):
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, json.dumps(IDENTITY), code])
        for code in "sd"
    ]
    assert [child.wait(60) for child in children] == [0, 0]
    entries = make(tmp_path).read()
    assert entries == {f"{code}{i}": stamped({"writer": code}) for code in "sd" for i in range(40)}


def test_what_killed_writers_left_is_removed_when_it_is_old(tmp_path):
    store = make(tmp_path)
    old, new, other = (tmp_path / f"{n}.tmp" for n in ("0123.old", "0123.new", "4567.old"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        then = time.time() - 2 * private_files.LEFT_BEHIND_SECONDS
        os.utime(path, (then, then))
    store.write("s", ENTRY)
    assert not old.exists()
    assert new.exists(), "another process may be about to use it"
    assert other.exists(), "the other device's lock is not held"


def test_a_lock_that_is_held_delays_but_does_not_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "LOCK_SECONDS", 0.1)
    store = make(tmp_path)
    store.write("s", ENTRY)
    with locks.FileLock(store._lock) as lock:
        assert lock.take(0)
        assert quiet(lambda: store.write("d", ENTRY))
    assert set(store.read()) == {"s", "d"}


def test_an_ended_candidate_leaves_no_trace(tmp_path):
    store, candidate = make(tmp_path), {"family": "f", "params": {"MR": 8}}
    assert store.interrupted() == []
    store.begin(candidate)
    store.end(candidate)
    assert store.interrupted() == []
    assert list(tmp_path.glob("*trying*")) == []


KILLED = """
import json, os, sys
from pathlib import Path
from clgemm.tuning.store.store import Store
store = Store(Path(sys.argv[1]), "0123", json.loads(sys.argv[2]), "k1")
store.begin(json.loads(sys.argv[3]))
os._exit(7)
"""


def killed_while_trying(folder, candidate):
    run = run_python(KILLED, folder, json.dumps(IDENTITY), json.dumps(candidate))
    assert run.returncode == 7, run.stderr


@pytest.mark.process
def test_candidates_that_killed_their_process_are_remembered(tmp_path):
    first, second = ({"family": "f", "params": {"MR": mr}} for mr in (8, 16))
    killed_while_trying(tmp_path, first)
    assert make(tmp_path).interrupted() == [first]
    # Neither a later search nor a later crash makes the first one harmless.
    make(tmp_path).begin(second)
    make(tmp_path).end(second)
    assert make(tmp_path).interrupted() == [first]
    killed_while_trying(tmp_path, second)
    assert make(tmp_path).interrupted() == [first, second]
    assert make(tmp_path, kernels="k2").interrupted() == [], "other kernels, other faults"
    assert make(tmp_path, "4567").interrupted() == [], "another device"


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
    store.begin({"family": "g"})
    store.end({"family": "g"})
    assert store.interrupted() == [candidate]
    assert list(tmp_path.glob("*.alive")) == [], "locks of the dead are cleared away"


def trying(folder):
    return json.loads((folder / "0123.trying.json").read_text())


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_tries_for_itself(tmp_path):
    store = make(tmp_path)
    store.begin({"family": "parent"})
    child = os.fork()
    if not child:
        store.begin({"family": "child"})
        os._exit(0)
    os.waitpid(child, 0)
    names = [note["candidate"]["family"] for note in trying(tmp_path)["running"]]
    assert names == ["parent", "child"]
    assert {c["family"] for c in store.interrupted()} == {"parent", "child"}
    store.end({"family": "parent"})
    assert store.interrupted() == [{"family": "child"}]


def test_a_name_in_a_journal_leads_nowhere_else(tmp_path):
    store, elsewhere = make(tmp_path / "cache"), tmp_path / "x.alive"
    store.begin({"family": "f"})
    elsewhere.touch()
    journal = json.loads((tmp_path / "cache" / "0123.trying.json").read_text())
    journal["running"].append({"life": "/../../x", "candidate": {}})
    (tmp_path / "cache" / "0123.trying.json").write_text(json.dumps(journal))
    store.end({"family": "f"})
    assert elsewhere.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"kernels": "k1"}',
        '{"kernels": "k1", "running": 3}',
        '{"kernels": "k1", "running": [1, {}, {"life": 3, "candidate": {}}, {"life": "a"}]}',
        "[" * 200_000,
    ],
)
def test_a_garbled_journal_is_an_empty_one(text, tmp_path):
    store = make(tmp_path)
    (tmp_path / "0123.trying.json").write_text(text)
    assert quiet(store.interrupted) == []
    store.begin({"family": "f"})
    assert store.interrupted() == [{"family": "f"}]
    store.end({"family": "f"})
    assert store.interrupted() == []
