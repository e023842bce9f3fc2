"""How calls of one kind run with copies: cut to fit, and cut finer where memory is short."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.host import blas as host_blas
from clgemm.problem import Operand
from clgemm.runtime.memory import is_short_of_memory
from clgemm.streaming import planning
from clgemm.streaming.copies import Traffic
from clgemm.streaming.stream import Flow

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.problem import Gemm
    from clgemm.runtime.device import Session
    from clgemm.runtime.kernel_runner import Ready
    from clgemm.streaming.schedule import Schedule, Tile
    from clgemm.streaming.stream import Arrays

log = logging.getLogger(__name__)

HALVINGS = 6  # how often to try with half the memory before the host computes
SHARE_OF_OWN, SHARE_OF_HOST = 0.9, 0.25  # of the device's memory: its own, or the host's


class Short(Exception):  # noqa: N818 - an outcome, handled where the call began
    """The device ran out of memory before these tiles of C were written."""

    def __init__(self, missing: list[Tile], needed: int, error: Exception) -> None:
        super().__init__(str(error))
        self.missing = missing
        self.needed = needed
        """Bytes that there were not."""


def room_of(session: Session) -> int:
    """Return how many bytes of device memory a call may use."""
    traits = session.traits
    share = SHARE_OF_HOST if traits.unified_memory else SHARE_OF_OWN
    wanted = settings.device_memory_bytes()
    room = int(traits.global_memory * share)
    return room if wanted is None else min(wanted, traits.global_memory)


def must_copy(session: Session, problem: Gemm) -> bool:
    """Tell whether the device cannot work on a problem's operands where they lie.

    Asked once for a kind of call; how much memory it may take is read at each call.
    """
    traits, wanted = session.traits, settings.device_memory_bytes()
    if not traits.unified_memory:
        return True
    if problem.largest_bytes > traits.max_allocation and not traits.system_svm:
        return True
    return wanted is not None and problem.operand_bytes > wanted


class Pipeline:
    """How calls of one kind run with copies.

    Parameters
    ----------
    session : Session
        The device.
    problem : Gemm
        What is computed; how the operands lie decides the order in which elements are copied.
    build : callable
        Makes the plan of a product ready.
    """

    def __init__(
        self, session: Session, problem: Gemm, build: Callable[[Session, Gemm], Ready]
    ) -> None:
        self._session = session
        self._problem = problem
        self._build = build
        self._ready: dict[Gemm, Ready] = {}
        self._schedules: dict[tuple[Gemm, int], Schedule | None] = {}

    def run(self, arrays: Arrays) -> None:
        """Compute; C is written where it lies, and read only if beta is not 0."""
        self._run(self._problem, arrays, room_of(self._session), HALVINGS)

    def ready(self, problem: Gemm) -> Ready:
        """Return the plan of one step, built by the first call."""
        ready = self._ready.get(problem)
        if ready is None:
            ready = self._ready[problem] = self._build(self._session, problem)
        return ready

    def schedule(self, problem: Gemm, room: int) -> Schedule | None:
        """Return how a problem is cut, decided by the first call."""
        key = problem, room
        if key not in self._schedules:
            largest = min(room, self._session.traits.max_allocation)
            schedule = planning.plan(
                problem, room, largest, lambda gemm: self.ready(gemm).scratch_bytes
            )
            self._schedules[key] = schedule
            log.debug("%s in %d bytes: %s", problem, room, schedule and schedule.cut)
        return self._schedules[key]

    def _run(self, problem: Gemm, arrays: Arrays, room: int, halvings: int) -> None:
        schedule = self.schedule(problem, room) if halvings else None
        if schedule is None:
            a, b = Operand(arrays.a, problem.conj_a), Operand(arrays.b, problem.conj_b)
            host_blas.gemm(problem.precision, arrays.alpha, a, b, arrays.beta, arrays.c)
            return
        try:
            self._execute(schedule, arrays, room)
        except Short as short:
            # Half of what was asked for, since the same would be asked for in half the room.
            room = min(room, short.needed) // 2
            missing = short.missing
            log.info("%s is short of memory: trying with %d bytes", self._session, room)
        else:
            return
        if missing == schedule.results:
            self._run(problem, arrays, room, halvings - 1)
            return
        for tile in missing:
            part = problem._replace(
                m=tile.rows.size, n=tile.columns.size, batch=tile.batch.size,
            )  # fmt: skip
            self._run(part, arrays.part(tile), room, halvings - 1)

    def _execute(self, schedule: Schedule, arrays: Arrays, room: int) -> None:
        """Run a schedule.

        Raises
        ------
        Short
            If the device's memory was not enough; tiles of C are whole, or as they were.
        """
        session = self._session
        steps = {gemm: self.ready(gemm) for gemm in schedule.gemms}
        scratch = max(ready.scratch_bytes for ready in steps.values())
        sizes = [size for _, size in schedule.buffers] + [scratch] * (scratch > 0)
        flow: Flow | None = None
        try:
            with session.memory.lease(sizes, room) as buffers, session.copiers.in_use() as queues:
                traffic = Traffic(session.copiers, *queues)
                flow = Flow(session, schedule, steps, arrays, buffers, traffic)
                flow.run()
        except session.cl.Error as error:
            if not is_short_of_memory(error) or (flow and flow.is_torn()):
                raise
            session.memory.trim()
            missing = flow.missing() if flow else schedule.results
            raise Short(missing, sum(sizes), error) from error
