"""`nv_split`: what its survey and pack kernels write, on every device, against a NumPy model.

The accuracy of its products is tested in test_nv_split_accuracy.py, where there is a Hopper GPU.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyopencl as cl
import pytest
from helpers import GPU, heard, pairwise, read_scratch
from test_families import operand, value

from clgemm import settings
from clgemm.kernels import source
from clgemm.kernels.family import Config, Plan, gemm_args, precision_defines
from clgemm.kernels.nv_split import layout
from clgemm.kernels.nv_split.family import LOCAL_BYTES, RING, SURVEY_ITEMS, NvSplit
from clgemm.kernels.nv_split.layout import (
    MOST_PLACES,
    TIMES,
    Tile,
    best_tile,
    core,
    count_tiles,
    edges,
    lay_out,
    reals,
    share,
    spread_fp16,
    tiles_of,
    top_limit,
)
from clgemm.kernels.nv_split.parts import parts_of
from clgemm.problem import GENERAL, PRECISIONS, SYMMETRIC, Gemm, describe
from clgemm.runtime import host_memory, opencl
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner

FAMILY = NvSplit()
HOPPER = replace(GPU, compute_capability=(9, 0), compute_units=132, global_memory=80 << 30)
TARGETS = (14, 50)  # of fp16 and bf16
TOP_NONE, TOP_NOT_FINITE = -1000, 4000


def square(n, precision="s", **more):
    return Gemm(
        precision, n, n, n, 1, False, False, n, 0, False, False, n, 0, n, 0, reads_c=False
    )._replace(**more)


def config_of(tile):
    return Config.of("nv_split", {"MI": tile.mi, "BY": tile.by, "GROUP": 8})


def exponents(x):
    """Return floor(log2 |x|), 0 for zeros and for what is not finite."""
    ok = np.isfinite(x) & (x != 0)
    return np.where(ok, np.frexp(np.where(ok, x, 1).astype(np.float64))[1] - 1, 0)


def parts_as_reals(x):
    """View complex rows as (re, im, re, im, ...)."""
    return np.ascontiguousarray(x).view(np.float32) if np.iscomplexobj(x) else x


def expanded_rows(x):
    """Return the real rows of Y that a complex matrix stands for."""
    if not np.iscomplexobj(x):
        return x
    both = np.empty((2 * x.shape[0], 2 * x.shape[1]), np.float32)
    both[0::2, 0::2], both[0::2, 1::2] = x.real, -x.imag
    both[1::2, 0::2], both[1::2, 1::2] = x.imag, x.real
    return both


def records(rows, height):
    """Return (top, spread) of each `height` rows of elements, and each row's exponent."""
    rows = parts_as_reals(rows)
    exponent, mark = [], []
    for row in rows:
        nonzero = exponents(row)[row != 0]
        finite = np.all(np.isfinite(row))
        exponent.append(int(nonzero.max()) if nonzero.size and finite else 0)
        top = (int(nonzero.max()) if nonzero.size else TOP_NONE) if finite else TOP_NOT_FINITE
        mark.append((top, int(np.ptp(nonzero)) if nonzero.size and finite else 0))
    starts = range(0, len(rows), height)
    groups = [np.max(mark[i : i + height], axis=0) for i in starts]
    return np.array(exponent), np.array(groups)


def fp16_parts(x):
    high = x.astype(np.float16)
    return high, ((x - high.astype(np.float32)) * np.float32(2048)).astype(np.float16)


def bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def bf16_parts(x):
    first = bf16(x)
    second = bf16(x - first)
    return first, second, bf16(x - first - second)


def stored_order(rows):
    """Return which row of Y each stored row holds."""
    within = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]
    return [i // 16 * 16 + within[i % 16] for i in range(rows)]


def unpack(memory, depth, parts, height):
    """Undo panels and swizzle: the parts as (rows, k) arrays of 16-bit patterns."""
    mask, shift = (7, 0) if depth == 64 else (3, 1)
    panels = memory.view(np.uint16).reshape(-1, parts, height, depth // 8, 8)  # strip and slice
    out = np.empty_like(panels)
    for row in range(height):
        for c in range(depth // 8):
            out[:, :, row, c] = panels[:, :, row, c ^ (row >> shift & mask)]
    return out.reshape(-1, parts, height, depth)


def whole(panels, strips, part):
    """Join a part's slices and strips to one matrix."""
    count, _, height, depth = panels.shape
    x = panels[:, part].reshape(strips, count // strips, height, depth)
    return x.transpose(0, 2, 1, 3).reshape(strips * height, -1)


def packed(device, problem, a, b, tile):
    """Run all but the last kernel; return the tile, the layout, the scratch memory, and C."""
    if device.traits.max_work_group_size < SURVEY_ITEMS:
        pytest.skip(f"{device} cannot run work-groups of {SURVEY_ITEMS}")
    plan = FAMILY.plan(device.traits, problem, config_of(tile))
    runner = KernelRunner(device, problem, Plan(plan.steps[:-1], plan.scratch_bytes))
    c = np.full((problem.n, problem.m), np.nan, PRECISIONS[problem.precision].dtype).T
    places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
    runner.execute((1.0, 0.0, *places, NO_OFFSETS), poisoned=True)
    host_memory.fetch(device, places[2], c)
    host = read_scratch(device, plan.scratch_bytes)
    chosen = best_tile(problem, tile, device.traits.compute_units)
    return chosen, lay_out(problem, chosen, device.traits.compute_units), host, c


def check_panels(x, exponent, rows, memory, form, place, strips, height, slices):
    """Compare the parts of one operand with the model's."""
    depth, parts, itemsize = ((64, 2, 4), (32, 3, 6))[form]
    count = strips * height * slices * 64 * itemsize
    panels = unpack(memory[place : place + count], depth, parts, height)
    scaled = np.zeros((strips * height, slices * 64), np.float32)
    repeat = x.shape[0] // len(exponent)
    power = np.repeat(TARGETS[form] - exponent, repeat)[:, None]
    scaled[: x.shape[0], : x.shape[1]] = np.ldexp(x, power)
    want = (fp16_parts, bf16_parts)[form](scaled[rows])
    for part in range(parts):
        got = whole(panels, strips, part)
        bits = want[part].view(np.uint16) if form == 0 else want[part].view(np.uint32) >> 16
        # Zeros beyond the matrix may have any sign.
        np.testing.assert_array_equal(
            np.where(got == 0x8000, 0, got), np.where(bits == 0x8000, 0, bits)
        )


SHAPES = [(130, 257, 70), (64, 128, 128), (33, 300, 33), (200, 40, 200), (129, 129, 70)]


def check_edges(a, b, c, edge_x, edge_y):
    """Check the row and the column that belong to no tile, and that nothing else was written."""
    m, n = c.shape
    want, size = a @ b, np.abs(a) @ np.abs(b)
    made = np.zeros(c.shape, bool)
    made[m - edge_y :], made[:, n - edge_x :] = True, True
    np.testing.assert_array_equal(np.isnan(c), ~made)
    limit = 2 * a.shape[1] * np.finfo(np.float32).eps * size
    assert np.all(np.abs(c - want)[made] <= limit[made])


@pytest.fixture
def short(request, monkeypatch):
    """Take rows as too long for one kernel that surveys and packs, few or not, or as short."""
    whether = request.param == "short"
    monkeypatch.setattr(layout, "is_short", lambda _problem: whether)
    monkeypatch.setattr(layout, "FEW_RECORDS", 1e9 * (request.param == "few"))
    return whether


LENGTHS = ("long", "few", "short")


@pytest.mark.parametrize(
    ("code", "ops", "tile", "short"),
    pairwise("sc", ["NN", "TT", "CR", "RC", "TN"], TIMES, LENGTHS),
    indirect=["short"],
)
def test_survey_and_pack_are_as_modelled(device, code, ops, tile, short, rng):
    precision, edges_met = PRECISIONS[code], set()
    for case, (m, n, k) in enumerate(SHAPES):
        gap = 0 if case == 1 else 3  # aligned rows take the direct way
        a, b = (
            operand(rng, precision, m, k, ops[0], gap),
            operand(rng, precision, k, n, ops[1], gap),
        )
        hold, hold_b = value(a), value(b)
        hold[0, : k // 2] = 0
        hold_b[:, 5] = 0
        for x, changed, op in ((a, hold, ops[0]), (b, hold_b, ops[1])):
            x.data[...] = changed.conj() if op in "CR" and precision.is_complex else changed
        x_rows, y_rows = value(b).T, value(a)
        if case == 2:  # a strip that needs bf16, one of large and one of small numbers
            x_rows, y_rows = x_rows.copy(), y_rows.copy()
            a.data[1, :] *= np.float32(2.0**100)
            a.data[2, 3:] *= np.float32(2.0**-60)
            b.data[:, 1] *= np.float32(2.0**-130)
            x_rows, y_rows = value(b).T, value(a)
        c = np.zeros((n, m), precision.dtype).T
        problem = describe(a, b, c, reads_c=False)
        if not device.traits.unified_memory:
            problem = problem.dense()
        chosen, grid, memory, c = packed(device, problem, a, b, tile)
        split = grid.split
        assert (grid.pack_groups == 0) == short
        edge_x, edge_y = edges(problem, chosen)
        edges_met.add((edge_x, edge_y))
        wide = np.complex128 if precision.is_complex else np.float64
        check_edges(y_rows.astype(wide), x_rows.T.astype(wide), c, edge_x, edge_y)
        for rows, is_y in (
            (x_rows[: n - edge_x], False), (y_rows[: m - edge_y], True)
        ):  # fmt: skip
            exponent, marks = records(rows, grid.record_rows)
            place = split.exponents_y if is_y else split.exponents_x
            got = memory[place:].view(np.int32)[: len(exponent)]
            np.testing.assert_array_equal(got, exponent)
            place = split.records_y if is_y else split.records_x
            got = memory[place:][: marks.size * 4].view(np.int32).reshape(-1, 2)
            np.testing.assert_array_equal(got, marks)
            real = expanded_rows(rows) if is_y else parts_as_reals(rows)
            strips, height = (split.strips_y, chosen.by) if is_y else (split.strips_x, chosen.bx)
            order = stored_order(strips * height) if is_y else range(strips * height)
            both = (split.fp16_y, split.bf16_y) if is_y else (split.fp16_x, split.bf16_x)
            if case == 2:
                needed = (1,) if not is_y or strips == 1 else ()
            else:
                needed = (0, 1) if grid.pack_groups == 0 else (0,)
            for form in needed:
                check_panels(
                    real, exponent, list(order), memory, form, both[form],
                    strips, height, split.slices,
                )  # fmt: skip
    assert edges_met >= {(0, 0), (1, 0), (1, 1)}


@pytest.mark.parametrize(("code", "k", "ops"), pairwise("sc", [1027, 4099], ["NN", "TT", "CC"]))
def test_edges_meet_c(device, code, k, ops, rng):
    """The first kernel makes the last row and column if no tile has them: alpha A B + beta C."""
    if device.traits.max_work_group_size < SURVEY_ITEMS:
        pytest.skip(f"{device} cannot run work-groups of {SURVEY_ITEMS}")
    precision, (m, n) = PRECISIONS[code], (129, 257)
    a, b = operand(rng, precision, m, k, ops[0], 0), operand(rng, precision, k, n, ops[1], 0)
    for beta in (0, 1, -0.5):
        c = np.full((n, m), 3, precision.dtype).T
        problem = describe(a, b, c, reads_c=beta != 0)
        plan = FAMILY.plan(device.traits, problem, config_of(Tile(1, 128)))
        places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
        KernelRunner(device, problem, Plan(plan.steps[:1], plan.scratch_bytes)).execute(
            (2.0, beta, *places, NO_OFFSETS)
        )
        host_memory.fetch(device, places[2], c)
        want = 2 * (value(a).astype(np.complex128) @ value(b)) + 3 * beta
        size = np.abs(value(a)) @ np.abs(value(b))
        assert np.all(np.abs(c - want)[-1] <= 2 * k * np.finfo(np.float32).eps * size[-1])
        assert np.all(np.abs(c - want)[:, -1] <= 2 * k * np.finfo(np.float32).eps * size[:, -1])
        assert np.all(c[:-1, :-1] == 3)


STORES = """
__kernel void stores(__global const float4 *held, __global ELEM *c, int ldc, int rows, int columns,
                     const ELEM alpha, const ELEM beta)
{
    const int row = get_global_id(1), j = get_global_id(0), width = get_global_size(0) - 1;
    __global float *own = (__global float *)(c + 1 + row * ldc) + j * 4;
    const int late = (int)((ulong)own >> 2 & 3);
    Four left, four;
    left.all = held[row * width + max(j - 1, 0)];
    four.all = held[row * width + min(j, width - 1)];
    if (row < rows)
        store_four(shifted(left, four, late), own - late, j ? 0 : late,
                   min(columns, width * 4) - j * 4 + late, alpha, beta, beta_class(beta));
}
"""


@pytest.mark.parametrize("ldc", [18, 19, 20, 21])
@pytest.mark.parametrize("code", "sc")
def test_four_neighbours_are_stored_whatever_the_alignment(device, code, ldc, rng):
    """Vectors begin at 16 bytes; what belongs to the tile at the left or is beyond C stays."""
    precision = PRECISIONS[code]
    spec = FAMILY.plan(HOPPER, square(4096, code), config_of(Tile(2, 128))).steps[0].kernel
    text = source.text(spec._replace(files=())) + source.read("nv_split/shift.cl") + STORES
    kernel = cl.Kernel(opencl.build(device.context, text), "stores")
    held = rng.standard_normal((8, 16), dtype=np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    per_element = precision.dtype.itemsize // 4
    whole = held.view(precision.dtype)
    for rows, columns, alpha, beta in ((8, 16, 1, 0), (5, 6, 2, 1), (9, 40, -1, 0.5), (0, 4, 1, 1)):
        c = np.full((10, ldc), 3, precision.dtype)
        want = c.copy()
        r, w = min(rows, 8), min(columns, 16) // per_element
        want[:r, 1 : 1 + w] = alpha * whole[:r, :w] + beta * c[:r, 1 : 1 + w]
        if beta == 0:
            c[:r, 1 : 1 + w] = np.nan
        memory, got = (cl.Buffer(device.context, flags, hostbuf=x) for x in (held, c))
        kernel.set_args(
            memory, got, np.int32(ldc), np.int32(rows), np.int32(columns),
            precision.dtype.type(alpha), precision.dtype.type(beta),
        )  # fmt: skip
        cl.enqueue_nd_range_kernel(device.queue, kernel, (5, 8), None)
        cl.enqueue_copy(device.queue, c, got)
        np.testing.assert_allclose(c, want, rtol=1e-6)


@pytest.mark.parametrize("short", LENGTHS, indirect=True)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_survey_marks_what_is_not_finite(device, bad, short, rng):
    precision = PRECISIONS["s"]
    a, b = operand(rng, precision, 96, 70, "N", 0), operand(rng, precision, 70, 40, "N", 0)
    a.data[35, 69] = bad
    problem = describe(a, b, np.zeros((40, 96), np.float32).T, reads_c=False)
    _, grid, memory, _ = packed(device, problem, a, b, Tile(1, 64))
    assert (grid.pack_groups == 0) == short
    rows = grid.record_rows
    got = memory[grid.split.records_y :][: 96 // rows * 8].view(np.int32).reshape(-1, 2)
    assert got[35 // rows].tolist()[0] == TOP_NOT_FINITE
    np.testing.assert_array_equal(got, records(a.data, rows)[1])


DUMP = """
__kernel void dump(GEMM_ARGS, const Split s, __global uchar *scratch, __global int *out)
{
    Walk walk = start_walk(&g, &s, get_global_id(0));
    out += get_global_id(0) * 8 * 64;
    for (int i = 0; i < 64; i++) {
        const Segment t = next_segment(&g, &s, &walk, scratch);
        out[i * 8 + 7] = t.mode;
        if (t.mode == MODE_END)
            return;
        out[i * 8] = t.entry;
        out[i * 8 + 1] = t.x;
        out[i * 8 + 2] = t.y;
        out[i * 8 + 3] = t.first;
        out[i * 8 + 4] = t.last;
    }
}
"""


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "workers"),
    [
        (2049, 2049, 2049, 1, 132),
        (700, 600, 64, 3, 20),
        (64, 64, 640, 1, 132),
        (4097, 300, 200, 2, 7),
        (1300, 1100, 3100, 1, 132),
        (700, 2600, 1500, 1, 50),
        (2049, 1500, 900, 1, 33),
    ],
)
@pytest.mark.parametrize("tile", list(TIMES))
def test_workers_share_all_slices(device, tile, m, n, k, batch, workers):
    """Every slice of every tile belongs to one worker, and a worker's partial tile comes first."""
    problem = square(1)._replace(m=m, n=n, k=k, batch=batch, stride_a=m * k, lda=m, ldb=k, ldc=m)
    grid = lay_out(problem, tile, workers)
    spec = FAMILY.plan(HOPPER, problem, config_of(tile)).steps[0].kernel
    spec = spec._replace(
        files=("nv_split/split.cl", "nv_split/walk.cl"),
        defines=(*precision_defines(PRECISIONS["s"]).items(), ("MI", tile.mi), ("BY", tile.by)),
    )
    program = opencl.build(device.context, source.text(spec) + DUMP)
    out = np.full((workers, 64, 8), -1, np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = np.zeros(grid.scratch_bytes, np.uint8)
    scratch, got = (cl.Buffer(device.context, flags, hostbuf=x) for x in (memory, out))
    kernel = cl.Kernel(program, "dump")
    arguments = (gemm_args(core(problem, tile))[0], *np.zeros(2, np.float32), *(scratch,) * 3)
    kernel.set_args(np.frombuffer(arguments[0], np.uint8), *arguments[1:],
                    np.frombuffer(grid.split.pack(), np.uint8), scratch, got)  # fmt: skip
    cl.enqueue_nd_range_kernel(device.queue, kernel, (workers,), (1,))
    cl.enqueue_copy(device.queue, out, got)
    times = np.zeros((batch, grid.split.strips_x, grid.split.strips_y, grid.split.slices), int)
    slices = grid.split.slices
    places = {slices * p // q for q in range(1, MOST_PLACES + 1) for p in range(q)}
    thick = grid.split.strips_x - grid.split.thin
    for worker in out:
        segments = worker[: np.argmax(worker[:, 7] == 3)]
        partial = [entry[3] > 0 for entry in segments if entry[7] != 3]
        assert not any(partial[1 + sum(s[4] - s[3] == grid.split.slices for s in segments) :])
        for entry, x, y, first, last, *_ in segments:
            assert first < last
            assert x >= thick or first in places, "workers read k together"
            times[entry, x, y, first:last] += 1
    assert np.all(times == 1)


@pytest.mark.parametrize("code", "sc")
def test_supports_hopper_alone(code, monkeypatch):
    precision = PRECISIONS[code]
    assert FAMILY.supports(HOPPER, precision)
    for capability in (None, (8, 0), (8, 9), (10, 0), (12, 0)):
        assert not FAMILY.supports(replace(HOPPER, compute_capability=capability), precision)
    monkeypatch.setenv("CLGEMM_FP32", "fma")
    assert not FAMILY.supports(HOPPER, precision)


def test_a_wish_that_cannot_be_read_is_said_and_ignored(monkeypatch):
    monkeypatch.setenv("CLGEMM_FP32", "fam")
    settings._warn_once.cache_clear()
    settings._KNOWN_MODES.clear()
    assert heard(settings.splits_fp32) == [
        "CLGEMM_FP32='fam' is none of auto, fma; 'auto' is used",
    ]
    assert settings.splits_fp32()


def test_double_precision_is_not_split():
    assert not any(FAMILY.supports(HOPPER, PRECISIONS[code]) for code in "dz")


def test_every_candidate_fits_the_local_memory():
    for config in FAMILY.candidates(HOPPER, PRECISIONS["s"]):
        tile = Tile(config["MI"], config["BY"])
        stages = FAMILY.stages(tile)
        assert stages >= 2
        rows = tile.bx + tile.by
        exponents = RING * rows * 4
        assert stages * rows * 256 + rows * 32 + exponents < LOCAL_BYTES - 512


def test_the_ring_is_as_long_as_the_kernels():
    assert f"#define RING {RING} " in source.read("nv_split/gemm.cl")


def test_accepts_what_pays():
    assert FAMILY.accepts(square(1024))
    # Smaller ones are done sooner without a second launch; a complex product is four real ones.
    assert FAMILY.accepts(square(640))
    assert not FAMILY.accepts(square(512))
    assert FAMILY.accepts(square(512, "c"))
    assert not FAMILY.accepts(square(320, "c"))
    assert FAMILY.accepts(square(512, batch=4, stride_a=2**18, stride_c=2**18))
    assert not FAMILY.accepts(square(1150, k=190))  # with little depth it saves less
    assert not FAMILY.accepts(square(4096, k=63))  # the bound needs depth
    assert not FAMILY.accepts(square(4096, m=64))  # packing would cost more than it saves
    assert not FAMILY.accepts(square(2**30))


@pytest.mark.parametrize("code", "sc")
def test_parts_cover_the_problem_within_the_limit(code):
    limit = 200 << 20
    problem = square(2048, code)._replace(n=40000, ldc=4100, offset_c=7)
    parts = list(parts_of(problem, Tile(2, 128), 132, limit))
    assert len(parts) > 1
    assert sum(part.n for part in parts) == problem.n
    columns = 0
    for part in parts:
        assert part.offset_c == 7 + columns * 4100
        assert part.offset_b == columns * part.ldb
        columns += part.n
    tall = square(1024, code)._replace(m=60000, lda=60001, ldc=60002)
    parts = list(parts_of(tall, Tile(2, 128), 132, limit))
    rows = 0
    for part in parts:
        assert (part.offset_a, part.offset_b, part.offset_c) == (rows, 0, rows)
        assert lay_out(part, Tile(2, 128), 132).scratch_bytes <= limit
        rows += part.m
    assert rows == tall.m
    turned = next(p for p in parts_of(tall._replace(trans_a=True), Tile(2, 128), 132, limit)
                  if p.offset_c)  # fmt: skip
    assert turned.offset_a == turned.offset_c * 60001
    batch = square(512, code, batch=300, stride_a=512 * 512, stride_c=512 * 512)
    parts = list(parts_of(batch, Tile(1, 64), 132, limit))
    assert sum(part.batch for part in parts) == 300
    for part in parts:
        assert lay_out(part, Tile(1, 64), 132).scratch_bytes <= limit
        assert part.offset_b == 0
    assert parts[1].offset_c == parts[1].offset_a == parts[0].batch * 512 * 512


def test_limits_of_the_derivation():
    """What the module's text derives, in numbers: tau of the fp16 split, and sums that overflow."""
    for depth in (64, 100, 1024, 4096, 65536):
        tau = 2.0 ** (spread_fp16(depth) - 50)
        assert 2 * tau + 2.0**-22 <= (2 * np.sqrt(depth) + 12) * 2.0**-24
        assert 2.0 ** (top_limit(depth) - 1 + 2) * depth <= 2.0**127


def test_fp16_parts_keep_the_tolerance(rng):
    """The split's error is below tau wherever the spread of a row allows fp16."""
    for depth in (64, 4096, 65536):
        spread = spread_fp16(depth)
        tau = 2.0 ** (spread - 50)
        for low in (14 - spread, 0):
            x = np.exp2(rng.uniform(low, 15, 200000)).astype(np.float32)
            x = x[exponents(x) >= 14 - spread]
            high, small = fp16_parts(x)
            error = np.abs(x.astype(float) - high.astype(float) - small.astype(float) / 2048)
            assert np.all(error <= tau * x)


def test_bf16_parts_keep_everything(rng):
    x = np.exp2(rng.uniform(-108, 50, 200000)).astype(np.float32)
    assert np.array_equal(sum(p.astype(float) for p in bf16_parts(x)), x.astype(float))


SEGMENTS = """
// Of each worker: entry, x, y, first and last slice of at most `most` segments.
__kernel void segments(const Gemm g, const Split s, __global const uchar *scratch,
                       __global int *out, int most)
{
    Walk walk = start_walk(&g, &s, get_global_id(0));
    out += get_global_id(0) * most * 5;
    for (int i = 0; i < most; i++, out += 5) {
        const Segment t = next_segment(&g, &s, &walk, scratch);
        if (t.mode == MODE_END)
            return;
        out[0] = t.entry;
        out[1] = t.x;
        out[2] = t.y;
        out[3] = t.first;
        out[4] = t.last;
    }
}
"""


@pytest.mark.parametrize("tile", list(TIMES), ids=str)
@pytest.mark.parametrize("code", "sc")
def test_workers_walk_each_slice_once(device, code, tile):
    """All tiles of a general product; of a Gram product those that reach C's diagonal."""
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    workers, most, rows = 5, 1000, tile.by // PRECISIONS[code].parts
    for n, group, batch, triangle in pairwise(
        (257, 640, 1025, 2049, 2176), (4, 8), (1, 3), (GENERAL, SYMMETRIC)
    ):
        problem = square(n, code, k=300, batch=batch, triangle=triangle)
        split = lay_out(problem, tile, workers).split._replace(records_x=0, records_y=0)
        shape = {"MI": tile.mi, "BY": tile.by, "GROUP": group, "TRIANGLE": int(triangle)}
        spec = FAMILY.plan(HOPPER, problem, config_of(tile)).steps[0].kernel
        defines = tuple((dict(spec.defines) | shape).items())
        files = ("nv_split/split.cl", "nv_split/walk.cl")
        text = source.text(spec._replace(files=files, defines=defines)) + SEGMENTS
        kernel = cl.Kernel(opencl.build(device.context, text), "segments")
        out = np.full((workers, most, 5), -1, np.int32)
        got = cl.Buffer(device.context, flags, hostbuf=out)
        scratch = cl.Buffer(device.context, flags, hostbuf=np.zeros(1 << 16, np.int64))
        args = gemm_args(core(problem, tile))
        kernel.set_args(args[0], split.pack(), scratch, got, np.int32(most))
        cl.enqueue_nd_range_kernel(device.queue, kernel, (workers,), (1,))
        cl.enqueue_copy(device.queue, out, got)
        met = np.zeros((batch, split.strips_x, split.strips_y, split.slices), int)
        assert np.all(out[:, -1] == -1), "more segments than there is room for"
        for entry, x, y, first, last in out[out[..., 0] >= 0]:
            met[entry, x, y, first:last] += 1
        x, y = np.arange(split.strips_x)[:, None], np.arange(split.strips_y)
        wanted = ((y + 1) * rows > x * tile.bx) | (triangle == GENERAL)
        assert np.all(met == wanted[None, :, :, None])
        assert np.sum(met[..., 0]) == count_tiles(problem, tile)[0]


def kernels(problem):
    """Return the plan's kernels on Hopper, as names and defines."""
    plan = FAMILY.plan(HOPPER, problem, FAMILY.default(HOPPER, PRECISIONS[problem.precision]))
    return {step.kernel.name: dict(step.kernel.defines) for step in plan.steps}


def test_plans_have_the_kernels_that_a_problem_needs():
    long = kernels(square(4096))
    assert list(long) == ["nv_split_survey", "nv_split_pack", "nv_split_gemm"]
    assert long["nv_split_survey"]["EDGE_X"] == 0
    tall = kernels(square(2048, m=2049))["nv_split_survey"]
    assert (tall["EDGE_X"], tall["EDGE_Y"]) == (0, 1)
    assert list(kernels(square(1024))) == ["nv_split_short", "nv_split_gemm"]
    edge = kernels(square(1025))
    assert list(edge) == ["nv_split_short", "nv_split_gemm"]
    assert edge["nv_split_short"]["EDGE_X"] == edge["nv_split_short"]["EDGE_Y"] == 1
    assert len(kernels(square(512, "c"))) == 2
    assert len(kernels(square(256, "c", k=2048))) == 3  # rows of 4096 reals are not short


def test_what_needs_the_ptx_route_takes_it_where_there_is_ptx():
    problem, config = square(4096), config_of(Tile(2, 128))
    targets = [step.kernel.target for step in FAMILY.plan(HOPPER, problem, config).steps]
    assert targets == ["", "sm_90a", "sm_90a"]
    targets = [step.kernel.target for step in FAMILY.plan(GPU, problem, config).steps]
    assert targets[:2] == ["", ""]


def test_plans_choose_smaller_tiles_for_smaller_problems():
    largest = Tile(2, 128)
    assert best_tile(square(1024), largest, 132) == Tile(1, 64)
    assert best_tile(square(8192), largest, 132) == largest
    assert best_tile(square(8192), Tile(1, 128), 132) == Tile(1, 128)
    assert share(square(4096), largest, 132).whole == 512  # whole rounds, nearly
    shared = share(square(2051), largest, 132)
    assert (shared.whole, shared.piece) == (132, Fraction(1, 5))  # of 4 tiles and 17 thin ones
    assert tiles_of(square(2051), largest) == (9, 17, True)
    assert share(square(2049), largest, 132).whole == 128  # one row more does not cost a round
    assert tiles_of(square(2049), largest) == (8, 16, False)
    assert edges(square(2049), largest) == (1, 1)
    assert edges(square(2049, "c"), largest) == (1, 1)
    assert edges(square(2051), largest) == edges(square(2049, batch=2), largest) == (0, 0)
    assert edges(square(1), Tile(1, 64)) == (0, 0)
    assert reals(square(10, "c")) == (10, 20, 20)
