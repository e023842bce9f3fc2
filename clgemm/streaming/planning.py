"""Which cut of a problem fits the device and is done soonest: see slices.py."""

from __future__ import annotations

import itertools
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from clgemm.problem import PRECISIONS
from clgemm.streaming.schedule import OPERANDS, Cut, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clgemm.problem import Gemm

# What a cut is judged by.  Only proportions matter, and those are alike on today's devices.
UP, DOWN = 50e9, 30e9  # bytes a second on the bus: a fresh result's pages are new to the host
DEVICE = 1.5e12  # bytes a second: what stays on the device is read again by each step
RATE = MappingProxyType({"s": 150e12, "d": 50e12, "c": 150e12, "z": 50e12})  # flops a second
LAUNCH = 200e-6  # seconds a step costs the host, and cuts parts smaller

COARSE = 256  # a block's sizes are multiples of this where they are larger than twice as much
FINE = 16
MANY = 64  # parts of an axis that are tried before finer ones
FEW = 12  # the same where two axes are cut and all stays: every step packs its operands again


def plan(problem: Gemm, room: int, largest: int, scratch: Callable[[Gemm], int]) -> Schedule | None:
    """Cut a problem so that it fits and is done soonest.

    Parameters
    ----------
    problem : Gemm
        The problem; how its operands lie on the host is of no matter.
    room : int
        Bytes of device memory for tiles and scratch together.
    largest : int
        Bytes of the largest single allocation.
    scratch : callable
        Gives the scratch bytes that a product needs.

    Returns
    -------
    Schedule or None
        None if not even the smallest blocks fit.
    """
    for candidates in (_whole(problem), _blocks(problem, _counts), _blocks(problem, _powers)):
        fitting = [x for x in candidates if _fits(x, room, largest)]
        for schedule in sorted(fitting, key=_seconds):
            needed = max(scratch(g) for g in schedule.gemms)
            if needed <= largest and _tile_bytes(schedule) + needed <= room:
                return schedule
    return None


def _whole(problem: Gemm) -> Iterator[Schedule]:
    """Yield cuts that bring every element to the device once: all stays, or all but one axis."""
    g = problem
    for parts, stays in itertools.product(_counts(g.batch), (True, False)):
        yield Schedule(g, Cut(-(-g.batch // parts), g.m, g.n, g.k, stays=stays))
    if g.batch == 1:
        rows, columns = ([p for p in _counts(x) if p <= FEW] for x in (g.m, g.n))
        for m, n in itertools.product(rows, columns):
            yield Schedule(g, Cut(1, _part(g.m, m), _part(g.n, n), g.k, stays=True))
        for parts in _counts(g.n):
            yield Schedule(g, Cut(1, g.m, _part(g.n, parts), g.k))
        for parts in _counts(g.m):
            yield Schedule(g, Cut(1, _part(g.m, parts), g.n, g.k))


def _blocks(problem: Gemm, counts: Callable[[int], list[int]]) -> Iterator[Schedule]:
    """Yield cuts along all axes, for what is larger than the device."""
    sizes = (
        dict.fromkeys(_part(size, parts) for parts in counts(size))
        for size in (problem.m, problem.n, problem.k)
    )
    for m, n, k in itertools.product(*sizes):
        for by_columns, slots in itertools.product((False, True), (2, 1)):
            yield Schedule(problem, Cut(1, m, n, k, by_columns), slots)


def _powers(size: int) -> list[int]:
    return [2**i for i in range(size.bit_length())]


def _counts(size: int) -> list[int]:
    """List in how many parts to try to cut an axis."""
    parts = [p for x in _powers(size) for p in dict.fromkeys((x, x + x // 2))]
    return [p for p in parts if p <= min(size, MANY)]


def _part(size: int, parts: int) -> int:
    """Give the size of a part, rounded to what kernels like."""
    part = -(-size // parts)
    step = COARSE if part > 2 * COARSE else FINE
    return min(size, -(-part // step) * step)


def _tile_bytes(schedule: Schedule) -> int:
    return sum(size for _, size in schedule.buffers)


def _fits(schedule: Schedule, room: int, largest: int) -> bool:
    return max(size for _, size in schedule.buffers) <= largest and _tile_bytes(schedule) <= room


def _seconds(schedule: Schedule) -> float:
    """Estimate how long a schedule takes: the slowest of way in, kernels and way home.

    Each of the three starts with the first tile that reaches it and is followed by the last.  Where
    tiles stay, what arrives last is multiplied by all the tiles of the axis with fewer.
    """
    g, cut, tiles, visits = schedule.problem, schedule.cut, schedule.sizes, schedule.visits
    itemsize = PRECISIONS[g.precision].itemsize
    steps = prod(
        -(-size // part) for size, part in zip((g.batch, g.m, g.n, g.k), cut, strict=False)
    )
    ups = [name for name in OPERANDS if name != "c" or g.reads_c]
    first = sum(tiles[name] for name in ups) * itemsize / UP
    every = sum(tiles[name] * visits[name] for name in ups) * itemsize / UP
    step = g.flops / steps / RATE[g.precision] + LAUNCH + sum(tiles.values()) * itemsize / DEVICE
    last = tiles["c"] * itemsize / DOWN
    behind = step * (min(visits["a"], visits["b"]) if cut.stays and g.batch == 1 else 1)
    if schedule.slots == 1:  # nothing overlaps
        return every + steps * step + visits["c"] * last
    return max(
        every + behind + last, first + steps * step + last, first + step + visits["c"] * last
    )
