"""How `nv_dmma` cuts a problem: thin edges, fitting macro-tiles, packed operands, parts of K.

Everything here is arithmetic on a `Gemm` and a `Config`.  Its constants were measured on an H200.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.family import Config, precision_of, round_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

SHAPES = (
    (128, 64, 32, 32), (64, 128, 32, 32), (64, 64, 32, 16), (64, 32, 32, 16), (32, 32, 16, 16),
)  # fmt: skip
"""MC, NC, WM, WN, rows in real numbers: what replaces a macro-tile that is too large."""
FULL = 0.9  # of the compute units with a macro-tile each: a device that is busy enough
DEEP = 8  # least depth of a part of K: the macro-tile's area (in real numbers) over this, ...
LEAST_DEPTH = 256  # ... and no less than this
THIN = 8  # an edge of at most one THIN-th of a macro-tile is cut off ...
MANY = 8  # ... if it is the edge of at least this many macro-tiles
SHALLOW = 256  # least depth (in real numbers) at which reading A and B outweighs writing C
TALL = 64  # macro-tiles in a band of the raster below that depth: columns of C written in a piece
LEAST_PACKED = 1024  # rows and columns of a problem whose packing is worth a launch
EAGER = 4  # an operand that is awkward to copy is packed from one EAGER-th of the size on


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


def pieces(g: Gemm, config: Config) -> Iterator[Gemm]:
    """Yield the problem without thin edges, then the edges.

    A thin edge would need whole macro-tiles of its own, often a whole wave of them: 2049 rows and
    columns are 289 macro-tiles of 128 x 128, three waves on 132 compute units, 2048 only two.
    """
    m, n = (
        size - size % tile
        if config["FIT"] and size >= MANY * tile and size % tile <= tile // THIN
        else size
        for size, tile in ((g.m, config["MC"]), (g.n, config["NC"]))
    )
    yield g._replace(m=m, n=n)
    if m < g.m:
        down = m * (g.lda if g.trans_a else 1)
        yield g._replace(m=g.m - m, offset_a=g.offset_a + down, offset_c=g.offset_c + m)
    if n < g.n:
        right = n * (1 if g.trans_b else g.ldb)
        yield g._replace(
            m=m, n=g.n - n, offset_b=g.offset_b + right, offset_c=g.offset_c + n * g.ldc
        )


def fitted(traits: DeviceTraits, g: Gemm, config: Config) -> Config:
    """Give the configuration with a macro-tile that this problem fills the device with."""
    if not config["FIT"]:
        return config
    ce = real_parts(g)
    own = (config["MC"] * ce, config["NC"], config["WM"] * ce, config["WN"])
    shapes = [own, *(s for s in SHAPES if s[0] * s[1] < own[0] * own[1])]
    for shape in shapes:
        mc, nc = shape[0] // ce, shape[1]
        tiles = -(-g.m // mc) * -(-g.n // nc) * g.batch
        parts = max(1, g.k * ce // least_depth(shape[0] * nc)) if config["SPLIT"] else 1
        if 2 * g.m > mc and 2 * g.n > nc and tiles * parts >= FULL * traits.compute_units:
            break
    sizes = {"MC": shape[0] // ce, "NC": shape[1], "WM": shape[2] // ce, "WN": shape[3]}
    if g.k * ce < SHALLOW:
        sizes["GROUP_M"] = TALL
    return Config.of(config.family, dict(config.params) | sizes)


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
    """Tell whether packing A and B pays.

    A real A that runs along the depth in memory is awkward: its fragments take twice the registers,
    and if B's do so too, pairs have to be moved in registers before each product.
    """
    if config["FIT"] and (min(g.m, g.n) < LEAST_PACKED or g.k * real_parts(g) < SHALLOW):
        return False, False
    wide_a, wide_b = wide(g)
    turned = g.trans_a and not precision_of(g).is_complex
    easy_a, easy_b = (1 if wide_a and not turned else EAGER), (1 if wide_b else EAGER)
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
