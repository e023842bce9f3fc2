"""Products of pyopencl Arrays from within another call of the same thread: see `runtime.reentry`.

The operands are brought to the host and the result back.  Nothing here takes a lock, uses a pool or
binds an argument, in the midst of which the other call may be.
"""

from __future__ import annotations

import cmath
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api.arguments import as_factor, as_flag, as_transposition
from clgemm.api.array_decisions import require_element_type, shape_of_product
from clgemm.api.array_operands import host_array, overlap, queue_of, require_arrays, span
from clgemm.dispatch import engines
from clgemm.errors import DeviceError
from clgemm.host import blas as host_blas
from clgemm.problem import Call
from clgemm.runtime import opencl, registry
from clgemm.runtime.opencl import cl
from clgemm.runtime.reentry import WHY_HOST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Precision

_CONJUGATE = 2  # trans_a or trans_b


def to_device(x: Any) -> Any:
    """Copy an array to the device in use, if one is open."""
    device = registry.opened()
    if device is None:
        raise DeviceError(f"to_device: no device is open yet, and {WHY_HOST}: call again later")
    return opencl.arrays().to_device(device.queue, host_array(x))


def matmul(a: Any, b: Any, out: Any) -> Any:
    """Multiply Arrays as `numpy.matmul` would, into `out` or a new C-ordered Array."""
    given = {"x1": a, "x2": b} | ({} if out is None else {"out": out})
    require_arrays("matmul", given)
    queue = queue_of("matmul", a, b, out)
    require_element_type(*given.values())
    product = np.asarray(host_blas.matmul(fetched(a, queue), fetched(b, queue)))
    if out is None:
        return opencl.arrays().to_device(queue, product)
    if out.shape != product.shape:
        raise ValueError(f"matmul: out is {out.shape} and the result is {product.shape}")
    if overlap(out, a) or overlap(out, b):
        raise ValueError("matmul: out shares memory with an operand: pass another out")
    return store(product, out, queue)


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
    require_arrays(where, {"a": a, "b": b} | ({} if c is None else {"c": c}))
    queue = queue_of(where, a, b, c)
    shape = shape_of_product(where, precision, a, b, c, trans_a, trans_b)
    x, y = fetched(a, queue), fetched(b, queue)
    if c is not None and beta != 0:
        product = np.array(fetched(c, queue), order="F")
    else:
        product = np.zeros(shape, precision.dtype, "F")
        beta = beta if c is None and not cmath.isfinite(beta) else 0.0
    conj = _CONJUGATE if precision.is_complex else None
    engines.compute(
        Call.of(
            alpha, x.T if trans_a else x, y.T if trans_b else y, beta, product,
            trans_a == conj, trans_b == conj,
        )
    )  # fmt: skip
    if c is None or not overwrite_c or overlap(c, a) or overlap(c, b):
        return opencl.arrays().to_device(queue, product)
    return store(product, c, queue)


def fetched(x: Any, queue: cl.CommandQueue) -> NDArray[Any]:
    """Return an Array's elements, with strides as they are on the device."""
    if not x.size:
        return np.empty(x.shape, x.dtype)
    start, stop = span(x)
    host = np.empty(stop - start, np.uint8)
    cl.enqueue_copy(queue, host, x.base_data, src_offset=start, wait_for=x.events)
    return np.ndarray(x.shape, x.dtype, host, x.offset - start, x.strides)


def store(product: NDArray[Any], out: Any, queue: cl.CommandQueue) -> Any:
    """Write a product to an Array whose elements lie without gaps."""
    if not out.flags.forc:
        raise DeviceError(
            f"the result has gaps between its elements, and {WHY_HOST}: pass a contiguous one"
        )
    if out.size:
        host = np.array(product, order="C" if out.flags.c_contiguous else "F")
        flat = host.reshape(-1, order="A")
        cl.enqueue_copy(queue, out.base_data, flat, dst_offset=out.offset, wait_for=out.events)
    return out
