"""The command that compares test suites without clgemm and under it, with a small suite."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
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
    with ThreadPoolExecutor(2) as pool:
        row = suites.compare("a few", ["suite_of_a_few"], pool, tmp_path)
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
        suites.run(["numpy.linalg"], under=False)
