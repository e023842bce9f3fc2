"""One product whose operands are copied: blocks arrive, are multiplied and leave at the same time.

A block sets out as soon as a slot is free, a product is launched as soon as its blocks are on their
way (the device waits for them), and a block of C is fetched when its last product has ended.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING

from clgemm.runtime.host_memory import span_bytes
from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.opencl import cl
from clgemm.runtime.queues import LaunchState
from clgemm.streaming import staging
from clgemm.streaming.copies import BlockCopy, Copies, chunks, has_ended
from clgemm.streaming.schedule import OPERANDS

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.runtime.memory import Lease
    from clgemm.streaming.copy_threads import CopyThreads
    from clgemm.streaming.request import Request
    from clgemm.streaming.schedule import Block, Load, Name, Schedule

CHUNKS = 12  # of all operands: a few for each thread
SMALL_CHUNK = 1 << 19  # bytes; copying less takes no longer than handing it over
MANY_CHUNKS = 400
"""Beyond so many they are larger than usual: all threads of all devices take turns in Python.  A
float64 product of 32768 took two H200s 1.38 s in chunks of 4 MB, and 0.80 in those of 8."""


def chunk_bytes(size: int) -> int:
    """Return how many bytes at most are copied at a time, of so many of all operands."""
    usual = max(SMALL_CHUNK, min(staging.USUAL, size // CHUNKS))
    return min(staging.BYTES, max(usual, size // MANY_CHUNKS))


class StreamedCall:
    """One call, in buffers as its `Schedule.buffers` asks for, and one of scratch memory.

    Runners compute each product in the schedule.
    """

    def __init__(
        self, device: Device, threads: CopyThreads, queues: tuple[cl.CommandQueue, cl.CommandQueue],
        schedule: Schedule, runners: dict[Gemm, KernelRunner], request: Request,
        lease: Lease,
    ) -> None:  # fmt: skip
        self._queue = device.queue
        self._schedule = schedule
        self._runners = runners
        self._call, self._stop, self._write = request
        self._lease = lease
        buffers, names = lease.buffers, [name for name, _ in schedule.buffers]
        self._slots: dict[Name, list[cl.Buffer]] = {
            name: [x for x, its in zip(buffers, names, strict=False) if its == schedule.owner(name)]
            for name in OPERANDS
        }
        scratch = buffers[len(names)] if len(buffers) > len(names) else None
        self._state = LaunchState(device.context, device.queue, scratch, pool=device.scratch)
        self._chunk_bytes = chunk_bytes(schedule.problem.operand_bytes)
        self._copies = Copies(threads, *queues)
        arriving: dict[Name, list[BlockCopy | None]] = {name: [] for name in schedule.copied}
        self._arriving = {name: arriving[schedule.owner(name)] for name in OPERANDS}
        self._leaving: list[BlockCopy] = []
        self._loaded = 0
        self._launched: list[cl.Event] = []
        self._ended = 0
        """How many of the products launched are known to have ended."""

    def run(self) -> None:
        """Compute."""
        self._lease.is_idle = False
        try:
            self._populate()
            while not self._is_done():
                if self._stop is not None and self._stop.is_set():
                    raise CancelledError  # noqa: TRY301 - as whatever else ends the call
                happened = self._notice_ends() | self._load() | self._launch()
                awaited = next(iter(self._launched[self._ended :]), None)
                self._copies.advance(awaited, patient=not happened)
            self._lease.is_idle = True
        except BaseException as error:
            try:
                if is_short_of_memory(error):
                    self._save_results()
            finally:
                # Not if Ctrl-C comes while this waits.
                self._lease.is_idle = self._copies.abandon(self._queue)
            raise
        finally:
            self._copies.close(is_idle=self._lease.is_idle)

    def _populate(self) -> None:
        c = self._call.c
        if not self._schedule.problem.reads_c and c.nbytes == span_bytes(c):
            self._copies.populate(c)

    def _is_done(self) -> bool:
        return self._ended == len(self._schedule.products) and not any(
            copy.to_copy for copy in self._leaving
        )

    def _save_results(self) -> None:
        """Let the blocks of C that are on their way arrive, since others can be computed anew."""
        # The first error is being raised already; staging may want the host's memory, too.
        with suppress(cl.Error, MemoryError):
            while self._copies.only_to_host():
                pass

    def missing(self) -> list[Block]:
        """List the blocks of C that are not where they belong."""
        there = [not copy.to_copy for copy in self._leaving]
        results = self._schedule.results
        there += [False] * (len(results) - len(there))
        return [block for block, is_there in zip(results, there, strict=True) if not is_there]

    def is_torn(self) -> bool:
        """Tell whether a block of C that is still to be read holds a part of its result."""
        return self._schedule.problem.reads_c and any(
            0 < copy.to_copy < len(copy.chunks) for copy in self._leaving
        )

    def _load(self) -> bool:
        """Send the blocks of the next products, as far as slots are free."""
        happened = False
        while self._loaded < len(self._schedule.in_order):
            name, load = self._schedule.in_order[self._loaded]
            if load.before >= 0 and not self._is_free(name, load.before):
                break
            copy = None
            if name != "c" or self._schedule.problem.reads_c:
                copy = self._copy_of(load, to_host=False)
                self._copies.start(copy)
            self._arriving[name].append(copy)
            self._loaded += 1
            happened = True
        return happened

    def _is_free(self, name: Name, load: int) -> bool:
        """Tell whether a block is not needed in its slot any more."""
        if self._schedule.loads[name][load].last >= self._ended:
            return False
        return name != "c" or not self._leaving[load].on_device

    def _copy_of(self, load: Load, *, to_host: bool) -> BlockCopy:
        problem, name = self._schedule.problem, load.block.operand
        x = getattr(self._call, name)
        x = load.block.of(x if x.ndim > 2 else x[None])
        trans = {"a": problem.trans_a, "b": problem.trans_b, "c": False}[name]
        x = x if trans else x.swapaxes(1, 2)
        found = list(chunks(x, self._chunk_bytes))
        slot = self._slots[name][load.slot]
        return BlockCopy(slot, found, to_host=to_host, write=self._write)

    def _launch(self) -> bool:
        """Launch the next products, as far as their blocks are on their way."""
        happened = False
        while len(self._launched) < len(self._schedule.products):
            number = len(self._launched)
            uses = self._schedule.uses[number]
            if any(load >= len(self._arriving[name]) for name, load in uses.items()):
                return happened
            copies = [x for name, i in uses.items() if (x := self._arriving[name][i]) is not None]
            if any(copy.to_enqueue for copy in copies):
                return happened
            for name, load in uses.items():
                self._arriving[name][load] = None  # later products follow this one
            self._enqueue(number, [copy.event for copy in copies if copy.event is not None])
            self._queue.flush()
            happened = True
        return happened

    def _enqueue(self, number: int, waits: list[cl.Event]) -> None:
        schedule, uses = self._schedule, self._schedule.uses[number]
        a, b, c = (self._slots[x][schedule.loads[x][uses[x]].slot] for x in OPERANDS)
        beta = self._call.beta if schedule.products[number].is_first else 1.0
        values = (self._call.alpha, beta, a, b, c, NO_OFFSETS)
        runner = self._runners[schedule.gemms[number]]
        event = runner.enqueue(values, self._state, waits)
        assert event is not None  # noqa: S101 - its end is asked for
        self._launched.append(event)

    def _notice_ends(self) -> bool:
        """Fetch the blocks of C whose last products have ended."""
        happened = False
        while self._ended < len(self._launched) and has_ended(self._launched[self._ended]):
            self._fetch(self._ended)
            self._ended += 1
            happened = True
        return happened

    def _fetch(self, number: int) -> None:
        """Start to copy a product's block of C to the host, if no other product follows on it."""
        if self._schedule.products[number].is_last:
            load = self._schedule.loads["c"][len(self._leaving)]
            self._leaving.append(self._copy_of(load, to_host=True))
            self._copies.start(self._leaving[-1])
