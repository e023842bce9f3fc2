"""Where things lie in the scratch memory of `nv_split`, and how its tiles are dealt to workers.

`Split` is the struct of that name in nv_split/split.cl.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import round_up
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from clgemm.problem import Gemm

SLICE = 64  # reals of k
RECORD_ROWS = 32
SHORT_RECORD_ROWS = 8
FEW_RECORDS = 0.55  # a worker: fewer work-groups of that many rows would read too little at a time
SHORT_DEPTH = 2048  # reals of a row that is short: a record's rows fit the local memory
SHORT_REALS = 2**22  # of both operands, if one kernel shall survey and pack
ALIGNMENT = 256  # bytes, of every part of the scratch
FP16_BYTES, BF16_BYTES = 4, 6  # of a real: two and three parts
TARGET_FP16 = 14  # log2 of what the largest element of a row is scaled to
MOST_PLACES = 5
"""Places of k at which pieces may begin.

Workers at the same place of k read the same slices at the same time, so that memory is asked for
them once.  Where each began at a place of its own, products of long k took up to 1.8 times as long.
"""
PACK_GROUPS = 2112  # work-groups that keep the largest device busy
LARGEST_RUN = 8  # slices that one of them packs

_STRUCT = struct.Struct("=10q11i2H")


class Tile(NamedTuple):
    """A macro-tile: `mi` blocks of 64 rows of X a warpgroup, `by` rows of Y."""

    mi: int
    by: int
    groups_x: int = 2
    """Warpgroups that share the rows of X; 1: the two share those of Y."""

    @property
    def bx(self) -> int:
        """Rows of X."""
        return 64 * self.mi * self.groups_x


TIMES = {Tile(2, 128): 1.0, Tile(1, 128): 0.51, Tile(1, 64): 0.3}
"""Of a slice, relative to the largest tile's: small ones move more data a product.  This and what
follows was fitted to 140 drawn products, each with every tile, on an H200: within 8 % (rms)."""
END = 3.4  # slices of a tile in the time of its store and the wait for its first slices, ...
JOIN = 4.6  # ... of partial tiles, left and added, ...
STRADDLE = 0.15  # ... and more if pieces end in another tile than they begin in
ALONE = 0.84  # of a slice, while hardly another worker asks the cache for any
THICK, THIN = 3, 2  # what tiles count, and those in a thin strip; also in nv_split/walk.cl


class Split(NamedTuple):
    """The struct Split of nv_split/split.cl: places in bytes, counts, limits."""

    fp16_x: int
    fp16_y: int
    bf16_x: int
    bf16_y: int
    exponents_x: int
    exponents_y: int
    records_x: int
    records_y: int
    partials: int
    ready: int
    slices: int
    strips_x: int
    strips_y: int
    copies_x: int
    copies_y: int
    spread_fp16: int
    top_limit: int
    run: int
    workers: int
    whole: int
    thin: int
    piece: int
    pieces: int

    def pack(self) -> bytes:
        """Give the struct's bytes."""
        return _STRUCT.pack(*self)


class Grid(NamedTuple):
    """A layout, the launch sizes that go with it, and the scratch it needs."""

    split: Split
    record_rows: int
    survey_groups: int
    pack_groups: int
    """0 if the rows are short: then the first kernel packs as well."""
    scratch_bytes: int


def copies(problem: Gemm) -> tuple[int, int]:
    """Count the matrices X and Y of a stack, of which one that all share is packed once."""
    return problem.batch if problem.stride_b else 1, problem.batch if problem.stride_a else 1


def reals(problem: Gemm) -> tuple[int, int, int]:
    """Give rows of X, rows of Y and depth of the real problem."""
    ce = 2 if PRECISIONS[problem.precision].is_complex else 1
    return problem.n, problem.m * ce, problem.k * ce


def spread_fp16(depth: int) -> int:
    """Give the largest spread of a row that fp16 holds: see the derivation in nv_split.py."""
    tau = max(-22, (depth.bit_length() - 1) // 2 - 24)
    return TARGET_FP16 + 36 + tau


def top_limit(depth: int) -> int:
    """Give the sum of two rows' exponents from which a sum of products may overflow."""
    return 126 - (depth - 1).bit_length()


def edges(problem: Gemm, tile: Tile) -> tuple[int, int]:
    """Tell whether a single row of X, or of Y, is left over: no tile multiplies it.

    The first kernel does, which looks at all of the operands anyway.
    """
    ce = 2 if PRECISIONS[problem.precision].is_complex else 1
    if problem.batch > 1:
        return 0, 0
    half_x, strip_y = tile.bx // 2, tile.by // ce
    edge_x = problem.n > half_x and problem.n % half_x == 1
    edge_y = problem.m > strip_y and problem.m % strip_y == 1
    return int(edge_x), int(edge_y)


def core(problem: Gemm, tile: Tile) -> Gemm:
    """Give the problem that the tiles cover."""
    edge_x, edge_y = edges(problem, tile)
    return problem._replace(n=problem.n - edge_x, m=problem.m - edge_y)


def is_short(problem: Gemm) -> bool:
    """Tell whether one kernel shall survey and pack: a launch less, but more memory traffic."""
    rows_x, rows_y, depth = reals(problem)
    return (
        round_up(depth, SLICE) <= SHORT_DEPTH
        and (rows_x + rows_y) * depth * problem.batch <= SHORT_REALS
    )


def tiles_of(problem: Gemm, tile: Tile) -> tuple[int, int, bool]:
    """Count strips of X and of Y, and tell whether the last one of X is at most half full."""
    n, m, _ = reals(core(problem, tile))
    strips_x, strips_y = -(-n // tile.bx), -(-m // tile.by)
    return strips_x, strips_y, 0 < n % tile.bx <= tile.bx // 2


def count_tiles(problem: Gemm, tile: Tile) -> tuple[int, int]:
    """Count the tiles that are computed, and those of them in a thin strip of X."""
    strips_x, strips_y, thin = tiles_of(problem, tile)
    rows = tile.by // PRECISIONS[problem.precision].parts
    above = min(strips_y, (strips_x - 1) * tile.bx // rows) if problem.triangle else 0
    tiles = count_macro_tiles(core(problem, tile), rows, tile.bx)
    return tiles, thin * (strips_y - above) * problem.batch


class Schedule(NamedTuple):
    """How tiles are dealt to workers."""

    whole: int
    """Tiles that are computed one by one."""
    piece: Fraction
    """Tiles of the others that a worker computes, one after the other, until all are."""
    slices: float
    """Estimate of the time, in slices of the largest tile."""


def share(problem: Gemm, tile: Tile, workers: int) -> Schedule:
    """Decide whether the tiles of a last round that is not full are cut along k."""
    tiles, thin = count_tiles(problem, tile)
    slices = -(-reals(problem)[2] // SLICE)
    rounds, last = divmod(tiles, workers)
    time = rounds * (slices + END) + (_busy(last / workers) * slices + END if last else 0)
    alone = Schedule(tiles, Fraction(1), time * TIMES[tile])
    rounds = (tiles - thin) // workers
    left = THICK * (tiles - thin - rounds * workers) + THIN * thin
    even = left / (THICK * workers)
    pieces = ((-(-left * p // (THICK * workers)), p) for p in range(1, MOST_PLACES + 1))
    count, places = min(pieces, key=lambda piece: piece[0] / piece[1])
    if not 0 < count <= places:
        return alone
    piece = count / places
    time = rounds * (slices + END) + _busy(even / piece) * piece * slices + END + JOIN
    time += STRADDLE * (count > 1)
    cut = Schedule(rounds * workers, Fraction(count, places), time * TIMES[tile])
    return min(alone, cut, key=lambda way: way.slices)


def _busy(part: float) -> float:
    """Return the time of a slice if that part of all workers compute."""
    return ALONE + (1 - ALONE) * part


def best_tile(problem: Gemm, largest: Tile, workers: int) -> Tile:
    """Choose the tile that keeps all workers busy for the shortest time."""
    fitting = [t for t in TIMES if t.mi <= largest.mi and t.by <= largest.by]
    return min(fitting, key=lambda tile: share(problem, tile, workers).slices)


def lay_out(problem: Gemm, tile: Tile, workers: int) -> Grid:
    """Place everything that the kernels share.

    Parameters
    ----------
    problem : Gemm
        Whose stack is packed as a whole; an operand with stride 0 once.
    tile : Tile
        The macro-tile.
    workers : int
        Work-groups of the product.
    """
    ce = 2 if PRECISIONS[problem.precision].is_complex else 1
    depth = reals(problem)[2]
    slices = -(-depth // SLICE)
    strips_x, strips_y, thin = tiles_of(problem, tile)
    copies_x, copies_y = copies(problem)
    rows_x, rows_y = copies_x * strips_x * tile.bx, copies_y * strips_y * tile.by
    schedule = share(problem, tile, workers)
    short = is_short(problem)
    few = (rows_x + rows_y // ce) // RECORD_ROWS < FEW_RECORDS * workers
    record_rows = SHORT_RECORD_ROWS if short or few else RECORD_ROWS
    places: list[int] = []
    end = 0
    for size in (
        rows_x * slices * SLICE * FP16_BYTES, rows_y * slices * SLICE * FP16_BYTES,
        rows_x * slices * SLICE * BF16_BYTES, rows_y * slices * SLICE * BF16_BYTES,
        rows_x * 4, rows_y // ce * 4,
        rows_x // record_rows * 8, rows_y // ce // record_rows * 8,
        workers * tile.bx * tile.by * 4, workers * 4,
    ):  # fmt: skip
        places.append(end)
        end += round_up(size, ALIGNMENT)
    blocks = (rows_x + rows_y) // 64
    run = max(1, min(LARGEST_RUN, blocks * slices // PACK_GROUPS))
    split = Split._make((
        *places, slices, strips_x, strips_y, copies_x, copies_y,
        spread_fp16(depth), top_limit(depth), run, workers, schedule.whole, int(thin),
        schedule.piece.numerator, schedule.piece.denominator,
    ))  # fmt: skip
    survey = (rows_x + rows_y // ce) // record_rows + int(all(edges(problem, tile)))
    return Grid(split, record_rows, survey, 0 if short else blocks * -(-slices // run), end)
