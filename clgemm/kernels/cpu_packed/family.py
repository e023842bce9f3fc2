"""The `cpu_packed` family: BLIS' loops in one launch, for CPU devices.

A call is cut into tiles of C that the work-groups, one a compute unit, take from a counter.  The
cut is a small cost model in multiplications per step of k: a tile of mt x nt costs mt * nt for its
micro-kernels, and packing its operands as much as `PACK_COST` multiplications an element of A and
of B; the worst-loaded worker decides.  With 8 to 64 units this gives a grid near the square that
has the fewest packed elements, as in Smith et al., "Anatomy of High-Performance Many-Threaded
Matrix Multiplication" (IPDPS 2014), except that workers do not share packed panels: each packs its
own, which costs PACK_COST * (1/mt + 1/nt) of the time, 25 % for tiles of 512 x 512 by this
pessimistic price and the reason not to cut finer than the units need.  `TURNS` cuts finer all the
same where cores are uneven or busy, at 3 to 6 % (measured on 2 cores), and the tuner decides.

Where B is not packed and A has rows for several blocks a worker, blocks of all columns are tiles
of their own: that packs nothing twice.  A worker that has half a core then takes half as many:
1000 x 1000 x 1000 beside a thread that spins on one of two cores takes 6.3 ms instead of 12.3, and
4.3 alone either way (single precision, a Zen 5).

B counts less than A while the slice of it that a tile walks through stays in the cache, and more
when it does not: 256 x 256 is cut along M, 2048 x 2048 along N (each measured 3 to 7 % faster).

A Gram product is cut into square tiles, of which those on and below the diagonal are computed; how
many fit a side is decided by what the busiest worker gets if it takes them in order, the ones on
the diagonal, half the work, last.

Where M and N are too small for the units, K is cut as well.  A part then writes a partial tile,
and the last one done adds them all, alone: `ADD_COST` an element and part, so that K is cut only
where it is long.

Where C is long and thin, its transpose may be computed, and micro-tiles are transposed when they
are stored, those of parts along K too, so that the larger operand need not be packed.  An A of
contiguous rows, as in x @ w.T with few rows of x, becomes a B that is read where it lies (single
precision, 64 x 3351 x 2909 on two cores of a Zen 5: 440 GFLOP/s instead of 260).  A transposed B
becomes an A that is (two cores of a Zen 4, row-major result of 1500 x 8 by way of 1000, the first
operand column-major: s .18 ms instead of .32, d .31 and .36, c .53 and .68, z .84 and 1.77).

A is read where it lies if it is not transposed and meets few columns of B: single precision
16 x 1000 x 1000 takes 128 us instead of 198.  So is B if it is not transposed, or met by few rows
of A; `packs_b` has the exceptions.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from clgemm.kernels.costs import Costs
from clgemm.kernels.family import (
    CANCEL,
    CELL_STEP,
    GEMM_SIGNATURE,
    Config,
    KernelFamily,
    Plan,
    Step,
    gemm_args,
    precision_of,
    round_up,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

PACK_COST = 64  # multiplications that packing one element is worth
ADD_COST = 64  # and writing and adding one element of a partial tile
SLICE_BYTES = 3 << 19  # a slice of B up to this size stays in the second-level cache
NEAR, FAR = 0.75, 1.25  # what a slice of B within, and beyond, that cache costs beside one of A
FIRST_LEVEL_BYTES = 1 << 15  # of the smallest first-level caches
PANELS_BYTES = 3 << 20  # packed panels of B that a worker may keep: 7 % faster than 6 at d 4096
CACHE_WAY_BYTES, CACHE_WAYS = 4096, 8  # of first-level caches, the least common ones
SECOND_WAY_BYTES = 1 << 16  # of second-level ones
FAR_BYTES = 12 << 20  # beyond what a last-level cache has left beside others who use it
FEW_PANELS = 2  # of one operand: what lies badly in the other is read as often, and not packed
FEW_COLUMNS = {"s": 384, "d": 192, "c": 192, "z": 192}  # of B, for which A is not packed: measured
FEWER_COLUMNS = {"s": 20, "d": 20, "c": 20, "z": 12}  # the same where vectors are narrow
NEAR_BYTES = 4 << 20  # beyond which a B comes from memory there
MANY_ROWS = 3072  # of A, for which packing B costs next to nothing
PACKED_ROWS = {"s": 32, "d": 32, "c": 32, "z": MANY_ROWS}  # the same where vectors are narrow
FEWEST_TURNED = {"s": 6, "d": 4, "c": 6, "z": 2}  # columns of B, with which C is turned: measured
MOST_TURNED = {"s": 160, "d": 80, "c": 80, "z": 80}  # columns, or rows, and at most
TURNED_EXTENTS = 4  # times as long the other side of C is, at least
TURNED_DEPTH = 128  # of K, at least, where A becomes B
LEAST_TURNED_DEPTH = 64  # and where B becomes A
LEAST_DEPTH = 384  # of a part of K, however deep slices are
PARTIAL_BYTES = 1 << 20  # the largest partial tile
MOST_SQUARES = 8  # more than the fewest tiles along a side of C that are tried for a triangle
MANY_TILES = 16  # a worker: so many come out even
MOST_TURNS = 8  # of a worker, which cost nothing
EVEN = 1.03  # times its share, that a worker may get
LEAST_BLOCK = 0.5  # of the rows of a block: fewer read B more often
LEAST_TURN = 1 << 20  # multiplications of a tile that is worth a turn of its own
PLANNED = frozenset({"KC", "BLOCK_KB", "TURNS"})  # parameters of the plan, not of the kernel
NARROWEST = 256  # columns of a tile that is cut once more so that a busy core can take fewer
VECTORS = 32  # SIMD registers the widest CPUs have; AVX2 and NEON compilers spill beyond 16
WIDE_BYTES = 64  # AVX-512
SCRATCH_ALIGN = 512  # reals; keeps every panel on a cache line


class Tiles(NamedTuple):
    """How a problem is cut."""

    mt: int
    nt: int
    kt: int
    """Rows, columns and depth of a part."""
    mc: int
    """Rows of a block of A."""
    kc: int
    """Depth of a slice."""
    tiles: int
    parts: int
    """Parts along K of each tile."""


class _Cut(NamedTuple):
    """In how many parts each dimension is cut."""

    m: int
    n: int
    k: int


class CpuPacked(KernelFamily):
    """GotoBLAS/BLIS blocking with fused packing and one work-item a work-group."""

    name: ClassVar[str] = "cpu_packed"
    files: ClassVar[tuple[str, ...]] = (
        "cpu_packed/pack.cl",
        "cpu_packed/micro_kernel.cl",
        "cpu_packed/gemm.cl",
    )

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """CPU devices: on others a work-group of one would waste the machine."""
        return traits.kind == "cpu" and self.computes_in(traits, precision)

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give micro-tiles, unrolls and block sizes; the landscape is flat near the best."""
        widest = traits.simd_bytes // precision.real_bytes
        mv = (3, 2, 4) if traits.simd_bytes >= WIDE_BYTES else (2, 3, 1)
        parts = precision.parts
        return {
            "VW": (widest,),
            "MR": tuple(widest * v // parts for v in mv),
            "NR": tuple(columns // parts for columns in (8, 12, 6, 14, 4)),
            "KC": (384, 256, 512, 768, 1024),
            "BLOCK_KB": (256, 512),
            "TURNS": (1, 2),
            "PREFETCH_C": (int(traits.clang_builtins),),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give a tile that fills the registers: 32 of them with AVX-512, 16 with AVX2 or NEON."""
        widest, parts = traits.simd_bytes // precision.real_bytes, precision.parts
        vectors, columns = (3, 8) if traits.simd_bytes >= WIDE_BYTES else (2, 6)
        return Config.of(
            self.name,
            {
                "VW": widest,
                "MR": widest * vectors // parts,
                "NR": columns // parts,
                "KC": 384,
                "BLOCK_KB": 256,
                "TURNS": 1,
                "PREFETCH_C": int(traits.clang_builtins),
            },
        )

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what keeps a configuration from being fast or legal."""
        vw, parts = config["VW"], precision.parts
        rows, columns = config["MR"] * parts, config["NR"] * parts
        if vw not in {2, 4, 8, 16}:
            yield "VW is a vector width of OpenCL"
            return
        if config["KC"] * config["NR"] * precision.itemsize > FIRST_LEVEL_BYTES:
            yield "a panel of B fits a first-level cache"
        vectors = rows // vw
        registers = VECTORS if traits.simd_bytes >= WIDE_BYTES else VECTORS // 2
        if rows % vw:
            yield "the rows of MR are whole vectors"
        if vectors * columns + vectors + 1 > registers:
            yield "the micro-tile, a column of A and one element of B fit the registers"
        if vectors * columns * 2 < registers:
            yield "the micro-tile uses at least half of the registers"

    def tiles(self, traits: DeviceTraits, g: Gemm, config: Config) -> Tiles:
        """Cut a problem for the device's compute units."""
        mr, itemsize = config["MR"], precision_of(g).itemsize
        g = self._seen(g, config)
        cut = min(
            self._cuts(traits, g, config), key=lambda cut: (_cost(traits, g, config, cut), cut)
        )
        cut_n = cut.n
        whole = g.batch == 1 and cut.k == 1 and not g.triangle
        if whole and g.n >= cut_n * config["TURNS"] * NARROWEST:
            cut_n *= config["TURNS"]
        mt, nt = _tile(g, config, cut.m, cut_n)
        kt = -(-g.k // cut.k)
        kc = -(-kt // -(-kt // config["KC"]))
        mc = max(mr, (config["BLOCK_KB"] << 10) // (kc * itemsize) // mr * mr)
        mc = round_up(-(-mt // -(-mt // mc)), mr)  # equal blocks instead of a small last one
        if whole and not self.packs_b(g, config):
            rows = _block_of_turns(traits, g, mr, mc)
            if rows * g.n * kt >= LEAST_TURN:
                mt, nt, mc = rows, round_up(g.n, max(1, config["NR"] // 2)), rows
        tiles = _tiles(g, -(-g.m // mt), -(-g.n // nt))
        return Tiles(mt, nt, kt, mc, kc, tiles, -(-g.k // kt))

    def _cuts(self, traits: DeviceTraits, g: Gemm, config: Config) -> Iterator[_Cut]:
        """Yield the ways to cut that may be the best."""
        units, kc = traits.compute_units, config["KC"]
        m_panels, n_panels = -(-g.m // config["MR"]), -(-g.n // config["NR"])
        panel = min(g.k, kc) * precision_of(g).itemsize * config["NR"]
        widest = max(1, PANELS_BYTES // panel) if self.packs_b(g, config) else n_panels
        if g.triangle:
            fewest = min(m_panels, -(-n_panels // widest))
            most = min(m_panels, fewest + MOST_SQUARES + math.isqrt(2 * units))
            for cut in range(fewest, most + 1):
                yield _Cut(cut, cut, 1)
                yield from self._cut_along_k(traits, g, cut, cut)
            return
        for cut_m in range(1, min(units, m_panels) + 1):
            for wish in {1, -(-units // cut_m), -(-2 * units // cut_m)}:
                cut_n = min(n_panels, max(-(-n_panels // widest), wish))
                yield _Cut(cut_m, cut_n, 1)
                yield from self._cut_along_k(traits, g, cut_m, cut_n)

    @staticmethod
    def _cut_along_k(traits: DeviceTraits, g: Gemm, cut_m: int, cut_n: int) -> Iterator[_Cut]:
        """Yield the way to cut K as well, if tiles are too few."""
        tiles = _tiles(g, cut_m, cut_n)
        cut_k = min(traits.compute_units // tiles, g.k // LEAST_DEPTH)
        fits = g.m * g.n * precision_of(g).itemsize <= PARTIAL_BYTES * cut_m * cut_n
        if g.batch == 1 and cut_k > 1 and tiles < CELL_STEP - CANCEL and fits:
            yield _Cut(cut_m, cut_n, cut_k)

    @classmethod
    def is_turned(cls, g: Gemm, config: Config) -> bool:
        """Tell whether the transpose of C is computed, and turned as it is stored.

        It is where that saves packing the larger operand: a transposed B, of which few rows of A
        make little use of each line of the cache, becomes an A that is read where it lies; an A of
        contiguous rows becomes a B that is.  The second way gains less, and nothing where the
        short side of C has fewer columns than `FEWEST_TURNED`.
        """
        most, depth = MOST_TURNED[g.precision], 0 if g.triangle else g.k
        if g.trans_b and g.m <= min(most, g.n // TURNED_EXTENTS):
            enough = g.m > 1 and depth >= LEAST_TURNED_DEPTH
            return enough and not cls.packs_a(_turned(g), config)
        if g.trans_a and FEWEST_TURNED[g.precision] <= g.n <= min(most, g.m // TURNED_EXTENTS):
            return depth >= TURNED_DEPTH and not cls.packs_b(_turned(g), config)
        return False

    def _seen(self, g: Gemm, config: Config) -> Gemm:
        """Return the problem as the micro-kernel has it."""
        return _turned(g) if self.is_turned(g, config) else g

    @staticmethod
    def packs_a(g: Gemm, config: Config) -> bool:
        """Tell whether A is packed: not if its columns lie in one piece each and B has few.

        Such columns lie far apart, and no prefetcher of the CPU brings them, so the micro-kernel
        fetches those of the next panel while one meets all panels of B.  Each comes from memory
        once, beside the arithmetic (two cores of a Zen 4, row-major operands: z 18 x 1705 x 3301
        8.5 ms; packed, or fetched without the lines in which vectors end, 13; NumPy 12.5).  At
        `FEW_COLUMNS` both ways take as long, within 3 %.

        Of columns that fall on the same sets of the second-level cache a panel does not stay there:
        they are packed but for very few columns of B (z 12 x 4096 x 512: 2.9 ms instead of 3.3;
        with 80 columns 15 instead of 13).

        With narrow vectors a micro-tile has a line of the cache or two of each column, which memory
        brings more slowly than more of one: A is packed for fewer columns of B (vectors of 32 bytes
        on two cores of a Zen 4, packed and not: d 12 x 1500 x 1500 .9 and .7 ms, 20 x 1500 x 1500
        1.4 and 1.2, 80 x 1500 x 1500 4.2 and 4.2; z 6 x 1500 x 1500 2.4 and 1.7, 80 x 1500 x 1500
        15 and 20).
        """
        itemsize = precision_of(g).itemsize
        step = g.lda * itemsize
        if g.trans_a:
            return True
        few = (FEWER_COLUMNS if _is_narrow(g, config) else FEW_COLUMNS)[g.precision]
        alike = step % SECOND_WAY_BYTES == 0
        return bool(g.n > (min(few, FEW_PANELS * config["NR"]) if alike else few))

    @staticmethod
    def packs_b(g: Gemm, config: Config) -> bool:
        """Tell whether B is packed.

        It is where its rows are streams of their own and many rows of A meet them.  So is a B whose
        columns fall on the same few cache sets, if there are more of them than an 8-way cache has
        room for (12 of them at n = 512: 16 % slower), or if there are enough rows to pay for it.
        And so is one whose rows come from memory, not from a cache, since packing reads more of
        each at a time (c 10 x 3449 x 1327: 2.8 ms instead of 4.2).  Half as much, in single
        precision, lies in the cache only at times: packed .69 ms, else .63 or 2.0.

        With narrow vectors a micro-kernel loads twice as often beside its products, and the caches
        of such CPUs are small: there B is packed for fewer rows (two cores of a Zen 3, AVX2, double
        precision: 512 x 512 x 512 takes 5.2 ms instead of 6.3, 64 x 512 x 512 as long either way).
        It begins at 32 rows, which take a tenth longer so: below the 37 of a search's wide shape,
        which would need a kernel of its own.  complex128 gains nothing at any size.  Rows of a B of
        more than NEAR_BYTES come from memory there (d 16 x 1500 x 1500: 3.4 ms instead of 10.9).
        """
        itemsize = precision_of(g).itemsize
        alike = g.ldb * itemsize % CACHE_WAY_BYTES == 0
        crowded = config["NR"] > CACHE_WAYS or g.m >= MANY_ROWS
        again = g.trans_b and g.m > FEW_PANELS * config["MR"]
        nbytes, is_narrow = g.n * g.k * itemsize, _is_narrow(g, config)
        far = nbytes > NEAR_BYTES if is_narrow else g.m <= config["MR"] and nbytes > FAR_BYTES
        often = is_narrow and g.m >= PACKED_ROWS[g.precision]
        return bool(again or (g.trans_b and far) or often or (alike and (crowded or g.trans_b)))

    def costs(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Costs:
        """Count micro-tiles, narrow ones at the edges, slices of C, and what is packed."""
        g, units = self._seen(problem, config), traits.compute_units
        p = dict(config.params)
        rows = round_up(g.m, p["VW"] // precision_of(g).parts)
        half = max(1, p["NR"] // 2)
        columns = round_up(g.n, half)
        panels = -(-g.m // p["MR"]) * -(-g.n // p["NR"]) * g.batch
        packed = g.m + (g.n if self.packs_b(g, config) else 0)
        share = min(1.0, (g.n + p["MR"]) / (2 * g.n)) if g.triangle else 1.0
        return Costs(
            1,
            g.k,
            share * rows * columns * g.k * g.batch / units,
            -(-panels * share // units) * p["MR"] * p["NR"] * g.k,
            packed * g.k * g.batch,
            g.m * g.n * g.batch * -(-g.k // p["KC"]),
        )

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Lay out one launch of as many workers as there are compute units and tiles."""
        precision = precision_of(problem)
        tiles = self.tiles(traits, problem, config)
        workers = min(traits.compute_units, tiles.tiles * tiles.parts)
        seen = self._seen(problem, config)
        packs_b = self.packs_b(seen, config)
        width = tiles.mc + config["MR"] + (tiles.nt + config["NR"] if packs_b else 0)
        elements = width * tiles.kc
        reals = elements * precision.parts
        # The odd cache lines keep the workers' scratch off the same cache sets.
        stride = round_up(reals, SCRATCH_ALIGN) + 64
        defines = {k: v for k, v in config.params if k not in PLANNED}
        defines["PACK_A"], defines["PACK_B"] = int(self.packs_a(seen, config)), int(packs_b)
        defines["TURNED"] = int(seen is not problem)
        defines["CLANG_BUILTINS"] = int(traits.clang_builtins)
        spec = self.spec(
            "cpu_packed", precision, Config.of(self.name, defines), GEMM_SIGNATURE + "pipliiiiii"
        )
        args = (
            *gemm_args(problem), "counters", "cell",
            "scratch", stride, tiles.mt, tiles.nt, tiles.kt, tiles.mc, tiles.kc,
            _turn(problem, tiles, workers),
        )  # fmt: skip
        step = Step(spec, (workers,), (1,), args)
        partials = tiles.tiles * tiles.parts * tiles.mt * tiles.nt if tiles.parts > 1 else 0
        scratch_bytes = stride * workers * precision.real_bytes + partials * precision.itemsize
        return Plan((step,), scratch_bytes, counts=True)


def _block_of_turns(traits: DeviceTraits, g: Gemm, mr: int, mc: int) -> int:
    """Return the rows of blocks of A that may well be tiles of their own, 0 if there are none.

    Each block packs its own rows and reads all of B anyway, so that such tiles cost nothing if the
    workers come out even.  One that comes late, or has only part of a core, takes fewer.
    """
    units = traits.compute_units
    for turns in range(MOST_TURNS, 1, -1):
        rows = round_up(-(-g.m // (units * turns)), mr)
        blocks = -(-g.m // rows)
        most = rows * -(-blocks // units)
        if LEAST_BLOCK * mc <= rows <= mc and most * units <= EVEN * g.m:
            return rows
    return 0


def _is_narrow(g: Gemm, config: Config) -> bool:
    """Tell whether vectors are shorter than those of AVX-512, as those of AVX2 and NEON are."""
    return config["VW"] * precision_of(g).real_bytes < WIDE_BYTES


def _turned(g: Gemm) -> Gemm:
    """Return the problem whose result is the transpose, but for how that lies."""
    return g._replace(
        m=g.n, n=g.m,
        trans_a=not g.trans_b, conj_a=g.conj_b, lda=g.ldb, stride_a=g.stride_b,
        trans_b=not g.trans_a, conj_b=g.conj_a, ldb=g.lda, stride_b=g.stride_a,
    )  # fmt: skip


def _turn(g: Gemm, tiles: Tiles, workers: int) -> int:
    """Return how many tiles of a stack a worker takes at once.

    Small matrices that lie one after another are fetched sooner by one core, and the counter is a
    line of the cache that all workers write.
    """
    if tiles.parts > 1:
        return 1
    least = -(-LEAST_TURN // (tiles.mt * tiles.nt * g.k))
    return max(1, min(least, tiles.tiles // (workers * MOST_TURNS)))


def _tile(g: Gemm, config: Config, cut_m: int, cut_n: int) -> tuple[int, int]:
    """Return rows and columns of a tile, such that the last micro-tiles are narrow, not empty.

    Tiles of a triangle are square.
    """
    vector = config["VW"] // precision_of(g).parts
    if g.triangle:
        side = round_up(-(-g.m // cut_m), vector)
        return side, side
    return (
        round_up(-(-g.m // cut_m), vector),
        round_up(-(-g.n // cut_n), max(1, config["NR"] // 2)),
    )


def _tiles(g: Gemm, rows: int, columns: int) -> int:
    """Count the tiles that are computed."""
    return (rows * (rows + 1) // 2 if g.triangle else rows * columns) * g.batch


def _cost(traits: DeviceTraits, g: Gemm, config: Config, cut: _Cut) -> float:
    """Estimate the time of the worst-loaded worker, in multiplications."""
    itemsize, (mt, nt) = precision_of(g).itemsize, _tile(g, config, cut.m, cut.n)
    units = traits.compute_units
    near = min(g.k, config["KC"]) * nt * itemsize <= SLICE_BYTES
    packing = PACK_COST * (mt + nt * (NEAR if near else FAR))
    adding = ADD_COST * mt * nt * cut.k if cut.k > 1 else 0
    if g.triangle:
        below, on_diagonal = cut.m * (cut.m - 1) // 2, cut.m
        prices = mt * nt + packing, mt * (nt + config["MR"]) / 2 + packing
        counts = below * cut.k * g.batch, on_diagonal * cut.k * g.batch
        busiest = _busiest(units, counts, prices)
    else:
        turns = -(-cut.m * cut.n * cut.k * g.batch // units)
        busiest = turns * (mt * nt + packing)
    return busiest * (g.k / cut.k) + adding


def _busiest(units: int, counts: tuple[int, int], prices: tuple[float, float]) -> float:
    """Return what the worst-loaded worker does if tiles of two prices are taken in order."""
    if sum(counts) > MANY_TILES * units:
        return (counts[0] * prices[0] + counts[1] * prices[1]) / units + prices[1]
    loads = [0.0] * units
    for count, price in zip(counts, prices, strict=True):
        for _ in range(count):
            heapq.heapreplace(loads, loads[0] + price)
    return max(loads)
