"""The problem: C := alpha * op(A) @ op(B) + beta * C, as plain numbers.

`Gemm` is a frozen value in column-major terms; two calls with equal `Gemm`s run the same plan.
Transposition never appears as a flag before this module: a face hands over `a.T`, and the strides
say the rest.  Row-major results are rewritten here, once, as the transposed column-major problem
(C.T = op(B).T @ op(A).T).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Precision:
    """One of the four BLAS precisions."""

    code: str
    """BLAS letter: s, d, c or z."""
    dtype: np.dtype[Any]
    """NumPy type of an element, native byte order."""
    real: str
    """OpenCL type of a real part: float or double."""
    is_complex: bool

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def real_bytes(self) -> int:
        """Bytes of a real part."""
        return 4 if self.real == "float" else 8

    @property
    def eps(self) -> float:
        """Spacing of the real type at 1 (2u, u the unit roundoff)."""
        return float(np.finfo(self.dtype).eps)


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "s": Precision("s", np.dtype(np.float32), "float", is_complex=False),
        "d": Precision("d", np.dtype(np.float64), "double", is_complex=False),
        "c": Precision("c", np.dtype(np.complex64), "float", is_complex=True),
        "z": Precision("z", np.dtype(np.complex128), "double", is_complex=True),
    }
)
BY_DTYPE: Mapping[np.dtype[Any], Precision] = MappingProxyType(
    {precision.dtype: precision for precision in PRECISIONS.values()}
)


class Gemm(NamedTuple):
    """One gemm in column-major terms, without its data: a hashable key that plans are cached by.

    Element (row, column) of op(A) lies at ``row + column*lda`` if `trans_a` is false, else at
    ``column + row*lda``; the same for B; C is never transposed.  Sizes, leading dimensions and
    batch strides count elements.
    """

    precision: str
    m: int
    n: int
    k: int
    batch: int
    trans_a: bool
    conj_a: bool
    lda: int
    stride_a: int
    trans_b: bool
    conj_b: bool
    ldb: int
    stride_b: int
    ldc: int
    stride_c: int
    reads_c: bool
    """False if beta == 0: C is not read."""
    aligned: bool = False
    """A and B are known to start on a multiple of `ALIGNMENT`."""
    offset_a: int = 0
    """Elements before the first one; so for B and C."""
    offset_b: int = 0
    offset_c: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations: 2mnk, four times that for complex elements."""
        return 2 * self.m * self.n * self.k * self.batch * (4 if self.precision in "cz" else 1)

    @property
    def largest_bytes(self) -> int:
        """Bytes from the first to the last element of the largest of the three operands."""
        a_shape = (self.k, self.m) if self.trans_a else (self.m, self.k)
        b_shape = (self.n, self.k) if self.trans_b else (self.k, self.n)
        spans = (
            rows + (columns - 1) * ld + (self.batch - 1) * stride
            for (rows, columns), ld, stride in (
                (a_shape, self.lda, self.stride_a),
                (b_shape, self.ldb, self.stride_b),
                ((self.m, self.n), self.ldc, self.stride_c),
            )
        )
        return max(spans) * PRECISIONS[self.precision].itemsize

    @property
    def operand_bytes(self) -> int:
        """Bytes of the three operands without gaps; a stack of one matrix repeated counts once."""
        a = self.m * self.k * (self.batch if self.stride_a else 1)
        b = self.k * self.n * (self.batch if self.stride_b else 1)
        return (a + b + self.m * self.n * self.batch) * PRECISIONS[self.precision].itemsize

    def dense(self) -> Gemm:
        """Tell how the same problem looks after its matrices were copied without gaps."""
        a_shape = (self.k, self.m) if self.trans_a else (self.m, self.k)
        b_shape = (self.n, self.k) if self.trans_b else (self.k, self.n)
        return self._replace(
            lda=a_shape[0],
            stride_a=a_shape[0] * a_shape[1] if self.stride_a else 0,
            ldb=b_shape[0],
            stride_b=b_shape[0] * b_shape[1] if self.stride_b else 0,
            ldc=self.m,
            stride_c=self.m * self.n,
            aligned=True,  # as every buffer is
        )


ALIGNMENT = 16  # bytes; what kernels rely on where a problem says `aligned`


class Operand(NamedTuple):
    """A matrix (or a stack of equal ones) as it takes part in a product."""

    data: NDArray[Any]
    """(rows, columns) or (batch, rows, columns): op(X) up to conjugation."""
    conj: bool = False

    @property
    def turned(self) -> Operand:
        """The transposed operand, conjugated as before."""
        return Operand(self.data.swapaxes(-1, -2), self.conj)


class Layout(NamedTuple):
    """How a matrix lies in memory, in elements."""

    trans: bool
    ld: int
    stride: int


def describe(
    a: Operand,
    b: Operand,
    c: NDArray[Any],
    *,
    reads_c: bool,
    layouts: tuple[Layout | None, Layout | None, Layout | None] | None = None,
) -> Gemm:
    """Describe the product of expressible operands into a column-major `c`.

    Parameters
    ----------
    a, b : Operand
        Of shapes (m, k) and (k, n), or stacks of equal length; `layout_of` knows their layouts.
    c : ndarray of shape (m, n), or a stack
        With unit stride along its rows.
    reads_c : bool
        Whether beta != 0.
    layouts : tuple of three Layouts, optional
        What `layout_of` says of the three, if that is known.

    Raises
    ------
    ValueError
        If one of the three has no layout, or `c` is row-major.
    """
    la, lb, lc = layouts or (layout_of(a.data), layout_of(b.data), layout_of(c))
    if la is None or lb is None or lc is None or lc.trans:
        raise ValueError("an operand has no BLAS layout, or C is row-major: copy or turn it first")
    shape = c.shape
    return Gemm(
        BY_DTYPE[c.dtype].code,
        shape[-2], shape[-1], a.data.shape[-1], shape[0] if len(shape) > 2 else 1,
        la.trans, a.conj, la.ld, la.stride,
        lb.trans, b.conj, lb.ld, lb.stride,
        lc.ld, lc.stride,
        reads_c,
    )  # fmt: skip


def address_of(x: NDArray[Any]) -> int:
    """Return where the first element of `x` lies."""
    return int(x.__array_interface__["data"][0])


def aligned(x: NDArray[Any]) -> bool:
    """Tell whether an array begins at a multiple of its element's size."""
    # What NumPy allocated itself is aligned; asking for an address takes a microsecond.
    return x.base is None or not address_of(x) % x.itemsize


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
    if ld < 0 or stride < 0 or ld % size or stride % size or not x.flags.aligned:
        return None
    # NumPy aligns complex numbers like their parts; kernels load both parts at once.
    if x.dtype.kind == "c" and address_of(x) % size:
        return None
    return Layout(trans, ld // size, stride // size)


def expressible(x: Operand) -> Operand:
    """Return the operand itself, or a copy if no BLAS layout fits it."""
    if layout_of(x.data) is not None:
        return x
    if x.data.ndim > 2 and x.data.strides[0] == 0:  # a stack of one matrix repeated
        once = np.array(x.data[0], order="C")
        return Operand(np.broadcast_to(once, x.data.shape), x.conj)
    return Operand(np.array(x.data, order="C"), x.conj)
