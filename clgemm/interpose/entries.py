"""The functions of a BLAS that are interposed: their names, and the names of their arguments.

Builds name one function in several ways: ``cblas_sgemm`` and ``sgemm_``, in the wheels of NumPy and
SciPy ``scipy_cblas_sgemm64_``, ``scipy_sgemm_`` and the like.  A 64 at the end says that integers
have 64 bits; else they have 32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from clgemm.problem import Precision

_GEMM = "order trans_a trans_b m n k alpha a lda b ldb beta c ldc"
_GEMMT = "order uplo trans_a trans_b n k alpha a lda b ldb beta c ldc"
_SYRK = "order uplo trans_a n k alpha a lda beta c ldc"
ARGUMENTS = {
    "gemm": _GEMM.split(),
    "gemm3m": _GEMM.split(),
    "gemmt": _GEMMT.split(),
    "syrk": _SYRK.split(),
    "herk": _SYRK.split(),
}
"""What the device can compute, with CBLAS' arguments.  Fortran's are the same without the first."""
COUNTED = ["gemv", "symm", "syr2k", "trmm", "trsm", "hemm", "her2k"]
"""What is only counted."""
_ROUTINES = "|".join([*ARGUMENTS, *COUNTED])
NAME = re.compile(
    rf"(?:scipy_)?(?:cblas_(?P<c>[sdcz])(?P<cr>{_ROUTINES})(?P<c64>64_|_64)?"
    rf"|(?P<f>[sdcz])(?P<fr>{_ROUTINES})_(?P<f64>64_?)?)"
)
_OF_COMPLEX = frozenset({"gemm3m", "hemm", "herk", "her2k"})


@dataclass(frozen=True)
class Entry:
    """A function by its name."""

    name: str
    precision: Precision
    is_cblas: bool
    wide: bool
    """Whether integers have 64 bits."""
    routine: str = "gemm"

    @property
    def is_computed(self) -> bool:
        """Whether the device can compute it; others are only counted."""
        return self.routine in ARGUMENTS

    @property
    def arguments(self) -> list[str]:
        """The names of its arguments, if it is computed: CBLAS' by value, Fortran's by address."""
        return ARGUMENTS[self.routine][0 if self.is_cblas else 1 :]

    @property
    def extents(self) -> tuple[int, int, int]:
        """The places of m, n and k among the arguments; the m of a square C is its n."""
        places = self.arguments.index
        return places("m" if "m" in self.arguments else "n"), places("n"), places("k")

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
