"""How `nv_dmma` cuts a problem: thin edges, fitting macro-tiles, packed operands, parts of K.

Everything here is arithmetic on a `Gemm` and a `Config`.  Its constants were measured on an H200.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.family import Config, precision_of, round_up

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

LOCAL_BYTES = {(8, 0): 163 << 10, (9, 0): 226 << 10, (10, 0): 226 << 10}
"""Local memory of a work-group by compute capability, for those with fast fp64 tensor cores.

OpenCL reports 48 KB, but a kernel may declare as much as the hardware has."""
Shape = tuple[int, int, int, int, int, int]
"""MC, NC, WM, WN, KC, STAGES; rows and depth in real numbers."""
SHAPES: tuple[Shape, ...] = (
    (128, 64, 64, 32, 16, 4), (64, 128, 64, 32, 16, 4),
    (128, 64, 32, 32, 32, 3), (64, 128, 32, 32, 32, 3),
    (64, 64, 32, 16, 32, 3), (64, 32, 32, 16, 32, 3), (32, 32, 16, 16, 32, 3),
)  # fmt: skip
"""What replaces a macro-tile that is too large: those with few work-items share a compute unit."""
ITEMS_OF_UNIT = 256  # work-items that keep a compute unit's tensor cores busy
IDLE = 1.15  # time of the products where there are fewer
ALONE = 2000  # clocks to begin a macro-tile, if there is no other one meanwhile, and ...
STORED = 24  # ... bytes a clock, of a compute unit, to end it
LOYAL = 1.05  # a configuration's own macro-tile stays unless another one saves more than this
PRODUCTS = 128  # a clock, of a compute unit
FETCHED = 27  # bytes a clock, of a compute unit when all of them fetch
JOIN = 8000  # clocks of the launch that adds up parts of K, and ...
JOINED = 32  # ... bytes a clock, of a compute unit, that pass through scratch
FULL = 0.9  # of the compute units with a macro-tile each: a device that is busy enough
THIN = 8  # an edge of at most one THIN-th of a macro-tile is cut off ...
MANY = 8  # ... if it is the edge of at least this many macro-tiles
DEEP = 8  # least depth of a part of K: the macro-tile's area (in real numbers) over this, ...
LEAST_DEPTH = 256  # ... and no less than this
UNCUT = {"PACK_A": 0, "PACK_B": 0, "SPLIT": 0, "FIT": 0}
SHALLOW = 256  # least depth (in real numbers) at which reading A and B outweighs writing C
TALL = 64  # macro-tiles in a band of the raster below that depth: columns of C written in a piece
LEAST_AREA = 128 * 64  # of a macro-tile: panels of smaller ones would be read too often
LEAST_PACKED = 1024  # rows and columns of a problem whose packing is worth a launch
UNALIGNED = 2  # copies of 8 bytes are slower: packed from one half of the size on


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
    precision = precision_of(g)
    return precision.itemsize // precision.real_bytes


def without_edges(g: Gemm, config: Config) -> Gemm:
    """Give the problem without thin edges.

    A thin edge would need whole macro-tiles of its own, often a whole wave of them: 2049 rows and
    columns are 289 macro-tiles of 128 x 128, three waves on 132 compute units, 2048 only two.
    """
    m, n = (
        size - size % tile
        if config["FIT"] and size >= MANY * tile and size % tile <= tile // THIN
        else size
        for size, tile in ((g.m, config["MC"]), (g.n, config["NC"]))
    )
    return g._replace(m=m, n=n)


def edge_config(traits: DeviceTraits, g: Gemm, config: Config) -> Config:
    """Give the configuration of the launch for thin edges: small macro-tiles, many loads under way.

    There are too few of them to hide much behind each other, so warps share the depth.
    """
    ce = real_parts(g)
    stages = 6 if LOCAL_BYTES.get(traits.compute_capability or (0, 0), 0) > 200 << 10 else 4
    sizes = {"MC": 16 // ce, "NC": 16, "KC": 64 // ce, "WM": 16 // ce, "WN": 16, "WK": 4}
    return Config.of(config.family, dict(config.params) | sizes | {"STAGES": stages, **UNCUT})


def edge_tiles(g: Gemm, main: Gemm, config: Config) -> int:
    """Count the macro-tiles of the edges right of and below `main`, which fit one each."""
    right = -(-main.m // config["MC"]) if main.n < g.n else 0
    below = -(-g.n // config["NC"]) if main.m < g.m else 0
    return right + below


def fitted(traits: DeviceTraits, g: Gemm, config: Config) -> Config:
    """Give the configuration with the macro-tile that takes the least time for this problem."""
    if not config["FIT"]:
        return config
    ce = real_parts(g)
    own: Shape = (
        config["MC"] * ce, config["NC"], config["WM"] * ce, config["WN"],
        config["KC"] * ce, config["STAGES"],
    )  # fmt: skip
    time = {
        s: clocks(traits, g, s, config) for s in (own, *SHAPES) if s[0] * s[1] <= own[0] * own[1]
    }
    best = min(time, key=lambda s: time[s])
    mc, nc, wm, wn, kc, stages = own if time[own] <= LOYAL * time[best] else best
    sizes = {"MC": mc // ce, "NC": nc, "WM": wm // ce, "WN": wn, "KC": kc // ce, "STAGES": stages}
    if g.k * ce < SHALLOW:
        sizes["GROUP_M"] = TALL
    return Config.of(config.family, dict(config.params) | sizes)


def clocks(traits: DeviceTraits, g: Gemm, shape: Shape, config: Config) -> float:
    """Estimate the time of a problem with a macro-tile: products or fetches, ends, and adding up.

    A unit's macro-tiles share its tensor cores, so what counts is how many macro-tiles the busiest
    one has.  Each macro-tile fetches its own rows and columns.
    """
    ce, units = real_parts(g), traits.compute_units
    mc, nc, wm, wn, kc, stages = shape
    depth = g.k * ce
    tiles = -(-g.m * ce // mc) * -(-g.n // nc) * g.batch
    wanted = wanted_parts(traits, tiles, mc * nc, config)
    parts = max(1, min(wanted, depth // least_depth(mc * nc)))
    work = tiles * parts
    rounds = -(-work // units)
    items = 32 * (mc // wm) * (nc // wn)
    idle = IDLE if items * min(rounds, 2) < ITEMS_OF_UNIT else 1
    products = rounds * mc * nc / PRODUCTS * idle
    fetches = work * (mc + nc) * 8 / (units * FETCHED)
    joins = JOIN + 16 * parts * g.m * ce * g.n * g.batch / (units * JOINED) if parts > 1 else 0
    is_alone = 2 * stages * (mc + nc) * kc * 8 > LOCAL_BYTES[9, 0]
    ends = rounds * (ALONE + mc * nc * 8 / STORED) if is_alone else 0
    return max(products, fetches) * depth / parts + ends + joins


def least_depth(area: int) -> int:
    """Give the least depth, in real numbers, of a part of K that is worth a launch to add it up."""
    return max(LEAST_DEPTH, area // DEEP)


def wanted_parts(traits: DeviceTraits, tiles: int, area: int, config: Config) -> int:
    """Give the number of parts of K that fill the device, were K deep enough."""
    if not config["SPLIT"] or tiles >= FULL * traits.compute_units:
        return 1
    # The largest macro-tile's accumulators fill the registers of a compute unit; small ones share.
    groups = config["SPLIT"]
    if area >= 128 * 128:
        groups = max(1, groups // 2)
    elif area <= 64 * 32:
        groups *= 2
    return traits.compute_units * groups // tiles


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
    easy_a, easy_b = (1 if is_wide else UNALIGNED for is_wide in wide(g))
    return 0 < config["PACK_A"] <= g.n * easy_a, 0 < config["PACK_B"] <= g.m * easy_b


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
    wanted = wanted_parts(traits, tiles_m * tiles_n * g.batch, mc * ce * nc, config)
    span = -(-slices // max(1, min(wanted, slices * kc * ce // least_depth(mc * ce * nc))))
    parts = max(1, -(-slices // max(1, span)))
    reals = partials + (round_up(parts * g.batch * g.m * g.n * ce, 2) if parts > 1 else 0)
    return Cut(
        tiles_m, tiles_n, slices, pack_a, pack_b, entries_a, entries_b,
        packed_b, partials, parts, span, reals,
    )  # fmt: skip
