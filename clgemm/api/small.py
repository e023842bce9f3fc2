"""Small products, straight to SciPy and NumPy: what a launch costs, they need for the whole call.

The faces ask here first, before they read their arguments.  Only calls of the plainest kind are
taken; whatever is unusual about one is left to the faces, which know every rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api import repeated, shortcut
from clgemm.dispatch.integers import MOST_SMALL
from clgemm.dispatch.route import DEEP, SMALL_FLOPS, SMALL_SHALLOW, SMALL_STACK
from clgemm.host import blas as host_blas
from clgemm.host import scipy_blas
from clgemm.problem import BY_DTYPE, INTEGER_DTYPES
from clgemm.settings import allows_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.api.repeated import Arguments


faces: dict[np.dtype[Any], Any] = {}
"""clgemm's gemm by dtype: with SciPy's, what is compiled of it can do without the code here."""


class _Routines(dict[np.dtype[Any], Any]):
    """SciPy's gemm by dtype, asked for at its first use: later ones find it here at once."""

    def __missing__(self, dtype: np.dtype[Any]) -> Any:
        found = self.setdefault(dtype, scipy_blas.gemm(BY_DTYPE[dtype].code))
        face = faces.pop(dtype, None)
        if shortcut.MODULE is not None and face is not None:
            face.rules_of_gemm(*rules_of_shortcut(dtype, found))
        return found


_ROUTINES = _Routines()


def _most(flops: int) -> dict[np.dtype[Any], int]:
    return {dtype: flops // (2 * p.multiplications) for dtype, p in BY_DTYPE.items()} | (
        dict.fromkeys(INTEGER_DTYPES, MOST_SMALL)
    )


MOST = _most(SMALL_FLOPS)
"""m * n * k up to which a product is small: a complex multiplication counts four times."""
SHALLOW = _most(SMALL_SHALLOW)
"""The same where k is below `DEEP`."""
ROWS = dict.fromkeys(BY_DTYPE, host_blas.LONG)
"""The same of a row or a column, which the host computes, whatever its length."""
MOST_STACKED = _most(SMALL_STACK)
"""The same for stacks, and for products with vectors."""
LEAST = min(SHALLOW.values())
"""Up to which a product is small, whatever its type."""
_ZEROED = {dtype: host_blas.ZEROED // dtype.itemsize for dtype in BY_DTYPE}


def rules_of_shortcut(dtype: np.dtype[Any], routine: Any) -> tuple[Any, ...]:
    """Return what the compiled part of a gemm decides by, and SciPy's routine: see `gemm`."""
    limits = dtype, MOST[dtype], SHALLOW[dtype], _ZEROED[dtype]
    return _NDARRAY, shortcut.MODES, routine, limits, DEEP


_CONJUGATE = 2
_SWITCH = (0, 1)
_NO = _SWITCH[0]
_INTEGERS = frozenset({int, bool})
_REAL = frozenset({float, int, np.float64, np.float32})
_COMPLEX = _REAL | {complex, np.complex128, np.complex64}
_FACTORS = {dtype: _COMPLEX if dtype.kind == "c" else _REAL for dtype in BY_DTYPE}
_LEAST, _MOST = 1e-37, 1e37
"""Factors of that size are no zero and no infinity in single precision either."""
_MATRIX = 2  # axes
_NDARRAY = np.ndarray


def gemm(dtype: np.dtype[Any], arguments: Arguments) -> NDArray[Any] | None:
    """Return what SciPy's gemm returns for plain arguments if it is small or was met, else None.

    SciPy reads the arguments itself, so what is taken is only what it and the faces treat alike:
    a `c` that may be written shares no memory with an operand, and factors are neither zero nor
    rounded to it (some of OpenBLAS' kernels for small matrices multiply by an alpha of 0, so that
    a NaN in `a` shows).
    """
    alpha, a, b, beta, c, trans_a, trans_b, overwrite_c = arguments
    if not (
        a.__class__ is _NDARRAY is b.__class__
        and (a.dtype is dtype is b.dtype or a.dtype == dtype == b.dtype)
        and (trans_a is _NO is trans_b is overwrite_c  # as nearly always
             or ({trans_a.__class__, trans_b.__class__, overwrite_c.__class__} <= _INTEGERS
                 and 0 <= trans_a <= _CONJUGATE >= trans_b >= 0))
        and (alpha.__class__ is float or type(alpha) in _FACTORS[dtype])
        and (alpha == 1.0 or _LEAST <= abs(alpha) <= _MOST)
    ):  # fmt: skip
        return None
    try:
        m, k = a.shape[::-1] if trans_a else a.shape
        rows, n = b.shape[::-1] if trans_b else b.shape
    except ValueError:  # no two matrices
        return None
    product = (size := m * n) * k
    plain = c is None and beta.__class__ is float and beta == 0.0 and overwrite_c in _SWITCH
    if k != rows or not product or not (plain or _fits(arguments, dtype, (m, n))):
        return None
    if product > (MOST if k >= DEEP else SHALLOW)[dtype] or not allows_host():
        return repeated.gemm(arguments)
    found: NDArray[Any]
    if plain and size >= _ZEROED[dtype]:
        found = _ROUTINES[dtype](
            alpha, a, b, beta, np.empty((m, n), dtype, "F"), trans_a, trans_b, True
        )
    elif plain and trans_a is _NO is trans_b:
        found = _ROUTINES[dtype](alpha, a, b)
    else:
        found = _ROUTINES[dtype](*arguments)
    return found


def _fits(arguments: Arguments, dtype: np.dtype[Any], shape: tuple[int, int]) -> bool:
    """Tell whether beta, `c` and its flag are of the kind that `gemm` takes."""
    _, a, b, beta, c, _, _, overwrite_c = arguments
    if not (
        overwrite_c in _SWITCH
        and type(beta) in _FACTORS[dtype]
        and (beta == 0 or _LEAST <= abs(beta) <= _MOST)
    ):
        return False
    if c is None:
        return True
    if not (c.__class__ is _NDARRAY and c.dtype == dtype and c.shape == shape):
        return False
    if not overwrite_c:
        return True
    flags = c.flags
    if flags.owndata and a.flags.owndata and b.flags.owndata:  # half a microsecond sooner
        return flags.behaved and c is not a and c is not b
    return flags.behaved and not (np.may_share_memory(c, a) or np.may_share_memory(c, b))


def matmul(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None) -> Any:
    """Return a @ b if that is a small product of one type, else None; no array is of a subclass.

    NumPy itself computes, so what is wrong is NumPy's to judge, whatever array `out` is.
    """
    dtype = a.dtype
    if b.dtype is not dtype and b.dtype != dtype:
        return None
    is_plain = a.ndim == _MATRIX == b.ndim
    if is_plain:
        k, n = b.shape
        product = a.size * n
        most = MOST if k >= DEEP else SHALLOW
    else:
        product, most = repeated.multiplications(a, b), MOST_STACKED
    if not 0 < product <= most.get(dtype, 0) or not allows_host():
        return None
    if is_plain and host_blas.is_outer(a, b):
        return host_blas.outer(a, b, out)
    return host_blas.matmul(a, b) if out is None else host_blas.matmul(a, b, out)
