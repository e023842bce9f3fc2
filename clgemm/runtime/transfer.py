"""Between NumPy's memory and a device's: shared where both are one, copied otherwise.

Arrays come with a `Layout`: unit stride along one axis, a leading dimension, a stack's stride.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.problem import layout_of
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from clgemm.runtime.device import Session


class _Span:
    """The bytes from an array's first to its last element, as NumPy can alias them."""

    def __init__(self, x: NDArray[Any]) -> None:
        nbytes = span_bytes(x)
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


def _alias(x: NDArray[Any]) -> NDArray[Any]:
    """Return a flat, writeable view of the memory that `x` spans.

    pyopencl takes contiguous writeable buffers only.  That a read-only operand stays unwritten is
    the kernels' contract: they declare A and B const.  The caller keeps `x` alive.
    """
    return np.asarray(_Span(x))


def share(session: Session, x: NDArray[Any]) -> Any:
    """Let a kernel work on `x` where it lies.

    Returns
    -------
    SVM or Buffer
        A kernel argument, valid while the caller keeps it and `x`.
    """
    flags = x.flags
    flat = x if flags.writeable and flags.forc else _alias(x)
    if session.traits.system_svm:
        return session.cl.SVM(flat)
    # READ_WRITE even for operands: with READ_ONLY Intel's runtime copies what is not page-aligned.
    access = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    return cl.Buffer(session.context, access, hostbuf=flat)


def place(session: Session, x: NDArray[Any], *, read: bool = True) -> Any:
    """Give `x` to the device: as it lies where memory is shared, else as a copy without gaps.

    Parameters
    ----------
    session : Session
        The device.
    x : ndarray of shape (rows, columns) or (batch, rows, columns)
        With a `Layout`.
    read : bool
        If false, what `x` holds is of no use to the kernel, so nothing is copied.

    Returns
    -------
    SVM or Buffer
        A kernel argument, valid while the caller keeps it and `x`.
    """
    if session.traits.unified_memory:
        return share(session, x)
    if read:
        return upload(session, x)
    return cl.Buffer(session.context, cl.mem_flags.READ_WRITE, dense_bytes(x))


def parts(x: NDArray[Any], most: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Cut a stack into parts that lie one after the other in device memory without gaps.

    Parameters
    ----------
    x : ndarray of shape (batch, rows, columns)
        In the order in which its elements are to lie: the last axis varies fastest.
    most : int
        Bytes of the largest part.

    Yields
    ------
    tuple of int and ndarray
        The bytes before a part, and the view of it.
    """
    if x.nbytes <= most:
        yield 0, x
        return
    offset = 0
    for axis in range(x.ndim):
        unit = x[(0,) * (axis + 1)].nbytes  # bytes of what one index of this axis holds
        if unit <= most:
            break
    for index in np.ndindex(x.shape[:axis]):
        line = x[index]
        count = -(-line.nbytes // (most // unit * unit))
        step = -(-len(line) // count)
        for start in range(0, len(line), step):
            part = line[start : start + step]
            yield offset, part
            offset += part.nbytes


def fetch(session: Session, memory: Any, x: NDArray[Any]) -> None:
    """Bring what a kernel wrote to `place(session, x)` back into `x`."""
    if not session.traits.unified_memory:
        download(session, memory, x)


def dense_bytes(x: NDArray[Any]) -> int:
    """Count the bytes of `x` without gaps; a stack that repeats one matrix counts once."""
    return _once(x).size * x.itemsize


def _once(x: NDArray[Any]) -> NDArray[Any]:
    return x[:1] if x.ndim > 2 and x.strides[0] == 0 else x


def _pieces(x: NDArray[Any]) -> list[tuple[int, NDArray[Any]]]:
    """Cut a stack into matrices, each with its place in dense memory; one piece without gaps."""
    x = _once(x)
    matrices = [x] if x.ndim == 2 else list(x)
    dense = matrices[0].nbytes == span_bytes(matrices[0])
    if len(matrices) > 1 and dense and x.strides[0] == matrices[0].nbytes:
        return [(0, x)]
    return [(i * m.nbytes, m) for i, m in enumerate(matrices)]


def _columns(x: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Turn a matrix so that its columns have unit stride; also give the bytes from one to the next.

    The stride of an axis of length 1 says nothing, so `layout_of` decides.
    """
    layout = layout_of(x)
    assert layout is not None  # noqa: S101 - the driver copies what has no layout
    return (x.T if layout.trans else x), layout.ld * x.itemsize


def _rectangle(x: NDArray[Any], offset: int) -> dict[str, Any]:
    """Describe a matrix with gaps between its columns as OpenCL's rectangular copies want it."""
    columns, pitch = _columns(x)
    height, width = columns.shape[0] * x.itemsize, columns.shape[1]
    return {
        "buffer_origin": (offset, 0, 0),
        "host_origin": (0, 0, 0),
        "region": (height, width, 1),
        "buffer_pitches": (height, height * width),
        "host_pitches": (pitch, pitch * width),
    }


def upload(session: Session, x: NDArray[Any]) -> Any:
    """Copy `x` without its gaps into device memory.

    Returns
    -------
    Buffer
        The matrices of the stack one after the other, each in the order it has in `x`.
    """
    buffer = cl.Buffer(session.context, cl.mem_flags.READ_WRITE, dense_bytes(x))
    for offset, piece in _pieces(x):
        if piece.nbytes == span_bytes(piece):
            cl.enqueue_copy(
                session.queue, buffer, _alias(piece), dst_offset=offset, is_blocking=True
            )
        elif _overlaps_itself(piece):
            cl.enqueue_copy(session.queue, buffer, _solid(piece), dst_offset=offset)
        else:
            cl.enqueue_copy(session.queue, buffer, _alias(piece), **_rectangle(piece, offset))
    return buffer


def download(session: Session, buffer: Any, x: NDArray[Any]) -> None:
    """Copy device memory that `upload` would fill from `x` back into `x`; gaps stay untouched."""
    for offset, piece in _pieces(x):
        if piece.nbytes == span_bytes(piece):
            cl.enqueue_copy(session.queue, _alias(piece), buffer, src_offset=offset)
        else:
            cl.enqueue_copy(session.queue, _alias(piece), buffer, **_rectangle(piece, offset))


def _overlaps_itself(x: NDArray[Any]) -> bool:
    """Tell whether columns share memory (sliding windows): no rectangle has such a pitch."""
    columns, pitch = _columns(x)
    return pitch < int(columns.shape[0]) * x.itemsize


def _solid(x: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(_columns(x)[0].T)
