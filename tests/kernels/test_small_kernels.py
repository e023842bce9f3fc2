"""Kernels on matrices so small that an interpreter with race and memory checks can run them.

These run on every device; under Oclgrind (see .ci/run) they also show races, accesses outside of
buffers and misuse of the API.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from affordable import skip_unsupported
from test_families import operand, value

from clgemm.kernels import FAMILIES
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS, Operand
from clgemm.tuning.measure.verify import run_once

# Smaller blocks than any device would choose, so that every loop and every edge is taken.
TINY = {
    "cpu_packed": {"KC": 8, "BLOCK_KB": 1},
    "cpu_integer": {"KC": 8, "BLOCK_KB": 1},
    "gpu_tiled": {"MC": 32, "NC": 32, "KC": 8, "MR": 4, "NR": 4},
}


def tiny(family, traits, precision):
    config = family.default(traits, precision)
    return Config.of(family.name, dict(config.params) | TINY.get(family.name, {}))


@pytest.mark.parametrize("ops", ["NN", "TC", "CT", "RN"])
@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_edges_of_every_loop(device, family, code, ops, rng):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = tiny(family, device.traits, precision)
    assert not list(family.broken_rules(device.traits, precision, config))
    m, n, k = 37, 35, 29  # three whole slices and a part: guarded and unguarded loads
    a, b = operand(rng, precision, m, k, ops[0], 1), operand(rng, precision, k, n, ops[1], 1)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        memory = np.full((n, m + 1), 0.5, precision.dtype).T
        c = memory[:m]
        want, size = reference.gemm(alpha, value(a), value(b), beta, c)
        run_once(device, config, a, b, c, alpha, beta)
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert np.all(memory[m:] == 0.5)


@pytest.mark.parametrize("code", "sz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_gram_product(device, family, code, rng):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = tiny(family, device.traits, precision)
    a = operand(rng, precision, 75, 13, "N", 1)  # squares of `mirror` on both sides of an edge
    b = Operand(a.data.T, conj=precision.is_complex)
    c = np.full((75, 75), 0.5, precision.dtype, order="F")
    want, size = reference.gemm(1.0, a.data, value(b), 0.0, c)
    run_once(device, config, a, b, c)
    reference.assert_within_bound(c, want, size, 13, precision.eps)
    np.testing.assert_array_equal(c, c.T.conj())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_stack(device, family, rng):
    precision = PRECISIONS["s"]
    skip_unsupported(device, family, precision)
    a = rng.uniform(-1, 1, (3, 5, 7)).astype(np.float32)
    b = rng.uniform(-1, 1, (3, 7, 4)).astype(np.float32)
    c = np.zeros((3, 4, 5), np.float32).swapaxes(1, 2)
    run_once(device, tiny(family, device.traits, precision), Operand(a), Operand(b), c)
    size = np.abs(a) @ np.abs(b)
    reference.assert_within_bound(c, reference.wide(a) @ reference.wide(b), size, 7, precision.eps)
