"""One product on several devices: each computes the part of C that its rate is worth.

C is cut once along its longest axis, so that each device gets one of the two operands whole and of
the other only what it needs.  Equal devices get equal parts, and devices that work where the
operands lie get theirs in pieces, which the one that is free takes next.  Where the cuts are
depends on the problem and on the rates alone, and what a piece is computed with on the kind of
device: the same devices give the same bits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from concurrent.futures import CancelledError
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clgemm.dispatch.times import overlapped
from clgemm.problem import PRECISIONS
from clgemm.runtime.interrupt import Stop
from clgemm.runtime.opencl_errors import translated_errors
from clgemm.runtime.parts import Parts
from clgemm.runtime.reentry import entry
from clgemm.runtime.runner import Work
from clgemm.streaming.schedule import Block, Span, call_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from clgemm.dispatch.break_even import BreakEvens
    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.runner import Runner

LEAST_SECONDS = 2e-3  # on the fastest device: to share less costs more than it saves
LEAST_FLOPS = 2 * 1024**3  # the same where nothing was measured
GRAIN = 256  # cuts lie on multiples of this, as kernels like them, if parts are larger than it
HOST_RATE = 50e9  # bytes a second that the cores of a host with several GPUs copy, pinned to pinned
LEAST_WORK = 1.05
"""Seconds predicted for the kernels on one device, over those of the host's copies for all of them.
Below it one device alone is as fast: two H200s had .75 of its rate at .9, 1.23 at 1.1, and 1.73 at
1.8."""
COPIES_EXPOSED = 0.25
"""Of the shorter one of kernels and these copies, that is not hidden by the other: two H200s took
.80 s where .61 and .69 were predicted, .29 where .15 and .27, and .41 where .33 and .34."""
LEAST_SHARE = 0.08  # of the work: a device that is worth less only disturbs the others
PIECES = 4  # a device that needs no copies computes its share in so many


class Member(NamedTuple):
    """A device that takes part."""

    kind: Hashable
    """Equal for devices that compute the same bits."""
    rate: float
    """How fast it is, in any unit."""
    copies: bool
    """Whether operands are copied to it."""
    make: Callable[[Gemm], Runner]
    """Makes what computes a problem there."""
    name: str = ""
    """For people."""


class Share(NamedTuple):
    """What one kind of device computes."""

    members: tuple[Member, ...]
    tiles: tuple[Block, ...]


def shares(problem: Gemm, members: Sequence[Member]) -> tuple[Share, ...]:
    """Divide a problem among devices.

    Parameters
    ----------
    problem : Gemm
        The problem.
    members : sequence of Member
        The devices; those that are too slow to be of help get nothing.

    Returns
    -------
    tuple of Share
        Their tiles cover C once.
    """
    total = sum(m.rate for m in members)
    useful = [m for m in members if m.rate >= LEAST_SHARE * total]
    kinds: defaultdict[Hashable, list[Member]] = defaultdict(list)
    for member in useful:
        kinds[member.kind].append(member)
    weights: list[float] = []
    counts = []
    for group in kinds.values():
        count = len(group) * (1 if group[0].copies else PIECES)
        weights += [group[0].rate * len(group) / count] * count
        counts.append(count)
    tiles = iter(_tiles(problem, weights))
    return tuple(
        Share(tuple(group), tuple(t for t in (next(tiles) for _ in range(count)) if t.size))
        for group, count in zip(kinds.values(), counts, strict=True)
    )


def _tiles(g: Gemm, weights: Sequence[float]) -> list[Block]:
    """Cut C along its longest axis, or a long stack between its matrices, in these proportions."""
    batch, rows, columns = Span(0, g.batch), Span(0, g.m), Span(0, g.n)
    if g.batch >= len(weights):
        return [Block("c", part, rows, columns) for part in cuts(g.batch, weights, 1)]
    if g.n >= g.m:
        return [Block("c", batch, rows, part) for part in cuts(g.n, weights, GRAIN)]
    return [Block("c", batch, part, columns) for part in cuts(g.m, weights, GRAIN)]


def cuts(size: int, weights: Sequence[float], grain: int) -> list[Span]:
    """Cut an axis in proportions; parts may be empty.

    Examples
    --------
    >>> [part.size for part in cuts(4096, [1, 1, 2], 256)]
    [1024, 1024, 2048]
    >>> [part.size for part in cuts(1000, [1, 1], 256)]
    [512, 488]
    """
    total, before, start, found = sum(weights), 0.0, 0, []
    for weight in weights:
        before += weight
        stop = min(size, round(size * before / total / grain) * grain)
        found.append(Span(start, stop))
        start = stop
    found[-1] = Span(found[-1].start, size)
    return found


class MultiDeviceRunner:
    """Computes calls of one kind on several devices.

    Parameters
    ----------
    problem : Gemm
        What is computed.
    members : sequence of Member
        The devices.
    seconds : float, optional
        What it will take, as far as that is predicted.
    """

    def __init__(
        self, problem: Gemm, members: Sequence[Member], seconds: float | None = None
    ) -> None:
        self.seconds = seconds
        self.shares = shares(problem, members)
        self.workers = [
            (share, member, {shape: member.make(g) for shape, g in _parts(problem, share).items()})
            for share in self.shares
            for member in share.members[: len(share.tiles)]
        ]
        """A share, a device, and what computes the share's tiles there."""

    def work(self) -> Work:
        """Say what a call does."""
        sizes = [sum(tile.size for tile in share.tiles) for share in self.shares]
        names = [" and ".join(m.name for m in share.members) for share in self.shares]
        parts = zip(names, sizes, strict=True)
        return Work(shares=tuple((name, size / sum(sizes)) for name, size in parts))

    def run(self, call: Call, stop: Stop | None = None) -> None:
        """Compute; see `Runner.run`."""
        del stop
        waiting = {id(share): deque(share.tiles) for share in self.shares}
        stop = Stop()  # one device failed, or Ctrl-C was heard: the others end early

        @entry()
        def work(share: Share, member: Member, runners: dict[tuple[int, int, int], Runner]) -> None:
            queue = waiting[id(share)]
            while queue and not stop.is_set():
                try:
                    tile = queue.popleft()
                except IndexError:  # another device took the last one
                    return
                with translated_errors(f"gemm on {member.name}"):
                    runners[_shape(tile)].run(call_of(tile, call), stop)

        with Parts("clgemm device") as parts:
            try:
                for worker in self.workers:
                    parts.start(partial(copy_context().run, work, *worker))  # in these modes
                parts.wait()
            finally:
                stop.set()
        # What was stopped says nothing of why.
        for error in sorted(parts.errors(), key=lambda x: isinstance(x, CancelledError)):
            raise error


def _shape(tile: Block) -> tuple[int, int, int]:
    return tile.batch.size, tile.rows.size, tile.columns.size


def _parts(problem: Gemm, share: Share) -> dict[tuple[int, int, int], Gemm]:
    """Describe what computes each of a share's tiles, from operands that lie as the problem's."""
    return {_shape(t): problem.block(*_shape(t), problem.k) for t in share.tiles}


class Candidate(Protocol):
    """A device that might take part, as far as it matters here: see `engine.Engine`."""

    device: Device
    break_evens: BreakEvens

    def runner(self, problem: Gemm) -> Runner:
        """Make what computes a problem there."""
        ...

    def kernel_seconds(self, problem: Gemm) -> float | None:
        """Predict the kernels of a problem; None where nothing is known of them."""
        ...


def runner(candidates: Sequence[Candidate], problem: Gemm) -> MultiDeviceRunner | None:
    """Share a problem among devices, if that pays.

    Parameters
    ----------
    candidates : sequence of Candidate
        The devices; those without the problem's precision are left out.
    problem : Gemm
        The problem, as its operands lie in the host's memory.
    """
    precision = PRECISIONS[problem.precision]
    able = [x for x in candidates if x.device.traits.has(precision)]
    copied = _copied(able, problem)
    if copied is not None and copied.kernels < LEAST_WORK * copied.copies:
        return None
    found = [x.break_evens.known(precision) for x in able]
    seconds = [x.device_seconds(problem) for x in found if x is not None]
    if len(seconds) == len(able):
        if min(seconds) < LEAST_SECONDS:
            return None
        rates = {_kind(x): 1 / t for x, t in zip(able, seconds, strict=True)}
    elif problem.flops < LEAST_FLOPS:
        return None
    else:
        rates = {_kind(x): _guessed_rate(x.device) for x in able}
    members = [
        Member(
            _kind(x), rates[_kind(x)], not x.device.traits.unified_memory, x.runner, str(x.device)
        )
        for x in able
    ]
    predicted = None
    if copied is not None and copied.devices == len(able):
        predicted = copied.seconds
    shared = MultiDeviceRunner(problem, members, predicted)
    return shared if len(shared.workers) > 1 else None


class _Copied(NamedTuple):
    """What a product takes that is copied to several devices."""

    kernels: float
    """Seconds on the fastest one alone."""
    copies: float
    """Seconds of the copies in the host's memory, for all of them."""
    devices: int

    @property
    def seconds(self) -> float:
        """Estimate it on equal devices."""
        return overlapped(self.copies, self.kernels / self.devices, COPIES_EXPOSED)


def copying(candidates: Sequence[Candidate]) -> list[Candidate]:
    """List the devices with a memory of their own."""
    return [x for x in candidates if not x.device.traits.unified_memory]


def _copied(candidates: Sequence[Candidate], problem: Gemm) -> _Copied | None:
    """Estimate a product that is copied to several devices; None if it is not.

    Each of them gets one operand whole, by way of the host's memory, in which all of them meet.
    """
    own = copying(candidates)
    if len(own) < 2:
        return None
    g, itemsize = problem, PRECISIONS[problem.precision].itemsize
    whole, divided = (g.m, g.n) if g.n >= g.m else (g.n, g.m)
    elements = g.batch * (len(own) * whole * g.k + divided * g.k + g.m * g.n)
    known = (x.kernel_seconds(problem) for x in own)
    kernels = min((t for t in known if t is not None), default=0.0)
    return _Copied(kernels, elements * itemsize / HOST_RATE, len(own))


def _kind(candidate: Candidate) -> str:
    return candidate.device.traits.fingerprint()


def _guessed_rate(device: Device) -> float:
    traits = device.traits
    return float(traits.compute_units * traits.simd_bytes * (traits.clock_mhz or 1000))
