"""One product whose operands are copied whole, by the driver, from where they lie and back.

The driver copies memory that is not pinned through buffers of its own, at the rate of the thread
that asks for it.  Up to some size that takes less time than a pipeline of blocks; and from some
size on, other threads that ask for parts of it are a help.

Every copy is a command that blocks: the driver works on NumPy's memory inside its function only.
Python hears Ctrl-C after that, so nothing is let go that the driver still reads or writes.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.queues import LaunchState, finish
from clgemm.streaming.copies import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.runtime.opencl import cl
    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.schedule import Block, Schedule

MOST = 24 << 20  # bytes of all operands
ALONE = 4 << 20  # the same up to which waking threads takes longer than copying
HELPERS = 1  # other threads
LEAST_PART = 1 << 20  # bytes that a thread copies at a time


class _Part(NamedTuple):
    """Dense elements of a buffer, and where they lie on the host."""

    buffer: cl.Buffer
    offset: int
    """Bytes before them."""
    x: NDArray[Any]


class _Helper:
    """Copies parts in another thread, on a queue of its own, as long as there are any."""

    def __init__(self, work: Callable[[cl.CommandQueue], None], queue: cl.CommandQueue) -> None:
        self._work = work
        self._queue = queue
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        """Held while it copies: it takes parts under it, so without it the helper has none."""

    def __call__(self) -> None:
        """Copy."""
        with self.lock:
            try:
                self._work(self._queue)
            except BaseException as error:  # noqa: BLE001 - the call's own thread raises it
                self.error = error


class DirectCall:
    """One call, in buffers as its `Schedule.buffers` asks for, and one of scratch memory.

    The schedule has one product, and there is one runner; in each of the queues another thread
    helps to copy; `stop` is set when nobody wants the result.
    """

    def __init__(
        self, device: Device, threads: CopyThreads, queues: Sequence[cl.CommandQueue],
        schedule: Schedule, runners: dict[Gemm, KernelRunner], call: Call,
        buffers: list[cl.Buffer], stop: Stop | None = None,
    ) -> None:  # fmt: skip
        self._device = device
        self._threads = threads
        self._queues = queues
        self._schedule = schedule
        (self._runner,) = runners.values()
        self._call = call
        self._buffers = buffers
        self._stop = stop
        self._parts: deque[_Part] = deque()
        """Those that nobody has begun to copy."""
        self._helpers: list[_Helper] = []
        self._launched: cl.Event | None = None
        self._is_written = self._is_done = False
        self.is_idle = True
        """Whether no command and no thread can use the call's memory."""

    def run(self) -> None:
        """Compute."""
        if self._stop is not None and self._stop.is_set():
            raise CancelledError
        device, call, problem = self._device, self._call, self._schedule.problem
        a, b, c, *scratch = self._buffers
        values = call.alpha, call.beta, a, b, c, NO_OFFSETS
        self.is_idle = False
        try:
            parts = self._parts_of(a, call.a, trans=problem.trans_a)
            parts += self._parts_of(b, call.b, trans=problem.trans_b)
            if problem.reads_c:
                parts += self._parts_of(c, call.c)
            self._share(parts, self._send)
            state = LaunchState(device.context, device.queue, *scratch)
            self._launched = self._runner.enqueue(values, state, [])
            self._share(self._parts_of(c, call.c), self._fetch)
            self._is_done = self.is_idle = True
        except BaseException:
            self.is_idle = self._abandon()  # not if Ctrl-C comes a second time
            raise

    def _parts_of(self, buffer: cl.Buffer, x: NDArray[Any], *, trans: bool = False) -> list[_Part]:
        """Cut an operand into parts that follow each other in device memory."""
        x = x if trans else x.swapaxes(-1, -2)
        if x.ndim > 2 and x.strides[0] == 0:  # one matrix, repeated
            x = x[:1]
        count = min(1 + len(self._queues), x.nbytes // LEAST_PART) if self._queues else 1
        if count <= 1:
            return [_Part(buffer, 0, x)]
        found = chunks(x if x.ndim > 2 else x[None], -(-x.nbytes // count))
        return [_Part(buffer, offset, part) for offset, part in found]

    def _share(self, found: list[_Part], copy: Callable[[cl.CommandQueue, _Part], object]) -> None:
        """Copy parts, with other threads as far as they wake in time."""
        parts = deque(found)

        def work(queue: cl.CommandQueue) -> None:
            while parts:
                try:
                    part = parts.popleft()
                except IndexError:  # another thread took the last one
                    return
                copy(queue, part)

        self._parts = parts
        self._helpers = [_Helper(work, queue) for queue in self._queues[: len(parts) - 1]]
        if self._helpers and self._launched is not None:
            self._device.queue.flush()  # they wait for what it has been given
        for helper in self._helpers:
            self._threads.submit(helper, first=True)
        work(self._device.queue)
        for helper in self._helpers:
            with helper.lock:
                if helper.error is not None:
                    raise helper.error

    def _send(self, queue: cl.CommandQueue, part: _Part) -> None:
        """Copy to the device; what has gaps is packed before, which a pitch would not spare."""
        x = part.x if part.x.flags.c_contiguous else np.array(part.x, order="C")
        copy = self._device.cl.enqueue_copy
        copy(queue, part.buffer, x, dst_offset=part.offset, is_blocking=True)

    def _fetch(self, queue: cl.CommandQueue, part: _Part) -> None:
        """Copy to the host what was launched before has computed."""
        x = part.x if part.x.flags.c_contiguous else np.empty(part.x.shape, part.x.dtype)
        waits = None if queue is self._device.queue else [self._launched]
        copy = self._device.cl.enqueue_copy
        self._is_written |= x is part.x
        copy(queue, x, part.buffer, src_offset=part.offset, is_blocking=True, wait_for=waits)
        if x is not part.x:
            self._is_written = True
            part.x[...] = x

    def _abandon(self) -> bool:
        """Leave out what has not begun, and wait for what has.

        Tells whether it is proved that no thread and no command uses the call's memory any more.
        """
        self._parts.clear()
        for helper in self._helpers:
            with helper.lock:
                pass  # it has ended, or finds nothing to copy
        # All are waited for, whatever one says.
        return not {finish(x) for x in (self._device.queue, *self._queues)} & {False}

    def missing(self) -> list[Block]:
        """List the blocks of C that are not where they belong."""
        return [] if self._is_done else self._schedule.results

    def is_torn(self) -> bool:
        """Tell whether a C that is still to be read may hold a part of its result."""
        return self._schedule.problem.reads_c and self._is_written and not self._is_done
