"""Small products, straight to SciPy and NumPy: what a launch costs, they need for the whole call.

The faces ask here first, before they read their arguments.  Only calls of the plainest kind are
taken; whatever is unusual about one is left to the faces, which know every rule.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from clgemm import settings
from clgemm.api import repeated
from clgemm.dispatch.explanation import unmeasured
from clgemm.dispatch.integers import MOST_SMALL
from clgemm.dispatch.route import SMALL_FLOPS, SMALL_STACK
from clgemm.host import blas as host_blas
from clgemm.host import scipy_blas
from clgemm.problem import BY_DTYPE, ELEMENT_OF, INTEGER_DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)


class _Routines(dict[np.dtype[Any], Any]):
    """SciPy's gemm by dtype, asked for at its first use: later ones find it here at once."""

    def __missing__(self, dtype: np.dtype[Any]) -> Any:
        return self.setdefault(dtype, scipy_blas.gemm(BY_DTYPE[dtype].code))


_ROUTINES = _Routines()


def _most(flops: int) -> dict[np.dtype[Any], int]:
    return {dtype: flops // (2 * p.multiplications) for dtype, p in BY_DTYPE.items()} | (
        dict.fromkeys(INTEGER_DTYPES, MOST_SMALL)
    )


MOST = _most(SMALL_FLOPS)
"""m * n * k up to which a product is small: a complex multiplication counts four times."""
_MOST_STACKED = _most(SMALL_STACK)
"""The same for stacks, and for products with vectors."""
LEAST = min(MOST.values())
"""Up to which a product is small, whatever its type."""
_WHY = "it is small"
_FLAGS = (0, 1, 2)
_MATRIX = 2  # axes
OUTER = 512
"""Elements of an outer product, from which SciPy's gemm takes less time than NumPy's loop."""
_NDARRAY = np.ndarray


def gemm(
    dtype: np.dtype[Any], alpha: Any, a: Any, b: Any, trans_a: Any, trans_b: Any
) -> NDArray[Any] | None:
    """Return alpha * op(a) @ op(b) of plain matrices if it is small or was met before, else None.

    An alpha of 0 is left to the faces: some of OpenBLAS' kernels for small matrices multiply even
    then, so that a NaN in `a` shows.
    """
    if not (
        type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2
        and a.dtype == dtype == b.dtype
        and type(alpha) is float and alpha != 0 and type(trans_a) is int and type(trans_b) is int
        and trans_a in _FLAGS and trans_b in _FLAGS
    ):  # fmt: skip
        return None
    m, k = a.shape
    rows, n = b.shape
    if trans_a:
        m, k = k, m
    if trans_b:
        rows, n = n, rows
    product = m * n * k
    if k != rows or not product:
        return None
    if product > MOST[dtype]:
        return repeated.gemm(alpha, a, b, trans_a, trans_b)
    if not settings.chooses_route():
        return None
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", unmeasured(BY_DTYPE[dtype], k, (m, n), _WHY))
    routine = _ROUTINES[dtype]
    if trans_a or trans_b:
        return cast("NDArray[Any]", routine(alpha, a, b, trans_a=trans_a, trans_b=trans_b))
    return cast("NDArray[Any]", routine(alpha, a, b))


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return a @ b if that is a small product of plain arrays of one type, else None.

    NumPy itself computes, so what is wrong is NumPy's to judge, whatever array `out` is.
    """
    if type(a) is not _NDARRAY or type(b) is not _NDARRAY:
        return None
    dtype = a.dtype
    is_plain = a.ndim == _MATRIX == b.ndim
    most = (MOST if is_plain else _MOST_STACKED).get(dtype)
    if (
        most is None
        or (b.dtype is not dtype and b.dtype != dtype)
        or (out is not None and type(out) is not _NDARRAY)
    ):
        return None
    product = a.size * b.shape[1] if is_plain else repeated.multiplications(a, b)
    if not product or product > most or not settings.chooses_route():
        return None
    if log.isEnabledFor(logging.DEBUG):
        m, n, k = repeated.extents(a, b)
        log.debug("%s", unmeasured(ELEMENT_OF[dtype], k, (product // (m * n * k), m, n), _WHY))
    if host_blas.is_outer(a, b) and product >= OUTER:
        return host_blas.outer(a, b, out)
    return host_blas.matmul(a, b) if out is None else host_blas.matmul(a, b, out)
