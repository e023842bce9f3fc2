"""Two operands and the pairs of axes that they are summed over: how they are matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Pair(NamedTuple):
    """Orders of axes, and extents of the matrices that they are merged into."""

    left: tuple[int, ...]
    """Rows, then the axes that are summed over."""
    right: tuple[int, ...]
    """The axes that are summed over, then columns."""
    m: int
    depth: int
    n: int
    shape: tuple[int, ...]
    """Of the result, an axis for each row and column."""


def pair(x: Any, y: Any, axes_x: Sequence[int], axes_y: Sequence[int]) -> Pair:
    """Find how two arrays of either kind are matrices, given axes from 0 up to be summed over.

    These come in the order in which the larger operand has them in memory.  What is then one axis
    of a matrix needs no copy, where any order avoids it.
    """
    strides = [
        x.strides[i] if x.size >= y.size else y.strides[j]
        for i, j in zip(axes_x, axes_y, strict=True)
    ]
    order = sorted(range(len(strides)), key=lambda place: -abs(strides[place]))
    rows = [k for k in range(x.ndim) if k not in axes_x]
    columns = [k for k in range(y.ndim) if k not in axes_y]
    depth = math.prod(x.shape[k] for k in axes_x)
    shape = tuple([x.shape[k] for k in rows] + [y.shape[k] for k in columns])
    m, n = math.prod(shape[: len(rows)]), math.prod(shape[len(rows) :])
    left = *rows, *(axes_x[place] for place in order)
    return Pair(left, (*(axes_y[place] for place in order), *columns), m, depth, n, shape)
