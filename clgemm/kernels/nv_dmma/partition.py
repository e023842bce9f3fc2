"""How `nv_dmma` cuts a problem: thin edges, macro-tiles that fit or are shared, packed operands.

Everything here is arithmetic on a `Gemm` and a `Config`; `estimate` says what takes how long.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.family import Config, round_up
from clgemm.kernels.nv_dmma.estimate import (
    DEEP,
    EDGE_WIDTH,
    NO_STRIPS,
    SHALLOW,
    TALL,
    Strips,
    Tile,
    best_way,
    real_parts,
    tile_of,
    wide,
)

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits


def tile(config: Config, ce: int) -> Tile:
    """Give a configuration's macro-tile; an element has `ce` real numbers."""
    return tile_of(
        config["MC"] * ce, config["NC"], config["WM"] * ce, config["WN"],
        config["KC"] * ce, config["STAGES"], ce,
    )  # fmt: skip


TILES = (
    tile_of(128, 64, 64, 32, 16, 4), tile_of(64, 128, 64, 32, 16, 4),
    tile_of(128, 64, 32, 32, 32, 3), tile_of(64, 128, 32, 32, 32, 3),
    tile_of(64, 64, 32, 16, 32, 3), tile_of(64, 32, 32, 16, 32, 3), tile_of(32, 64, 32, 16, 32, 3),
    tile_of(32, 32, 16, 16, 32, 3), tile_of(64, 64, 32, 32, 16, 4),
    tile_of(128, 32, 32, 32, 16, 4), tile_of(32, 128, 32, 32, 16, 4),
    tile_of(64, 64, 32, 16, 16, 4),
    tile_of(48, 64, 48, 16, 16, 4), tile_of(64, 48, 16, 48, 32, 3), tile_of(64, 48, 16, 48, 16, 4),
    tile_of(64, 80, 16, 80, 16, 4),
    tile_of(64, 96, 32, 48, 16, 4), tile_of(96, 64, 48, 32, 16, 4),
    tile_of(48, 128, 48, 32, 16, 4), tile_of(128, 48, 32, 48, 16, 4),
    tile_of(80, 128, 80, 16, 16, 4), tile_of(128, 80, 16, 80, 16, 4),
    tile_of(96, 128, 48, 32, 16, 4), tile_of(128, 96, 32, 48, 16, 4),
    tile_of(112, 128, 112, 16, 16, 4),
)  # fmt: skip
"""What replaces a macro-tile that is too large.

Those that are no powers of two waste less where C has a few rows or columns more than one: an H100
takes 245 us for complex128 67 x 3972 x 3405 by 32 columns, and 168 by 80."""
THIN = 8  # an edge of at most one THIN-th of a macro-tile is cut off ...
MANY = 8  # ... if it is the edge of at least this many macro-tiles ...
WORTH_STRIPS = 0.95  # ... and the rest takes less than this of the time without that
HALF_SLICES = 16, 3  # depth and stages where one of the deepest slices would be all of the depth
EDGE_THICK = 8  # real numbers that a strip has across the edge, at most
LEAST_AREA = 128 * 64  # of a macro-tile: panels of smaller ones would be read too often
LEAST_PACKED = 1024  # rows and columns of a problem whose packing is worth a launch
UNALIGNED = 2  # copies of 8 bytes are slower: packed from one half of the size on
FAR = 2  # a real A of which copies are slower


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
    joins: bool
    """Whether the last part of a macro-tile adds them all up, without another launch."""
    reals: int
    """Scratch."""
    stagger: int
    """Clocks by which one macro-tile of a unit begins after another."""

    @property
    def takes_tickets(self) -> bool:
        """Whether work-groups meet at tickets or flags."""
        return self.joins or self.workers > 0


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


def strips(g: Gemm, main: Gemm) -> Strips:
    """Count the strips of the edges right of and below `main`, and give their thickness."""
    right, below = g.n - main.n, g.m - main.m
    most = max(right, below)
    if not most:
        return NO_STRIPS
    thick = min(EDGE_THICK // real_parts(g), 1 << (most - 1).bit_length())
    rows, columns = -(-main.m // EDGE_WIDTH), -(-g.n // EDGE_WIDTH)
    return Strips(rows * -(-right // thick) + columns * -(-below // thick), thick)


def chosen(traits: DeviceTraits, g: Gemm, config: Config) -> tuple[Gemm, Config]:
    """Give what macro-tiles compute of a problem, and the configuration with the best of them.

    Thin edges are cut off where that takes less time.
    """
    main = without_edges(g, config)
    best, clocks = _fitted(traits.compute_units, g, config, NO_STRIPS)
    if main != g:
        other, least = _fitted(traits.compute_units, main, config, strips(g, main))
        if least < WORTH_STRIPS * clocks:
            return main, other
    return g, best


def fitted(traits: DeviceTraits, g: Gemm, config: Config) -> Config:
    """Give the configuration with the macro-tile that takes the least time for this problem."""
    return _fitted(traits.compute_units, g, config, NO_STRIPS)[0]


def _fitted(units: int, g: Gemm, config: Config, beside: Strips) -> tuple[Config, float]:
    """Give that configuration, and the clocks that it takes with the strips that are beside."""
    if not config["FIT"]:
        return config, 0.0
    choices, shares = _choices(config, real_parts(g), _fits_a_slice(g)), bool(config["SHARE"])
    times = [best_way(units, g, x.tile, shares=shares, strips=beside).clocks for x in choices]
    best = times.index(min(times))
    shallow = g.k * real_parts(g) < SHALLOW
    return choices[best].shallow if shallow else choices[best].config, times[best]


def _fits_a_slice(g: Gemm) -> bool:
    """Tell whether one of the deepest slices holds all of a problem's depth."""
    return g.k * real_parts(g) <= DEEP


class _Choice(NamedTuple):
    tile: Tile
    config: Config
    shallow: Config
    """The same for products of little depth."""


@lru_cache(maxsize=256)
def _choices(config: Config, ce: int, fits_a_slice: bool) -> tuple[_Choice, ...]:
    """Give the tile of a configuration, then those of `TILES` that are no larger.

    Where one of the deepest slices holds all of the depth, products would wait for all of it, and
    with half of it or less half of the slice would be zeros.  Slices of half its depth, in three
    stages, take 19.7 us on an H200 for float64 24 x 121464 x 24, a deep one in two 22.9;
    24 x 144000 x 16 16.6 and 22.4; 4000 x 4000 x 24 48.3, and 51.4 in four.
    """
    own = tile(config, ce)
    found = []
    for usual in (own, *(t for t in TILES if t.area <= own.area)):
        t = tile_of(*usual[:4], *(HALF_SLICES if fits_a_slice else usual[4:6]), ce)
        sizes = {"MC": t.mc // ce, "NC": t.nc, "WM": t.wm // ce, "WN": t.wn, "KC": t.kc // ce}
        params = dict(config.params) | sizes | {"STAGES": t.stages}
        deep = Config.of(config.family, params)
        found.append(_Choice(t, deep, Config.of(config.family, params | {"GROUP_M": TALL})))
    return tuple(found)


def packed(g: Gemm, config: Config) -> tuple[bool, bool]:
    """Tell whether packing A and B pays."""
    if config["FIT"] and (min(g.m, g.n) < LEAST_PACKED or g.k * real_parts(g) < SHALLOW):
        return False, False
    if config["FIT"] and config["MC"] * real_parts(g) * config["NC"] < LEAST_AREA:
        return False, False
    slow_a, slow_b = (1 if is_wide else UNALIGNED for is_wide in wide(g))
    if real_parts(g) == 1 and slow_a > 1:
        slow_a *= FAR
    return 0 < config["PACK_A"] <= g.n * slow_a, 0 < config["PACK_B"] <= g.m * slow_b


def cut(traits: DeviceTraits, g: Gemm, config: Config, beside: Strips = NO_STRIPS) -> Cut:
    """Cut a problem into the macro-tiles of a configuration; strips may be beside them."""
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
    way = best_way(traits.compute_units, g, tile(config, ce), shares=bool(shares), strips=beside)
    span = -(-slices // way.parts)
    parts = -(-slices // max(1, span))
    packed_a = 0
    packed_b = packed_a + reals_a * pack_a
    partials = packed_b + reals_b * pack_b
    reals = partials + way.workers * mc * ce * nc
    whole = way.whole if way.workers else tiles_m * tiles_n * g.batch
    joins = parts > 1 and way.joins
    if joins:
        reals += parts * whole * mc * ce * nc
    elif parts > 1:
        reals += round_up(parts * g.batch * g.m * g.n * ce, 2)
    return Cut(
        tiles_m, tiles_n, slices, pack_a, pack_b, entries_a, entries_b,
        packed_a, packed_b, partials, whole, way.shared, way.workers, parts, span, joins, reals,
        way.stagger,
    )  # fmt: skip
