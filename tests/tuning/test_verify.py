"""Whether a configuration is found to be right where it is, and wrong where it is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import CPU, GPU

from clgemm.kernels import BY_NAME
from clgemm.problem import HERMITIAN, PRECISIONS, describe
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure import verify
from clgemm.tuning.outcome import Setup, Task
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup
from clgemm.tuning.workers import main

S = PRECISIONS["s"]
SETUP = Setup(0, "", "s")
HOPPER = replace(GPU, compute_units=132, compute_capability=(9, 0), fp64=True,
                 local_memory=48 << 10, max_work_group_size=1024)  # fmt: skip


@pytest.fixture
def default(device):
    return lookup.defaults(device.traits, S, "").configs[0]


@pytest.mark.parametrize("code", "sz")
def test_verifying_passes_what_is_right(device, code):
    precision = PRECISIONS[code]
    config = lookup.defaults(device.traits, precision, "").configs[0]
    assert verify.Verifier(device, precision).mismatch(config, finalist=False) is None
    assert verify.Verifier(device, precision).quick_mismatch(config) is None


@pytest.mark.parametrize("finalist", [False, True])
@pytest.mark.parametrize("code", "sz")
def test_all_kernels_that_verifying_takes_are_known_before(device, code, finalist, monkeypatch):
    """Workers build them side by side; what is forgotten is built when all others wait."""
    precision = PRECISIONS[code]
    config = lookup.defaults(device.traits, precision, "").configs[0]
    used, real = set(), verify.planned

    def planned(*arguments):
        found = real(*arguments)
        used.update(step.kernel for step in found[1].steps)
        return found

    verifier = verify.Verifier(device, precision)
    known = verifier.kernels(config, finalist=finalist)
    monkeypatch.setattr(verify, "planned", planned)
    assert verifier.mismatch(config, finalist=finalist) is None
    assert used == known


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("code", "sdcz")
def test_what_a_finalist_repeats_takes_no_kernel_of_its_own(code, width):
    """That one would take a search half a second, and where vectors are narrow it did."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    traits = replace(CPU, simd_bytes=width)
    config = family.default(traits, precision)

    def kernels(shapes):
        problems = [Shape(*x).problem(code) for x in shapes]
        steps = [s for p in problems for s in family.plan(traits, p, config).steps]
        return {step.kernel for step in steps}

    assert kernels([verify.OFTEN_SHAPE]) <= kernels(verify.SHAPES)


@pytest.mark.parametrize("code", "sz")
def test_what_a_call_waits_for_is_verified_by_its_own_kernels(device, code, monkeypatch):
    precision = PRECISIONS[code]
    config = lookup.defaults(device.traits, precision, "").configs[0]
    problem = Shape(200, 301, 700, 1, True, False).problem(code)
    if not BY_NAME[config.family].accepts(problem):
        problem = problem._replace(m=640, n=640)
    own = BY_NAME[config.family].plan(device.traits, problem.dense(), config).steps
    built, real = [], verify.planned

    def planned(*arguments):
        found = real(*arguments)
        built.extend((found[0], step.kernel) for step in found[1].steps)
        return found

    monkeypatch.setattr(verify, "planned", planned)
    assert verify.Verifier(device, precision).quick_mismatch(config, problem.dense()) is None
    assert {kernel for _, kernel in built} <= {step.kernel for step in own}
    assert {g.reads_c for g, _ in built} == {False, True}
    assert all(g.flops <= problem.flops for g, _ in built)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("s", Shape(4000, 4000, 3000).problem("s")),
        ("s", Shape(2049, 3001, 999, 1, True, True).problem("s")),
        ("d", Shape(2048, 1024, 2048).problem("d")),
        ("z", Shape(700, 300, 500).problem("z")._replace(trans_a=True, conj_a=True, lda=500)),
        ("c", Shape(640, 640, 900).problem("c")._replace(trans_b=True, conj_b=True, ldb=640,
                                                         triangle=HERMITIAN)),
    ],
)  # fmt: skip
def test_a_smaller_product_takes_no_other_kernels(code, problem):
    for family in lookup.competitors(HOPPER, PRECISIONS[code]):
        config = family.default(HOPPER, PRECISIONS[code])
        kernels = {step.kernel for step in family.plan(HOPPER, problem, config).steps}
        g = verify.alike(HOPPER, problem, config)
        assert g is not None
        assert {step.kernel for step in family.plan(HOPPER, g, config).steps} <= kernels
        assert g.flops <= problem.flops
        assert family.accepts(g)
        a, b = verify.operands_of(np.random.default_rng(1), PRECISIONS[code], g)
        c = np.zeros((g.n, g.m), a.data.dtype).T
        same = describe(a, b, c, reads_c=False, is_gram=g.triangle > 0)
        assert same.dense() == g


def ruin_one_element(c, _beta):
    c[-1, -1] += np.float32(0.01)


def ruin_with_nan(c, _beta):
    c[0, 0] = np.nan


def ruin_beyond_the_edge(c, _beta):
    c.base[-1] = 0  # C lies in columns that are three rows longer


def ruin_where_c_is_read(c, beta):
    if beta != 0:
        c[...] = 0


@pytest.mark.parametrize(
    "ruin", [ruin_one_element, ruin_with_nan, ruin_beyond_the_edge, ruin_where_c_is_read]
)
def test_verifying_finds_what_is_wrong(device, default, ruin, monkeypatch):
    real = verify.run_once

    def run_once(device, config, a, b, c, alpha=1.0, beta=0.0, **more):
        real(device, config, a, b, c, alpha, beta, **more)
        ruin(c, beta)

    monkeypatch.setattr(verify, "run_once", run_once)
    said = verify.Verifier(device, S).mismatch(default, finalist=False)
    assert ("wrote beyond C" if ruin is ruin_beyond_the_edge else "times the bound") in said
    assert "run 1 of" in said
    outcome = main.Tester(device, SETUP).test(Task.VERIFY, default, {}, 0.0)
    assert outcome.status == "wrong"
    assert outcome.seconds == {}


def test_verifying_poisons_scratch_and_c(device, default, monkeypatch):
    poisoned = []
    real = verify.run_once

    def run_once(device, config, a, b, c, alpha=1.0, beta=0.0, *, poison=False):
        poisoned.append((poison, beta == 0, bool(np.all(np.isnan(c)))))
        real(device, config, a, b, c, alpha, beta, poison=poison)

    monkeypatch.setattr(verify, "run_once", run_once)
    assert verify.Verifier(device, S).mismatch(default, finalist=False) is None
    assert len(poisoned) == len(verify.SHAPES) * 2 * verify.REPEATS
    assert set(poisoned) == {(True, True, True), (True, False, False)}


def test_verifying_compares_with_a_reference(device, default, monkeypatch):
    """If the reference were wrong, nothing could win."""

    def nonsense(a, b, _precision):
        return np.full((a.data.shape[0], b.data.shape[1]), 3.0)

    monkeypatch.setattr(verify, "reference", nonsense)
    assert verify.Verifier(device, S).mismatch(default, finalist=False) is not None


def test_a_launch_that_fails_is_an_outcome(device, default, monkeypatch):
    def fail(device, *_arguments, **_more):
        # No driver makes one of no bytes; some promise any number of them until they are used.
        cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 0)

    monkeypatch.setattr(verify, "run_once", fail)
    outcome = main.Tester(device, SETUP).test(Task.VERIFY, default, {}, 0.0)
    assert outcome.status == "run"
    assert "no memory" in outcome.detail
