"""Gram products by every family: one triangle is computed, the other is its mirror image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import reference
from affordable import FAMILIES_AND_CODES, affordable
from helpers import CPU, GPU, pairwise, square

from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.family import Config
from clgemm.kernels.mirror import where_it_pays
from clgemm.problem import GENERAL, HERMITIAN, PRECISIONS, SYMMETRIC, Operand
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.tuning.measure.verify import planned, random_matrix, run_once

SIZES = (2, 7, 33, 64, 100, 257, 600)
DEPTHS = (1, 5, 64, 130, 400)
# A CPU takes long for kernels that are made for GPUs: these are more than one of their tiles too.
SMALLER_SIZES, SMALLER_DEPTHS = (2, 7, 33, 64, 150), (1, 5, 64, 130)
OPS = ("NT", "TN", "NC", "CN", "RC")  # R: conjugated, not transposed


def gram_operands(rng, precision, n, k, ops, gap=0):
    """Make op(A) of n x k and op(B), its transpose up to conjugation, in the same memory."""
    rows, columns = (n, k) if ops[0] in "NR" else (k, n)
    memory = np.full((columns, rows + gap), np.nan, precision.dtype).T
    memory[:rows] = random_matrix(rng, precision, rows, columns)
    x = memory[:rows]
    a, b = (Operand(x if op in "NR" else x.T, conj=op in "CR") for op in ops)
    return a, b


def value(operand):
    return operand.data.conj() if operand.conj else operand.data


def mirrored(c, ops, precision):
    is_hermitian = precision.is_complex and (ops[0] in "CR") != (ops[1] in "CR")
    return c.T.conj() if is_hermitian else c.T


def assert_mirrored(c, ops, precision):
    """Fail unless C is exactly its own mirror image; a Hermitian one has a real diagonal."""
    np.testing.assert_array_equal(c, mirrored(c, ops, precision))


def skip_without_gram(family, precision):
    if not family.accepts(square(256, precision.code)._replace(triangle=SYMMETRIC)):
        pytest.skip(f"{family.name} leaves Gram products to others")


def ops_of(precision):
    return OPS if precision.is_complex else OPS[:2]


@FAMILIES_AND_CODES
def test_one_triangle_is_right_and_the_other_its_mirror(device, family, code, rng):
    precision = PRECISIONS[code]
    skip_without_gram(family, precision)
    config = affordable(device, family, precision)
    emulated = device.traits.kind == "cpu" and family.name != "cpu_packed"
    sizes = (SMALLER_SIZES, SMALLER_DEPTHS) if emulated else (SIZES, DEPTHS)
    for n, k, ops, gap in pairwise(*sizes, ops_of(precision), (0, 1)):
        a, b = gram_operands(rng, precision, n, k, ops, gap)
        memory = np.full((n, n + 2), np.nan, precision.dtype).T
        c = memory[:n]
        want, size = reference.gemm(-1.25, value(a), value(b), 0.0, c)
        problem, plan = planned(device, config, a, b, c, -1.25, 0.0)
        is_hermitian = precision.is_complex and ops in {"NC", "CN"}
        assert problem.triangle == (HERMITIAN if is_hermitian else SYMMETRIC)
        assert plan
        run_once(device, config, a, b, c, -1.25, 0.0, poison=True)
        assert_mirrored(c, ops, precision)
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert np.all(np.isnan(memory[n:]))


TENSOR_CORES = [family for family in FAMILIES if family.name.startswith("nv_")]
LARGE = ((640, 700), (1025, 513), (2050, 256), (1300, 3000), (300, 5000))


def changed(family, config, **changes):
    """Change those parameters of a configuration that the family has."""
    params = dict(config.params)
    return Config.of(family.name, params | {x: y for x, y in changes.items() if x in params})


@pytest.mark.families("nv_dmma", "nv_split", "nv_mma")
@pytest.mark.parametrize("family", TENSOR_CORES, ids=lambda f: f.name)
@pytest.mark.parametrize("code", "sdcz")
def test_large_products_on_tensor_cores(device, family, code, rng):
    """With tiles for edges and without, whole and shared ones, packed operands, parts of K."""
    precision = PRECISIONS[code]
    if not family.supports(device.traits, precision):
        pytest.skip(f"{family.name} has no precision {code}")
    default = family.default(device.traits, precision)
    changes = ({}, {"PACK_A": 1, "PACK_B": 1, "FIT": 0}, {"MI": 1, "BY": 64, "GROUP": 4})
    for (n, k), ops, change in pairwise(LARGE, ops_of(precision), changes):
        config = changed(family, default, **change)
        a, b = gram_operands(rng, precision, n, k, ops)
        c = np.full((n, n), np.nan, precision.dtype, order="F")
        problem, _ = planned(device, config, a, b, c, 1.0, 0.0)
        if not family.accepts(problem):
            continue
        run_once(device, config, a, b, c, poison=True)
        assert_mirrored(c, ops, precision)
        some = [*range(0, n, n // 30), n - 1]
        want, size = reference.gemm(1.0, value(a)[some], value(b), 0.0, c)
        reference.assert_within_bound(c[some], want, size, k, precision.eps)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_stacks_of_gram_products(device, family, rng):
    precision = PRECISIONS["s"] if "float" in family.reals else PRECISIONS["d"]
    if not family.supports(device.traits, precision):
        precision = PRECISIONS["d"]
    skip_without_gram(family, precision)
    config = affordable(device, family, precision)
    x = rng.uniform(-1, 1, (5, 21, 137)).astype(precision.dtype)
    c = np.full((5, 137, 137), np.nan, precision.dtype).swapaxes(1, 2)
    run_once(device, config, Operand(x.swapaxes(1, 2)), Operand(x), c, poison=True)
    wide = reference.wide(x)
    want, size = wide.swapaxes(1, 2) @ wide, np.abs(wide).swapaxes(1, 2) @ np.abs(wide)
    np.testing.assert_array_equal(c, c.swapaxes(1, 2))
    reference.assert_within_bound(c, want, size, 21, precision.eps)


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_what_is_not_finite_goes_where_the_product_has_it(device, family, code, rng):
    precision = PRECISIONS[code]
    skip_without_gram(family, precision)
    config = affordable(device, family, precision)
    for ops in ("NT", "NC") if precision.is_complex else ("NT",):
        a, b = gram_operands(rng, precision, 150, 40, ops)
        a.data[3, 7], a.data[90, 11], a.data[91, 11] = np.nan, np.inf, -np.inf
        twin = Operand(b.data.copy(order="F"), b.conj)
        general, c = (np.zeros((150, 150), precision.dtype, order="F") for _ in "gc")
        run_once(device, config, a, twin, general)
        run_once(device, config, a, b, c)
        np.testing.assert_array_equal(np.isfinite(c), np.isfinite(general))
        np.testing.assert_array_equal(np.isnan(c.real), np.isnan(general.real))
        assert_mirrored(c[100:, 100:], ops, precision)


@pytest.mark.families("cpu_packed")
@pytest.mark.parametrize("units", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("code", "sdcz")
def test_workers_of_cpu_packed_share_a_triangle(device, code, units, rng):
    """As machines with more or fewer cores would cut it, along K as well."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    traits = replace(device.traits, compute_units=units)
    config = family.default(traits, precision)
    for n, k, ops in ((70, 4099, "NT"), (333, 50, "TN"), (150, 1000, "NT")):
        a, b = gram_operands(rng, precision, n, k, ops)
        c = np.full((n, n), np.nan, precision.dtype, order="F")
        want, size = reference.gemm(0.5, value(a), value(b), 0.0, c)
        problem, _ = planned(device, config, a, b, c, 0.5, 0.0)
        runner = KernelRunner(device, problem, family.plan(traits, problem, config))
        places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
        results = []
        for _ in range(3):
            c[...] = np.nan
            runner.execute((0.5, 0.0, *places, NO_OFFSETS), poisoned=True)
            host_memory.fetch(device, places[2], c)
            results.append(c.tobytes())
        assert_mirrored(c, ops, precision)
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert len(set(results)) == 1


@pytest.mark.families("gpu_tiled")
def test_parts_of_k_are_added_below_the_diagonal(device, rng):
    """As `gpu_tiled` splits k on a device with many compute units."""
    family, precision, (n, k) = BY_NAME["gpu_tiled"], PRECISIONS["s"], (70, 4099)
    traits = replace(device.traits, compute_units=64)
    a, b = gram_operands(rng, precision, n, k, "NT")
    c = np.full((n, n), np.nan, precision.dtype, order="F")
    want, size = reference.gemm(1.0, value(a), value(b), 0.0, c)
    config = affordable(device, family, precision)
    problem, _ = planned(device, config, a, b, c, 1.0, 0.0)
    plan = family.plan(traits, problem, config)
    assert [step.kernel.name for step in plan.steps] == ["gpu_tiled", "gpu_tile_sum", "mirror"]
    places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
    KernelRunner(device, problem, plan).execute((1.0, 0.0, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], c)
    assert_mirrored(c, "NT", precision)
    reference.assert_within_bound(c, want, size, k, precision.eps)


@pytest.mark.parametrize(
    ("n", "k", "code", "batch", "pays"),
    [(1024, 1024, "s", 1, False), (2048, 2048, "s", 1, True), (1024, 1024, "d", 1, False),
     (2048, 2048, "d", 1, True), (300, 20_000, "d", 1, True), (1024, 1024, "z", 1, True),
     (4096, 100, "d", 1, False), (512, 512, "d", 100, False), (2048, 2048, "d", 3, True)],
)  # fmt: skip
def test_a_gpu_computes_a_triangle_where_that_takes_less_time(n, k, code, batch, pays):
    gram = square(n, code)._replace(k=k, batch=batch, triangle=SYMMETRIC)
    assert where_it_pays(GPU, gram).triangle == (SYMMETRIC if pays else GENERAL)
    assert where_it_pays(CPU, gram) == gram


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_gram_product_is_predicted_to_take_about_half(family):
    traits = CPU if family.name == "cpu_packed" else GPU
    config = family.default(traits, PRECISIONS["d"])
    general = square(2048, "d")
    gram = family.costs(traits, general._replace(triangle=SYMMETRIC), config)
    whole = family.costs(traits, general, config)
    assert 0.5 <= gram.shared / whole.shared < 0.6
    assert 0.5 <= gram.busiest / whole.busiest < 0.6
