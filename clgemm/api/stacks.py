"""Stacks of matrices: N-d operands as few 2-D or 3-D problems, and the layout of a fresh result.

Two axes of a stack are one axis when, in each of the three operands, a step along the outer axis
is as long as a walk along the whole inner one.  Three things follow from that rule.

* The batch axes of an ordinary stack are one batch axis: one problem of rank 3.
* A batch axis that b does not have (its stride there is 0) counts rows, as the row axis does: where
  it merges with the row axis, the stack is one tall matrix, and one problem of rank 2.
* A batch axis that a does not have counts columns, in the same way.

Nothing here computes or copies an element: what comes out are views.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Problem: TypeAlias = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
    _Shape: TypeAlias = tuple[int, ...]

MOST_FOLDS = (
    1024  # of which the way to fold them is kept: it takes longer to find than small stacks
)


class _Axis(NamedTuple):
    """One axis of the broadcast problem: its place, its size, its stride in each operand."""

    place: int
    size: int
    a: int
    b: int
    c: int


class _View(NamedTuple):
    """An operand with some axes merged and the others dropped."""

    axes: tuple[int, ...]
    """All axes, in order: those that are dropped come first."""
    first: tuple[Any, ...]
    """The index that drops them."""
    shape: tuple[int, ...]
    """What is left."""

    @classmethod
    def of(cls, ndim: int, kept: list[int], shape: list[int]) -> _View:
        """Drop all axes but some, which have size 1 or, once broadcast, stride 0."""
        dropped = [place for place in range(ndim) if place not in kept]
        # The ellipsis makes a view even of a single element, which would be a scalar without it.
        return cls((*dropped, *kept), (*[0] * len(dropped), ...), tuple(shape))


def fold(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> list[Problem]:
    """Split a stack of matrix products into as few problems of rank 2 or 3 as it takes.

    Parameters
    ----------
    a : ndarray, (..., m, k)
        Left matrices.  Its batch axes broadcast to those of `c`.
    b : ndarray, (..., k, n)
        Right matrices.  Its batch axes broadcast to those of `c`.
    c : ndarray, (..., m, n)
        Results.  No two of its elements share memory.

    Returns
    -------
    list of (ndarray, ndarray, ndarray)
        Views of `a`, `b` and `c`, all of one rank, 2 or 3.  The views of `c` cover it exactly
        once; there are none if `c` is empty.

    Notes
    -----
    What merges with the rows and with the columns is merged first, because one large matrix is
    faster than many small ones.  Of the axes left, the merged run with the most matrices becomes
    the batch axis, and the rest is iterated.  An axis of size 1 belongs to no run.

    Examples
    --------
    >>> a, b, c = np.ones((2, 3, 4, 5)), np.ones((2, 3, 5, 6)), np.ones((2, 3, 4, 6))
    >>> [[view.shape for view in problem] for problem in fold(a, b, c)]
    [[(6, 4, 5), (6, 5, 6), (6, 4, 6)]]
    >>> [[view.shape for view in problem] for problem in fold(a, np.ones((5, 6)), c)]
    [[(24, 5), (5, 6), (24, 6)]]
    """
    if c.ndim == 2 and c.size:
        return [(a, b, c)]
    if not c.size:
        return []
    batch = c.shape[:-2]
    if a.shape[:-2] != batch:
        a = np.broadcast_to(a, batch + a.shape[-2:], subok=True)
    if b.shape[:-2] != batch:
        b = np.broadcast_to(b, batch + b.shape[-2:], subok=True)
    if len(batch) == 1 and batch[0] > 1 and a.strides[0] and b.strides[0]:
        return [(a, b, c)]  # already as good as it gets
    return _fold(a, b, c)


class _Folds(NamedTuple):
    """How the operands of one shape are folded: the axes that are kept of each, and its shape."""

    a: _View
    b: _View
    c: _View
    loops: tuple[int, ...]
    """Sizes of the axes in front that are iterated."""


def _fold(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> list[Problem]:
    """Fold operands that have all their batch axes."""
    found = _folds(c.shape, a.shape[-1], a.strides, b.strides, c.strides)
    a, b, c = _view(a, found.a), _view(b, found.b), _view(c, found.c)
    # One empty index if no loop is left.
    return [(a[i], b[i], c[i]) for i in product(*map(range, found.loops))]


@lru_cache(MOST_FOLDS)
def _folds(shape: _Shape, k: int, of_a: _Shape, of_b: _Shape, of_c: _Shape) -> _Folds:
    """Find how operands with these strides are folded into a result of this shape."""
    row, column = len(shape) - 2, len(shape) - 1
    batch = [
        _Axis(place, size, *strides)
        for place, (size, *strides) in enumerate(zip(shape[:-2], of_a, of_b, of_c, strict=False))
        if size > 1
    ]
    rows = _core_run(
        _Axis(row, shape[row], of_a[row], 0, of_c[row]), [axis for axis in batch if not axis.b]
    )
    columns = _core_run(
        _Axis(column, shape[column], 0, of_b[column], of_c[column]),
        [axis for axis in batch if not axis.a and axis not in rows],
    )
    runs = _runs([axis for axis in batch if axis not in rows and axis not in columns])
    inner = max(runs, key=_count, default=[])
    loops = [axis for run in runs if run is not inner for axis in run]
    outer = [axis.place for axis in [*loops, *inner]]
    sizes = [axis.size for axis in loops] + [_count(inner)] * bool(inner)
    m, n = _count(rows), _count(columns)
    row_axes, column_axes = [axis.place for axis in rows], [axis.place for axis in columns]
    return _Folds(
        _View.of(len(shape), [*outer, *row_axes, column], [*sizes, m, k]),
        _View.of(len(shape), [*outer, row, *column_axes], [*sizes, k, n]),
        _View.of(len(shape), [*outer, *row_axes, *column_axes], [*sizes, m, n]),
        tuple(axis.size for axis in loops),
    )


def _count(run: Iterable[_Axis]) -> int:
    """Elements along the axes of a run."""
    return prod(axis.size for axis in run)


def _runs(axes: list[_Axis]) -> list[list[_Axis]]:
    """Group axes into runs that are one axis each, from the slowest to the fastest."""
    runs: list[list[_Axis]] = []
    # No two elements of c share memory, so axes that merge are neighbours in the order of c.
    for axis in sorted(axes, key=lambda axis: -abs(axis.c)):
        reach = (axis.a * axis.size, axis.b * axis.size, axis.c * axis.size)
        if runs and runs[-1][-1][2:] == reach:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _core_run(core: _Axis, candidates: list[_Axis]) -> list[_Axis]:
    """Return the run of the row or column axis; the largest one if that axis has size 1."""
    if core.size > 1:
        return next(run for run in _runs([core, *candidates]) if core in run)
    return max(_runs(candidates), key=_count, default=[])


def _view(x: NDArray[Any], found: _View) -> NDArray[Any]:
    """Put the kept axes in order, merge them, and drop the rest at index 0."""
    view: NDArray[Any] = x.transpose(found.axes)[found.first]
    return view.reshape(found.shape)


def is_direct(c: NDArray[Any]) -> bool:
    """Say whether the driver can write into `c`, of rank 2 or 3, where it lies.

    The elements of its rows or of its columns are adjacent, every other stride counts whole
    elements, and its matrices do not interleave.

    Examples
    --------
    >>> c = np.empty((4, 6))
    >>> is_direct(c), is_direct(c.T), is_direct(c[::2, 1:3]), is_direct(c[:, ::2])
    (True, True, True, False)
    """
    (m, n), (row, column) = c.shape[-2:], c.strides[-2:]
    size = c.itemsize
    by_rows = (n == 1 or column == size) and (m == 1 or row >= n * size)
    by_columns = (m == 1 or row == size) and (n == 1 or column >= m * size)
    # A field of a structured array may be aligned and still lie between whole elements.
    whole = all(s % size == 0 for count, s in zip(c.shape, c.strides, strict=True) if count > 1)
    if not (whole and (by_rows or by_columns)):
        return False
    span = row * (m - 1) * (m > 1) + column * (n - 1) * (n > 1) + size
    return all(
        count == 1 or stride >= span
        for count, stride in zip(c.shape[:-2], c.strides[:-2], strict=True)
    )


def empty(
    operands: tuple[NDArray[Any], NDArray[Any]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    order: str,
    core_axes: Sequence[int] | None = None,
) -> NDArray[Any]:
    """Allocate a fresh result laid out as NumPy's generalized ufuncs lay theirs out.

    Parameters
    ----------
    operands : (ndarray, ndarray)
        The inputs, at least 2-D, core axes last.  `order` "K" takes the order of the batch axes
        from them.
    shape : tuple of int
        Shape of the result, core axes last.
    dtype : dtype
        Type of the result.
    order : {"C", "F", "K"}
        Memory order.  "K" is "C" for the core axes: they have no counterpart in one input alone.
    core_axes : sequence of int, optional
        Where the core axes of the result are to be, instead of last.

    Returns
    -------
    ndarray
        Uninitialised, owning its data.
    """
    result = np.empty(shape, dtype, order="F" if order == "F" else "C")
    depth = max(x.ndim for x in operands) - 2
    if order == "K" and depth > 1:
        walk = _batch_order(*operands)
        if walk != list(range(depth)):
            core = list(range(depth, len(shape)))
            result = np.empty([shape[axis] for axis in walk + core], dtype)
            result = result.transpose([*np.argsort(walk).tolist(), *core])
    if core_axes is not None:
        result = np.moveaxis(result, range(-len(core_axes), 0), core_axes)
    # empty_like keeps the layout of a view and gives an array that owns its memory; a page that
    # nobody touches costs nothing.
    return result if result.base is None else np.empty_like(result)


def _batch_order(a: NDArray[Any], b: NDArray[Any]) -> list[int]:
    """Return the batch axes from the slowest to the fastest, as NumPy's iterator chooses them."""
    iterator = np.nditer((a[..., 0, 0], b[..., 0, 0], None), order="K")
    strides = iterator.operands[2].strides
    return sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))
