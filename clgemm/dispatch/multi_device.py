"""One product on several devices: each computes the part of C that its rate is worth.

C is cut once along its longest axis, so that each device gets one of the two operands whole and of
the other only what it needs.  Equal devices get equal parts, and devices that work where the
operands lie get theirs in pieces, which the one that is free takes next.  Where the cuts are
depends on the problem and on the rates alone, and what a piece is computed with on the kind of
device: the same devices give the same bits.
"""

from __future__ import annotations

from collections import defaultdict, deque
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clgemm.runtime.interrupt import Stop
from clgemm.streaming.schedule import Span, Tile

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from clgemm.problem import Gemm
    from clgemm.streaming.stream import Arrays

GRAIN = 256  # cuts lie on multiples of this, as kernels like them, if parts are larger than it
LEAST_SHARE = 0.08  # of the work: a device that is worth less only disturbs the others
PIECES = 4  # a device that needs no copies computes its share in so many


class Runner(Protocol):
    """Computes problems of one kind on one device."""

    def run(self, arrays: Arrays) -> None:
        """Compute; C is written where it lies."""


class Member(NamedTuple):
    """A device that takes part."""

    kind: Hashable
    """Equal for devices that compute the same bits."""
    rate: float
    """How fast it is, in any unit."""
    copies: bool
    """Whether operands are copied to it."""
    runner: Callable[[Gemm], Runner]
    """Makes what computes a problem there."""
    name: str = ""
    """For people."""


class Share(NamedTuple):
    """What one kind of device computes."""

    members: tuple[Member, ...]
    tiles: tuple[Tile, ...]


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


def _tiles(g: Gemm, weights: Sequence[float]) -> list[Tile]:
    """Cut C along its longest axis, or a long stack between its matrices, in these proportions."""
    batch, rows, columns = Span(0, g.batch), Span(0, g.m), Span(0, g.n)
    if g.batch >= len(weights):
        return [Tile("c", part, rows, columns) for part in cuts(g.batch, weights, 1)]
    if g.n >= g.m:
        return [Tile("c", batch, rows, part) for part in cuts(g.n, weights, GRAIN)]
    return [Tile("c", batch, part, columns) for part in cuts(g.m, weights, GRAIN)]


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


class Several:
    """How calls of one kind run on several devices.

    Parameters
    ----------
    problem : Gemm
        What is computed.
    members : sequence of Member
        The devices.
    """

    def __init__(self, problem: Gemm, members: Sequence[Member]) -> None:
        self.shares = shares(problem, members)
        self.workers = [
            (share, {shape: member.runner(part) for shape, part in _parts(problem, share).items()})
            for share in self.shares
            for member in share.members[: len(share.tiles)]
        ]
        """A share and what computes its tiles on one device, for each device that takes part."""

    def run(self, arrays: Arrays) -> None:
        """Compute; C is written where it lies, and read only if beta is not 0."""
        waiting = {id(share): deque(share.tiles) for share in self.shares}
        stop = Stop()  # one device failed, or Ctrl-C was heard: the others end early
        arrays = arrays._replace(stop=stop)

        def work(share: Share, runners: dict[tuple[int, ...], Runner]) -> None:
            queue = waiting[id(share)]
            while queue and not stop.is_set():
                try:
                    tile = queue.popleft()
                except IndexError:  # another device took the last one
                    return
                runners[_shape(tile)].run(arrays.part(tile))

        with ThreadPoolExecutor(len(self.workers), "clgemm device") as pool:
            jobs = [pool.submit(work, *worker) for worker in self.workers]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                stop.set()
        errors = [error for error in (job.exception() for job in jobs) if error is not None]
        # What was stopped says nothing of why.
        for error in sorted(errors, key=lambda x: isinstance(x, CancelledError)):
            raise error


def _shape(tile: Tile) -> tuple[int, ...]:
    return tile.batch.size, tile.rows.size, tile.columns.size


def _parts(problem: Gemm, share: Share) -> dict[tuple[int, ...], Gemm]:
    """Describe what computes each of a share's tiles, from operands that lie as the problem's."""
    return {
        _shape(t): problem._replace(m=t.rows.size, n=t.columns.size, batch=t.batch.size)
        for t in share.tiles
    }
