"""Small products, straight to SciPy and NumPy: what a launch costs, they need for the whole call.

The faces ask here first, before they read their arguments.  Only calls of the plainest kind are
taken; whatever is unusual about one is left to the faces, which know every rule.  Larger products
follow once the route has found that the host computes their shape faster.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from clgemm import settings
from clgemm.dispatch import engine
from clgemm.dispatch.explanation import unmeasured
from clgemm.dispatch.route import SMALL_FLOPS
from clgemm.host import blas as host_blas
from clgemm.host import scipy_blas
from clgemm.problem import BY_DTYPE, Call

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

log = logging.getLogger(__name__)


class _Routines(dict[np.dtype[Any], Any]):
    """SciPy's gemm by dtype, asked for at its first use: later ones find it here at once."""

    def __missing__(self, dtype: np.dtype[Any]) -> Any:
        return self.setdefault(dtype, scipy_blas.gemm(BY_DTYPE[dtype].code))


_ROUTINES = _Routines()
MOST = {dtype: SMALL_FLOPS // (2 * p.multiplications) for dtype, p in BY_DTYPE.items()}
"""m * n * k up to which a product is small: a complex multiplication counts four times."""
_WHY = "it is small, or the host was found to be faster"
_FLAGS = (0, 1, 2)
_CONJUGATE = 2
_MATRIX = 2  # axes
_NDARRAY = np.ndarray


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
    if k != rows or not product or not settings.chooses_route():
        return None
    if product > MOST[dtype] and not _hosted(_gemm_kind(a, b, trans_a, trans_b)):
        return None
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", unmeasured(BY_DTYPE[dtype], k, (m, n), _WHY))
    if product > MOST[dtype] and not (a.flags.fnc and b.flags.fnc):
        return _where_they_lie(alpha, a, b, trans_a, trans_b)
    routine = _ROUTINES[dtype]
    if trans_a or trans_b:
        return cast("NDArray[Any]", routine(alpha, a, b, trans_a=trans_a, trans_b=trans_b))
    return cast("NDArray[Any]", routine(alpha, a, b))


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return a @ b if that is a small product of plain arrays of one precision, else None.

    NumPy itself computes, so what is wrong is NumPy's to judge, whatever array `out` is.
    """
    if type(a) is not _NDARRAY or type(b) is not _NDARRAY:
        return None
    dtype = a.dtype
    most = MOST.get(dtype)
    if (
        most is None
        or (b.dtype is not dtype and b.dtype != dtype)
        or (out is not None and type(out) is not _NDARRAY)
    ):
        return None
    product = a.size * b.shape[1] if a.ndim == _MATRIX == b.ndim else _multiplications(a, b)
    if not product or not settings.chooses_route():
        return None
    if product > most:
        if not _hosted(_kind(a, b, out)):
            return None
        if out is None and host_blas.is_tall(a, b):
            return host_blas.tall(a, b)
    if log.isEnabledFor(logging.DEBUG):
        m, n, k = _extents(a, b)
        log.debug("%s", unmeasured(BY_DTYPE[dtype], k, (product // (m * n * k), m, n), _WHY))
    return host_blas.matmul(a, b) if out is None else host_blas.matmul(a, b, out)


def _multiplications(a: Any, b: Any) -> int:
    """Count those of vectors and stacks; 0 for what is none, and for stacks to be broadcast."""
    if not (a.ndim and b.ndim):
        return 0
    if a.ndim > _MATRIX and b.ndim > _MATRIX and a.shape[:-2] != b.shape[:-2]:
        return 0
    rows, columns, _ = _extents(a, b)
    return int(max(a.size * columns, b.size * rows))


def _extents(a: Any, b: Any) -> tuple[int, int, int]:
    """Return m, n and k of operands of which one or both may be vectors."""
    return a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1, a.shape[-1]


def remember(a: Any, b: Any, out: Any = None) -> None:
    """Note that the host computes matrix products of such operands faster than the device."""
    known = engine.opened()
    if known is None or not (type(a) is type(b) is np.ndarray and a.dtype == b.dtype):
        return
    if a.dtype not in MOST or (out is not None and type(out) is not np.ndarray):
        return
    if _multiplications(a, b) <= host_blas.LONG:
        known.on_host.add(_kind(a, b, out))


def remember_gemm(a: NDArray[Any], b: NDArray[Any], trans_a: int, trans_b: int) -> None:
    """Note the same of BLAS products of such operands."""
    known = engine.opened()
    m, n = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
    if known is not None and m * n * (a.size // m) <= host_blas.LONG:
        known.on_host.add(_gemm_kind(a, b, trans_a, trans_b))


def _kind(a: Any, b: Any, out: Any) -> Hashable:
    """Tell what a decision depends on: operands that lie otherwise have one of their own."""
    kind = a.dtype.char, a.shape, a.strides, b.shape, b.strides
    return kind if out is None else (*kind, out.dtype, out.shape, out.strides)


def _gemm_kind(a: Any, b: Any, trans_a: int, trans_b: int) -> Hashable:
    return a.dtype.char, a.shape, a.strides, trans_a, b.shape, b.strides, trans_b


def _hosted(kind: Hashable) -> bool:
    """Tell whether the route is known to give a larger product to the host."""
    known = engine.opened()
    return known is not None and kind in known.on_host


def _where_they_lie(
    alpha: float, a: NDArray[Any], b: NDArray[Any], trans_a: int, trans_b: int
) -> NDArray[Any]:
    """Multiply as the route has it done: SciPy would copy row-major operands."""
    op_a, op_b = a.T if trans_a else a, b.T if trans_b else b
    is_complex = a.dtype.kind == "c"
    conj_a, conj_b = is_complex and trans_a == _CONJUGATE, is_complex and trans_b == _CONJUGATE
    c = np.empty((op_a.shape[0], op_b.shape[1]), a.dtype, "F")
    host_blas.gemm(Call.of(alpha, op_a, op_b, 0.0, c, conj_a, conj_b))
    return c
