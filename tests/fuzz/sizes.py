"""Extents of matrices: many small ones, and those on either side of the kernels' boundaries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

import clgemm
from clgemm.problem import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

FARTHEST = 800  # of boundaries: longer ones are those of other units, such as bytes of a block
MOST_WORK = 3_000_000  # multiplications, so that most of the time is spent on many cases
BLAS_BOUNDARIES = (4, 8, 16, 32, 64, 128)  # of the host's kernels, and of small products


def boundaries() -> Mapping[str, tuple[int, ...]]:
    """List, by precision, the extents at which the kernels in use begin another tile or block."""
    found = {}
    for code, precision in ELEMENTS.items():
        square = np.empty((150, 150), precision.dtype)
        with clgemm.settings.using(route="device"):
            config = clgemm.explain(square, square).config
        values = {int(value) for value in re.findall(r"=(\d+)", config)} - {0, 1}
        near = {n for value in values for n in (value, 2 * value) if n <= FARTHEST}
        found[code] = tuple(sorted(near.union(BLAS_BOUNDARIES)))
    return found


def draw(rng: np.random.Generator, known: tuple[int, ...]) -> int:
    """Draw one extent."""
    how = rng.random()
    if how < 0.04:
        return 0
    if how < 0.3:
        return int(rng.integers(1, 9))
    if how < 0.65:
        return int(2 ** rng.uniform(0, 7.65))
    return max(1, int(rng.choice(known)) + int(rng.integers(-1, 2)))


def draw_product(rng: np.random.Generator, known: tuple[int, ...]) -> tuple[int, int, int]:
    """Draw m, n and k; the longest are shortened until the product is soon computed."""
    sizes = [draw(rng, known) for _ in range(3)]
    if rng.random() < 0.1:
        sizes = [sizes[0]] * 3
    while sizes[0] * sizes[1] * sizes[2] > MOST_WORK:
        longest = sizes.index(max(sizes))
        sizes[longest] = min(int(rng.integers(1, 65)), sizes[longest] - 1)
    return sizes[0], sizes[1], sizes[2]
