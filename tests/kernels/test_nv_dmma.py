"""The `nv_dmma` family: plans and panels without a GPU; products, races and edges with one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import reference
from helpers import GPU, Differences, pairwise, read_scratch, write_scratch

from clgemm.kernels import source
from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import TICKETS, Config, Plan, gemm_args
from clgemm.kernels.nv_dmma import estimate, partition
from clgemm.kernels.nv_dmma.estimate import LOCAL_BYTES
from clgemm.kernels.nv_dmma.family import NvDmma
from clgemm.problem import PRECISIONS, Gemm, Operand, alignment_class, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure.verify import random_matrix

FAMILY = NvDmma()
H200 = replace(
    GPU, compute_units=132, fp64=True, compute_capability=(9, 0), max_allocation=32 << 30
)
A100 = replace(H200, compute_units=108, compute_capability=(8, 0))


def config(precision, **changes):
    """Give one tile for all sizes, nothing packed, with some parameters changed."""
    ce = 2 if precision.is_complex else 1
    tile = {"MC": 128 // ce, "NC": 64, "KC": 16 // ce, "WM": 32 // ce, "STAGES": 4}
    tile |= {"PACK_A": 0, "PACK_B": 0, "FIT": 0}
    return Config.of(FAMILY.name, dict(FAMILY.default(H200, precision).params) | tile | changes)


def replace_packs(c):
    return Config.of(FAMILY.name, dict(c.params) | {"PACK_A": 0, "PACK_B": 0})


def cut(g, c, beside=estimate.NO_STRIPS):
    return partition.cut(H200, g, c, beside)


def gemm(code, m, n, k, batch=1, trans_a=False, trans_b=False, **more):
    lda, ldb = (k if trans_a else m), (n if trans_b else k)
    strides = (m * k, k * n, m * n) if batch > 1 else (0, 0, 0)
    problem = Gemm(
        code, m, n, k, batch, trans_a, False, lda, strides[0], trans_b, False, ldb, strides[1],
        m, strides[2], False, True,
    )  # fmt: skip
    return problem._replace(**more)


# ---- without a GPU -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "supported"),
    [((7, 0), 0), ((8, 0), 1), ((8, 6), 0), ((8, 9), 0), ((9, 0), 1), ((10, 0), 1), ((12, 0), 0),
     (None, 0)],
)  # fmt: skip
def test_chips_without_fast_fp64_are_left_alone(capability, supported):
    traits = replace(H200, compute_capability=capability)
    assert FAMILY.supports(traits, PRECISIONS["d"]) == bool(supported)
    assert FAMILY.supports(traits, PRECISIONS["z"]) == bool(supported)
    assert not FAMILY.supports(traits, PRECISIONS["s"])


@pytest.mark.parametrize("traits", [H200, A100], ids=["9.0", "8.0"])
@pytest.mark.parametrize("code", "dz")
def test_candidates_can_run(code, traits):
    precision = PRECISIONS[code]
    candidates = list(FAMILY.candidates(traits, precision))
    assert len(candidates) > 10
    for candidate in candidates:
        tile = (candidate["MC"] + candidate["NC"]) * candidate["KC"] * precision.itemsize
        assert tile * candidate["STAGES"] < LOCAL_BYTES[traits.compute_capability]
    assert any(candidate["PACK_A"] for candidate in candidates) == (traits is H200)
    assert not list(FAMILY.broken_rules(traits, precision, FAMILY.default(traits, precision)))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"WM": 24}, "whole"),
        ({"STAGES": 1}, "filled"),
        ({"STAGES": 12}, "local memory"),
        ({"MC": 96, "NC": 128, "WM": 48, "STAGES": 8}, "local memory"),  # as wide as 128
        ({"MC": 256, "NC": 256, "WM": 128, "WN": 64}, "accumulators"),
        ({"MC": 512}, "warps"),
        ({"MC": 32, "PACK_A": 1}, "panels"),
        ({"KC": 32, "STAGES": 3, "WM": 64, "WK": 2}, "scratch"),
    ],
)
def test_broken_rules_are_named(changes, rule):
    precision = PRECISIONS["d"]
    broken = list(FAMILY.broken_rules(H200, precision, config(precision, **changes)))
    assert any(rule in sentence for sentence in broken), broken


def test_bulk_copies_need_9_0():
    precision = PRECISIONS["d"]
    broken = list(FAMILY.broken_rules(A100, precision, config(precision, PACK_A=1)))
    assert broken == ["bulk copies need compute capability 9.0"]


def test_an_operand_is_packed_where_it_is_read_often():
    c = config(PRECISIONS["d"], PACK_A=1024, PACK_B=1024, SHARE=0)
    assert cut(gemm("d", 2048, 2048, 512), c)[3:5] == (True, True)
    assert cut(gemm("d", 2048, 512, 512), c)[3:5] == (False, True)
    assert cut(gemm("d", 512, 2048, 512), c)[3:5] == (True, False)
    assert len(FAMILY.plan(H200, gemm("d", 2048, 2048, 512), c).steps) == 2
    assert len(FAMILY.plan(H200, gemm("d", 512, 512, 512), c).steps) == 1


def test_awkward_operands_are_packed_earlier():
    default = FAMILY.default(H200, PRECISIONS["d"])

    def packed(*size, **more):
        return partition.packed(gemm("d", *size, **more), default)

    assert packed(2048, 2048, 2048) == (False, False)
    assert packed(4096, 4096, 4096, trans_a=True) == (False, False)
    assert packed(2048, 2048, 2048, aligned=False) == (False, False)
    assert packed(4096, 4096, 4096, aligned=False) == (True, True)
    assert packed(4096, 4096, 4096) == (False, False)
    assert packed(8192, 8192, 8192) == (False, True), "A lies as its copies want it"
    assert packed(8192, 8192, 8192, trans_a=True) == (False, True)
    assert packed(16384, 16384, 16384) == (True, True)
    assert packed(8192, 8192, 64) == (False, False), "writing C is what takes the time"
    assert packed(64, 8192, 8192) == (False, False), "too few rows to gain anything from panels"


def test_panels_that_do_not_fit_are_not_written():
    c = config(PRECISIONS["d"], PACK_A=1, PACK_B=1, SHARE=0)
    small = replace(H200, max_allocation=1 << 20)
    assert FAMILY.plan(small, gemm("d", 2048, 2048, 2048), c).scratch_bytes == 0


def test_few_tiles_are_cut_along_k():
    c = config(PRECISIONS["d"])
    g = gemm("d", 256, 256, 65536)
    parts, span, slices = cut(g, c).parts, cut(g, c).span, cut(g, c).slices
    assert parts > 8
    assert (parts - 1) * span < slices <= parts * span
    plan = FAMILY.plan(H200, g, c)
    assert [step.kernel.name for step in plan.steps] == ["nv_dmma", "nv_dmma_reduce"]
    assert plan.steps[0].global_size[1] == parts
    assert plan.scratch_bytes == parts * 256 * 256 * 8
    assert not plan.takes_tickets
    assert cut(gemm("d", 256, 256, 64), c).parts == 1


def test_few_parts_of_k_are_added_up_within_the_launch():
    c, g = config(PRECISIONS["d"], WM=64), gemm("d", 700, 640, 3000)
    parts = cut(g, c).parts
    assert 1 < parts < 8
    plan = FAMILY.plan(H200, g, c)
    (step,) = plan.steps
    assert plan.takes_tickets
    assert step.args[-1] == "tickets"
    assert dict(step.kernel.defines)["PARTS"] == 2
    tiles = step.global_size[0] // step.local_size[0]
    assert plan.scratch_bytes == parts * tiles * 128 * 64 * 8
    assert tiles <= TICKETS


def test_tiles_that_do_not_come_out_even_are_shared():
    c = config(PRECISIONS["d"], WM=64)
    g = gemm("d", 128 * 10, 64 * 20, 1500)
    found = cut(g, c)
    assert (found.whole, found.shared, found.workers, found.parts) == (0, 200, 2 * 132, 1)
    plan = FAMILY.plan(H200, g, c)
    (step,) = plan.steps
    assert plan.takes_tickets, "flags"
    assert step.global_size[0] == found.workers * FAMILY.items(c)
    assert plan.scratch_bytes == (found.partials + found.workers * 128 * 64) * 8
    assert cut(gemm("d", 128 * 11, 64 * 24, 65536), c).workers == 0, "two for each unit"
    assert cut(gemm("d", 128 * 10, 64 * 20, 64), c).workers == 0, "too little to be shared"
    default = FAMILY.default(H200, PRECISIONS["d"])
    several = cut(gemm("d", 128 * 11, 128 * 26, 1000), default)
    assert (several.whole, several.shared, several.workers) == (132, 286 - 132, 132)
    small = replace(H200, max_allocation=1 << 20)
    assert partition.cut(small, g, c).workers == 0, "no memory for what is exchanged"


@pytest.mark.parametrize(
    ("code", "m", "workers", "alone"), [("z", 1280, 3, 4), ("d", 2560, 3, 3), ("d", 2561, 2, 3)]
)
def test_small_tiles_that_are_shared_leave_registers_for_that(code, m, workers, alone):
    """Kernels take more of them then, and most where copies are of 8 bytes."""
    parts = PRECISIONS[code].parts
    tile = estimate.tile_of(64, 32, 32, 16, 32, 3, parts)
    way = estimate.best_way(132, gemm(code, m, 202, 2180 // parts), tile, shares=True)
    assert (way.workers, way.parts) == (workers * 132, 1)
    assert tile.resident == alone


def test_a_shared_operand_is_packed_once():
    c = config(PRECISIONS["d"], PACK_A=1, PACK_B=1)
    g = gemm("d", 128, 64, 16, batch=3, stride_b=0)
    found = cut(g, c)
    assert (found.entries_a, found.entries_b) == (3, 1)
    assert found.packed_b == 3 * 128 * 16
    assert found.reals == found.packed_b + 64 * 16


def test_wide_copies_need_alignment():
    c = config(PRECISIONS["d"])

    def wide(g):
        defines = dict(FAMILY.plan(H200, g, c).steps[0].kernel.defines)
        return defines["WIDE_A"], defines["WIDE_B"]

    assert wide(gemm("d", 64, 64, 64)) == (1, 1)
    assert wide(gemm("d", 64, 64, 64, aligned=False)) == (0, 0)
    assert wide(gemm("d", 63, 64, 64)) == (0, 1)
    assert wide(gemm("d", 64, 64, 64, offset_b=1)) == (1, 0)
    assert wide(gemm("d", 64, 64, 64, batch=2, stride_a=4095)) == (0, 1)
    assert wide(gemm("z", 63, 63, 63, aligned=False, offset_a=1)) == (1, 1)


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ((4096, 4096, 4096), (128, 128)),
        ((1024, 1024, 1024), (128, 64)),
        ((512, 512, 512), (64, 32)),
        ((64, 8192, 8192), (64, 128)),
        ((8192, 64, 8192), (128, 64)),
        ((256, 256, 65536), (128, 128)),
        ((640, 640, 640), (64, 64)),
        ((2048, 2048, 2048), (128, 128)),
        ((2304, 2048, 2048), (128, 96)),
        ((8192, 8192, 8192), (128, 128)),
        ((8192, 8192, 64), (128, 64)),
        ((1, 1, 1), (32, 32)),
    ],
)
def test_macro_tiles_fit_the_problem(size, tile):
    fitted = partition.fitted(
        H200, gemm("d", *size), FAMILY.default(H200, PRECISIONS["d"])
    )  # fmt: skip
    assert (fitted["MC"], fitted["NC"]) == tile


def test_macro_tiles_waste_little_of_a_thin_c():
    """An H100 takes 168 us with 80 columns where it took 245 with 32; cuBLAS takes 191."""
    for code, size, tile in (
        ("z", (67, 3972, 3405), (40, 128)),
        ("z", (3972, 67, 3405), (64, 80)),
        ("d", (5210, 131, 492), (128, 48)),
        ("d", (2537, 137, 761), (64, 48)),
    ):
        fitted = partition.fitted(H200, gemm(code, *size), FAMILY.default(H200, PRECISIONS[code]))
        assert (fitted["MC"], fitted["NC"]) == tile


def test_the_assembler_is_told_how_many_small_work_groups_a_unit_is_to_hold():
    """Of more registers for each work-item a unit would hold one work-group of 256 less."""

    def spec(traits, **tile):
        (step,) = FAMILY.plan(
            traits, gemm("d", 700, 640, 300), config(PRECISIONS["d"], **tile)
        ).steps
        return step.kernel

    small = {"MC": 64, "WM": 32, "WN": 16, "KC": 32, "STAGES": 3}
    limited = spec(H200, **small)
    assert dict(limited.defines)["RESIDENT"] == 2
    assert limited.target == "sm_90"
    assert ".minnctapersm" in source.text(limited)
    narrow = {"MC": 48, "WM": 48, "WN": 16}
    assert dict(spec(H200, **narrow).defines)["RESIDENT"] == 3
    two = {"MC": 64, "NC": 48, "WM": 16, "WN": 48, "KC": 32, "STAGES": 3}  # of 128 work-items
    for other in (spec(H200), spec(A100, **small), spec(H200, **two)):
        assert dict(other.defines)["RESIDENT"] == 0
        assert other.target == "", "assembled once"


@pytest.mark.parametrize("traits", [H200, A100], ids=["9.0", "8.0"])
@pytest.mark.parametrize("code", "dz")
def test_fitted_tiles_can_run(code, traits):
    precision = PRECISIONS[code]
    plain = replace_packs(FAMILY.default(traits, precision))
    for size in (1, 40, 100, 300, 512, 1024, 2000):
        fitted = partition.fitted(traits, gemm(code, size, size, size), plain)
        assert not list(FAMILY.broken_rules(traits, precision, fitted)), size


@pytest.mark.parametrize(("code", "k", "is_short"), [
    ("d", 33, False), ("d", 32, True), ("d", 9, True), ("z", 17, False), ("z", 16, True),
])  # fmt: skip
def test_slices_are_shallow_where_a_deep_one_would_hold_all_of_the_depth(code, k, is_short):
    plain = replace_packs(FAMILY.default(H200, PRECISIONS[code]))
    fitted = partition.fitted(H200, gemm(code, 24, 90000, k), plain)
    assert not list(FAMILY.broken_rules(H200, PRECISIONS[code], fitted))
    depth = fitted["KC"] * (2 if code == "z" else 1)
    assert ((depth, fitted["STAGES"]) == (16, 3)) == is_short


@pytest.mark.parametrize(("k", "columns"), [(24, 64), (32, 64), (33, 128)])
def test_small_tiles_are_trusted_where_slices_are_shallow(k, columns):
    plain = replace_packs(FAMILY.default(H200, PRECISIONS["d"]))
    fitted = partition.fitted(H200, gemm("d", 24, 192336, k, trans_a=True), plain)
    assert (fitted["MC"], fitted["NC"]) == (32, columns)


def test_thin_edges_are_strips_of_the_same_launch():
    default = FAMILY.default(H200, PRECISIONS["d"])
    g = gemm("d", 2049, 2050, 600, lda=2050, aligned=False, offset_c=7)
    main = partition.without_edges(g, default)
    assert main == g._replace(m=2048, n=2048)
    (step,) = FAMILY.plan(H200, g, default).steps
    assert step.args[0] == gemm_args(g)[0]
    assert step.args[-3:] == (2048, 2048, 0)
    tile = dict(step.kernel.defines)
    assert tile["EDGE_THICK"] == 2
    groups = step.global_size[0] // step.local_size[0]
    width = estimate.EDGE_WIDTH
    assert f"#define EDGE_WIDTH {width} " in source.read("nv_dmma/edges.cl")
    strips = 2048 // width + -(-2050 // width)
    assert groups == 2048 // tile["MC"] * (2048 // tile["NC"]) + strips, "down, then along"
    for size in (2048, 2100, 129):
        whole = gemm("d", size, size, 300)
        assert partition.without_edges(whole, default) == whole
        assert partition.strips(whole, whole) == (0, 0)


def test_strips_cover_the_edges_that_there_are():
    def strips(code, *size):
        g = gemm(code, *size, 9)
        main = partition.without_edges(g, FAMILY.default(H200, PRECISIONS[code]))
        return partition.strips(g, main)

    assert strips("d", 2048, 2049) == (64, 1), "the right edge, as long as what is left of it"
    assert strips("d", 2049, 2048) == (64, 1)
    assert strips("d", 2049, 2049) == (64 + 65, 1), "the lower edge has the corner"
    assert strips("d", 2049, 2050) == (64 + 65, 2)
    assert strips("d", 2051, 2050) == (64 + 65, 4), "powers of two: few kernels"
    assert strips("d", 2064, 2049) == (64 + 2 * 65, 8), "thicker edges take several strips"
    assert strips("z", 2049, 2064) == (4 * 64 + 65, 4), "of as many real numbers"


def test_thin_edges_stay_where_strips_would_take_longer():
    """A strip goes through the whole depth; macro-tiles of a small C are cut along it."""
    default = FAMILY.default(H200, PRECISIONS["z"])
    deep = gemm("z", 225, 1040, 5395, trans_a=True)
    assert partition.without_edges(deep, default).n == 1024
    assert partition.chosen(H200, deep, default)[0] == deep
    default = FAMILY.default(H200, PRECISIONS["d"])
    large = gemm("d", 2049, 2050, 2048, aligned=False)
    main, fitted = partition.chosen(H200, large, default)
    assert (main.m, main.n) == (2048, 2048), "another round of macro-tiles takes longer still"
    assert cut(main, fitted, partition.strips(large, main)).parts == 1


@pytest.mark.parametrize(
    ("size", "packs", "even"),
    [
        ((256, 192), {}, 1),
        ((255, 192), {}, 0),
        ((256, 191), {}, 0),
        ((1279, 1280), {"PACK_A": 1}, 1),
        ((1280, 1279), {"PACK_A": 1}, 0),
        ((1279, 1279), {"PACK_A": 1, "PACK_B": 1}, 1),
        ((288, 192), {"MC": 96, "WM": 48}, 0),  # its slices are 128 wide
        ((256, 192), {"NC": 48, "WN": 48}, 0),
        ((288, 1280), {"MC": 96, "WM": 48, "PACK_A": 1}, 1),
    ],
)
def test_copies_look_for_an_edge_where_macro_tiles_cross_one(size, packs, even):
    c = config(PRECISIONS["d"], SHARE=0, **packs)
    spec = FAMILY.plan(H200, gemm("d", *size, 1024), c).steps[-1].kernel
    assert spec.name == "nv_dmma"
    assert dict(spec.defines)["EVEN"] == even


def test_the_estimate_knows_how_rows_lie_in_the_cache():
    """Small macro-tiles read much a product: where a row starts makes the difference."""
    small, large = (
        estimate.tile_of(32, 32, 16, 16, 32, 3),
        estimate.tile_of(128, 128, 64, 32, 32, 3),
    )

    def clocks(code, gap, tile, **more):
        g = gemm(code, 2048, 2048, 2048, **more)
        g = g._replace(lda=g.lda + gap, ldb=g.ldb + gap)
        return estimate.best_way(132, g, tile, shares=False).clocks

    for code, gaps in (("d", (0, 4, 2)), ("z", (0, 2, 1))):
        times = [clocks(code, gap, small) for gap in gaps]
        assert times == sorted(times)
        assert times[2] > 1.3 * times[0]
        assert clocks(code, gaps[2], large) < 1.1 * clocks(code, 0, large)
    assert clocks("d", 1, small) > 1.2 * clocks("d", 0, small), "copies of 8 bytes"
    assert clocks("d", 8, small) == clocks("d", 0, small)
    along_width = clocks("d", 0, small, trans_b=True)
    assert clocks("d", 0, small) > 1.05 * along_width, "B's rows of a slice are short"
    assert clocks("d", 0, small, trans_a=True) > clocks("d", 0, small), "and A's, too"


def test_units_that_are_done_first_may_take_two_of_the_last_macro_tiles():
    tile = estimate.tile_of(64, 128, 64, 32, 16, 4)
    assert tile.resident == 2

    def clocks(tiles):
        return estimate.best_way(132, gemm("d", 64 * tiles, 128, 1024), tile, shares=False).clocks

    both, few, most, four = map(clocks, (264, 264 + 40, 264 + 130, 264 + 140))
    assert 1.3 * both < few < 1.6 * both, "three in a row"
    assert 1.15 * few < most < 1.01 * four
    assert 1.85 * both < four < 2.1 * both
    assert clocks(132) < 1.06 * clocks(100), "the first ones go to units that have none"


@pytest.mark.parametrize(
    ("size", "later"),
    [((3432, 6022, 164), True), ((3432, 6022, 2000), False), ((1200, 1200, 164), False)],
)
def test_where_stores_outweigh_products_macro_tiles_of_a_unit_begin_one_after_another(size, later):
    """Not where k is long, nor where units have few of them."""
    step = FAMILY.plan(H200, gemm("d", *size), FAMILY.default(H200, PRECISIONS["d"])).steps[-1]
    found = dict(step.kernel.defines)
    assert ("STAGGER" in found) == later
    if later:
        items, names = step.local_size[0], ("MC", "NC", "WM", "WN", "KC", "STAGES")
        assert found["FIRST_TURNS"] == estimate.tile_of(*map(found.get, names)).resident > 1
        assert found["STAGGER"] == round(estimate.STAGGER * found["MC"] * found["NC"])
        assert found["UNITS"] == H200.compute_units
        assert step.global_size[0] // items >= 2 * found["UNITS"] * found["FIRST_TURNS"]


def test_the_estimate_knows_that_stores_are_hidden_by_products_that_began_later(monkeypatch):
    tile = estimate.tile_of(64, 64, 32, 32, 16, 4)

    def way(k):
        return estimate.best_way(132, gemm("d", 6022, 3432, k), tile, shares=False)

    short, long = way(164), way(2000)
    assert (short.stagger, long.stagger) == (round(estimate.STAGGER * tile.area), 0)
    monkeypatch.setattr(estimate, "STAGGERED", (1.0,) * 4)
    assert short.clocks < 0.97 * way(164).clocks
    assert long.clocks == way(2000).clocks


@pytest.mark.parametrize(
    ("size", "tile"),
    [((3787, 8609, 36), (128, 64)), ((3319, 12000, 23), (128, 64)), ((3319, 3867, 23), (64, 64))],
)
def test_large_results_get_the_tile_of_which_memory_takes_more_at_a_time(size, tile):
    """The first takes an H100 129 us with it, and 144 with 64 x 64, the last 60 and 55."""
    default = FAMILY.default(H200, PRECISIONS["d"])
    found = partition.fitted(H200, gemm("d", *size, trans_a=True), default)
    assert (found["MC"], found["NC"]) == tile


def test_stacks_that_share_an_operand_get_tiles_of_which_three_run_at_a_time():
    """147 products of 128: an H100 takes 21 us with it, 23.7 with two of 32 deep slices."""
    default = FAMILY.default(H200, PRECISIONS["d"])
    found = partition.fitted(H200, gemm("d", 128, 147 * 128, 128), default)
    names = ("MC", "NC", "WM", "WN", "KC", "STAGES")
    assert [found[x] for x in names] == [64, 48, 16, 48, 16, 4]


@pytest.mark.parametrize(("batch", "tile"), [(26, (64, 32)), (33, (64, 64)), (36, (128, 48))])
def test_small_tiles_are_mistrusted_where_units_have_their_fill_of_them(batch, tile):
    """By 64 x 32, of which four run at a time, an H100 takes 22.4 us for 36, by 128 x 48 19.6.

    Those of 33 fill it: 15.3, and by 64 x 64 14.6.
    """
    g = gemm("z", 128, 128, 128, batch)
    chosen = partition.fitted(H200, g, FAMILY.default(H200, PRECISIONS["z"]))
    assert (chosen["MC"] * 2, chosen["NC"]) == tile


def test_a_complex_slice_of_a_takes_half_the_memory_of_its_rows():
    sizes = 64, 32, 32, 16, 32, 3
    assert [estimate.tile_of(*sizes, ce).resident for ce in (1, 2)] == [3, 4]
    c = config(PRECISIONS["z"], MC=32, NC=32, KC=16, WM=16, WN=16, STAGES=3)
    assert partition.tile(c, 2) == estimate.tile_of(*sizes, 2)


def test_the_estimate_knows_what_the_cache_holds():
    """Pieces of shared macro-tiles are not in step: large operands are read again for each."""
    few = estimate._Reads(10**7, 10**7, 20.0, 20.0).transferred()
    assert few == 2 * 10**7, "both stay in the cache"
    once = estimate._Reads(10**9, 10**9, 1.0, 1.0).transferred()
    assert once == pytest.approx(2 * 10**9)
    often = estimate._Reads(10**9, 10**9, 20.0, 20.0).transferred()
    assert 0.9 * 40 * 10**9 < often < 40 * 10**9
    mixed = estimate._Reads(7 * 10**7, 3 * 10**7, 4.0, 30.0).transferred()
    even = estimate._Reads(7 * 10**7, 3 * 10**7, 12.0, 12.0).transferred()
    assert mixed < even, "what is read more often stays"
    tile = estimate.tile_of(64, 128, 32, 32, 32, 3)
    deep = gemm("d", 316, 4258, 10302)
    in_step, apart = (estimate._beside_memory(deep, tile, 1e6, 132, x) for x in (0, 1))
    assert apart > 1.2 * in_step


EDGES = """
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void edges(GEMM_ARGS, const int main_m, const int main_n)
{
    __local ELEM room[EDGE_ROOM];
    edge_strip_of(get_group_id(0), g, main_m, main_n, room, a, b, c, alpha, beta);
}
"""


@pytest.mark.device
@pytest.mark.parametrize(
    ("code", "ops", "strip"),
    pairwise("dz", ["NN", "TT"], [((1, 1), 256), ((2, 1), 128), ((0, 9), 256), ((3, 0), 128)]),
    ids=str,
)
def test_strips_are_plain_opencl(device, code, ops, strip, rng):
    """Strips of a stack, on any device; what macro-tiles do stays as it was."""
    (edges, items), precision = strip, PRECISIONS[code]
    if not device.traits.fp64:
        pytest.skip(f"{device.traits.describe()} has no double precision")
    if device.traits.local_memory < 70 << 10 and max(edges) > 2:
        pytest.skip("the shares of thick strips take up to 66 KB of local memory")
    (main_m, main_n), k, batch = (70, 64), 150, 2
    m, n = main_m + edges[0], main_n + edges[1]
    trans_a, trans_b = (x == "T" for x in ops)
    conj = {"conj_a": trans_a, "conj_b": trans_b} if code == "z" else {}
    g = gemm(code, m, n, k, batch, trans_a, trans_b, **conj)
    count, thick = partition.strips(g, g._replace(m=main_m, n=main_n))
    defines = {"IS_DOUBLE": 1, "IS_COMPLEX": int(code == "z"), "ITEMS": items}
    defines |= {"EDGE_THICK": thick, "TRANS_A": int(trans_a), "TRANS_B": int(trans_b)}
    header = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    text = header + "".join(source.read(x) for x in ("common.cl", "nv_dmma/edges.cl")) + EDGES
    memory = stacked(rng, g)
    before = memory["c"].copy()
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(device.context, flags, hostbuf=memory[x]) for x in "abc"]
    scalars = [precision.dtype.type(x) for x in (1.5, 0.5)]
    kernel = cl.Program(device.context, text).build().edges
    kernel.set_args(gemm_args(g)[0], *scalars, *buffers, np.int32(main_m), np.int32(main_n))
    cl.enqueue_nd_range_kernel(device.queue, kernel, (count * batch * items,), (items,))
    cl.enqueue_copy(device.queue, memory["c"], buffers[2])
    assert_stack_is_right(g, memory, before, 1.5, 0.5, (main_m, main_n))


def stacked(rng, g):
    """Give flat random operands of a dense stack."""
    sizes = {"a": g.m * g.k, "b": g.k * g.n, "c": g.m * g.n}
    return {x: flat(rng, PRECISIONS[g.precision], g.batch * size) for x, size in sizes.items()}


def assert_stack_is_right(g, memory, before, alpha, beta, skipped=(0, 0)):
    """Compare each entry of C with the reference; what was skipped must be as before."""
    a = memory["a"].reshape((g.batch, g.m, g.k) if g.trans_a else (g.batch, g.k, g.m))
    b = memory["b"].reshape((g.batch, g.k, g.n) if g.trans_b else (g.batch, g.n, g.k))
    a = a if g.trans_a else a.swapaxes(1, 2)
    b = b if g.trans_b else b.swapaxes(1, 2)
    after, before = (x.reshape(g.batch, g.n, g.m).swapaxes(1, 2) for x in (memory["c"], before))
    skip = tuple(slice(size) for size in skipped)
    for entry in range(g.batch):
        left = a[entry].conj() if g.conj_a else a[entry]
        right = b[entry].conj() if g.conj_b else b[entry]
        want, size = reference.gemm(alpha, left, right, beta, np.nan_to_num(before[entry]))
        want[skip] = before[entry][skip]
        eps = PRECISIONS[g.precision].eps
        reference.assert_within_bound(after[entry], want, size, g.k, eps)


def panels(x, width, depth, kind, *, turned, crossed=False):
    """Lay the rows of x (width first) out in panels, as nv_dmma/tiles.cl draws them."""
    total_w, total_p = -(-x.shape[0] // width) * width, -(-x.shape[1] // depth) * depth
    room = np.zeros((total_w, total_p), x.dtype)
    room[: x.shape[0], : x.shape[1]] = x
    panel, part = total_w // width, total_p // depth
    # To axes: panel, slice, depth of a unit, unit, half, g, q, and what a chunk holds.
    if x.dtype == complex and kind == "ALONG_W":
        parts = room.view(float).reshape(*room.shape, 2)  # w = 16u + 2g + e, p = 4t + q
        room = parts.reshape(panel, width // 16, 8, 2, part, depth // 4, 4, 2)
        room = room.transpose(0, 4, 5, 1, 7, 2, 6, 3)
    elif x.dtype == complex and kind == "ALONG_P":  # w = 16u + 2g + half or 16u + g + 8 half
        columns, order = ((8, 2), (3, 2)) if turned else ((2, 8), (2, 3))
        room = room.reshape(panel, width // 16, *columns, part, depth // 4, 4, 1)
        room = room.transpose(0, 4, 5, 1, *order, 6, 7)
    elif kind == "ALONG_P":  # w = 16u + 2g + half, p = 8t + 2q + e
        room = room.reshape(panel, width // 16, 8, 2, part, depth // 8, 4, 2)
        room = room.transpose(0, 4, 5, 1, 3, 2, 6, 7)
    elif kind == "ALONG_W":  # w = 16u + 2g + e, p = 8t + 2q + half
        room = room.reshape(panel, width // 16, 8, 2, part, depth // 8, 4, 2)
        room = room.transpose(0, 4, 5, 1, 7, 2, 6, 3)
    else:  # WHOLE: w = 8u + g, p = 4t + q
        room = room.reshape(panel, width // 8, 8, 1, 1, part, depth // 4, 4)
        room = room.transpose(0, 5, 6, 1, 4, 2, 7, 3)
    slots = np.empty_like(room).reshape(*room.shape[:5], 32, room.shape[7])
    for t in range(room.shape[2]):
        for g in range(8):
            for q in range(4):
                place = q ^ g // 2 % 2 if crossed else q
                slot = 4 * (g ^ t % 2) + place if turned else 8 * q + (g ^ 2 * q)
                slots[:, :, t, :, :, slot] = room[:, :, t, :, :, g, q]
    return slots.ravel().view(x.dtype)


@pytest.mark.parametrize("trans", [False, True], ids=["NN", "TT"])
@pytest.mark.parametrize("tile", [(128, 64), (48, 96)], ids=str)
@pytest.mark.parametrize("size", [(70, 100, 37), (128, 64, 48)], ids=["odd", "even"])
@pytest.mark.parametrize("code", "dz")
def test_panels_lie_as_drawn(device, code, size, tile, trans, rng):
    """The pack kernel is plain OpenCL C: any device runs it."""
    precision = PRECISIONS[code]
    if not device.traits.fp64:
        pytest.skip(f"{device.traits.describe()} has no double precision")
    m, n, k = size
    rows = tile[0] // 2 if precision.is_complex else tile[0]
    c = config(precision, PACK_A=1, PACK_B=1, MC=rows, NC=tile[1])
    a, b = random_matrix(rng, precision, m, k), random_matrix(rng, precision, k, n)
    if trans:
        a, b = np.asfortranarray(a.T).T, np.asfortranarray(b.T).T
    out = np.empty((m, n), precision.dtype, order="F")
    problem = describe(Operand(a, conj=trans), Operand(b), out, reads_c=False)
    problem = problem._replace(aligned=not (m | n | k) % 2)
    plan = FAMILY.plan(replace(H200, max_allocation=1 << 30), problem, c)
    pack = plan.steps[0]
    assert pack.kernel.name == "nv_dmma_pack"
    assert problem.trans_a == problem.trans_b == trans
    places = [host_memory.place(device, x) for x in (a, b, out)]
    with device.lock:
        runner = KernelRunner(device, problem, Plan((pack,), plan.scratch_bytes))
        runner.execute((1, 0, *places, NO_OFFSETS), poisoned=True)
        packed = read_scratch(device, plan.scratch_bytes).view(precision.dtype)
    left = a.conj() if trans and precision.is_complex else a
    kind_a = "WHOLE" if precision.is_complex else "ALONG_W"
    want = np.concatenate([
        panels(left, c["MC"], c["KC"], kind_a, turned=trans),
        panels(b.T, c["NC"], c["KC"], "ALONG_W", turned=not trans),
    ])  # fmt: skip
    np.testing.assert_array_equal(packed, want)


PLACES = """
#define OF(side_a, a, b) (SIDE_A ? a : b)
#define KIND OF(SIDE_A, KIND_A, KIND_B)
#define TURNED OF(SIDE_A, TRANS_A, !TRANS_B)
#define HOW OF(SIDE_A, MC, NC), KIND, TURNED, OF(SIDE_A, WIDE_A, WIDE_B)
__kernel void places(__global int *at, __global int *w, __global int *p, __global int *kind)
{
    const int n = get_global_id(0), item = n % ITEMS, rest = n - item;
    at[n] = copy_at(item, HOW) + copy_at(rest, HOW);
    w[n] = copy_w(item, HOW) + copy_w(rest, HOW);
    p[n] = copy_p(item, HOW) + copy_p(rest, HOW);
    kind[n] = KIND;
}
"""
SLICES = [(128, 16, 128), (16, 64, 128)]


# Complex elements are always aligned.
@pytest.mark.parametrize(
    ("code", "wide"), [("d", 1), ("d", 0), ("z", 1)], ids=["d-aligned", "d-odd", "z"]
)
@pytest.mark.parametrize(
    ("side", "trans_a", "trans_b"),
    [("A", 0, 0), ("A", 1, 0), ("B", 0, 0), ("B", 0, 1), ("B", 1, 0), ("B", 1, 1)],
)
def test_copies_put_a_slice_where_panels_have_it(device, code, side, trans_a, trans_b, wide, rng):
    """What is copied without packing lies as drawn, too; the map of copies is plain OpenCL C.

    A copy's place is the sum of a work-item's first place and that of the copy among its others.
    """
    precision = PRECISIONS[code]
    ce = 2 if precision.is_complex else 1
    turned = trans_a if side == "A" else not trans_b
    for reals, depth, items in SLICES:
        width, kc = (reals // ce if side == "A" else reals), depth // ce
        defines = {
            "MC": width, "NC": width, "KC": kc, "TRANS_A": trans_a, "TRANS_B": trans_b,
            "WIDE_A": wide, "WIDE_B": wide, "IS_DOUBLE": 1, "IS_COMPLEX": ce - 1,
            "ITEMS": items, "SIDE_A": int(side == "A"),
        }  # fmt: skip
        nbytes = 16 if wide else 8
        count = width * kc * precision.itemsize // nbytes
        at, w, p, kind = run_places(device, defines, count)
        x = random_matrix(rng, precision, width, kc)
        memory = np.ascontiguousarray(x if turned else x.T)  # as rows of what lies in a row
        start = (w * kc + p if turned else p * width + w) * precision.itemsize
        slots = np.zeros(width * kc * precision.itemsize, np.uint8)
        matrix = memory.reshape(-1).view(np.uint8)
        for byte in range(nbytes):
            slots[at + byte] = matrix[start + byte]
        name = ("ALONG_W", "ALONG_P", "WHOLE")[kind[0]]
        if side == "A":
            assert name == ("WHOLE" if ce == 2 else "ALONG_P" if trans_a else "ALONG_W")
        else:
            assert name == ("ALONG_P" if ce == 2 or not trans_b else "ALONG_W")
        crossed = trans_a and ce == 1 and name == "ALONG_P"
        want = panels(x, width, kc, name, turned=bool(turned), crossed=crossed)
        np.testing.assert_array_equal(slots.view(precision.dtype), want)


WIDTHS = """
__kernel void places(__global int *a, __global int *b, __global int *chunks, __global int *rest)
{
    *a = WIDTH_A, *b = WIDTH_B, *chunks = CHUNKS(WIDTH_A) + CHUNKS(WIDTH_B), *rest = 0;
}
"""


@pytest.mark.parametrize("code", "dz")
def test_what_a_unit_holds_counts_slices_as_wide_as_the_kernel_has_them(device, code):
    ce = 2 if code == "z" else 1
    assert {48, 80, 96, 112} <= {x for tile in partition.TILES for x in tile[:2]}
    for tile in partition.TILES:
        defines = {"IS_DOUBLE": 1, "IS_COMPLEX": ce - 1, "KC": tile.kc // ce}
        defines |= {"MC": tile.mc // ce, "NC": tile.nc, "ITEMS": tile.items}
        wide = run_text(device, "nv_dmma/copies.cl", WIDTHS, defines, 1)
        assert wide[0] * ce == estimate.slice_width(tile.mc) >= tile.mc
        assert wide[1] == estimate.slice_width(tile.nc) < 2 * tile.nc
        local = tile.stages * int(wide[2][0]) * 16
        held = estimate.tile_of(*tile[:6], ce).resident
        by_items = next(
            n for sums, n in estimate.MOST_ITEMS.items() if tile.area <= sums * tile.items
        )
        assert held == min(estimate.LOCAL_BYTES[9, 0] // local, by_items // tile.items)
        assert not 2 * int(wide[2][0]) % tile.items
        defines |= {"PACK_A": 1, "PACK_B": 1}
        exact = run_text(device, "nv_dmma/copies.cl", WIDTHS, defines, 1)
        assert (exact[0] * ce, exact[1]) == tile[:2], "panels have no gaps"


def run_places(device, defines, count):
    """Ask the map of copies for the places of the first `count` copies."""
    return run_text(device, "nv_dmma/copies.cl", PLACES, defines, count)


def run_text(device, file, text, defines, count, *numbers):
    """Run a kernel `places` that asks the functions of a file, and return its four results."""
    header = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    text = header + "".join(map(source.read, ("common.cl", "nv_dmma/tiles.cl", file))) + text
    kernel = cl.Program(device.context, text).build().places
    outs = [np.empty(count, np.int32) for _ in range(4)]
    flags = cl.mem_flags.READ_WRITE
    buffers = [cl.Buffer(device.context, flags, out.nbytes) for out in outs]
    kernel.set_args(*buffers, *map(np.int32, numbers))
    cl.enqueue_nd_range_kernel(device.queue, kernel, (count,), None)
    for out, buffer in zip(outs, buffers, strict=True):
        cl.enqueue_copy(device.queue, out, buffer)
    return outs


RASTER = """
__kernel void places(__global int *m, __global int *n, __global int *entry, __global int *start,
                     const int tiles_m, const int tiles_n, const int below)
{
    const int group = get_global_id(0), groups = get_global_size(0);
    const Place place = below ? place_below(group, tiles_m, tiles_n)
                              : place_of(group, tiles_m, tiles_n);
    m[group] = place.m, n[group] = place.n, entry[group] = (int)place.entry;
    start[group] = piece_start(1000, groups - 1, group);
}
"""


@pytest.mark.parametrize("below", [0, 1])
@pytest.mark.parametrize(
    "tile", [(128, 128), (128, 64), (64, 128), (32, 32), (128, 96), (48, 64), (112, 128)], ids=str
)
def test_every_macro_tile_and_slice_has_one_owner(device, tile, below):
    """The raster is plain OpenCL C; a Gram product's has what is not above the diagonal."""
    (mc, nc), size, batch = tile, 600, 2
    g = gemm("d", size, size, 9, batch, triangle=below)
    tiles_m, tiles_n = -(-size // mc), -(-size // nc)
    count = count_macro_tiles(g, mc, nc)
    defines = {"MC": mc, "NC": nc, "IS_DOUBLE": 1, "IS_COMPLEX": 0}
    m, n, entry, start = run_text(
        device, "nv_dmma/raster.cl", RASTER, defines, count, tiles_m, tiles_n, below
    )
    want = {
        (i, j, e)
        for i, j, e in itertools.product(range(tiles_m), range(tiles_n), range(batch))
        if not below or (i + 1) * mc > j * nc
    }
    assert len(want) == count
    assert set(zip(m.tolist(), n.tolist(), entry.tolist(), strict=True)) == want
    assert (start[0], start[-1]) == (0, 1000)
    assert set(np.diff(start)) <= {1000 // (count - 1), 1000 // (count - 1) + 1}


@pytest.mark.parametrize("code", "dz")
def test_parts_are_added_up(device, code, rng):
    """The kernel that adds up partial products is plain OpenCL C, too."""
    precision = PRECISIONS[code]
    if not device.traits.fp64:
        pytest.skip(f"{device.traits.describe()} has no double precision")
    g = gemm(code, 37, 29, 8192)
    plan = FAMILY.plan(H200, g, config(precision))
    reduce = plan.steps[-1]
    parts = plan.scratch_bytes // (precision.itemsize * g.m * g.n)
    assert parts > 1
    partials = random_matrix(rng, precision, parts * g.m, g.n)
    room = np.zeros(plan.scratch_bytes // precision.itemsize, precision.dtype)
    room[: partials.size] = partials.T.reshape(-1)
    before = random_matrix(rng, precision, g.m, g.n)
    c = before.copy(order="F")
    places = [host_memory.place(device, x) for x in (c, c, c)]
    with device.lock:
        write_scratch(device, room)
        KernelRunner(device, g, Plan((reduce,), plan.scratch_bytes)).execute(
            (1.5, 0.5, *places, NO_OFFSETS)
        )
    host_memory.fetch(device, places[2], c)
    terms = room[: parts * g.m * g.n].reshape(parts, g.n, g.m).swapaxes(1, 2)
    size = 1.5 * np.abs(terms).sum(0) + 0.5 * np.abs(before)
    want = 1.5 * reference.wide(terms).sum(0) + 0.5 * reference.wide(before)
    reference.assert_within_bound(c, want, size, parts, precision.eps)


# ---- with a GPU ----------------------------------------------------------------------------------

FORMS = {
    "direct": {},
    "packed": {"PACK_A": 1, "PACK_B": 1},
    "A packed": {"PACK_A": 1},
    "B packed": {"PACK_B": 1},
    "shared": {"SHARE": 1},
    "deep": {"KC": 32, "STAGES": 3},
    "shared depth": {"KC": 32, "STAGES": 3, "WM": 64, "NC": 64, "WK": 2},
    "small": {"MC": 64, "NC": 64, "KC": 32, "STAGES": 3, "WM": 32, "WN": 16},
    "small, shared": {"MC": 64, "NC": 64, "WM": 32, "WN": 16, "SHARE": 1},
    "deep, A packed": {"KC": 32, "STAGES": 3, "PACK_A": 1},
    "deep, packed": {"KC": 32, "STAGES": 3, "PACK_A": 1, "PACK_B": 1},
    "48 rows": {"MC": 48, "NC": 64, "WM": 48, "WN": 16},
    "48 columns, shared": {"MC": 64, "NC": 48, "WM": 16, "WN": 48, "SHARE": 1},
    "80 columns": {"NC": 80, "WM": 16, "WN": 80},
    "96 rows, B packed": {"MC": 96, "WM": 48, "PACK_B": 1},
    "96 columns, packed": {"NC": 96, "WM": 32, "WN": 48, "PACK_A": 1, "PACK_B": 1},
    "112 rows, A packed": {"MC": 112, "WM": 112, "WN": 16, "PACK_A": 1, "SHARE": 1},
}


HALVED = ("MC", "KC", "WM")  # of complex elements
on_nvidia = pytest.mark.families("nv_dmma")


def form_config(precision, form):
    tile = {"NC": 64} if form in {"direct", "shared"} else {"NC": 128, "WM": 64}
    changes = {"SHARE": 0} | tile | FORMS[form]
    if precision.is_complex:
        changes |= {name: changes[name] // 2 for name in HALVED if name in changes}
    return config(precision, **changes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", "dz")
def test_forms_can_run(code, form):
    precision = PRECISIONS[code]
    assert not list(FAMILY.broken_rules(H200, precision, form_config(precision, form)))


def on_device(device, problem, c, memory, alpha, beta, repeats=1, offsets=NO_OFFSETS):
    """Run a problem on flat arrays a, b, c and give what c becomes, once for each repetition."""
    plan = FAMILY.plan(device.traits, problem, c)
    runner = KernelRunner(device, problem, plan)
    places = {x: host_memory.place(device, memory[x].reshape(-1, 1)) for x in "abc"}
    for _ in range(repeats):
        runner.execute((alpha, beta, *places.values(), offsets), poisoned=True)
        out = memory["c"].reshape(-1, 1).copy()
        host_memory.fetch(device, places["c"], out)
        yield out.ravel()


def flat(rng, precision, size):
    return random_matrix(rng, precision, size, 1).ravel()


def matrices(memory, start, stride, batch, rows, columns, ld):
    """View entries of a stack of column-major matrices in flat memory."""
    step = memory.itemsize
    return np.lib.stride_tricks.as_strided(
        memory[start:], (batch, rows, columns), (stride * step, step, ld * step)
    )


@on_nvidia
@pytest.mark.parametrize(
    ("code", "form", "ops", "even"),
    pairwise("dz", FORMS, ["NN", "TN", "NT", "TT"], [False, True]),
)
def test_gaps_offsets_and_stacks(device, code, form, ops, even, rng):
    """Every form with leading dimensions, offsets and strides of its own; B shared by the stack."""
    precision = PRECISIONS[code]
    batch, m, n, k = 3, 150, 139, 1037
    trans_a, trans_b = ops[0] == "T", ops[1] == "T"
    gap = 4 if even else 3
    tall_a, wide_a = (k, m) if trans_a else (m, k)
    tall_b, wide_b = (n, k) if trans_b else (k, n)
    lda, ldb, ldc = (tall + tall % 2 + gap for tall in (tall_a, tall_b, m))
    stride_a, stride_c = lda * wide_a + gap - 1, ldc * n + gap - 1
    if even:
        stride_a, stride_c = stride_a + 1, stride_c + 1
    problem = Gemm(
        code, m, n, k, batch, trans_a, trans_a and code == "z", lda, stride_a,
        trans_b, trans_b and code == "z", ldb, 0, ldc, stride_c, True, even,
        *[alignment_class(gap)] * 3,
    )  # fmt: skip
    sizes = {"a": gap + batch * stride_a, "b": gap + ldb * wide_b, "c": gap + batch * stride_c}
    memory = {x: flat(rng, precision, size) for x, size in sizes.items()}
    a = matrices(memory["a"], gap, stride_a, batch, tall_a, wide_a, lda)
    b = matrices(memory["b"], gap, 0, batch, tall_b, wide_b, ldb)
    c = matrices(memory["c"], gap, stride_c, batch, m, n, ldc)
    a = a.swapaxes(1, 2).conj() if trans_a else a
    b = b.swapaxes(1, 2).conj() if trans_b else b
    chosen = form_config(precision, form)
    got = next(on_device(device, problem, chosen, memory, -0.75, 0.5, offsets=(gap,) * 3))
    after = matrices(got, gap, stride_c, batch, m, n, ldc)
    for entry in range(batch):
        want, size = reference.gemm(-0.75, a[entry], b[entry], 0.5, c[entry])
        reference.assert_within_bound(after[entry], want, size, k, precision.eps)
    after[...] = c
    np.testing.assert_array_equal(got, memory["c"], "what lies between the matrices was written")


RUNS = 2000


def assert_same_bits(device, problem, c, rng):
    """Run thousands of times and compare each result with the first one, on the device."""
    precision = PRECISIONS[problem.precision]
    m, n, k = problem.m, problem.n, problem.k
    a, b = flat(rng, precision, m * k), flat(rng, precision, k * n)
    plan = FAMILY.plan(device.traits, problem, c)
    runner, watch = (
        KernelRunner(device, problem, plan),
        Differences(device, m * n * precision.itemsize),
    )
    places = [host_memory.place(device, x.reshape(-1, 1)) for x in (a, b, np.empty(m * n, a.dtype))]
    values = (1.0, 0.0, *places, NO_OFFSETS)
    runner.execute(values, poisoned=True)
    first = watch.remember(places[2]).view(precision.dtype).reshape(n, m)
    assert np.isfinite(first).all()
    left = a.reshape(m, k) if problem.trans_a else a.reshape(k, m).T
    right = b.reshape(k, n) if problem.trans_b else b.reshape(n, k).T
    some = slice(None, None, max(1, n // 24))
    want, size = reference.gemm(1.0, left, right[:, some], 0.0, np.empty(0))
    reference.assert_within_bound(first[some].T, want, size, k, precision.eps)
    for _ in range(RUNS):
        runner.execute(values)
        watch.compare(places[2])
    assert watch.count() == 0, f"words of {RUNS} results that differ from the first run's"
    runner.execute((2.0, 0.0, *places, NO_OFFSETS))
    watch.compare(places[2])
    assert watch.count() > 0, "the comparison sees nothing"


@on_nvidia
@pytest.mark.slow
@pytest.mark.parametrize(("code", "form", "ops"), pairwise("dz", FORMS, ["NN", "TN"]))
def test_thousands_of_runs_give_the_same_bits(device, code, form, ops, rng):
    problem = gemm(code, 389, 261, 647, trans_a=ops == "TN", aligned=False)
    assert_same_bits(device, problem, form_config(PRECISIONS[code], form), rng)


RACED = [(512, 512, 512), (641, 640, 130), (1030, 1026, 258), (100, 90, 3000), (64, 1024, 1024)]


@on_nvidia
@pytest.mark.slow
@pytest.mark.parametrize("size", RACED, ids=str)
@pytest.mark.parametrize("code", "dz")
def test_thousands_of_default_runs_give_the_same_bits(device, code, size, rng):
    """What is run for a size that was never tuned: fitted and shared tiles, thin edges."""
    default = FAMILY.default(device.traits, PRECISIONS[code])
    assert_same_bits(device, gemm(code, *size), default, rng)


@on_nvidia
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", "dz")
def test_nan_and_infinity_stay_in_their_rows_and_columns(device, code, form, rng):
    precision = PRECISIONS[code]
    m, n, k = 133, 70, 1029
    a, b = random_matrix(rng, precision, m, k), random_matrix(rng, precision, k, n)
    a[7, 1028], b[3, 69], a[132, 5] = np.nan, np.inf, np.inf
    b[5, 4] = 0.0
    memory = {"a": a.T.ravel(), "b": b.T.ravel(), "c": np.full(m * n, np.nan, precision.dtype)}
    chosen = form_config(precision, form)
    got = next(on_device(device, gemm(code, m, n, k), chosen, memory, 1.0, 0.0))
    with np.errstate(all="ignore"):
        terms = a.real[:, :, None] * b.real[None] if code == "d" else None
        want = terms.sum(1) if code == "d" else np.einsum("ip,pj->ij", a, b)
    finite = np.isfinite(want)
    got = got.reshape(n, m).T
    np.testing.assert_array_equal(np.isfinite(got), finite)
    if code == "d":
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))


@on_nvidia
@pytest.mark.slow
@pytest.mark.parametrize("code", "dz")
def test_every_tile_is_right(device, code, rng):
    precision = PRECISIONS[code]
    m, n, k = 261, 133, 407
    memory = {x: flat(rng, precision, s) for x, s in (("a", m * k), ("b", k * n), ("c", m * n))}
    a, b, c = memory["a"].reshape(k, m).T, memory["b"].reshape(n, k).T, memory["c"].reshape(n, m).T
    want, size = reference.gemm(1.5, a, b, 1.0, c)
    tiles = {
        replace_packs(Config.of(FAMILY.name, dict(x.params) | {"FIT": 0, "SHARE": 0}))
        for x in FAMILY.candidates(device.traits, precision)
    }
    assert len(tiles) > 10
    for tile in sorted(tiles, key=str):
        got = next(on_device(device, gemm(code, m, n, k), tile, memory, 1.5, 1.0))
        reference.assert_within_bound(got.reshape(n, m).T, want, size, k, precision.eps)


@on_nvidia
@pytest.mark.parametrize(
    ("code", "size", "k", "ops", "beta"),
    pairwise(
        "dz",
        [(24, 9001), (9000, 17), (700, 650), (1030, 1026)],
        [1, 8, 9, 16, 17, 31, 32],
        ["NN", "TN", "NT", "TT"],
        [0.0, 0.5],
    ),
    ids=str,
)
def test_products_of_little_depth_are_right(device, code, size, k, ops, beta, rng):
    """By the tiles that they get; C is full of NaN where it is not to be read."""
    default = FAMILY.default(device.traits, PRECISIONS[code])
    (m, n), (trans_a, trans_b) = size, (x == "T" for x in ops)
    conj = {"conj_a": trans_a, "conj_b": trans_b} if code == "z" else {}
    g = gemm(code, m, n, k, 2, trans_a, trans_b, aligned=not (m | n | k) % 2, **conj)
    memory = stacked(rng, g)
    if not beta:
        memory["c"][:] = np.nan
    got = next(on_device(device, g, default, memory, 1.5, beta))
    assert_stack_is_right(g, memory | {"c": got}, memory["c"], 1.5, beta)


@on_nvidia
@pytest.mark.parametrize(
    ("code", "size", "ops", "beta"),
    pairwise(
        "dz", [(1025, 1027), (1024, 1040), (1032, 1024)], ["NN", "TN", "NT", "TT"], [0.0, 0.5]
    ),
    ids=str,
)
def test_thin_edges_are_right(device, code, size, ops, beta, rng):
    """In stacks, down to the corner; C is full of NaN where it is not to be read."""
    default = FAMILY.default(device.traits, PRECISIONS[code])
    (m, n), k, batch = size, 147, 2
    trans_a, trans_b = (x == "T" for x in ops)
    conj = {"conj_a": trans_a, "conj_b": trans_b} if code == "z" else {}
    g = gemm(code, m, n, k, batch, trans_a, trans_b, aligned=not (m | n) % 2, **conj)
    assert partition.strips(g, partition.without_edges(g, default))[0]
    memory = stacked(rng, g)
    if not beta:
        memory["c"][:] = np.nan
    got = next(on_device(device, g, default, memory, 1.5, beta))
    assert_stack_is_right(g, memory | {"c": got}, memory["c"], 1.5, beta)
