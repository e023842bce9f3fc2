"""pyopencl Arrays as operands: computed where they lie, on their own queue, without waiting.

What a call does depends on the shapes, strides and types of its operands, and on how their offsets
are aligned.  It is worked out once for each kind of call, by the code that serves NumPy's arrays,
from arrays that have a layout and no memory; a later call binds addresses and launches.
"""

from __future__ import annotations

import cmath
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import settings
from clgemm.api import stacks
from clgemm.api.arguments import as_factor, as_flag, as_transposition, is_device_array
from clgemm.dispatch import engine as engines
from clgemm.errors import DeviceError, GemmArgumentError
from clgemm.problem import (
    ALIGNMENT,
    BY_DTYPE,
    Call,
    address_of,
    alignment_class,
    describe,
    layout_of,
)
from clgemm.runtime import forks, opencl, registry
from clgemm.runtime.opencl_errors import translated, translated_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from clgemm.dispatch.engine import Engine
    from clgemm.problem import Precision
    from clgemm.runtime.kernel_runner import KernelRunner, Values
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.queues import QueueState

_MATRIX = 2
_COARSEST = 63  # bytes: no kernel relies on more than multiples of 64
_BASES = (1 << 44, 2 << 44, 3 << 44)  # where layouts of a, b and c begin: no buffer is as long


class _Product(NamedTuple):
    """One of the products that a call consists of."""

    runner: KernelRunner
    transposed: bool
    """The first operand is b: C is row-major, and its transpose is computed."""
    offsets: tuple[int, int, int]
    """Elements from the first one of the three operands, in the runner's order."""


class _Plan(NamedTuple):
    """What calls of a kind do."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a fresh result, in bytes."""
    size: int
    """Its elements."""
    products: tuple[_Product, ...]
    """None if there is nothing to add up: the result is zero, or beta * c."""


def to_device(x: Any) -> Any:
    """Copy an array to the device in use.

    Parameters
    ----------
    x : array_like
        Of any dtype and rank.

    Returns
    -------
    pyopencl.array.Array
        On the queue of the device that clgemm uses, in memory from its pool; ``.get()`` brings it,
        or what was computed from it, back.

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
    device = registry.current()
    if device is None:
        raise DeviceError(f"to_device: {forks.WHY_NOT}")
    _, state = registry.of_queue(device.queue)
    host = np.asarray(x)
    return opencl.arrays().to_device(device.queue, host, allocator=state.allocator)


def matmul(a: Any, b: Any, out: Any) -> Any:
    """Multiply Arrays as `numpy.matmul` would, into `out` or a new C-ordered Array."""
    if type(a) is not type(b) or not (out is None or type(out) is type(a)):
        _require_arrays("matmul", {"x1": a, "x2": b} | ({} if out is None else {"out": out}))
    queue = a.queue
    if queue is None or b.queue is not queue or (out is not None and out.queue is not queue):
        queue = _queue("matmul", a, b, out)
    engine, state = engines.of_queue(queue)
    key: tuple[Any, ...] = (
        settings.modes(), a.dtype, a.shape, a.strides, a.offset & -a.offset & _COARSEST,
        b.dtype, b.shape, b.strides, b.offset & -b.offset & _COARSEST,
        a is b or (a.base_data is b.base_data and a.offset == b.offset),
    )  # fmt: skip
    if out is not None:
        key += (out.dtype, out.shape, out.strides, out.offset & -out.offset & _COARSEST)
    plan: _Plan | None = engine.decisions.get(key)
    if plan is None:
        plan = _plan_matmul(engine, a, b, out)
        engine.remember(key, plan)
    if out is None:
        out = _empty(engine, state, plan, queue, a)
    elif out.base_data is not None and (_overlap(out, a) or _overlap(out, b)):
        raise ValueError("matmul: out shares memory with an operand: pass another out")
    if not plan.size:
        return out
    if not plan.products:
        return out.fill(0, queue=queue)
    _launch(engine, state, plan, (1.0, 0.0), (a, b, out), queue)
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
    if type(a) is not type(b) or not (c is None or type(c) is type(a)):
        _require_arrays(where, {"a": a, "b": b} | ({} if c is None else {"c": c}))
    queue = a.queue
    if queue is None or b.queue is not queue or (c is not None and c.queue is not queue):
        queue = _queue(where, a, b, c)
    engine, state = engines.of_queue(queue)
    operands = (
        precision.code, trans_a, trans_b, a.dtype, a.shape, b.dtype, b.shape,
        None if c is None else (c.dtype, c.shape),
    )  # fmt: skip
    shape: tuple[int, int] | None = engine.decisions.get(operands)
    if shape is None:
        shape = _shape_of_product(where, precision, a, b, c, trans_a, trans_b)
        engine.remember(operands, shape)
    result, beta = _result(engine, state, (a, b, c), shape, beta, queue, where, overwrite_c)
    if not result.size:
        return result
    if alpha == 0 or not a.size:
        if beta == 0:
            return result.fill(0, queue=queue)
        result *= beta
        return result
    key = (
        settings.modes(), operands, beta == 0,
        a.strides, a.offset & -a.offset & _COARSEST, b.strides, b.offset & -b.offset & _COARSEST,
        a is b or (a.base_data is b.base_data and a.offset == b.offset),
        result.strides, result.offset & -result.offset & _COARSEST,
    )  # fmt: skip
    plan: _Plan | None = engine.decisions.get(key)
    if plan is None:
        plan = _plan_gemm(engine, (a, b, result), beta, trans_a, trans_b)
        engine.remember(key, plan)
    _launch(engine, state, plan, (alpha, beta), (a, b, result), queue)
    return result


def _plan_gemm(
    engine: Engine, arrays: tuple[Any, Any, Any], beta: Any, trans_a: int, trans_b: int
) -> _Plan:
    """Make what computes a kind of call into a result that is there."""
    x, y, z = _layouts(*arrays)
    left, right = x.T if trans_a else x, y.T if trans_b else y
    conj = 2 if np.iscomplexobj(z) else None
    call = Call.of(1.0, left, right, beta, z, trans_a == conj, trans_b == conj)
    return _Plan(z.shape, z.strides, z.size, (_product(engine, call),))


class _Layout:
    """What NumPy needs to make an array of something that is not there."""

    def __init__(self, x: Any, base: int) -> None:
        self.__array_interface__ = {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": x.dtype.str,
            "data": (base + (x.offset & -x.offset & _COARSEST), False),
            "version": 3,
        }


def _layouts(*arrays: Any) -> list[NDArray[Any]]:
    """Make arrays of Arrays' shapes and strides, whose elements nobody may read or write."""
    return [np.asarray(_Layout(x, base)) for x, base in zip(arrays, _BASES, strict=False)]


def _plan_matmul(engine: Engine, a: Any, b: Any, out: Any) -> _Plan:
    """Check the operands of a kind of call, and make what computes it."""
    arrays = [a, b] if out is None else [a, b, out]
    _require_dtype("matmul", a.dtype, *arrays)
    x, y = _layouts(a, b)
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
    if out is not None and out.shape != shape:
        raise ValueError(f"matmul: out is {out.shape} and the result is {shape}")
    strides = _c_strides(shape, a.dtype.itemsize) if out is None else out.strides
    size = math.prod(shape)
    if not size or not left.shape[-1]:
        return _Plan(shape, strides, size, ())
    z = _layouts(a, b, _Result(shape, strides, a.dtype) if out is None else out)[2]
    c = z[(..., *((slice(None),) if x.ndim > 1 else (None,)),
           *((slice(None),) if y.ndim > 1 else (None,)))]  # fmt: skip
    products = tuple(
        _product(engine, Call.of(1.0, first, second, 0.0, product))
        for first, second, product in stacks.fold(left, right, c)
    )
    return _Plan(shape, strides, size, products)


class _Result(NamedTuple):
    """The layout of a result that is not there yet."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int = 0


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for extent in shape[:0:-1]:
        strides.append(strides[-1] * max(1, extent))
    return tuple(reversed(strides)) if shape else ()


def _product(engine: Engine, call: Call) -> _Product:
    """Make what computes one product of layouts."""
    precision = BY_DTYPE[call.c.dtype]
    engine.device.require(precision)
    bases = (_BASES[1], _BASES[0], _BASES[2]) if call.transposed else _BASES
    places, ends = [], []
    for x, base in zip((call.a, call.b, call.c), bases, strict=True):
        begin = _begin(x)
        place, rest = divmod(address_of(x) - begin, x.itemsize)
        start, odd = divmod(begin - base, x.itemsize)
        if rest or odd or layout_of(x) is None:
            raise ValueError(
                "an operand lies in device memory as no BLAS can read it (two strides, a negative "
                "one, or an odd offset): call .copy() on it first"
            )
        places.append(place)
        ends.append(place | start)  # a multiple of what both are multiples of
    problem = describe(*call.operands, call.c, reads_c=call.beta != 0)._replace(
        offset_a=alignment_class(ends[0]), offset_b=alignment_class(ends[1]),
        offset_c=alignment_class(ends[2]),
        aligned=not (ends[0] | ends[1]) * precision.itemsize
        % math.lcm(ALIGNMENT, precision.itemsize),
    )  # fmt: skip
    with translated_errors(f"{problem.precision}gemm on {engine}"):
        runner = engine.build(problem)
    return _Product(runner, call.transposed, (places[0], places[1], places[2]))


def _begin(x: NDArray[Any]) -> int:
    """Return where the operand begins that a view is of."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return address_of(x)


def _empty(engine: Engine, state: QueueState, plan: _Plan, queue: cl.CommandQueue, a: Any) -> Any:
    """Allocate a result: from the operand's own allocator if it is for this queue, else a pool."""
    allocator = a.allocator if a.allocator is not None and a.queue is queue else state.allocator
    try:
        return opencl.new_array(queue, plan.shape, plan.strides, a.dtype, plan.size, allocator)
    except engine.device.cl.Error as error:
        raise translated(error, f"memory for a result of {plan.shape} on {engine}") from error


def _launch(
    engine: Engine, state: QueueState, plan: _Plan, factors: tuple[complex, complex],
    arrays: tuple[Any, Any, Any], queue: cl.CommandQueue,
) -> None:  # fmt: skip
    """Enqueue the products of a call, behind what its operands wait for."""
    a, b, c = arrays
    # What the queue runs in order needs no word about its last command.
    known = state.last if state.in_order else None
    waits = [event for event in (*a.events, *b.events, *c.events) if event is not known]
    itemsize, (alpha, beta) = c.dtype.itemsize, factors
    x, y, z = a.offset // itemsize, b.offset // itemsize, c.offset // itemsize
    left, right, result = a.base_data, b.base_data, c.base_data
    try:
        for runner, transposed, (p, q, r) in plan.products:
            values: Values = (
                (alpha, beta, right, left, result, (y + p, x + q, z + r))
                if transposed
                else (alpha, beta, left, right, result, (x + p, y + q, z + r))
            )
            event = runner.enqueue(values, state, waits)
            waits = []
    except engine.device.cl.Error as error:
        raise translated(error, f"a product of arrays on {engine}") from error
    if state.in_order:
        c.events[:] = (event,)  # which all that c waited for has ended before
    else:
        c.add_event(event)
    if a.queue is not queue or b.queue is not queue:
        _hold(event, queue, (a, b))


def _hold(event: cl.Event, queue: cl.CommandQueue, operands: tuple[Any, Any]) -> None:
    """Let the queues of operands wait until they have been read.

    Memory from a queue's pool is used again in the order of that queue.
    """
    queue.flush()
    for x in operands:
        if x.queue is not None and x.queue != queue:
            opencl.load().enqueue_barrier(x.queue, wait_for=[event])


def _span(x: Any) -> tuple[int, int]:
    """Return the first byte of an Array in its buffer and the one after its last."""
    steps = [(n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)]
    return (
        x.offset + sum(s for s in steps if s < 0),
        x.offset + sum(s for s in steps if s > 0) + x.dtype.itemsize,
    )


def _overlap(x: Any, y: Any) -> bool:
    """Tell whether two Arrays may share memory."""
    if x.base_data is not y.base_data and x.base_data != y.base_data:
        return False
    if not (x.size and y.size):
        return False
    (x0, x1), (y0, y1) = _span(x), _span(y)
    return x0 < y1 and y0 < x1


def _shape_of_product(
    where: str, precision: Precision, a: Any, b: Any, c: Any, trans_a: int, trans_b: int
) -> tuple[int, int]:
    """Check the operands of a kind of call; return the shape of its result."""
    arrays = (a, b) if c is None else (a, b, c)
    _require_dtype(where, precision.dtype, *arrays)
    if any(x.ndim != _MATRIX for x in arrays):
        raise GemmArgumentError(f"{where}: device arrays must be matrices, of two axes each")
    left = a.shape[::-1] if trans_a else a.shape
    right = b.shape[::-1] if trans_b else b.shape
    shape = (left[0], right[1])
    if left[1] != right[0] or (c is not None and c.shape != shape):
        raise GemmArgumentError(
            f"{where}: op(a) is {left}, op(b) is {right}"
            + (f" and c is {c.shape}" if c is not None else "")
            + ": pass operands that match, or set trans_a or trans_b"
        )
    return shape


def _result(
    engine: Engine, state: QueueState, arrays: tuple[Any, Any, Any], shape: tuple[int, int],
    beta: complex, queue: cl.CommandQueue, where: str, overwrite: bool,
) -> tuple[Any, complex]:  # fmt: skip
    """Return the Array to compute into, holding c's values unless beta is 0, and beta."""
    a, b, c = arrays
    if c is not None and overwrite and not _overlap(c, a) and not _overlap(c, b):
        return c, beta
    if c is None or beta == 0:
        itemsize = a.dtype.itemsize
        plan = _Plan(shape, (itemsize, itemsize * max(1, shape[0])), shape[0] * shape[1], ())
        made = _empty(engine, state, plan, queue, a)
        if c is None and not cmath.isfinite(beta):
            # A c left out is zeros, and zero times NaN or infinity shows.
            return made.fill(0, queue=queue), beta
        return made, 0.0
    if not c.flags.forc:
        raise GemmArgumentError(
            f"{where}: c has gaps between its elements and cannot be copied on the device: pass a "
            "contiguous c, or overwrite_c=1"
        )
    return c.copy(queue=queue), beta


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
