"""How long `nv_fused` and `nv_split` take for a problem: estimates from which a plan is chosen.

Constants of `nv_fused` in bf16 were fitted to drawn products on an H100, and to 144 stacks and 88
products on an H200, on which those in fp16 were measured and those of `nv_split` found.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import precision_of, round_up
from clgemm.kernels.gpu_tiled.tiling import MEMORY_BYTES
from clgemm.kernels.nv_split import layout
from clgemm.kernels.nv_split.layout import SLICE, Tile, reals
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm


Turns = tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int, int]]


class Times(NamedTuple):
    """Nanoseconds of a tile on a compute unit."""

    bf16: dict[str, int]
    """Of a turn, 32 deep, by the precision, and ..."""
    fp16: dict[str, Turns]
    """... in fp16 also as rows of X lie, and as those of Y do: see how_rows_lie."""
    next: tuple[int, int]
    """What each further task of a work-group takes beside its turns, in bf16 and in fp16, if the
    tile before is stored meanwhile, and ..."""
    stored: tuple[int, int]
    """... if it is stored before."""


TIMES = {
    Tile(1, 256, 1): Times(
        {"s": 2080, "c": 2050},
        {
            "s": ((1580, 2080, 1380), (1500, 2180, 1430), (1510, 1810, 1510)),
            "c": ((1200, 1220, 1200), (1180, 1220, 1150), (1170, 1220, 1200)),
        },
        (2800, 3700),
        (4000, 3700),
    ),
    Tile(1, 192, 1): Times(
        {"s": 1580, "c": 1500},
        {
            "s": ((1130, 1290, 980), (1180, 1360, 1120), (1070, 1120, 990)),
            "c": ((990, 990, 940), (990, 1030, 970), (970, 940, 990)),
        },
        (2300, 2000),
        (2600, 3100),
    ),
    Tile(1, 128): Times(
        {"s": 1770, "c": 1480},
        {
            "s": ((1290, 1440, 1320), (1460, 1940, 1510), (1330, 1480, 1460)),
            "c": ((1190, 1270, 1290), (1470, 1560, 1560), (1410, 1380, 1360)),
        },
        (3400, 5300),
        (4900, 4800),
    ),
    Tile(1, 96): Times(
        {"s": 1520, "c": 1390},
        {
            "s": ((1070, 1200, 960), (1380, 1330, 1250), (970, 1070, 930)),
            "c": ((960, 970, 920), (1000, 1010, 940), (900, 920, 910)),
        },
        (2300, 3500),
        (2500, 3300),
    ),
    Tile(1, 64): Times(
        {"s": 1070, "c": 1000},
        {
            "s": ((840, 910, 860), (1130, 1190, 1050), (780, 930, 750)),
            "c": ((790, 790, 780), (850, 850, 830), (770, 770, 790)),
        },
        (2600, 2900),
        (2100, 1900),
    ),
}
"""Tiles of 256 and 192 rows are never stored meanwhile in fp16: see ASYNC_TURNS.

Turns of fp16 are those of 132 tiles, 48 turns deep, on an H200, times what 635 ways of 128 drawn
products took more, .99 to 1.08; two of the nine, anywhere beside aligned, are put together.
"""
TURNS_OF_FP16 = 6
"""Turns of a tile from which on it is tried in fp16: shorter ones take as long, or longer."""
EMPTY_ROWS = 0.36  # of a turn of bf16, the share that depends on rows that are there, ...
EMPTY_TILE = 0.2  # ... and of what a further task takes, the share that depends on elements of C
LAUNCH = 7.7e-6, 11.5e-6  # of the launch, until a first tile's products begin, and its store
STORED = 1e10  # bytes a second that a compute unit stores while all do
TICKET = 3.4e-6, 0.3e-6  # until a work-group knows that it is the last of its tile, and ...
GATHERED = 3e10  # ... bytes a second that it reads of the parts, ...
SHARES = 8  # ... or so many work-groups, each of its share: see nv_fused/gemm.cl
MOST_PLACES = 32
"""Places of k at which pieces may begin that are unit fractions of a tile: nv_split/layout.py."""
FEW_PLACES = 8
"""The same of other pieces, which end in another tile than they begin in."""
TURN = 32  # reals of k
ACROSS, ANYWHERE, ALIGNED = 0, 1, 2
"""How rows of an operand lie: across k, along it from anywhere, or from multiples of 16 bytes."""
ASYNC_TURNS = {256: 3, 192: 5, 128: 8, 96: 8, 64: 8}
"""Most turns of a tile that is stored while the next one is computed, by its rows of Y.

Its place in local memory is taken from the slots, which long k needs more.
"""

# An H200 took a tenth more for 140 drawn products than was said of nv_fused and of nv_split.  When
# LAUNCH came to hold that, 3.7 us, the launches got as much, so few deep products changed hands.
SPLIT_LAUNCHES = 20.1e-6, 15.5e-6  # of the three launches of nv_split, and of two
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
    times = TIMES[tile]
    if takes_fp16(g):
        rows_x, rows_y = (how_rows_lie(g, is_y=is_y) for is_y in (False, True))
        return times.fp16[g.precision][rows_x][rows_y] * 1e-9
    filled_x, filled_y = _filled(g, tile)
    filled = (filled_x * tile.bx + filled_y * tile.by) / (tile.bx + tile.by)
    return times.bf16[g.precision] * 1e-9 * (1 - EMPTY_ROWS * (1 - filled))


def _filled(g: Gemm, tile: Tile) -> tuple[float, float]:
    """Give the shares of rows of X and of Y that are there, in tiles of equal mean size."""
    rows_x, rows_y, _ = reals(g)
    return rows_x / round_up(rows_x, tile.bx), rows_y / round_up(rows_y, tile.by)


def _further(g: Gemm, tile: Tile, rounds: int) -> float:
    """Give what each further task of a work-group takes beside its turns."""
    times = TIMES[tile].next if _is_async(g, tile, rounds) else TIMES[tile].stored
    return times[takes_fp16(g)] * 1e-9 * (1 - EMPTY_TILE * (1 - math.prod(_filled(g, tile))))


def _is_async(g: Gemm, tile: Tile, rounds: int) -> bool:
    """Tell whether a tile is stored while the next one is computed: if one is, and k is short."""
    return rounds > 1 and -(-reals(g)[2] // TURN) <= ASYNC_TURNS[tile.by]


def _ways(g: Gemm, tile: Tile, units: int) -> Iterator[Way]:
    depth, is_fp16 = reals(g)[2], takes_fp16(g)
    launch, ticket = LAUNCH[is_fp16], TICKET[is_fp16]
    tiles, slices, turns = count_tiles(g, tile), -(-depth // SLICE), -(-depth // TURN)
    turn = _turn(g, tile)
    area = tile.bx * tile.by * 4
    rounds = -(-tiles // units)
    further = _further(g, tile, rounds)
    seconds = launch + rounds * max(turns * turn + further, area / STORED) - further
    yield Way(tile, tiles, Fraction(1), min(tiles, units), seconds)
    rounds, left = divmod(tiles, units)
    further = _further(g, tile, rounds)
    whole = max(turns * turn + further, area / STORED)
    for count, places in _pieces(left, units, slices):
        straddles = count > 1
        most = min(SLICE // TURN * -(-count * slices // places), turns)
        seconds = launch + rounds * whole + most * turn + straddles * further
        parts = -(-places // count) + straddles
        seconds += ticket + parts * area / (1 if straddles else min(parts, SHARES)) / GATHERED
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
    """Estimate what the best way takes, and memory, of operands that are read once.

    Half of 1400 times of stacks, and of products with a short k, were within 5 % of it, nine tenths
    within 13 %.
    """
    return math.hypot(best_way(g, largest, units).seconds, g.operand_bytes / MEMORY_BYTES)


def stores_async(g: Gemm, way: Way) -> bool:
    """Tell whether tiles that are not cut are stored while the next one is computed."""
    return _is_async(g, way.tile, -(-way.whole // way.groups))


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
