"""The command that compares test suites without clgemm and under it, with a small suite."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from helpers import PATIENCE
from interpose import suites

from clgemm.runtime import machine_code

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(machine_code.why_not() is not None, reason=str(machine_code.why_not())),
]

SUITE = """
import sys
import numpy as np
import pytest

def test_a_product():
    a = np.ones((20, 20))
    assert (a @ a == 20).all()

@pytest.mark.parametrize("number", range(3))
def test_that_differs(number):
    assert number or "clgemm" not in sys.modules

@pytest.mark.skip
def test_that_is_skipped():
    pass

@pytest.mark.xfail
def test_that_fails_as_expected():
    assert False
"""


def test_what_differs_is_named(device, tmp_path, monkeypatch, capsys):
    (tmp_path / "suite_of_a_few.py").write_text(SUITE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CLGEMM_DEVICE", device.traits.platform)
    with suites.Places(2) as places:
        row = suites.compare("a few", ["suite_of_a_few"], places, tmp_path)
    assert (row["tests"], row["passed"]) == (6, 4)
    (found,) = row["differing"]
    assert found.endswith("test_that_differs[0]: passed without clgemm, failure under it")
    assert row["on device"] == (1 if device.traits.fp64 else 0)
    assert found in capsys.readouterr().out
    log = (tmp_path / "a few under.txt").read_text()
    assert "test_that_differs[0] FAILED" in log
    assert "test_a_product PASSED" in (tmp_path / "a few without.txt").read_text()


def test_a_package_that_is_missing_is_named(capsys):
    assert suites.compare("nothing", ["no_such_package.tests"], None) is None
    assert "no_such_package is not installed" in capsys.readouterr().out


def test_a_suite_that_cannot_start_ends_the_command(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match="failed"):
        suites.run(["numpy.linalg"], under=False, cores=[0])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_runs_side_by_side_have_cores_of_their_own(monkeypatch, count):
    together, given = threading.Barrier(count, timeout=PATIENCE), []

    def run(*_, cores, **__):
        given.append(cores)
        together.wait()

    monkeypatch.setattr(suites, "run", run)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {8, 9, 10, 12})
    with suites.Places(count) as places:
        for future in [places.submit([], under=False, log=None) for _ in range(2 * count)]:
            future.result()
    first = [core for cores in given[:count] for core in cores]
    assert set(first) <= {8, 9, 10, 12}
    assert len(set(map(len, given))) == 1
    if count <= 4:
        assert sorted(first) == sorted(set(first)), "on two at once"
    assert sorted(given[:count]) == sorted(given[count:]), "later runs have the same"
