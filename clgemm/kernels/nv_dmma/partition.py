"""How `nv_dmma` cuts a problem: thin edges, macro-tiles that fit or are shared, packed operands.

Everything here is arithmetic on a `Gemm` and a `Config`.  Its constants were measured on an H200.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import INT32_MAX, Config, precision_of, round_up

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

LOCAL_BYTES = {(8, 0): 163 << 10, (9, 0): 226 << 10, (10, 0): 226 << 10}
"""Local memory of a work-group by compute capability, for those with fast fp64 tensor cores.

OpenCL reports 48 KB, but a kernel may declare as much as the hardware has."""
# Clocks of a compute unit with which products of random shapes are predicted best (least squares).
LAUNCH = 5600  # of the launch
ENDS = 0.52  # for each element of a macro-tile, until its first slices are there and for its store
HIDDEN = 0.6  # of that, if another macro-tile's products run meanwhile
SEGMENTS = 22800  # for pieces that begin and end within macro-tiles, and a launch for their flags
JOIN = 10000  # of the launch that adds up parts of K, and ...
JOINED = 32  # ... bytes a clock, of a compute unit, that pass through scratch
LEAST_DEPTH = 256  # of a part of K
PRODUCTS = 128  # a clock, if nothing kept them waiting
SLOWER = {128 * 128: 1.16, 128 * 64: 1.3, 64 * 64: 1.37, 64 * 32: 1.53, 32 * 32: 1.9}
"""What keeps them waiting, by the macro-tile's area: smaller ones fetch more a product, ..."""
NARROW = {128 * 128: 1.15, 128 * 64: 1.22, 64 * 64: 1.45, 64 * 32: 2.0, 32 * 32: 2.0}
"""... in copies of 8 bytes if neither operand can be read by pairs, or A is turned as well, ..."""
BUSY_ITEMS = 256  # ... and with fewer work-items at a time ...
IDLE = 1.2  # ... it takes so much longer
APART, FAR_APART = 1.1, 1.2
"""Time of slices that neighbours do not fetch at the same time, from the cache and from memory."""
CACHE = 40e6  # bytes of operands that stay in the cache
EXCHANGED = 9  # elements a clock, of what another work-group computed of a macro-tile
MOST_ITEMS = 512  # work-items of a compute unit at a time, with the registers that each has


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


def _tile(config: Config, ce: int) -> Tile:
    """Give a configuration's macro-tile; an element has `ce` real numbers."""
    return tile_of(
        config["MC"] * ce, config["NC"], config["WM"] * ce, config["WN"],
        config["KC"] * ce, config["STAGES"],
    )  # fmt: skip


TILES = (
    tile_of(128, 64, 64, 32, 16, 4), tile_of(64, 128, 64, 32, 16, 4),
    tile_of(128, 64, 32, 32, 32, 3), tile_of(64, 128, 32, 32, 32, 3),
    tile_of(64, 64, 32, 16, 32, 3), tile_of(64, 32, 32, 16, 32, 3), tile_of(32, 32, 16, 16, 32, 3),
)  # fmt: skip
"""What replaces a macro-tile that is too large."""
LOYAL = 1.03  # a configuration's own macro-tile stays unless another one saves more than this
THIN = 8  # an edge of at most one THIN-th of a macro-tile is cut off ...
MANY = 8  # ... if it is the edge of at least this many macro-tiles
EDGE_WIDTH = 32  # of nv_dmma/edges.cl
EDGE_THICK = 8  # real numbers that a strip has across the edge, at most
SHALLOW = 256  # least depth (in real numbers) at which reading A and B outweighs writing C
TALL = 64  # macro-tiles in a band of the raster below that depth: columns of C written in a piece
LEAST_AREA = 128 * 64  # of a macro-tile: panels of smaller ones would be read too often
LEAST_PACKED = 1024  # rows and columns of a problem whose packing is worth a launch
UNALIGNED = 2  # copies of 8 bytes are slower: packed from one half of the size on
TURNED = 2  # so is a real A that is turned as it is copied


class Way(NamedTuple):
    """Which work-groups compute macro-tiles."""

    whole: int
    """Macro-tiles that have a work-group each."""
    shared: int
    workers: int
    """Work-groups that share the others."""
    parts: int
    """Into which K is cut, of each macro-tile."""
    clocks: float


class Cut(NamedTuple):
    """How a problem is cut: macro-tiles, panels, work-groups.  Places in scratch count reals."""

    tiles_m: int
    tiles_n: int
    slices: int
    pack_a: bool
    pack_b: bool
    entries_a: int
    """Entries of the stack that A has panels for: one if all share it."""
    entries_b: int
    packed_a: int
    """Where A's panels start, behind the flags of shared macro-tiles."""
    packed_b: int
    partials: int
    whole: int
    shared: int
    """Macro-tiles that `workers` share."""
    workers: int
    parts: int
    """Parts of K; 1: K is whole."""
    span: int
    """Slices of a part."""
    reals: int
    """Scratch."""


def real_parts(g: Gemm) -> int:
    """Count the real numbers of an element."""
    return precision_of(g).parts


def without_edges(g: Gemm, config: Config) -> Gemm:
    """Give the problem without thin edges.

    A thin edge would need whole macro-tiles of its own, often a whole wave of them: 2049 rows and
    columns are 289 macro-tiles of 128 x 128, three waves on 132 compute units, 2048 only two.
    """
    if not config["FIT"]:
        return g
    m, n = _without_edge(g.m, config["MC"]), _without_edge(g.n, config["NC"])
    return g if (m, n) == (g.m, g.n) else g._replace(m=m, n=n)


def _without_edge(size: int, tile: int) -> int:
    edge = size % tile
    return size - edge if size >= MANY * tile and edge <= tile // THIN else size


def strips(g: Gemm, main: Gemm) -> tuple[int, int]:
    """Count the strips of the edges right of and below `main`, and give their thickness."""
    right, below = g.n - main.n, g.m - main.m
    most = max(right, below)
    if not most:
        return 0, 0
    thick = min(EDGE_THICK // real_parts(g), 1 << (most - 1).bit_length())
    rows, columns = -(-main.m // EDGE_WIDTH), -(-g.n // EDGE_WIDTH)
    return rows * -(-right // thick) + columns * -(-below // thick), thick


def fitted(traits: DeviceTraits, g: Gemm, config: Config) -> Config:
    """Give the configuration with the macro-tile that takes the least time for this problem."""
    if not config["FIT"]:
        return config
    choices, shares = _choices(config, real_parts(g)), bool(config["SHARE"])
    units = traits.compute_units
    times = [best_way(units, g, choice.tile, shares=shares).clocks for choice in choices]
    least = min(times)
    best = choices[0 if times[0] <= LOYAL * least else times.index(least)]
    return best.shallow if g.k * real_parts(g) < SHALLOW else best.config


class _Choice(NamedTuple):
    tile: Tile
    config: Config
    shallow: Config
    """The same for products of little depth."""


@lru_cache(maxsize=256)
def _choices(config: Config, ce: int) -> tuple[_Choice, ...]:
    """Give the tile of a configuration, then those of `TILES` that are no larger."""
    own = _tile(config, ce)
    found = []
    for t in (own, *(t for t in TILES if t.area <= own.area)):
        sizes = {"MC": t.mc // ce, "NC": t.nc, "WM": t.wm // ce, "WN": t.wn, "KC": t.kc // ce}
        params = dict(config.params) | sizes | {"STAGES": t.stages}
        usual = Config.of(config.family, params)
        found.append(_Choice(t, usual, Config.of(config.family, params | {"GROUP_M": TALL})))
    return tuple(found)


def best_way(units: int, g: Gemm, tile: Tile, *, shares: bool) -> Way:
    """Decide whether macro-tiles are shared, and estimate the clocks that a problem takes.

    A unit's work-groups share its tensor cores, so what counts without sharing is how many
    macro-tiles the busiest unit has.
    """
    ce = real_parts(g)
    tiles, slices = count_macro_tiles(g, tile.mc // ce, tile.nc), -(-g.k * ce // tile.kc)
    wide_a, wide_b = wide(g)
    narrow = (not wide_a or (ce == 1 and g.trans_a)) + (not wide_b)  # operands
    slower = NARROW.get(tile.area, 1.0) ** (narrow / 2)
    end = ENDS * tile.area
    each = tile.kc * tile.area / PRODUCTS * SLOWER.get(tile.area, 1.0) * float(slower)

    def computed(turns: int, count: int) -> float:
        """Return the clocks in which each of a unit's work-groups computes so many slices."""
        return turns * count * each * (IDLE if turns * tile.items < BUSY_ITEMS else 1)

    rounds = -(-tiles // units)
    hidden = HIDDEN if rounds > 1 and tile.resident > 1 else 1.0
    ways = [Way(tiles, 0, 0, 1, LAUNCH + computed(rounds, slices) + rounds * end * hidden)]
    most = units * tile.resident
    if shares and tiles % most and (tiles + most) * slices <= INT32_MAX:
        whole = max(0, tiles // most - 1) * most
        left = tiles - whole
        turns, share = tile.resident, left / most
        clocks = LAUNCH + computed(whole // units, slices) + whole // units * end + SEGMENTS
        apart = APART if (g.m + g.n) * g.k * ce * 8 * g.batch < CACHE else FAR_APART
        clocks += computed(turns, math.ceil(share * slices)) * apart
        clocks += turns * max(1.0, share) * end / 2 + turns * tile.area / EXCHANGED / share
        ways.append(Way(whole, left, most, 1, clocks))
    for parts in range(2, min(most // tiles, slices * tile.kc // LEAST_DEPTH) + 1 if shares else 0):
        turns = -(-tiles * parts // units)
        clocks = LAUNCH + computed(turns, -(-slices // parts)) + turns * end
        clocks += JOIN + 16 * parts * g.m * ce * g.n * g.batch / (units * JOINED)
        ways.append(Way(tiles, 0, 0, parts, clocks))
    return min(ways, key=lambda way: way.clocks)


def wide(g: Gemm) -> tuple[bool, bool]:
    """Tell for A and B whether 16 bytes at an even place can be read as one vector."""
    if precision_of(g).is_complex:
        return True, True
    return (
        g.aligned and not (g.lda | g.stride_a | g.offset_a) % 2,
        g.aligned and not (g.ldb | g.stride_b | g.offset_b) % 2,
    )


def packed(g: Gemm, config: Config) -> tuple[bool, bool]:
    """Tell whether packing A and B pays."""
    if config["FIT"] and (min(g.m, g.n) < LEAST_PACKED or g.k * real_parts(g) < SHALLOW):
        return False, False
    if config["FIT"] and config["MC"] * real_parts(g) * config["NC"] < LEAST_AREA:
        return False, False
    slow_a, slow_b = (1 if is_wide else UNALIGNED for is_wide in wide(g))
    if real_parts(g) == 1 and (g.trans_a or slow_a > 1):
        slow_a *= TURNED
    return 0 < config["PACK_A"] <= g.n * slow_a, 0 < config["PACK_B"] <= g.m * slow_b


def cut(traits: DeviceTraits, g: Gemm, config: Config) -> Cut:
    """Cut a problem into the macro-tiles of a configuration."""
    ce = real_parts(g)
    mc, nc, kc = config["MC"], config["NC"], config["KC"]
    tiles_m, tiles_n, slices = -(-g.m // mc), -(-g.n // nc), -(-g.k // kc)
    entries_a = g.batch if g.stride_a else 1
    entries_b = g.batch if g.stride_b else 1
    reals_a = entries_a * tiles_m * mc * slices * kc * ce
    reals_b = entries_b * tiles_n * nc * slices * kc * ce
    pack_a, pack_b = packed(g, config)
    if (reals_a * pack_a + reals_b * pack_b) * 8 > traits.max_allocation:
        pack_a = pack_b = False
    shares = config["SHARE"] and traits.compute_units * mc * ce * nc * 8 <= traits.max_allocation
    way = best_way(traits.compute_units, g, _tile(config, ce), shares=bool(shares))
    span = -(-slices // way.parts)
    parts = -(-slices // max(1, span))
    packed_a = round_up(way.workers, 32)
    packed_b = packed_a + reals_a * pack_a
    partials = packed_b + reals_b * pack_b
    reals = partials + way.workers * mc * ce * nc
    if parts > 1:
        reals += round_up(parts * g.batch * g.m * g.n * ce, 2)
    whole = way.whole if way.workers else tiles_m * tiles_n * g.batch
    return Cut(
        tiles_m, tiles_n, slices, pack_a, pack_b, entries_a, entries_b,
        packed_a, packed_b, partials, whole, way.shared, way.workers, parts, span, reals,
    )  # fmt: skip
