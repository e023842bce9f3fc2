"""gpu_tiled: how problems are cut (no device needed), and every variant of its kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import reference
from helpers import GPU, pairwise
from test_families import operand, value

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config, has_tickets
from clgemm.kernels.gpu_tiled import plan, tiling
from clgemm.kernels.gpu_tiled.family import TILES, USUAL, VARIANTS
from clgemm.kernels.nv_fused.family import NvFused
from clgemm.layouts import address_of
from clgemm.problem import ALIGNMENT, PRECISIONS, Gemm, Operand, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.tuning.measure.verify import random_matrix

FAMILY = BY_NAME["gpu_tiled"]
NAMES = ("MC", "NC", "KC", "MR", "NR", "LANES_M")
TRAITS = replace(
    GPU, compute_units=132, local_memory=48 << 10, compute_capability=(9, 0),
    global_memory=140 << 30, max_allocation=35 << 30,
)  # fmt: skip
S = PRECISIONS["s"]


def config(tile=(128, 64, 16, 8, 8, 8), **variant):
    params = dict(zip(NAMES, tile, strict=True)) | USUAL | variant
    return Config.of("gpu_tiled", params)


def gemm(m, n, k, code="s", batch=1, **more):
    g = Gemm(code, m, n, k, batch, False, False, m, 0, False, False, k, 0, m, 0, False, True)
    if batch > 1:
        g = g._replace(stride_a=m * k, stride_b=k * n, stride_c=m * n)
    return g._replace(**more)


def steps(g, chosen=None, traits=TRAITS):
    """Plan and give the steps by kernel name, each with its defines in reach."""
    plan = FAMILY.plan(traits, g, chosen or config(PACK=0))
    return {s.kernel.name: (s, dict(s.kernel.defines)) for s in plan.steps}, plan


def load(n, mc, nc):
    """Count the elements of C that the busiest compute unit works on."""
    tiles = -(-n // mc) * -(-n // nc)
    return -(-tiles // TRAITS.compute_units) * mc * nc


@pytest.mark.parametrize(
    ("n", "gain"), [(300, 2), (512, 4), (640, 2), (768, 1.3), (896, 1.3), (1024, 1), (4096, 1)]
)
def test_tiles_are_cut_where_that_shares_the_work_out_better(n, gain):
    step, defines = steps(gemm(n, n, n))[0]["gpu_tiled"]
    mc, nc = defines["MC"], defines["NC"]
    assert step.global_size[0] // step.local_size[0] == -(-n // mc) * -(-n // nc)
    assert load(n, 128, 64) >= gain * load(n, mc, nc)
    assert gain > 1 or (mc, nc) == (128, 64), "where nothing is gained the tile stays whole"


@pytest.mark.parametrize(
    "tile", [(128, 64, 16, 8, 8, 8), (64, 64, 16, 4, 4, 8), (128, 128, 16, 8, 16, 4)]
)
def test_what_was_cut_still_breaks_no_rule(tile):
    for shape in [(1, 1, 1), (40, 4000, 64), (4000, 40, 64), (300, 300, 300), (511, 700, 9000)]:
        fitted = tiling.fitted(TRAITS, gemm(*shape), config(tile))
        assert not list(FAMILY.broken_rules(TRAITS, S, Config.of("gpu_tiled", fitted))), shape


# What an H200 was best with: a tile of 256 x 128 only where each unit gets one.
@pytest.mark.parametrize(
    ("n", "tile"),
    [(512, "64x32"), (1024, "64x64"), (1280, "128x128"), (2048, "256x128"), (2560, "128x64"),
     (4096, "128x64")],
)  # fmt: skip
def test_the_default_on_nvidia_takes_a_tile_by_size(n, tile):
    default = FAMILY.default(TRAITS, S)
    defines = steps(gemm(n, n, n), default)[0]["gpu_tiled"][1]
    assert f"{defines['MC']}x{defines['NC']}" == tile
    fitted = tiling.fitted(TRAITS, gemm(n, n, n), default)
    assert not list(FAMILY.broken_rules(TRAITS, S, Config.of("gpu_tiled", fitted)))


def test_products_with_little_work_for_large_tiles_are_cut_as_before():
    for shape in [(64, 8192, 8192), (256, 256, 65536), (8192, 8192, 64)]:
        default = FAMILY.default(TRAITS, S)
        plain = Config.of("gpu_tiled", dict(default.params) | {"AUTO": 0})
        assert FAMILY.plan(TRAITS, gemm(*shape), default) == FAMILY.plan(
            TRAITS, gemm(*shape), plain
        )


# Small or thin products whose rows start anywhere; the macro-tile and parts that an H200 took least
# time with, or hardly more.
@pytest.mark.parametrize(
    ("code", "size", "tile", "parts"),
    [("s", (35, 6087, 11639), "64x64x16", 4),
     ("s", (1829, 7575, 40), "64x64x16", 1), ("c", (4981, 43, 5280), "64x64x16", 5),
     ("c", (4829, 609, 53), "64x64x8", 1), ("c", (76, 159, 5247), "32x32x16", 8),
     ("c", (4, 6, 3948), "32x32x16", 23)],
)  # fmt: skip
def test_small_products_get_a_tile_and_parts_of_k_by_known_times(code, size, tile, parts):
    precision = PRECISIONS[code]
    default = FAMILY.default(TRAITS, precision)
    g = gemm(*size, code)._replace(aligned=False)
    fitted = tiling.fitted(TRAITS, g, default)
    assert "x".join(str(fitted[x]) for x in ("MC", "NC", "KC")) == tile
    step = FAMILY.plan(TRAITS, g, default).steps[0]
    assert step.kernel.name == "gpu_tiled", "nothing is packed"
    assert step.global_size[2] == parts


# An H100 took 34, 12 and 20 us with them or their likes; before it had taken 52, 15 and 22.
@pytest.mark.parametrize(
    ("size", "tile"),
    [((32, 260_320, 32), "32x128"), ((100_000, 32, 32), "128x32"), ((64, 100_000, 32), "64x64")],
)
def test_thin_products_with_a_short_k_get_a_tile_by_known_times(size, tile):
    default = FAMILY.default(TRAITS, S)
    fitted = tiling.fitted(TRAITS, gemm(*size), default)
    assert f"{fitted['MC']}x{fitted['NC']}" == tile
    assert (fitted["VG"], fitted["PARTS"]) == (4, 1)


# An H100 took 20.7, 27.6 and 28.7 us with them; before it had taken 29.5, 41 and 33.
@pytest.mark.parametrize(
    ("size", "batch", "tile"),
    [((96, 96, 96), 300, "32x96"), ((80, 80, 80), 500, "32x96"), ((128, 128, 128), 200, "64x64"),
     ((128, 128, 128), 64, "32x64")],
)  # fmt: skip
def test_stacks_of_small_matrices_get_tiles_of_their_own(size, batch, tile):
    default = FAMILY.default(TRAITS, S)
    fitted = tiling.fitted(TRAITS, gemm(*size)._replace(batch=batch), default)
    assert f"{fitted['MC']}x{fitted['NC']}" == tile
    assert fitted["PARTS"] == 1


# An H200 takes 27.8, 68 and 23 us with them, and by nv_fused 44.5, 99 and 30.
@pytest.mark.parametrize(
    ("size", "trans", "tile"),
    [((20, 97_560, 100), (False, True), "32x128"), ((24, 301_016, 84), (True, False), "32x128"),
     ((57_404, 32, 132), (True, False), "128x32")],
)  # fmt: skip
def test_products_as_long_as_stacks_get_a_tile_by_known_times(size, trans, tile):
    (m, n, k), (trans_a, trans_b) = size, trans
    g = gemm(
        *size, trans_a=trans_a, trans_b=trans_b, lda=k if trans_a else m, ldb=n if trans_b else k
    )
    fitted = tiling.fitted(TRAITS, g, FAMILY.default(TRAITS, S))
    assert f"{fitted['MC']}x{fitted['NC']}" == tile
    assert (fitted["PACK"], fitted["PARTS"]) == (0, 1)
    assert not NvFused().claims(TRAITS, g)
    short = g._replace(m=min(m, 8000), n=min(n, 8000))
    assert math.isinf(tiling.known_seconds(TRAITS, short)), "it may be packed, or split along k"


@pytest.mark.parametrize(
    ("code", "size", "batch", "trans", "microseconds"),
    [
        ("s", (64, 64, 64), 3535, "NT", 68.9), ("s", (28, 60, 72), 2342, "NT", 32.3),
        ("s", (180, 182_000, 20), 1, "NN", 76), ("s", (221_344, 148, 32), 1, "NN", 97.3),
        ("s", (181_080, 68, 32), 1, "TN", 54.3), ("c", (35_480, 72, 20), 1, "TN", 27.5),
        ("c", (128, 64, 28), 215, "TN", 17.8),
    ],
)  # fmt: skip
def test_what_an_h200_takes_for_stacks_and_for_products_as_long(
    code, size, batch, trans, microseconds
):
    """Slices at a tile's ends, the launch and what memory takes all tell here."""
    trans_a, trans_b = (letter == "T" for letter in trans)
    steps = {"lda": size[2] if trans_a else size[0], "ldb": size[1] if trans_b else size[2]}
    g = gemm(*size, code, batch, trans_a=trans_a, trans_b=trans_b, **steps)
    assert tiling.known_seconds(TRAITS, g) == pytest.approx(microseconds * 1e-6, rel=0.05)


def test_steps_take_longer_by_element_or_along_k():
    for code, by_element, along in (("s", 0.37, 0.08), ("c", 0.12, 0.04)):
        for g in (gemm(128, 128, 184, code, batch=9000), gemm(128, 128 * 9000, 184, code)):
            across = g._replace(trans_b=True, ldb=g.n)
            others = (g, g._replace(trans_a=True, lda=g.k), across._replace(aligned=False))
            least, *seconds = (tiling.known_seconds(TRAITS, x) for x in (across, *others))
            ratios = [1 + along, 1 + 2 * along, 1 + by_element]  # but for launch and memory
            assert [x / least for x in seconds] == pytest.approx(ratios, rel=0.04)


@pytest.mark.parametrize("tiles", [tiling.KNOWN, tiling.STACKED, tiling.TALL])
def test_every_known_tile_breaks_no_rule(tiles):
    for code, known in tiles.items():
        precision = PRECISIONS[code]
        default = dict(FAMILY.default(TRAITS, precision).params)
        for tile in known:
            chosen = Config.of("gpu_tiled", default | {"PACK": 0} | tile.params)
            assert not list(FAMILY.broken_rules(TRAITS, precision, chosen)), tile


def test_the_last_slice_ends_early_where_k_is_short():
    """An H100 takes 91 us for 5846 products of 55 x 40 x 35, and 100 by whole slices."""

    def steps_of(k, code="s", **variant):
        chosen = config((64, 32, 16, 4, 4, 8), PACK=0, SPLIT=1, **variant)
        return steps(gemm(55, 40, k, code, batch=5846), chosen)[0]["gpu_tiled"][1]["ENDS_EARLY"]

    assert [steps_of(k) for k in (17, 28, 29, 32, 100, 131)] == [4, 4, 0, 0, 4, 0]
    assert (steps_of(17, "c"), steps_of(17, "c", MC=32)) == (4, 0), "slower in small tiles"


def test_shares_of_a_slice_keep_their_sums_in_the_memory_of_the_tiles():
    alone, shared = (tiling.local_elements(dict(config(SLICED, SLICED_K=s).params)) for s in (1, 4))
    assert alone == shared > 4 * 32 * 32 // 2


def test_no_tile_is_twice_as_large_as_c():
    defines = steps(gemm(64, 8192, 8192))[0]["gpu_tiled"][1]
    assert defines["MC"] == 64


# A macro-tile's last part adds all of them up if they are few, and if the device has fences for it.
@pytest.mark.parametrize(
    ("shape", "traits", "joined"),
    [
        ((256, 256, 65536), TRAITS, False),
        ((64, 8192, 8192), TRAITS, True),
        ((64, 8192, 8192), replace(TRAITS, compute_capability=(6, 1)), False),
        ((64, 8192, 8192), replace(TRAITS, compute_capability=None), False),
        ((256, 256, 65531), TRAITS, False),
    ],
)
def test_long_k_is_split_into_parts_that_cover_it(shape, traits, joined):
    found, plan = steps(gemm(*shape), traits=traits)
    step, defines = found["gpu_tiled"]
    parts, part = step.global_size[2], step.args[-2 if joined else -1]
    slices = -(-shape[2] // defines["KC"])
    assert parts > 1
    assert (parts - 1) * part < slices <= parts * part, "no part is empty, none is missing"
    assert plan.scratch_bytes >= parts * shape[0] * shape[1] * 4
    if joined:
        assert list(found) == ["gpu_tiled"]
        assert defines["SPLIT"] == 2
        assert step.args[-1] == "tickets"
    else:
        assert defines["SPLIT"] == 1
        assert found["gpu_tile_sum"][0].args[-1] == parts
    assert plan.takes_tickets == joined


def test_short_k_or_many_tiles_are_not_split():
    for shape in [(512, 512, 512), (4096, 4096, 65536)]:
        assert list(steps(gemm(*shape))[0]) == ["gpu_tiled"]
    assert list(steps(gemm(256, 256, 65536), config(PACK=0, SPLIT=1))[0]) == ["gpu_tiled"]


def test_packs_where_it_pays():
    packs = config(PACK=1)
    assert "gpu_tile_pack" in steps(gemm(2048, 2048, 2048), packs)[0]
    assert "gpu_tile_pack" not in steps(gemm(512, 512, 512), packs)[0]
    assert "gpu_tile_pack" not in steps(gemm(64, 65536, 512), packs)[0]
    small = replace(TRAITS, max_allocation=16 << 20)
    assert "gpu_tile_pack" not in steps(gemm(2048, 2048, 2048), packs, small)[0]


def test_packs_only_what_is_read_badly_where_it_lies():
    odd = config(PACK=2)
    assert "gpu_tile_pack" not in steps(gemm(2048, 2048, 2048), odd)[0]
    assert "gpu_tile_pack" in steps(gemm(2049, 2048, 2048), odd)[0]
    assert "gpu_tile_pack" in steps(gemm(2048, 2048, 2048, trans_a=True), odd)[0]
    assert "gpu_tile_pack" not in steps(gemm(4096, 4096, 4096, trans_a=True), odd)[0]


def test_pieces_of_scratch_memory_do_not_overlap():
    found, plan = steps(gemm(2049, 2047, 2001), config(PACK=1))
    step, defines = found["gpu_tiled"]
    at_b, at_c = step.args[-3:-1]
    depth = -(-2001 // defines["KC"]) * defines["KC"]
    assert at_b >= -(-2049 // defines["MC"]) * defines["MC"] * depth
    assert at_c - at_b >= -(-2047 // defines["NC"]) * defines["NC"] * depth
    assert plan.scratch_bytes >= 4 * at_c


def test_a_matrix_that_repeats_is_packed_once():
    both = steps(gemm(2048, 2048, 240, batch=3), config(PACK=1))[1]
    once = steps(gemm(2048, 2048, 240, batch=3, stride_b=0), config(PACK=1))[1]
    assert both.scratch_bytes - once.scratch_bytes == 2 * 2048 * 240 * 4


@pytest.mark.parametrize(
    ("change", "width"),
    [({}, 4), ({"lda": 2001}, 1), ({"ldb": 2049}, 1), ({"offset_b": 2}, 1), ({"aligned": False}, 1),
     ({"offset_a": 8}, 4)],
)  # fmt: skip
def test_vectors_are_read_only_where_all_are_aligned(change, width):
    assert steps(gemm(2000, 2000, 2000, **change))[0]["gpu_tiled"][1]["VG"] == width


def test_vectors_beyond_the_known_alignment_need_memory_of_the_device():
    wide = config((64, 64, 16, 8, 8, 8), VG=8, PACK=0, KC=32)
    assert steps(gemm(2048, 2048, 2048), wide)[0]["gpu_tiled"][1]["VG"] == 8
    shared = replace(TRAITS, unified_memory=True)
    assert ALIGNMENT < 8 * 4
    assert steps(gemm(2048, 2048, 2048), wide, shared)[0]["gpu_tiled"][1]["VG"] == 1


def test_offsets_inside_a_slice_are_64_bit_where_they_must():
    assert steps(gemm(2048, 2048, 2048))[0]["gpu_tiled"][1]["FAR"] == 0
    far = steps(gemm(2048, 2048, 2048, lda=2**26))[0]["gpu_tiled"][1]
    assert far["FAR"] == 1


def test_every_variant_has_candidates():
    found = set(FAMILY.candidates(TRAITS, S))
    for variant in VARIANTS:
        members = [c for c in found if all(c[k] == v for k, v in variant.items() if k != "PAD")]
        assert members, variant


@pytest.mark.parametrize("local_a", [0, 1])
@pytest.mark.parametrize("local_b", [0, 1])
@pytest.mark.parametrize("micro", [1, 4])
def test_blocking_schemes_are_points_of_the_space(local_a, local_b, micro):
    """None, one or both in local memory, with registers of one or of many elements."""
    tiled = local_a or local_b
    point = config(
        (16 * micro, 16 * micro, 16, micro, micro, 16),
        LOCAL_A=local_a, LOCAL_B=local_b, VG=1, VW=1, PAD=int(tiled), ZORDER=0, PACK=0,
        AHEAD=0, STAGES=1,
    )  # fmt: skip
    space = FAMILY.space(TRAITS, S)
    assert all(value in space[name] for name, value in point.params)
    assert not list(FAMILY.broken_rules(TRAITS, S, point))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"VW": 8, "MR": 4, "MC": 64}, "VW divides"),
        ({"KC": 4, "VG": 8}, "VG divides"),
        ({"LANES_M": 32}, "lanes"),
        ({"STAGES": 1}, "reading ahead"),
        ({"LOCAL_B": 0}, "packed panels"),
        ({"MC": 256, "NC": 256, "KC": 32}, "local memory"),
        ({"PAD": 1}, "start on a vector"),
        ({"KU": 5}, "KU divides"),
        ({"SLICED_K": 3}, "SLICED_K divides"),
        ({"SLICED_K": 2, "LOCAL_B": 0}, "shares of a slice"),
        ({"SLICED_K": 4, "MC": 256, "NC": 256, "MR": 16}, "local memory"),
        ({"MR": 16, "NR": 16, "MC": 256, "NC": 128}, "registers"),
        ({"TURN_A": 1, "LOCAL_A": 0}, "nothing to turn"),
    ],
)
def test_a_broken_rule_is_named(change, reason):
    assert any(reason in text for text in FAMILY.broken_rules(TRAITS, S, config(**change)))


def run(device, chosen, a, b, c, units, alpha=1.0, beta=0.0):
    """Run as on a device with so many compute units, with NaN in scratch memory before."""
    g = describe(a, b, c, reads_c=beta != 0)
    if device.traits.unified_memory:
        g = g._replace(aligned=not (address_of(a.data) | address_of(b.data)) % ALIGNMENT)
    else:
        g = g.dense()
    plan = FAMILY.plan(replace(device.traits, compute_units=units), g, chosen)
    places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
    KernelRunner(device, g, plan).execute((alpha, beta, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], c)
    return [step.kernel.name for step in plan.steps]


def forms_of(device, kernel):
    """Name what may show that a plan has a form: NVIDIA's GPUs add up a few parts by themselves."""
    joins = kernel == "gpu_tile_sum" and has_tickets(device.traits)
    return {kernel, "gpu_tiled"} if joins else {kernel}


FORMS = [
    (1, "gpu_tile_pack"),  # one unit has enough to do with any tile: nothing is cut
    (1000, "gpu_tile_sum"),  # a thousand never have
]


@pytest.fixture
def every_form(monkeypatch):
    """Pack and split problems that are small enough for a test."""
    monkeypatch.setattr(plan, "PACK_EDGE", 1)
    monkeypatch.setattr(tiling, "LEAST_PART", 32)
    monkeypatch.setattr(tiling, "JOIN", 0.0)
    monkeypatch.setattr(tiling, "WORTH", 1.0)


SMALL = (32, 32, 8, 4, 4, 8)
SLICED = (32, 32, 32, 4, 4, 8)  # deep enough for each share of four to have something to move


def small(precision, **variant):
    widest = max(1, 16 // precision.itemsize)
    widths = {name: min(widest, USUAL[name]) for name in ("VG", "VW")}
    return config(SMALL, **(widths | variant))


@pytest.mark.slow
@pytest.mark.usefixtures("every_form")
@pytest.mark.parametrize(
    ("code", "form", "operations"),
    pairwise("sdcz", FORMS, [("NN", 1), ("TC", 1), ("RT", 1), ("NT", 2)]),
    ids=str,
)
def test_packed_and_split_forms_are_right(device, code, form, operations, rng):
    (units, kernel), (ops, shares), precision = form, operations, PRECISIONS[code]
    if not FAMILY.supports(device.traits, precision):
        pytest.skip(f"{device.traits.describe()} has no {precision.real}")
    m, n, k = 71, 45, 131
    a, b = operand(rng, precision, m, k, ops[0], 1), operand(rng, precision, k, n, ops[1], 1)
    for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
        memory = np.full((n, m + 1), np.nan, precision.dtype).T
        c = memory[:m]
        if beta:
            c[...] = random_matrix(rng, precision, m, n)
        want, size = reference.gemm(alpha, value(a), value(b), beta, c)
        chosen = small(precision, SLICED_K=shares, KC=8 * shares)
        names = run(device, chosen, a, b, c, units, alpha, beta)
        assert forms_of(device, kernel) & set(names)
        reference.assert_within_bound(c, want, size, k, precision.eps)
        assert np.all(np.isnan(memory[m:]))


# Packing is tested above; without it some variants are the same.
UNPACKED = {" ".join(f"{k}{v[k]}" for k in v if k != "PACK"): v | {"PACK": 0} for v in VARIANTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "case"),
    pairwise(UNPACKED, "sc", [((37, 35, 29), "NN", 1), ((64, 40, 16), "TT", 0)]),
    ids=str,
)
def test_every_variant_is_right(device, name, code, case, rng):
    variant, precision = UNPACKED[name], PRECISIONS[code]
    widest = max(1, 16 // precision.itemsize)
    widths = {name: min(widest, (USUAL | variant)[name]) for name in ("VG", "VW")}
    tile = SLICED if "SLICED_K" in variant else SMALL
    chosen = config(tile, **(variant | widths))
    assert not list(FAMILY.broken_rules(device.traits, precision, chosen))
    (m, n, k), ops, gap = case
    a = operand(rng, precision, m, k, ops[0], gap)
    b = operand(rng, precision, k, n, ops[1], gap)
    c = np.full((n, m), np.nan, precision.dtype).T
    want, size = reference.gemm(1.0, value(a), value(b), 0.0, c)
    assert run(device, chosen, a, b, c, 1) == ["gpu_tiled"]
    reference.assert_within_bound(c, want, size, k, precision.eps)


@pytest.mark.parametrize("tile", [t for t in TILES if t[0] * t[1] <= 64 * 64], ids=str)
def test_tiles_are_right(device, tile, rng):
    chosen = FAMILY._config(S, tile, {"PACK": 0})
    if list(FAMILY.broken_rules(device.traits, S, chosen)):
        pytest.skip("this device cannot run it")
    a, b = operand(rng, S, 75, 34, "N", 1), operand(rng, S, 34, 67, "N", 1)
    c = np.full((67, 75), np.nan, np.float32).T
    want, size = reference.gemm(1.0, value(a), value(b), 0.0, c)
    run(device, chosen, a, b, c, 1)
    reference.assert_within_bound(c, want, size, 34, S.eps)


@pytest.mark.parametrize("k", [1, 4, 5, 17, 20, 21, 28, 36])
@pytest.mark.parametrize("variant", [{}, {"AHEAD": 0}, {"SLICED_K": 2, "AHEAD": 0}], ids=str)
def test_a_slice_that_ends_early_ends_where_k_does(device, variant, k, rng):
    chosen = config((32, 32, 16, 4, 4, 8), PACK=0, SPLIT=1, **variant)
    a, b = operand(rng, S, 45, k, "N", 1), operand(rng, S, k, 37, "T", 1)
    c = np.full((37, 45), np.nan, np.float32).T
    want, size = reference.gemm(1.0, value(a), value(b), 0.0, c)
    assert run(device, chosen, a, b, c, 1) == ["gpu_tiled"]
    reference.assert_within_bound(c, want, size, k, S.eps)


@pytest.mark.usefixtures("every_form")
def test_a_packed_stack_with_one_matrix_for_all(device, rng):
    a = rng.uniform(-1, 1, (3, 40, 21)).astype(np.float32)
    b = np.broadcast_to(rng.uniform(-1, 1, (21, 36)).astype(np.float32), (3, 21, 36))
    c = np.full((3, 36, 40), np.nan, np.float32).swapaxes(1, 2)
    names = run(device, small(S), Operand(a), Operand(b), c, 1)
    assert names == ["gpu_tile_pack", "gpu_tiled"]
    want = reference.wide(a) @ reference.wide(b)
    reference.assert_within_bound(c, want, np.abs(a) @ np.abs(b), 21, S.eps)


@pytest.mark.usefixtures("every_form")
@pytest.mark.parametrize(("units", "kernel"), FORMS, ids=["packed", "split"])
def test_forms_repeat_bit_by_bit(device, units, kernel, rng):
    a, b = operand(rng, S, 70, 300, "N", 0), operand(rng, S, 300, 70, "N", 0)
    results = set()
    for _ in range(20):
        c = np.full((70, 70), np.nan, np.float32, order="F")
        assert kernel in run(device, small(S), a, b, c, units)
        results.add(c.tobytes())
    assert len(results) == 1
