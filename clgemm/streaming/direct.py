"""One product whose operands are copied whole, by the driver, from where they lie and back.

The driver copies memory that is not pinned through buffers of its own, at the rate of one thread:
NVIDIA's lets other threads wait meanwhile, so they cannot do the same.  From some size on they copy
a part of the operands to pinned memory, and of the result from there: see `beside`.  Up to some
size that takes less time than blocks, whose copies and kernels run at once.

Every copy of NumPy's memory is a command that blocks: the driver works on it inside its function.
Python hears Ctrl-C after that, so nothing is let go that the driver still reads or writes.  That
takes no longer than to wait once, at the end.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.queues import LaunchState, finish
from clgemm.streaming.beside import CopiesBeside
from clgemm.streaming.copies import chunks

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.runtime.memory import Lease
    from clgemm.runtime.opencl import cl
    from clgemm.streaming.beside import Piece
    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.request import Request, Write
    from clgemm.streaming.schedule import Block, Schedule

    _Operand = tuple[cl.Buffer, NDArray[Any]]

MOST = 48 << 20
"""Bytes of all operands.  Beside an H100, ms so and in blocks: 35 MB 1.9 and 2.5 to 3.1, 47 MB 2.3
and 2.8."""
SENT, FETCHED = 7_000_000, 3_000_000
"""Bytes that are sent, and of the result, from which on other threads copy parts of them.  Beside
an H100, ms without and with them, after a pause: 7 MB of all operands 1.10 and 1.04, 13 MB 1.50 and
1.22, 20 MB 2.24 and 1.75, 25 MB 2.58 and 1.78; beside another one, whose host copies 7 MB in .7 ms,
all below 10 MB gained nothing."""


class Shares(NamedTuple):
    """Who copies how much."""

    own: float
    """Of the bytes, what the call's own thread has the driver copy."""
    helpers: int
    """How many threads copy the others."""
    piece: int
    """Bytes of those that a command sends or fetches, at most."""


FEW, MANY = Shares(0.6, 2, 8 << 20), Shares(0.3, 4, 4 << 20)
"""Helpers wake up one after the other, in 30 to 100 microseconds, and a command takes 20: what is
little is not worth many of them."""
MUCH = 30_000_000  # bytes of all operands, from which on there are many


def uses_threads(nbytes: int) -> bool:
    """Tell whether other threads copy, with operands of so many bytes.

    A and B are two thirds of them, or about that.
    """
    return nbytes >= SENT * 3 / 2


class DirectCall:
    """Calls of one kind, one after the other, in a lease of buffers that rests between them.

    The buffers are as its `Schedule.buffers` asks for, and one of scratch memory.  The schedule has
    one product, and there is one runner.  After a copy all data is out of the caches, Python's own
    too, and each function here takes some microseconds: so there is little of it, and a kernel's
    arguments stay set while the buffers stay.  A call that has failed is the last one.
    """

    def __init__(
        self, device: Device, threads: CopyThreads, schedule: Schedule,
        runners: dict[Gemm, KernelRunner], lease: Lease,
    ) -> None:  # fmt: skip
        self._device = device
        self._threads = threads
        self._beside: CopiesBeside | None = None
        self._schedule = schedule
        self._problem = schedule.problem
        (self._runner,) = runners.values()
        self._lease = lease
        self._state = LaunchState(device.context, device.queue)
        self._buffers: list[cl.Buffer] = []
        self._operands: tuple[cl.Buffer, cl.Buffer, cl.Buffer]
        self._factors: tuple[complex, complex] | None = None
        """The alpha and beta that `_launch` is for, in these buffers."""
        self._launch: Callable[[cl.Buffer], None]
        self._is_written = self._is_done = False

    def run(self, request: Request) -> None:
        """Compute."""
        self._is_written = self._is_done = False
        lease, stop = self._lease, request.stop
        if stop is not None and stop.is_set():
            raise CancelledError
        with lease as buffers:
            if buffers is not self._buffers:
                self._compute_in(buffers)
            lease.is_idle = False
            try:
                self._compute(request.call, request.write)
                self._is_done = lease.is_idle = True
            except BaseException:
                if self._beside is not None:
                    self._beside.abandon()
                lease.is_idle = finish(self._device.queue)  # not if Ctrl-C comes a second time
                raise
            finally:
                if self._beside is not None:
                    self._beside.close(is_idle=lease.is_idle)
                    self._beside = None

    def _compute_in(self, buffers: list[cl.Buffer]) -> None:
        """Compute in these buffers from now on."""
        a, *others = buffers
        b, c, *scratch = (a, *others) if self._schedule.is_shared else others
        self._operands = a, b, c
        self._state.use_scratch(*scratch)
        self._factors = None
        self._buffers = buffers

    def _compute(self, call: Call, write: Write | None) -> None:
        problem, (a, b, c) = self._problem, self._operands
        sent = [(a, _in_order(call.a, trans=problem.trans_a))]
        if b is not a:
            sent.append((b, _in_order(call.b, trans=problem.trans_b)))
        result = _in_order(call.c)
        if problem.reads_c:
            sent.append((c, result))
        self._send(sent)
        self._launch_for(call.alpha, call.beta)(c)
        fits = result.flags.c_contiguous and write is None
        dense = result if fits else np.empty(result.shape, result.dtype)
        self._is_written = dense is result
        self._fetch(c, dense)
        if dense is not result:
            self._is_written = True
            (write or np.copyto)(result, dense)

    def _launch_for(self, alpha: complex, beta: complex) -> Callable[[cl.Buffer], None]:
        """Return what launches the product with these factors."""
        if self._factors != (alpha, beta):
            self._factors = None  # in case Ctrl-C comes between
            values = alpha, beta, *self._operands, NO_OFFSETS
            self._launch = self._runner.repeated(values, self._state)
            self._factors = alpha, beta
        return self._launch

    @property
    def _shares(self) -> Shares:
        return MANY if self._problem.operand_bytes >= MUCH else FEW

    def _send(self, operands: list[_Operand]) -> None:
        """Copy operands to the device; if that is much, one part by the driver, others beside."""
        queue, copy = self._device.queue, self._device.cl.enqueue_copy
        if sum([x.nbytes for _, x in operands]) < SENT:
            for buffer, x in operands:
                copy(queue, buffer, _dense(x), is_blocking=True)
            return
        beside = self._beside = CopiesBeside(self._device, self._threads)
        own, others = _pieces(operands, self._shares)
        for buffer, (offset, x) in (own, *beside.start(others, self._shares.helpers)):
            copy(queue, buffer, _dense(x), dst_offset=offset, is_blocking=True)
        beside.send()

    def _fetch(self, buffer: cl.Buffer, x: NDArray[Any]) -> None:
        """Copy the result from the device, in the same way if other threads are awake."""
        queue, copy, beside = self._device.queue, self._device.cl.enqueue_copy, self._beside
        if beside is None or x.nbytes < FETCHED:
            copy(queue, x, buffer, is_blocking=True)
            return
        own, others = _pieces([(buffer, x)], self._shares)
        for _, (offset, part) in (own, *beside.fetch(others, self._shares.helpers)):
            copy(queue, part, buffer, src_offset=offset, is_blocking=True)
        beside.join()

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


def _pieces(operands: list[_Operand], shares: Shares) -> tuple[Piece, list[Piece]]:
    """Divide operands: what the driver copies, of the largest, and what other threads do."""
    size = sum(x.nbytes for _, x in operands)
    (buffer, x), *smaller = sorted(operands, key=lambda operand: -operand[1].nbytes)
    lines = _lines(x)
    count = max(1, int(len(lines) * shares.own * size / x.nbytes))
    own, rest = lines[:count], lines[count:]
    others: list[Piece] = []
    if rest.size:
        others += [(buffer, (own.nbytes + offset, y)) for offset, y in chunks(rest, shares.piece)]
    for other, y in smaller:
        others += [(other, chunk) for chunk in chunks(_lines(y), shares.piece)]
    return (buffer, (0, own)), others


def _lines(x: NDArray[Any]) -> NDArray[Any]:
    """Return a view whose first axis can be cut: of all elements if they lie without gaps."""
    if x.flags.c_contiguous:
        return x.reshape(-1)
    while len(x) == 1:  # of the last axis there are several elements, or there were no gaps
        x = x[0]
    return x
