"""Small products, straight to SciPy and NumPy: what a launch costs, they need for the whole call.

The faces ask here first, before they read their arguments.  Only calls of the plainest kind are
taken; whatever is unusual about one is left to the faces, which know every rule.  Larger products
follow once the route has found that the host computes their shape faster.
"""

from __future__ import annotations

import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from clgemm import settings
from clgemm.dispatch import engine
from clgemm.dispatch.explanation import unmeasured
from clgemm.dispatch.route import SMALL_FLOPS
from clgemm.host import blas as host_blas
from clgemm.host import scipy_blas
from clgemm.problem import BY_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)


class _Routines(dict[np.dtype[Any], Any]):
    """SciPy's gemm by dtype, asked for at its first use: later ones find it here at once."""

    def __missing__(self, dtype: np.dtype[Any]) -> Any:
        return self.setdefault(dtype, scipy_blas.gemm(BY_DTYPE[dtype].code))


_ROUTINES = _Routines()
# m * n * k up to which a product is small: a complex multiplication counts four times.
_SMALL = MappingProxyType(
    {dtype: SMALL_FLOPS // (2 * p.multiplications) for dtype, p in BY_DTYPE.items()}
)
_WHY = "it is small, or the host was found to be faster"
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
    if (
        k != rows
        or not (0 < product <= _SMALL[dtype] or (product and _hosted(dtype, m, n, k, a, b)))
        or settings.modes().route != "auto"
    ):
        return None
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", unmeasured(BY_DTYPE[dtype], k, (m, n), _WHY))
    routine = _ROUTINES[dtype]
    if trans_a or trans_b:
        return cast("NDArray[Any]", routine(alpha, a, b, trans_a=trans_a, trans_b=trans_b))
    return cast("NDArray[Any]", routine(alpha, a, b))


def matmul(a: Any, b: Any, out: Any = None) -> NDArray[Any] | None:
    """Return a @ b if that is a small product of plain matrices of one precision, else None.

    NumPy itself computes, so whatever array `out` is, it is NumPy's to judge.
    """
    if not (type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == b.ndim == 2):
        return None
    dtype = a.dtype
    if dtype not in _SMALL or b.dtype != dtype:
        return None
    (m, k), (rows, n) = a.shape, b.shape
    # A row-major result is the transposed product to the route.
    product = m * n * k
    if (
        k != rows
        or not (0 < product <= _SMALL[dtype] or (product and _hosted(dtype, n, m, k, a, b)))
        or settings.modes().route != "auto"
    ):
        return None
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", unmeasured(BY_DTYPE[dtype], k, (m, n), _WHY))
    if out is None:
        return cast("NDArray[Any]", host_blas.matmul(a, b))
    return cast("NDArray[Any]", host_blas.matmul(a, b, out))


def _hosted(dtype: np.dtype[Any], m: int, n: int, k: int, a: Any, b: Any) -> bool:
    """Tell whether the route is known to give a larger product to the host."""
    known = engine.opened()
    if known is None or (dtype.char, m, n, k) not in known.on_host:
        return False
    return bool(a.flags.forc and b.flags.forc)  # SciPy copies operands with gaps
