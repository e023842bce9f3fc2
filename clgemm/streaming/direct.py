"""One product whose operands are copied whole, by the driver, from where they lie and back.

The driver copies memory that is not pinned through buffers of its own, at the rate of one thread.
Up to some size that takes less time than to cut operands into pieces and to wake threads.

Every copy is a command that blocks: the driver works on NumPy's memory inside its function only.
Python hears Ctrl-C after that, so nothing is let go that the driver still reads or writes.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.queues import LaunchState, finish

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.runtime.opencl import cl
    from clgemm.streaming.schedule import Block, Schedule

MOST = 8 << 20  # bytes of all operands


class DirectCall:
    """One call, in buffers as its `Schedule.buffers` asks for, and one of scratch memory.

    The schedule has one product, and there is one runner; `stop` is set when nobody wants the
    result.
    """

    def __init__(
        self, device: Device, schedule: Schedule, runners: dict[Gemm, KernelRunner], call: Call,
        buffers: list[cl.Buffer], stop: Stop | None = None,
    ) -> None:  # fmt: skip
        self._device = device
        self._schedule = schedule
        (self._runner,) = runners.values()
        self._call = call
        self._buffers = buffers
        self._stop = stop
        self._is_done = self._may_be_torn = False
        self.is_idle = True
        """Whether no command can use the call's memory."""

    def run(self) -> None:
        """Compute."""
        if self._stop is not None and self._stop.is_set():
            raise CancelledError
        device, call, problem = self._device, self._call, self._schedule.problem
        queue, enqueue_copy = device.queue, device.cl.enqueue_copy
        a, b, c, *scratch = self._buffers
        self.is_idle = False
        try:
            enqueue_copy(queue, a, _dense(in_order(call.a, problem.trans_a)), is_blocking=True)
            enqueue_copy(queue, b, _dense(in_order(call.b, problem.trans_b)), is_blocking=True)
            result = in_order(call.c)
            if problem.reads_c:
                enqueue_copy(queue, c, _dense(result), is_blocking=True)
            values = call.alpha, call.beta, a, b, c, NO_OFFSETS
            self._runner.enqueue(values, LaunchState(device.context, queue, *scratch), [])
            dense = result if result.flags.c_contiguous else np.empty(result.shape, result.dtype)
            self._may_be_torn = problem.reads_c and dense is result
            enqueue_copy(queue, dense, c, is_blocking=True)
            self.is_idle = True
            if dense is not result:
                result[...] = dense
            self._is_done = True
        except BaseException:
            self.is_idle = self.is_idle or finish(queue)
            raise

    def missing(self) -> list[Block]:
        """List the blocks of C that are not where they belong."""
        return [] if self._is_done else self._schedule.results

    def is_torn(self) -> bool:
        """Tell whether a C that is still to be read may hold a part of its result."""
        return self._may_be_torn and not self._is_done


def in_order(x: NDArray[Any], trans: bool = False) -> NDArray[Any]:
    """Return a view with elements in the order of device memory; one matrix if it repeats."""
    if x.ndim > 2 and x.strides[0] == 0:
        x = x[:1]
    return x if trans else x.swapaxes(-1, -2)


def _dense(x: NDArray[Any]) -> NDArray[Any]:
    """Return an array itself, or a copy without gaps: faster than a command with a pitch."""
    return x if x.flags.c_contiguous else np.array(x, order="C")
