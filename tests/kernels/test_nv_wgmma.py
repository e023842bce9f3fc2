"""`nv_wgmma`: what its first kernel packs, on every device, against a NumPy model; its products.

The products are those of the tensor cores: they are tested where there is a Hopper GPU.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers import GPU, read_scratch
from integers.test_integer_kernels import drawn

import clgemm
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.kernels.nv_wgmma import family
from clgemm.kernels.nv_wgmma.family import (
    GEMM_ITEMS,
    LOCAL_BYTES,
    MAPS_BYTES,
    ROW_BYTES,
    TIMES,
    Tile,
    best_tile,
)
from clgemm.problem import ELEMENTS, HALF, INTEGERS, PRECISIONS, Gemm, Operand, describe
from clgemm.runtime import host_memory, registry
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.tuning.measure.verify import run_once

FAMILY = BY_NAME["nv_wgmma"]
HOPPER = replace(GPU, compute_capability=(9, 0), compute_units=132, global_memory=80 << 30)
SLICE_BYTES = 8192  # of a plane, that a work-group packs
CODES = ["b1", "u1", "i2", "i4", "u8", "f2"]
SHAPES = [(70, 130, 200), (64, 128, 128), (2, 200, 61)]


def elements(rng, code, *shape):
    if code == HALF.code:
        return rng.normal(size=shape).astype(np.float16)
    return drawn(rng, ELEMENTS[code].dtype, *shape)


def config_of(tile):
    return Config.of(FAMILY.name, {"MI": tile.mi, "BY": tile.by, "GROUP": 8})


def planes_of(x):
    """Return the digits of rows of k, as bytes, a plane after the other; halves have one."""
    if x.dtype.kind == "f":
        return x.view(np.uint8)[None]
    if x.dtype.kind == "b":
        return (x.view(np.uint8) != 0).astype(np.uint8)[None]
    found, rest = [], x.astype(np.uint64)
    for _ in range(x.itemsize):
        digit = rest.astype(np.uint8)
        found.append(digit)
        rest = (rest - digit.view(np.int8).astype(np.int64).astype(np.uint64)) >> np.uint64(8)
    return np.array(found)


def unpacked(memory, planes, strips, slices, rows):
    """Return (plane, row, byte of k) of what lies as the tensor cores read it."""
    memory = memory.reshape(planes, strips, slices, rows, 8, 16)
    row = np.arange(rows)[:, None]
    straight = memory[:, :, :, row, np.arange(8) ^ row % 8]
    return straight.transpose(0, 1, 3, 2, 4, 5).reshape(planes, strips * rows, slices * ROW_BYTES)


def stored_rows(rows, itemsize):
    """Return which row of Y each stored row holds: see types.cl."""
    run = 16 // itemsize
    of = np.arange(4 * run).reshape(4, run // 2, 2).transpose(1, 0, 2).ravel()
    return (np.arange(0, rows, 4 * run)[:, None] + of).ravel()


def lying(rng, code, rows, columns, op):
    """Make op(X) of rows x columns with a gap between what lies contiguous."""
    if op == "N":
        return elements(rng, code, columns, rows + 3)[:, :rows].T
    return elements(rng, code, rows, columns + 1)[:, :columns]


def packed(device, a, b, tile):
    """Return what the first kernel leaves of op(A) and op(B), and the tile of the plan."""
    c = np.zeros((b.shape[1], a.shape[0]), a.dtype).T
    problem = describe(Operand(a), Operand(b), c, reads_c=False)
    if not device.traits.unified_memory:
        problem, a, b = problem.dense(), *map(dense, (a, b))
    plan = FAMILY.plan(replace(HOPPER, compute_units=1), problem, config_of(tile))
    plan = plan._replace(steps=plan.steps[:1])
    places = [host_memory.place(device, x) for x in (a, b, c)]
    KernelRunner(device, problem, plan).execute((1.0, 0.0, *places, NO_OFFSETS))
    chosen = dict(plan.steps[0].kernel.defines)
    return read_scratch(device, plan.scratch_bytes), Tile(chosen["MI"], chosen["BY"])


def dense(x):
    return np.array(x, order="F" if x.strides[0] == x.itemsize else "C")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("ops", ["NN", "NT", "TN", "TT"])
def test_operands_are_packed_as_the_tensor_cores_read_them(device, code, ops, rng, monkeypatch):
    monkeypatch.setattr(family, "may_read_direct", lambda _: False)
    precision = ELEMENTS[code]
    planes = 1 if code == HALF.code else precision.itemsize
    needed = max(2, planes) * SLICE_BYTES
    if device.traits.local_memory < needed and not device.traits.compute_capability:
        pytest.skip(f"{device.traits.describe()} has too little local memory for {planes} planes")
    for (m, n, k), most in zip(SHAPES, TIMES, strict=False):
        a, b = lying(rng, code, m, k, ops[0]), lying(rng, code, k, n, ops[1])
        memory, tile = packed(device, a, b, most)
        slices = -(-k * (2 if code == HALF.code else 1) // ROW_BYTES)
        strips_x, strips_y = -(-n // tile.bx), -(-m // tile.by)
        end = planes * strips_x * slices * tile.bx * ROW_BYTES
        x = unpacked(memory[:end], planes, strips_x, slices, tile.bx)
        y = unpacked(memory[end:], planes, strips_y, slices, tile.by)
        order = stored_rows(strips_y * tile.by, precision.itemsize)
        for rows, found in ((b.T, x), (a, y[:, np.argsort(order)])):
            want = np.zeros(found.shape, np.uint8)
            wanted = planes_of(np.ascontiguousarray(rows))
            want[:, : wanted.shape[1], : wanted.shape[2]] = wanted
            np.testing.assert_array_equal(found, want)


def test_a_sum_of_digits_is_the_integer():
    x = np.array([[0, 1, 127, 128, 255, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1]], np.uint64)
    digits = planes_of(x).view(np.int8).astype(object)
    total = sum(digit * 256**i for i, digit in enumerate(digits))
    np.testing.assert_array_equal(total % 2**64, x.astype(object))


def problem_of(code, m, n, k, batch=1):
    return Gemm(code, m, n, k, batch, False, False, m, m * k, False, False, k, k * n, m, m * n,
                reads_c=False)  # fmt: skip


def test_where_it_runs():
    for code in [*INTEGERS, HALF.code]:
        assert FAMILY.claims(HOPPER, problem_of(code, 512, 512, 512))
        assert not FAMILY.claims(
            replace(HOPPER, global_memory=1 << 20), problem_of(code, *[512] * 3)
        )
        assert not FAMILY.claims(HOPPER, problem_of(code, 4096, 1, 4096)), "most of it is padding"
        assert not FAMILY.claims(HOPPER, problem_of(code, 32, 32, 32))
        for capability in (None, (8, 0), (10, 0)):
            other = replace(HOPPER, compute_capability=capability)
            assert not FAMILY.claims(other, problem_of(code, 512, 512, 512))
    assert not any(FAMILY.supports(HOPPER, precision) for precision in PRECISIONS.values())


def workers_of(plan):
    return plan.steps[-1].global_size[0] // GEMM_ITEMS


def test_halves_that_start_on_16_bytes_are_read_where_they_lie():
    small, large = problem_of("f2", 1024, 512, 256), problem_of("f2", 4096, 4096, 256)
    aligned = small._replace(aligned=True)
    config = FAMILY.default(HOPPER, HALF)
    for problem, launches in (
        (aligned, 1), (small, 2), (aligned._replace(lda=1025), 2),
        (aligned._replace(offset_b=4), 2),
        (aligned._replace(trans_a=True, trans_b=True, lda=256, ldb=512), 1),
        (large._replace(aligned=True), 1), (aligned._replace(precision="i2"), 2),
    ):  # fmt: skip
        plan = FAMILY.plan(HOPPER, problem, config)
        assert len(plan.steps) == launches
        assert (plan.scratch_bytes == workers_of(plan) * MAPS_BYTES) == (launches == 1)


def test_every_tile_fits_the_local_memory_and_serves_some_size():
    for tile in TIMES:
        assert tile.stages >= 3
        assert tile.stages * (tile.bx + tile.by) * ROW_BYTES + 512 <= LOCAL_BYTES
        assert not list(FAMILY.broken_rules(HOPPER, INTEGERS["i4"], config_of(tile)))
    sizes = range(128, 12000, 128)
    largest = next(iter(TIMES))
    assert {best_tile(132, problem_of("i1", n, n, n), largest) for n in sizes} == set(TIMES)
    assert list(FAMILY.broken_rules(HOPPER, INTEGERS["i4"], config_of(Tile(1, 192))))


@pytest.mark.families("nv_wgmma")
@pytest.mark.parametrize("code", ["i1", "u1", "b1", "i2", "u4", "i8", "u8", "f2"])
@pytest.mark.parametrize("tile", list(TIMES), ids=str)
def test_products_are_exact(device, code, tile, rng, monkeypatch):
    """At odd sizes, with every way to lie, in a stack, with C and scratch full of other values."""
    if any(FAMILY.broken_rules(device.traits, ELEMENTS[code], config_of(tile))):
        tile = Tile(2, 128)
    monkeypatch.setattr(family, "best_tile", lambda *_: tile)
    for (m, n, k, batch), ops in zip(
        (
            (130, 270, 300, 1),
            (257, 200, 129, 1),
            (500, 390, 64, 1),
            (140, 130, 70, 3),
            (136, 272, 304, 1),
            (200, 520, 200, 2),
            (264, 64, 328, 1),
            (72, 136, 1000, 1),
        ),
        ("NN", "NT", "TN", "TT") * 2,
        strict=True,
    ):
        a = np.stack([lying(rng, code, m, k, ops[0]) for _ in range(batch)])
        b = np.stack([lying(rng, code, k, n, ops[1]) for _ in range(batch)])
        for _ in range(3):
            assert_product(device, config_of(tile), a, b)


@pytest.mark.families("nv_wgmma")
@pytest.mark.parametrize("code", ["i1", "u1", "i2", "i4", "u4", "i8", "u8"])
def test_sums_wrap_around(device, code, rng):
    """Of the least and the greatest numbers, and more of them than 32 bits hold."""
    dtype = INTEGERS[code].dtype
    limits = np.iinfo(dtype)
    config = FAMILY.default(device.traits, INTEGERS[code])
    extremes = np.array([limits.min, limits.max, limits.max - 1, limits.min + 1, 1], dtype)
    a, b = rng.choice(extremes, (1, 70, 33000)), rng.choice(extremes, (1, 33000, 90))
    assert_product(device, config, a, b)
    for value in (limits.min, limits.max):
        a, b = np.full((1, 64, 140000), value, dtype), np.full((1, 140000, 64), value, dtype)
        assert_product(device, config, a, b)


def assert_product(device, config, a, b):
    c = np.ones((len(b), b.shape[2], a.shape[1]), a.dtype).swapaxes(1, 2)
    run_once(device, config, Operand(a), Operand(b), c, poison=True)
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(c, exact(a, b))
        return
    x, y = a.astype(float), b.astype(float)
    bound = a.shape[2] * 2.0**-23 * (abs(x) @ abs(y)) + abs(x @ y) * 2.0**-11 + 2.0**-25
    assert np.all(abs(c.astype(float) - x @ y) <= bound)


def exact(a, b):
    """Return NumPy's product, by products of floats that are exact, which take less time."""
    if a.dtype.kind == "b":
        return a.astype("f4") @ b.astype("f4") > 0
    total = np.zeros((len(a), a.shape[1], b.shape[2]), np.uint64)
    bits = 8 * a.dtype.itemsize
    for i, j in itertools.product(range(0, bits, 16), repeat=2):
        if i + j < bits:
            x, y = (
                (z.astype(np.uint64) >> np.uint64(shift) & np.uint64(0xFFFF)).astype(float)
                for z, shift in ((a, i), (b, j))
            )
            total += (x @ y).astype(np.uint64) << np.uint64(i + j)
    return total.astype(a.dtype)


@pytest.mark.families("nv_wgmma")
@pytest.mark.parametrize("code", ["f2"])
@pytest.mark.parametrize("aligned", [True, False], ids=["direct", "packed"])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_halves_are_rounded_wrongly_no_more_often_than_by_numpy(
    device, code, kind, aligned, rng, monkeypatch
):
    """NumPy's loop adds one product after the other in float32.

    Uniform numbers are the hard ones: what the tensor cores cut off a sum has one sign, too.
    """
    if not aligned:
        monkeypatch.setattr(family, "may_read_direct", lambda _: False)
    draw = rng.random if kind == "uniform" else rng.standard_normal
    for k, n in ((256, 768), (family.SHORT_SUM, 768), (family.LONG_SUM, 512), (8192, 256)):
        a, b = (draw(shape, np.float32).astype(np.float16) for shape in ((n, k), (k, n)))
        want = (a.astype(float) @ b.astype(float)).astype(np.float16)
        found = np.zeros((n, n), np.float16, order="F")
        config = FAMILY.default(device.traits, ELEMENTS[code])
        run_once(device, config, Operand(a[None]), Operand(b[None]), found[None])
        assert np.mean(found != want) <= np.mean(in_numpys_order(a, b) != want), k


def in_numpys_order(a, b):
    """Return what NumPy's loop computes: products of halves are exact in float32."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for column, row in zip(a.T.astype(np.float32), b.astype(np.float32), strict=True):
        total += column[:, None] * row
    return total.astype(np.float16)


def test_numpys_order_is_that(rng):
    a, b = (rng.random(shape).astype(np.float16) for shape in ((3, 4000), (4000, 5)))
    np.testing.assert_array_equal(in_numpys_order(a, b), np.matmul(a, b))


@pytest.mark.families("nv_wgmma")
@pytest.mark.parametrize("code", ["f2"])
@pytest.mark.parametrize("aligned", [True, False], ids=["direct", "packed"])
def test_halves_overflow_vanish_and_are_not_finite_as_numpys(
    device, code, aligned, rng, monkeypatch
):
    """Each of them in a row or a column of its own, beside others that it must not touch."""
    if not aligned:
        monkeypatch.setattr(family, "may_read_direct", lambda _: False)
    least = np.finfo(np.float16).smallest_subnormal
    config = FAMILY.default(device.traits, ELEMENTS[code])
    for k in (72, 700, 2100):
        a, b = (rng.normal(size=shape).astype(np.float16) for shape in ((304, k), (k, 264)))
        a[3, 5], a[77, k - 1], a[300, 0] = np.nan, np.inf, -np.inf
        b[9, 1], b[k - 1, 263] = np.inf, np.nan
        a[20], a[21], a[22] = 65504, least, 0.0
        b[:, 40], b[:, 41] = np.abs(b[:, 40]), 2.0**-13
        with np.errstate(all="ignore"):
            exact_sum = a.astype(float) @ b.astype(float)
            bound = k * 2.0**-23 * (abs(a.astype(float)) @ abs(b.astype(float)))
            low, high = ((exact_sum + s * bound).astype(np.float16) for s in (-1, 1))
        found = np.full((264, 304), 7, np.float16).T
        run_once(device, config, Operand(a[None]), Operand(b[None]), found[None], poison=True)
        unknown = np.isnan(exact_sum)
        np.testing.assert_array_equal(np.isnan(found), unknown)
        finite = np.isfinite(bound)
        assert np.all((low <= found) & (found <= high) | ~finite)
        infinite = ~finite & ~unknown
        np.testing.assert_array_equal(found[infinite], exact_sum[infinite].astype(np.float16))


def framed(rng, dtype, rows, columns, turned, *stack):
    """Return memory and an Array, full of NaN, and a matrix in each that starts on 16 bytes."""
    shape = (columns, rows) if turned else (rows, columns)
    memory = np.full((*stack, shape[0] + 16, -(-shape[1] // 8) * 8 + 16), np.nan, dtype)
    inside = (..., slice(8, 8 + shape[0]), slice(8, 8 + shape[1]))
    memory[inside] = rng.normal(size=(*stack, *shape))
    array = clgemm.to_device(memory)
    order = (*range(len(stack)), -1, -2) if turned else (*range(len(stack)), -2, -1)
    axes = [axis % memory.ndim for axis in order]
    return memory, array, memory[inside].transpose(axes), array[inside].transpose(axes)


@pytest.mark.families("nv_wgmma")
@pytest.mark.parametrize("code", ["f2"])
@pytest.mark.parametrize("turned", list(itertools.product((0, 1), repeat=3)), ids=str)
def test_halves_are_read_where_they_lie_and_nothing_around_them(device, code, turned, rng):
    """In Arrays full of NaN, also in a stack, whose entries may share an operand."""
    dtype = ELEMENTS[code].dtype
    for (m, n, k), of_a, of_b in (
        ((200, 328, 136), (), ()), ((513, 264, 2051), (), ()), ((136, 130, 203), (3,), (3,)),
        ((260, 134, 88), (3,), ()), ((97, 200, 2048), (), (2,)),
    ):  # fmt: skip
        with registry.using(device):
            _, _, a, there_a = framed(rng, dtype, m, k, turned[0], *of_a)
            _, _, b, there_b = framed(rng, dtype, k, n, turned[1], *of_b)
            memory, around, c, there_c = framed(rng, dtype, m, n, turned[2], *(of_a or of_b))
            for _ in range(3):
                clgemm.matmul(there_a, there_b, out=there_c)
            after = around.get()
        rows, columns = (slice(8, 8 + size) for size in (m, n))
        found = (
            after[..., columns, rows].swapaxes(-1, -2) if turned[2] else after[..., rows, columns]
        )
        x, y = a.astype(float), b.astype(float)
        bound = k * 2.0**-23 * (abs(x) @ abs(y)) + abs(x @ y) * 2.0**-11 + 2.0**-25
        assert np.all(abs(found.astype(float) - x @ y) <= bound)
        found[...] = c
        np.testing.assert_array_equal(after, memory)
