"""One gemm whose operands are copied: tiles arrive, are multiplied and leave at the same time.

A tile sets out as soon as a slot is free, a step is launched as soon as its tiles are on their way
(the device waits for them), and a tile of C comes home when its last step has ended.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from clgemm.runtime.host_memory import span_bytes
from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.opencl import cl
from clgemm.runtime.queues import QueueState
from clgemm.streaming.schedule import OPERANDS
from clgemm.streaming.staging import PIECE
from clgemm.streaming.transfers import Move, is_over, parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.streaming.copies import Traffic
    from clgemm.streaming.schedule import Name, Schedule, Tile

INLINE = 8 << 20  # bytes of all operands up to which waking threads takes longer than copying
PARTS = 24  # of all operands: several for each thread
SMALL_PART = 1 << 19  # bytes; copying less takes no longer than handing it over


def part_of(call: Call, c: Tile) -> Call:
    """Return the call that computes a tile of C."""
    a = call.a[_batch(call.a, c)][..., slice(*c.rows), :]
    b = call.b[_batch(call.b, c)][..., :, slice(*c.columns)]
    whole = call.c[_batch(call.c, c)]
    return call._replace(a=a, b=b, c=whole[..., slice(*c.rows), slice(*c.columns)])


def _batch(x: NDArray[Any], tile: Tile) -> slice:
    return slice(*tile.batch) if x.ndim > 2 else slice(None)


class Flow:
    """One call.

    Parameters
    ----------
    device : Device
        The device.
    schedule : Schedule
        How the problem is cut.
    runners : dict
        What computes each product in the schedule.
    call : Call
        What is computed.
    buffers : list of cl.Buffer
        As `Schedule.buffers` asks for, and scratch memory.
    traffic : Traffic
        The call's copies.
    stop : Stop, optional
        Set when nobody wants the result any more.
    """

    def __init__(
        self, device: Device, schedule: Schedule, runners: dict[Gemm, KernelRunner], call: Call,
        buffers: list[cl.Buffer], traffic: Traffic, stop: Stop | None = None,
    ) -> None:  # fmt: skip
        self._queue = device.queue
        self._schedule = schedule
        self._runners = runners
        self._call = call
        self._stop = stop
        self._traffic = traffic
        names = [name for name, _ in schedule.buffers]
        self._slots: dict[Name, list[cl.Buffer]] = {
            name: [x for x, owner in zip(buffers, names, strict=False) if owner == name]
            for name in OPERANDS
        }
        scratch = buffers[len(names)] if len(buffers) > len(names) else None
        self._state = QueueState(device.context, device.queue, scratch)
        size = schedule.problem.operand_bytes
        self._part_bytes = min(PIECE, max(SMALL_PART, size // PARTS))
        self._is_small = size <= INLINE and len(schedule.steps) == 1
        self._arriving: dict[Name, list[Move | None]] = {name: [] for name in OPERANDS}
        self._leaving: list[Move] = []
        self._claimed = 0
        self._launched: list[cl.Event] = []
        self._ended = 0
        """How many of the steps launched are known to have ended."""
        self.is_idle = True
        """Whether no command and no thread can use the call's memory."""

    def run(self) -> None:
        """Compute."""
        self.is_idle = False
        try:
            if self._is_small:
                self._run_in_line()
                self.is_idle = True
                return
            c = self._call.c
            if not self._schedule.problem.reads_c and c.nbytes == span_bytes(c):
                self._traffic.prepare(c)
            while not self._is_done():
                self._heed()
                happened = self._notice_ends() | self._claim() | self._launch()
                awaited = next(iter(self._launched[self._ended :]), None)
                self._traffic.turn(awaited, patient=not happened)
            self.is_idle = True
        except BaseException as error:
            if is_short_of_memory(error):
                self._bring_home()
            self._traffic.abandon(self._queue)
            self.is_idle = True  # not if Ctrl-C came a second time: then nothing is used again
            raise
        finally:
            self._traffic.close(is_idle=self.is_idle)

    def _heed(self) -> None:
        """End the call if nobody wants its result any more."""
        if self._stop is not None and self._stop.is_set():
            raise CancelledError

    def _run_in_line(self) -> None:
        """Do all in this thread, on one queue, which runs in order: for what is soon done."""
        for name in OPERANDS:
            load = self._schedule.loads[name][0]
            if name != "c" or self._schedule.problem.reads_c:
                self._traffic.send_now(self._queue, self._move(load.tile, load.slot, home=False))
        self._enqueue(0, [])
        load = self._schedule.loads["c"][0]
        self._leaving.append(self._move(load.tile, load.slot, home=True))
        self._traffic.fetch_now(self._queue, self._leaving[0])

    def _is_done(self) -> bool:
        return self._ended == len(self._schedule.steps) and not any(
            move.to_copy for move in self._leaving
        )

    def _bring_home(self) -> None:
        """Let the tiles of C that are on their way get there, since others can be computed anew."""
        self._traffic.drop_what_goes_out()
        with suppress(cl.Error):  # the first one is being raised already
            while any(move.to_copy for move in self._leaving):
                self._traffic.turn()

    def missing(self) -> list[Tile]:
        """List the tiles of C that are not where they belong."""
        there = [not move.to_copy for move in self._leaving]
        results = self._schedule.results
        there += [False] * (len(results) - len(there))
        return [tile for tile, is_there in zip(results, there, strict=True) if not is_there]

    def is_torn(self) -> bool:
        """Tell whether a tile of C that is still to be read holds a part of its result."""
        return self._schedule.problem.reads_c and any(
            0 < move.to_copy < len(move.parts) for move in self._leaving
        )

    def _claim(self) -> bool:
        """Send off the tiles of the next steps, as far as slots are free."""
        happened = False
        claims = self._schedule.claims
        while self._claimed < len(claims):
            name, load = claims[self._claimed]
            if load.before >= 0 and not self._has_left(name, load.before):
                break
            move = None
            if name != "c" or self._schedule.problem.reads_c:
                move = self._move(load.tile, load.slot, home=False)
                self._traffic.start(move)
            self._arriving[name].append(move)
            self._claimed += 1
            happened = True
        return happened

    def _has_left(self, name: Name, load: int) -> bool:
        """Tell whether a tile is not needed in its slot any more."""
        if self._schedule.loads[name][load].last >= self._ended:
            return False
        return name != "c" or not self._leaving[load].to_land

    def _move(self, tile: Tile, slot: int, *, home: bool) -> Move:
        problem, name = self._schedule.problem, tile.operand
        x = getattr(self._call, name)
        x = (x if x.ndim > 2 else x[None])[
            slice(*tile.batch), slice(*tile.rows), slice(*tile.columns)
        ]
        trans = {"a": problem.trans_a, "b": problem.trans_b, "c": False}[name]
        x = x if trans else x.swapaxes(1, 2)
        return Move(self._slots[name][slot], list(parts(x, self._part_bytes)), home=home)

    def _launch(self) -> bool:
        """Launch the next steps, as far as their tiles are on their way."""
        happened = False
        while len(self._launched) < len(self._schedule.steps):
            number = len(self._launched)
            uses = self._schedule.uses[number]
            moves = []
            for name, load in uses.items():
                if load >= len(self._arriving[name]):
                    return happened
                move = self._arriving[name][load]
                if move is not None and move.to_enqueue:
                    return happened
                moves.append(move)
            for name, load in uses.items():
                self._arriving[name][load] = None  # later steps follow this one
            self._enqueue(number, [x.event for x in moves if x is not None and x.event is not None])
            self._queue.flush()
            happened = True
        return happened

    def _enqueue(self, number: int, waits: list[cl.Event]) -> None:
        step, uses = self._schedule.steps[number], self._schedule.uses[number]
        a, b, c = (
            self._slots[name][self._schedule.loads[name][uses[name]].slot] for name in OPERANDS
        )
        gemm = self._schedule.products[number]
        beta = self._call.beta if step.begins else 1.0
        values = (self._call.alpha, beta, a, b, c, NO_OFFSETS)
        self._launched.append(self._runners[gemm].enqueue(values, self._state, waits))

    def _notice_ends(self) -> bool:
        """Bring home the tiles of C whose last steps have ended."""
        happened = False
        while self._ended < len(self._launched) and is_over(self._launched[self._ended]):
            step = self._schedule.steps[self._ended]
            self._ended += 1
            happened = True
            if step.ends:
                load = self._schedule.loads["c"][len(self._leaving)]
                move = self._move(load.tile, load.slot, home=True)
                self._leaving.append(move)
                self._traffic.start(move)
        return happened
