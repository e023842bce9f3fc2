"""Blocks of a problem: each product once and in order, within the memory, with few copies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clgemm.problem import HERMITIAN, PRECISIONS, SYMMETRIC, Gemm
from clgemm.streaming.schedule import OPERANDS, SLOTS, Blocking, Schedule, plan

MB = 1 << 20


def gemm(m, n, k, code="s", *, batch=1, repeats="", reads_c=False, trans=""):
    """Describe a product of dense matrices; a name in `repeats` is a stack of one matrix."""
    a, b = (k, m) if "a" in trans else (m, k), (n, k) if "b" in trans else (k, n)
    stack = batch > 1
    return Gemm(
        code, m, n, k, batch,
        "a" in trans, False, a[0], m * k * (stack and "a" not in repeats),
        "b" in trans, False, b[0], k * n * (stack and "b" not in repeats),
        m, m * n * stack, reads_c,
    )  # fmt: skip


PROBLEMS = {
    "square": gemm(500, 500, 500),
    "odd": gemm(331, 377, 291, "z", reads_c=True),
    "tall": gemm(5000, 30, 40, trans="a"),
    "wide": gemm(20, 6000, 35, "d", trans="b"),
    "deep": gemm(19, 23, 9000, "c", reads_c=True),
    "a column": gemm(4000, 1, 300),
    "one": gemm(1, 1, 1),
    "stack": gemm(60, 50, 40, batch=37, reads_c=True),
    "stack with one a": gemm(60, 50, 40, batch=37, repeats="a"),
    "stack of one b each": gemm(200, 210, 220, batch=3, repeats="b"),
}
ROOMS = (20 << 10, 300 << 10, 2 * MB, 64 * MB)


def scratch(g):
    """Ask for as much as packed operands would."""
    return (g.m * g.k + g.k * g.n) * g.batch * PRECISIONS[g.precision].itemsize // 2


def covered(schedule):
    """Count how often each (matrix, row, column, p) is multiplied."""
    g = schedule.problem
    count = np.zeros((g.batch, g.m, g.n), int)
    for product in schedule.products:
        assert product.a.rows == product.c.rows
        assert product.b.columns == product.c.columns
        assert product.a.columns == product.b.rows
        where = tuple(slice(*x) for x in (product.c.batch, product.c.rows, product.c.columns))
        begun = count[where] == product.a.columns.start
        assert begun.all(), "the parts of a sum come in order"
        assert product.is_first == (product.a.columns.start == 0)
        count[where] += product.a.columns.size
        assert product.is_last == bool((count[where] == g.k).all())
    return count


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_product_is_done_once_within_the_memory(name, room):
    g = PROBLEMS[name]
    largest = room // 2
    schedule = plan(g, room, largest, scratch)
    smallest = 3 * PRECISIONS[g.precision].itemsize * 16 * 16
    if schedule is None:
        assert room < 4 * smallest
        return
    assert (covered(schedule) == g.k).all()
    needed = max(scratch(x) for x in schedule.gemms)
    sizes = [size for _, size in schedule.buffers]
    assert sum(sizes) + needed <= room
    assert max(*sizes, needed) <= largest


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_had_better_be_whole_is_divided_only_where_it_does_not_fit(name):
    g = PROBLEMS[name]._replace(m=2000)
    whole = plan(g, 1 << 40, 1 << 40, scratch, whole=True)
    assert len(whole.products) == 1
    assert (covered(whole) == g.k).all()
    sizes = [size for _, size in whole.buffers]
    needed = scratch(whole.gemms[0])
    assert max(sizes) <= g.operand_bytes
    least = plan(g, sum(sizes) + needed - 1, 1 << 40, scratch, whole=True)
    assert len(least.products) > 1
    assert len(plan(g, 1 << 40, max(*sizes, needed) - 1, scratch, whole=True).products) > 1


@pytest.mark.parametrize("blocking", [
    Blocking(1, *sizes) for sizes in (
        (256, 700, 700), (700, 256, 700), (256, 300, 700), (256, 300, 80), (700, 300, 80),
        (256, 700, 80), (700, 700, 80), (700, 700, 700),
    )
] + [
    Blocking(1, 256, 200, 700, is_resident=True), Blocking(1, 100, 300, 700, is_resident=True),
])  # fmt: skip
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("slots", [1, 2, SLOTS])
@pytest.mark.parametrize("repeats", ["", "a"])
def test_loads_are_as_counted_and_slots_change_hands(blocking, by_columns, slots, repeats):
    g = gemm(700, 700, 700, batch=2 if repeats else 1, repeats=repeats)
    schedule = Schedule(g, blocking._replace(by_columns=by_columns), slots)
    for name in OPERANDS:
        loads = schedule.loads[name]
        assert len(loads) == schedule.visits[name]
        assert max(load.slot for load in loads) == schedule.slots_of(name) - 1
        assert max(load.block.size for load in loads) == schedule.sizes[name]
        for load, after in itertools.pairwise(loads):
            assert load.block != after.block
            assert load.last + 1 == after.first or (
                blocking.is_resident and load.first < after.first
            )
        for load in loads[schedule.slots_of(name) :]:
            assert loads[load.before].slot == load.slot
            assert all(x.slot != load.slot for x in loads[load.before + 1 : loads.index(load)])
        for number, product in enumerate(schedule.products):
            assert loads[schedule.uses[number][name]].block == getattr(product, name)


def test_what_fits_goes_to_the_device_once():
    for name, g in PROBLEMS.items():
        schedule = plan(g, 1 << 30, 1 << 29, scratch)
        moved = sum(load.block.size for name in OPERANDS for load in schedule.loads[name])
        assert moved * PRECISIONS[g.precision].itemsize == g.operand_bytes, name


def test_large_problems_that_fit_are_divided_into_blocks():
    """So that copies in both directions overlap with kernels."""
    square = plan(gemm(8192, 8192, 8192), 1 << 36, 1 << 34, scratch)
    assert square.blocking.is_resident
    assert 9 <= len(square.products) <= 36
    tall = plan(gemm(100000, 500, 500), 1 << 36, 1 << 34, scratch)
    assert tall.blocking.n == tall.blocking.k == 500
    assert len(tall.products) > 1
    assert len(plan(gemm(200, 200, 200), 1 << 36, 1 << 34, scratch).products) == 1
    stack = plan(gemm(512, 512, 512, batch=200), 1 << 36, 1 << 34, scratch)
    assert 3 <= len(stack.products) <= 30


def test_what_is_there_is_multiplied_before_more_is_needed():
    """So that the first results leave early: half of A and of B give a quarter of C."""
    schedule = Schedule(gemm(1024, 1536, 100), Blocking(1, 256, 256, 100, is_resident=True))
    assert (covered(schedule) == 100).all()
    rows, columns = set(), set()
    for number, product in enumerate(schedule.products):
        rows.add(product.a.rows)
        columns.add(product.b.columns)
        assert len(rows) * len(columns) - number <= max(len(rows), len(columns))
        assert abs(len(rows) / 4 - len(columns) / 6) <= 1 / 4


GRAM = gemm(5000, 5000, 3000, trans="a")._replace(triangle=SYMMETRIC)


@pytest.mark.parametrize("g", [
    GRAM, gemm(700, 700, 90, "z", trans="b")._replace(triangle=HERMITIAN),
    gemm(60, 60, 50, "c", batch=7, trans="a")._replace(triangle=SYMMETRIC),
])  # fmt: skip
@pytest.mark.parametrize("whole", [False, True])
def test_the_matrix_of_a_gram_product_is_copied_once(g, whole):
    """Its blocks lie where those of B are looked for."""
    schedule = plan(g, 1 << 40, 1 << 40, scratch, whole=whole)
    assert schedule.is_shared
    assert (len(schedule.products) == 1) == (whole or g is not GRAM)
    assert [name for name, _ in schedule.in_order if name == "b"] == []
    moved = sum(load.block.size for _, load in schedule.in_order)
    assert moved * PRECISIONS[g.precision].itemsize == g.operand_bytes
    assert sum(size for _, size in schedule.buffers) >= g.operand_bytes
    assert "b" not in dict(schedule.buffers)
    done = np.zeros((g.batch, g.m, g.n), np.int8)
    for number, product in enumerate(schedule.products):
        uses = schedule.uses[number]
        a, b, c = (schedule.loads[name][uses[name]] for name in OPERANDS)
        assert (a.block, b.block) == (product.a, product.b)
        assert max(a.first, b.first) <= number <= min(a.last, b.last)
        assert (a.block.rows, b.block.rows) == (c.block.rows, c.block.columns)
        done[tuple(slice(*span) for span in (c.block.batch, c.block.rows, c.block.columns))] += 1
    assert (done == 1).all()


@pytest.mark.parametrize("blocking", [
    Blocking(1, 256, 300, 300, is_resident=True), Blocking(1, 256, 256, 300),
    Blocking(1, 256, 256, 100),
])  # fmt: skip
def test_blocks_that_differ_or_do_not_stay_are_copied_for_each_operand(blocking):
    g = gemm(700, 700, 300, trans="a")._replace(triangle=SYMMETRIC)
    schedule = Schedule(g, blocking)
    assert not schedule.is_shared
    assert schedule.visits["b"] > 0
    assert (covered(schedule) == g.k).all()


def test_what_does_not_fit_is_read_again_as_rarely_as_can_be():
    """Forty thousand squared in 2 GB: each operand is longer than three times the memory."""
    g = gemm(40_000, 40_000, 40_000)
    schedule = plan(g, 2000 * MB, 2000 * MB, lambda g: 2 * scratch(g))
    moved = sum(schedule.sizes[name] * schedule.visits[name] for name in "ab") * 4
    assert moved < 5 * (2 * g.m * g.k * 4)
    assert len(set(schedule.gemms)) <= 16


def test_products_are_described_without_gaps():
    g = gemm(700, 500, 300, "d", reads_c=False, trans="a")._replace(
        lda=999, offset_b=7, conj_b=True
    )
    schedule = Schedule(g, Blocking(1, 256, 500, 200))
    assert [x.reads_c for x in schedule.gemms[:2]] == [False, True]
    first, rest = schedule.gemms[0], schedule.gemms[-1]
    assert (first.m, first.n, first.k, first.lda, first.ldb, first.ldc) == (
        256, 500, 200, 200, 200, 256,
    )  # fmt: skip
    assert (rest.m, rest.k, rest.lda, rest.ldb, rest.ldc) == (188, 100, 100, 100, 188)
    assert (first.offset_b, first.conj_b, first.trans_a, first.aligned) == (0, True, True, True)
