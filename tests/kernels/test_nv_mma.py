"""`nv_mma`: where it runs, what fits, and where its lanes look, without a GPU.

Its pack is tested in test_nv_split.py, its products in test_nv_split_accuracy.py on an NVIDIA GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest
from helpers import GPU
from test_nv_split import HOPPER, square, stored_order

from clgemm.kernels import FAMILIES, source
from clgemm.kernels.family import Config
from clgemm.kernels.nv_mma.family import NvMma
from clgemm.kernels.nv_split.layout import TIMES, Tile
from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl
from clgemm.tuning.store.lookup import competitors

FAMILY = NvMma()
AMPERE = replace(GPU, compute_capability=(8, 0), compute_units=108, global_memory=80 << 30)
ROOM_KB = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
TILES = [tile for tile in TIMES if tile.mi == 1]


@pytest.mark.parametrize("code", "sc")
def test_supports_all_from_ampere_on(code, monkeypatch):
    precision = PRECISIONS[code]
    for capability in (None, (6, 1), (7, 5)):
        assert not FAMILY.supports(replace(AMPERE, compute_capability=capability), precision)
    for capability in ROOM_KB:
        assert FAMILY.supports(replace(AMPERE, compute_capability=capability), precision)
    monkeypatch.setenv("CLGEMM_FP32", "fma")
    assert not FAMILY.supports(AMPERE, precision)


def test_double_precision_is_not_split():
    assert not any(FAMILY.supports(AMPERE, PRECISIONS[code]) for code in "dz")


def test_hopper_has_the_faster_instruction():
    """There nv_mma serves when asked for, and takes no time of a search."""
    assert FAMILY.supports(HOPPER, PRECISIONS["s"])
    names = [family.name for family in competitors(HOPPER, PRECISIONS["s"])]
    assert names.index("nv_split") == 0
    assert "nv_mma" not in names
    names = [family.name for family in competitors(AMPERE, PRECISIONS["s"])]
    assert names.index("nv_mma") < names.index("gpu_tiled")
    assert [f.name for f in FAMILIES].index("nv_split") < [f.name for f in FAMILIES].index("nv_mma")


@pytest.mark.parametrize("capability", list(ROOM_KB))
def test_every_candidate_fits_the_local_memory(capability):
    """Two slots at least, in whose place the fma tiles lie, too."""
    traits = replace(AMPERE, compute_capability=capability)
    room = ROOM_KB[capability] << 10
    for config in FAMILY.candidates(traits, PRECISIONS["c"]):
        for tile in (t for t in TILES if t.by <= config["BY"]):
            slots = FAMILY.slots(traits, tile) * (tile.bx + tile.by) * 192
            exponents = 2 * (tile.bx + tile.by) * 4
            assert 2 * (tile.bx + tile.by) * 192 <= slots < room - exponents - 512
            assert (tile.bx + tile.by) * 8 * 4 <= slots


def test_large_tiles_would_not_fit_the_registers():
    wide = Config.of("nv_mma", {"MI": 2, "BY": 128, "GROUP": 8})
    assert [rule for rule in FAMILY.broken_rules(AMPERE, PRECISIONS["s"], wide) if "regist" in rule]
    assert FAMILY.default(AMPERE, PRECISIONS["s"]) == Config.of(
        "nv_mma", {"MI": 1, "BY": 128, "GROUP": 8}
    )


@pytest.mark.parametrize(("capability", "sleeps"), [((8, 0), 0), ((9, 0), 1), ((12, 0), 1)])
def test_waits_are_those_of_the_capability(capability, sleeps):
    traits = replace(AMPERE, compute_capability=capability)
    plan = FAMILY.plan(traits, square(4096), FAMILY.default(traits, PRECISIONS["s"]))
    defines = dict(plan.steps[2].kernel.defines)
    assert defines["TRY_WAIT"] == sleeps
    assert defines["STAGES"] == FAMILY.slots(traits, Tile(1, defines["BY"]))


def test_plans_need_no_target():
    """Plain inline PTX: no patched program, which only wgmma needs."""
    plan = FAMILY.plan(AMPERE, square(4096), FAMILY.default(AMPERE, PRECISIONS["s"]))
    assert [step.kernel.name for step in plan.steps] == [
        "nv_split_survey", "nv_split_pack", "nv_mma_gemm",
    ]  # fmt: skip
    assert not any(step.kernel.target for step in plan.steps)
    assert plan.steps[2].global_size == (108 * 256,)
    text = source.text(plan.steps[2].kernel)
    assert "wgmma.mma" not in text
    assert "cp.async.bulk.shared" not in text.split("void nv_mma_gemm")[1]


def test_small_problems_are_left_to_fma():
    """Measured on an H200: gpu_tiled is as fast at 900 in s, 550 to 600 in c."""
    assert FAMILY.accepts(square(1024))
    assert not FAMILY.accepts(square(768))
    assert FAMILY.accepts(square(640, "c"))
    assert not FAMILY.accepts(square(512, "c"))
    assert FAMILY.accepts(square(4096, m=256))
    assert FAMILY.accepts(square(8192, k=64))
    assert not FAMILY.accepts(square(8192, k=63))  # the bound needs depth
    assert not FAMILY.accepts(square(8192, m=64))  # packing would cost more than it saves


PLACES = """
__kernel void places(__global int *out)
{
    const int item = get_global_id(0);
    out += item * (8 + 2 * BLOCKS);
    out[0] = WARP_X(item) * WARP_ROWS_X * 64 + place_x(item % 32);
    out[1] = WARP_Y(item) * WARP_ROWS_Y * 64 + place_y(item % 32);
    out[2] = row_of(item);
    out[3] = column_of(item);
    out[4] = BLOCKS;
    out[5] = FOURS;
    out[6] = place_in_panel(item);
    out[7] = place_in_slot(item);
    for (int i = 0; i < 2 * BLOCKS; i++)
        out[8 + i] = ROW_STEP(i);
}
"""


def places(device, tile):
    """Run nv_mma/mma.cl's functions for each work-item: slot places of X, Y and results."""
    spec = (
        FAMILY.plan(HOPPER, square(4096), FAMILY.default(HOPPER, PRECISIONS["s"])).steps[0].kernel
    )
    defines = dict(spec.defines) | {"MI": tile.mi, "BY": tile.by}
    spec = spec._replace(
        files=("nv_split/split.cl", "nv_mma/mma.cl"), defines=tuple(defines.items())
    )
    program = opencl.build(device.context, source.text(spec) + PLACES)
    out = np.zeros((256, 12), np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    got = cl.Buffer(device.context, flags, hostbuf=out)
    kernel = cl.Kernel(program, "places")
    kernel.set_args(got)
    cl.enqueue_nd_range_kernel(device.queue, kernel, (256,), (32,))
    cl.enqueue_copy(device.queue, out, got)
    return out


def slot_of(x):
    """Lay rows of 32 numbers out as a slot does: chunk c of 8 of row r lies at c ^ (r / 2 % 4)."""
    out = np.empty_like(x)
    for row in range(len(x)):
        for chunk in range(4):
            to = chunk ^ (row >> 1 & 3)
            out[row, to * 8 : to * 8 + 8] = x[row, chunk * 8 : chunk * 8 + 8]
    return out.reshape(-1)


def matrices(slot, at):
    """Model ldmatrix.x4 of a warp: lane 4g + q gets numbers 2q, 2q + 1 of row g of each matrix."""
    rows = np.stack([slot[a // 2 : a // 2 + 8] for a in at])  # that each lane points at
    return rows.reshape(4, 8, 4, 2).transpose(1, 2, 0, 3).reshape(32, 4, 2)


def product(x, y):
    """Model mma.sync m16n8k16: from registers [lane][4] and [lane][2] to [lane][4]."""
    lanes = np.arange(32)
    g, q = lanes // 4, lanes % 4
    full_x, full_y = np.empty((16, 16)), np.empty((8, 16))
    for half in range(2):
        for e in range(2):
            full_x[g, 2 * q + e] = x[:, 0, e]
            full_x[g + 8, 2 * q + e] = x[:, 1, e]
            full_x[g, 2 * q + 8 + e] = x[:, 2, e]
            full_x[g + 8, 2 * q + 8 + e] = x[:, 3, e]
            full_y[g, 2 * q + 8 * half + e] = y[:, half, e]
    d = full_x @ full_y.T
    return np.stack([d[g, 2 * q], d[g, 2 * q + 1], d[g + 8, 2 * q], d[g + 8, 2 * q + 1]], axis=1)


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.bx}x{tile.by}")
def test_lanes_multiply_what_they_store(device, tile, rng):
    """A model of ldmatrix and mma.sync, run on a slot, gives X Y^T where the store looks for it."""
    place = places(device, tile)
    blocks, fours = place[0, 4:6]
    x = rng.integers(-9, 10, (tile.bx, 32)).astype(float)
    y = rng.integers(-9, 10, (tile.by, 32)).astype(float)
    slot_x, slot_y = slot_of(x), slot_of(y[stored_order(tile.by)])
    got = np.full((tile.bx, tile.by), np.nan)
    for warp in range(8):
        item = slice(warp * 32, warp * 32 + 32)
        for i in range(blocks):
            for j in range(fours):
                acc = np.zeros((32, 8))
                for d in (0, 32):
                    part_x = matrices(slot_x, (place[item, 0] ^ d) + i * 1024)
                    part_y = matrices(slot_y, (place[item, 1] ^ d) + j * 1024)
                    for h in range(2):
                        acc[:, 4 * h : 4 * h + 4] += product(part_x, part_y[:, 2 * h : 2 * h + 2])
                for e, q in ((0, (0, 1, 4, 5)), (1, (2, 3, 6, 7))):
                    row = place[item, 2] + place[item, 8 + 2 * i + e]
                    for r in range(4):
                        got[row, place[item, 3] + 16 * j + r] = acc[:, q[r]]
    np.testing.assert_array_equal(got, x @ y.T)


@pytest.mark.parametrize("half", [0, 1])
def test_slots_are_halves_of_panels(device, half):
    """64 rows of a panel of fp16, as nv_split/pack.cl swizzles them, copied chunk by chunk."""
    place = places(device, TILES[0])
    x = np.arange(64 * 64).reshape(64, 8, 8)
    panel = np.empty_like(x)
    for row in range(64):
        for chunk in range(8):
            panel[row, chunk ^ (row & 7)] = x[row, chunk]
    panel, slot = panel.reshape(-1, 8), np.full((64 * 4, 8), -1)
    slot[place[:, 7] // 16] = panel[(place[:, 6] ^ 64 * half) // 16]
    rows = x.reshape(64, 64)[:, half * 32 : half * 32 + 32]
    np.testing.assert_array_equal(slot.reshape(-1), slot_of(rows))


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.bx}x{tile.by}")
def test_eight_lanes_read_different_banks(device, tile):
    for at in places(device, tile)[:, :2].T:
        for eight in at.reshape(-1, 8):
            assert len(set(eight // 16 % 8)) == 8
