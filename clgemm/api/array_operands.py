"""Operands that are pyopencl Arrays: of which kind and queue they are, and where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api.arguments import is_device_array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from clgemm.runtime.opencl import cl


def host_array(x: Any) -> NDArray[Any]:
    """Return what is to be copied to a device as an array of NumPy's."""
    if is_device_array(x):  # NumPy would bring it back element by element
        raise TypeError(
            "to_device: x is a pyopencl.array.Array, on a device already: use it as it is, or "
            "pass x.get() to copy it to another one"
        )
    host = np.asarray(x)
    if host.dtype.hasobject:
        raise TypeError(
            f"to_device: elements of dtype {host.dtype} are Python objects, which only the host "
            "has: convert them to numbers first, as by .astype(float)"
        )
    return host


def span(x: Any) -> tuple[int, int]:
    """Return the first byte of an Array in its buffer and the one after its last."""
    steps = [(n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)]
    return (
        x.offset + sum(s for s in steps if s < 0),
        x.offset + sum(s for s in steps if s > 0) + x.dtype.itemsize,
    )


def overlap(x: Any, y: Any) -> bool:
    """Tell whether two Arrays may share memory."""
    if x.base_data is not y.base_data and x.base_data != y.base_data:
        return False
    if not (x.size and y.size):  # nor is there a buffer, in some releases of pyopencl
        return False
    (x0, x1), (y0, y1) = span(x), span(y)
    return x0 < y1 and y0 < x1


def require_arrays(where: str, operands: Mapping[str, Any]) -> None:
    """Refuse operands, by name, of which one is an Array and another is not."""
    there = [name for name, x in operands.items() if is_device_array(x)]
    here = [name for name in operands if name not in there]
    if here:
        raise TypeError(
            f"{where}: {', '.join(there)} on the device (pyopencl.array.Array) and "
            f"{', '.join(here)} on the host are mixed: call clgemm.to_device({here[0]}), or "
            f"{there[0]}.get()"
        )


def queue_of(where: str, *arrays: Any) -> cl.CommandQueue:
    """Return the queue of the first operand that has one; all must be of one context."""
    given = [x for x in arrays if x is not None]
    queues = [x.queue for x in given if x.queue is not None]
    if not queues:
        raise ValueError(f"{where}: no operand has a queue: call .with_queue(queue) on one")
    if any(x.context != queues[0].context for x in given):
        raise ValueError(f"{where}: the operands are of different OpenCL contexts")
    queue: cl.CommandQueue = queues[0]
    return queue
