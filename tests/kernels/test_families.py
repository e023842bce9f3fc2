"""Every family on every device: odd sizes, all op, alpha and beta, poisoned memory, far offsets."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import reference
from affordable import (
    FAMILIES_AND_CODES,
    affordable,
    is_emulated,
    is_slow_to_build,
    skip_unsupported,
)
from helpers import CPU, pairwise

from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.family import SLOTS, Config
from clgemm.problem import PRECISIONS, SYMMETRIC, Gemm, Operand, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.runtime.scratch import COUNTERS
from clgemm.tuning.measure.verify import random_matrix, run_once

SHAPES = [
    (1, 1, 1),
    (2, 3, 1),
    (1, 131, 7),
    (127, 1, 64),
    (61, 53, 67),
    (33, 13, 401),
    (150, 97, 32),
]
FEWER = SHAPES[:1] + SHAPES[2:3] + SHAPES[4:]
"""Where each takes seconds to build."""
OPS = ("N", "T", "C", "R")  # R: conjugated, not transposed, as row-major C makes of C


def operand(rng, precision, rows, columns, op, gap):
    """Make op(X) of rows x columns that lies with `gap` elements of NaN between its columns."""
    tall, wide = (rows, columns) if op in "NR" else (columns, rows)
    memory = np.full((wide, tall + gap), np.nan, precision.dtype).T
    memory[:tall] = random_matrix(rng, precision, tall, wide)
    x = memory[:tall]
    return Operand(x if op in "NR" else x.T, conj=op in "CR" and precision.is_complex)


def value(operand):
    return operand.data.conj() if operand.conj else operand.data


def verify(device, config, precision, shape, ops, alpha, beta, rng, gap=None):
    """Run one gemm and compare; C's padding must stay as it was.

    Without a `gap` every leading dimension is odd, so that few kernel variants are built.
    """
    m, n, k = shape
    height_a, height_b = (m if ops[0] in "NR" else k), (k if ops[1] in "NR" else n)
    a = operand(rng, precision, m, k, ops[0], 1 + height_a % 2 if gap is None else gap)
    b = operand(rng, precision, k, n, ops[1], 1 + height_b % 2 if gap is None else gap)
    memory = np.full((n, m + 2), np.nan, precision.dtype).T
    c = memory[:m]
    if beta != 0:
        c[...] = random_matrix(rng, precision, m, n)
    want, size = reference.gemm(alpha, value(a), value(b), beta, c)
    run_once(device, config, a, b, c, alpha, beta, poison=True)
    reference.assert_within_bound(c, want, size, k, precision.eps)
    assert np.all(np.isnan(memory[m:]))


@FAMILIES_AND_CODES
def test_default_is_right_for_all_ops_and_scalars(device, family, code, rng):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = affordable(device, family, precision)
    scalars = [(1.0, 0.0), (1.0, 1.0), (-0.75, 0.5), (2.0, 0.0)]
    if precision.is_complex:
        scalars += [(1.5 - 0.5j, 0.25 + 1j), (1j, 0.0)]
    ops = OPS if precision.is_complex else "NT"
    # Scalars are arguments of a kernel; operations and sizes are what kernels are built for.
    for *op_ab, shape in pairwise(ops, ops, FEWER if is_emulated(device, family) else SHAPES):
        for alpha, beta in scalars:
            verify(device, config, precision, shape, op_ab, alpha, beta, rng)
    verify(device, config, precision, (128, 64, 96), "NN", 1.0, 0.5, rng, gap=0)
    verify(device, config, precision, (64, 128, 96), "TT", 1.0, 0.0, rng, gap=0)


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_sample_of_the_space_is_right(device, family, code, rng):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    configs = list(family.candidates(device.traits, precision))
    assert configs, "a family that supports a device has a configuration for it"
    if is_slow_to_build(device, family):
        configs = [config for config in configs if config["MR"] * config["NR"] <= 16]
    config = random.Random(code).choice(configs)
    depth = 103 if is_emulated(device, family) else 403
    verify(device, config, precision, (133, 70, depth), "NN", 1.0, 0.0, rng)
    verify(device, config, precision, (45, 131, 29), "NN", -0.5, 0.5, rng)


@pytest.mark.parametrize("simd_bytes", [16, 32])
@pytest.mark.parametrize("code", "sdcz")
def test_narrow_vectors_are_right(device, code, simd_bytes, rng):
    """What an AVX2, SSE or NEON machine would run, forced here."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    narrow = replace(device.traits, simd_bytes=simd_bytes)
    config = family.default(narrow, precision)
    assert config["VW"] * precision.real_bytes == simd_bytes
    assert not list(family.broken_rules(narrow, precision, config))
    ops = "NN" if (simd_bytes == 16) == (code in "sz") else "TT"
    verify(device, config, precision, (61, 53, 401), ops, 1.5, 0.5, rng)
    verify(device, config, precision, (61, 53, 67), ops, 1.0, 0.0, rng)


@pytest.mark.parametrize("code", "sdcz")
def test_every_height_of_a_micro_tile_is_right(device, code, rng):
    """Kernels of one to four vectors, whole ones and not, over few and many columns."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    vector = config["VW"] // precision.parts
    config = Config.of(family.name, dict(config.params) | {"MR": 4 * vector, "NR": 2})
    for vectors, beyond in itertools.product(range(5), (0, 1)):
        m = vectors * vector + beyond
        for n in (1, 5) if m else ():
            verify(device, config, precision, (m, n, 19), "NN", 1.0, 0.0, rng)
            verify(device, config, precision, (m, n, 19), "TC", -0.5, 0.5, rng)


@pytest.mark.parametrize("batch", [32, 67])
def test_a_worker_takes_several_small_matrices_at_once(device, batch, rng):
    family, precision = BY_NAME["cpu_packed"], PRECISIONS["s"]
    skip_unsupported(device, family, precision)
    two = replace(device.traits, compute_units=2)
    a, b = (rng.uniform(-1, 1, (batch, *shape)).astype(np.float32) for shape in ((7, 9), (9, 5)))
    c = rng.uniform(-1, 1, (batch, 5, 7)).astype(np.float32).swapaxes(1, 2)
    want = 0.5 * reference.wide(c) + reference.wide(a) @ reference.wide(b)
    size = 0.5 * np.abs(c) + np.abs(a) @ np.abs(b)
    problem = describe(Operand(a), Operand(b), c, reads_c=True)
    plan = family.plan(two, problem, family.default(two, precision))
    turn = plan.steps[0].args[-1]
    assert turn == {32: 2, 67: 4}[batch], "a worker has eight turns"
    runner = KernelRunner(device, problem, plan)
    places = [host_memory.place(device, x) for x in (a, b, c)]
    runner.execute((1.0, 0.5, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], c)
    reference.assert_within_bound(c, want, size, 9, precision.eps)


def test_large_matrices_of_a_stack_are_taken_one_by_one():
    family, two = BY_NAME["cpu_packed"], replace(CPU, compute_units=2)
    config = family.default(two, PRECISIONS["s"])
    for n, turn in ((16, 31), (32, 31), (64, 4), (102, 1), (300, 1)):
        g = Gemm("s", n, n, n, 500, False, False, n, n * n, False, False, n, n * n, n, n * n, False)
        assert family.plan(two, g, config).steps[0].args[-1] == turn, n


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_stacks_in_one_launch(device, family, rng):
    precision = PRECISIONS["s"]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    a = rng.uniform(-1, 1, (5, 37, 21)).astype(np.float32)
    b = np.broadcast_to(rng.uniform(-1, 1, (21, 18)).astype(np.float32), (5, 21, 18))
    c = np.full((5, 18, 37), np.nan, np.float32).swapaxes(1, 2)
    run_once(device, config, Operand(a), Operand(b), c, poison=True)
    reference.assert_within_bound(
        c, reference.wide(a) @ reference.wide(b), np.abs(a) @ np.abs(b), 21, precision.eps
    )


@pytest.mark.parametrize("far", ["a", "b", "c"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_elements_beyond_2_31(device, family, far, rng):
    """A leading dimension so large that the last column starts beyond 2^31 elements."""
    if device.traits.max_allocation < 2**34 and not device.traits.system_svm:
        pytest.skip(
            f"{device.traits.describe()} allocates {device.traits.max_allocation} bytes at most"
        )
    precision = PRECISIONS["s"]
    skip_unsupported(device, family, precision)
    m = n = k = 4
    ld = 2**30 // 4 * 3 + 5
    try:
        memory = np.empty((4, ld), np.float32)  # never touched outside the four columns
    except MemoryError:
        pytest.skip("this machine cannot reserve 13 GB of address space")
    parts = {x: random_matrix(rng, precision, 4, 4) for x in "abc"}
    memory.T[:4] = parts[far]
    parts[far] = memory.T[:4]
    want, size = reference.gemm(1.0, parts["a"], parts["b"], 0.5, parts["c"])
    config = family.default(device.traits, precision)
    run_once(device, config, Operand(parts["a"]), Operand(parts["b"]), parts["c"], 1.0, 0.5)
    assert describe(Operand(parts["a"]), Operand(parts["b"]), parts["c"], reads_c=True).m == m
    reference.assert_within_bound(parts["c"], want, size, n * k, precision.eps)


@pytest.mark.parametrize("code", "sc")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_results_repeat_bit_by_bit(device, family, code, rng):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    a, b = (operand(rng, precision, 97, 97, "N", 0) for _ in "ab")
    results = []
    for _ in range(10):
        c = np.full((97, 97), np.nan, precision.dtype, order="F")
        run_once(device, config, a, b, c, poison=True)
        results.append(c.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_plans_are_data(device, family, code):
    """Arguments fit the signature, and every name in them is one that execute knows."""
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    x = np.zeros((70, 70), precision.dtype, order="F")
    problem = describe(Operand(x), Operand(x), x, reads_c=False)
    plan = family.plan(device.traits, problem, config)
    assert plan == family.plan(device.traits, problem, config)
    assert hash(plan)
    for step in plan.steps:
        assert len(step.args) == len(step.kernel.signature)
        assert {x for x in step.args if isinstance(x, str)} <= set(SLOTS)
        assert all(
            g % local == 0 for g, local in zip(step.global_size, step.local_size, strict=True)
        )


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_defaults_break_no_rule(device, family, code):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    assert list(family.broken_rules(device.traits, precision, config)) == []
    assert family.is_valid(device.traits, precision, config)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_offsets_count_elements(device, family, rng):
    """Operands that start inside larger memory, as device arrays do."""
    precision = PRECISIONS["s"]
    skip_unsupported(device, family, precision)
    m, n, k = 37, 29, 23
    memory = {x: rng.uniform(-1, 1, 2000).astype(np.float32) for x in "abc"}
    offsets = {"a": 5, "b": 100, "c": 301}
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}

    def view(x):
        rows, columns = shapes[x]
        return memory[x][offsets[x] :][: rows * columns].reshape(columns, rows).T

    before = memory["c"].copy()
    want, size = reference.gemm(1.0, view("a"), view("b"), 0.0, view("c"))
    problem = describe(Operand(view("a")), Operand(view("b")), view("c"), reads_c=False)
    problem = problem._replace(**{f"offset_{x}": offset for x, offset in offsets.items()})
    plan = family.plan(device.traits, problem, family.default(device.traits, precision))
    flat = {x: memory[x].reshape(-1, 1) for x in "abc"}
    places = {x: host_memory.place(device, flat[x]) for x in "abc"}
    values = (1.0, 0.0, *places.values(), tuple(offsets.values()))
    KernelRunner(device, problem, plan).execute(values)
    host_memory.fetch(device, places["c"], flat["c"])
    reference.assert_within_bound(view("c"), want, size, k, precision.eps)
    outside = np.ones(2000, bool)
    outside[301 : 301 + m * n] = False
    np.testing.assert_array_equal(memory["c"][outside], before[outside])


def test_counters_come_round(device, rng):
    """More launches than there are counters: each must find its own at zero."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS["s"]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    a, b = (Operand(random_matrix(rng, precision, 40, 40)) for _ in "ab")
    c = np.full((40, 40), np.nan, np.float32, order="F")
    run_once(device, config, a, b, c)
    want = c.copy()
    problem = describe(a, b, c, reads_c=False)
    runner = KernelRunner(device, problem, family.plan(device.traits, problem, config))
    values = (1.0, 0.0, *(host_memory.place(device, x) for x in (a.data, b.data, c)), NO_OFFSETS)
    for _ in range(COUNTERS + 50):
        c[...] = np.nan
        runner.execute(values)
        np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("units", [1, 2, 4])
@pytest.mark.parametrize("shape", [(700, 1100, 40), (33, 2100, 50)])
def test_more_tiles_than_workers(device, shape, units, rng):
    """As a machine with few cores has it: each of its workers computes several tiles."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS["d"]
    skip_unsupported(device, family, precision)
    few, (m, n, k) = replace(device.traits, compute_units=units), shape
    config = family.default(few, precision)
    config = Config.of(family.name, dict(config.params) | {"TURNS": 2})
    a, b = random_matrix(rng, precision, m, k), random_matrix(rng, precision, k, n)
    c = random_matrix(rng, precision, m, n)
    want, size = reference.gemm(1.0, a, b, 0.5, c)
    problem = describe(Operand(a), Operand(b), c, reads_c=True)
    assert family.tiles(few, problem, config).tiles > units
    runner = KernelRunner(device, problem, family.plan(few, problem, config))
    places = [host_memory.place(device, x) for x in (a, b, c)]
    runner.execute((1.0, 0.5, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], c)
    reference.assert_within_bound(c, want, size, k, precision.eps)


CUT_ALONG_K = {
    "as it lies": [(3, 5, 5000, "NT"), (70, 33, 5000, "NT"), (64, 64, 4099, "NN")],
    "turned": [
        (3, 21, 5000, "NC"),
        (7, 150, 4099, "TT"),
        (45, 9, 5000, "TN"),
        (150, 26, 4099, "CT"),
    ],
}


@pytest.mark.parametrize("units", [2, 16, 64])
@pytest.mark.parametrize("stored", CUT_ALONG_K)
@pytest.mark.parametrize("code", "sdcz")
def test_parts_along_k_are_added(device, code, stored, units, rng):
    """Few tiles and a long K, as a machine with many cores would cut it."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    many = replace(device.traits, compute_units=units)
    config = family.default(many, precision)
    cut = 0
    for m, n, k, ops in CUT_ALONG_K[stored]:
        a, b = operand(rng, precision, m, k, ops[0], 1), operand(rng, precision, k, n, ops[1], 1)
        memory = np.full((n, m + 3), 0.5, precision.dtype).T
        c = random_matrix(rng, precision, m, n)
        want, size = reference.gemm(-0.5, value(a), value(b), 0.25, c)
        problem = describe(a, b, memory[:m], reads_c=True)
        cut += family.tiles(many, problem, config).parts > 1
        plan = family.plan(many, problem, config)
        assert dict(plan.steps[0].kernel.defines)["TURNED"] == (stored == "turned")
        runner = KernelRunner(device, problem, plan)
        results = []
        for _ in range(5):
            memory[:m] = c
            places = [host_memory.place(device, x) for x in (a.data, b.data, memory)]
            runner.execute((-0.5, 0.25, *places, NO_OFFSETS), poisoned=True)
            host_memory.fetch(device, places[2], memory)
            results.append(memory.copy("F"))
        reference.assert_within_bound(results[0][:m], want, size, k, precision.eps)
        assert len({x.tobytes() for x in results}) == 1
        assert np.all(memory[m:] == 0.5)
    assert cut, "no case was cut along K: the test tests nothing"


@pytest.mark.parametrize("kc", [256, 1024])
def test_a_long_k_is_shared_by_workers_however_deep_its_slices_are(kc):
    family, two = BY_NAME["cpu_packed"], replace(CPU, compute_units=2)
    config = family.default(two, PRECISIONS["s"])
    config = Config.of(family.name, dict(config.params) | {"KC": kc})
    g = Gemm("s", 16, 4, 1000, 1, False, False, 16, 0, False, False, 1000, 0, 16, 0, False)
    assert family.tiles(two, g, config).parts == 2
    assert family.tiles(two, g._replace(k=700), config).parts == 1


def test_a_panel_of_b_fits_the_first_cache():
    family, precision = BY_NAME["cpu_packed"], PRECISIONS["d"]
    shape = {"MR": 32, "NR": 6, "KC": 512}
    for change, fits in (({}, True), ({"KC": 768}, False), ({"KC": 1024, "NR": 4}, True)):
        config = Config.of(
            family.name, dict(family.default(CPU, precision).params) | shape | change
        )
        assert family.is_valid(CPU, precision, config) == fits, change


@pytest.mark.parametrize("units", [1, 2, 8, 64, 256])
def test_scratch_of_cpu_packed_is_bounded(units):
    """At most 8 MiB a compute unit, whatever the size, the transposes and the parameters."""
    family, traits = BY_NAME["cpu_packed"], replace(CPU, compute_units=units)
    shapes = [(n, n, n) for n in (1, 100, 1000, 5000, 40_000)]
    shapes += [(64, 64, 10**7), (10**6, 37, 500), (37, 10**6, 5000), (3000, 3000, 10**6)]
    checked = 0
    for code, precision in PRECISIONS.items():
        configs = list(family.candidates(traits, precision))
        for shape, trans_b in itertools.product(shapes, (False, True)):
            m, n, k = shape
            problem = Gemm(
                code, m, n, k, 1, False, False, m, 0, trans_b, False, max(n, k), 0, m, 0, False
            )
            for config in random.Random(units).sample(configs, 5):
                plan = family.plan(traits, problem, config)
                assert plan.scratch_bytes <= units * 8 << 20, (problem, config)
                checked += 1
    assert checked


@pytest.mark.parametrize("rest", ["a row", "a vector"])
@pytest.mark.parametrize("columns", [5, 400])
@pytest.mark.parametrize("op", "NT")
@pytest.mark.parametrize("code", "sdcz")
def test_a_is_read_where_it_lies_if_b_has_few_columns(device, code, op, columns, rest, rng):
    """Panels of whole vectors, between which NaN lies; a last one of a row is packed."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    vector = config["VW"] // precision.parts
    # So little depth that C is not turned.
    rows, depth = 3 * config["MR"] + (1 if rest == "a row" else vector), 60
    a, b = (operand(rng, precision, *size, op, 1) for size in ((rows, depth), (depth, columns)))
    c = np.empty((rows, columns), precision.dtype, "F")
    plan = family.plan(device.traits, describe(a, b, c, reads_c=False), config)
    lies = op == "N" and columns == 5
    assert dict(plan.steps[0].kernel.defines)["PACK_A"] == int(not lies)
    verify(device, config, precision, (rows, columns, depth), op * 2, -0.5, 0.0, rng)


@pytest.mark.parametrize(
    ("code", "simd_bytes", "most"),
    [("s", 64, 384), ("d", 64, 192), ("c", 64, 192), ("z", 64, 192),
     ("s", 32, 20), ("d", 32, 20), ("c", 32, 20), ("z", 32, 12), ("d", 16, 20)],
)  # fmt: skip
def test_how_few_columns_that_are_depends_on_vectors(code, simd_bytes, most):
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    config = family.default(replace(CPU, simd_bytes=simd_bytes), precision)
    g = Gemm(code, 256, 1, 900, 1, False, False, 1001, 0, False, False, 900, 0, 256, 0, False)
    alike = g._replace(lda=(1 << 16) // precision.itemsize)
    for n in range(1, 400):
        assert family.packs_a(g._replace(n=n), config) == (n > most), n
        assert family.packs_a(alike._replace(n=n), config) == (n > min(most, 2 * config["NR"])), n
    assert family.packs_a(g._replace(trans_a=True, lda=900), config)


@pytest.mark.parametrize("columns", [1, 3, 17, 40])
@pytest.mark.parametrize("code", "sdcz")
def test_each_panel_of_an_a_that_lies_in_place_meets_all_of_b(device, code, columns, rng):
    """Several slices and panels of A, the last one of a row, and one to several panels of B."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    shape = 5 * config["MR"] + 1, columns, 2 * config["KC"] + 5
    verify(device, config, precision, shape, "NN", -0.5, 1.0, rng)
    verify(device, config, precision, shape, "NT", 1.0, 0.0, rng)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 1.0), (1.5, 0.5)])
@pytest.mark.parametrize("ops", ["TN", "CT", "TC", "CN"])
@pytest.mark.parametrize("code", "sdcz")
def test_c_is_stored_row_by_row_if_rows_of_a_meet_few_columns(device, code, ops, alpha, beta, rng):
    """Whole micro-tiles and parts of some, in several slices of K, and a gap between columns."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    few = min(13, 2 * config["MR"])  # more would be read too often
    for m, n, k in ((8 * config["NR"] + 67, few, 401), (405, max(few, config["MR"] + 3), 259)):
        a, b = operand(rng, precision, m, k, ops[0], 1), operand(rng, precision, k, n, ops[1], 1)
        memory = np.full((n, m + 3), 0.5, precision.dtype).T
        c = memory[:m]
        want, size = reference.gemm(alpha, value(a), value(b), beta, c)
        if beta == 0:
            c[...] = np.nan
        plan = family.plan(device.traits, describe(a, b, c, reads_c=beta != 0), config)
        assert dict(plan.steps[0].kernel.defines)["TURNED"] == 1
        run_once(device, config, a, b, c, alpha, beta, poison=True)
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert np.all(memory[m:] == 0.5)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (-0.5, 1.0), (1.5, 0.5)])
@pytest.mark.parametrize("ops", ["NT", "TT", "CC", "NC"])
@pytest.mark.parametrize("code", "sdcz")
def test_c_is_stored_row_by_row_if_few_rows_of_a_meet_rows_of_b(
    device, code, ops, alpha, beta, rng
):
    """Whole micro-tiles and parts of some, in several slices of K."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    for shape in ((2, 45, 401), (config["NR"] + 3, 4 * config["MR"] + 7, 70)):
        m, n, k = shape
        a, b = operand(rng, precision, m, k, ops[0], 1), operand(rng, precision, k, n, ops[1], 1)
        c = np.empty((m, n), precision.dtype, "F")
        plan = family.plan(device.traits, describe(a, b, c, reads_c=beta != 0), config)
        assert dict(plan.steps[0].kernel.defines)["TURNED"] == 1
        verify(device, config, precision, shape, ops, alpha, beta, rng, gap=1)


@pytest.mark.parametrize("code", "sdcz")
def test_rows_of_a_micro_tile_that_no_squares_fill_are_stored(device, code, rng):
    """Rows are turned in squares of 4; the columns that are left, one by one."""
    family, precision = BY_NAME["cpu_packed"], PRECISIONS[code]
    skip_unsupported(device, family, precision)
    params = {**dict(family.default(device.traits, precision).params), "NR": 6 // precision.parts}
    config = Config.of("cpu_packed", params)
    verify(device, config, precision, (13, 4 * config["MR"] + 7, 70), "NT", 1.0, 0.0, rng, gap=1)


def test_stacks_are_stored_row_by_row_too(device, rng):
    family, precision = BY_NAME["cpu_packed"], PRECISIONS["d"]
    skip_unsupported(device, family, precision)
    config = family.default(device.traits, precision)
    a, b = rng.uniform(-1, 1, (5, 90, 300)), rng.uniform(-1, 1, (5, 300, 11))
    c = np.full((5, 11, 90), np.nan).swapaxes(1, 2)
    plan = family.plan(device.traits, describe(Operand(a), Operand(b), c, reads_c=False), config)
    assert dict(plan.steps[0].kernel.defines)["TURNED"] == 1
    run_once(device, config, Operand(a), Operand(b), c, poison=True)
    reference.assert_within_bound(
        c, reference.wide(a) @ reference.wide(b), np.abs(a) @ np.abs(b), 300, precision.eps
    )


def test_c_is_turned_only_where_a_transposed_b_becomes_an_a_that_lies():
    family = BY_NAME["cpu_packed"]
    for code, precision in PRECISIONS.items():
        config = family.default(CPU, precision)
        g = Gemm(code, 20, 3000, 1001, 1, False, False, 20, 0, True, False, 3000, 0, 20, 0, False)
        for change, turned in (
            ({}, True), ({"trans_a": True, "lda": 1001}, True), ({"m": 2}, True), ({"m": 1}, False),
            ({"trans_b": False, "ldb": 1001}, False), ({"m": 161 if code == "s" else 81}, False),
            ({"n": 79}, False), ({"k": 64}, True), ({"k": 63}, False),
            ({"ldb": 1 << 16}, False), ({"triangle": SYMMETRIC}, False),
        ):  # fmt: skip
            assert family.is_turned(g._replace(**change), config) == turned, (code, change)


@pytest.mark.parametrize("units", [2, 8, 64])
def test_k_is_cut_where_a_turned_c_has_too_few_panels(units):
    family, many = BY_NAME["cpu_packed"], replace(CPU, compute_units=units)
    for code, precision in PRECISIONS.items():
        config = family.default(CPU, precision)
        g = Gemm(code, 2, 8, 100_000, 1, False, False, 2, 0, True, False, 8, 0, 2, 0, False)
        older = Gemm(
            code, 40, 8, 100_000, 1, True, False, 100_000, 0, False, False, 100_000, 0, 40, 0, False
        )
        for problem in (g, older):
            assert family.is_turned(problem, config), code
            assert family.tiles(many, problem, config).parts > 1, code


def test_c_is_turned_only_where_that_saves_packing():
    family = BY_NAME["cpu_packed"]
    for code, precision in PRECISIONS.items():
        config = family.default(CPU, precision)
        g = Gemm(
            code, 3000, 20, 1001, 1, True, False, 1001, 0, False, False, 1001, 0, 3000, 0, False
        )
        for change, turned in (
            ({}, True), ({"trans_b": True, "ldb": 20}, True), ({"trans_a": False}, False),
            ({"n": 161 if code == "s" else 81}, False), ({"n": 3}, code == "z"),
            ({"n": 1}, False), ({"m": 79}, False),
            ({"k": 128}, True), ({"k": 127}, False), ({"triangle": SYMMETRIC}, False),
        ):  # fmt: skip
            assert family.is_turned(g._replace(**change), config) == turned, (code, change)


@pytest.mark.parametrize(
    ("simd_bytes", "m", "n", "trans_b", "packed"),
    [(64, 10, 1000, True, 0), (64, 10, 9000, True, 1), (64, 300, 1000, True, 1),
     (64, 10, 9000, False, 0), (32, 8, 500, True, 0), (32, 8, 600, True, 1),
     (32, 3, 600, True, 1), (32, 8, 9000, False, 0)],
)  # fmt: skip
def test_b_is_packed_where_its_rows_come_from_memory_or_are_read_often(
    simd_bytes, m, n, trans_b, packed
):
    family, k = BY_NAME["cpu_packed"], 1001
    for code, precision in PRECISIONS.items():
        config = family.default(replace(CPU, simd_bytes=simd_bytes), precision)
        columns = n * 8 // precision.itemsize + 1
        ldb = columns if trans_b else k
        problem = Gemm(
            code, m, columns, k, 1, False, False, m, 0, trans_b, False, ldb, 0, m, 0, False
        )
        assert family.packs_b(problem, config) == bool(packed), code


def test_b_is_packed_for_fewer_rows_where_vectors_are_narrow():
    family, n = BY_NAME["cpu_packed"], 501
    for code, precision in PRECISIONS.items():
        for simd_bytes, m, packed in ((32, 30, False), (32, 200, code != "z"), (64, 200, False)):
            config = family.default(replace(CPU, simd_bytes=simd_bytes), precision)
            problem = Gemm(code, m, n, n, 1, False, False, m, 0, False, False, n, 0, m, 0, False)
            assert family.packs_b(problem, config) == packed, (code, simd_bytes, m)
