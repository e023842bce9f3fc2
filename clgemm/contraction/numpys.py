"""NumPy's own functions, even where a program puts clgemm's in their place."""

from __future__ import annotations

from typing import Any

import numpy as np

dot, vdot, inner, outer = np.dot, np.vdot, np.inner, np.outer
tensordot, einsum, einsum_path = np.tensordot, np.einsum, np.einsum_path
multi_dot, transpose, swapaxes = np.linalg.multi_dot, np.transpose, np.swapaxes


def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Compute numpy.vecdot, which NumPy 1 does not have."""
    x, y = np.moveaxis(x1, axis, -1), np.moveaxis(x2, axis, -1)
    return einsum("...i,...i->...", np.conj(x), y)


def _matrix_transpose(x: Any, /) -> Any:
    """Compute numpy.matrix_transpose, which NumPy 1 does not have."""
    x = np.asanyarray(x)
    if x.ndim < 2:
        raise ValueError(f"Input array must be at least 2-dimensional, but it is {x.ndim}")
    return swapaxes(x, -1, -2)


vecdot: Any = getattr(np, "vecdot", _vecdot)
matrix_transpose: Any = getattr(np, "matrix_transpose", _matrix_transpose)
