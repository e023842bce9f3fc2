"""Switching interposition on and off: which slots are written, and that they are restored."""

from __future__ import annotations

import ctypes
import json
import os
import threading

import numpy as np
import pytest
from clients import Client, loaded_lazily, needs_compiler
from helpers import needs_fork, run_python, wait_until

import clgemm
from clgemm.interpose import hook, slots, stub
from clgemm.runtime import registry

pytestmark = [needs_compiler, pytest.mark.usefixtures("restored")]

SWITCHES = int(os.environ.get("SWITCHES", "40"))
"""On and off; .ci/full has more."""


def rows(path):
    """Give the rows of a client by function."""
    return {row.entry: row for row in clgemm.usage().rows if row.module == str(path)}


def why(path):
    return {missed.why for missed in clgemm.usage().missed if missed.module == str(path)}


def multiply(client, n=20):
    a = np.arange(n * n, dtype=np.float32).reshape(n, n) % 5
    c = np.empty_like(a)
    client.gemm("cblas_sgemm", 1, a, a, 0, c, m=n, n=n, k=n, ld=(n, n, n))
    return np.array_equal(c, a @ a)


@pytest.mark.parametrize("way", ["lazy", "partial", "no_plt"])
def test_writable_slots_of_each_kind_are_interposed(paths, way):
    client = Client(paths[way])
    with clgemm.interposed(least=stub.NEVER):
        before = rows(paths[way])["cblas_sgemm"].calls
        assert len(rows(paths[way])) == 16
        assert why(paths[way]) == set()
        assert multiply(client)
        assert rows(paths[way])["cblas_sgemm"].calls == before + 1
    assert multiply(client)
    assert rows(paths[way])["cblas_sgemm"].calls == before + 1


@pytest.mark.parametrize("least", [1e6, "1000"])
def test_a_threshold_that_is_no_whole_number_changes_nothing(least):
    words = f"least is {least!r}: pass a whole number"
    with pytest.raises(TypeError, match=f"install: {words}"):
        clgemm.install(least=least)
    with pytest.raises(TypeError, match=f"interposed: {words}"), clgemm.interposed(least=least):
        pass
    assert not clgemm.usage().interposed


@pytest.mark.parametrize(
    ("way", "words"),
    [("now", "read-only"), ("keeps_lock", "never releases the interpreter's lock")],
)
def test_other_modules_are_left_alone_and_told(paths, way, words):
    client = Client(paths[way])
    with clgemm.interposed(least=0):
        assert rows(paths[way]) == {}
        assert any(words in sentence for sentence in why(paths[way]))
        assert multiply(client)


def test_a_slot_that_is_not_bound_yet_is_left_alone(paths):
    library = loaded_lazily(paths["unbound"])
    with clgemm.interposed(least=0):
        assert rows(paths["unbound"]) == {}
        assert any("first call" in sentence for sentence in why(paths["unbound"]))
    del library


def test_what_something_else_has_replaced_is_left_alone(client, paths):
    found, _ = slots.find([paths["partial"]])
    (slot,) = [s for s in found if s.entry.name == "dgemm_"]
    other = ctypes.CFUNCTYPE(None)(lambda: None)
    try:
        slot.set(stub.address_of(other))
        with clgemm.interposed(least=0):
            assert slot.get() == stub.address_of(other)
            assert why(paths["partial"])
        with clgemm.interposed(least=0):
            assert multiply(client)
            slot.set(stub.address_of(other))
        assert slot.get() == stub.address_of(other)
    finally:
        slot.set(slot.original)


def held():
    found, _ = slots.find()
    return {s.key: s.original for s in found}


def test_idle_threads_are_left_alone_where_compiled_code_may_call(restored):
    """Its own threads may be inside the library; NumPy's and f2py's functions only Python calls."""
    del restored
    found = {}
    with clgemm.interposed(least=stub.NEVER):
        for known in hook._hook.known.values():
            if known.callback is not None:
                name = known.slot.path.name.split(".")[0]
                found.setdefault(name, set()).add(known.callback._calls_alone)
                assert known.callback._mirrors == (name == "_multiarray_umath")
    expected = {"_multiarray_umath": True, "_fblas": True, "cython_blas": False}
    seen = {name: {alone} for name, alone in expected.items() if name in found}
    assert seen, "none of them calls a BLAS that can be interposed"
    assert {name: found[name] for name in seen} == seen


def test_every_slot_holds_what_it_held(client):
    before = held()
    assert len(before) >= 16 + 4  # the client's, and NumPy's
    with clgemm.interposed():
        assert not set(held()) & set(before), "a stub is no function of a library"
    assert held() == before
    clgemm.install()
    clgemm.uninstall()
    clgemm.uninstall()
    assert held() == before
    assert multiply(client)


def interrupt_at(write, monkeypatch):
    """Have Ctrl-C come as some slot is written, for the first time."""
    written, was = [], slots.Slot.set

    def heard(slot, pointer):
        written.append(slot)
        if len(written) == write:
            raise KeyboardInterrupt
        was(slot, pointer)

    monkeypatch.setattr(slots.Slot, "set", heard)


@pytest.mark.parametrize("write", [1, 7])
def test_a_switch_that_ctrl_c_has_ended_is_completed_by_the_next(client, monkeypatch, write):
    before = held()
    clgemm.install()
    interrupt_at(write, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        clgemm.uninstall()
    clgemm.uninstall()
    assert held() == before
    interrupt_at(write, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        clgemm.install()
    clgemm.install()
    assert not set(held()) & set(before)
    clgemm.uninstall()
    interrupt_at(write, monkeypatch)
    with pytest.raises(KeyboardInterrupt), clgemm.interposed():
        pass
    assert not clgemm.usage().interposed
    assert held() == before
    assert multiply(client)


def test_blocks_and_calls_nest_in_any_order():
    def state():
        return clgemm.usage().interposed

    first, second = clgemm.interposed(), clgemm.interposed()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert state()
    clgemm.install()
    second.__exit__(None, None, None)
    assert state()
    clgemm.install()
    with clgemm.interposed():
        clgemm.uninstall()
        assert state()
    assert not state()
    with pytest.raises(ZeroDivisionError), clgemm.interposed():
        raise ZeroDivisionError
    assert not state()


def test_on_and_off_beside_running_threads(client, device):
    stop, wrong, counts, before = threading.Event(), [], [0] * 3, held()
    a = np.arange(900, dtype=np.float64).reshape(30, 30) % 7
    want = a @ a
    code = "d" if device.traits.fp64 else "s"
    a = a.astype({"d": np.float64, "s": np.float32}[code])

    def work(number):
        while not stop.is_set():
            if not (np.array_equal(a @ a, want) and multiply(client, 12)):
                wrong.append(counts[number])
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    with registry.using(device):
        try:
            [t.start() for t in threads]
            for turn in range(SWITCHES):
                clgemm.install(least=1000)
                clgemm.uninstall()
                if turn % 10 == 0:
                    so_far = min(counts)
                    wait_until(lambda so_far=so_far: min(counts) > so_far or wrong)
        finally:
            stop.set()
            [t.join() for t in threads]
    assert not wrong
    assert held() == before


def test_nothing_grows_with_each_switch(client):
    del client
    clgemm.install()
    clgemm.uninstall()
    known = dict(hook._hook.known)
    cells = list(stub._free_cells)
    for _ in range(20):
        clgemm.install()
        clgemm.uninstall()
    assert hook._hook.known == known
    assert stub._free_cells == cells


@needs_fork
def test_a_forked_child_may_switch(client):
    with clgemm.interposed(least=stub.NEVER):
        child = os.fork()
        if child == 0:
            good = clgemm.usage().interposed and multiply(client)
            clgemm.install()
            clgemm.uninstall()
            os._exit(0 if good and multiply(client) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert clgemm.usage().interposed


LATER = """
import sys
import numpy as np
import clgemm
clgemm.install(least=10)
from importlib.machinery import ExtensionFileLoader
assert "scipy.linalg" not in sys.modules
import scipy.linalg.blas
rows = [row for row in clgemm.usage().rows if "_fblas" in row.module]
found = {row.entry for row in rows if not row.only_counted}
assert found and all("gemm" in x or "syrk" in x or "herk" in x for x in found), found
assert any("trsm" in row.entry for row in rows)
assert ExtensionFileLoader.create_module.__module__ == "clgemm.interpose.imports"
clgemm.uninstall()
assert ExtensionFileLoader.create_module.__module__ != "clgemm.interpose.imports"
"""


@pytest.mark.process
def test_modules_that_are_imported_later_are_interposed():
    run = run_python(LATER)
    assert run.returncode == 0, run.stderr


ELSEWHERE = """
import platform, sys, warnings
import numpy as np
platform.machine = lambda: "riscv64"
import clgemm
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    clgemm.install()
assert ["riscv64" in str(t.message) for t in told] == [True], told
with warnings.catch_warnings(record=True) as told, clgemm.interposed():
    pass
usage = clgemm.usage()
assert not usage.interposed and not usage.rows and "riscv64" in usage.why_not
assert "riscv64" in str(usage)
"""


@pytest.mark.process
def test_elsewhere_nothing_is_interposed_and_a_warning_says_so():
    run = run_python(ELSEWHERE)
    assert run.returncode == 0, run.stderr


@needs_fork
@pytest.mark.process
def test_a_forked_child_of_a_program_that_used_the_device_computes_on_the_host(device):
    program = """
import os
import numpy as np
import clgemm
a = np.ones((200, 200), np.float32)
clgemm.install(least=1000)
assert (a @ a == 200).all()
assert sum(row.device_calls for row in clgemm.usage().rows) == 1
child = os.fork()
assert (a @ a == 200).all()
if child == 0:
    assert sum(row.device_calls for row in clgemm.usage().rows) == 1
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert sum(row.device_calls for row in clgemm.usage().rows) == 2
"""
    run = run_python(program, CLGEMM_DEVICE=device.traits.platform)
    assert run.returncode == 0, run.stderr


@pytest.mark.process
def test_without_parameters_nothing_is_searched_for(device, tmp_path):
    program = """
import numpy as np
import clgemm
clgemm.install(least=1000)
a = np.ones((700, 700), np.float32)
assert (a @ a == 700).all()
usage = clgemm.usage()
assert "clgemm tune" in str(usage), usage
assert sum(row.device_calls for row in usage.rows) == 0
assert sum(row.host_calls for row in usage.rows) == 1
"""
    run = run_python(
        program, CLGEMM_DEVICE=device.traits.platform, CLGEMM_TUNE=None, CLGEMM_CACHE_DIR=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("clgemm tune") == 1


def test_usage_is_json(client, paths):
    with clgemm.interposed(least=stub.NEVER):
        multiply(client)
        data = json.loads(json.dumps(clgemm.usage().as_json()))
    (row,) = [
        r
        for r in data["rows"]
        if r["entry"] == "cblas_sgemm" and r["module"] == str(paths["partial"])
    ]
    assert row["calls"] >= 1
    assert data["interposed"] is True
