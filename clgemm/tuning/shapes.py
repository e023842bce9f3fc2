"""The products that configurations are timed with."""

from __future__ import annotations

import re
from typing import NamedTuple

from clgemm.problem import Gemm

MIDDLE_N, SKINNY_N, THIN_K = 512, 37, 32
STACK = 32
SEARCHED = ("square", "small", "wide")
"""Names of those that every candidate is timed with; the finalists are timed with all."""


class Shape(NamedTuple):
    """Sizes of a product of matrices without gaps."""

    m: int
    n: int
    k: int
    batch: int = 1
    trans_a: bool = False
    trans_b: bool = False

    def __str__(self) -> str:
        stack = f" x {self.batch}" if self.batch > 1 else ""
        ops = "NT"[self.trans_a] + "NT"[self.trans_b]
        return f"{self.m} x {self.n} x {self.k}{stack}{'' if ops == 'NN' else f' {ops}'}"

    def problem(self, code: str) -> Gemm:
        """Describe the product in one precision."""
        m, n, k, batch = self[:4]
        stacked = batch > 1
        return Gemm(
            code, m, n, k, batch,
            self.trans_a, False, k if self.trans_a else m, m * k * stacked,
            self.trans_b, False, n if self.trans_b else k, k * n * stacked,
            m, m * n * stacked, False, aligned=True,
        )  # fmt: skip

    def rate(self, code: str, seconds: float) -> float:
        """Return GFLOP/s."""
        return self.problem(code).flops / seconds / 1e9


def standard(side: int) -> dict[str, Shape]:
    """Give the shapes for a device on which a square of `side` takes long enough to be timed.

    They are what differs most in what limits it: how well macro-tiles fill the device, edges, the
    depth of K, packing, launches.
    """
    middle, eighth = min(MIDDLE_N, side // 2), side // 8
    return {
        "square": Shape(side, side, side),
        "small": Shape(middle, middle, middle),
        "wide": Shape(SKINNY_N, side, side),
        "tall": Shape(side, SKINNY_N, side),
        "thin": Shape(side, side, THIN_K),
        "deep": Shape(eighth, eighth, 8 * side),
        "stack": Shape(eighth, eighth, eighth, STACK),
        "turned": Shape(side // 2, side // 2, side // 2, 1, trans_a=True, trans_b=True),
        "odd": Shape(side // 2 + 1, side // 2 - 1, side // 2 + 3),
    }


def parse(text: str) -> Shape:
    """Read "1000" or "3000x40x500".

    Raises
    ------
    ValueError
        If it is neither.
    """
    if not re.fullmatch(r"\d+(x\d+x\d+)?", text.lower()):
        raise ValueError(text)
    numbers = [int(part) for part in text.lower().split("x")]
    if min(numbers) < 1:
        raise ValueError(text)
    m, n, k = numbers * 3 if len(numbers) == 1 else numbers
    return Shape(m, n, k)
