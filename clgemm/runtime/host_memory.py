"""NumPy's memory as a device sees it: shared where both are one, copied otherwise.

Arrays come with a `Layout`: unit stride along one axis, a leading dimension, a stack's stride.
Copies here wait; those of large products overlap with kernels: see `clgemm.streaming`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.layouts import layout_of
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.runtime.device import Device


class _Span:
    """The bytes from an array's first to its last element, as NumPy can alias them."""

    def __init__(self, x: NDArray[Any]) -> None:
        nbytes = span_bytes(x)
        self._alive = x
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (x.ctypes.data, False),
            "version": 3,
        }


def span_bytes(x: NDArray[Any]) -> int:
    """Count the bytes from the first to the last element of an array with no negative stride."""
    gaps = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True))
    return int(gaps) + x.itemsize


def share(device: Device, x: NDArray[Any]) -> Any:
    """Let a kernel work on `x` where it lies.

    pyopencl takes contiguous writeable memory only, so other arrays are passed as the bytes that
    they span.  That a read-only operand stays unwritten is the kernels' contract: they declare A
    and B const.

    Returns
    -------
    SVM or Buffer
        A kernel argument, valid while the caller keeps it and `x`.
    """
    flat = x
    if x.ndim > 2 and not x.flags.forc:
        flat = x.swapaxes(-1, -2)  # a stack of column-major matrices is dense so
    if not (flat.flags.writeable and flat.flags.forc):
        flat = np.asarray(_Span(x))  # which takes some microseconds
    if device.traits.system_svm:
        return device.cl.SVM(flat)
    # READ_WRITE even for operands: with READ_ONLY Intel's runtime copies what is not page-aligned.
    access = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(device.context, access, hostbuf=flat)


def place(device: Device, x: NDArray[Any]) -> Any:
    """Give `x` to the device: as it lies where memory is shared, else as a copy without gaps.

    Returns
    -------
    SVM or Buffer
        A kernel argument, valid while the caller keeps it and `x`.
    """
    if device.traits.unified_memory:
        return share(device, x)
    dense = np.array(_in_order(x), order="C")
    access = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(device.context, access, hostbuf=dense)


def fetch(device: Device, memory: Any, x: NDArray[Any]) -> None:
    """Bring what a kernel wrote to `place(device, x)` back into `x`."""
    if not device.traits.unified_memory:
        target = _in_order(x)
        dense = np.empty(target.shape, x.dtype)
        cl.enqueue_copy(device.queue, dense, memory)
        target[...] = dense


def _in_order(x: NDArray[Any]) -> NDArray[Any]:
    """Return a view with elements one after the other but for gaps; one matrix if it repeats."""
    layout = layout_of(x)
    assert layout is not None  # noqa: S101 - the faces copy what has no layout
    x = x[:1] if x.ndim > 2 and x.strides[0] == 0 else x
    return x if layout.trans else x.swapaxes(-1, -2)
