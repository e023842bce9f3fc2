"""How long `nv_dmma` takes for a problem: an estimate in clocks, from which its plans are chosen.

A slice's products and the copies that bring it run at the same time, so the longer of both decides.
Constants were measured on an H200, in clocks of 1980 MHz.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import INT32_MAX, TICKETS, precision_of

if TYPE_CHECKING:
    from clgemm.problem import Gemm

LOCAL_BYTES = {(8, 0): 163 << 10, (9, 0): 226 << 10, (10, 0): 226 << 10}
"""Local memory of a work-group by compute capability, for those with fast fp64 tensor cores.

OpenCL reports 48 KB, but a kernel may declare as much as the hardware has."""
MOST_ITEMS = 512  # work-items of a compute unit at a time, with the registers that each has
LAUNCH = 6700  # of the launch, until its first slices are on their way
ENDS = (
    0.95  # for each element of a macro-tile, for its store, beside the wait for its first slice ...
)
HIDDEN = 0.8  # of both, if another macro-tile's products run meanwhile
SEGMENTS = 15500  # for pieces that begin and end within macro-tiles, and ...
SEGMENT_ENDS = 0.85  # ... of the ends of a macro-tile, for those of a piece
APART, FAR_APART = 1.1, 1.13
"""Time of slices that neighbours do not fetch at the same time, from the cache and from memory."""
CACHE = 40e6  # bytes of operands that stay in the cache
EXCHANGED = 14  # elements a clock, of what another work-group computed of a macro-tile
JOIN = 10200  # of the launch that adds up parts of K, and ...
JOINED = 29  # ... bytes a clock, of a compute unit, that pass through scratch
TICKET = 3500  # until who adds up parts of K without a launch knows that, and ...
GATHERED = 50  # ... bytes a clock that it reads
LEAST_DEPTH = 256  # of a part of K

PRODUCTS = 128  # a clock
FRAGMENTS = {64 * 32: 1.1, 32 * 32: 1.23, 32 * 16: 1.25, 16 * 16: 1.32}
"""What products take longer for loading fragments, by the area of a warp's tile, ..."""
SHORT, SHORT_DEPTH = 1.06, 16  # ... for waiting at the end of slices of no more than this depth ...
BUSY_ITEMS, IDLE = 256, 1.15  # ... and with fewer work-items on a compute unit than these
LINES = {128: 3.7, 64: 3.7, 32: 4.2, 16: 6.0, 8: 5.5}
"""Clocks of copying 128 bytes by where rows in memory start: at multiples of so many bytes.

From 16 on copies are of 16 bytes, and each eight of them ask for one or two lines of the cache; the
others are of 8 bytes."""
TURNED = 7.0  # the same of a real A that is turned as it is copied
OVERLAP = 5  # the norm that combines products and copies: nearly the longer of both ...
LONE_OVERLAP = 2  # ... and with copies of 8 bytes, of one macro-tile that is alone on its unit

EDGE_WIDTH = 32  # of nv_dmma/edges.cl
EDGE_CHUNK = 2000  # clocks of a strip for each chunk of the depth, and ...
EDGE_PRODUCTS = 750  # ... for each real number across the edge


class Tile(NamedTuple):
    """A macro-tile, and what follows from it; rows and depth in real numbers."""

    mc: int
    nc: int
    wm: int
    wn: int
    kc: int
    stages: int
    area: int
    items: int
    resident: int
    """Work-groups that run on a compute unit at a time."""


def tile_of(mc: int, nc: int, wm: int, wn: int, kc: int, stages: int) -> Tile:
    """Work out what follows from a macro-tile's sizes."""
    items = 32 * (mc // wm) * (nc // wn)
    resident = min(LOCAL_BYTES[9, 0] // (stages * (mc + nc) * kc * 8), MOST_ITEMS // items)
    return Tile(mc, nc, wm, wn, kc, stages, mc * nc, items, max(1, resident))


class Strips(NamedTuple):
    """The strips that do thin edges."""

    number: int
    thick: int
    """Elements across the edge."""


NO_STRIPS = Strips(0, 0)


class Way(NamedTuple):
    """Which work-groups compute macro-tiles."""

    whole: int
    """Macro-tiles that have a work-group each."""
    shared: int
    workers: int
    """Work-groups that share the others."""
    parts: int
    """Into which K is cut, of each macro-tile."""
    joins: bool
    """Whether the last of them adds them up, without another launch."""
    clocks: float


def real_parts(g: Gemm) -> int:
    """Count the real numbers of an element."""
    return precision_of(g).parts


def wide(g: Gemm) -> tuple[bool, bool]:
    """Tell for A and B whether 16 bytes at an even place can be read as one vector."""
    if precision_of(g).is_complex:
        return True, True
    return (
        g.aligned and not (g.lda | g.stride_a | g.offset_a) % 2,
        g.aligned and not (g.ldb | g.stride_b | g.offset_b) % 2,
    )


def _copy_clocks(g: Gemm, tile: Tile) -> float:
    """Estimate the clocks in which a compute unit's cache gives it a slice."""
    each = precision_of(g).itemsize
    known = 128 if g.aligned else 16 if real_parts(g) > 1 else 8
    line_a, line_b = (
        LINES[max(8, math.gcd(known, (ld | stride | offset) * each))]
        for ld, stride, offset in (
            (g.lda, g.stride_a, g.offset_a),
            (g.ldb, g.stride_b, g.offset_b),
        )
    )
    if real_parts(g) == 1 and g.trans_a:
        line_a = TURNED
    return tile.kc * 8 / 128 * (tile.mc / real_parts(g) * line_a + tile.nc * line_b)


def _norm(g: Gemm, tile: Tile, rounds: int) -> int:
    """Return the norm that combines the clocks of products and copies."""
    eights = real_parts(g) == 1 and (g.trans_a or not all(wide(g)))
    return LONE_OVERLAP if eights and tile.resident == 1 and rounds == 1 else OVERLAP


def _strip_clocks(g: Gemm, tile: Tile, thick: int) -> int:
    """Estimate the clocks of a strip, which nv_dmma/edges.cl does in chunks of the depth."""
    ce = real_parts(g)
    loads = (16 if thick * ce > 4 else 32) // ce  # EDGE_LOADS
    chunks = 1 + math.ceil(g.k / (tile.items // 32 * loads))
    return chunks * (EDGE_CHUNK + EDGE_PRODUCTS * thick * ce)


def _adding(units: int, g: Gemm, tile: Tile, parts: int) -> tuple[bool, float]:
    """Tell whether a macro-tile's last part adds up all of them, and the clocks of adding."""
    ce = real_parts(g)
    tiles = count_macro_tiles(g, tile.mc // ce, tile.nc)
    by_launch = JOIN + 16 * parts * g.m * ce * g.n * g.batch / (units * JOINED)
    turns = -(-tiles * parts // units)
    within = TICKET + (turns + parts) * tile.area * 8 / GATHERED
    joins = tiles <= TICKETS and within < by_launch
    return joins, within if joins else by_launch


def best_way(units: int, g: Gemm, tile: Tile, *, shares: bool, strips: Strips = NO_STRIPS) -> Way:
    """Decide whether macro-tiles are shared, and estimate the clocks that a problem takes.

    A unit's work-groups share its tensor cores, so what counts without sharing is how many
    macro-tiles the busiest unit has.

    Parameters
    ----------
    units : int
        Compute units.
    g : Gemm
        What macro-tiles compute.
    tile : Tile
        The macro-tile.
    shares : bool
        Whether they may be shared.
    strips : Strips
        What further work-groups do.  They come last, so K is not cut then.
    """
    ce = real_parts(g)
    tiles, slices = count_macro_tiles(g, tile.mc // ce, tile.nc), -(-g.k * ce // tile.kc)
    products = tile.kc * tile.area / PRODUCTS * FRAGMENTS.get(tile.wm * tile.wn, 1.25)
    products *= SHORT if tile.kc <= SHORT_DEPTH else 1
    copies, norm = _copy_clocks(g, tile), _norm(g, tile, -(-tiles // units))
    end = ENDS * tile.area + copies

    def ends(turns: float) -> float:
        """Return the clocks in which so many macro-tiles of a unit begin and end."""
        return turns * end * (HIDDEN if turns > 1 and tile.resident > 1 else 1.0)

    def computed(turns: float, count: int) -> float:
        """Return the clocks in which each of a unit's work-groups computes so many slices."""
        idle = IDLE if turns * tile.items < BUSY_ITEMS else 1
        slice_clocks: float = ((products * idle) ** norm + copies**norm) ** (1 / norm)
        return turns * count * slice_clocks

    most = units * tile.resident
    strip = _strip_clocks(g, tile, strips.thick) * math.ceil(strips.number * g.batch / most)
    rounds = -(-tiles // units)
    alone = LAUNCH + computed(rounds, slices) + ends(rounds)
    if strips.number * g.batch <= -tiles % most:  # they run beside the last macro-tiles
        alone = max(alone, alone * (1 - 1 / -(-tiles // most)) + strip)
    else:
        alone += strip
    ways = [Way(tiles, 0, 0, 1, False, alone)]
    if shares and tiles % most and (tiles + most) * slices <= INT32_MAX and most <= TICKETS:
        whole = max(0, tiles // most - 1) * most
        left = tiles - whole
        turns, share = tile.resident, left / most
        clocks = LAUNCH + computed(whole // units, slices) + ends(whole // units) + SEGMENTS
        apart = APART if (g.m + g.n) * g.k * ce * 8 * g.batch < CACHE else FAR_APART
        clocks += computed(turns, math.ceil(share * slices)) * apart + strip
        clocks += ends(turns) * max(1.0, share) * SEGMENT_ENDS
        exchanged = turns * tile.area / EXCHANGED / min(1.0, share)
        clocks += exchanged * (HIDDEN if turns > 1 else 1.0)
        ways.append(Way(whole, left, most, 1, False, clocks))
    last = min(most // tiles, slices * tile.kc // LEAST_DEPTH) if shares else 0
    for parts in range(2, 0 if strips.number else last + 1):
        turns = -(-tiles * parts // units)
        clocks = LAUNCH + computed(turns, -(-slices // parts)) + ends(turns)
        joins, adding = _adding(units, g, tile, parts)
        ways.append(Way(tiles, 0, 0, parts, joins, clocks + adding))
    return min(ways, key=lambda way: way.clocks)
