"""Draws products that nobody tuned for: shapes, memory orders and transposed views, from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from clgemm.problem import PRECISIONS

KINDS = ("plain", "thin", "stacks", "gram")
EXTENTS = {"plain": (1, 4096), "thin": (1, 4096), "stacks": (2, 128), "gram": (1, 4096)}
FLOPS = (1e4, 8e9)
THIN = (1, 48)  # of the extents that make a product thin
SINGLE = 1 / 3  # of those: exactly 1
BATCH = (2, 10_000)
MOST_BYTES = 1 << 29  # of both operands and the result: nobody's machine is to swap
TRIES = 100_000  # before a shape is given up

Extents = tuple[int, int]


class Bounds(NamedTuple):
    """What a shape must keep."""

    extents: Extents
    """Least and largest m, n and k; thin ones have bounds of their own."""
    flops: tuple[float, float] = FLOPS
    """Least and most operations of the whole product."""


@dataclass(frozen=True)
class Drawn:
    """A product: its sizes, and how its operands lie in memory."""

    code: str
    m: int
    n: int
    k: int
    ops: str = "NN"
    """Of a and b: N as stored, T stored transposed, C the same conjugated."""
    orders: str = "CC"
    """Memory order, C or F, of a and b as they are stored."""
    batch: int = 1
    shared: str = ""
    """The operand, a or b, that all products of a stack have in common."""
    vectors: str = ""
    """Operands of one axis."""
    gram: bool = False
    """Whether a and b are the same memory."""

    @property
    def flops(self) -> int:
        """Operations of the whole product."""
        return 2 * self.m * self.n * self.k * self.batch * PRECISIONS[self.code].multiplications

    @property
    def smallest(self) -> int:
        """The smallest extent."""
        return min(self.m, self.n, self.k)

    @property
    def nbytes(self) -> int:
        """Memory of the operands and the result, as if none were shared."""
        each = self.m * self.k + self.k * self.n + self.m * self.n
        return each * self.batch * PRECISIONS[self.code].itemsize

    @property
    def label(self) -> str:
        """Name in the tables."""
        stack = f"{self.batch}*" if self.batch > 1 else ""
        more = [f"{name} shared" for name in self.shared] + [f"{x} 1-D" for x in self.vectors]
        more += ["gram"] * self.gram
        size = f"{self.code} {stack}{self.m}x{self.n}x{self.k}"
        return " ".join((size, self.ops, self.orders, *more))


def draw(kind: str, face: str, code: str, count: int, seed: int, bounds: Bounds) -> list[Drawn]:
    """Draw products of one precision; what is drawn does not depend on the other precisions.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    face : str
        "gemm" also conjugates complex operands, and has no operands of one axis.
    code : str
        BLAS letter.
    count, seed : int
        How many, and which ones.
    bounds : Bounds
        What all of them keep.

    Raises
    ------
    ValueError
        If no shape keeps the bounds.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), list(PRECISIONS).index(code)])
    return [_one(rng, kind, face, code, bounds) for _ in range(count)]


def _one(rng: np.random.Generator, kind: str, face: str, code: str, bounds: Bounds) -> Drawn:
    least, most = bounds.flops
    for _ in range(TRIES):
        found = _candidate(rng, kind, face, code, bounds.extents)
        if least <= found.flops <= most and found.nbytes <= MOST_BYTES:
            return found
    raise ValueError(
        f"no {kind} shape with extents in {bounds.extents} has {least:g} to {most:g} operations"
    )


def _candidate(
    rng: np.random.Generator, kind: str, face: str, code: str, extents: Extents
) -> Drawn:
    m, n, k = (log_uniform(rng, extents) for _ in range(3))
    orders = "".join(rng.choice(list("CF"), 2))
    is_complex = PRECISIONS[code].is_complex
    if kind == "gram":
        ops = str(rng.choice(["TN", "NT", "CN", "NC"] if is_complex else ["TN", "NT"]))
        return Drawn(code, m, m, k, ops, orders[0] * 2, gram=True)
    letters = list("NTC" if is_complex and face == "gemm" else "NT")
    found = Drawn(code, m, n, k, "".join(rng.choice(letters, 2)), orders)
    if kind == "thin":
        return _thin(rng, face, found)
    if kind == "stacks":
        shared = str(rng.choice(["", "", "a", "b"]))
        return Drawn(code, m, n, k, found.ops, orders, log_uniform(rng, BATCH), shared)
    return found


def _thin(rng: np.random.Generator, face: str, drawn: Drawn) -> Drawn:
    """Make one or two extents small, some of them 1, and some of those operands vectors."""
    sizes = [drawn.m, drawn.n, drawn.k]
    for place in rng.choice(3, rng.integers(1, 3), replace=False):
        sizes[place] = 1 if rng.random() < SINGLE else log_uniform(rng, THIN)
    m, n, k = sizes
    vectors = "".join(
        name
        for name, extent in (("a", m), ("b", n))
        if rng.random() < 0.5 and extent == 1 and face == "matmul"
    )
    ops = "".join("N" if name in vectors else op for name, op in zip("ab", drawn.ops, strict=True))
    return Drawn(drawn.code, m, n, k, ops, drawn.orders, vectors=vectors)


def log_uniform(rng: np.random.Generator, bounds: Extents) -> int:
    """Draw a whole number whose logarithm is about uniform, both bounds included."""
    least, most = bounds
    return min(most, int(math.exp(rng.uniform(math.log(least), math.log(most + 1)))))
