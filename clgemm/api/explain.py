"""`clgemm.explain`: where a call would run, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api import stacks
from clgemm.api.arguments import as_transposition, is_device_array
from clgemm.dispatch import engines
from clgemm.dispatch.explanation import Explanation, unmeasured
from clgemm.problem import AS_GIVEN, BY_DTYPE, ELEMENT_OF, ELEMENTS, Call

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONJUGATE = 2


def explain(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: complex = 1.0,
    beta: complex = 0.0,
    trans_a: int = 0,
    trans_b: int = 0,
) -> Explanation:
    """Tell where a product would be computed, how, and why.

    What a first call finds out is found out first: parameters, by a search if need be, and where
    predictions leave open which side is faster, a few runs on both.  Where nothing is known of
    either side, the answer says that the size decided.

    Parameters
    ----------
    a, b : array_like
        Operands of `clgemm.matmul` or of a gemm: matrices, or stacks of them, of shapes (..., m, k)
        and (..., k, n) once `trans_a` and `trans_b` are applied, or vectors.  Of any dtype.  Their
        values do not matter, and arrays that come from `numpy.empty` cost nothing.
    c : array_like, optional
        What a gemm adds to, or the `out` of `matmul`.  By default a new array: C-ordered, as
        `matmul` makes it, if the call is one that `matmul` could do, else F-ordered.
    alpha, beta : complex, optional
        Factors of a gemm.
    trans_a, trans_b : {0, 1, 2}, optional
        op(a) and op(b) of a gemm.

    Returns
    -------
    Explanation
        ``route`` is "device" or "host", ``why`` says why; further fields have the predicted times,
        the kernel and its parameters, and what is copied.  ``print()`` it.

    Raises
    ------
    TypeError
        For arrays on a device, which are always computed there.
    ValueError
        If the shapes do not match, or an operand has no axis.
    GemmArgumentError
        If `trans_a` or `trans_b` is none of 0, 1 and 2.
    DeviceError
        If no device is usable.

    Examples
    --------
    >>> import numpy as np
    >>> explain(np.empty((2, 3)), np.empty((3, 4))).route
    'host'
    """
    if any(map(is_device_array, (a, b, c))):
        raise TypeError(
            "explain: arrays on a device (pyopencl.array.Array) are computed there, on their own "
            "queue; pass NumPy arrays"
        )
    trans_a = as_transposition("explain", "trans_a", trans_a)
    trans_b = as_transposition("explain", "trans_b", trans_b)
    x, y = _matrices(a, b, trans_a, trans_b)
    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    dtype = np.result_type(x.dtype, y.dtype)
    computed = np.dtype(np.float32) if dtype == np.float16 else dtype
    plain = alpha == 1 and beta == 0 and not trans_a and not trans_b
    if computed not in (AS_GIVEN if plain else BY_DTYPE):
        return Explanation(f"{shape} {dtype}", "host", "no kernel computes such products")
    out = np.empty(shape, computed, "C" if plain else "F") if c is None else np.asarray(c)
    if out.shape != shape:
        raise ValueError(f"explain: c is {out.shape} and the result is {shape}")
    if not out.size or not x.shape[-1] or alpha == 0:
        return unmeasured(ELEMENT_OF[computed], x.shape[-1], shape, "there is nothing to multiply")
    x, y, out = (z.astype(computed, copy=False) for z in (x, y, out))
    conj = _CONJUGATE if ELEMENT_OF[computed].is_complex else None
    return _of_stack(x, y, out, beta != 0, trans_a == conj, trans_b == conj)


def _matrices(a: Any, b: Any, trans_a: int, trans_b: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return op(a), up to conjugation, and op(b) as matrices or stacks that match."""
    x, y = np.asarray(a), np.asarray(b)
    if not (x.ndim and y.ndim):
        raise ValueError(
            f"explain: a is {x.shape} and b is {y.shape}: an operand has one axis at least"
        )
    x, y = (x.T if trans_a else x), (y.T if trans_b else y)
    x, y = (x if x.ndim > 1 else x[None]), (y if y.ndim > 1 else y[:, None])
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(
            f"explain: op(a) is {x.shape} and op(b) is {y.shape}: the inner dimensions differ, "
            f"{x.shape[-1]} != {y.shape[-2]}"
        )
    return x, y


def _of_stack(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], reads_c: bool, conj_a: bool, conj_b: bool
) -> Explanation:
    problems = stacks.fold(a, b, c) if c.ndim > 2 else [(a, b, c)]
    x, y, out = problems[0]
    call = Call.of(1.0, x, y, float(reads_c), out, conj_a, conj_b)
    found = engines.explain(call)
    return replace(found, calls=len(problems))


def of_shape(code: str, m: int, n: int, k: int) -> Explanation:
    """Explain a product of column-major matrices, as the command line does."""
    dtype = ELEMENTS[code].dtype
    a, b, c = (np.empty(shape, dtype, "F") for shape in ((m, k), (k, n), (m, n)))
    return explain(a, b, c)
