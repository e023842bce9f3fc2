"""How long `nv_fused` and `nv_split` take for a problem: estimates from which a plan is chosen.

Constants of `nv_fused` were fitted to drawn products on an H100, those of `nv_split` on an H200.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import precision_of
from clgemm.kernels.gpu_tiled.tiling import STACK_BYTES
from clgemm.kernels.nv_split import layout
from clgemm.kernels.nv_split.layout import SLICE, Tile, reals
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm


class Times(NamedTuple):
    """Seconds of a tile on a compute unit."""

    turn: float
    """32 deep, of reals."""
    turn_complex: float
    next: float
    """What each further task of a work-group takes beside its turns: its store, most of all."""


TIMES = {
    Tile(1, 256, 1): (Times(1.8e-6, 1.55e-6, 3.6e-6), Times(1.52e-6, 1.18e-6, 3.7e-6)),
    Tile(1, 192, 1): (Times(1.53e-6, 1.33e-6, 2.8e-6), Times(1.2e-6, 1.04e-6, 2.0e-6)),
    Tile(1, 128): (Times(1.82e-6, 1.6e-6, 2.1e-6), Times(1.31e-6, 1.19e-6, 3.7e-6)),
    Tile(1, 96): (Times(1.58e-6, 1.41e-6, 1.5e-6), Times(1.24e-6, 1.07e-6, 2.4e-6)),
    Tile(1, 64): (Times(1.27e-6, 1.22e-6, 0.9e-6), Times(0.92e-6, 0.91e-6, 1.5e-6)),
}
"""Of bf16, and of fp16."""
TURNS_OF_FP16 = 6
"""Turns of a tile from which on it is tried in fp16: shorter ones take as long, or longer."""
MISALIGNED = {"s": 88e-9, "c": 47e-9}
"""Seconds more of a turn of fp16 for a producer's chunk of which rows lie along k from anywhere."""
LAUNCH = 6.2e-6, 7.8e-6  # of the launch, until a first tile's products begin, and its store
STORED = 1e10  # bytes a second that a compute unit stores while all do
TICKET = 0.7e-6  # until a work-group knows that it is the last of its tile, and ...
GATHERED = 4.7e10  # ... bytes a second that it reads of the parts, ...
SHARES = 8  # ... or so many work-groups, each of its share: see nv_fused/gemm.cl
MOST_PLACES = 32
"""Places of k at which pieces may begin that are unit fractions of a tile: nv_split/layout.py."""
FEW_PLACES = 8
"""The same of other pieces, which end in another tile than they begin in."""
TURN = 32  # reals of k
PRODUCERS = 256  # work-items that read and split, ...
CHUNKS = 4  # ... of each row so many chunks a turn
ACROSS, ANYWHERE, ALIGNED = 0, 1, 2
"""How rows of an operand lie: across k, along it from anywhere, or from multiples of 16 bytes."""
ASYNC_TURNS = {256: 3, 192: 5, 128: 8, 96: 8, 64: 8}
"""Most turns of a tile that is stored while the next one is computed, by its rows of Y.

Its place in local memory is taken from the slots, which long k needs more.
"""

# An H200 took a tenth more for 140 drawn products, and for 30 drawn stacks, than is said above of
# nv_fused, and here of nv_split.
SPLIT_LAUNCHES = 16.4e-6, 11.8e-6  # of the three launches of nv_split, and of two
SPLIT_SLICE = 2.04e-6  # of a slice of its largest tile
SPLIT_PACKED = 3.7e11  # reals a second that it surveys and packs, and of a stack ...
SPLIT_STORED = 1e12  # ... that it stores, beside what its tiles' ends take


class Way(NamedTuple):
    """A tile, and how tiles are dealt to work-groups."""

    tile: Tile
    whole: int
    """Tiles that are not cut along k."""
    piece: Fraction
    """Tiles of the others that a work-group computes, until all are."""
    groups: int
    seconds: float


def count_tiles(g: Gemm, tile: Tile) -> int:
    """Count the tiles of all products of a stack."""
    return count_macro_tiles(g, tile.by // precision_of(g).parts, tile.bx)


def how_rows_lie(g: Gemm, *, is_y: bool) -> int:
    """Say it of X or Y as nv_fused/chunks.cl does."""
    if not (g.trans_a if is_y else not g.trans_b):
        return ACROSS
    steps = (g.lda, g.stride_a, g.offset_a) if is_y else (g.ldb, g.stride_b, g.offset_b)
    wide = ALIGNMENT // precision_of(g).itemsize
    return ALIGNED if g.aligned and not any(step % wide for step in steps) else ANYWHERE


def takes_fp16(g: Gemm) -> bool:
    """Tell whether slots are tried in fp16; the bound holds from k = 32 on."""
    return -(-reals(g)[2] // TURN) >= TURNS_OF_FP16


def _turn(g: Gemm, tile: Tile) -> float:
    precision, is_fp16 = precision_of(g), takes_fp16(g)
    times = TIMES[tile][is_fp16]
    turn = times.turn_complex if precision.is_complex else times.turn
    if is_fp16:
        for is_y, rows in ((False, tile.bx), (True, tile.by // precision.parts)):
            if how_rows_lie(g, is_y=is_y) == ANYWHERE:
                turn += rows * CHUNKS / PRODUCERS * MISALIGNED[g.precision]
    return turn


def _ways(g: Gemm, tile: Tile, units: int) -> Iterator[Way]:
    depth, is_fp16 = reals(g)[2], takes_fp16(g)
    times, launch = TIMES[tile][is_fp16], LAUNCH[is_fp16]
    tiles, slices, turns = count_tiles(g, tile), -(-depth // SLICE), -(-depth // TURN)
    turn = _turn(g, tile)
    area = tile.bx * tile.by * 4
    whole = max(turns * turn + times.next, area / STORED)
    rounds = -(-tiles // units)
    seconds = launch + rounds * whole - times.next
    yield Way(tile, tiles, Fraction(1), min(tiles, units), seconds)
    rounds, left = divmod(tiles, units)
    for count, places in _pieces(left, units, slices):
        straddles = count > 1
        most = min(SLICE // TURN * -(-count * slices // places), turns)
        seconds = launch + rounds * whole + most * turn + straddles * times.next
        parts = -(-places // count) + straddles
        seconds += TICKET + parts * area / (1 if straddles else min(parts, SHARES)) / GATHERED
        groups = units if rounds else -(-left * places // count)
        yield Way(tile, rounds * units, Fraction(count, places), groups, seconds)


def _pieces(left: int, units: int, slices: int) -> Iterator[tuple[int, int]]:
    """Give pieces, as so many of so many parts of a tile, with which the `left` tiles get done."""
    for places in range(2, min(MOST_PLACES, slices) + 1):
        count = -(-left * places // units)
        if 0 < count < places and (
            count == 1 or (places <= FEW_PLACES and math.gcd(count, places) == 1)
        ):
            yield count, places


@lru_cache(maxsize=256)
def best_way(g: Gemm, largest: int, units: int) -> Way:
    """Choose the tile, of at most `largest` rows of Y, and the way that take the least time."""
    return min(
        (way for tile in TIMES if tile.by <= largest for way in _ways(g, tile, units)),
        key=lambda way: way.seconds,
    )


def seconds(g: Gemm, largest: int, units: int) -> float:
    """Estimate what the best way takes; of a stack, memory as well, as its operands are read once.

    What 60 drawn stacks took on an H100 was .82 to 1.15 times as much.
    """
    computed = best_way(g, largest, units).seconds
    return math.hypot(computed, g.operand_bytes / STACK_BYTES) if g.batch > 1 else computed


def stores_async(g: Gemm, way: Way) -> bool:
    """Tell whether a tile is stored while the next one is computed: if one is, and k is short."""
    turns = -(-reals(g)[2] // TURN)
    return way.whole > way.groups and turns <= ASYNC_TURNS[way.tile.by]


def split_seconds(g: Gemm, units: int) -> float:
    """Estimate what `nv_split` takes."""
    rows_x, rows_y, depth = reals(g)
    largest = Tile(2, 128)
    slices = layout.share(g, layout.best_tile(g, largest, units), units).slices
    copies_x, copies_y = layout.copies(g)
    moved = (rows_x * copies_x + rows_y * copies_y) * depth / SPLIT_PACKED
    if g.batch > 1:
        moved += rows_x * rows_y * g.batch / SPLIT_STORED
    return SPLIT_LAUNCHES[layout.is_short(g)] + slices * SPLIT_SLICE + moved
