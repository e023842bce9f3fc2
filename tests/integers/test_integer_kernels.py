"""The kernels of cpu_integer at the edges of every loop; Oclgrind can run these, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgemm.host import blas as host_blas
from clgemm.kernels import BY_NAME
from clgemm.kernels.cpu_integer.family import lane_bytes
from clgemm.kernels.family import Config
from clgemm.problem import INTEGERS, Call, describe
from clgemm.runtime.kernel_runner import KernelRunner

FAMILY = BY_NAME["cpu_integer"]


def drawn(rng, dtype, *shape):
    if dtype.kind == "b":
        return rng.random(shape) < 0.1
    return rng.integers(0, 2**8, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def skip_unsupported(device):
    if not FAMILY.supports(device.traits, INTEGERS["i4"]):
        pytest.skip(f"cpu_integer does not support {device.traits.describe()}")


def assert_exact(device, traits, config, a, b, c):
    call = Call.of(1.0, a, b, 0.0, c)
    problem = describe(*call.operands, call.c, reads_c=False)
    KernelRunner(device, problem, FAMILY.plan(traits, problem, config)).run(call)
    np.testing.assert_array_equal(c, host_blas.matmul(a, b))


def tiny(traits, precision, **changes):
    """Make slices and blocks smaller than any device would choose, so that every edge is met."""
    return Config.of(
        FAMILY.name,
        dict(FAMILY.default(traits, precision).params) | {"KC": 8, "BLOCK_KB": 1} | changes,
    )


@pytest.mark.parametrize("code", ["b1", "u1", "i2", "u4", "i8"])
@pytest.mark.parametrize("ops", ["NN", "NT", "TN", "TT"])
def test_edges_of_every_loop(device, code, ops, rng):
    skip_unsupported(device)
    precision = INTEGERS[code]
    config = tiny(device.traits, precision)
    mr, nr = config["VW"] * config["MV"], config["NR"]
    for m, n, k in ((mr + 3, nr + 1, 21), (2 * mr, 2 * nr, 16), (config["VW"], nr - 1, 3)):
        a = drawn(rng, precision.dtype, *((k, m + 1) if ops[0] == "N" else (m, k + 1)))
        b = drawn(rng, precision.dtype, *((n, k + 1) if ops[1] == "N" else (k, n + 1)))
        a = a[:, :m].T if ops[0] == "N" else a[:, :k]
        b = b[:, :k].T if ops[1] == "N" else b[:, :n]
        memory = np.ones((n, m + 1), precision.dtype).T
        assert_exact(device, device.traits, config, a, b, memory[:m])
        assert np.all(memory[m:] == 1)


@pytest.mark.parametrize("code", ["b1", "i1", "i4"])
def test_a_stack(device, code, rng):
    skip_unsupported(device)
    precision = INTEGERS[code]
    a, b = (drawn(rng, precision.dtype, *shape) for shape in ((3, 5, 17), (3, 17, 4)))
    c = np.zeros((3, 5, 4), precision.dtype)
    assert_exact(device, device.traits, tiny(device.traits, precision), a, b, c)


@pytest.mark.parametrize("simd_bytes", [16, 32])
@pytest.mark.parametrize("code", ["b1", "i1", "u2", "i4", "u8"])
def test_narrow_vectors_are_right(device, code, simd_bytes, rng):
    """What an AVX2, SSE or NEON machine would run, forced here."""
    skip_unsupported(device)
    precision, narrow = INTEGERS[code], replace(device.traits, simd_bytes=simd_bytes)
    config = FAMILY.default(narrow, precision)
    assert config["VW"] * lane_bytes(precision) == simd_bytes
    assert not list(FAMILY.broken_rules(narrow, precision, config))
    a, b = drawn(rng, precision.dtype, 61, 401), drawn(rng, precision.dtype, 401, 53)
    assert_exact(device, narrow, config, a, b, np.zeros((61, 53), precision.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("code", ["b1", "i1", "i8"])
def test_every_configuration_is_right(device, code, rng):
    skip_unsupported(device)
    precision = INTEGERS[code]
    configs = list(FAMILY.candidates(device.traits, precision))
    assert FAMILY.default(device.traits, precision) in configs
    a, b = drawn(rng, precision.dtype, 150, 403), drawn(rng, precision.dtype, 403, 45)
    for config in {(c["MV"], c["NR"]): c for c in configs}.values():
        assert_exact(device, device.traits, config, a, b, np.zeros((150, 45), precision.dtype))


def test_tiles_keep_all_units_busy(device):
    traits = replace(device.traits, kind="cpu", compute_units=16, simd_bytes=64)
    for code, m, n, batch in (("i4", 1000, 1000, 1), ("u1", 4000, 100, 1), ("i8", 60, 60, 40)):
        a = np.empty((batch, m, 300), INTEGERS[code].dtype)
        c = np.empty((batch, n, m), a.dtype).swapaxes(1, 2)
        call = Call.of(1.0, a, np.empty((batch, 300, n), a.dtype), 0.0, c)
        problem = describe(*call.operands, call.c, reads_c=False)
        tiles = FAMILY.tiles(traits, problem, FAMILY.default(traits, INTEGERS[code]))
        assert tiles.tiles >= 14
        assert tiles.mt * tiles.nt * tiles.tiles <= 1.5 * m * n * batch + 16 * 64 * 12
