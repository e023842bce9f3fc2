"""batched: how stacks of small matrices are cut (no device needed), and the kernel's forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import reference
from helpers import CPU, GPU, pairwise

from clgemm.kernels import BY_NAME
from clgemm.kernels.batched.runs import Runs
from clgemm.kernels.family import Config
from clgemm.layouts import address_of
from clgemm.problem import ALIGNMENT, PRECISIONS, Gemm, Operand, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner

FAMILY = BY_NAME["batched"]
TRAITS = replace(GPU, compute_units=132, local_memory=48 << 10, compute_capability=(9, 0))


def gemm(m, n, k, code="s", batch=10_000, **more):
    g = Gemm(
        code, m, n, k, batch, False, False, m, m * k, False, False, k, k * n, m, m * n, False, True
    )  # fmt: skip
    return g._replace(**more)


def defines(g, **changes):
    """Plan, without runs, and give the step and its defines."""
    config = dict(FAMILY.default(TRAITS, PRECISIONS[g.precision]).params) | {"RUNS": 0} | changes
    (step,) = FAMILY.plan(TRAITS, g, Config.of("batched", config)).steps
    return step, dict(step.kernel.defines)


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 3, 100), (16, 16, 16), (24, 24, 24), (33, 9, 50), (44, 44, 64)]
)
def test_a_work_group_covers_whole_entries(shape, code):
    step, p = defines(gemm(*shape, code))
    m, n, k = shape
    assert p["MR"] * p["LANES_M"] >= m > p["MR"] * (p["LANES_M"] - 1)
    assert p["NR"] * p["LANES_N"] >= n > p["NR"] * (p["LANES_N"] - 1)
    assert step.local_size[0] == p["LANES_M"] * p["LANES_N"] * p["ENTRIES"] <= 256
    bundles, groups = -(-10_000 // p["ENTRIES"]), step.global_size[0] // step.local_size[0]
    assert groups * step.local_size[0] <= 2 * 1024 * TRAITS.compute_units
    assert groups == bundles or 0.98 < bundles / groups / -(-bundles // groups) <= 1
    assert p["KC"] % p["VK"] == 0 < p["KC"] < k + p["VK"]
    each = max(p["MR"] * p["LANES_M"], p["NR"] * p["LANES_N"]) * p["KC"] * p["ENTRIES"]
    least = 64 * step.local_size[0] + p["VK"] * 64 * 16
    assert each * PRECISIONS[code].itemsize <= least, "few bytes are on their way to a work-item"


def test_tiny_entries_share_a_work_group_unless_there_are_few():
    assert defines(gemm(4, 4, 4))[1]["ENTRIES"] == 4
    assert defines(gemm(4, 4, 4, batch=300))[1]["ENTRIES"] == 1
    assert defines(gemm(64, 64, 64))[1]["ENTRIES"] == 1


@pytest.mark.parametrize(
    ("change", "width"),
    [({}, 4), ({"lda": 34}, 2), ({"stride_b": 1025}, 1), ({"offset_a": 2}, 2),
     ({"aligned": False}, 1), ({"m": 30}, 2), ({"n": 30}, 4), ({"n": 30, "trans_b": True}, 2)],
)  # fmt: skip
def test_vectors_are_read_where_all_are_aligned(change, width):
    assert defines(gemm(32, 32, 32)._replace(**change))[1]["VG"] == width


@pytest.mark.parametrize(
    ("n", "share", "entries"), [(24, 36, 7), (48, 72, 3), (64, 128, 1), (16, 32, 2)]
)
def test_entries_share_a_work_group_so_that_its_lanes_are_busy(n, share, entries):
    _, p = defines(gemm(n, n, n), LOCAL_KB=48, MR=8, FETCH=64)
    assert (p["LANES_M"] * p["LANES_N"], p["ENTRIES"]) == (share, entries)


@pytest.mark.parametrize(
    ("change", "k", "batch", "ahead"),
    [({}, 32, 10_000, 1), ({}, 64, 200, 1), ({}, 32, 500, 0), ({"AHEAD": 0}, 64, 10_000, 0)],
)
def test_what_is_read_ahead(change, k, batch, ahead):
    """The next slice or entry, if a work-group has one."""
    step, p = defines(gemm(64, 64, k, batch=batch), **change)
    assert p["AHEAD"] == ahead
    groups = step.global_size[0] // step.local_size[0]
    assert groups < batch if ahead and batch > 1000 else groups == batch


@pytest.mark.parametrize(("change", "groups", "target"), [({}, 2, "sm_90"), ({"LIMIT": 0}, 0, "")])
def test_registers_are_limited_so_that_groups_run_at_a_time(change, groups, target):
    step, p = defines(gemm(64, 64, 64), **change)
    assert (p["GROUPS"], step.kernel.target) == (groups, target)
    config = FAMILY.default(GPU, PRECISIONS["s"])
    (step,) = FAMILY.plan(GPU, gemm(64, 64, 64), config).steps
    assert not step.kernel.target, "only NVIDIA's compiler knows of it"


def test_of_work_groups_with_a_few_lanes_over_fewer_run_at_a_time():
    """Registers are given to whole groups of lanes: 36 work-items have those of 64."""
    step, p = defines(gemm(20, 45, 55), MR=8, BUNDLE=36)
    assert step.local_size[0] == 36
    assert p["GROUPS"] == 512 // 64


def test_no_more_groups_are_to_run_at_a_time_than_there_are():
    """Each has the more registers: of 93 groups on 132 units some had spilled 600 bytes."""
    assert defines(gemm(20, 45, 55, batch=93))[1]["GROUPS"] == 1
    assert defines(gemm(20, 45, 55, batch=200))[1]["GROUPS"] == 2
    assert defines(gemm(102, 16, 18, batch=100))[1]["GROUPS"] == 2, "of two macro-tiles each"


def test_rows_along_k_fit_the_local_memory_with_what_is_behind_them():
    """An odd number of vectors: neighbouring rows begin in other banks."""
    for n, k in ((60, 12), (64, 36), (48, 52), (64, 100), (16, 28), (24, 60)):
        for room in (9, 18, 36):
            g = gemm(n, n, k, trans_a=True, lda=k)
            p = defines(g, LOCAL_KB=room, FETCH=128)[1]
            row = p["KC"] + p["VK"] * (1 + p["KC"] // p["VK"] % 2)
            assert row // p["VK"] % 2 == 1
            wide = p["MR"] * p["LANES_M"] + p["NR"] * p["LANES_N"]
            assert p["ENTRIES"] * wide * row * 4 <= room << 10


def test_large_matrices_are_computed_in_tiles():
    step, p = defines(gemm(200, 70, 1000, batch=2))
    assert step.global_size[1] == -(-200 // (p["MR"] * p["LANES_M"])) * 2
    assert p["KC"] < 1000


@pytest.mark.parametrize(
    ("g", "claimed"),
    [
        (gemm(16, 16, 16), True), (gemm(48, 48, 64), True), (gemm(3, 3, 100), True),
        (gemm(64, 37, 8), True), (gemm(64, 38, 8), False), (gemm(52, 48, 48), False),
        (gemm(16, 16, 16, batch=2), False), (gemm(8, 8, 10**4), False),
        (gemm(102, 16, 18), True), (gemm(72, 18, 49), True), (gemm(129, 8, 8), False),
        (gemm(95, 90, 63), False), (gemm(102, 16, 65), False),
    ],
)  # fmt: skip
def test_claims_large_stacks_of_small_matrices_on_gpus(g, claimed):
    g = g._replace(lda=g.lda + 4)  # a gap: no runs
    assert FAMILY.claims(TRAITS, g) is claimed
    assert not FAMILY.claims(CPU, g)
    assert not FAMILY.claims(replace(TRAITS, fp64=False), g._replace(precision="d"))


# An H100 takes 97 us, 147 by gpu_tiled; 58 and 40; 59 and 42; 50 and 74; 31.7 and 33.3; 61 and 51.
@pytest.mark.parametrize(
    ("g", "claimed"),
    [
        (gemm(39, 111, 16, batch=6332), True), (gemm(27, 17, 86, batch=3857), False),
        (gemm(19, 66, 41, batch=2419), False), (gemm(38, 41, 44, batch=4532), True),
        (gemm(25, 25, 25, batch=3000)._replace(precision="c"), True),
        (gemm(52, 28, 107, batch=877)._replace(precision="c"), False),
    ],
)  # fmt: skip
def test_estimates_decide_about_stacks_that_are_read_element_by_element(g, claimed):
    g = g._replace(lda=g.lda + 1)
    assert FAMILY.claims(TRAITS, g) is claimed
    assert FAMILY.claims(TRAITS, g._replace(batch=16)) is False


@pytest.mark.parametrize(
    ("m", "n", "k", "in_real", "in_complex"),
    [
        (16, 16, 16, True, False), (32, 32, 32, False, False), (20, 20, 28, True, True),
        (8, 64, 30, True, False), (64, 14, 30, False, False), (65, 4, 4, False, False),
        (13, 16, 18, True, True), (13, 29, 106, False, False), (18, 9, 114, True, True),
    ],
)  # fmt: skip
def test_claims_less_beside_tensor_cores_of_double_precision(m, n, k, in_real, in_complex):
    """Where these compute little that C has not, and the more the longer k is."""
    for code, claimed in (("d", in_real), ("z", in_complex)):
        g = gemm(m, n, k)._replace(precision=code, lda=m + 2)
        assert FAMILY.claims(TRAITS, g) is claimed
        for others in ((7, 5), (8, 6)):
            traits = replace(TRAITS, compute_capability=others)
            assert FAMILY.claims(traits, g) is (max(m, n) <= 64)


# Microseconds of an H100, and by the families that had computed it.
@pytest.mark.parametrize(
    ("g", "claimed"),
    [
        (gemm(43, 89, 19, batch=8915, trans_a=True, lda=19), True),  # 89, 176
        (gemm(125, 84, 11, batch=7003, trans_b=True, ldb=84), True),  # 140, 272
        (gemm(80, 43, 19, "c", 3851, trans_a=True, lda=19), True),  # 83, 134
        (gemm(56, 46, 33, "d", 3615, trans_a=True, lda=33, trans_b=True, ldb=46), True),  # 65, 82
        (gemm(76, 64, 36, batch=7949), True),  # 122, 169
        (gemm(64, 64, 64, batch=572, trans_b=True, ldb=64), False),  # 16.3, 14.6: nothing is wasted
        (gemm(97, 87, 41, batch=100), False),  # units would have nothing to do
        (gemm(43, 89, 190, trans_a=True, lda=190), False),  # too large for the local memory
    ],
)
def test_claims_what_it_reads_as_runs(g, claimed):
    assert FAMILY.claims(TRAITS, g) is claimed


def run_defines(g, **changes):
    """Plan by runs, and give the step and its defines; None if it has none."""
    config = Config.of(
        "batched", dict(FAMILY.default(TRAITS, PRECISIONS[g.precision]).params) | changes
    )
    runs = Runs(TRAITS, g, config)
    if not runs.pay:
        return None
    (step,) = runs.plan().steps
    return step, dict(step.kernel.defines)


@pytest.mark.parametrize(
    ("change", "pay"),
    [
        ({}, True), ({"lda": 42}, False), ({"ldb": 70}, False), ({"stride_a": 5000}, True),
        ({"stride_b": 0}, True), ({"aligned": False}, False), ({"offset_b": 3}, True),
        ({"precision": "z"}, False),
    ],
)  # fmt: skip
def test_runs_have_no_gaps(change, pay):
    assert (run_defines(gemm(41, 53, 67)._replace(**change)) is not None) is pay
    assert run_defines(gemm(41, 53, 67), RUNS=0) is None


@pytest.mark.parametrize(
    "g",
    [
        gemm(14, 30, 96, batch=3618),  # 65, 34: columns begin in the same bank
        gemm(47, 39, 64, "d", 2342),  # 67, 56: two of them do, in double precision
        gemm(13, 29, 110, "d", 2965, trans_b=True, ldb=29),  # 55, 49: k is large
        gemm(16, 36, 88, "c", 1764, trans_b=True, ldb=36),  # 51, 45: read by vectors
    ],
)
def test_runs_do_not_pay(g):
    assert run_defines(g) is None


@pytest.mark.parametrize(
    ("g", "micro", "lanes", "entries"),
    [
        (gemm(41, 53, 67), (4, 4), (11, 14), 1),
        (gemm(125, 84, 11), (8, 4), (16, 21), 1),  # else more than 256 work-items
        (gemm(43, 15, 126), (2, 4), (22, 4), 1),  # else 44 for 29 KB
        (gemm(27, 16, 21), (2, 4), (14, 4), 4),
        (gemm(80, 43, 19, "c"), (4, 4), (20, 11), 1),
        (gemm(25, 10, 11, "c"), (4, 2), (7, 5), 7),
        (gemm(25, 10, 11, "c", 300), (4, 2), (7, 5), 1),  # as many work-groups as units
    ],
)
def test_how_runs_are_shared_out(g, micro, lanes, entries):
    step, p = run_defines(g)
    assert (p["MR"], p["NR"]) == micro
    assert (p["LANES_M"], p["LANES_N"]) == lanes
    assert p["ENTRIES"] == entries
    assert step.local_size == (lanes[0] * lanes[1] * entries,)
    assert step.global_size == (-(-g.batch // entries) * step.local_size[0],)


@pytest.mark.parametrize(("capability", "is_async"), [((9, 0), 1), ((7, 5), 0), (None, 0)])
def test_who_copies_runs_asynchronously(capability, is_async):
    traits = replace(TRAITS, compute_capability=capability)
    config = FAMILY.default(traits, PRECISIONS["s"])
    (step,) = FAMILY.plan(traits, gemm(41, 53, 60), config).steps
    assert dict(step.kernel.defines)["ASYNC"] == is_async
    assert ("nv_async.cl" in step.kernel.files) is bool(is_async)


def test_two_work_groups_fit_where_no_more_local_memory_is_there_than_is_reported():
    g, config = gemm(60, 52, 67), FAMILY.default(TRAITS, PRECISIONS["s"])
    assert 24 << 10 < Runs(TRAITS, g, config).local_bytes < 48 << 10
    for capability, pay in (((9, 0), True), ((7, 5), False), (None, False)):
        assert Runs(replace(TRAITS, compute_capability=capability), g, config).pay is pay
    assert Runs(replace(TRAITS, compute_capability=None), gemm(41, 53, 60), config).pay


def test_what_runs_take_of_the_local_memory():
    """As the kernel declares it."""
    for g in (gemm(41, 53, 67), gemm(41, 53, 67, trans_a=True, lda=67), gemm(25, 10, 11, "c")):
        config = FAMILY.default(TRAITS, PRECISIONS[g.precision])
        runs = Runs(TRAITS, g, config)
        p, wide = dict(runs.plan().steps[0].kernel.defines), {"s": 4, "c": 2}[g.precision]
        mc, nc = p["MR"] * p["LANES_M"], p["NR"] * p["LANES_N"]
        elements = sum(
            ((width * p["K"] if along_k else (p["K"] - 1) * size + width) + 2 * wide) // wide * wide
            for along_k, size, width in (
                (p["ALONG_K_A"], p["M"], mc), (p["ALONG_K_B"], p["N"], nc),
            )
        )  # fmt: skip
        assert runs.local_bytes == elements * PRECISIONS[g.precision].itemsize


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"ITEMS": 2048}, "device can run"), ({"LOCAL_KB": 64}, "local memory"),
     ({"MR": 16, "NR": 16}, "registers")],
)  # fmt: skip
def test_a_broken_rule_is_named(change, reason):
    precision = PRECISIONS["s"]
    config = Config.of("batched", dict(FAMILY.default(TRAITS, precision).params) | change)
    assert any(reason in text for text in FAMILY.broken_rules(TRAITS, precision, config))


def stack(rng, precision, batch, rows, columns, trans, gap):
    """Make a stack with `gap` elements of NaN behind each column, or row, and each entry."""
    tall, wide = (columns, rows) if trans else (rows, columns)
    memory = np.full((batch, wide + 1, tall + gap), np.nan, precision.dtype)
    values = rng.uniform(-1, 1, (batch, wide, tall))
    if precision.is_complex:
        values = values + 1j * rng.uniform(-1, 1, values.shape)
    memory[:, :wide, :tall] = values
    x = memory[:, :wide, :tall]
    return x if trans else x.swapaxes(1, 2)


def run(device, config, a, b, c, factors=(1.0, 0.0)):
    """Run as on a GPU with one compute unit: work-groups have several entries."""
    problem = describe(a, b, c, reads_c=factors[1] != 0)
    if device.traits.unified_memory:
        aligned = not (address_of(a.data) | address_of(b.data)) % ALIGNMENT
        problem = problem._replace(aligned=aligned)
    else:
        problem = problem.dense()
    plan = FAMILY.plan(replace(device.traits, kind="gpu", compute_units=1), problem, config)
    places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
    KernelRunner(device, problem, plan).execute((*factors, *places, NO_OFFSETS))
    host_memory.fetch(device, places[2], c)


SHAPES = [(3, 3, 100), (16, 16, 16), (24, 20, 13), (70, 33, 12), (1, 5, 1)]
PARAMS = [
    {"SHARE": 64, "RESIDENT": 32, "BUNDLE": 16}, {"MR": 8, "ITEMS": 64, "AHEAD": 0},
    {"ITEMS": 32, "BUNDLE": 32, "LOCAL_KB": 9, "NR": 2, "RESIDENT": 32},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("code", "sdcz")
def test_every_form_is_right(device, code, rng):
    precision = PRECISIONS[code]
    default = dict(FAMILY.default(device.traits, precision).params)
    cases = pairwise(
        SHAPES, PARAMS, (False, True), (False, True), (0, 4, 1), ((1.0, 0.0), (-0.5, 0.75))
    )
    for (m, n, k), params, trans_a, trans_b, gap, (alpha, beta) in cases:
        a = Operand(stack(rng, precision, 5, m, k, trans_a, gap), precision.is_complex and trans_b)
        b = Operand(stack(rng, precision, 5, k, n, trans_b, gap), precision.is_complex and trans_a)
        memory = np.full((5, n, m + 2), np.nan, precision.dtype).swapaxes(1, 2)
        c = memory[:, :m]
        if beta:
            c[...] = stack(rng, precision, 5, m, n, False, 0)
        left, right = (x.data.conj() if x.conj else x.data for x in (a, b))
        want, size = reference.gemm(alpha, left, right, beta, c)
        run(device, Config.of("batched", default | params), a, b, c, (alpha, beta))
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert np.all(np.isnan(memory[:, m:]))


RUN_SHAPES = [(41, 33, 7), (9, 3, 29), (13, 11, 13), (70, 19, 11), (7, 10, 3)]


@pytest.mark.parametrize("code", "sdc")
@pytest.mark.parametrize(("trans_a", "trans_b"), [(False, False), (True, False), (False, True)])
def test_runs_begin_anywhere(device, code, trans_a, trans_b, rng):
    """The first entries begin behind other elements, and the last ones end with their memory."""
    precision, conj = PRECISIONS[code], code == "c"
    config = FAMILY.default(device.traits, precision)
    traits = replace(device.traits, kind="gpu", compute_units=1)
    for before, (m, n, k) in enumerate(RUN_SHAPES):
        shapes = (7, *((m, k) if trans_a else (k, m))), (7, *((k, n) if trans_b else (n, k)))
        places, operands = [], []
        for shape, trans in zip(shapes, (trans_a, trans_b), strict=True):
            memory = rng.uniform(-1, 1, before + np.prod(shape)).astype(precision.dtype)
            if conj:
                memory += 1j * rng.uniform(-1, 1, memory.shape).astype(np.float32)
            memory[:before] = np.nan
            places.append(host_memory.place(device, memory[:, None]))
            entries = memory[before:].reshape(shape)
            operands.append(entries if trans else entries.swapaxes(1, 2))
        c = np.full((7, n, m), np.nan, precision.dtype).swapaxes(1, 2)
        a, b = (Operand(x, conj) for x in operands)
        problem = describe(a, b, c, reads_c=False)._replace(
            aligned=True, offset_a=before, offset_b=before
        )
        plan = FAMILY.plan(traits, problem, config)
        assert plan.steps[0].kernel.name == "batched_runs"
        place = host_memory.place(device, c)
        KernelRunner(device, problem, plan).execute((1.0, 0.0, *places, place, (before, before, 0)))
        host_memory.fetch(device, place, c)
        left, right = (x.data.conj() for x in (a, b))
        want, size = reference.gemm(1.0, left, right, 0.0, c)
        reference.assert_within_bound(c, want, size, k, precision.eps)


def test_an_infinity_stays_in_its_entry(device, rng):
    """Entries share a work-group and its memory; what is beyond k is zero in both operands."""
    precision = PRECISIONS["s"]
    a, b = stack(rng, precision, 9, 5, 3, False, 0), stack(rng, precision, 9, 3, 6, True, 0)
    a[4] = np.inf
    c = np.full((9, 6, 5), np.nan, np.float32).swapaxes(1, 2)
    run(device, FAMILY.default(device.traits, precision), Operand(a), Operand(b), c)
    assert np.isfinite(np.delete(c, 4, axis=0)).all()
    assert not np.isfinite(c[4]).any()
