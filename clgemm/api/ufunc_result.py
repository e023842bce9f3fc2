"""The class of a ufunc's result: which operand wraps it, and how.

It is the one with the highest `__array_priority__`, by rules that NumPy 2 changed.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.host import blas as host_blas

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMPY_1 = np.__version__.startswith("1.")


def wrapped(result: NDArray[Any], x1: Any, x2: Any, out: Any, subok: bool) -> Any:
    """Return a result of matmul as the type that ufuncs give it, a scalar included."""
    # NumPy 1 lets the inputs wrap what the output does not.
    wraps = not _NUMPY_1 or getattr(out, "__array_wrap__", None) is not None
    sources = (out,) if out is not None and wraps else (x1, x2) if subok else ()
    wrap = _wrap_of(*sources)
    scalar = out is None and not result.ndim
    if wrap is None:
        return result[()] if scalar else result
    context = (host_blas.matmul, (x1, x2) if out is None else (x1, x2, out), 0)
    for count in (2,) if _NUMPY_1 else (3, 2):
        with contextlib.suppress(TypeError):
            return wrap(*(result, context, scalar)[:count])
    return wrap(result)


def _wrap_of(*operands: Any) -> Any:
    """Return `__array_wrap__` of the operand with the highest priority; a plain array's is None."""
    wrap, highest = None, -math.inf
    for x in operands:
        plain = type(x) is np.ndarray
        # NumPy 1 prefers any class to its own, but for one that does not wrap.
        if _NUMPY_1 and (plain or getattr(x, "__array_wrap__", None) is None):
            continue
        if not (plain or hasattr(x, "__array_wrap__")):
            continue
        priority = 0.0 if plain else getattr(x, "__array_priority__", 0.0)
        if priority > highest or (priority == 0.0 and wrap is None):
            wrap, highest = None if plain else x.__array_wrap__, priority
    return wrap
