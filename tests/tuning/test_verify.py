"""Whether a configuration is found to be right where it is, and wrong where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from clgemm.problem import PRECISIONS
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure import verify
from clgemm.tuning.outcome import Setup, Task
from clgemm.tuning.store import lookup
from clgemm.tuning.workers import main

S = PRECISIONS["s"]
SETUP = Setup(0, "", "s")


@pytest.fixture
def default(device):
    return lookup.defaults(device.traits, S, "").configs[0]


@pytest.mark.parametrize("code", "sz")
def test_verifying_passes_what_is_right(device, code):
    precision = PRECISIONS[code]
    config = lookup.defaults(device.traits, precision, "").configs[0]
    assert verify.Verifier(device, precision).mismatch(config, finalist=False) is None
    assert verify.Verifier(device, precision).quick_mismatch(config) is None


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
        cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 2**62)

    monkeypatch.setattr(verify, "run_once", fail)
    outcome = main.Tester(device, SETUP).test(Task.VERIFY, default, {}, 0.0)
    assert outcome.status == "run"
    assert "no memory" in outcome.detail
