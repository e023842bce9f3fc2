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
        row = suites.compare("a few", ["suite_of_a_few"], pool)
    assert (row["tests"], row["passed"]) == (6, 4)
    (found,) = row["differing"]
    assert found.endswith("test_that_differs[0]: passed without clgemm, failure under it")
    assert row["on device"] == (1 if device.traits.fp64 else 0)
    assert found in capsys.readouterr().out


def test_a_suite_may_run_module_by_module(device, tmp_path, monkeypatch):
    package = tmp_path / "suite_of_two"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "tests" / "__init__.py").touch()
    (package / "tests" / "test_few.py").write_text(SUITE)
    (package / "tests" / "test_one.py").write_text("def test_one():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CLGEMM_DEVICE", device.traits.platform)
    names = [f"suite_of_two.tests.{name}" for name in ("test_few", "test_one")]
    assert suites.files_of("suite_of_two") == names
    assert suites.files_of(names[1]) == names[1:]
    with ThreadPoolExecutor(2) as pool:
        row = suites.compare("two", ["suite_of_two"], pool, split=True)
    assert (row["tests"], row["passed"], len(row["differing"])) == (7, 5, 1)


def test_a_package_that_is_missing_is_named(capsys):
    assert suites.compare("nothing", ["no_such_package.tests"], None) is None
    assert "no_such_package is not installed" in capsys.readouterr().out


def test_a_suite_that_cannot_start_ends_the_command(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match="failed"):
        suites.run(["numpy.linalg"], under=False)
