"""pyopencl Arrays as operands: computed where they lie, on their own queue, without waiting.

What a kind of call does is decided once, by `array_decisions`; a later call binds addresses and
launches.
"""

from __future__ import annotations

import cmath
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import settings
from clgemm.api import nested_arrays, repeated_arrays
from clgemm.api.arguments import as_factor, as_flag, as_transposition
from clgemm.api.array_decisions import (
    COARSEST,
    ArrayDecision,
    decide_gemm,
    decide_matmul,
    shape_of_product,
)
from clgemm.api.array_operands import host_array, overlap, queue_of, require_arrays
from clgemm.dispatch import engines
from clgemm.errors import DeviceError, GemmArgumentError
from clgemm.runtime import events, forks, opencl, registry
from clgemm.runtime.opencl_errors import translated, translated_errors, translating
from clgemm.runtime.reentry import entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clgemm.dispatch.engine import Engine
    from clgemm.problem import Precision
    from clgemm.runtime.kernel_runner import Values
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.queues import QueueState

_CONJUGATE = 2  # trans_a or trans_b


@entry(nested_arrays.to_device)
@translating("to_device")
def to_device(x: Any) -> Any:
    """Copy an array to the device in use.

    Parameters
    ----------
    x : array_like
        Of any rank, and any dtype but object; on the host.

    Returns
    -------
    pyopencl.array.Array
        On the queue of the device that clgemm uses, in memory from its pool; ``.get()`` brings it,
        or what was computed from it, back.

    Raises
    ------
    DeviceError
        If no device is usable.
    TypeError
        If elements are Python objects, or `x` is on a device already.
    MemoryError
        If the device has no memory for it.

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
    host = host_array(x)
    if not (host.flags.c_contiguous or host.flags.f_contiguous):
        host = np.array(host, order="C")  # strides of 0 are copied, gaps are not
    return opencl.arrays().to_device(device.queue, host, allocator=state.allocator)


@entry(nested_arrays.matmul)
def matmul(a: Any, b: Any, out: Any) -> Any:
    """Multiply Arrays as `numpy.matmul` would, into `out` or a new C-ordered Array."""
    try:
        return _matmul(a, b, out)
    except opencl.load().Error as error:
        raise translated(error, "matmul of device arrays") from error


def _matmul(a: Any, b: Any, given: Any) -> Any:
    out = given
    if type(a) is not type(b) or not (out is None or type(out) is type(a)):
        require_arrays("matmul", {"x1": a, "x2": b} | ({} if out is None else {"out": out}))
    queue = a.queue
    if queue is None or b.queue is not queue or (out is not None and out.queue is not queue):
        queue = queue_of("matmul", a, b, out)
    engine, state = engines.of_queue(queue)
    decision = _decision(engine, a, b, out)
    if out is None:
        out = _empty(engine, state, decision, queue, a)
    elif out.base_data is not None and (overlap(out, a) or overlap(out, b)):
        raise ValueError("matmul: out shares memory with an operand: pass another out")
    if not decision.size:
        return out
    if not decision.products:  # no depth: zeros of depth 1 have the same product, in any out
        deep = [*a.shape[:-1], 1], ([1] if b.ndim == 1 else [*b.shape[:-2], 1, b.shape[-1]])
        a, b = (_zeros(state, queue, shape, a.dtype) for shape in deep)
        decision = decide_matmul(engine, a, b, out, same=False)
    values = _launch(engine, state, decision, (1.0, 0.0), (a, b, out), queue)
    if repeated_arrays.is_repeated(key := (id(a), id(b), id(given)), a, b, given):
        _keep(key, engine, state, decision, values, (a, b, out), given)
    return out


def _decision(engine: Engine, a: Any, b: Any, out: Any) -> ArrayDecision:
    """Return what was decided on calls of a kind."""
    x, y = a.offset, b.offset
    same = a is b or (a.base_data is b.base_data and x == y)
    key: tuple[Any, ...] = (
        settings.modes(), engine.units(), same,
        a.dtype, a.shape, a.strides, x & -x & COARSEST,
        b.dtype, b.shape, b.strides, y & -y & COARSEST,
    )  # fmt: skip
    if out is not None:
        key += (out.dtype, out.shape, out.strides, out.offset & -out.offset & COARSEST)
    decision: ArrayDecision | None = engine.decisions.get(key)
    if decision is None:
        decision = decide_matmul(engine, a, b, out, same=same)
        engine.remember(key, decision)
    return decision


def _keep(
    key: repeated_arrays.Key, engine: Engine, state: QueueState, decision: ArrayDecision,
    values: Values, arrays: tuple[Any, Any, Any], given: Any,
) -> None:  # fmt: skip
    """Keep a call that came before, if it is one product of Arrays of one queue, in its order."""
    a, b, out = arrays
    queue = out.queue
    one = len(decision.products) == 1 and state.in_order and not state.has_events
    if one and a.queue is queue is b.queue is not None:
        launch = decision.products[0].runner.repeated(values, state)
        if given is None:
            like = decision._replace(shape=out.shape, strides=out.strides)
            new = partial(_empty, engine, state, like, queue)
            repeated_arrays.remember(key, (a, b), engine, launch, new)
        else:
            repeated_arrays.remember(key, arrays, engine, launch, None)


@entry(nested_arrays.gemm)
@translating("gemm of device arrays")
def gemm(
    where: str, precision: Precision, alpha: Any, a: Any, b: Any, beta: Any, c: Any,
    trans_a: Any, trans_b: Any, overwrite_c: Any,
) -> Any:  # fmt: skip
    """Compute alpha * op(a) @ op(b) + beta * c with Arrays; the arguments are those of `blas`."""
    arguments = alpha, a, b, beta, c, trans_a, trans_b, overwrite_c
    overwrite_c = as_flag(where, "overwrite_c", overwrite_c)
    trans_a = as_transposition(where, "trans_a", trans_a)
    trans_b = as_transposition(where, "trans_b", trans_b)
    alpha = as_factor(where, "alpha", alpha, precision)
    beta = 0.0 if beta is None else as_factor(where, "beta", beta, precision)
    if type(a) is not type(b) or not (c is None or type(c) is type(a)):
        require_arrays(where, {"a": a, "b": b} | ({} if c is None else {"c": c}))
    queue = a.queue
    if queue is None or b.queue is not queue or (c is not None and c.queue is not queue):
        queue = queue_of(where, a, b, c)
    engine, state = engines.of_queue(queue)
    operands = (
        precision.code, trans_a, trans_b, a.dtype, a.shape, b.dtype, b.shape,
        None if c is None else (c.dtype, c.shape),
    )  # fmt: skip
    shape: tuple[int, int] | None = engine.decisions.get(operands)
    if shape is None:
        shape = shape_of_product(where, precision, a, b, c, trans_a, trans_b)
        engine.remember(operands, shape)
    result, beta = _result(engine, state, (a, b, c), shape, beta, queue, where, overwrite_c)
    if not result.size:
        return result
    if alpha == 0 or not a.size:  # zeros of depth 1 are not there to be read, either
        alpha, trans_a, trans_b = 1.0, 0, 0
        a, b = (_zeros(state, queue, x, result.dtype) for x in ((shape[0], 1), (1, shape[1])))
        operands = precision.code, 0, 0, a.dtype, a.shape, b.dtype, b.shape, operands[-1]
    decision = _gemm_decision(engine, operands, (a, b, result), alpha, beta)
    values = _launch(engine, state, decision, (alpha, beta), (a, b, result), queue)
    again = cmath.isfinite(beta) and (c is None or result is c)
    key = repeated_arrays.key_of_gemm(precision.code, arguments) if again else None
    if key is not None and repeated_arrays.is_repeated(key, a, b, c):
        _keep(key, engine, state, decision, values, (a, b, result), c)
    return result


def _gemm_decision(
    engine: Engine, operands: tuple[Any, ...], arrays: tuple[Any, Any, Any], alpha: complex,
    beta: complex,
) -> ArrayDecision:  # fmt: skip
    """Return what was decided on calls of a kind, into a result that is there."""
    (a, b, result), (_, trans_a, trans_b, *_) = arrays, operands
    same = a is b or (a.base_data is b.base_data and a.offset == b.offset)
    # With another alpha, what would be Hermitian is not.
    same = same and ((trans_a == _CONJUGATE) == (trans_b == _CONJUGATE) or alpha.imag == 0)
    key = (
        settings.modes(), engine.units(), operands, beta == 0,
        a.strides, a.offset & -a.offset & COARSEST, b.strides, b.offset & -b.offset & COARSEST,
        same, result.strides, result.offset & -result.offset & COARSEST,
    )  # fmt: skip
    decision: ArrayDecision | None = engine.decisions.get(key)
    if decision is None:
        decision = decide_gemm(engine, (a, b, result), beta, trans_a, trans_b, same=same)
        engine.remember(key, decision)
    return decision


def _zeros(
    state: QueueState, queue: cl.CommandQueue, shape: Sequence[int], dtype: np.dtype[Any]
) -> Any:
    """Make an Array of zeros: what is multiplied where there is nothing to add up."""
    with translated_errors(f"zeros of {tuple(shape)}"):
        return opencl.arrays().zeros(queue, tuple(shape), dtype, allocator=state.allocator)


def _empty(
    engine: Engine, state: QueueState, decision: ArrayDecision, queue: cl.CommandQueue, a: Any
) -> Any:
    """Allocate a result: from the operand's own allocator if it is for this queue, else a pool."""
    allocator = a.allocator if a.allocator is not None and a.queue is queue else state.allocator
    try:
        return opencl.new_array(
            queue, decision.shape, decision.strides, decision.dtype, decision.size, allocator
        )
    except engine.device.cl.Error as error:
        raise translated(error, f"memory for a result of {decision.shape} on {engine}") from error


def _launch(
    engine: Engine, state: QueueState, decision: ArrayDecision, factors: tuple[complex, complex],
    arrays: tuple[Any, Any, Any], queue: cl.CommandQueue,
) -> Values:  # fmt: skip
    """Enqueue the products of a call, behind what its operands wait for; return the last values."""
    a, b, c = arrays
    in_order = not state.has_events and events.can_follow(c)
    waits = events.to_wait_for(state, arrays)
    itemsize, (alpha, beta) = c.dtype.itemsize, factors
    x, y, z = a.offset // itemsize, b.offset // itemsize, c.offset // itemsize
    left, right, result = a.base_data, b.base_data, c.base_data
    try:
        for runner, transposed, (p, q, r) in decision.products:
            values: Values = (
                (alpha, beta, right, left, result, (y + p, x + q, z + r))
                if transposed
                else (alpha, beta, left, right, result, (x + p, y + q, z + r))
            )
            event = runner.enqueue(values, state, waits, in_order=in_order)
            waits = []
    except engine.device.cl.Error as error:
        raise translated(error, f"a product of arrays on {engine}") from error
    # All that c waited for has ended before.
    if in_order:
        events.follow(c, state.queue)
    elif state.in_order:
        c.events[:] = (event,)
    else:
        c.add_event(event)
    if a.queue is not queue or b.queue is not queue:
        _hold(queue, (a, b))
    return values


def _hold(queue: cl.CommandQueue, operands: tuple[Any, Any]) -> None:
    """Let the queues of operands wait until they have been read.

    Memory from a queue's pool is used again in the order of that queue.
    """
    others = [x.queue for x in operands if x.queue is not None and x.queue != queue]
    if others:
        marker = opencl.load().enqueue_marker(queue)
        queue.flush()
        for other in others:
            opencl.load().enqueue_barrier(other, wait_for=[marker])


def _result(
    engine: Engine, state: QueueState, arrays: tuple[Any, Any, Any], shape: tuple[int, int],
    beta: complex, queue: cl.CommandQueue, where: str, overwrite: bool,
) -> tuple[Any, complex]:  # fmt: skip
    """Return the Array to compute into, holding c's values unless beta is 0, and beta."""
    a, b, c = arrays
    if c is not None and overwrite and not overlap(c, a) and not overlap(c, b):
        return c, beta
    if c is None or beta == 0:
        itemsize = a.dtype.itemsize
        decision = ArrayDecision(
            shape, (itemsize, itemsize * max(1, shape[0])), a.dtype, shape[0] * shape[1], ()
        )
        made = _empty(engine, state, decision, queue, a)
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
