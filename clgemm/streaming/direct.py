"""One product whose operands are copied whole, by the driver, from where they lie and back.

The driver copies memory that is not pinned through buffers of its own, at the rate of one thread:
NVIDIA's lets other threads wait meanwhile, so they cannot do the same.  Up to some size that takes
less time than to have threads copy all of it to pinned memory and back; from some size on they do
so with a part of A and B: see `beside`.

Every copy of NumPy's memory is a command that blocks: the driver works on it inside its function.
Python hears Ctrl-C after that, so nothing is let go that the driver still reads or writes.  That
takes no longer than to wait once, at the end.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.queues import LaunchState, finish
from clgemm.streaming import staging
from clgemm.streaming.beside import CopiesBeside
from clgemm.streaming.copies import chunks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.runtime.opencl import cl
    from clgemm.streaming.beside import Piece
    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.request import Request
    from clgemm.streaming.schedule import Block, Schedule

MOST = 26 << 20
"""Bytes of all operands.  On an H200, ms so and in blocks: 14 MB 1.2 and 1.9, 25 MB 2.2 and 2.9, 27
MB 2.65 both."""
SHARED = 12 << 20
"""Bytes of A and B, from which on other threads copy parts of them: with 8 MB of a product of 12 it
takes 0.96 to 1.03 ms so and 0.90 otherwise, for threads have to wake up.  Of C they would have to
copy as much again: that gains nothing up to 27 MB in all."""
PARTS = 4
LEAST_PART = 1 << 20


def uses_threads(nbytes: int) -> bool:
    """Tell whether other threads copy, with operands of so many bytes.

    A and B are two thirds of them, or about that.
    """
    return nbytes >= SHARED * 3 / 2


class DirectCall:
    """One call, in buffers as its `Schedule.buffers` asks for, and one of scratch memory.

    The schedule has one product, and there is one runner.  After a copy all data is out of the
    caches, Python's own too, and each function here takes some microseconds: so there is little of
    it.
    """

    def __init__(
        self, device: Device, threads: CopyThreads, schedule: Schedule,
        runners: dict[Gemm, KernelRunner], request: Request, buffers: list[cl.Buffer],
    ) -> None:  # fmt: skip
        self._device = device
        self._threads = threads
        self._beside: CopiesBeside | None = None
        self._schedule = schedule
        (self._runner,) = runners.values()
        self._request = request
        self._buffers = buffers
        self._is_written = self._is_done = False
        self.is_idle = True
        """Whether no command can use the call's memory."""

    def run(self) -> None:
        """Compute."""
        call, stop, write = self._request
        if stop is not None and stop.is_set():
            raise CancelledError
        device, problem = self._device, self._schedule.problem
        queue, copy = device.queue, device.cl.enqueue_copy
        is_shared = self._schedule.is_shared
        a, *others = self._buffers
        b, c, *scratch = (a, *others) if is_shared else others
        sent = [(a, _in_order(call.a, trans=problem.trans_a))]
        if not is_shared:
            sent.append((b, _in_order(call.b, trans=problem.trans_b)))
        self.is_idle = False
        try:
            if sum(x.nbytes for _, x in sent) >= SHARED:
                self._send(*sent)
            else:
                for buffer, x in sent:
                    copy(queue, buffer, _dense(x), is_blocking=True)
            result = _in_order(call.c)
            if problem.reads_c:
                copy(queue, c, _dense(result), is_blocking=True)
            values = call.alpha, call.beta, a, b, c, NO_OFFSETS
            state = LaunchState(device.context, queue, *scratch, pool=device.scratch)
            self._runner.enqueue(values, state, [], in_order=True)
            fits = result.flags.c_contiguous and write is None
            dense = result if fits else np.empty(result.shape, result.dtype)
            self._is_written = dense is result
            copy(queue, dense, c, is_blocking=True)
            if dense is not result:
                self._is_written = True
                (write or np.copyto)(result, dense)
            self._is_done = self.is_idle = True
        except BaseException:
            if self._beside is not None:
                self._beside.abandon()
            self.is_idle = finish(queue)  # not if Ctrl-C comes a second time
            raise
        finally:
            if self._beside is not None:
                self._beside.close(is_idle=self.is_idle)

    def _send(self, *operands: tuple[cl.Buffer, NDArray[Any]]) -> None:
        """Copy A and B to the device, one part by the driver and others beside."""
        first, *others = _pieces(*operands)
        beside = self._beside = CopiesBeside(self._device, self._threads)
        queue, copy = self._device.queue, self._device.cl.enqueue_copy
        for buffer, (offset, x) in (first, *beside.start(others)):
            copy(queue, buffer, _dense(x), dst_offset=offset, is_blocking=True)
        beside.send()

    def missing(self) -> list[Block]:
        """List the blocks of C that are not where they belong."""
        return [] if self._is_done else self._schedule.results

    def is_torn(self) -> bool:
        """Tell whether a C that is still to be read may hold a part of its result."""
        return self._schedule.problem.reads_c and self._is_written and not self._is_done


def _in_order(x: NDArray[Any], *, trans: bool = False) -> NDArray[Any]:
    """Return a view with elements in the order of device memory; one matrix if it repeats."""
    if x.ndim > 2 and x.strides[0] == 0:
        x = x[:1]
    return x if trans else x.swapaxes(-1, -2)


def _dense(x: NDArray[Any]) -> NDArray[Any]:
    """Return an array itself, or a copy without gaps."""
    return x if x.flags.c_contiguous else np.array(x, order="C")


def _pieces(*operands: tuple[cl.Buffer, NDArray[Any]]) -> list[Piece]:
    """Divide operands into parts that fit pinned memory, of a size that threads are worth."""
    size = sum(x.nbytes for _, x in operands)
    most = min(staging.USUAL, max(LEAST_PART, -(-size // PARTS)))
    return [
        (buffer, chunk)
        for buffer, x in operands
        for chunk in chunks(x if x.ndim > 2 else x[None], most)
    ]
