"""A short run of the fuzzer: `python -m tests.fuzz` has longer ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg.blas

from clgemm.dispatch import engine, engines
from clgemm.host import blas as host_blas
from clgemm.problem import ELEMENTS
from clgemm.runtime import registry

from . import interposed_calls, running
from .command import main, replay
from .disturbing import run_in_threads

SEED = 20
CASES = {
    "gemm": 1100,
    "matmul": 1000,
    "arrays": 450,
    "other": 120,
    "integers": 1200,
    "interposed": 1200,
}


@pytest.fixture(autouse=True)
def _cases_say_where_they_run(monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE")


def told(findings, device, kind=None):
    """Tell of findings, and how to see each again."""
    name = device.traits.platform
    return "\n\n".join(f"{x.case}\n{x.reason}\n{replay(x, name, only=kind)}" for x in findings)


@pytest.mark.parametrize("kind", CASES)
def test_calls_do_what_scipy_s_and_numpy_s_do(device, kind):
    with registry.using(device), running.variant(0):
        cases = running.cases(SEED, iter(range(CASES[kind])), kind)
        found = [running.run(case, exact=running.is_exact(device)) for case in cases]
    assert len(found) == CASES[kind]
    differences = [x for x in found if x is not None]
    assert not differences, told(differences, device, kind)


def test_calls_of_several_threads_are_right_whatever_goes_on_beside_them(device):
    differences = []
    with registry.using(device), running.variant(0):
        cases = running.cases(SEED + 1, iter(range(300)))
        exact = running.is_exact(device)
        count = run_in_threads(cases, 3, exact=exact, heard=differences.append)
    assert count == 300
    assert not differences, told(differences, device)


def test_raw_calls_reach_the_device(device):
    if interposed_calls.why_not() is not None:
        pytest.skip(interposed_calls.why_not())
    with registry.using(device), running.variant(0):
        cases = list(running.cases(SEED, iter(range(300)), "interposed"))
        drawn = {(x.call.library, x.call.form, x.call.name) for x in cases}
        found = [x for x in (interposed_calls.function(*names) for names in drawn) if x]
        before = sum(map(interposed_calls.on_device, found))
        assert not [x for x in (running.run(case, exact=True) for case in cases) if x]
    assert len(found) > 20
    assert sum(map(interposed_calls.on_device, found)) - before > 60


@pytest.mark.parametrize("kind", ["gemm", "matmul", "arrays", "interposed"])
def test_a_wrong_result_is_a_finding(device, kind, monkeypatch):
    """One element is off by a little; the fuzzer tests nothing if that passes."""
    real, launch = engines.compute, engine.Engine.build

    def compute(call, by_host=None):
        hosted = real(call, by_host or host_blas.gemm)
        call.c[..., -1, -1] *= call.c.dtype.type(1 + 1e-3)
        return hosted

    def build(self, problem):
        """Leave a row as it was."""
        return launch(self, problem._replace(m=problem.m - (problem.m > 1)))

    if kind in {"arrays", "interposed"}:
        monkeypatch.setattr(engine.Engine, "build", build)
    else:
        monkeypatch.setattr(engines, "compute", compute)
    with registry.using(device), running.variant(0):
        cases = running.cases(SEED + 2, iter(range(60)), kind)
        found = [running.run(case, exact=True) for case in cases]
        engines.of(device).forget()
    assert sum(x is not None for x in found) > 10


def test_an_operand_that_changes_is_a_finding(device, monkeypatch):
    real = engines.compute

    def compute(call, by_host=None):
        hosted = real(call, by_host)
        call.a.flags.writeable and call.a.__setitem__(..., 0)
        return hosted

    monkeypatch.setattr(engines, "compute", compute)
    with registry.using(device), running.variant(0):
        cases = running.cases(SEED + 3, iter(range(60)), "gemm")
        found = [running.run(case, exact=True) for case in cases]
    assert any(x is not None and "changed" in x.reason for x in found)


def test_a_case_is_drawn_the_same_each_time():
    known = dict.fromkeys(ELEMENTS, (16, 48))
    for index in range(50):
        first, again = (running.draw(3, index, known) for _ in range(2))
        assert str(first) == str(again)
        assert str(first) != str(running.draw(4, index, known))


def test_the_command_line_runs_and_replays(device, capsys, monkeypatch):
    monkeypatch.setenv("CLGEMM_DEVICE", device.traits.platform)
    with registry.using(device):
        assert main(["--cases", "5", "--seed", "9", "--only", "gemm"]) == 0
        assert "5 cases of seed 9" in capsys.readouterr().out
        right = scipy.linalg.blas.dgemm
        for code in "sdcz":
            monkeypatch.setattr(scipy.linalg.blas, f"{code}gemm", lambda *_, **__: np.zeros(3))
        assert main(["--replay", "9:4", "--only", "gemm"]) == 1
        said = capsys.readouterr().out
    assert right is not scipy.linalg.blas.dgemm
    assert "python -m tests.fuzz --replay 9:4" in said
    assert "1 cases of seed 9: 1 differences" in said or "1 differences" in said
