"""One gemm whose operands are copied: tiles arrive, are multiplied and leave at the same time.

The calling thread hands tiles to the copiers as slots become free, launches each step when its
tiles are under way (the device waits for them), and hands a finished tile of C to the copiers.  It
is one step ahead of the device, so that the device never waits for it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm import slices
from clgemm.execute import slots
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.moves import Move
from clgemm.runtime.opencl import cl
from clgemm.runtime.staging import PIECE
from clgemm.runtime.workspace import QueueWorkspace
from clgemm.transfer import parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.execute import Ready
    from clgemm.problem import Gemm
    from clgemm.runtime.moves import Job
    from clgemm.runtime.session import Session
    from clgemm.slices import Name, Schedule, Step, Tile

INLINE = 2 << 20  # bytes up to which waking threads takes longer than copying
PARTS = 48  # of all operands: several for each thread
SMALL_PART = 1 << 19  # bytes; copying less takes no longer than handing it over


class Arrays(NamedTuple):
    """The operands and factors of a call, in the problem's terms: C is column-major."""

    alpha: complex
    a: NDArray[Any]
    b: NDArray[Any]
    beta: complex
    c: NDArray[Any]

    def part(self, c: Tile) -> Arrays:
        """Return what a tile of C is computed from."""
        a = self.a[_batch(self.a, c)][..., slice(*c.rows), :]
        b = self.b[_batch(self.b, c)][..., :, slice(*c.columns)]
        whole = self.c[_batch(self.c, c)]
        return self._replace(a=a, b=b, c=whole[..., slice(*c.rows), slice(*c.columns)])


def _batch(x: NDArray[Any], tile: Tile) -> slice:
    return slice(*tile.batch) if x.ndim > 2 else slice(None)


class Flow:
    """One call.

    Parameters
    ----------
    session : Session
        The device.
    schedule : Schedule
        How the problem is cut.
    ready : dict
        The plan of each product in the schedule.
    arrays : Arrays
        What is computed.
    buffers : list of cl.Buffer
        As `Schedule.buffers` asks for, and scratch memory.
    job : Job
        What the copiers know the call by.
    """

    def __init__(
        self, session: Session, schedule: Schedule, ready: dict[Gemm, Ready], arrays: Arrays,
        buffers: list[cl.Buffer], job: Job,
    ) -> None:  # fmt: skip
        self._session = session
        self._schedule = schedule
        self._ready = ready
        self._arrays = arrays
        self._job = job
        names = [name for name, _ in schedule.buffers]
        self._slots: dict[Name, list[cl.Buffer]] = {
            name: [x for x, owner in zip(buffers, names, strict=False) if owner == name]
            for name in slices.OPERANDS
        }
        scratch = buffers[len(names)] if len(buffers) > len(names) else None
        self._workspace = QueueWorkspace(session.context, scratch)
        size = schedule.problem.operand_bytes
        self._is_small = size <= INLINE
        """Whether all is done by this thread on one queue, which runs in order."""
        self._part_bytes = min(PIECE, max(SMALL_PART, size // PARTS))
        self._arriving: dict[Name, list[Move | None]] = {name: [] for name in slices.OPERANDS}
        self._leaving: list[Move] = []
        self._claims = schedule.claims
        self._claimed = 0
        self._launched: list[cl.Event] = []
        self._ended = 0
        """How many of the steps launched are known to have ended."""

    def run(self) -> None:
        """Compute."""
        try:
            for number, step in enumerate(self._schedule.steps):
                self._claim(number)
                self._launch(number, step)
                self._await(number - 1)
            self._await(len(self._schedule.steps) - 1)
            for move in self._leaving:
                move.wait()
        except BaseException as error:
            self._job.fail(error)
            if not is_short_of_memory(error):
                self._job.abandon()  # else the tiles that are on their way home get there
            self._job.settle()
            with suppress(cl.Error):  # what went wrong is being raised already
                self._session.queue.finish()
            raise

    def missing(self) -> list[Tile]:
        """List the tiles of C that are not where they belong."""
        there = sum(1 for move in self._leaving if not move.missing)
        return self._schedule.results[there:]

    def is_torn(self) -> bool:
        """Tell whether a tile of C that is still to be read holds a part of its result."""
        return self._schedule.problem.reads_c and any(
            0 < move.missing < len(move.parts) for move in self._leaving
        )

    def _claim(self, number: int) -> None:
        """Send off the tiles of a step and, where slots are free, of those that follow."""
        while self._claimed < len(self._claims):
            name, load = self._claims[self._claimed]
            if load.first > number + slices.SLOTS:
                return
            if load.before >= 0 and not self._is_free(name, load.before):
                if load.first > number:
                    return
                self._free(name, load.before)
            move = None
            if name != "c" or self._schedule.problem.reads_c:
                move = self._move(load.tile, self._slots[name][load.slot], home=False)
            self._arriving[name].append(move)
            self._claimed += 1

    def _is_free(self, name: Name, load: int) -> bool:
        """Tell whether a load has left its slot."""
        if self._schedule.loads[name][load].last >= self._ended:
            return False
        return name != "c" or not self._leaving[load].left

    def _free(self, name: Name, load: int) -> None:
        """Wait until it has."""
        self._await(self._schedule.loads[name][load].last)
        if name == "c":
            self._leaving[load].wait()

    def _move(self, tile: Tile, buffer: cl.Buffer, *, home: bool) -> Move:
        problem, name = self._schedule.problem, tile.operand
        x = getattr(self._arrays, name)
        x = (x if x.ndim > 2 else x[None])[
            slice(*tile.batch), slice(*tile.rows), slice(*tile.columns)
        ]
        trans = {"a": problem.trans_a, "b": problem.trans_b, "c": False}[name]
        x = x if trans else x.swapaxes(1, 2)
        move = Move(self._job, buffer, list(parts(x, self._part_bytes)), home=home)
        if self._is_small:
            self._session.copiers.carry(move, self._session.queue)
        else:
            self._session.copiers.post(move)
        return move

    def _launch(self, number: int, step: Step) -> None:
        """Enqueue a step behind its tiles."""
        waits: list[cl.Event] = []
        places = []
        for name in slices.OPERANDS:
            load = self._schedule.uses[number][name]
            arriving = self._arriving[name]
            places.append(self._slots[name][self._schedule.loads[name][load].slot])
            move, arriving[load] = arriving[load], None  # later steps follow this one
            if move is not None:
                move.wait()
                waits += [] if self._is_small else move.events.values()
        gemm = self._schedule.gemm(step)
        arrays = self._arrays
        values = slots(gemm, arrays.alpha, arrays.beta if step.begins else 1.0, *places)
        queue = self._session.queue
        event = self._ready[gemm].enqueue(values, queue, waits, self._workspace)
        if not self._is_small:
            queue.flush()
        self._launched.append(event)

    def _await(self, number: int) -> None:
        """Wait for the steps up to one; the tiles of C that are finished set out."""
        while self._ended <= number:
            if not self._is_small:
                self._launched[self._ended].wait()
            step = self._schedule.steps[self._ended]
            self._ended += 1
            if step.ends:
                load = self._schedule.loads["c"][len(self._leaving)]
                self._leaving.append(self._move(load.tile, self._slots["c"][load.slot], home=True))
