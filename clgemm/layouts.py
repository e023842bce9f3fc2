"""How matrices lie in memory: as BLAS can say it, by a leading dimension, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Layout(NamedTuple):
    """How a matrix lies in memory, in elements."""

    trans: bool
    ld: int
    stride: int


def layout_of(x: NDArray[Any]) -> Layout | None:
    """Describe `x` as BLAS would, or None where no leading dimension can.

    Parameters
    ----------
    x : ndarray of shape (rows, columns) or (batch, rows, columns), not empty

    Returns
    -------
    Layout or None
        None if neither axis has unit stride, a stride is negative or no multiple of the element
        size, or the data does not lie on a multiple of the element size.
    """
    size, shape, strides = x.itemsize, x.shape, x.strides
    rows, columns = shape[-2:]
    row_step, column_step = strides[-2:]
    stride = strides[0] if len(shape) > 2 and shape[0] > 1 else 0
    # A single row has no step from row to row: only the walk along it counts, as for a column.
    if row_step == size or rows == 1:
        trans, ld = False, column_step
        if columns == 1:
            ld = rows * size
        elif rows == 1 and column_step == size:
            trans, ld = True, columns * size
    elif column_step == size or columns == 1:
        trans, ld = True, row_step
    else:
        return None
    if ld < 0 or stride < 0 or ld % size or stride % size or not is_aligned(x):
        return None
    return Layout(trans, ld // size, stride // size)


def expressible(x: NDArray[Any]) -> NDArray[Any]:
    """Return the operand itself, or a copy if no BLAS layout fits it."""
    if layout_of(x) is not None:
        return x
    if x.ndim > 2 and x.strides[0] == 0:  # a stack of one matrix repeated
        return np.broadcast_to(np.array(x[0], order="C"), x.shape)
    return np.array(x, order="C")


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Tell whether the elements of a matrix' rows are neighbours, and those of its columns not."""
    rows, columns = shape[-2:]
    if rows == 1:
        return columns > 1 and strides[-1] == itemsize
    return strides[-2] != itemsize


def address_of(x: NDArray[Any]) -> int:
    """Return where the first element of `x` lies."""
    return int(x.__array_interface__["data"][0])


def is_same_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether two operands are the same matrix, one perhaps transposed.

    Views of different bases count as different: asking for addresses takes microseconds.
    """
    if a is b:
        return True
    base: Any = a if a.base is None else a.base
    if base is not (b if b.base is None else b.base):
        return False
    covers = type(base) is np.ndarray and a.nbytes == base.nbytes == b.nbytes
    if covers and a.flags.forc and b.flags.forc:
        return True  # all of the base: there is no need to ask
    return address_of(a) == address_of(b)


def is_aligned(x: NDArray[Any]) -> bool:
    """Tell whether kernels can load the elements.

    NumPy aligns complex numbers like their parts; kernels load both parts at once.
    """
    flags = x.flags
    if x.dtype.kind != "c":
        return flags.aligned
    # What NumPy allocated is aligned; asking for an address takes most of a microsecond.
    if flags.owndata:
        return True
    base = x.base
    if flags.forc and type(base) is np.ndarray and base.flags.owndata and base.nbytes == x.nbytes:
        return True  # all of it
    return address_of(x) % x.itemsize == 0
