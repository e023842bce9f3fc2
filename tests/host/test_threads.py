"""CPU devices use as many cores as the user allows every BLAS of the process."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import run_python

import clgemm
from clgemm.dispatch import engines
from clgemm.host import openblas, threads
from clgemm.runtime import processor

CORES = processor.usable_cores()
BUSY = """
import os, sys, time
import numpy as np
import clgemm
from clgemm.host import threads
def busy():
    a = np.ones((800, 800), np.float32)
    for _ in range(3):
        assert (clgemm.matmul(a, a) == 800).all()
    time.sleep(0.2)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(20):
        clgemm.matmul(a, a)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)
"""


OWN_LIMIT = """
import threadpoolctl
clgemm.matmul(np.ones((200, 200)), np.ones((200, 200)))
keep = threadpoolctl.threadpool_limits({"libopencl": 1})
"""


@pytest.fixture
def fake(monkeypatch):
    """Give NumPy a library that says what a test wants."""

    def make(count, config=""):
        library = openblas.OpenBlas(None, "X", config, 1, lambda: count, None, ctypes.c_int(1))
        monkeypatch.setattr(openblas, "of_numpy", lambda: library)
        monkeypatch.setattr(processor, "usable_cores", lambda: 128)
        monkeypatch.setattr(threads, "_quota", lambda: sys.maxsize)

    return make


@pytest.mark.parametrize(
    ("count", "config", "want"),
    [(3, "", 3), (200, "", 128), (64, "OpenBLAS MAX_THREADS=64", 128), (63, "MAX_THREADS=64", 63)],
)
def test_numpys_own_limit_holds_unless_it_is_that_of_its_build(fake, count, config, want):
    fake(count, config)
    assert threads.limit() == want


def test_a_limit_of_our_own_holds(fake, monkeypatch):
    fake(8)
    monkeypatch.setattr(threads, "_own", sys.maxsize)
    threads.set_limit(2)
    assert threads.limit() == 2
    threads.set_limit(0)
    assert threads.limit() == 1, "one at least"


@pytest.mark.parametrize(
    ("text", "want"),
    [("150000 100000", 2), ("max 100000", sys.maxsize), ("100000 100000", 1), ("0 0", sys.maxsize)],
)
def test_a_quota_is_rounded_up(tmp_path, monkeypatch, text, want):
    file = tmp_path / "cpu.max"
    file.write_text(text + "\n")
    monkeypatch.setattr(threads, "QUOTAS", (str(file), ""))
    assert threads._quota.__wrapped__() == want


def test_a_quota_of_the_first_control_groups(tmp_path, monkeypatch):
    for name, text in (("quota", "250000\n"), ("period", "100000\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(threads, "QUOTAS", (str(tmp_path / "none"), str(tmp_path / "quota")))
    monkeypatch.setattr(threads, "PERIOD", str(tmp_path / "period"))
    assert threads._quota.__wrapped__() == 3
    monkeypatch.setattr(threads, "PERIOD", str(tmp_path / "none"))
    assert threads._quota.__wrapped__() == sys.maxsize


def test_variables_count_where_numpy_has_another_library(monkeypatch):
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert threads._of_environment.__wrapped__() == sys.maxsize
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # nested levels: not understood, so no limit
    assert threads._of_environment.__wrapped__() == sys.maxsize
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    assert threads._of_environment.__wrapped__() == 3


def test_decisions_are_made_for_a_number_of_units(device, monkeypatch):
    engine = engines.of(device)
    if device.traits.kind != "cpu":
        assert engine.units() == device.traits.compute_units
        return
    monkeypatch.setattr(threads, "limit", lambda: 1)
    assert engine.units() == 1
    monkeypatch.setattr(threads, "limit", lambda: 10**6)
    assert engine.units() == device.traits.compute_units


def test_scipys_library_follows_numpys_once_it_had_to(monkeypatch):
    used = []
    of_numpy = SimpleNamespace(threads=lambda: counts["numpy"])
    of_scipy = SimpleNamespace(threads=lambda: counts["scipy"], use_threads=used.append)
    counts = {"numpy": 4, "scipy": 4}
    monkeypatch.setattr(openblas, "_following", False)
    monkeypatch.setattr(openblas, "of_numpy", lambda: of_numpy)
    monkeypatch.setattr(openblas, "of_scipy", lambda: of_scipy)
    openblas.follow()
    assert not used, "nothing to follow"
    counts["numpy"] = 1
    openblas.follow()
    counts.update(numpy=4, scipy=1)
    openblas.follow()
    assert used == [1, 4]


@pytest.mark.process
@pytest.mark.skipif(CORES < 2, reason="one core: no second one that could be busy")
@pytest.mark.parametrize(
    ("setup", "variables"),
    [
        ("", {"OMP_NUM_THREADS": "1"}),
        ("", {"OPENBLAS_NUM_THREADS": "1"}),
        ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", {}),
        ("from threadpoolctl import threadpool_limits; keep = threadpool_limits(1)", {}),
        (OWN_LIMIT, {}),
    ],
    ids=["OMP", "OPENBLAS", "affinity", "limits", "limits of clgemm alone"],
)  # fmt: skip
def test_no_more_threads_are_busy_than_allowed(device, setup, variables):
    if device.traits.kind != "cpu":
        pytest.skip("a device with cores of its own")
    if "affinity" in setup and not hasattr(os, "sched_setaffinity"):
        pytest.skip("the system has no affinity of processes")
    if "threadpool" in setup:
        pytest.importorskip("threadpoolctl")
    # The least of some: a driver's thread looks for work for a moment after each launch, which is
    # up to 0.3 of a core in a row of products; two threads that compute are 1.9.
    share = "share = min(busy() for _ in range(4))"
    check = f"{share}\nassert threads.limit() == 1\nassert share < 1.5, share"
    program = f"{BUSY}\n{setup}\n{check}"
    run = run_python(
        program, CLGEMM_ROUTE="device", CLGEMM_TUNE="off",
        CLGEMM_DEVICE=device.traits.platform.split()[0], **variables,
    )  # fmt: skip
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.process
def test_threadpoolctl_shows_and_restores_the_limit(device):
    pytest.importorskip("threadpoolctl")
    if device.traits.kind != "cpu":
        pytest.skip("a device with cores of its own")
    program = """
import threadpoolctl
import numpy as np
import clgemm
from clgemm.host import threads
a = np.ones((200, 200))
before = threads.limit()
with threadpoolctl.threadpool_limits(1):  # before clgemm is known there
    clgemm.matmul(a, a)
    assert threads.limit() == 1
assert threads.limit() == before
mine = [x for x in threadpoolctl.threadpool_info() if x["internal_api"] == "clgemm"]
assert mine and all(x["num_threads"] == before and x["version"] for x in mine), mine
with threadpoolctl.threadpool_limits(1):
    assert threads.limit() == 1
assert threads.limit() == before
"""
    run = run_python(
        program, CLGEMM_ROUTE="device", CLGEMM_TUNE="off",
        CLGEMM_DEVICE=device.traits.platform.split()[0],
    )  # fmt: skip
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.usefixtures("device")
def test_results_under_a_limit_are_right(monkeypatch):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((70, 300)), rng.standard_normal((300, 90))
    monkeypatch.setattr(threads, "limit", lambda: 1)
    np.testing.assert_allclose(clgemm.matmul(a, b), a @ b, atol=300 * 2**-52 * 20)


def test_a_device_opened_with_one_core_of_several_is_left_alone(device):
    """It has one unit then; NumPy's threads of before keep their cores."""
    if device.traits.kind != "cpu" or not hasattr(os, "sched_setaffinity"):
        pytest.skip("a device without the host's cores, or a system without affinities")
    if len(os.sched_getaffinity(0)) == 1:
        pytest.skip("one core alone")
    program = """
import os
import numpy as np
a = np.ones((400, 401))
b = a @ a.T
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import clgemm
found = clgemm.explain(a, a.T)
assert (found.route, "one core" in found.why) == ("host", True), found
assert (clgemm.matmul(a, a.T) == b).all()
"""
    run = run_python(program, CLGEMM_ROUTE="auto")
    assert run.returncode == 0, run.stderr


def test_with_one_core_of_several_the_host_computes(device, monkeypatch):
    """A thread of the driver's beside the caller's, which waits for it, would be a second one."""
    if device.traits.kind != "cpu" or device.traits.compute_units == 1:
        pytest.skip("a device without several of the host's cores")
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    a = np.ones((400, 401))
    assert "one core" not in clgemm.explain(a, a.T).why
    monkeypatch.setattr(threads, "limit", lambda: 1)
    found = clgemm.explain(a, a.T)
    assert (found.route, "one core" in found.why) == ("host", True)
    np.testing.assert_array_equal(clgemm.matmul(a, a.T), a @ a.T)
