"""Folding of stacks: what is covered, how few problems it takes, and where results are laid."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clgemm.api import stacks


def filled(*shape: Any, order: Any = "C") -> Any:
    # Small whole numbers: every sum is exact, whatever the order of its terms.
    count = int(np.prod(shape))
    return (np.arange(count) % 7 - 3).astype(np.float64).reshape(shape, order=order)


def check(a: Any, b: Any, c: Any) -> Any:
    """Assert that the problems cover c once with the right values; return their shapes."""
    c[...] = 0
    problems = stacks.fold(a, b, c)
    for views in problems:
        assert len({view.ndim for view in views}) == 1
        assert views[0].ndim in {2, 3}
        for view, whole in zip(views, (a, b, c), strict=True):
            assert not view.size or np.shares_memory(view, whole)
        views[2][...] += 1
    assert (c == 1).all()
    for a2, b2, c2 in problems:
        c2[...] = a2 @ b2
    np.testing.assert_array_equal(c, np.matmul(a, b, out=np.empty_like(c)))
    return [tuple(view.shape for view in views) for views in problems]


def test_fold_matrices_are_passed_on() -> None:
    a, b, c = filled(2, 3), filled(3, 4), filled(2, 4)
    ((a2, b2, c2),) = stacks.fold(a, b, c)
    assert a2 is a
    assert b2 is b
    assert c2 is c


def test_fold_contiguous_stack_is_one_batch() -> None:
    shapes = check(filled(2, 3, 5, 4, 6), filled(2, 3, 5, 6, 7), filled(2, 3, 5, 4, 7))
    assert shapes == [((30, 4, 6), (30, 6, 7), (30, 4, 7))]


@pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 1, 3)])
def test_fold_stack_times_matrix_is_one_tall_matrix(batch: Any) -> None:
    count = int(np.prod(batch))
    shapes = check(filled(*batch, 4, 6), filled(6, 7), filled(*batch, 4, 7))
    assert shapes == [((4 * count, 6), (6, 7), (4 * count, 7))]


def test_fold_stack_times_broadcast_view_is_one_tall_matrix() -> None:
    b = np.broadcast_to(filled(6, 7), (3, 6, 7))
    assert check(filled(3, 4, 6), b, filled(3, 4, 7)) == [((12, 6), (6, 7), (12, 7))]


def test_fold_matrix_times_stack_is_one_batch_in_c_order() -> None:
    shapes = check(filled(4, 6), filled(3, 6, 7), filled(3, 4, 7))
    assert shapes == [((3, 4, 6), (3, 6, 7), (3, 4, 7))]


def test_fold_matrix_times_stack_is_one_wide_matrix_where_columns_merge() -> None:
    b, c = filled(3, 7, 6).swapaxes(1, 2), filled(3, 7, 4).swapaxes(1, 2)
    assert check(filled(4, 6), b, c) == [((4, 6), (6, 21), (4, 21))]


def test_fold_fortran_stack_times_matrix_merges_inner_batch_axes() -> None:
    a, c = filled(2, 3, 4, 5, order="F"), filled(2, 3, 4, 6, order="F")
    assert check(a, filled(5, 6), c) == [((24, 5), (5, 6), (24, 6))]


def test_fold_rows_and_columns_merge_around_a_batch() -> None:
    shapes = check(filled(2, 3, 4, 5), filled(2, 1, 5, 6), filled(2, 3, 4, 6))
    assert shapes == [((2, 12, 5), (2, 5, 6), (2, 12, 6))]


def test_fold_stack_of_vectors_times_matrix_is_one_matrix() -> None:
    a, c = filled(8, 1, 5), filled(8, 1, 6)
    assert check(a, filled(5, 6), c) == [((8, 5), (5, 6), (8, 6))]


def test_fold_vector_times_stack_of_vectors_is_one_matrix() -> None:
    b, c = filled(8, 5, 1), filled(8, 1, 1)
    assert check(filled(1, 5), b, c) == [((1, 5), (5, 8), (1, 8))]


def test_fold_permuted_stack_is_one_batch_where_the_result_is_permuted_too() -> None:
    a, b, c = (filled(3, 2, *core).swapaxes(0, 1) for core in ((4, 5), (5, 6), (4, 6)))
    assert check(a, b, c) == [((6, 4, 5), (6, 5, 6), (6, 4, 6))]


def test_fold_crossed_batches_iterate_over_the_shorter_axis() -> None:
    shapes = check(filled(5, 1, 4, 5), filled(2, 5, 6), filled(5, 2, 4, 6))
    assert shapes == [((5, 4, 5), (5, 5, 6), (5, 4, 6))] * 2


def test_fold_reversed_batch_is_one_batch() -> None:
    a, b = filled(2, 3, 4, 5)[::-1, ::-1], filled(2, 3, 5, 6)[::-1, ::-1]
    assert check(a, b, filled(2, 3, 4, 6)) == [((6, 4, 5), (6, 5, 6), (6, 4, 6))]
    assert len(check(a, b[::-1], filled(2, 3, 4, 6))) == 2


def test_fold_without_inner_dimension_still_covers_the_result() -> None:
    shapes = check(filled(2, 3, 4, 0), filled(2, 3, 0, 6), filled(2, 3, 4, 6))
    assert sum(shape[2][0] for shape in shapes) == 6


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 2, 2), (2, 3, 4, 0)])
def test_fold_of_an_empty_result_is_empty(shape: Any) -> None:
    *batch, m, n = shape
    assert stacks.fold(np.ones((*batch, m, 2)), np.ones((*batch, 2, n)), np.ones(shape)) == []


def in_memory_order(draw: Any, shape: Any) -> Any:
    """Draw an array of a given shape: any order of its axes in memory, any step along them."""
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.lists(st.sampled_from([1, 1, 2, -1]), min_size=len(order), max_size=len(order)))
    whole = filled(*(shape[axis] * abs(steps[axis]) for axis in order))
    return whole.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]


@st.composite
def stacked(draw: Any) -> Any:
    size = st.sampled_from([1, 1, 2, 3])
    batch = draw(st.lists(size, max_size=3))
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    operands = []
    for core in ((m, k), (k, n)):
        kept = draw(st.integers(0, len(batch)))
        own = [draw(st.sampled_from([1, count])) for count in batch[len(batch) - kept :]]
        operands.append(in_memory_order(draw, (*own, *core)))
    return (*operands, in_memory_order(draw, (*batch, m, n)))


@settings(deadline=None, max_examples=300, derandomize=True)
@given(stacked())
def test_fold_covers_every_result_exactly_once(operands: Any) -> None:
    shapes = check(*operands)
    batch = operands[2].shape[:-2]
    assert len(shapes) <= max(1, np.prod(batch) // max(batch, default=1))


DIRECT = {
    "C": np.empty((4, 6)),
    "F": np.empty((4, 6), order="F"),
    "leading dimension": np.empty((8, 9))[:4, 1:7],
    "rows apart": np.empty((8, 6))[::2],
    "one row, any step": np.empty((1, 12))[:, ::2],
    "one column, any step": np.empty((12, 3))[::2, :1],
    "stack": np.empty((2, 4, 6)),
    "stack of F": np.empty((2, 6, 4)).swapaxes(1, 2),
    "one of a stack": np.empty((3, 4, 6))[1:2],
}
INDIRECT = {
    "step along both": np.empty((8, 12))[::2, ::2],
    "rows backwards": np.empty((4, 6))[::-1],
    "columns backwards": np.empty((4, 6))[:, ::-1],
    "stack backwards": np.empty((2, 4, 6))[::-1],
    "matrices interleave": np.empty((4, 2, 6)).swapaxes(0, 1),
    "batch fastest": np.empty((2, 4, 6), order="F"),
    "field of a structure": np.empty((4, 1), [("x", "c16"), ("y", "f8")])["x"].T,
    "rows overlap": np.lib.stride_tricks.as_strided(np.empty(32), (4, 6), (8, 8)),
}


@pytest.mark.parametrize("name", DIRECT)
def test_is_direct_accepts(name: Any) -> None:
    assert stacks.is_direct(DIRECT[name])


@pytest.mark.parametrize("name", INDIRECT)
def test_is_direct_refuses(name: Any) -> None:
    assert not stacks.is_direct(INDIRECT[name])


PERMUTED = [
    np.ones((2, 3, 4, 5)),
    np.ones((2, 3, 4, 5), order="F"),
    np.ones((3, 2, 4, 5)).swapaxes(0, 1),
    np.ones((3, 2, 4, 5)).swapaxes(0, 1)[::-1],
    np.ones((3, 4, 5), order="F"),
    np.ones((2, 1, 4, 5)),
    np.ones((4, 5)),
]


@pytest.mark.parametrize("order", ["C", "F", "K"])
@pytest.mark.parametrize(("x", "y"), list(itertools.product(PERMUTED, repeat=2)))
def test_empty_is_laid_out_as_numpy_does(x: Any, y: Any, order: Any) -> None:
    y = y.swapaxes(-1, -2)
    expected = np.matmul(x, y, order=order)
    result = stacks.empty((x, y), expected.shape, expected.dtype, order)
    assert (result.strides, result.dtype) == (expected.strides, expected.dtype)
    assert result.flags.owndata


@pytest.mark.parametrize("order", ["C", "F", "K"])
def test_empty_puts_core_axes_where_they_are_asked_for(order: Any) -> None:
    x, y = np.ones((2, 3, 4)), np.ones((2, 4, 5))
    expected = np.matmul(x, y, order=order, axes=[(1, 2), (1, 2), (2, 0)])
    result = stacks.empty((x, y), (2, 3, 5), expected.dtype, order, (2, 0))
    assert (result.shape, result.strides) == (expected.shape, expected.strides)
    assert result.flags.owndata
