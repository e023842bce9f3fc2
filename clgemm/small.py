"""Small products, straight to SciPy and NumPy: what a launch costs, they need for the whole call.

The faces ask here first, before they read their arguments.  Only calls of the plainest kind are
taken; whatever is unusual about one is left to the faces, which know every rule.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy.linalg.blas

from clgemm import settings
from clgemm.problem import BY_DTYPE
from clgemm.route import SMALL_FLOPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUTINES = MappingProxyType(
    {dtype: getattr(scipy.linalg.blas, p.code + "gemm") for dtype, p in BY_DTYPE.items()}
)
# m * n * k up to which a product is small: a complex multiplication counts four times.
_SMALL = MappingProxyType(
    {dtype: SMALL_FLOPS // (8 if p.is_complex else 2) for dtype, p in BY_DTYPE.items()}
)
_LARGEST = max(_SMALL.values())
_FLAGS = (0, 1, 2)


def gemm(
    dtype: np.dtype[Any], alpha: Any, a: Any, b: Any, trans_a: Any, trans_b: Any
) -> NDArray[Any] | None:
    """Return alpha * op(a) @ op(b) if that is a small product of plain matrices, else None.

    An alpha of 0 is left to the faces: some of OpenBLAS' kernels for small matrices multiply even
    then, so that a NaN in `a` shows.
    """
    if not (
        type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2
        and a.size <= _LARGEST and b.size <= _LARGEST and a.dtype == dtype == b.dtype
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
    if k != rows or not 0 < m * n * k <= _SMALL[dtype] or settings.route() != "auto":
        return None
    routine = _ROUTINES[dtype]
    if trans_a or trans_b:
        return cast("NDArray[Any]", routine(alpha, a, b, trans_a=trans_a, trans_b=trans_b))
    return cast("NDArray[Any]", routine(alpha, a, b))


def matmul(a: Any, b: Any) -> NDArray[Any] | None:
    """Return a @ b if that is a small product of plain matrices of one precision, else None."""
    if not (type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2):
        return None
    dtype = a.dtype
    if a.size > _LARGEST or b.size > _LARGEST or dtype not in _SMALL or b.dtype != dtype:
        return None
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows or not 0 < m * n * k <= _SMALL[dtype] or settings.route() != "auto":
        return None
    return cast("NDArray[Any]", np.matmul(a, b))
