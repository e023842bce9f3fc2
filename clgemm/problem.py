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

from clgemm.layouts import is_row_major, is_same_memory, layout_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from clgemm.layouts import Layout


@dataclass(frozen=True)
class Precision:
    """What there is to know of one element type."""

    code: str
    """BLAS letter: s, d, c or z; of other types NumPy's kind and bytes: i4, u1, b1, f2."""
    dtype: np.dtype[Any]
    """NumPy type of an element, native byte order."""
    real: str
    """OpenCL type of a real part; of integers the unsigned one."""
    struct_format: str
    """How `struct` packs an element that is a kernel's argument."""
    is_complex: bool
    is_double: bool
    """Whether a device needs double precision (cl_khr_fp64) for it."""
    wide: str
    """The precision in which references for its products are computed; of integers their own."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def parts(self) -> int:
        """Real numbers of an element."""
        return 2 if self.is_complex else 1

    @property
    def real_bytes(self) -> int:
        """Bytes of a real part."""
        return self.itemsize // self.parts

    @property
    def multiplications(self) -> int:
        """Real multiplications of a product of two elements."""
        return self.parts * self.parts

    @property
    def eps(self) -> float:
        """Spacing of the real type at 1 (2u, u the unit roundoff)."""
        return float(np.finfo(self.dtype).eps)


def _precision(code: str, dtype: type, real: str, wide: str) -> Precision:
    is_complex, is_double = np.dtype(dtype).kind == "c", real == "double"
    parts = ("d" if is_double else "f") * (2 if is_complex else 1)
    return Precision(code, np.dtype(dtype), real, parts, is_complex, is_double, wide)


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        precision.code: precision
        for precision in (
            _precision("s", np.float32, "float", "d"),
            _precision("d", np.float64, "double", "d"),
            _precision("c", np.complex64, "float", "z"),
            _precision("z", np.complex128, "double", "z"),
        )
    }
)
"""One row an element type; everything else asks here."""
BY_DTYPE: Mapping[np.dtype[Any], Precision] = MappingProxyType(
    {precision.dtype: precision for precision in PRECISIONS.values()}
)


def _integer(dtype: type, real: str) -> Precision:
    code = np.dtype(dtype).str[1:]
    # Kernels take factors as every kernel does, as floats, and do not read them.
    return Precision(code, np.dtype(dtype), real, "f", is_complex=False, is_double=False, wide=code)


INTEGERS: Mapping[str, Precision] = MappingProxyType(
    {
        precision.code: precision
        for precision in (
            _integer(np.bool_, "uchar"),
            *(_integer(x, "uchar") for x in (np.int8, np.uint8)),
            *(_integer(x, "ushort") for x in (np.int16, np.uint16)),
            *(_integer(x, "uint") for x in (np.int32, np.uint32)),
            *(_integer(x, "ulong") for x in (np.int64, np.uint64)),
        )
    }
)
"""One row a type of which BLAS has no products: of these only `matmul` knows."""
HALF = Precision("f2", np.dtype(np.float16), "half", "f", False, False, "s")
"""float16, of which `matmul` knows: summed in float32, and rounded once at the end."""
ELEMENTS: Mapping[str, Precision] = MappingProxyType({**PRECISIONS, **INTEGERS, HALF.code: HALF})
"""All types that a device computes in."""
INTEGER_DTYPES = frozenset(precision.dtype for precision in INTEGERS.values())
AS_GIVEN = frozenset(precision.dtype for precision in ELEMENTS.values() if precision is not HALF)
"""Types of which NumPy's arrays are multiplied as they are; float16 ones are made float32 first."""
ELEMENT_OF: Mapping[np.dtype[Any], Precision] = MappingProxyType(
    {precision.dtype: precision for precision in ELEMENTS.values()}
)


def dtype_of_product(p: np.dtype[Any], q: np.dtype[Any]) -> np.dtype[Any]:
    """Return which of two equal types NumPy's product has: not long where there is a long long."""
    return p if p is q or p.num >= q.num else q


GENERAL, SYMMETRIC, HERMITIAN = 0, 1, 2
"""What is known of a product's C: see `Gemm.triangle`."""


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
    """Elements before the first one, as far as alignment goes: see `alignment_class`."""
    offset_b: int = 0
    offset_c: int = 0
    triangle: int = GENERAL
    """A Gram product, of a matrix and its own transpose, is SYMMETRIC or, with one of them
    conjugated, HERMITIAN: kernels compute the lower triangle of C and mirror it."""

    @property
    def flops(self) -> int:
        """Operations: 2mnk, four times that for complex elements.

        As many for a Gram product, so that rates compare.
        """
        each = ELEMENTS[self.precision].multiplications
        return 2 * self.m * self.n * self.k * self.batch * each

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
        return max(spans) * ELEMENTS[self.precision].itemsize

    @property
    def operand_bytes(self) -> int:
        """Bytes of the three operands without gaps; a stack of one matrix repeated counts once.

        So does the matrix of a Gram product.
        """
        a = self.m * self.k * (self.batch if self.stride_a else 1)
        b = 0 if self.triangle else self.k * self.n * (self.batch if self.stride_b else 1)
        return (a + b + self.m * self.n * self.batch) * ELEMENTS[self.precision].itemsize

    def block(self, batch: int, m: int, n: int, k: int) -> Gemm:
        """Describe a part, of operands that lie as these; general unless it is whole matrices."""
        whole = (m, n, k) == (self.m, self.n, self.k)
        triangle = self.triangle if whole else GENERAL
        return self._replace(batch=batch, m=m, n=n, k=k, triangle=triangle)

    def dense(self) -> Gemm:
        """Describe the same problem after its matrices were copied without gaps."""
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


WIDEST = 16  # elements: no kernel reads or writes longer vectors


def alignment_class(offset: int) -> int:
    """Return the offset that stands for all that are multiples of the same power of two.

    A plan depends on how long the vectors are that operands can be read in, and on nothing else of
    an offset; what it was made for is bound at each launch.

    Examples
    --------
    >>> [alignment_class(x) for x in (0, 1, 6, 12, 48, 7 * 16)]
    [0, 1, 2, 4, 0, 0]
    """
    return offset & -offset & (WIDEST - 1)


class Call(NamedTuple):
    """One product with its data, C := alpha * op(A) @ op(B) + beta * C: what the faces hand on."""

    alpha: complex
    a: NDArray[Any]
    """(m, k) or (batch, m, k): op(A) up to conjugation, with any strides."""
    b: NDArray[Any]
    """(k, n) or (batch, k, n)."""
    beta: complex
    c: NDArray[Any]
    """(m, n) or (batch, m, n); written in place.  Column-major if it has a layout at all."""
    conj_a: bool = False
    conj_b: bool = False
    transposed: bool = False
    """Whether the caller's C is the transpose of this one: for people."""

    @classmethod
    def of(
        cls, alpha: complex, a: NDArray[Any], b: NDArray[Any], beta: complex, c: NDArray[Any],
        conj_a: bool = False, conj_b: bool = False,
    ) -> Call:  # fmt: skip
        """Make a call of operands in any order; a row-major C is seen as its transpose.

        C.T = op(B).T @ op(A).T is the same memory, column-major.  This is the only place where that
        is done.
        """
        if is_row_major(c.shape, c.strides, c.itemsize):
            if c.ndim == 2:
                return cls(alpha, b.T, a.T, beta, c.T, conj_b, conj_a, transposed=True)
            a, b, c = a.swapaxes(-1, -2), b.swapaxes(-1, -2), c.swapaxes(-1, -2)
            return cls(alpha, b, a, beta, c, conj_b, conj_a, transposed=True)
        return cls(alpha, a, b, beta, c, conj_a, conj_b)

    @property
    def is_gram(self) -> bool:
        """Whether A and B are the same matrix, one perhaps transposed, and C may be Hermitian."""
        if not is_same_memory(self.a, self.b):
            return False
        return self.conj_a == self.conj_b or self.alpha.imag == 0

    @property
    def operands(self) -> tuple[Operand, Operand]:
        """A and B, each with its conjugation."""
        return Operand(self.a, self.conj_a), Operand(self.b, self.conj_b)


class Operand(NamedTuple):
    """A matrix (or a stack of equal ones) as it takes part in a product."""

    data: NDArray[Any]
    """(rows, columns) or (batch, rows, columns): op(X) up to conjugation."""
    conj: bool = False


def describe(
    a: Operand,
    b: Operand,
    c: NDArray[Any],
    *,
    reads_c: bool,
    is_gram: bool = False,
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
    is_gram : bool
        What `Call.is_gram` says.
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
    shape, precision = c.shape, ELEMENT_OF[c.dtype]
    triangle = GENERAL
    # The same leading dimension, read the other way: op(B) is op(A) transposed.
    may_be_gram = is_gram and precision.code not in INTEGERS
    is_hermitian = precision.is_complex and a.conj != b.conj
    # A single number is its own mirror image, but of a Hermitian C it has to be real.
    least = 1 if is_hermitian else 2
    turned = la.trans != lb.trans or a.data.shape[-2:] == (1, 1)
    if may_be_gram and turned and la[1:] == lb[1:] and shape[-2] == shape[-1] >= least:
        triangle = GENERAL if reads_c else HERMITIAN if is_hermitian else SYMMETRIC
    return Gemm(
        precision.code,
        shape[-2], shape[-1], a.data.shape[-1], shape[0] if len(shape) > 2 else 1,
        la.trans, a.conj, la.ld, la.stride,
        lb.trans, b.conj, lb.ld, lb.stride,
        lc.ld, lc.stride,
        reads_c, triangle=triangle,
    )  # fmt: skip
