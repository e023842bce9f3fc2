"""One product of pyopencl Arrays, enqueued where they lie.

Shapes, strides and stacks are worked out by the same code as for NumPy's arrays.  It gets "ghosts":
arrays with the shape and strides of an operand at a made-up address, of which nobody reads or
writes an element.  An element's place in the operand's buffer is its ghost's address less the base.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.dispatch.engine import build
from clgemm.problem import ALIGNMENT, BY_DTYPE, Operand, address_of, describe, layout_of
from clgemm.runtime import device as sessions
from clgemm.runtime import opencl_errors
from clgemm.runtime.kernel_runner import Ready, slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Gemm
    from clgemm.runtime.device import Session
    from clgemm.runtime.opencl import cl

BASES = (1 << 44, 2 << 44, 3 << 44)  # where the ghosts of a, b and c begin: no buffer is as long


class Call(NamedTuple):
    """The Arrays of a call and the queue they are computed on."""

    a: Any
    b: Any
    c: Any
    queue: cl.CommandQueue


class _Ghost:
    """What NumPy needs to make an array of something that is not there."""

    def __init__(self, x: Any, base: int) -> None:
        self.__array_interface__ = {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": x.dtype.str,
            "data": (base + x.offset, False),
            "version": 3,
        }


def ghost(x: Any, base: int) -> NDArray[Any]:
    """Make an array of an Array's shape and strides that must not be read or written."""
    return np.asarray(_Ghost(x, base))


def _span(x: Any) -> tuple[int, int]:
    """Return the first byte of an Array in its buffer and the one after its last."""
    steps = [(n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)]
    return (
        x.offset + sum(s for s in steps if s < 0),
        x.offset + sum(s for s in steps if s > 0) + x.dtype.itemsize,
    )


def overlap(x: Any, y: Any) -> bool:
    """Tell whether two Arrays may share memory."""
    if not (x.size and y.size) or x.base_data != y.base_data:
        return False
    (x0, x1), (y0, y1) = _span(x), _span(y)
    return x0 < y1 and y0 < x1


def _offset(x: NDArray[Any], base: int) -> int:
    offset, rest = divmod(address_of(x) - base, x.itemsize)
    if rest or layout_of(x) is None:
        raise ValueError(
            "an operand lies in device memory as no BLAS can read it (two strides, a negative one, "
            "or an odd offset): call .copy() on it first"
        )
    return offset


def enqueue(
    call: Call, alpha: complex, a: Operand, b: Operand, beta: complex, c: NDArray[Any]
) -> None:
    """Enqueue one product of ghosts."""
    session = sessions.of_queue(call.queue)
    session.require(BY_DTYPE[c.dtype])
    first, second, bases, places = a, b, BASES, (call.a, call.b)
    layout = layout_of(c)
    if layout is not None and layout.trans:
        # Row-major C: C.T = op(B).T @ op(A).T is the same memory, column-major.
        first, second, c = b.turned, a.turned, c.swapaxes(-1, -2)
        bases, places = (BASES[1], BASES[0], BASES[2]), (call.b, call.a)
    offsets = [
        _offset(x, base) for x, base in zip((first.data, second.data, c), bases, strict=True)
    ]
    ends = offsets[0] * c.itemsize | offsets[1] * c.itemsize
    problem = describe(first, second, c, reads_c=beta != 0)._replace(
        offset_a=offsets[0], offset_b=offsets[1], offset_c=offsets[2],
        aligned=not ends % math.lcm(ALIGNMENT, c.itemsize),
    )  # fmt: skip
    ready = _ready(session, problem)
    values = slots(problem, alpha, beta, places[0].base_data, places[1].base_data, call.c.base_data)
    waits = [event for x in (call.a, call.b, call.c) for event in x.events]
    event = ready.enqueue(values, call.queue, waits)
    call.c.add_event(event)


def _ready(session: Session, problem: Gemm) -> Ready:
    ready = session.device_plans.get(problem)
    if ready is None:
        with opencl_errors.translated_errors(f"{problem.precision}gemm on {session}"):
            ready = session.device_plans[problem] = build(session, problem)
    return ready
