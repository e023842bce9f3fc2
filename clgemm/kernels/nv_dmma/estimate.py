"""How long `nv_dmma` takes for a problem: an estimate in clocks, from which its plans are chosen.

A slice's products and the copies that bring it run at the same time, so the longer of both decides.
Constants were fitted to 2711 timings of 270 drawn products on H100s, in clocks of 1980 MHz.
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
MOST_ITEMS = {16: 512, 32: 384, 64: 256}
"""Work-items that a compute unit holds, by how many sums each has at most: sums take registers."""
SHARING_AREA, SHARING_ITEMS = 32 * 64, {True: 384, False: 256}
"""Work-items that a unit holds of those that share macro-tiles of so many elements, by whether all
copies are of 16 bytes: with what they know of their pieces kernels take up to 168 registers, others
210.  As many as without, 528 workers of 128, took 1.26 times as long as estimated, since a quarter
began when others were done (complex128 202 x 2132 x 1090 and 388 x 338 x 1882 on H200s)."""
LAUNCH = 2000  # of the launch, until its first slices are on their way
WAVE = 140  # of macro-tiles that begin together, until their products do, and ...
ENDS = 0.62  # ... for each element of one, for its store, beside the wait for its first slice ...
ODD_ENDS = 0.68  # ... where columns of a real C start anywhere ...
HIDDEN = (1.0, 0.71, 0.71, 0.45)
"""What of both is not hidden by others' products if one, two, three or more run together.

The last by 2080 timings of 160 stacks."""
STAGGER = 0.7  # clocks for each element, by which a macro-tile begins after another of its unit
STAGGERED = (1.0, 0.9, 0.75, 0.8)
"""How much of the ends that are not hidden stays so then, by how many run together ...

By 2700 timings of 90 products of little depth."""
STAGGERED_LARGE, LARGE = 0.8, 2e8  # ... and where C has more bytes than this, however many do
STAGGERED_TURNS, STAGGERED_ENDS = 2, 6
"""Where macro-tiles begin so: where a unit has its fill of them this often or more, and products
take at most so many times as long as the store."""
UNEVEN, UNEVEN_POWER = 0.88, 8
"""How likely a unit that is done first takes two of the last macro-tiles while others take none: by
how many units have one anyway, to this power."""
DEEP = 32  # real numbers along the depth of the deepest slices
SMALL = {32 * 32: 1.13, 32 * 64: 1.1}
"""What the least macro-tiles take of the estimate, by their elements, where units have their fill
of them and slices are deep: how many each gets of the last ones differs more.  Of shallower slices
they take what is estimated (14 products of little depth on an H200).

By 2800 timings of 230 stacks and products of little depth on H100s, like `MOST_ITEMS`."""
SEGMENTS = 5800  # for pieces that begin and end within macro-tiles, and ...
SEGMENT_ENDS = 2.4  # ... of the ends of a macro-tile, for those of a piece
EXCHANGED = 6.0  # elements a clock, of what another work-group computed of a macro-tile
JOIN = 12000  # of the launch that adds up parts of K, and ...
JOINED = 40  # ... bytes a clock, of a compute unit, that pass through scratch
TICKET = 3250  # until who adds up parts of K without a launch knows that, and ...
GATHERED = 41  # ... bytes a clock that it reads
LEAST_DEPTH = 256  # of a part of K

PRODUCTS = 128  # a clock
FASTER, FRAGMENTS = 0.95, 1.9
"""What products take of that where a warp's tile is large, and what loading fragments adds, over
its rows and over its columns."""
SLICE = 100  # clocks in which a warp changes over to the next slice, and ...
ISSUE = 7.0  # ... in which it starts a copy: other warps of its quarter of the unit go on meanwhile
QUARTER = 128  # work-items with which each quarter of a unit has one warp
LINES = {32: 2.9, 16: 5.1, 8: 4.5}
"""Clocks of copying 128 bytes by where rows in memory start: at multiples of so many bytes.

From 16 on copies are of 16 bytes, and each eight of them ask for one or two lines of the cache; the
others are of 8 bytes."""
DEPTH_LINES = {32: 4.3, 16: 7.3, 8: 6.4}
"""The same where memory runs along the depth, of which a slice has 128 or 256 bytes in a row."""
OVERLAP = 5.4  # the norm that combines products and copies: nearly the longer of both
MEMORY = 1640  # bytes a clock of the whole device, from and to memory, and ...
MEMORY_OVERLAP = 2.2  # ... the norm that combines them with all else
CACHE = 40e6  # bytes of operands that stay in the cache
HALVINGS = 16  # of the interval in which the time is sought for which they do
BAND = 8  # macro-tiles in a band of the raster
SHALLOW = 256  # least depth (in real numbers) at which reading A and B outweighs writing C
TALL = 64  # macro-tiles in a band below that depth: columns of C written in a piece

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


def slice_width(size: int) -> int:
    """Return how wide a slice is in local memory for so many rows or columns, if it is not packed.

    That is the next power of two, as in nv_dmma/tiles.cl.
    """
    return 1 << (size - 1).bit_length()


def tile_of(mc: int, nc: int, wm: int, wn: int, kc: int, stages: int, ce: int = 1) -> Tile:
    """Work out what follows from a macro-tile's sizes, where an element has `ce` real numbers.

    A slice of a complex A has its elements once, though each takes part in two rows of reals.
    """
    items = 32 * (mc // wm) * (nc // wn)
    stage = (slice_width(mc // ce) + slice_width(nc)) * kc * 8
    sums = mc * nc // items
    most = next((most for least, most in MOST_ITEMS.items() if sums <= least), 0)
    resident = min(LOCAL_BYTES[9, 0] // (stages * stage), most // items)
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
    stagger: int = 0
    """Clocks by which one macro-tile of a unit begins after another."""


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
        lines[max(8, math.gcd(known, (ld | stride | offset) * each))]
        for lines, ld, stride, offset in (
            (DEPTH_LINES if g.trans_a else LINES, g.lda, g.stride_a, g.offset_a),
            (LINES if g.trans_b else DEPTH_LINES, g.ldb, g.stride_b, g.offset_b),
        )
    )
    return tile.kc * 8 / 128 * (tile.mc / real_parts(g) * line_a + tile.nc * line_b)


def _change_clocks(g: Gemm, tile: Tile) -> float:
    """Estimate the clocks in which a warp starts a slice's copies and changes over to the next."""
    wide_a, wide_b = wide(g)
    copies = slice_width(tile.mc) * (1 + (not wide_a)) + slice_width(tile.nc) * (1 + (not wide_b))
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
    stored: float
    """Clocks for the store of a macro-tile."""
    is_large: bool
    """Whether C is: see `LARGE`."""

    def ends(self, number: int, *, staggered: bool = False) -> float:
        """Return the clocks in which so many macro-tiles that run together begin and end."""
        last = min(number, len(HIDDEN)) - 1
        end = self.stored + self.copies
        if staggered:
            end *= STAGGERED_LARGE if self.is_large else STAGGERED[last]
        return number * end * HIDDEN[last] + WAVE

    def slices(self, number: int) -> float:
        """Return the clocks of a slice of each of so many macro-tiles that run together."""
        warps = max(1.0, number * self.tile.items / QUARTER)
        return number * _norm(self.products + self.change / warps, self.copies, OVERLAP)

    def computed(self, number: int, count: int, *, staggered: bool = False) -> float:
        """Return the clocks of so many macro-tiles of so many slices each."""
        resident = self.tile.resident
        full, rest = divmod(number, resident)
        ends = self.ends(resident, staggered=staggered)
        clocks = full * (count * self.slices(resident) + ends)
        return clocks + (count * self.slices(rest) + self.ends(rest) if rest else 0.0)

    def stagger(self, tiles: int, count: int) -> int:
        """Return by how many clocks one of so many macro-tiles begins after another on a unit.

        Zero where they are few, and where products take so long that stores hardly matter.
        """
        turns = tiles / self.tile.resident
        short = count * self.products <= STAGGERED_ENDS * self.stored
        fits = self.tile.resident > 1 and turns >= STAGGERED_TURNS and short
        return round(STAGGER * self.tile.area) if fits else 0


def _norm(x: float, y: float, power: float) -> float:
    norm: float = (x**power + y**power) ** (1 / power)
    return norm


def _unit(g: Gemm, tile: Tile) -> _Unit:
    slower = FASTER + FRAGMENTS * (1 / tile.wm + 1 / tile.wn)
    products = tile.kc * tile.area / PRODUCTS * slower
    stored = (ODD_ENDS if real_parts(g) == 1 and g.ldc % 2 else ENDS) * tile.area
    is_large = g.m * g.n * g.batch * precision_of(g).itemsize > LARGE
    return _Unit(tile, products, _change_clocks(g, tile), _copy_clocks(g, tile), stored, is_large)


class _Reads(NamedTuple):
    """How often memory would be asked for the operands, were there no cache."""

    bytes_a: int
    bytes_b: int
    a: float
    b: float

    def transferred(self) -> float:
        """Estimate the bytes that memory transfers: of later reads what is not in the cache.

        It is taken to hold what was read in the last while, and reads to come at random (Che, Tung,
        Wang: Hierarchical web caching systems, IEEE JSAC 2002).
        """
        once = self.bytes_a + self.bytes_b
        if once <= CACHE:
            return once
        least, most = 0.0, 1.0  # of the time in which an operand is read once, for so long
        for _ in range(HALVINGS):
            middle = (least + most) / 2
            kept = self.bytes_a * -math.expm1(-self.a * middle)
            kept += self.bytes_b * -math.expm1(-self.b * middle)
            least, most = (middle, most) if kept < CACHE else (least, middle)
        again_a = (self.a - 1) * math.exp(-self.a * least)
        again_b = (self.b - 1) * math.exp(-self.b * least)
        return once + self.bytes_a * again_a + self.bytes_b * again_b


def _reads(g: Gemm, tile: Tile, running: float) -> _Reads:
    """Count the reads if so many macro-tiles run in step, whose neighbours share what they read."""
    ce, size = real_parts(g), precision_of(g).itemsize
    rows, columns = -(-g.m * ce // tile.mc), -(-g.n // tile.nc)
    band = TALL if g.k * ce < SHALLOW else BAND
    height = min(rows, band, max(1.0, running))
    width = min(columns, max(1.0, running / height))
    bytes_a = g.m * g.k * size * (g.batch if g.stride_a else 1)
    bytes_b = g.k * g.n * size * (g.batch if g.stride_b else 1)
    return _Reads(bytes_a, bytes_b, max(1.0, columns / width), max(1.0, rows / height))


def _beside_memory(g: Gemm, tile: Tile, clocks: float, running: float, apart: float = 0.0) -> float:
    """Return the clocks of what so many take, and of what memory transfers meanwhile.

    So many macro-tiles run in step, but for a part of all in which no two are.
    """
    transfers = _reads(g, tile, running).transferred()
    if apart:
        transfers += apart * (_reads(g, tile, 1).transferred() - transfers)
    transfers += g.m * g.n * g.batch * precision_of(g).itemsize
    return _norm(clocks, transfers / MEMORY, MEMORY_OVERLAP)


def _alone(
    g: Gemm, unit: _Unit, units: int, tiles: int, slices: int, strip: float, strips: int
) -> Way:
    """Give each macro-tile a work-group."""
    resident = unit.tile.resident
    most = units * resident
    full, rest = divmod(tiles, most)
    busiest = -(-rest // units)  # of the last macro-tiles, on a unit
    stagger = unit.stagger(tiles // units, slices)

    def computed_by(number: int) -> float:
        return unit.computed(number, slices, staggered=stagger > 0)

    computed = computed_by(full * resident + busiest)
    if full and 0 < busiest < resident:
        likely = UNEVEN * (rest / units - busiest + 1) ** UNEVEN_POWER
        computed += likely * (computed_by(full * resident + busiest + 1) - computed)
    if full and unit.tile.kc == DEEP:
        computed *= SMALL.get(unit.tile.area, 1.0)
    clocks = LAUNCH + _beside_memory(g, unit.tile, computed, most)
    if strips <= -tiles % most:  # they run beside the last macro-tiles
        clocks = max(clocks, clocks * (1 - 1 / -(-tiles // most)) + strip)
    else:
        clocks += strip
    return Way(tiles, 0, 0, 1, False, clocks, stagger)


def _sharing(g: Gemm, tile: Tile) -> Tile:
    """Give a macro-tile as work-groups have it that share some."""
    if tile.area != SHARING_AREA:
        return tile
    return tile._replace(resident=min(tile.resident, SHARING_ITEMS[all(wide(g))] // tile.items))


def _shared(g: Gemm, unit: _Unit, units: int, tiles: int, slices: int) -> Way:
    """Share the slices of the last macro-tiles, strips aside."""
    tile, turns = unit.tile, unit.tile.resident
    most = units * turns
    whole = max(0, tiles // most - 1) * most
    share = (tiles - whole) / most
    clocks = unit.computed(whole // units, slices)
    clocks += math.ceil(share * slices) * unit.slices(turns)
    clocks += unit.ends(turns) * max(1.0, share) * SEGMENT_ENDS
    exchanged = turns * tile.area / EXCHANGED / min(1.0, share)
    clocks += exchanged * HIDDEN[min(turns, len(HIDDEN)) - 1]
    clocks = _beside_memory(g, tile, clocks, most, 1 - whole / tiles)
    return Way(whole, tiles - whole, most, 1, False, LAUNCH + SEGMENTS + clocks)


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
    ways = [_alone(g, unit, units, tiles, slices, strip, number)]
    sharing = _sharing(g, tile)
    workers = units * sharing.resident
    fits = (tiles + workers) * slices <= INT32_MAX and workers <= TICKETS
    if shares and tiles % workers and fits:
        way = _shared(g, unit._replace(tile=sharing), units, tiles, slices)
        ways.append(way._replace(clocks=way.clocks + strip))
    best = min(ways, key=lambda way: way.clocks)
    last = min(most // tiles, slices * tile.kc // LEAST_DEPTH) if shares else 0
    for parts in range(2, 0 if strips.number else last + 1):
        computed = unit.computed(-(-tiles * parts // units), -(-slices // parts))
        joins, adding = _adding(units, g, tile, parts)
        if LAUNCH + computed + adding >= best.clocks:  # memory makes it no less
            continue
        clocks = LAUNCH + _beside_memory(g, tile, computed, most / parts) + adding
        if clocks < best.clocks:
            best = Way(tiles, 0, 0, parts, joins, clocks)
    return best
