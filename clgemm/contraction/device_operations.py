"""What pyopencl Arrays need beside products of matrices, on their own queue and without waiting.

pyopencl permutes and reshapes Arrays as far as strides can say it.  Copies into another order,
products of elements and conjugates are kernels of ours (`elements.cl`), built for each device and
element type at the first use.  Sums over an axis are products with ones.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from clgemm.api import nested_arrays
from clgemm.api.array_decisions import require_dtype
from clgemm.api.array_operands import overlap, queue_of, require_arrays
from clgemm.api.matmul import matmul
from clgemm.contraction.pairs import pair
from clgemm.problem import BY_DTYPE
from clgemm.runtime import events, opencl, registry
from clgemm.runtime.opencl import cl
from clgemm.runtime.opencl_errors import translating
from clgemm.runtime.reentry import entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from clgemm.contraction.plans import Matrix, Plan, Product
    from clgemm.problem import Precision
    from clgemm.runtime.device import Device

_AXES = 8
_programs: WeakKeyDictionary[Device, dict[str, Any]] = WeakKeyDictionary()
"""By device, then by the code of an element type."""
_idle: WeakKeyDictionary[Device, dict[tuple[str, str], deque[cl.Kernel]]] = WeakKeyDictionary()
"""Kernels that no thread uses, by device, then by the code of an element type and by name: pyopencl
compiles Python code for each kernel object, which takes a millisecond."""


def require(where: str, **operands: Any) -> None:
    """Refuse operands, by name, unless all are Arrays of one type that a BLAS computes in."""
    require_arrays(where, operands)
    arrays = list(operands.values())
    require_dtype(where, arrays[0].dtype, *arrays)


def contract(x: Any, y: Any, axes_x: Sequence[int], axes_y: Sequence[int], out: Any = None) -> Any:
    """Sum products over pairs of axes, from 0 up."""
    found = pair(x, y, axes_x, axes_y)
    a = matrices(x, found.left, (found.m, found.depth))
    b = matrices(y, found.right, (found.depth, found.n))
    product = matmul(a, b).reshape(found.shape)
    return product if out is None else stored(product, out)


def matrices(x: Any, axes: Sequence[int], shape: tuple[int, ...]) -> Any:
    """Permute an Array's axes and merge them; it is copied only where no strides can say that."""
    y = x.transpose(axes)
    try:
        y = y.reshape(shape)
    except ValueError:
        return copied(y).reshape(shape)
    return readable(y)


def readable(x: Any) -> Any:
    """Return a stack of matrices that a BLAS can read: itself, or a copy in C order."""
    return x if _is_readable(x) else copied(x)


def mergeable(x: Any) -> Any:
    """Return a stack that a BLAS can read though it becomes one matrix: itself, or such a copy.

    As it does beside one operand for all its matrices: rows or columns are rows or columns of that
    matrix then, and have to lie without gaps.
    """
    *batch, m, n = x.shape
    step = x.strides[-1] if m == 1 else x.strides[-2]
    gaps = batch and m * n > 1 == min(m, n) and step != x.dtype.itemsize
    return copied(x) if gaps else readable(x)


def _is_readable(x: Any) -> bool:
    item: int = x.dtype.itemsize
    (m, n), (row, column) = x.shape[-2:], x.strides[-2:]
    if x.offset % item or any(step <= 0 or step % item for step in x.strides):
        return not x.size
    by_rows: bool = (n == 1 or column == item) and (m == 1 or row >= n * item)
    by_columns: bool = (m == 1 or row == item) and (n == 1 or column >= m * item)
    return by_rows or by_columns


def ravelled(x: Any) -> Any:
    """Return the elements of an Array in C order, on one axis."""
    return in_c_order(x).reshape(x.size)


def in_c_order(x: Any) -> Any:
    """Return an Array whose elements lie in C order without gaps: itself or a copy."""
    return x if x.flags.c_contiguous else copied(x)


def conjugate(x: Any) -> Any:
    """Return an Array's complex conjugate, in C order; the Array itself if it is real."""
    return copied(x, conjugates=True) if x.dtype.kind == "c" else x


def contiguous(x: Any) -> Any:
    """Return an Array that can be brought to the host: itself, or a copy in C order."""
    if x.flags.forc:
        return x
    require("a copy in another order", x=x)
    return copied(x)


def copied(x: Any, *, conjugates: bool = False) -> Any:
    """Copy an Array in C order."""
    c = _empty(x, x.shape)
    if c.size:
        _copy(c, x, conjugates)
    return c


def stored(x: Any, out: Any) -> Any:
    """Copy an Array into another one of its shape, and return that."""
    if out.shape != x.shape:
        raise ValueError(f"out is {out.shape} and the result is {x.shape}")
    if out.size:
        _copy(out, x, False)
    return out


def multiplied(
    x: Any, y: Any, shape: tuple[int, ...], strides: tuple[Sequence[int], Sequence[int]]
) -> Any:
    """Multiply elements, given the strides in bytes by which each Array is walked through."""
    c = _empty(x, shape)
    if c.size:
        _multiply(c, x, y, strides)
    return c


@translating("memory for a contraction")
def _empty(x: Any, shape: tuple[int, ...]) -> Any:
    """Make an Array like another one, of its own allocator or from the pool of its queue."""
    _, state = registry.of_queue(queue_of("contraction", x))
    item = x.dtype.itemsize
    strides = tuple(item * math.prod(max(1, n) for n in shape[k + 1 :]) for k in range(len(shape)))
    allocator = x.allocator if x.allocator is not None else state.allocator
    return opencl.new_array(x.queue, shape, strides, x.dtype, math.prod(shape), allocator)


def _nested_copy(c: Any, x: Any, conjugates: bool) -> None:
    """Copy by way of the host: see `runtime.reentry`."""
    queue = queue_of("a copy", c, x)
    values = nested_arrays.fetched(x, queue)
    nested_arrays.store(values.conj() if conjugates else values, c, queue)


@entry(_nested_copy)
@translating("a copy of an array on the device")
def _copy(c: Any, x: Any, conjugates: bool) -> None:
    extents, (c_strides, x_strides) = _walk(c.shape, c.strides, x.strides)
    flag = np.int32(conjugates)
    _launch("copy_elements", c.size, (c, c_strides), ((x, x_strides),), (extents, flag))


def _nested_multiply(c: Any, x: Any, y: Any, strides: tuple[Sequence[int], Sequence[int]]) -> None:
    """Multiply by way of the host: see `runtime.reentry`."""
    queue = queue_of("a product", c, x, y)
    views = [
        np.lib.stride_tricks.as_strided(nested_arrays.fetched(z, queue), c.shape, steps)
        for z, steps in zip((x, y), strides, strict=True)
    ]
    nested_arrays.store(views[0] * views[1], c, queue)


@entry(_nested_multiply)
@translating("a product of elements on the device")
def _multiply(c: Any, x: Any, y: Any, strides: tuple[Sequence[int], Sequence[int]]) -> None:
    extents, (c_strides, *steps) = _walk(c.shape, c.strides, *strides)
    sources = (x, steps[0]), (y, steps[1])
    _launch("multiply_elements", c.size, (c, c_strides), sources, (extents,))


def _nested_ones(c: Any) -> None:
    """Fill by way of the host: see `runtime.reentry`."""
    nested_arrays.store(np.ones(c.shape, c.dtype), c, queue_of("ones", c))


@entry(_nested_ones)
@translating("ones on the device")
def _fill_with_ones(c: Any) -> None:
    device, _ = registry.of_queue(c.queue)
    precision = BY_DTYPE[c.dtype]
    size = (c.size * precision.parts,)
    with _kernel(device, precision, "fill_with_ones") as kernel:
        kernel.set_arg(0, c.base_data)
        c.add_event(cl.enqueue_nd_range_kernel(c.queue, kernel, size, None, wait_for=c.events))


def _launch(
    name: str, size: int, target: tuple[Any, Sequence[int]],
    sources: Sequence[tuple[Any, Sequence[int]]], more: tuple[Any, ...],
) -> None:  # fmt: skip
    """Run a kernel over the elements of a target."""
    c = target[0]
    queue = queue_of("a copy", c, *(x for x, _ in sources))
    device, state = registry.of_queue(queue)
    precision = BY_DTYPE[c.dtype]
    values: list[Any] = []
    for x, strides in (target, *sources):
        values += [x.base_data, np.int64(x.offset // precision.real_bytes)]
        values.append(_eight(strides, precision))
    waits = events.to_wait_for(state, (x for x, _ in (target, *sources)))
    with _kernel(device, precision, name) as kernel:
        for place, value in enumerate((*values, *more)):
            kernel.set_arg(place, value)
        event = cl.enqueue_nd_range_kernel(queue, kernel, (size,), None, wait_for=waits)
    c.add_event(event)
    others = [x.queue for x, _ in (target, *sources) if x.queue not in {None, queue}]
    if others:  # whose pools might give memory away that is still read
        queue.flush()
        for other in others:
            cl.enqueue_barrier(other, wait_for=[event])


@contextmanager
def _kernel(device: Device, precision: Precision, name: str) -> Iterator[cl.Kernel]:
    """Lend a kernel object to one thread: its arguments are its own until they are enqueued."""
    idle = _idle.setdefault(device, {}).setdefault((precision.code, name), deque())
    try:
        kernel = idle.pop()
    except IndexError:
        kernel = opencl.make_kernel(_program(device, precision), name)
    yield kernel
    idle.append(kernel)


def _eight(strides: Sequence[int], precision: Precision) -> NDArray[np.int64]:
    return np.array([step // precision.real_bytes for step in strides], np.int64)


def _walk(
    shape: Sequence[int], *strides: Sequence[int]
) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Merge axes that are one in all arrays; return extents, and strides in bytes, of eight."""
    extents: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [found[axis] for found in strides]
        if extents and all(
            found[-1] == step * size for found, step in zip(steps, here, strict=True)
        ):
            extents[-1] *= size
            for found, step in zip(steps, here, strict=True):
                found[-1] = step
        else:
            extents.append(size)
            for found, step in zip(steps, here, strict=True):
                found.append(step)
    missing = _AXES - len(extents)
    if missing < 0:
        raise ValueError(
            f"arrays on the device have {len(extents)} axes that cannot be merged, and {_AXES} are "
            "the most that can be copied into another order: merge some by .reshape() first"
        )
    return np.array([1] * missing + extents, np.int64), [[0] * missing + x for x in steps]


def _program(device: Device, precision: Precision) -> Any:
    """Return the kernels for an element type, built at the first use."""
    programs = _programs.setdefault(device, {})
    if precision.code not in programs:
        device.require(precision)
        text = resources.files(__package__).joinpath("elements.cl").read_text(encoding="utf-8")
        head = f"#define REAL {precision.real}\n#define PARTS {precision.parts}\n"
        head += "#define CAT_(x, y) x##y\n#define CAT(x, y) CAT_(x, y)\n"
        if precision.is_double:
            head += "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
        programs[precision.code] = opencl.build(device.context, head + text)
    return programs[precision.code]


def summed(plan: Plan, operands: Sequence[Any], out: Any) -> Any:
    """Compute an einsum of Arrays by its plan, which contracts two at a time or reduces one."""
    given = operands
    operands = [
        x if not axes else x.reshape([n for k, n in enumerate(x.shape) if k not in axes])
        for x, axes in zip(operands, plan.squeezed, strict=True)
    ]
    for step in plan.steps:
        chosen = [operands.pop(place) for place in step.places]
        if step.product is None:
            term, _, result = step.text.partition("->")
            operands.append(_reduced(chosen[0], term, result))
        else:
            operands.append(_pair(step.product, chosen))
    (found,) = operands
    if out is not None:
        if any(overlap(out, x) for x in given):
            raise ValueError("einsum: out shares memory with an operand: pass another out")
        return stored(found, out)
    return contiguous(found)


def _pair(product: Product, operands: Sequence[Any]) -> Any:
    """Compute a product of two Arrays."""
    x, y = reversed(operands) if product.swapped else operands
    x = _reduced(x, product.left.term, product.left.reduced)
    y = _reduced(y, product.right.term, product.right.reduced)
    if product.depths:
        a, b = _of(product.left, x), _of(product.right, y)
        made = matmul(a, b).reshape(product.shape)
    else:
        made = _multiplied_by_elements(product, x, y)
    return made.transpose(product.axes)


def _of(matrix: Matrix, x: Any) -> Any:
    return matrices(x, matrix.axes, matrix.shape)


def _multiplied_by_elements(product: Product, x: Any, y: Any) -> Any:
    """Compute what sums over nothing: the operands are broadcast to each other."""
    x_steps = [x.strides[axis] for axis in product.left.axes]
    y_steps = [y.strides[axis] for axis in product.right.axes]
    rows, batch = len(x_steps) - product.batch, product.batch
    columns = len(y_steps) - batch
    strides = x_steps + [0] * columns, y_steps[:batch] + [0] * rows + y_steps[batch:]
    return multiplied(x, y, product.shape, strides)


def _reduced(x: Any, term: str, result: str) -> Any:
    """Take diagonals of repeated labels, sum over those that the result does not have, permute."""
    if term == result:
        return x
    labels = "".join(dict.fromkeys(term))
    if labels != term:
        strides = [sum(x.strides[k] for k, y in enumerate(term) if y == label) for label in labels]
        shape = tuple(x.shape[term.index(label)] for label in labels)
        x = _view(x, shape, tuple(strides))
    gone = [k for k, label in enumerate(labels) if label not in result]
    kept = [labels.index(label) for label in result]
    if not gone:
        return x.transpose(kept)
    shape = tuple(x.shape[k] for k in kept)
    extent = math.prod(x.shape[k] for k in gone)
    ones = _empty(x, (extent, 1))
    if extent:
        _fill_with_ones(ones)
    return matmul(matrices(x, [*kept, *gone], (math.prod(shape), extent)), ones).reshape(shape)


def _view(x: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Look at an Array's memory with other strides."""
    return opencl.arrays().Array(
        x.queue, shape, x.dtype, allocator=x.allocator, data=x.base_data, offset=x.offset,
        strides=strides, events=x.events,
    )  # fmt: skip
