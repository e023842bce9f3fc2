"""How one gemm is cut into blocks that fit a device and whose copies overlap with kernels.

Numbers only, no device.  C is cut along its rows and columns, the sum along k, a stack along its
matrices; a `Tile` is what one operand brings to a `Step`, one product of tiles.  Tiles live in
slots of device memory, which they take in turn: while a kernel works on one, the next tile arrives
in another.  Where the memory holds all tiles they stay: rows of A and columns of B then arrive in
turn, and each one that arrives is multiplied by all that are there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm

OPERANDS: tuple[Name, ...] = ("a", "b", "c")
Name = Literal["a", "b", "c"]

SLOTS = 3  # one to fill, one to compute on, one to empty


class Span(NamedTuple):
    """A range of indices."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many they are."""
        return self.stop - self.start


class Tile(NamedTuple):
    """A part of op(A), op(B) or C."""

    operand: Name
    batch: Span
    rows: Span
    columns: Span

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self.batch.size * self.rows.size * self.columns.size


class Step(NamedTuple):
    """C's tile := alpha * A's tile @ B's tile + (beta if it begins, else 1) * C's tile."""

    a: Tile
    b: Tile
    c: Tile
    begins: bool
    """Whether it is the first one on this tile of C."""
    ends: bool
    """Whether it is the last one."""


class Load(NamedTuple):
    """A tile's stay in a slot."""

    tile: Tile
    slot: int
    first: int
    """The step from which it is needed."""
    last: int
    """The last step that uses it."""
    before: int
    """Which load of the same operand had the slot before, -1 if none."""


class Cut(NamedTuple):
    """The largest block's sizes, and the order of the blocks."""

    batch: int
    m: int
    n: int
    k: int
    by_columns: bool = False
    """Whether blocks follow each other down the columns of C, not along its rows."""
    stays: bool = False
    """Whether each tile has a slot of its own; then K is not cut."""


@dataclass(frozen=True)
class Schedule:
    """A problem and its blocks."""

    problem: Gemm
    cut: Cut
    slots: int = SLOTS
    """Of each operand, unless it has fewer tiles."""

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The products, in the order in which they run."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[Step]:
        g, cut = self.problem, self.cut
        once = Span(0, 1)
        for batch in _spans(g.batch, cut.batch):
            of_a = batch if g.batch == 1 or g.stride_a else once
            of_b = batch if g.batch == 1 or g.stride_b else once
            for rows, columns in self._blocks():
                for depth in _spans(g.k, cut.k):
                    yield Step(
                        Tile("a", of_a, rows, depth),
                        Tile("b", of_b, depth, columns),
                        Tile("c", batch, rows, columns),
                        begins=depth.start == 0,
                        ends=depth.stop == g.k,
                    )

    def _blocks(self) -> Iterator[tuple[Span, Span]]:
        rows, columns = _spans(self.problem.m, self.cut.m), _spans(self.problem.n, self.cut.n)
        if self.cut.stays:
            return _as_they_arrive(rows, columns)
        if self.cut.by_columns:
            return ((r, c) for c in columns for r in rows)
        return itertools.product(rows, columns)

    @cached_property
    def loads(self) -> dict[Name, tuple[Load, ...]]:
        """The tiles of each operand in the order in which they are needed."""
        return {name: tuple(self._loads(name)) for name in OPERANDS}

    def _loads(self, name: Name) -> Iterator[Load]:
        visits: list[tuple[Tile, list[int]]] = []
        there: dict[Tile, list[int]] = {}
        for number, step in enumerate(self.steps):
            tile = getattr(step, name)
            if not self.cut.stays and visits and visits[-1][0] != tile:
                there.clear()
            if tile not in there:
                there[tile] = []
                visits.append((tile, there[tile]))
            there[tile].append(number)
        slots = self.slots_of(name)
        for i, (tile, numbers) in enumerate(visits):
            before = i - slots if i >= slots else -1
            yield Load(tile, i % slots, numbers[0], numbers[-1], before)

    @cached_property
    def claims(self) -> tuple[tuple[Name, Load], ...]:
        """All loads in the order in which they are needed."""
        every = ((name, load) for name in OPERANDS for load in self.loads[name])
        return tuple(sorted(every, key=lambda x: x[1].first))

    @cached_property
    def uses(self) -> tuple[dict[Name, int], ...]:
        """Which load of each operand a step works on."""
        found: list[dict[Name, int]] = [{} for _ in self.steps]
        for name in OPERANDS:
            for i, load in enumerate(self.loads[name]):
                for step in range(load.first, load.last + 1):
                    if getattr(self.steps[step], name) == load.tile:
                        found[step][name] = i
        return tuple(found)

    @property
    def results(self) -> list[Tile]:
        """The tiles of C."""
        return [load.tile for load in self.loads["c"]]

    def slots_of(self, name: Name) -> int:
        """Count the slots of an operand."""
        return self.visits[name] if self.cut.stays else min(self.slots, self.visits[name])

    @cached_property
    def buffers(self) -> list[tuple[Name, int]]:
        """The slots: whose each one is, and its bytes."""
        itemsize = PRECISIONS[self.problem.precision].itemsize
        return [
            (name, self.sizes[name] * itemsize)
            for name in OPERANDS
            for _ in range(self.slots_of(name))
        ]

    @cached_property
    def sizes(self) -> dict[Name, int]:
        """Elements of the largest tile of each operand."""
        g, cut = self.problem, self.cut
        return {
            "a": cut.m * cut.k * (cut.batch if g.stride_a else 1),
            "b": cut.k * cut.n * (cut.batch if g.stride_b else 1),
            "c": cut.m * cut.n * cut.batch,
        }

    @cached_property
    def visits(self) -> dict[Name, int]:
        """How often a tile of each operand begins its stay in a slot."""
        g, cut = self.problem, self.cut
        stacks, m, n, k = (
            -(-size // part) for size, part in zip((g.batch, g.m, g.n, g.k), cut, strict=False)
        )
        if cut.stays:
            return {
                "a": m * (stacks if g.stride_a else 1),
                "b": n * (stacks if g.stride_b else 1),
                "c": stacks * m * n,
            }
        # A tile stays as long as the steps that follow each other need it.
        outer, inner = (n, m) if cut.by_columns else (m, n)
        of_outer = outer * (inner if k > 1 else 1) * k
        of_inner = (outer if inner * k > 1 else 1) * inner * k
        a, b = (of_inner, of_outer) if cut.by_columns else (of_outer, of_inner)
        return {
            "a": a * stacks if g.stride_a or a > 1 else 1,
            "b": b * stacks if g.stride_b or b > 1 else 1,
            "c": stacks * m * n,
        }

    def gemm(self, step: Step) -> Gemm:
        """Describe a step's product, with tiles that lie in their slots without gaps."""
        batch, g = step.c.batch.size, self.problem
        stacked = batch > 1
        return g._replace(
            m=step.c.rows.size, n=step.c.columns.size, k=step.a.columns.size, batch=batch,
            stride_a=g.stride_a if stacked else 0, stride_b=g.stride_b if stacked else 0,
            reads_c=g.reads_c or not step.begins, offset_a=0, offset_b=0, offset_c=0,
        ).dense()  # fmt: skip

    @cached_property
    def products(self) -> tuple[Gemm, ...]:
        """What each step computes."""
        return tuple(self.gemm(step) for step in self.steps)

    @cached_property
    def gemms(self) -> list[Gemm]:
        """The few different products there are."""
        return list(dict.fromkeys(self.products))


def _spans(size: int, part: int) -> list[Span]:
    return [Span(i, min(i + part, size)) for i in range(0, size, part)]


def _as_they_arrive(rows: list[Span], columns: list[Span]) -> Iterator[tuple[Span, Span]]:
    """Pair rows and columns that arrive in turn, equal parts of both: each with all before it."""
    arrivals = [(i / len(rows), 0, x) for i, x in enumerate(rows)]
    arrivals += [(i / len(columns), 1, x) for i, x in enumerate(columns)]
    there: tuple[list[Span], list[Span]] = [], []
    for _, which, span in sorted(arrivals):
        there[which].append(span)
        for other in there[1 - which]:
            yield (other, span) if which else (span, other)
