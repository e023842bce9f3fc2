"""How a product is divided into blocks that fit a device and whose copies overlap with kernels.

Numbers only, no device.  C is divided along its rows and columns, the sum along k, a stack along
its matrices; a `BlockProduct` multiplies a block of A by a block of B.  Blocks lie in slots of
device memory, which they take in turn: while a kernel works on one, the next arrives in another.
Where the memory holds all blocks they are resident: rows of A and columns of B then arrive in turn,
and each that arrives is multiplied by all that are there.  Of a Gram product, columns of B are rows
of A, so the blocks of A serve as those of B.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from clgemm.problem import ELEMENTS, GENERAL, INTEGERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clgemm.problem import Call, Gemm

Name = Literal["a", "b", "c"]
OPERANDS: tuple[Name, ...] = ("a", "b", "c")

SLOTS = 3  # one to fill, one to compute on, one to empty

# What a schedule is judged by.  Only proportions matter, and those are alike on today's devices.
UP, DOWN = 50e9, 30e9  # bytes a second on the bus: a fresh result's pages are new to the host
DEVICE = 1.5e12  # bytes a second: what is resident is read again by each product
SINGLE_RATE, DOUBLE_RATE = 150e12, 50e12  # flops a second
LAUNCH = 200e-6  # seconds a product costs the host

COARSE = 256  # a block's sizes are multiples of this where they are larger than twice as much
FINE = 16
MANY = 64  # blocks along an axis that are tried before finer ones
FEW = 12  # the same along two axes of resident blocks: each product packs its operands again


class Span(NamedTuple):
    """A range of indices."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many they are."""
        return self.stop - self.start


class Block(NamedTuple):
    """A part of op(A), op(B) or C."""

    operand: Name
    batch: Span
    rows: Span
    columns: Span

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self.batch.size * self.rows.size * self.columns.size

    def of(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return its elements of a matrix or a stack, as a view."""
        where = slice(*self.batch), slice(*self.rows), slice(*self.columns)
        return x[where[-x.ndim :]]


def call_of(c: Block, call: Call) -> Call:
    """Return the call that computes a block of a call's C."""
    everything = Span(0, call.a.shape[-1])
    a = Block("a", c.batch, c.rows, everything).of(call.a)
    b = Block("b", c.batch, everything, c.columns).of(call.b)
    return call._replace(a=a, b=b, c=c.of(call.c))


class BlockProduct(NamedTuple):
    """C's block := alpha * A's block @ B's block + (beta if first, else 1) * C's block."""

    a: Block
    b: Block
    c: Block
    is_first: bool
    """Whether it is the first one on this block of C."""
    is_last: bool


class Load(NamedTuple):
    """The time that a block lies in a slot, counted in products."""

    block: Block
    slot: int
    first: int
    """The product from which it is needed."""
    last: int
    """The last product that uses it."""
    before: int
    """Which load of the same operand had the slot before, -1 if none."""


class Blocking(NamedTuple):
    """The largest block's sizes, and the order of the blocks."""

    batch: int
    m: int
    n: int
    k: int
    by_columns: bool = False
    """Whether blocks follow each other down the columns of C, not along its rows."""
    is_resident: bool = False
    """Whether each block has a slot of its own; then K is not divided."""

    def counts(self, g: Gemm) -> list[int]:
        """Count a problem's blocks along batch, m, n and k."""
        return [-(-x // size) for x, size in zip((g.batch, g.m, g.n, g.k), self, strict=False)]


@dataclass(frozen=True)
class Schedule:
    """A problem and its blocks."""

    problem: Gemm
    blocking: Blocking
    slots: int = SLOTS
    """Of each operand, unless it has fewer blocks."""

    @cached_property
    def is_shared(self) -> bool:
        """Whether the blocks of A are those of B, too: each is the other's transpose."""
        m, n = self.blocking[1:3]
        return self.problem.triangle != GENERAL and self.blocking.is_resident and m == n

    @cached_property
    def copied(self) -> tuple[Name, ...]:
        """The operands that have blocks of their own."""
        return ("a", "c") if self.is_shared else OPERANDS

    def owner(self, name: Name) -> Name:
        """Return the operand whose blocks serve as those of another one, or its own."""
        return name if name in self.copied else "a"

    @cached_property
    def products(self) -> tuple[BlockProduct, ...]:
        """The products, in the order in which they run."""
        return tuple(self._products())

    def _products(self) -> Iterator[BlockProduct]:
        g, once = self.problem, Span(0, 1)
        for batch in _spans(g.batch, self.blocking.batch):
            of_a = batch if g.batch == 1 or g.stride_a else once
            of_b = batch if g.batch == 1 or g.stride_b else once
            for rows, columns in self._order():
                for depth in _spans(g.k, self.blocking.k):
                    a = Block("a", of_a, rows, depth)
                    yield BlockProduct(
                        a,
                        a._replace(rows=columns)
                        if self.is_shared
                        else Block("b", of_b, depth, columns),
                        Block("c", batch, rows, columns),
                        is_first=depth.start == 0,
                        is_last=depth.stop == g.k,
                    )

    def _order(self) -> Iterator[tuple[Span, Span]]:
        """Yield the rows and columns of each block of C."""
        sizes = self.blocking
        rows, columns = _spans(self.problem.m, sizes.m), _spans(self.problem.n, sizes.n)
        if sizes.is_resident:
            return _as_they_arrive(rows, columns)
        if sizes.by_columns:
            return ((r, c) for c in columns for r in rows)
        return itertools.product(rows, columns)

    @cached_property
    def loads(self) -> dict[Name, tuple[Load, ...]]:
        """The blocks of each operand in the order in which they are needed."""
        found = {name: tuple(self._loads(name)) for name in self.copied}
        return {name: found[self.owner(name)] for name in OPERANDS}

    def _loads(self, name: Name) -> Iterator[Load]:
        visits: list[tuple[Block, list[int]]] = []
        there: dict[Block, list[int]] = {}
        blocks = (
            (number, getattr(product, user))
            for number, product in enumerate(self.products)
            for user in OPERANDS
            if self.owner(user) == name
        )
        for number, block in blocks:
            if not self.blocking.is_resident and visits and visits[-1][0] != block:
                there.clear()
            if block not in there:
                there[block] = []
                visits.append((block, there[block]))
            there[block].append(number)
        slots = self.slots_of(name)
        for i, (block, numbers) in enumerate(visits):
            before = i - slots if i >= slots else -1
            yield Load(block, i % slots, numbers[0], numbers[-1], before)

    @cached_property
    def in_order(self) -> tuple[tuple[Name, Load], ...]:
        """All loads in the order in which they are needed."""
        every = ((name, load) for name in self.copied for load in self.loads[name])
        return tuple(sorted(every, key=lambda x: x[1].first))

    @cached_property
    def uses(self) -> tuple[dict[Name, int], ...]:
        """Which load of each operand a product works on."""
        found: list[dict[Name, int]] = [{} for _ in self.products]
        for name in OPERANDS:
            for i, load in enumerate(self.loads[name]):
                for number in range(load.first, load.last + 1):
                    if getattr(self.products[number], name) == load.block:
                        found[number][name] = i
        return tuple(found)

    @property
    def results(self) -> list[Block]:
        """The blocks of C."""
        return [load.block for load in self.loads["c"]]

    def slots_of(self, name: Name) -> int:
        """Count the slots of an operand."""
        visits = self.visits[name]
        return visits if self.blocking.is_resident else min(self.slots, visits)

    @cached_property
    def buffers(self) -> list[tuple[Name, int]]:
        """The slots: whose each one is, and its bytes."""
        itemsize = ELEMENTS[self.problem.precision].itemsize
        return [
            (name, self.sizes[name] * itemsize)
            for name in self.copied
            for _ in range(self.slots_of(name))
        ]

    @cached_property
    def sizes(self) -> dict[Name, int]:
        """Elements of the largest block of each operand that has its own."""
        g, (batch, m, n, k, *_) = self.problem, self.blocking
        return {
            "a": m * k * (batch if g.stride_a else 1),
            "b": 0 if self.is_shared else k * n * (batch if g.stride_b else 1),
            "c": m * n * batch,
        }

    @cached_property
    def visits(self) -> dict[Name, int]:
        """How many loads each operand has of its own."""
        g, (stacks, m, n, k) = self.problem, self.blocking.counts(self.problem)
        if self.blocking.is_resident:
            a, b = m, n
        else:  # a block stays as long as the products that follow each other need it
            outer, inner = (n, m) if self.blocking.by_columns else (m, n)
            of_outer = outer * (inner if k > 1 else 1) * k
            of_inner = (outer if inner * k > 1 else 1) * inner * k
            a, b = (of_inner, of_outer) if self.blocking.by_columns else (of_outer, of_inner)
        once = 1 if self.blocking.is_resident else stacks
        return {
            "a": a * (stacks if g.stride_a else once if a > 1 else 1),
            "b": 0 if self.is_shared else b * (stacks if g.stride_b else once if b > 1 else 1),
            "c": stacks * m * n,
        }

    @cached_property
    def gemms(self) -> tuple[Gemm, ...]:
        """What each product computes, with blocks that lie in their slots without gaps."""
        g, found = self.problem, []
        for product in self.products:
            batch, rows, columns = (span.size for span in product.c[1:])
            found.append(g.block(batch, rows, columns, product.a.columns.size)._replace(
                stride_a=g.stride_a * (batch > 1), stride_b=g.stride_b * (batch > 1),
                reads_c=g.reads_c or not product.is_first, offset_a=0, offset_b=0, offset_c=0,
            ).dense())  # fmt: skip
        return tuple(found)

    @cached_property
    def seconds(self) -> float:
        """Estimate how long it takes: the slowest of copies there, kernels and copies back.

        Each of the three starts with the first block that reaches it and is followed by the last.
        Where blocks are resident, what arrives last is multiplied by all of the axis with fewer.
        """
        g, sizes, visits = self.problem, self.sizes, self.visits
        precision = ELEMENTS[g.precision]
        itemsize, rate = precision.itemsize, DOUBLE_RATE if precision.is_double else SINGLE_RATE
        count = prod(self.blocking.counts(g))
        ups = [name for name in self.copied if name != "c" or g.reads_c]
        first = sum(sizes[name] for name in ups) * itemsize / UP
        every = sum(sizes[name] * visits[name] for name in ups) * itemsize / UP
        half = 2 if g.triangle and count == 1 else 1
        one = g.flops / count / rate / half + LAUNCH + sum(sizes.values()) * itemsize / DEVICE
        last = sizes["c"] * itemsize / DOWN
        if self.slots == 1:  # nothing overlaps
            return every + count * one + visits["c"] * last
        is_grid = self.blocking.is_resident and g.batch == 1
        behind = one * (min(visits[self.owner(x)] for x in ("a", "b")) if is_grid else 1)
        return max(
            every + behind + last, first + count * one + last, first + one + visits["c"] * last
        )


def _spans(size: int, step: int) -> list[Span]:
    return [Span(i, min(i + step, size)) for i in range(0, size, step)]


def _as_they_arrive(rows: list[Span], columns: list[Span]) -> Iterator[tuple[Span, Span]]:
    """Pair rows and columns that arrive in turn, equal shares of both: each with all before it."""
    arrivals = [(i / len(rows), 0, x) for i, x in enumerate(rows)]
    arrivals += [(i / len(columns), 1, x) for i, x in enumerate(columns)]
    there: tuple[list[Span], list[Span]] = [], []
    for _, which, span in sorted(arrivals):
        there[which].append(span)
        for other in there[1 - which]:
            yield (other, span) if which else (span, other)


def plan(
    problem: Gemm, room: int, largest: int, scratch: Callable[[Gemm], int], *, whole: bool = False
) -> Schedule | None:
    """Divide a problem so that it fits and is done soonest.

    Parameters
    ----------
    problem : Gemm
        The problem; how its operands lie on the host is of no matter.
    room : int
        Bytes of device memory for blocks and scratch together.
    largest : int
        Bytes of the largest single allocation.
    scratch : callable
        Gives the scratch bytes that a product needs.
    whole : bool
        Whether it had better not be divided if it fits.

    Returns
    -------
    Schedule or None
        None if not even the smallest blocks fit.
    """

    def fits(schedule: Schedule, scratch_bytes: int) -> bool:
        sizes = [*(size for _, size in schedule.buffers), scratch_bytes]
        return max(sizes) <= largest and sum(sizes) <= room

    kinds = _each_once(problem), _many(problem, _counts), _many(problem, _powers)
    for candidates in ([undivided(problem)] * whole, *kinds):
        fitting = [x for x in candidates if fits(x, 0)]
        for schedule in sorted(fitting, key=lambda x: x.seconds):
            if fits(schedule, max(scratch(g) for g in dict.fromkeys(schedule.gemms))):
                return schedule
    return None


def undivided(g: Gemm) -> Schedule:
    """Return the schedule of a single product."""
    return Schedule(g, Blocking(g.batch, g.m, g.n, g.k, is_resident=True))


def _each_once(g: Gemm) -> Iterator[Schedule]:
    """Yield schedules that copy every element to the device once."""
    for count, is_resident in itertools.product(_counts(g.batch), (True, False)):
        batch = -(-g.batch // count)
        yield Schedule(g, Blocking(batch, g.m, g.n, g.k, is_resident=is_resident))
    if g.batch == 1:
        rows, columns = ([x for x in _counts(size) if x <= FEW] for size in (g.m, g.n))
        for m, n in itertools.product(rows, columns):
            sizes = _block_size(g.m, m), _block_size(g.n, n)
            yield Schedule(g, Blocking(1, *sizes, g.k, is_resident=True))
        for count in _counts(g.n):
            yield Schedule(g, Blocking(1, g.m, _block_size(g.n, count), g.k))
        for count in _counts(g.m):
            yield Schedule(g, Blocking(1, _block_size(g.m, count), g.n, g.k))


def _many(g: Gemm, counts: Callable[[int], list[int]]) -> Iterator[Schedule]:
    """Yield schedules with blocks along all axes, for what is larger than the device.

    Kernels add to no C of integers: there k is whole.
    """
    sizes = [
        dict.fromkeys(_block_size(size, count) for count in counts(size))
        for size in (g.m, g.n, g.k)
    ]
    if g.precision in INTEGERS:
        sizes[2] = {g.k: None}
    for m, n, k in itertools.product(*sizes):
        for by_columns, slots in itertools.product((False, True), (2, 1)):
            yield Schedule(g, Blocking(1, m, n, k, by_columns), slots)


def _powers(size: int) -> list[int]:
    return [2**i for i in range(size.bit_length())]


def _counts(size: int) -> list[int]:
    """List how many blocks along an axis to try."""
    counts = [count for x in _powers(size) for count in dict.fromkeys((x, x + x // 2))]
    return [x for x in counts if x <= min(size, MANY)]


def _block_size(size: int, count: int) -> int:
    """Return the size of so many blocks along an axis, rounded to what kernels like."""
    block = -(-size // count)
    step = COARSE if block > 2 * COARSE else FINE
    return min(size, -(-block // step) * step)
