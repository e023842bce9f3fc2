"""How calls of one kind run with copies: in blocks that fit the device's memory."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, NamedTuple

from clgemm import settings
from clgemm.problem import ELEMENTS
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.reentry import WouldDeadlockError
from clgemm.runtime.runner import Work
from clgemm.streaming import direct
from clgemm.streaming.direct import DirectCall
from clgemm.streaming.request import Request
from clgemm.streaming.schedule import OPERANDS, call_of, plan
from clgemm.streaming.stream import StreamedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.request import Write
    from clgemm.streaming.schedule import Block, Schedule

log = logging.getLogger(__name__)

HALVINGS = 6  # how often to try with half the memory before the host computes
SHARE_OF_OWN, SHARE_OF_HOST = 0.9, 0.25  # of the device's memory: its own, or the host's


def room_of(device: Device) -> int:
    """Return how many bytes of device memory a call may use."""
    traits = device.traits
    share = SHARE_OF_HOST if traits.unified_memory else SHARE_OF_OWN
    wanted = settings.device_memory_bytes()
    room = int(traits.global_memory * share)
    return room if wanted is None else min(wanted, traits.global_memory)


def must_copy(device: Device, problem: Gemm) -> bool:
    """Tell whether the device cannot work on a problem's operands where they lie.

    Asked once for a kind of call; how much memory it may take is read at each call.
    """
    traits, wanted = device.traits, settings.device_memory_bytes()
    if not traits.unified_memory:
        return True
    if problem.largest_bytes > traits.max_allocation and not traits.system_svm:
        return True
    return wanted is not None and problem.operand_bytes > wanted


class StreamingRunner:
    """Computes calls of one kind with copies.

    Parameters
    ----------
    device : Device
        The device.
    threads : CopyThreads
        What copies to and from it.
    problem : Gemm
        What is computed; how the operands lie decides the order in which elements are copied.
    build : callable
        Makes what computes a product on the device.
    """

    def __init__(
        self, device: Device, threads: CopyThreads, problem: Gemm,
        build: Callable[[Gemm], KernelRunner],
    ) -> None:  # fmt: skip
        self._device = device
        self._threads = threads
        self._problem = problem
        self._build = build
        self._runners: dict[Gemm, KernelRunner] = {}
        self._schedules: dict[tuple[Gemm, int], Schedule | None] = {}
        self._plans: dict[tuple[Gemm, int], _Plan] = {}
        self._last: tuple[int, _Plan] | None = None
        """The last room that calls had, and their plan in it: to look for it touches every field of
        a problem, at some microseconds where nothing of it is in the caches."""

    def run(self, call: Call, stop: Stop | None = None, write: Write | None = None) -> None:
        """Compute and wait; see `Runner.run`, and `Request` for what writes results."""
        request = Request(call, stop, write)
        self._run(self._problem, request, room_of(self._device), HALVINGS)

    def work(self) -> Work:
        """Say what a call does."""
        schedule = self.schedule(self._problem, room_of(self._device))
        if schedule is None:
            return Work(why_host="the device's memory is too small")
        itemsize = ELEMENTS[self._problem.precision].itemsize
        copied = {x: schedule.visits[x] * schedule.sizes[x] * itemsize for x in OPERANDS}
        return Work(
            self._runner(schedule.gemms[0]).work().config,
            copied["a"] + copied["b"] + copied["c"] * self._problem.reads_c,
            copied["c"],
            len(schedule.products),
        )

    def _runner(self, problem: Gemm) -> KernelRunner:
        """Return what computes one product of blocks, built by the first call."""
        runner = self._runners.get(problem)
        if runner is None:
            runner = self._runners[problem] = self._build(problem)
        return runner

    def schedule(self, problem: Gemm, room: int) -> Schedule | None:
        """Return how a problem is divided, decided by the first call."""
        key = problem, room
        if key not in self._schedules:
            largest = min(room, self._device.traits.max_allocation)
            schedule = plan(
                problem, room, largest, lambda g: self._runner(g).scratch_bytes,
                whole=problem.operand_bytes <= direct.MOST,
            )  # fmt: skip
            self._schedules[key] = schedule
            log.debug("%s in %d bytes: %s", problem, room, schedule and schedule.blocking)
        return self._schedules[key]

    def _run(self, problem: Gemm, request: Request, room: int, halvings: int) -> None:
        """Compute, with half the memory again and again if the device has less than it says."""
        try:
            plan = self._plan(problem, room) if halvings else None
        except WouldDeadlockError:  # nothing of this part of C is written yet
            plan = None
        if plan is None:
            request.by_host()
            return
        missing = self._copying(plan, request, room)
        if not missing:
            return
        # Half of what was asked for, since the same would be asked for in half the room.
        room = min(room, sum(plan.sizes)) // 2
        log.info("%s is short of memory: trying with %d bytes", self._device, room)
        if missing == plan.schedule.results:
            self._run(problem, request, room, halvings - 1)
            return
        for c in missing:
            part = problem.block(c.batch.size, c.rows.size, c.columns.size, problem.k)
            of_part = request._replace(call=call_of(c, request.call))
            self._run(part, of_part, room, halvings - 1)

    def _plan(self, problem: Gemm, room: int) -> _Plan | None:
        """Return what computes a problem in so many bytes, made by the first call."""
        last = self._last
        if last is not None and last[0] == room and problem is self._problem:
            return last[1]
        known = self._plans.get((problem, room))
        if known is None:
            schedule = self.schedule(problem, room)
            if schedule is None:
                return None
            runners = {gemm: self._runner(gemm) for gemm in schedule.gemms}
            scratch = max(runner.scratch_bytes for runner in runners.values())
            sizes = [size for _, size in schedule.buffers] + [scratch] * (scratch > 0)
            is_one = len(schedule.products) == 1
            copied = problem.operand_bytes if is_one else sys.maxsize
            known = self._plans[problem, room] = _Plan(schedule, runners, sizes, copied, [])
        if problem is self._problem:
            self._last = room, known
        return known

    def _copying(self, plan: _Plan, request: Request, room: int) -> list[Block]:
        """Compute with copies; return the blocks of C that were not written for want of memory."""
        device, threads = self._device, self._threads
        begun: DirectCall | StreamedCall | None = None
        try:
            if plan.whole_bytes <= direct.MOST:
                begun = self._direct(plan, room)
                begun.run(request)
                plan.spare.append(begun)
            else:
                lease = device.memory.lease(plan.sizes, room)
                with lease, threads.in_use() as queues:
                    begun = StreamedCall(
                        device, threads, queues, plan.schedule, plan.runners, request, lease
                    )
                    begun.run()
        except device.cl.Error as error:
            if not is_short_of_memory(error) or (begun and begun.is_torn()):
                raise
            device.memory.trim()
            return begun.missing() if begun else plan.schedule.results
        finally:
            threads.touch()
        return []

    def _direct(self, plan: _Plan, room: int) -> DirectCall:
        """Return what copies whole operands, which no other thread has."""
        try:
            return plan.spare.pop()
        except IndexError:
            lease = self._device.memory.lease(plan.sizes, room, rests=True)
            return DirectCall(self._device, self._threads, plan.schedule, plan.runners, lease)


class _Plan(NamedTuple):
    """How a problem is computed in so many bytes of device memory."""

    schedule: Schedule
    runners: dict[Gemm, KernelRunner]
    sizes: list[int]
    """Of the buffers, the last one's for scratch if any is needed."""
    whole_bytes: int
    """Bytes of all operands, if they are not divided."""
    spare: list[DirectCall]
    """Of which each thread takes one for a call."""
