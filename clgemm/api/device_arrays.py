"""pyopencl Arrays as operands: computed where they lie, on their own queue, without waiting."""

from __future__ import annotations

import cmath
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api import stacks
from clgemm.api.arguments import as_factor, as_flag, as_transposition
from clgemm.api.layout_only import BASES, Call, enqueue, ghost, overlap
from clgemm.api.operands import is_device_array
from clgemm.errors import DeviceError, GemmArgumentError
from clgemm.problem import BY_DTYPE, Operand
from clgemm.runtime import device as sessions
from clgemm.runtime import opencl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.problem import Precision
    from clgemm.runtime.opencl import cl

_MATRIX = 2


def to_device(x: Any) -> Any:
    """Copy an array to the device in use.

    Parameters
    ----------
    x : array_like
        Of any dtype and rank.

    Returns
    -------
    pyopencl.array.Array
        On the queue of the device that clgemm uses; ``.get()`` brings it, or what was computed
        from it, back.

    Raises
    ------
    DeviceError
        If no device is usable.

    Examples
    --------
    >>> import numpy as np
    >>> import clgemm
    >>> a = clgemm.to_device(np.eye(3, dtype=np.float32))
    >>> clgemm.matmul(a, a).get()
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    session = sessions.current()
    if session is None:
        raise DeviceError(
            "to_device: no device is usable in this forked child; start it with "
            'multiprocessing.set_start_method("spawn")'
        )
    return opencl.arrays().to_device(session.queue, np.asarray(x))


def matmul(a: Any, b: Any, out: Any) -> Any:
    """Multiply Arrays as `numpy.matmul` would, into `out` or a new C-ordered Array."""
    _require_arrays("matmul", {"x1": a, "x2": b} | ({} if out is None else {"out": out}))
    dtype = a.dtype
    _require_dtype("matmul", dtype, a, b, *(() if out is None else (out,)))
    x, y = ghost(a, BASES[0]), ghost(b, BASES[1])
    if not x.ndim or not y.ndim:
        raise ValueError("matmul: an operand has no axis: multiply by a number instead")
    left, right = (x if x.ndim > 1 else x[None]), (y if y.ndim > 1 else y[:, None])
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul: a is {a.shape} and b is {b.shape}: the inner dimensions differ, "
            f"{left.shape[-1]} != {right.shape[-2]}"
        )
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    m, n = left.shape[-2], right.shape[-1]
    shape = batch + (m,) * (x.ndim > 1) + (n,) * (y.ndim > 1)
    queue = _queue("matmul", a, b, out)
    if out is None:
        out = opencl.arrays().empty(queue, shape, dtype, allocator=a.allocator)
    elif out.shape != shape:
        raise ValueError(f"matmul: out is {out.shape} and the result is {shape}")
    elif overlap(out, a) or overlap(out, b):
        raise ValueError("matmul: out shares memory with an operand: pass another out")
    if not out.size:
        return out
    if not left.shape[-1]:
        return out.fill(0, queue=queue)
    c = ghost(out, BASES[2])[(..., *((slice(None),) if x.ndim > 1 else (None,)),
                               *((slice(None),) if y.ndim > 1 else (None,)))]  # fmt: skip
    call = Call(a, b, out, queue)
    for first, second, product in stacks.fold(left, right, c):
        enqueue(call, 1.0, Operand(first), Operand(second), 0.0, product)
    return out


def gemm(
    where: str, precision: Precision, alpha: Any, a: Any, b: Any, beta: Any, c: Any,
    trans_a: Any, trans_b: Any, overwrite_c: Any,
) -> Any:  # fmt: skip
    """Compute alpha * op(a) @ op(b) + beta * c with Arrays; the arguments are those of `blas`."""
    overwrite_c = as_flag(where, "overwrite_c", overwrite_c)
    trans_a = as_transposition(where, "trans_a", trans_a)
    trans_b = as_transposition(where, "trans_b", trans_b)
    alpha = as_factor(where, "alpha", alpha, precision)
    beta = 0.0 if beta is None else as_factor(where, "beta", beta, precision)
    named = {"a": a, "b": b} | ({} if c is None else {"c": c})
    _require_arrays(where, named)
    arrays = tuple(named.values())
    _require_dtype(where, precision.dtype, *arrays)
    if any(x.ndim != _MATRIX for x in arrays):
        raise GemmArgumentError(f"{where}: device arrays must be matrices, of two axes each")
    queue = _queue(where, a, b, c)
    x, y = ghost(a, BASES[0]), ghost(b, BASES[1])
    left, right = x.T if trans_a else x, y.T if trans_b else y
    shape = (left.shape[0], right.shape[1])
    if left.shape[1] != right.shape[0] or (c is not None and c.shape != shape):
        raise GemmArgumentError(
            f"{where}: op(a) is {left.shape}, op(b) is {right.shape}"
            + (f" and c is {c.shape}" if c is not None else "")
            + ": pass operands that match, or set trans_a or trans_b"
        )
    result, beta = _result(where, Call(a, b, c, queue), shape, beta, overwrite=overwrite_c)
    call = Call(a, b, result, queue)
    if not result.size:
        return result
    if alpha == 0 or not left.shape[1]:
        if beta == 0:
            return result.fill(0, queue=queue)
        result *= beta
        return result
    conj = 2 if precision.is_complex else None
    first, second = Operand(left, trans_a == conj), Operand(right, trans_b == conj)
    enqueue(call, alpha, first, second, beta, ghost(result, BASES[2]))
    return result


def _result(
    where: str, call: Call, shape: tuple[int, int], beta: complex, *, overwrite: bool
) -> tuple[Any, complex]:
    """Return the Array to compute into, holding c's values unless beta is 0, and beta."""
    arrays, c = opencl.arrays(), call.c
    if c is None:
        # A c left out is zeros, and zero times NaN or infinity shows.
        new = arrays.empty if cmath.isfinite(beta) else arrays.zeros
        made = new(call.queue, shape, call.a.dtype, order="F", allocator=call.a.allocator)
        return made, 0.0 if cmath.isfinite(beta) else beta
    if overwrite and not overlap(c, call.a) and not overlap(c, call.b):
        return c, beta
    if beta == 0:
        made = arrays.empty(call.queue, shape, c.dtype, order="F", allocator=c.allocator)
        return made, beta
    if not c.flags.forc:
        raise GemmArgumentError(
            f"{where}: c has gaps between its elements and cannot be copied on the device: pass a "
            "contiguous c, or overwrite_c=1"
        )
    return c.copy(queue=call.queue), beta


def _require_arrays(where: str, operands: Mapping[str, Any]) -> None:
    there = [name for name, x in operands.items() if is_device_array(x)]
    here = [name for name in operands if name not in there]
    if here:
        raise TypeError(
            f"{where}: {', '.join(there)} on the device (pyopencl.array.Array) and "
            f"{', '.join(here)} on the host are mixed: call clgemm.to_device({here[0]}), or "
            f"{there[0]}.get()"
        )


def _require_dtype(where: str, dtype: np.dtype[Any], *arrays: Any) -> None:
    dtypes = [x.dtype for x in arrays]
    if dtype not in BY_DTYPE or any(x != dtype for x in dtypes):
        raise TypeError(
            f"{where}: device arrays are {', '.join(map(str, dtypes))}: pass arrays of one of "
            "float32, float64, complex64, complex128, the routine's own; .astype() converts"
        )


def _queue(where: str, *arrays: Any) -> cl.CommandQueue:
    """Return the queue of the first operand that has one; all must be of one context."""
    given = [x for x in arrays if x is not None]
    queues = [x.queue for x in given if x.queue is not None]
    if not queues:
        raise ValueError(f"{where}: no operand has a queue: call .with_queue(queue) on one")
    if any(x.context != queues[0].context for x in given):
        raise ValueError(f"{where}: the operands are of different OpenCL contexts")
    queue: cl.CommandQueue = queues[0]
    return queue
