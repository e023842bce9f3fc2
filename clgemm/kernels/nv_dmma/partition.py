"""How `nv_dmma` cuts a problem: thin edges, fitting macro-tiles, packed operands, parts of K.

Everything here is arithmetic on a `Gemm` and a `Config`.  Its constants were measured on an H200.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.costs import count_macro_tiles
from clgemm.kernels.family import Config, precision_of, round_up

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

LOCAL_BYTES = {(8, 0): 163 << 10, (9, 0): 226 << 10, (10, 0): 226 << 10}
"""Local memory of a work-group by compute capability, for those with fast fp64 tensor cores.

OpenCL reports 48 KB, but a kernel may declare as much as the hardware has."""
ALONE = 2000  # clocks to begin a macro-tile, if there is no other one meanwhile, and ...
STORED = 24  # ... bytes a clock, of a compute unit, to end it
DEEP = 8  # least depth of a part of K: the macro-tile's area (in real numbers) over this, ...
LEAST_DEPTH = 256  # ... and no less than this


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
    ends: float
    """Clocks to begin and to end it; 0 if another one's products hide that."""


def tile_of(mc: int, nc: int, wm: int, wn: int, kc: int, stages: int) -> Tile:
    """Work out what follows from a macro-tile's sizes."""
    area = mc * nc
    is_alone = 2 * stages * (mc + nc) * kc * 8 > LOCAL_BYTES[9, 0]
    return Tile(
        mc, nc, wm, wn, kc, stages, area, 32 * (mc // wm) * (nc // wn),
        ALONE + area * 8 / STORED if is_alone else 0,
    )  # fmt: skip


TILES = (
    tile_of(128, 64, 64, 32, 16, 4), tile_of(64, 128, 64, 32, 16, 4),
    tile_of(128, 64, 32, 32, 32, 3), tile_of(64, 128, 32, 32, 32, 3),
    tile_of(64, 64, 32, 16, 32, 3), tile_of(64, 32, 32, 16, 32, 3), tile_of(32, 32, 16, 16, 32, 3),
)  # fmt: skip
"""What replaces a macro-tile that is too large: those with few work-items share a compute unit."""
ITEMS_OF_UNIT = 256  # work-items that keep a compute unit's tensor cores busy
IDLE = 1.15  # time of the products where there are fewer
LOYAL = 1.05  # a configuration's own macro-tile stays unless another one saves more than this
PRODUCTS = 128  # a clock, of a compute unit
FETCHED = 27  # bytes a clock, of a compute unit when all of them fetch
JOIN = 8000  # clocks of the launch that adds up parts of K, and ...
JOINED = 32  # ... bytes a clock, of a compute unit, that pass through scratch
FULL = 0.9  # of the compute units with a macro-tile each: a device that is busy enough
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


class Cut(NamedTuple):
    """How a problem is cut: macro-tiles, panels, parts of K.  Places in scratch count reals."""

    tiles_m: int
    tiles_n: int
    slices: int
    pack_a: bool
    pack_b: bool
    entries_a: int
    """Entries of the stack that A has panels for: one if all share it."""
    entries_b: int
    packed_b: int
    """Where B's panels start; A's start at 0."""
    partials: int
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
    choices, split = _choices(config, real_parts(g)), config["SPLIT"]
    times = [clocks(traits.compute_units, g, choice.tile, split) for choice in choices]
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
    own = tile_of(
        config["MC"] * ce, config["NC"], config["WM"] * ce, config["WN"],
        config["KC"] * ce, config["STAGES"],
    )  # fmt: skip
    found = []
    for t in (own, *(t for t in TILES if t.area <= own.area)):
        sizes = {"MC": t.mc // ce, "NC": t.nc, "WM": t.wm // ce, "WN": t.wn, "KC": t.kc // ce}
        params = dict(config.params) | sizes | {"STAGES": t.stages}
        usual = Config.of(config.family, params)
        found.append(_Choice(t, usual, Config.of(config.family, params | {"GROUP_M": TALL})))
    return tuple(found)


def clocks(units: int, g: Gemm, tile: Tile, split: int) -> float:
    """Estimate the time of a problem with a macro-tile: products or fetches, ends, and adding up.

    A unit's macro-tiles share its tensor cores, so what counts is how many macro-tiles the busiest
    one has.  Each macro-tile fetches its own rows and columns.
    """
    ce = real_parts(g)
    tiles, depth = count_macro_tiles(g, tile.mc // ce, tile.nc), g.k * ce
    parts = most_parts(units, tiles, tile.area, depth, split)
    rounds = -(-tiles * parts // units)
    products = rounds * tile.area / PRODUCTS
    if (rounds == 1 and tile.items < ITEMS_OF_UNIT) or 2 * tile.items < ITEMS_OF_UNIT:
        products *= IDLE
    fetches = tiles * parts * (tile.mc + tile.nc) * 8 / (units * FETCHED)
    time = max(products, fetches) * depth / parts + rounds * tile.ends
    if parts > 1:
        time += JOIN + 16 * parts * g.m * ce * g.n * g.batch / (units * JOINED)
    return time


def most_parts(units: int, tiles: int, area: int, depth: int, split: int) -> int:
    """Count the parts of K that fill the device, if K is deep enough; depth in real numbers."""
    if not split or tiles >= FULL * units:
        return 1
    # The largest macro-tile's accumulators fill the registers of a compute unit; small ones share.
    if area >= 128 * 128:
        split = max(1, split // 2)
    elif area <= 64 * 32:
        split *= 2
    return max(1, min(units * split // tiles, depth // max(LEAST_DEPTH, area // DEEP)))


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
    packed_b = reals_a * pack_a
    partials = packed_b + reals_b * pack_b
    tiles, depth = count_macro_tiles(g, mc, nc), slices * kc * ce
    most = most_parts(traits.compute_units, tiles, mc * ce * nc, depth, config["SPLIT"])
    span = -(-slices // most)
    parts = max(1, -(-slices // max(1, span)))
    reals = partials + (round_up(parts * g.batch * g.m * g.n * ce, 2) if parts > 1 else 0)
    return Cut(
        tiles_m, tiles_n, slices, pack_a, pack_b, entries_a, entries_b,
        packed_b, partials, parts, span, reals,
    )  # fmt: skip
