"""The functions of a BLAS that are interposed: their names, and what a gemm's arguments are.

Builds name one function in several ways: ``cblas_sgemm`` and ``sgemm_``, in the wheels of NumPy and
SciPy ``scipy_cblas_sgemm64_``, ``scipy_sgemm_`` and the like.  A 64 at the end says that integers
have 64 bits; else they have 32.
"""

from __future__ import annotations

import re
import struct
from ctypes import c_int32, c_int64, string_at
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from clgemm.problem import Precision

GEMM = "gemm"
"""What is computed on the device."""
COUNTED = [
    "gemv",
    "symm",
    "syrk",
    "syr2k",
    "trmm",
    "trsm",
    "gemmt",
    "gemm3m",
    "hemm",
    "herk",
    "her2k",
]
"""What is only counted."""
_ROUTINES = "|".join([GEMM, *COUNTED])
NAME = re.compile(
    rf"(?:scipy_)?(?:cblas_(?P<c>[sdcz])(?P<cr>{_ROUTINES})(?P<c64>64_|_64)?"
    rf"|(?P<f>[sdcz])(?P<fr>{_ROUTINES})_(?P<f64>64_?)?)"
)
_OF_COMPLEX = frozenset({"gemm3m", "hemm", "herk", "her2k"})
_ROW_MAJOR, _COLUMN_MAJOR = 101, 102
_FLAGS = {111: (False, False), 112: (True, False), 113: (True, True), 114: (False, True)}
"""CBLAS' numbers: transposed, conjugated.  The last is OpenBLAS' own."""
_LETTERS = {b"N": (False, False), b"T": (True, False), b"C": (True, True), b"R": (False, True)}
"""Fortran's, of which the last is OpenBLAS' own."""


class Product(NamedTuple):
    """What a call asks for, C := alpha op(A) op(B) + beta C, column-major."""

    m: int
    n: int
    k: int
    trans_a: bool
    conj_a: bool
    trans_b: bool
    conj_b: bool
    lda: int
    ldb: int
    ldc: int
    alpha: complex
    beta: complex
    a: int
    """Addresses."""
    b: int
    c: int


@dataclass(frozen=True)
class Entry:
    """A function by its name."""

    name: str
    precision: Precision
    is_cblas: bool
    wide: bool
    """Whether integers have 64 bits."""
    routine: str = GEMM

    @property
    def is_gemm(self) -> bool:
        """Whether the device can compute it; others are only counted."""
        return self.routine == GEMM

    @classmethod
    def of(cls, name: str) -> Entry | None:
        """Read a name; None if it is that of another function."""
        found = NAME.fullmatch(name)
        if found is None:
            return None
        precision = PRECISIONS[found["c"] or found["f"]]
        routine = found["cr"] or found["fr"]
        if routine in _OF_COMPLEX and not precision.is_complex:
            return None
        wide = bool(found["c64"] or found["f64"])
        return cls(name, precision, bool(found["c"]), wide, routine)

    def read(self, registers: int, stack: int) -> Product | None:
        """Read the arguments of a call; None if they ask for nothing that a gemm can do.

        Parameters
        ----------
        registers : int
            Address of what the registers of the arguments held: rdi, rsi, rdx, rcx, r8, r9, xmm0
            and xmm1, eight bytes each (System V ABI of x86-64).
        stack : int
            Address of the arguments behind those.
        """
        found = self._cblas(registers, stack) if self.is_cblas else self._fortran(registers, stack)
        return found if found is not None and _is_sound(found) else None

    def _cblas(self, registers: int, stack: int) -> Product | None:
        first, behind = self._layouts
        order, ta, tb, m, n, k, alpha, beta = first.unpack(string_at(registers, first.size))
        rest = behind.unpack(string_at(stack, behind.size))
        if self.precision.is_complex:
            at_alpha, a, lda, b, ldb, at_beta, c, ldc = rest
            alpha, beta = self._number(at_alpha), self._number(at_beta)
        else:
            a, lda, b, ldb, c, ldc = rest
        flags_a, flags_b = _FLAGS.get(ta), _FLAGS.get(tb)
        if flags_a is None or flags_b is None:
            return None
        if order == _ROW_MAJOR:  # the same memory as C.T = op(B).T op(A).T, column-major
            return Product(n, m, k, *flags_b, *flags_a, ldb, lda, ldc, alpha, beta, b, a, c)
        if order != _COLUMN_MAJOR:
            return None
        return Product(m, n, k, *flags_a, *flags_b, lda, ldb, ldc, alpha, beta, a, b, c)

    def _fortran(self, registers: int, stack: int) -> Product | None:
        first, behind = self._layouts
        ta, tb, m, n, k, alpha = first.unpack(string_at(registers, first.size))
        a, lda, b, ldb, beta, c, ldc = behind.unpack(string_at(stack, behind.size))
        flags_a, flags_b = (_LETTERS.get(string_at(x, 1).upper()) for x in (ta, tb))
        if flags_a is None or flags_b is None:
            return None
        integer = c_int64 if self.wide else c_int32
        m, n, k, lda, ldb, ldc = (integer.from_address(x).value for x in (m, n, k, lda, ldb, ldc))
        alpha, beta = self._number(alpha), self._number(beta)
        return Product(m, n, k, *flags_a, *flags_b, lda, ldb, ldc, alpha, beta, a, b, c)

    @cached_property
    def _layouts(self) -> tuple[struct.Struct, struct.Struct]:
        """How arguments lie in registers and on the stack, which has eight bytes for each."""
        if not self.is_cblas:
            return struct.Struct("<6Q"), struct.Struct("<7Q")
        integer = "q" if self.wide else "i4x"
        number = "d" if self.precision.is_double else "f4x"
        matrix = "Q" + integer
        first = struct.Struct("<" + 3 * "i4x" + 3 * integer + 2 * number)
        if self.precision.is_complex:
            return first, struct.Struct("<Q" + 2 * matrix + "Q" + matrix)
        return first, struct.Struct("<" + 3 * matrix)

    def _number(self, address: int) -> Any:
        real = "d" if self.precision.is_double else "f"
        parts = struct.unpack(
            "<" + real * self.precision.parts, string_at(address, self.precision.itemsize)
        )
        return complex(*parts) if self.precision.is_complex else parts[0]


def _is_sound(x: Product) -> bool:
    """Tell whether sizes are such that the original computes: else it reports an error."""
    rows_a, rows_b = (x.k if x.trans_a else x.m), (x.n if x.trans_b else x.k)
    fits = x.lda >= rows_a and x.ldb >= rows_b and x.ldc >= x.m
    return fits and min(x.m, x.n, x.k) > 0 and bool(x.a and x.b and x.c)
