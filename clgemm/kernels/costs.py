"""What a problem costs under a configuration, in counts: the tuner finds the seconds of each.

A model that only has to rank configurations can leave out most of what a family's plan decides.
These few counts grow with time for one reason each; none takes more than a few microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from clgemm.problem import Gemm

SMALLEST_TILE = 32 * 32  # elements of C; families cut their macro-tile down to about this
LEAST_PART = 1024  # k of a part, where K is cut


class Costs(NamedTuple):
    """Counts that each take a certain time."""

    launches: float
    depth: float
    """Steps along k that follow one another: what the smallest product waits for."""
    shared: float
    """Multiplications of a compute unit if all units share them evenly."""
    busiest: float
    """Multiplications of the unit with the most macro-tiles, edges and whole waves included."""
    operands: float
    """Elements of A and B that are read or packed."""
    results: float
    """Elements of C that are written, partial sums included."""


def count_macro_tiles(g: Gemm, mc: int, nc: int) -> int:
    """Count the macro-tiles of a problem; of a Gram product those not wholly above the diagonal."""
    rows, columns = -(-g.m // mc), -(-g.n // nc)
    above = sum(min(rows, j * nc // mc) for j in range(columns)) if g.triangle else 0
    return (rows * columns - above) * g.batch


def of_tiles(units: int, g: Gemm, mc: int, nc: int, launches: int = 1) -> Costs:
    """Count what a problem costs in macro-tiles, cut smaller and along K where they are too few.

    Parameters
    ----------
    units : int
        Compute units.
    g : Gemm
        The problem.
    mc, nc : int
        The largest macro-tile.
    launches : int
        Without one more for parts of K, and for the mirror of a Gram product.
    """
    m, n, k, batch = g.m, g.n, g.k, g.batch
    tiles = count_macro_tiles(g, mc, nc)
    while tiles < units and mc * nc > SMALLEST_TILE:
        if mc >= nc:
            mc //= 2
        else:
            nc //= 2
        tiles = count_macro_tiles(g, mc, nc)
    parts = min(units // tiles, k // LEAST_PART)
    share = tiles / (-(-m // mc) * -(-n // nc) * batch)
    written = m * n * batch * share
    depth = k
    if parts > 1:
        depth = -(-k // parts)
        launches += 1
        written *= 1 + parts
    if g.triangle:
        launches += 1
        written += m * n * batch / 2
    busiest = -(-tiles * max(1, parts) // units) * mc * nc * depth
    shared = m * n * k * batch * share / units
    return Costs(launches, depth, shared, busiest, (m + n) * k * batch, written)
