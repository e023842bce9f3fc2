"""gemv: which kernel a problem gets (no device needed), and every form of the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import reference
from helpers import CPU, GPU, pairwise
from test_families import operand, value

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import TICKETS, Config, has_tickets
from clgemm.kernels.gemv import plan as cuts
from clgemm.layouts import address_of
from clgemm.problem import ALIGNMENT, PRECISIONS, Gemm, Operand, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.tuning.measure.verify import random_matrix

FAMILY = BY_NAME["gemv"]
TRAITS = replace(
    GPU, compute_units=132, local_memory=48 << 10, compute_capability=(9, 0),
    global_memory=140 << 30, max_allocation=35 << 30,
)  # fmt: skip
NO_TICKETS = replace(TRAITS, compute_capability=None)


def gemm(m, n, k, code="s", batch=1, trans_a=False, **more):
    lda = k if trans_a else m
    g = Gemm(
        code, m, n, k, batch, trans_a, False, lda, 0, False, False, k, 0, m, 0, False, True
    )  # fmt: skip
    if batch > 1:
        g = g._replace(stride_a=m * k, stride_b=k * n, stride_c=m * n)
    return g._replace(**more)


def steps(g, traits=NO_TICKETS):
    """Plan and give the steps by kernel name, each with its defines in reach."""
    plan = FAMILY.plan(traits, g, FAMILY.default(traits, PRECISIONS[g.precision]))
    return {s.kernel.name: (s, dict(s.kernel.defines)) for s in plan.steps}, plan


@pytest.mark.parametrize(
    ("g", "names"),
    [
        (gemm(8192, 1, 8192, trans_a=True), ["gemv_dot"]),
        (gemm(8192, 1, 8192), ["gemv_axpy"]),
        (gemm(512, 1, 65536), ["gemv_axpy", "gemv_sum"]),
        (gemm(44, 1, 562, "d"), ["gemv_axpy"]),  # a second launch takes longer than few groups
        (gemm(1, 8192, 8192), ["gemv_dot"]),  # op(B) turned: columns of B are contiguous
        (gemm(1, 8192, 8192, trans_b=True, ldb=8192), ["gemv_axpy"]),
        (gemm(16, 1, 10**6, trans_a=True), ["gemv_dot", "gemv_sum"]),
        (gemm(3, 1, 10**6), ["gemv_dot", "gemv_sum"]),
        (gemm(10**6, 1, 32), ["gemv_axpy"]),
        (gemm(4096, 4096, 1), ["gemv_ger"]),
    ],
)
def test_the_layout_chooses_the_kernel(g, names):
    assert list(steps(g)[0]) == names


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize(("m", "k"), [(8192, 8192), (4096, 4096), (512, 65536), (1, 10**7)])
def test_every_compute_unit_has_work_items_enough(m, k, trans_a):
    step = next(iter(steps(gemm(m, 1, k, trans_a=trans_a))[0].values()))[0]
    assert np.prod(step.global_size) >= 3 * 256 * TRAITS.compute_units


@pytest.mark.parametrize(
    ("m", "code", "lanes", "items"),
    [(10**6, "s", 32, 256), (20_000, "z", 32, 256), (8192, "s", 8, 512), (4096, "s", 8, 1024)],
)
def test_one_launch_has_fewer_rows_a_group_and_then_more_work_items(m, code, lanes, items):
    found, _ = steps(gemm(m, 1, 4096, code))
    assert list(found) == ["gemv_axpy"]
    step, p = found["gemv_axpy"]
    assert (p["LANES"], p["ITEMS"], step.local_size[0]) == (lanes, items, items)


@pytest.mark.parametrize(
    ("k", "code", "shared"),
    [(8192, "s", (2, 256, 4)), (300, "z", (2, 32, 4)), (32, "s", (4, 8, 1)), (3, "s", (1, 2, 2))],
)
def test_short_rows_are_shared_by_few_work_items(k, code, shared):
    _, p = steps(gemm(100_000, 1, k, code, trans_a=True))[0]["gemv_dot"]
    assert (p["ROWS"], p["LANES"], p["DEPTH"]) == shared


@pytest.mark.parametrize(("n", "depth"), [(4096, 8), (100, 4)])
def test_outer_products_are_cut_so_that_every_compute_unit_writes(n, depth):
    step, p = steps(gemm(8000, n, 1))[0]["gemv_ger"]
    assert p["DEPTH"] == depth
    assert step.global_size[1] == -(-n // (8 * depth))


@pytest.mark.parametrize(
    ("change", "width"), [({}, 4), ({"ldc": 3678}, 2), ({"ldc": 3677}, 1), ({"offset_c": 2}, 2)]
)
def test_neighbours_write_an_outer_product_without_gaps(change, width):
    """Vectors that do not start on a multiple of their size would be stored by single elements."""
    g = gemm(3676, 1169, 1)
    _, p = steps(g._replace(**change))[0]["gemv_ger"]
    assert p["VW"] == width


def test_parts_of_k_are_whole_and_cover_it():
    found, plan = steps(gemm(512, 1, 99_999))
    step, defines = found["gemv_axpy"]
    parts, part = step.global_size[2], step.args[-2]
    assert defines["SPLIT"] == 1
    assert (parts - 1) * part < 99_999 <= parts * part
    assert found["gemv_sum"][0].args[-1] == parts
    assert plan.scratch_bytes == parts * 512 * 4
    assert not plan.takes_tickets


@pytest.mark.parametrize("g", [gemm(512, 1, 99_999), gemm(3, 1, 10**6, "z", trans_a=True)])
def test_the_last_work_groups_add_up_the_parts_where_they_can_meet(g):
    (by_launch, before), (found, plan) = steps(g), steps(g, TRAITS)
    name, _ = by_launch
    assert list(found) == [name]
    step, defines = found[name]
    assert step.global_size == by_launch[name][0].global_size
    assert (defines["SPLIT"], step.args[-1]) == (2, "tickets")
    assert (plan.takes_tickets, plan.scratch_bytes) == (True, before.scratch_bytes)


def test_a_launch_adds_up_the_parts_where_there_are_more_work_groups_than_tickets():
    g = gemm(2, 1, 10**6, batch=TICKETS + 1)
    many = replace(TRAITS, compute_units=10**6)
    assert list(steps(g, many)[0]) == ["gemv_dot", "gemv_sum"]
    assert list(steps(g._replace(batch=TICKETS), many)[0]) == ["gemv_dot"]


@pytest.mark.parametrize(
    ("change", "width"),
    [({}, 4), ({"lda": 8194}, 2), ({"lda": 8193}, 1), ({"offset_a": 2}, 2), ({"aligned": False}, 1),
     ({"m": 8190, "lda": 8192}, 2), ({"code": "d"}, 2), ({"code": "z"}, 1)],
)  # fmt: skip
def test_vectors_are_read_where_all_are_aligned(change, width):
    g = gemm(8192, 1, 8192)._replace(precision=change.pop("code", "s"), **change)
    assert steps(g)[0]["gemv_axpy"][1]["VW"] == width


def test_x_is_read_in_vectors_only_if_it_has_no_stride():
    g = gemm(8192, 1, 8192, trans_a=True)
    assert steps(g)[0]["gemv_dot"][1]["WIDE_X"] == 1
    assert steps(g._replace(trans_b=True, ldb=3))[0]["gemv_dot"][1]["WIDE_X"] == 0
    assert steps(g._replace(offset_b=2))[0]["gemv_dot"][1]["WIDE_X"] == 0


@pytest.mark.parametrize(
    ("g", "claimed"),
    [
        (gemm(1, 8192, 8192), True), (gemm(8192, 1, 8192), True), (gemm(1, 1, 10**6), True),
        (gemm(3000, 2000, 1), True), (gemm(2, 8192, 8192), False), (gemm(64, 64, 64), False),
        (gemm(1000, 1, 1000, batch=50), True), (gemm(4, 1, 4, batch=50), False),
        (gemm(2**31, 1, 2), False), (gemm(8, 2**25, 1), False),
    ],
)  # fmt: skip
def test_claims_vectors_on_gpus(g, claimed):
    assert FAMILY.claims(TRAITS, g) is claimed
    assert not FAMILY.claims(CPU, g)


def test_claims_nothing_that_the_device_has_not():
    assert not FAMILY.claims(replace(TRAITS, fp64=False), gemm(1, 8192, 8192, "d"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"ITEMS": 2048}, "device can run"), ({"ITEMS": 16}, "LANES"), ({"READS": 2}, "READS"),
     ({"NARROW": 64}, "NARROW"),
     ({"ITEMS": 1024, "ROWS": 16, "READS": 16}, "local memory")],
)  # fmt: skip
def test_a_broken_rule_is_named(change, reason):
    precision = PRECISIONS["s"]
    config = Config.of("gemv", dict(FAMILY.default(TRAITS, precision).params) | change)
    assert any(reason in text for text in FAMILY.broken_rules(TRAITS, precision, config))


UNITS = {"whole": 1, "split": 1000, "joined": 1000}


def run(device, problem, config, a, b, c, cut, factors=(1.0, 0.0)):
    """Run as on a device with so many compute units, with NaN in scratch memory before."""
    traits = replace(device.traits, compute_units=UNITS[cut])
    if cut != "joined":
        traits = replace(traits, compute_capability=None)
    elif not has_tickets(traits):
        pytest.skip(f"work-groups of {device} cannot meet at tickets")
    plan = FAMILY.plan(traits, problem, config)
    places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
    KernelRunner(device, problem, plan).execute((*factors, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], c)
    return [step.kernel.name for step in plan.steps]


def described(device, a, b, c, beta):
    g = describe(a, b, c, reads_c=beta != 0)
    if not device.traits.unified_memory:
        return g.dense()
    return g._replace(aligned=not (address_of(a.data) | address_of(b.data)) % ALIGNMENT)


SHAPES = [
    (131, 1, 301), (1, 131, 301), (64, 1, 512), (1, 64, 512), (3, 1, 1001), (1, 1, 777),
    (2, 1, 3), (40, 3, 129), (67, 45, 1), (1, 9, 1), (9, 1, 1),
]  # fmt: skip
FACTORS = [(1.0, 0.0), (-0.5, 1.0), (2.0, 0.75)]


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("cut", UNITS)
def test_every_form_is_right(device, code, cut, rng, monkeypatch):
    monkeypatch.setattr(cuts, "SOLE_BYTES", 0)  # small products are cut as large ones are
    precision, names = PRECISIONS[code], set()
    config = FAMILY.default(device.traits, precision)
    small = Config.of("gemv", dict(config.params) | {"ITEMS": 32, "READS": 4})
    ops = "NTCR" if precision.is_complex else "NT"
    for (m, n, k), op_a, op_b, gap, (alpha, beta) in pairwise(SHAPES, ops, ops, (0, 3), FACTORS):
        a = operand(rng, precision, m, k, op_a, gap)
        b = operand(rng, precision, k, n, op_b, gap)
        memory = np.full((n, m + 2), np.nan, precision.dtype).T
        c = memory[:m]
        if beta:
            c[...] = random_matrix(rng, precision, m, n)
        want, size = reference.gemm(alpha, value(a), value(b), beta, c)
        problem = described(device, a, b, c, beta)
        names.update(run(device, problem, small, a, b, c, cut, (alpha, beta)))
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert np.all(np.isnan(memory[m:]))
    assert {"gemv_dot", "gemv_axpy", "gemv_ger"} <= names
    assert cut == "whole" or ("gemv_sum" in names) is (cut == "split")


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("offsets", [(0, 0, 0), (1, 2, 3), (2, 4, 1), (4, 1, 2), (8, 16, 4)])
def test_offsets_of_every_alignment(device, offsets, trans, rng):
    """Vectors must start where the operands do, also in the middle of larger memory."""
    m, k, precision = 96, 160, PRECISIONS["s"]
    memory = rng.uniform(-1, 1, (3, 20_000)).astype(np.float32)
    x, y, z = (
        row[offset:][:size]
        for row, offset, size in zip(memory, offsets, (m * k, k, m), strict=True)
    )
    a = x.reshape(m, k) if trans else x.reshape(k, m).T
    b, c = y.reshape(1, k).T, z.reshape(1, m).T
    want = reference.wide(a) @ reference.wide(b)
    problem = describe(Operand(a), Operand(b), c, reads_c=False)
    problem = problem._replace(
        aligned=True, **{f"offset_{x}": o for x, o in zip("abc", offsets, strict=True)}
    )
    config = FAMILY.default(device.traits, precision)
    before = memory[2].copy()
    plan = FAMILY.plan(replace(device.traits, compute_units=8), problem, config)
    rows = [row.reshape(-1, 1) for row in memory]
    places = [host_memory.place(device, row) for row in rows]
    KernelRunner(device, problem, plan).execute((1.0, 0.0, *places, offsets), poisoned=True)
    host_memory.fetch(device, places[2], rows[2])
    reference.assert_within_bound(c, want, np.abs(a) @ np.abs(b), k, precision.eps)
    z[...] = before[offsets[2] :][:m]
    np.testing.assert_array_equal(memory[2], before)


@pytest.mark.parametrize("cut", UNITS)
@pytest.mark.parametrize("trans", [False, True])
def test_stacks_of_vectors(device, trans, cut, rng):
    precision = PRECISIONS["d"]
    a = rng.uniform(-1, 1, (7, 40, 500))
    a = a if trans else np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)
    b = rng.uniform(-1, 1, (7, 500, 1))
    c = np.full((7, 1, 40), np.nan).swapaxes(1, 2)
    problem = described(device, Operand(a), Operand(b), c, 0)
    config = FAMILY.default(device.traits, precision)
    run(device, problem, config, Operand(a), Operand(b), c, cut)
    reference.assert_within_bound(c, a @ b, np.abs(a) @ np.abs(b), 500, precision.eps)


def test_k_is_cut_where_work_groups_would_read_for_longer_than_a_launch_takes():
    for k, names in ((cuts.SOLE_BYTES // 4, ["gemv_dot"]), (10**6, ["gemv_dot", "gemv_sum"])):
        assert [*steps(gemm(1, 1, k))[0]] == names


@pytest.mark.parametrize("cut", ["split", "joined"])
@pytest.mark.parametrize("op", "NT")
@pytest.mark.parametrize("shape", [(300, 1, 17_000), (1, 1, 99_999)])
def test_parts_repeat_bit_by_bit(device, op, shape, cut, rng):
    (m, n, k), precision = shape, PRECISIONS["s"]
    a, b = operand(rng, precision, m, k, op, 0), operand(rng, precision, k, n, "N", 0)
    config, results = FAMILY.default(device.traits, precision), set()
    for _ in range(20):
        c = np.full((n, m), np.nan, np.float32).T
        names = run(device, described(device, a, b, c, 0), config, a, b, c, cut)
        assert ("gemv_sum" in names) is (cut == "split")
        results.add(c.tobytes())
    assert len(results) == 1


@pytest.mark.parametrize("wide", [True, False])
def test_outer_products_add_to_what_is_there(device, wide, rng):
    precision, gap = PRECISIONS["c"], 0 if wide else 1
    a, b = operand(rng, precision, 128, 1, "N", 0), operand(rng, precision, 1, 50, "C", 0)
    memory = random_matrix(rng, precision, 128 + gap, 50)
    c, below = memory[:128], memory[128:].copy()
    want, size = reference.gemm(1j, value(a), value(b), 0.5, c)
    config = FAMILY.default(device.traits, precision)
    problem = described(device, a, b, c, 0.5)
    assert run(device, problem, config, a, b, c, "whole", (1j, 0.5)) == ["gemv_ger"]
    reference.assert_within_bound(c, want, size, 1, precision.eps)
    np.testing.assert_array_equal(memory[128:], below)
