"""The kernel of gpu_integer at the edges of every loop; Oclgrind can run these, too."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import GPU
from integers.test_integer_kernels import drawn

from clgemm.host import blas as host_blas
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import INTEGERS, Call, Gemm, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.tuning.tuner import Parameters

FAMILY = BY_NAME["gpu_integer"]
SMALL = Config.of(FAMILY.name, {"MC": 16, "NC": 16, "KC": 8, "MR": 4, "NR": 4})


def assert_exact(device, config, a, b, c, *, units=1):
    """Multiply on a device that is said to have so many compute units."""
    traits = replace(device.traits, compute_units=units)
    call = Call.of(1.0, a, b, 0.0, c)
    problem = describe(*call.operands, call.c, reads_c=False)
    if not device.traits.unified_memory:
        problem = problem.dense()
    plan = FAMILY.plan(traits, problem, config)
    places = [host_memory.place(device, x) for x in (call.a, call.b, call.c)]
    KernelRunner(device, problem, plan).execute((1.0, 0.0, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], call.c)
    np.testing.assert_array_equal(c, host_blas.matmul(a, b))
    return len(plan.steps)


@pytest.mark.parametrize("code", ["b1", "i1", "u2", "i4", "u8"])
@pytest.mark.parametrize("ops", ["NN", "NT", "TN", "TT"])
def test_edges_of_every_loop(device, code, ops, rng):
    precision = INTEGERS[code]
    for m, n, k in ((19, 17, 21), (32, 16, 16), (3, 15, 3)):
        a = drawn(rng, precision.dtype, *((k, m + 1) if ops[0] == "N" else (m, k + 1)))
        b = drawn(rng, precision.dtype, *((n, k + 1) if ops[1] == "N" else (k, n + 1)))
        a = a[:, :m].T if ops[0] == "N" else a[:, :k]
        b = b[:, :k].T if ops[1] == "N" else b[:, :n]
        memory = np.ones((n, m + 1), precision.dtype).T
        assert_exact(device, SMALL, a, b, memory[:m])
        assert np.all(memory[m:] == 1)


@pytest.mark.parametrize("code", ["b1", "i1", "i8"])
def test_few_macro_tiles_share_k(device, code, rng):
    precision = INTEGERS[code]
    a, b = drawn(rng, precision.dtype, 2, 5, 700), drawn(rng, precision.dtype, 2, 700, 7)
    c = np.ones((2, 7, 5), precision.dtype).swapaxes(1, 2)
    assert assert_exact(device, SMALL, a, b, c, units=16) == 2
    assert assert_exact(device, SMALL, a, b, c) == 1


@pytest.mark.slow
@pytest.mark.parametrize("code", ["b1", "i2", "u8"])
def test_every_tile_is_right(device, code, rng):
    precision = INTEGERS[code]
    configs = list(FAMILY.candidates(device.traits, precision))
    assert FAMILY.default(device.traits, precision) == configs[0]
    a, b = drawn(rng, precision.dtype, 131, 40), drawn(rng, precision.dtype, 40, 77)
    for config in configs[:4]:
        assert_exact(device, config, a, b, np.ones((131, 77), precision.dtype))


def test_a_device_that_can_do_little_has_a_tile(device):
    weak = replace(device.traits, max_work_group_size=1, local_memory=1 << 10)
    for precision in INTEGERS.values():
        config = FAMILY.default(weak, precision)
        assert not list(FAMILY.broken_rules(weak, precision, config))


@pytest.mark.parametrize("code", ["i4", "b1", "f2"])
def test_families_of_floats_claim_no_other_type(code):
    """Not of vectors nor of stacks, either."""
    parameters = Parameters(SimpleNamespace(traits=replace(GPU, compute_units=100)))
    for m, n, k, batch in ((1, 500, 600, 1), (500, 1, 600, 1), (700, 700, 1, 1), (8, 8, 8, 900)):
        problem = Gemm(code, m, n, k, batch, False, False, m, m * k, False, False, k, k * n, m,
                       m * n, reads_c=False)  # fmt: skip
        config = parameters.claimed(problem)
        assert (config and config.family) == (None if code == "f2" else FAMILY.name)
