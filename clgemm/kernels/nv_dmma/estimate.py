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
LAUNCH = 6000  # of the launch, until its first slices are on their way
WAVE = 500  # of macro-tiles that begin together, until their products do, and ...
ENDS = 0.74  # ... for each element of one, for its store, beside the wait for its first slice ...
HIDDEN = 0.58  # of both, if another macro-tile's products run meanwhile
SEGMENTS = 12000  # for pieces that begin and end within macro-tiles, and ...
SEGMENT_ENDS = 1.6  # ... of the ends of a macro-tile, for those of a piece
FAR_APART = 1.06  # time of slices from memory that neighbours do not fetch at the same time
CACHE = 40e6  # bytes of operands that stay in the cache
EXCHANGED = 11.4  # elements a clock, of what another work-group computed of a macro-tile
JOIN = 11000  # of the launch that adds up parts of K, and ...
JOINED = 31  # ... bytes a clock, of a compute unit, that pass through scratch
TICKET = 4300  # until who adds up parts of K without a launch knows that, and ...
GATHERED = 50  # ... bytes a clock that it reads
LEAST_DEPTH = 256  # of a part of K

PRODUCTS = 128  # a clock
FRAGMENTS = {64 * 32: 1.17, 32 * 32: 1.17}
"""What products take longer for loading fragments, by the area of a warp's tile, ..."""
SMALL_FRAGMENTS = 1.25  # ... and of smaller ones
SLICE = 115  # clocks in which a warp changes over to the next slice, and ...
ISSUE = 4.2  # ... in which it starts a copy: other warps of its quarter of the unit go on meanwhile
QUARTER = 128  # work-items with which each quarter of a unit has one warp
LINES = {32: 3.05, 16: 5.1, 8: 5.1}
"""Clocks of copying 128 bytes by where rows in memory start: at multiples of so many bytes.

From 16 on copies are of 16 bytes, and each eight of them ask for one or two lines of the cache; the
others are of 8 bytes."""
OVERLAP = 5  # the norm that combines products and copies: nearly the longer of both
MEMORY = 1790  # bytes a clock of the whole device, from and to memory, and ...
MEMORY_OVERLAP = 2.7  # ... the norm that combines them with all else

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
    known = max(LINES) if g.aligned else 16 if real_parts(g) > 1 else 8
    line_a, line_b = (
        LINES[max(8, math.gcd(known, (ld | stride | offset) * each))]
        for ld, stride, offset in (
            (g.lda, g.stride_a, g.offset_a),
            (g.ldb, g.stride_b, g.offset_b),
        )
    )
    return tile.kc * 8 / 128 * (tile.mc / real_parts(g) * line_a + tile.nc * line_b)


def _change_clocks(g: Gemm, tile: Tile) -> float:
    """Estimate the clocks in which a warp starts a slice's copies and changes over to the next."""
    wide_a, wide_b = wide(g)
    copies = tile.mc * (1 + (not wide_a)) + tile.nc * (1 + (not wide_b))
    return SLICE + ISSUE * copies * tile.kc / 2 / tile.items


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


class _Unit(NamedTuple):
    """What takes how many clocks on a compute unit for a problem's macro-tiles.

    Its work-groups share the tensor cores, so what counts is how many macro-tiles it has.
    """

    tile: Tile
    products: float
    """Of a slice, like the next two."""
    change: float
    copies: float
    transfers: float
    """From and to the device's memory, of the whole problem."""

    def ends(self, number: int) -> float:
        """Return the clocks in which so many macro-tiles that run together begin and end."""
        end = ENDS * self.tile.area + self.copies
        return number * end * (HIDDEN if number > 1 else 1.0) + WAVE

    def slices(self, number: int) -> float:
        """Return the clocks of a slice of each of so many macro-tiles that run together."""
        warps = max(1.0, number * self.tile.items / QUARTER)
        return number * _norm(self.products + self.change / warps, self.copies, OVERLAP)

    def computed(self, number: int, count: int) -> float:
        """Return the clocks of so many macro-tiles of so many slices each."""
        resident = self.tile.resident
        full, rest = divmod(number, resident)
        clocks = full * (count * self.slices(resident) + self.ends(resident))
        return clocks + (count * self.slices(rest) + self.ends(rest) if rest else 0.0)

    def beside_memory(self, clocks: float) -> float:
        """Return the clocks of what so many take, and of what memory transfers meanwhile."""
        return _norm(clocks, self.transfers, MEMORY_OVERLAP)


def _norm(x: float, y: float, power: float) -> float:
    norm: float = (x**power + y**power) ** (1 / power)
    return norm


def _unit(g: Gemm, tile: Tile) -> _Unit:
    products = tile.kc * tile.area / PRODUCTS * FRAGMENTS.get(tile.wm * tile.wn, SMALL_FRAGMENTS)
    return _Unit(
        tile, products, _change_clocks(g, tile), _copy_clocks(g, tile), g.operand_bytes / MEMORY
    )


def _alone(unit: _Unit, units: int, tiles: int, slices: int, strip: float, strips: int) -> Way:
    """Give each macro-tile a work-group."""
    most = units * unit.tile.resident
    clocks = LAUNCH + unit.beside_memory(unit.computed(-(-tiles // units), slices))
    if strips <= -tiles % most:  # they run beside the last macro-tiles
        clocks = max(clocks, clocks * (1 - 1 / -(-tiles // most)) + strip)
    else:
        clocks += strip
    return Way(tiles, 0, 0, 1, False, clocks)


def _shared(g: Gemm, unit: _Unit, units: int, tiles: int, slices: int) -> Way:
    """Share the slices of the last macro-tiles, strips aside."""
    tile, turns = unit.tile, unit.tile.resident
    most = units * turns
    whole = max(0, tiles // most - 1) * most
    share = (tiles - whole) / most
    near = (g.m + g.n) * g.k * real_parts(g) * 8 * g.batch < CACHE
    clocks = unit.computed(whole // units, slices)
    clocks += math.ceil(share * slices) * unit.slices(turns) * (1.0 if near else FAR_APART)
    clocks += unit.ends(turns) * max(1.0, share) * SEGMENT_ENDS
    exchanged = turns * tile.area / EXCHANGED / min(1.0, share)
    clocks += exchanged * (HIDDEN if turns > 1 else 1.0)
    return Way(whole, tiles - whole, most, 1, False, LAUNCH + SEGMENTS + unit.beside_memory(clocks))


def best_way(units: int, g: Gemm, tile: Tile, *, shares: bool, strips: Strips = NO_STRIPS) -> Way:
    """Decide whether macro-tiles are shared, and estimate the clocks that a problem takes.

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
    ce, most = real_parts(g), units * tile.resident
    tiles, slices = count_macro_tiles(g, tile.mc // ce, tile.nc), -(-g.k * ce // tile.kc)
    number = strips.number * g.batch
    strip = _strip_clocks(g, tile, strips.thick) * math.ceil(number / most)
    unit = _unit(g, tile)
    ways = [_alone(unit, units, tiles, slices, strip, number)]
    if shares and tiles % most and (tiles + most) * slices <= INT32_MAX and most <= TICKETS:
        way = _shared(g, unit, units, tiles, slices)
        ways.append(way._replace(clocks=way.clocks + strip))
    last = min(most // tiles, slices * tile.kc // LEAST_DEPTH) if shares else 0
    for parts in range(2, 0 if strips.number else last + 1):
        computed = unit.computed(-(-tiles * parts // units), -(-slices // parts))
        joins, adding = _adding(units, g, tile, parts)
        clocks = LAUNCH + unit.beside_memory(computed) + adding
        ways.append(Way(tiles, 0, 0, parts, joins, clocks))
    return min(ways, key=lambda way: way.clocks)
