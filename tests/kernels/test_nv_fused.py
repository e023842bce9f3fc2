"""`nv_fused`: plans on every machine; accuracy, special values and repetition on a Hopper GPU."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyopencl as cl
import pytest
from helpers import GPU, pairwise
from scipy.linalg import blas
from test_families import operand, value
from test_nv_split import (
    bf16_parts,
    expanded_rows,
    fp16_parts,
    parts_as_reals,
    stored_order,
    unpack,
)
from test_nv_split_accuracy import (
    CASES,
    KINDS,
    MAX,
    U,
    assert_runs_repeat,
    compare,
    multiply,
    operands,
    same_kinds,
    special,
    wide,
)

from clgemm.kernels import source
from clgemm.kernels.family import gemm_args
from clgemm.kernels.nv_fused import estimate
from clgemm.kernels.nv_fused.family import ITEMS, PAD, NvFused
from clgemm.kernels.nv_split.family import LOCAL_BYTES
from clgemm.kernels.nv_split.layout import SLICE, Tile, reals
from clgemm.problem import PRECISIONS, SYMMETRIC, Gemm, Operand, describe
from clgemm.runtime import opencl
from clgemm.tuning.measure.verify import random_matrix, run_once

FAMILY = NvFused()
HOPPER = replace(GPU, compute_capability=(9, 0), compute_units=132, global_memory=80 << 30)
TILES = list(estimate.TIMES)
SCHEDULES = [
    (Fraction(1), 2, True), (Fraction(1), 2, False), (Fraction(1, 5), 0, False),
    (Fraction(2, 3), 0, False), (Fraction(3, 4), 1, True),
]  # fmt: skip
"""Parts of a tile that are a work-group's, how many whole ones it has before, and whether those are
stored while the next one is computed."""
WAYS = [(tile, schedule) for tile in TILES for schedule in SCHEDULES]


def scheduled(g, tile, schedule):
    """Deal tiles out to work-groups in that way, if there are as many slices."""
    piece, rounds, _ = schedule
    tiles, slices = estimate.count_tiles(g, tile), -(-reals(g)[2] // SLICE)
    if piece.denominator == 1 or piece.denominator > slices:
        return estimate.Way(tile, tiles, Fraction(1), -(-tiles // (rounds + 1)), 0.0)
    groups = math.ceil(tiles / (rounds + piece))
    return estimate.Way(tile, min(tiles, rounds * groups), piece, groups, 0.0)


def of_size(m, n, k, code="s", **more):
    return Gemm(
        code, m, n, k, 1, False, False, m, 0, False, False, k, 0, m, 0, reads_c=False
    )._replace(**more)


def stack_of(batch, m, n, k, code="s"):
    strides = {"stride_a": m * k, "stride_b": k * n, "stride_c": m * n}
    return of_size(m, n, k, code, batch=batch, aligned=True, **strides)


def ways(names, *parameters):
    """Parametrize a test by a tile, a schedule, and more: each pair of values in some row."""
    rows = [
        pytest.param(*row, marks=[pytest.mark.families("nv_fused"), pytest.mark.device])
        for row in pairwise(WAYS, *parameters)
    ]
    return pytest.mark.parametrize(("config", *names.split()), rows, indirect=["config"])


@pytest.fixture
def config(request, device, monkeypatch):
    """Give the default configuration, while all plans take this tile and schedule."""
    monkeypatch.setattr(estimate, "best_way", lambda g, *_: scheduled(g, *request.param))
    monkeypatch.setattr(estimate, "stores_async", lambda *_: request.param[1][2])
    return FAMILY.default(device.traits, PRECISIONS["s"])


@ways("code case", "sc", CASES)
def test_error_is_within_the_bound_of_fma(device, config, code, case):
    compare(device, config, code, 300, 265, 512, case)


DEPTHS = [("s", 16), ("s", 17), ("s", 33), ("s", 64), ("s", 255), ("c", 16), ("c", 31), ("s", 8191)]
DEPTH_CASES = ["normal", "positive", "constant", "meet zeros 2^-30", "elements 2^+-20"]


@ways("depth case", DEPTHS, DEPTH_CASES)
def test_error_is_within_the_bound_at_all_depths(device, config, depth, case):
    code, k = depth
    compare(device, config, code, 131, 140, k, case)


@ways("code shape k kind", "sc", [(300, 265), (257, 257)], [130, 190], KINDS)
def test_what_is_not_finite_is_where_scipy_has_it(device, config, code, shape, k, kind):
    a, b = (x.copy(order="F") for x in operands(code, *shape, k, "normal"))
    special(a, b, kind)
    got = multiply(device, config, a, b)
    with np.errstate(all="ignore"):
        want = (blas.sgemm if code == "s" else blas.cgemm)(1, a, b)
        size = np.abs(np.nan_to_num(wide(a))) @ np.abs(np.nan_to_num(wide(b)))
        ok = np.isfinite(want) & (np.abs(want) < MAX / 4)
    same_kinds(got, want)
    assert np.all(np.abs(wide(got[ok]) - wide(want[ok])) <= 4 * k * U * size[ok])


SHAPES = [(129, 127, 65), (2, 300, 200), (64, 2, 99), (700, 33, 129), (257, 385, 16), (40, 41, 700)]


@ways("code ops shape beta", "sc", ["NN", "TN", "NT", "TT", "CN", "RC"], SHAPES, [0, 1, -0.5])
def test_shapes_orders_and_factors(device, config, code, ops, shape, beta, rng):
    """C holds NaN where it is not to be read, scratch always."""
    precision, (m, n, k) = PRECISIONS[code], shape
    a, b = operand(rng, precision, m, k, ops[0], 3), operand(rng, precision, k, n, ops[1], 3)
    before = np.asfortranarray(rng.standard_normal((m, n)).astype(precision.dtype))
    c = before.copy(order="F") if beta else np.full((n, m), np.nan, precision.dtype).T
    run_once(device, config, a, b, c, -2.0, beta, poison=True)
    left, right = wide(value(a)), wide(value(b))
    exact, size = -2 * (left @ right), 2 * np.abs(left) @ np.abs(right)
    if beta:
        exact, size = exact + beta * wide(before), size + 4 * np.abs(before)
    assert np.all(np.abs(c - exact) <= k * U * size)


@ways("code k small", "sc", [130, 190], [-90, -120, -149])
def test_what_is_too_small_for_the_split_is_computed_anew(device, config, code, k, small):
    """One tiny float, far from others, in any place of a row and in either operand."""
    for place in (0, 5, 77, 129):
        a, b = (x.copy(order="F") for x in operands(code, 140, 150, k, "normal"))
        (a if place % 2 else b.T)[place, place] = 2.0**small
        # What it meets is large, and nothing else is there: an error would show.
        for x in (a[place], b[:, place]):
            x[np.arange(len(x)) != place] = 0
        b[place] *= np.float32(2.0**60)
        exact, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
        got = multiply(device, config, a, b)
        assert np.all(np.abs(wide(got) - exact) <= k * U * size + 300 * 2.0**-149)


# What producers write, on any device: a work-group of them fills a slot for each turn of all tasks.
STUBS = """
#define __local __global
#define work_item() ((int)get_local_id(0) + 256)
#define mbarrier_wait(address, parity)
#define mbarrier_arrive(address)
#define warp_sync()
#define publish_to_async()
#define OPAQUE(x)
#define leave_largest(at, x) atomic_max(at, x)
#define producers_sync() barrier(CLK_GLOBAL_MEM_FENCE)
"""
FILL = """
__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void fill(GEMM_ARGS, int tiles, int uncut, int piece, int pieces, int strips_x, int strips_y,
          int slices, __global uchar *slots, __global uint *least, __global Marks *marks)
{
    const Tasks all = {tiles, uncut, piece, pieces, strips_x, strips_y, slices};
    const int group = get_group_id(0);
    produce(&g, &all, a, b, slots + (long)group * STAGES * SLOT, 0, 0, least + group * 2 * RING,
            marks + group);
}
"""
FILES_OF_PRODUCERS = (
    "nv_split/turns.cl", "nv_fused/tasks.cl", "nv_fused/fp16.cl", "nv_fused/chunks.cl",
    "nv_fused/produce.cl",
)  # fmt: skip
SLOTS = 144  # of a work-group, at least
SOME_SMALL = np.float32(2.0**-20).view(np.uint32)
MARKS = (
    ("factor", np.float32, SLOTS), ("left_out", np.int32, SLOTS), ("misfits", np.uint32, 3),
    ("extremes", np.uint32, 4),
)  # fmt: skip


def filled(device, problem, a, b, tile):
    """Run the producers; return slots as bytes, least floats as bits, and marks, by work-group."""
    config = FAMILY.default(HOPPER, PRECISIONS[problem.precision])
    step = FAMILY.plan(HOPPER, problem, config).steps[0]
    groups = step.global_size[0] // ITEMS
    defines = tuple((dict(step.kernel.defines) | {"STAGES": SLOTS}).items())
    head = source.text(step.kernel._replace(files=(), defines=defines))
    head += source.read("nv_split/split.cl") + source.read("nv_split/parts.cl")
    body = "".join(source.read(file) for file in FILES_OF_PRODUCERS)
    program = cl.Program(device.context, head + STUBS + body + FILL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler says of it
        program.build(["-cl-opt-disable"], cache_dir=False)  # which is twenty times as fast
    kernel = cl.Kernel(program, "fill")
    slots = np.full((groups, SLOTS, (tile.bx + tile.by) * 192), 0xFF, np.uint8)
    least = np.full((groups, 8, 2), 0xFFFFFFFF, np.uint32)
    marks = np.zeros(groups, [(x, t, (n,)) for x, t, n in MARKS])
    marks["left_out"] = -1
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = [cl.Buffer(device.context, flags, hostbuf=x) for x in (a, b, slots, least, marks)]
    dtype = PRECISIONS[problem.precision].dtype.type
    kernel.set_args(
        gemm_args(problem)[0], dtype(1), dtype(0), *memory[:3],
        *(np.int32(x) for x in step.args[6:13]), *memory[2:],
    )  # fmt: skip
    cl.enqueue_nd_range_kernel(device.queue, kernel, (groups * 256,), (256,))
    cl.enqueue_copy(device.queue, slots, memory[2])
    cl.enqueue_copy(device.queue, least, memory[3])
    cl.enqueue_copy(device.queue, marks, memory[4])
    return slots, least, marks


def tasks_of(way, tiles, slices, group):
    """Give the tiles of a work-group, and the slices that it computes of each."""
    for tile in range(group, way.whole, way.groups):
        yield tile, 0, slices
    begin, end = group * way.piece, min((group + 1) * way.piece, tiles - way.whole)
    for tile in range(math.floor(begin), math.ceil(end)):
        first, last = (min(max(x - tile, 0), 1) * slices for x in (begin, end))
        yield way.whole + tile, math.floor(first), math.floor(last)


def rows_of_strip(rows, strip, height, depth):
    """Return a strip's rows, those beyond the matrix as its last one, with zeros up to `depth`."""
    places = np.minimum(np.arange(strip * height, (strip + 1) * height), len(rows) - 1)
    return np.pad(rows[places], ((0, 0), (0, depth - rows.shape[1])))


def power_for(largest):
    exponent = math.frexp(largest)[1] - 1 if largest else 0
    return 2.0 ** min(max(12 - exponent, -57), 57)


def fits_fp16(x, power):
    scaled = np.abs(x[x != 0]).astype(float) * power
    return not scaled.size or (scaled.min() >= 2.0**-14 and scaled.max() < 65520)


def choice(slots):
    """Return the powers that rows of X and Y choose, if not all are 0, and whether they fit."""
    sizes = [np.concatenate([np.abs(x[x != 0]).astype(float) for x in rows]) for rows in slots]
    if not all(x.size for x in sizes):
        return None, False
    powers = [power_for(x.max()) for x in sizes]
    least = [x.min() * p for x, p in zip(sizes, powers, strict=True)]
    most = [x.max() * p for x, p in zip(sizes, powers, strict=True)]
    return powers, min(least) >= 2.0**-10 and max(most) < 2.0**15


class Slots:
    """Model of what a work-group fills."""

    def __init__(self, strips, depth, *, in_fp16, has_vectors):
        self.strips, self.depth, self.has_vectors = strips, depth, has_vectors
        self.is_known, self.in_fp16, self.powers = not in_fp16, False, None
        self.seen = []  # slots that chose
        self.count = self.left_out = 0

    def fill(self, tasks):
        """Yield slots.

        Of each: its task's number and tile, its rows of X and Y, the powers they are multiplied
        by, none for bf16, and whether it is left out.
        """
        for number, (tile, first, last) in enumerate(tasks):
            left = list(range(first * SLICE, min(last * SLICE, self.depth), 32))
            while left:
                if not self.is_known and (self.has_vectors or left[0] + 32 <= self.depth):
                    self.choose(tile, left[0])
                slots = self.fp16(tile, left) if self.in_fp16 else self.bf16(tile, left)
                for rows, powers, is_left_out in slots:
                    self.count += 1
                    yield number, tile, rows, powers, is_left_out

    def anew(self, tile, at):
        """Return rows of a slot that is read element by element, with zeros behind k."""
        return [x[:, at : at + 32] for x in self.strips.rows(tile)]

    def begin(self, at):
        """Return where a slot that is read in vectors begins: all of it lies inside."""
        return min(at, self.depth - 32) if self.has_vectors else at

    def slot(self, tile, at):
        """Return its rows: X has zeros for what the slot before has."""
        x, y = self.anew(tile, self.begin(at))
        x = x.copy()
        x[:, : at - self.begin(at)] = 0
        return [x, y]

    def choose(self, tile, at):
        self.seen.append(self.anew(tile, self.begin(at)))
        self.powers, self.in_fp16 = choice(list(zip(*self.seen, strict=True)))
        self.is_known = self.powers is not None

    def bf16(self, tile, left):
        now = left[:] if self.is_known else left[:1]
        del left[: len(now)]
        yield from ((self.slot(tile, at), None, False) for at in now)

    def fp16(self, tile, left):
        now, misfits = left[: min(max(self.count, 8), 32)], []
        del left[: len(now)]
        for at in now:
            fits = all(map(fits_fp16, self.slot(tile, at), self.powers))
            misfits += [] if fits else [at]
            yield self.slot(tile, at), self.powers, not fits
        self.left_out += len(misfits)
        self.in_fp16 = self.left_out <= 1 + self.count // 16
        # What is left of the batch may be filled as if it had not been yet.
        is_rest = not self.in_fp16 and misfits == now[len(now) - len(misfits) :]
        again = self.slot if is_rest else self.anew
        yield from ((again(tile, at), None, False) for at in misfits)


def check_parts(panel, rows, inside, power):
    """Compare the parts in a slot, of rows inside the matrix, with the model's.

    Zeros may have any sign.
    """
    rows = np.ascontiguousarray(rows)
    got = unpack(panel.copy(), 32, 3, len(rows))[0]
    if power:
        parts = [x.view(np.uint16) for x in fp16_parts(rows * np.float32(power))]
    else:
        parts = [x.view(np.uint32) >> 16 for x in bf16_parts(rows)]
    for part, bits in zip(got, parts, strict=False):
        np.testing.assert_array_equal(
            np.where(part == 0x8000, 0, part)[inside], np.where(bits == 0x8000, 0, bits)[inside]
        )


def with_memory(rng, precision, rows, columns, op, gap):
    """Make op(X) in memory of whole 16 bytes, with `gap` elements of NaN between its columns."""
    tall, wide = (rows, columns) if op in "NR" else (columns, rows)
    memory = np.full(-(-wide * (tall + gap) // 4) * 4, np.nan, precision.dtype)
    x = memory[: wide * (tall + gap)].reshape(wide, tall + gap).T[:tall]
    x[...] = random_matrix(rng, precision, tall, wide)
    return memory, Operand(x if op in "NR" else x.T, conj=op in "CR" and precision.is_complex)


def least_bits(rows):
    """Return the bits less 1 of the least float that is not 0, if it is small."""
    bits = (np.ascontiguousarray(rows).view(np.uint32) & 0x7FFFFFFF) - np.uint32(1)
    return bits.min() if bits.min() < SOME_SMALL else 0xFFFFFFFF


class Strips:
    """The operands of a stack of products, as the rows of its tiles."""

    def __init__(self, a, b, tile):
        self.reals = [(parts_as_reals(y.T), expanded_rows(x)) for x, y in zip(a, b, strict=True)]
        self.heights = tile.bx, tile.by
        (x, self.depth), (self.rows_y, _) = (z.shape for z in self.reals[0])
        self.strips_x, self.strips_y = -(-x // tile.bx), -(-self.rows_y // tile.by)

    def places(self, tile):
        """Return the strips of X and Y that a tile has, within its entry of the stack."""
        return divmod(tile % (self.strips_x * self.strips_y), self.strips_x)[::-1]

    def rows(self, tile):
        """Return the reals of X and Y, with zeros behind k."""
        depth = -(-self.depth // SLICE) * SLICE
        reals = self.reals[tile // (self.strips_x * self.strips_y)]
        return [
            rows_of_strip(x, strip, height, depth)
            for x, strip, height in zip(reals, self.places(tile), self.heights, strict=True)
        ]


def may_read_vectors(problem):
    """Tell whether a last slot of which all lies inside k is read in vectors."""
    precision = PRECISIONS[problem.precision]
    deepest = -1 if estimate.takes_fp16(problem) else problem.k - 32 // precision.parts
    lie = [estimate.how_rows_lie(problem, is_y=is_y) for is_y in (False, True)]
    return deepest >= 0 and (estimate.ALIGNED not in lie or deepest * precision.itemsize % 16 == 0)


def check_slots(strips, tasks, slots, least, marks, *, has_vectors):
    """Compare what a work-group filled with the model."""
    depth, height_y = strips.depth, strips.heights[1]
    in_fp16, order = depth > 160, np.array(stored_order(height_y))
    lowest, count = np.full_like(least, 0xFFFFFFFF), 0
    model = Slots(strips, depth, in_fp16=in_fp16, has_vectors=has_vectors)
    for number, tile, (x, y), powers, is_left_out in model.fill(tasks):
        if not is_left_out:
            inside = strips.places(tile)[1] * height_y + order < strips.rows_y
            panel_x, panel_y = np.split(slots[count], [strips.heights[0] * 192])
            check_parts(panel_x, x, slice(None), powers and powers[0])
            check_parts(panel_y, y[order], inside, powers and powers[1])
        if in_fp16:
            assert marks["factor"][count] == (1 / np.prod(powers) if powers else 0)
            assert (marks["left_out"][count] == count) == is_left_out
        if not powers:
            lowest[number] = np.minimum(lowest[number], [least_bits(x), least_bits(y)])
        count += 1
    np.testing.assert_array_equal(least, lowest)
    assert count <= SLOTS
    assert np.all(slots[count:] == 0xFF), "nothing else is computed"


LAYOUTS = ["NN", "TN", "NT", "TT", "RC", "CR"]
CONTENTS = ["tiny", "jump", "huge", "edge", "spread", "zeros", "graded"]
EDGE = (
    (0, 0, 2.0**-23), (0, 1, 2.0**-23), (1, 0, 2.0**-27), (2, 0, 2.0**-27 * (1 - 2.0**-24)),
    (4, 1, 7.99804), (9, 1, 7.998047), (10, 1, 2.0**-27),
)  # fmt: skip
"""Slots of which a float of Y or X just fits fp16, or does not, where the largest is below 1."""


def with_contents(a, b, contents):
    """Put floats into the operands that fp16 does not hold, or not with powers for other ones."""
    k = a.shape[1]
    if contents == "tiny":
        a[0, :3] = 0, 2.0**-90, 2.0**-30
        b[k // 2, 0] = 2.0**-40
    elif contents == "jump":  # at one place of k, and zeros
        a[:, k // 3 :] *= np.float32(2.0**40)
        a[:, : k // 5] = 0
        b[k // 3 :] *= np.float32(2.0**-35)
    elif contents == "wide":
        a *= np.float32(2.0) ** (np.arange(a.size).reshape(a.shape) % 60 - 30)
    elif contents == "zeros":  # in some slots before others, of both or of one
        a[:, : k // 4] = 0
        b[: k // 3] = 0
        a[:, k // 3] = 256
    elif contents == "spread":  # a bit more than the first slot may hold
        (a if k % 2 else b.T)[0, 0] = 2.0**-23 * (1 - 2.0**-23)
    elif contents == "graded":
        a *= np.float32(2.0) ** (np.arange(k) // -(-k // 12) * -5)
    elif contents == "edge":
        for slot, is_x, x in EDGE:
            at = slot * 32 // (1 + np.iscomplexobj(a))
            (b.T if is_x else a)[0, at : at + 1] = x  # nothing, behind k
    elif k % 2:
        b *= np.float32(2.0**100)
    else:
        a[:, :: k // 4] *= np.float32(2.0**100)
        b *= np.float32(2.0**-100)


class Filling(NamedTuple):
    """Operands of which producers fill slots, and how tiles are dealt out."""

    code: str
    ops: str
    tile: Tile
    schedule: tuple[Fraction, int, bool]
    gap: int
    contents: str = ""
    batch: int = 1
    shares_b: bool = False


def check_producers(device, filling, shape, rng, monkeypatch):
    precision, (m, n, k) = PRECISIONS[filling.code], shape
    batch, several_b = filling.batch, 1 if filling.shares_b else filling.batch
    drawn = (
        [with_memory(rng, precision, *size, op, filling.gap) for _ in range(count)]
        for size, op, count in zip([(m, k), (k, n)], filling.ops, [batch, several_b], strict=True)
    )
    (memory_a, a), (memory_b, b) = (zip(*entries, strict=True) for entries in drawn)
    if filling.contents:
        with_contents(a[0].data, b[0].data, filling.contents)
    problem = describe(a[0], b[0], np.zeros((n, m), precision.dtype).T, reads_c=False)
    stride_a, stride_b = (len(x[0]) * (len(x) > 1) for x in (memory_a, memory_b))
    strides = {"stride_a": stride_a, "stride_b": stride_b, "stride_c": m * n * (batch > 1)}
    problem = problem._replace(aligned=True, batch=batch, **strides)
    way = scheduled(problem, filling.tile, filling.schedule)
    monkeypatch.setattr(estimate, "best_way", lambda *_: way)
    found = filled(device, problem, *map(np.concatenate, (memory_a, memory_b)), filling.tile)
    left, right = ([value(x) for x in several] for several in (a, b * (batch // several_b)))
    strips, has_vectors = Strips(left, right, filling.tile), may_read_vectors(problem)
    met = np.zeros(
        (estimate.count_tiles(problem, filling.tile), -(-k * precision.parts // SLICE)), int
    )
    for group in range(way.groups):
        tasks = list(tasks_of(way, *met.shape, group))
        check_slots(strips, tasks, *(x[group] for x in found), has_vectors=has_vectors)
        for at_tile, first, last in tasks:
            met[at_tile, first:last] += 1
    assert np.all(met == 1), "the model deals out each slice once"


@pytest.mark.parametrize(
    ("code", "ops", "tile", "schedule", "gap", "contents"),
    pairwise("sc", LAYOUTS, TILES, SCHEDULES[1:], [0, 1, 3], CONTENTS),
)
def test_producers_write_what_the_tensor_cores_read(
    device, code, ops, tile, schedule, gap, contents, rng, monkeypatch
):
    if device.traits.max_work_group_size < 256:
        pytest.skip(f"{device} cannot run work-groups of 256")
    ce = PRECISIONS[code].parts
    filling = Filling(code, ops, tile, schedule, gap, contents)
    for shape in (
        ((tile.by + 6) // ce, tile.bx + 1, 350),
        (50 // ce, tile.bx - 28, 192),
        (9, tile.bx + 3, 167),
        (20, 20, 65 // ce),
    )[: 4 if contents == "tiny" else 3]:
        check_producers(device, filling, shape, rng, monkeypatch)


@pytest.mark.parametrize(
    ("code", "ops", "tile", "schedule", "gap", "k", "stack"),
    pairwise(
        "sc", LAYOUTS, [Tile(1, 64), Tile(1, 96)], SCHEDULES[1::3], [0, 3], [32, 47, 48, 64, 176],
        [(1, False), (3, False), (3, True)],
    ),
)  # fmt: skip
def test_producers_go_on_to_the_next_task(
    device, code, ops, tile, schedule, gap, k, stack, rng, monkeypatch
):
    """Of which there are several, of whole strips and others, with a rest of k and without."""
    if device.traits.max_work_group_size < 256:
        pytest.skip(f"{device} cannot run work-groups of 256")
    filling = Filling(code, ops, tile, schedule, gap, "", *stack)
    shape = (2 * tile.by + 10) // PRECISIONS[code].parts, 3 * tile.bx - 30, k
    check_producers(device, filling, shape, rng, monkeypatch)


@ways("code ops contents", "sc", ["NN", "TT", "CN", "NR"], [*CONTENTS, "wide"])
def test_what_fp16_does_not_hold_is_within_the_bound(device, config, code, ops, contents, rng):
    precision, (m, n, k) = PRECISIONS[code], (141, 150, 709)
    a, b = operand(rng, precision, m, k, ops[0], 1), operand(rng, precision, k, n, ops[1], 2)
    with_contents(a.data, b.data, contents)
    left, right = wide(value(a)), wide(value(b))
    c = np.full((n, m), np.nan, precision.dtype).T
    run_once(device, config, a, b, c, 1.0, 0.0, poison=True)
    first = c.copy()
    assert np.all(np.abs(wide(c) - left @ right) <= k * U * (np.abs(left) @ np.abs(right)))
    run_once(device, config, a, b, c, 1.0, 0.0, poison=True)
    np.testing.assert_array_equal(c, first)


# Which work-groups have a part of a tile, and where each of them keeps it.
PARTS = """
__kernel void parts(int tiles, int piece, int pieces, int slices, int most, __global int *out)
{
    const Tasks all = {tiles, 0, piece, pieces, 1, tiles, slices};
    const int tile = get_global_id(0);
    const int2 groups = groups_of_tile(&all, tile);
    out += tile * (most + 2);
    out[0] = groups.x;
    out[1] = groups.y;
    for (int i = 0; i < min(groups.y, most); i++)
        out[2 + i] = place_of_part(&all, tile, groups.x + i);
}
"""


@pytest.mark.parametrize("slices", [32, 33, 1000])
@pytest.mark.parametrize("piece", [Fraction(*x) for x in ((1, 2), (1, 32), (2, 3), (5, 7), (7, 8))])
def test_parts_of_a_tile_are_kept_apart_and_found(device, piece, slices):
    tiles, most = 23, 40
    way = estimate.Way(Tile(1, 128), 0, piece, math.ceil(tiles / piece), 0.0)
    want: dict[int, list[int]] = {tile: [] for tile in range(tiles)}
    for group in range(way.groups):
        for number, (tile, _, _) in enumerate(tasks_of(way, tiles, slices, group)):
            want[tile].append(2 * group + number)
    spec = FAMILY.plan(HOPPER, of_size(9, 9, 64), FAMILY.default(HOPPER, PRECISIONS["s"])).steps[0]
    text = source.text(spec.kernel._replace(files=("nv_split/split.cl", "nv_fused/tasks.cl")))
    kernel = cl.Kernel(opencl.build(device.context, text + PARTS), "parts")
    out = np.full((tiles, most + 2), -1, np.int32)
    got = cl.Buffer(device.context, cl.mem_flags.WRITE_ONLY, out.nbytes)
    numbers = (np.int32(x) for x in (tiles, piece.numerator, piece.denominator, slices, most))
    kernel.set_args(*numbers, got)
    cl.enqueue_nd_range_kernel(device.queue, kernel, (tiles,), None)
    cl.enqueue_copy(device.queue, out, got)
    for tile, places in want.items():
        assert list(out[tile, :2]) == [places[0] // 2, len(places)]
        assert list(out[tile, 2 : 2 + len(places)]) == places
    kept = [place for places in want.values() for place in places]
    assert len(set(kept)) == len(kept)
    assert max(kept) < 2 * way.groups, "what the scratch holds"


# The accumulators hold the numbers of places in a tile; those of the columns to store come first.
SHARE = """
__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void share(GEMM_ARGS, int x, int y, int first, int count)
{
    float acc[BLOCKS][ACCUMULATORS];
    const int row = row_of(work_item()), column = column_of(work_item()) + first * 16;
    for (int i = 0; i < BLOCKS; i++)
        for (int q = 0; q < ACCUMULATORS; q++)
            acc[i][q] = (row + ROW_STEP(2 * i + q / 2 % 2)) * BY + column + q / 8 * 16 +
                        q / 4 % 2 * 2 + q % 2;
    store_columns(acc, &g, x, y, 0, first, count, 0, MODE_FMA, c, alpha, beta);
}
"""


def accumulators():
    """Say where accumulators lie in a tile, for any device."""
    text = source.read("nv_split/wgmma.cl")
    return text[text.index("#define ACCUMULATORS") : text.index("#define SM90A")]


@pytest.mark.parametrize("parts", [1, 3, 11])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("code", "sc")
def test_those_that_add_up_store_each_its_columns(device, code, tile, parts):
    """Whole tiles; the others are stored with the help of neighbours in a warp, on a GPU."""
    if device.traits.max_work_group_size < 256:
        pytest.skip(f"{device} cannot run work-groups of 256")
    precision = PRECISIONS[code]
    problem = of_size(2 * tile.by // precision.parts, 2 * tile.bx, 64, code)
    spec = FAMILY.plan(HOPPER, problem, FAMILY.default(HOPPER, precision)).steps[0].kernel
    sizes = {"MI": tile.mi, "BY": tile.by, "GROUPS_X": tile.groups_x}
    defines = tuple((dict(spec.defines) | sizes).items())
    stores = source.read("nv_split/store.cl")
    stores = re.sub(r'asm volatile\("shfl.*?\);', "got = x;", stores, flags=re.DOTALL)
    text = source.text(
        spec._replace(files=("nv_split/split.cl", "nv_split/shift.cl"), defines=defines)
    )
    text += "#define work_item() ((int)get_local_id(0))\n" + accumulators() + stores + SHARE
    kernel = cl.Kernel(opencl.build(device.context, text), "share")
    c = np.full((problem.n, 2 * tile.by), np.nan, np.float32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    memory = cl.Buffer(device.context, flags, hostbuf=c)
    most = tile.by * tile.groups_x // 32
    want = np.arange(tile.bx * tile.by, dtype=np.float32).reshape(tile.bx, tile.by)
    within = np.arange(tile.by) % (most * 16) // 16  # 16s of a warp
    for part in range(parts):
        first, end = (most * x // parts for x in (part, part + 1))
        kernel.set_args(
            gemm_args(problem)[0], precision.dtype.type(1), precision.dtype.type(0), *(memory,) * 3,
            *(np.int32(x) for x in (1, 1, first, end - first)),
        )  # fmt: skip
        cl.enqueue_nd_range_kernel(device.queue, kernel, (256,), (256,))
        cl.enqueue_copy(device.queue, c, memory)
        stored = c[tile.bx :, tile.by :]
        np.testing.assert_array_equal(stored, np.where(within < end, want, np.nan))
    assert np.isnan(c).sum() == 3 * tile.bx * tile.by, "no other tile"


# Copies of vectors alone, as the device has them: others leave NaN.
BY_COPIES = """
#define LOCAL_ADDRESS(p) (p)
#define bulk_store_wait()
#define bulk_store_commit()
#define publish_to_async()
#define multipliers_sync() barrier(CLK_LOCAL_MEM_FENCE)
INLINE void bulk_store(__global float *to, __local const float *from, uint bytes)
{
    const int whole = !((ulong)to & 15) && !((ulong)from & 15) && bytes % 16 == 0;
    for (uint i = 0; i < bytes / 4; i++)
        to[i] = whole ? from[i] : NAN;
}
"""
COPY = """
__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void copy(GEMM_ARGS, int x, int y)
{
    __local float tile[BX * PITCH] __attribute__((aligned(16)));
    float acc[ACCUMULATORS];
    const int row = row_of(work_item()), column = column_of(work_item());
    for (int q = 0; q < ACCUMULATORS; q++)
        acc[q] = (row + ROW_STEP(q / 2 % 2)) * BY + column + q / 8 * 16 + q / 4 % 2 * 2 + q % 2;
    store_async(acc, &g, x, y, 0, c, alpha, tile);
}
"""


@pytest.mark.parametrize(
    ("code", "tile", "gap", "offset", "over"),
    pairwise("sc", TILES, [0, 1, 2, 3], [0, 1, 2], [1, 5]),
)
def test_tiles_go_to_c_by_copies(device, code, tile, gap, offset, over):
    """Columns of C that begin anywhere, and tiles of which some are outside."""
    if device.traits.max_work_group_size < 256:
        pytest.skip(f"{device} cannot run work-groups of 256")
    precision = PRECISIONS[code]
    rows = tile.by // precision.parts
    problem = of_size(rows + over, tile.bx + 3, 64, code)
    problem = problem._replace(ldc=problem.m + gap, offset_c=offset)
    spec = FAMILY.plan(HOPPER, problem, FAMILY.default(HOPPER, precision)).steps[0].kernel
    sizes = {"MI": tile.mi, "BY": tile.by, "GROUPS_X": tile.groups_x, "PITCH": tile.by + PAD}
    defines = tuple((dict(spec.defines) | sizes).items())
    text = source.text(
        spec._replace(files=("nv_split/split.cl", "nv_split/shift.cl"), defines=defines)
    )
    text += "#define work_item() ((int)get_local_id(0))\n" + accumulators() + BY_COPIES
    text += source.read("nv_fused/async_store.cl") + COPY
    kernel = cl.Kernel(opencl.build(device.context, text), "copy")
    memory = np.full(offset + problem.ldc * problem.n + 8, np.nan, precision.dtype)
    want = memory.copy()
    c = want[offset : offset + problem.ldc * problem.n].reshape(problem.n, problem.ldc)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(device.context, flags, hostbuf=memory)
    made = np.arange(tile.bx * tile.by, dtype=np.float32).reshape(tile.bx, tile.by)
    for x in (0, 1):
        for y in (0, 1):
            here = c[x * tile.bx : (x + 1) * tile.bx, : problem.m][:, y * rows : (y + 1) * rows]
            here[...] = 2 * made.view(precision.dtype)[: here.shape[0], : here.shape[1]]
            kernel.set_args(
                gemm_args(problem)[0], precision.dtype.type(2), precision.dtype.type(0),
                *(buffer,) * 3, np.int32(x), np.int32(y),
            )  # fmt: skip
            cl.enqueue_nd_range_kernel(device.queue, kernel, (256,), (256,))
            cl.enqueue_copy(device.queue, memory, buffer)
            np.testing.assert_array_equal(memory, want)


@pytest.mark.slow
@ways("code case", "sc", ["normal", "elements 2^+-20", "one 2^100"])
def test_two_thousand_runs_give_the_same_bits(device, config, code, case):
    assert_runs_repeat(device, config, code, case)


@pytest.mark.families("nv_fused")
@pytest.mark.device
@pytest.mark.parametrize("size", [(5, 150, 70, 90), (700, 40, 33, 47)], ids=str)
@pytest.mark.parametrize("code", "sc")
def test_stacks(device, code, size, rng):
    """Entries are tiles like others, of which a work-group may have several; one B may be all's."""
    precision, (batch, m, n, k) = PRECISIONS[code], size
    x, y = (
        (rng.standard_normal((batch, *shape)) + 1j * rng.standard_normal((batch, *shape)))
        for shape in ((k, m), (n, k))
    )
    a, b = (z.astype(precision.dtype).swapaxes(1, 2) for z in (x, y))
    for right in (b, np.broadcast_to(b[:1], b.shape)):
        c = np.full((batch, n, m), np.nan, precision.dtype).swapaxes(1, 2)
        run_once(device, FAMILY.default(device.traits, precision), Operand(a), Operand(right), c)
        exact, sizes = wide(a) @ wide(right), np.abs(wide(a)) @ np.abs(wide(right))
        assert np.all(np.abs(c - exact) <= k * U * sizes)


@pytest.mark.parametrize("code", "sc")
def test_supports_hopper_alone(code, monkeypatch):
    precision = PRECISIONS[code]
    assert FAMILY.supports(HOPPER, precision)
    for capability in (None, (8, 0), (8, 9), (10, 0), (12, 0)):
        assert not FAMILY.supports(replace(HOPPER, compute_capability=capability), precision)
    monkeypatch.setenv("CLGEMM_FP32", "fma")
    assert not FAMILY.supports(HOPPER, precision)
    assert not FAMILY.supports(HOPPER, PRECISIONS["z"])


@pytest.mark.parametrize("pad", [None, PAD])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_slots_fit_the_local_memory(tile, pad):
    pitch = tile.by + pad if pad else 0
    stages = FAMILY.stages(tile, pitch)
    assert stages >= (2 if pad else 3)
    rows = tile.bx + tile.by
    assert stages * rows * 192 + rows * 32 + tile.bx * pitch * 4 < LOCAL_BYTES - 512


def test_tiles_of_a_short_k_are_stored_while_the_next_one_is_computed():
    default = FAMILY.default(HOPPER, PRECISIONS["s"])
    for k, is_short in ((32, True), (96, True), (600, False)):
        kernel = FAMILY.plan(HOPPER, of_size(5000, 5000, k), default).steps[0].kernel
        way = estimate.best_way(of_size(5000, 5000, k), 256, 132)
        pitch = way.tile.by + PAD if is_short else 0
        assert dict(kernel.defines)["PITCH"] == pitch
        assert dict(kernel.defines)["STAGES"] == FAMILY.stages(way.tile, pitch)
    alone = of_size(1408, 1408, 64)
    assert not estimate.stores_async(alone, estimate.best_way(alone, 128, 132))


def test_fp16_is_tried_where_k_is_deep_enough():
    for code, k, is_tried in (("s", 160, 0), ("s", 161, 1), ("c", 80, 0), ("c", 81, 1)):
        plan = FAMILY.plan(
            HOPPER, of_size(900, 900, k, code), FAMILY.default(HOPPER, PRECISIONS["s"])
        )
        assert dict(plan.steps[0].kernel.defines)["TAKES_FP16"] == is_tried


def test_rows_along_k_that_begin_anywhere_take_longer():
    def seconds(k, pitch, code):
        return estimate.best_way(
            of_size(2000, 400, k, code, trans_a=True, lda=pitch, aligned=True), 256, 132
        ).seconds

    for code in "sc":
        assert seconds(480, 481, code) > 1.01 * seconds(480, 480, code)
        assert seconds(64, 65, code) == seconds(64, 64, code)  # bf16


def test_a_short_k_takes_as_long_as_the_store():
    for code, bytes_ in (("s", 4), ("c", 8)):
        stored = 9000 * 9000 * bytes_ / (132 * estimate.STORED)
        short = estimate.best_way(of_size(9000, 9000, 16, code), 256, 132).seconds
        assert stored < short < 1.2 * stored


def test_claims_what_it_computes_sooner_than_other_families():
    assert FAMILY.claims(HOPPER, of_size(2000, 380, 480))
    assert FAMILY.claims(HOPPER, of_size(4000, 4000, 60))  # too little depth for nv_split
    assert FAMILY.claims(HOPPER, of_size(2000, 2000, 24, "c"))
    assert FAMILY.claims(HOPPER, of_size(4000, 4000, 33))
    assert FAMILY.claims(HOPPER, of_size(841, 4314, 61))  # an H100: 20.5 us, gpu_tiled 28.1
    assert not FAMILY.claims(HOPPER, of_size(4000, 4000, 31))  # a slot would be empty in part
    assert not FAMILY.claims(HOPPER, of_size(4096, 4096, 4096))
    assert not FAMILY.claims(HOPPER, of_size(500, 500, 500))  # gpu_tiled does it sooner
    assert not FAMILY.claims(HOPPER, of_size(9000, 9000, 15))  # the bound needs depth
    assert not FAMILY.claims(HOPPER, of_size(9000, 200, 24, "c"))  # gpu_tiled does it sooner
    assert not FAMILY.claims(HOPPER, of_size(4500, 130, 33, "c"))  # the same
    assert FAMILY.claims(HOPPER, of_size(4705, 463, 69, "c"))
    gram = of_size(1000, 1000, 500, triangle=SYMMETRIC)
    assert not FAMILY.claims(HOPPER, gram)
    assert not FAMILY.accepts(of_size(2**30, 2**30, 64))
    assert not FAMILY.accepts(of_size(64, 64, 64, lda=2**30))


# Microseconds of an H100, and by the family that computes it otherwise.
@pytest.mark.parametrize(
    ("code", "extents", "batch", "is_claimed"),
    [
        ("c", (128, 128, 128), 260, True),  # 59, gpu_tiled 106
        ("c", (236, 83, 109), 1089, True),  # 443, gpu_tiled 571
        ("s", (258, 250, 151), 106, True),  # 58, gpu_tiled 87
        ("s", (108, 108, 108), 460, True),  # an H200: 47, gpu_tiled 54
        ("s", (96, 96, 96), 140, False),  # an H200: 20, gpu_tiled 14
        ("c", (96, 96, 96), 71, False),  # an H200: 22, gpu_tiled 19
        ("c", (632, 311, 942), 24, True),  # 334, nv_split 498
        ("s", (60, 62, 70), 1599, False),  # 69, gpu_tiled 49
        ("c", (64, 48, 52), 437, False),  # 33, batched 24
        ("s", (128, 128, 128), 70, False),  # too few operations
        ("s", (600, 200, 31), 200, False),  # a slot would be empty in part
    ],
)
def test_claims_stacks_that_it_computes_sooner(code, extents, batch, is_claimed):
    assert FAMILY.claims(HOPPER, stack_of(batch, *extents, code)) is is_claimed


def test_an_operand_that_all_share_is_packed_once_by_the_other_family():
    """An H200: 36 products of 637 x 463 x 787 by rows take 597 us, with one B 487; here 773."""
    own = stack_of(36, 463, 637, 787, "c")
    shared = own._replace(stride_b=0)
    assert estimate.split_seconds(own, 132) > 1.15 * estimate.split_seconds(shared, 132)
    assert estimate.seconds(own, 256, 132) < 1.05 * estimate.seconds(shared, 256, 132)
    assert not FAMILY.claims(HOPPER, own)
    assert not FAMILY.claims(HOPPER, shared)


def test_memory_bounds_what_a_product_takes():
    """Its operands are read once, one that a stack shares too."""
    stack = stack_of(5443, 64, 114, 51)
    for g in (stack, stack._replace(stride_b=0), of_size(400_000, 70, 33)):
        computed = estimate.best_way(g, 256, 132).seconds
        moved = g.operand_bytes / 4.5e12
        assert 0.2 * computed < moved
        assert estimate.seconds(g, 256, 132) == pytest.approx(math.hypot(computed, moved))


def whole_seconds(g, tile):
    """Estimate what tiles take that are not cut."""
    return next(way.seconds for way in estimate._ways(g, tile, 132) if way.piece == 1)


@pytest.mark.parametrize("tile", TILES)
def test_rows_that_are_not_there_take_less_time(tile):
    for code in "sc":
        rows_x, rows_y = tile.bx, 5 * 132 * tile.by // PRECISIONS[code].parts
        full = whole_seconds(of_size(rows_y, rows_x, 60, code), tile)
        half = whole_seconds(of_size(rows_y, rows_x // 2, 60, code), tile)
        assert 0.8 < half / full < 0.97


def test_a_tile_that_is_stored_before_the_next_one_takes_longer():
    tile = Tile(1, 256, 1)
    short, deeper, alone = (
        of_size(count * 132 * 256, 64, k) for count, k in ((5, 96), (5, 128), (1, 128))
    )
    times = estimate.TIMES[tile]
    turn, further = times.bf16["s"] * 1e-9, (times.stored[0] - times.next[0]) * 1e-9
    assert estimate.stores_async(short, next(iter(estimate._ways(short, tile, 132))))
    longer = whole_seconds(deeper, tile) - whole_seconds(short, tile)
    assert longer == pytest.approx(5 * turn + 4 * further)
    assert whole_seconds(alone, tile) == pytest.approx(estimate.LAUNCH[0] + 4 * turn)


def test_k_is_cut_where_tiles_are_few_or_leave_units_idle():
    default = FAMILY.default(HOPPER, PRECISIONS["s"])
    few = of_size(300, 300, 9000)
    way = estimate.best_way(few, 256, 132)
    tiles, area = estimate.count_tiles(few, way.tile), way.tile.bx * way.tile.by
    assert (way.whole, way.groups) == (0, math.ceil(tiles / way.piece))
    assert 100 < way.groups <= 132
    plan = FAMILY.plan(HOPPER, few, default)
    assert plan.takes_tickets
    assert plan.scratch_bytes == 2 * way.groups * area * 4
    alone = of_size(128 * 132, 128, 2048)
    assert estimate.best_way(alone, 256, 132).whole == 132
    plan = FAMILY.plan(HOPPER, alone, default)
    assert (plan.takes_tickets, plan.scratch_bytes) == (False, 0)
    more = estimate.best_way(of_size(9070, 68, 1196, "c"), 256, 132)
    assert more.whole == more.groups == 132
    assert 142 - 132 <= 132 * more.piece < 132 / 2


def test_tiles_are_not_cut_where_adding_their_parts_takes_longer():
    """An H200 takes 24.0 us for the first and 28.0 if tiles are cut, 47 and 50, 51 and 54."""
    for stack in (
        stack_of(188, 108, 108, 108), stack_of(460, 108, 108, 108), stack_of(1, 36480, 123, 64, "c")
    ):  # fmt: skip
        way = estimate.best_way(stack, 256, 132)
        assert (way.tile, way.piece) == (Tile(1, 128), 1)


def test_a_unit_has_one_work_group():
    for g in (of_size(9000, 9000, 64), of_size(130, 70, 64), of_size(500, 500, 600, "c", batch=3)):
        step = FAMILY.plan(HOPPER, g, FAMILY.default(HOPPER, PRECISIONS[g.precision])).steps[0]
        assert step.global_size == (512 * estimate.best_way(g, 256, 132).groups,)
        assert step.global_size[0] <= 512 * 132


def test_smaller_tiles_are_for_smaller_products():
    assert estimate.best_way(of_size(4096, 4096, 512), 128, 132).tile == Tile(1, 128)
    assert estimate.best_way(of_size(700, 700, 512), 128, 132).tile == Tile(1, 64)
    # Of 64 columns a tile of 128 would be empty by half.
    assert estimate.best_way(of_size(9000, 60, 3000), 256, 132).tile.bx == 64
    assert estimate.best_way(of_size(9000, 60, 3000), 128, 132).tile == Tile(1, 128)


def test_tiles_of_96_rows_waste_less_of_a_thin_c():
    """An H200 takes 103 us for 34 x 4656 x 3422 in complex64, and 122 with 128 rows of Y."""
    assert estimate.best_way(of_size(34, 4656, 3422, "c"), 256, 132).tile == Tile(1, 96)
    assert estimate.best_way(of_size(88, 4862, 3752), 256, 132).tile == Tile(1, 96)
    assert estimate.best_way(of_size(919, 41, 5612), 256, 132).tile == Tile(1, 192, 1)


@pytest.mark.parametrize(
    ("code", "extents", "tile", "longer"),
    [
        ("c", (258, 5730, 1163), Tile(1, 96), Tile(1, 128)),
        ("s", (3217, 2709, 368), Tile(1, 96), Tile(1, 128)),
        ("c", (3174, 99, 4837), Tile(1, 256, 1), Tile(1, 128)),
    ],
)
def test_tiles_that_read_rows_along_k_slowly_are_left_out(code, extents, tile, longer):
    """An H200 takes 168, 107 and 177 us in the first tile, and 191, 113 and 206 in the other."""
    m, n, k = extents
    g = of_size(m, n, k, code)._replace(trans_a=True, lda=k, trans_b=False, ldb=k)
    assert estimate.best_way(g, 256, 132).tile == tile

    def least(tile):
        return min(way.seconds for way in estimate._ways(g, tile, 132))

    assert least(longer) > 1.05 * least(tile)


@pytest.mark.parametrize(
    ("code", "tile", "slower"),
    [("c", Tile(1, 128), "x"), ("s", Tile(1, 64), "x"), ("s", Tile(1, 192, 1), "y")],
)
def test_it_matters_which_operand_s_rows_lie_along_k(code, tile, slower):
    """An H200: turns of these tiles take 16, 24 and 9 % longer than with the other's along k."""
    m, n, k = 12 * tile.by // PRECISIONS[code].parts, 11 * tile.bx, 1537
    across = of_size(m, n, k, code)._replace(trans_b=True, ldb=n)
    along = {
        "x": across._replace(trans_b=False, ldb=k),
        "y": across._replace(trans_a=True, lda=k),
    }
    seconds = {name: whole_seconds(g, tile) for name, g in along.items()}
    assert seconds.pop(slower) > 1.05 * max(seconds.popitem()[1], whole_seconds(across, tile))
