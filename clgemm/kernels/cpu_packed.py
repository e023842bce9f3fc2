"""The `cpu_packed` family: BLIS' loops in one launch, for CPU devices.

A call is cut into tiles of C that the work-groups, one a compute unit, take from a counter.  The
cut is a small cost model: a tile of mt x nt costs its micro-kernels, mt*nt*k, plus packing of both
its operands, worth about `PACK_COST` multiplications an element; the worst-loaded worker decides.
With 8 to 64 units this gives a grid near the square that has the fewest packed elements, as in
Smith et al., "Anatomy of High-Performance Many-Threaded Matrix Multiplication" (IPDPS 2014), except
that workers do not share packed panels: each packs its own, which costs PACK_COST * (1/mt + 1/nt)
of the time, 25 % for tiles of 512 x 512 by this pessimistic price and the reason not to cut finer
than the units need.  One tile a worker is the fastest on a quiet machine; `TURNS` cuts finer where
cores are uneven or busy, at 3 to 6 % (measured on 2 cores), and the tuner decides.

B is read where it lies if it is real and not transposed; a tile then keeps a slice of about
KC x nt of it in the cache, so the cut along N stays even though nothing of B is packed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from clgemm.kernels.family import (
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
PANELS_BYTES = 6 << 20  # packed panels of B that a worker may keep
PLANNED = frozenset({"KC", "BLOCK_KB", "TURNS"})  # parameters of the plan, not of the kernel
NARROWEST = 256  # columns of a tile that is cut once more so that a busy core can take fewer
VECTORS = 32  # SIMD registers the widest CPUs have; AVX2 and NEON compilers spill beyond 16
SCRATCH_ALIGN = 512  # reals; keeps every panel on a cache line


class Tiles(NamedTuple):
    """How a problem is cut."""

    mt: int
    nt: int
    mc: int
    kc: int
    tiles: int


class CpuPacked(KernelFamily):
    """GotoBLAS/BLIS blocking with fused packing and one work-item a work-group."""

    name: ClassVar[str] = "cpu_packed"
    files: ClassVar[tuple[str, ...]] = ("cpu_pack.cl", "cpu_packed.cl")

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """CPU devices: on others a work-group of one would waste the machine."""
        return traits.kind == "cpu" and (traits.fp64 or precision.real == "float")

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give micro-tiles, unrolls and block sizes; the landscape is flat near the best."""
        widest = traits.simd_bytes // precision.real_bytes
        mv = (1, 2, 3) if precision.is_complex else (2, 3, 1)
        return {
            "VW": (widest,),
            "MR": tuple(widest * v for v in mv),
            "NR": (12, 8, 14, 24, 6, 4),
            "KU": (4, 8),
            "KC": (384, 256, 512),
            "BLOCK_KB": (256, 512),
            "TURNS": (1, 2),
            "PACK_B": (1,) if precision.is_complex else (0, 1),
            "PREFETCH_C": (int(traits.clang_builtins),),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give a tile that fills the registers: 32 of them with AVX-512, 16 with AVX2 or NEON."""
        widest = traits.simd_bytes // precision.real_bytes
        vectors = 1 if precision.is_complex else 2
        wide = traits.simd_bytes >= 64
        return Config.of(
            self.name,
            {
                "VW": widest,
                "MR": widest * vectors,
                "NR": 12 if wide else 6,
                "KU": 4,
                "KC": 384,
                "BLOCK_KB": 256,
                "TURNS": 1,
                "PACK_B": int(precision.is_complex),
                "PREFETCH_C": int(traits.clang_builtins),
            },
        )

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what keeps a configuration from being fast or legal."""
        vw, mr, nr = config["VW"], config["MR"], config["NR"]
        if vw not in {2, 4, 8, 16} or (precision.is_complex and vw < 2):
            yield "VW is a vector width of OpenCL"
            return
        vectors = mr // vw * (2 if precision.is_complex else 1)
        registers = VECTORS if traits.simd_bytes >= 64 else VECTORS // 2
        if mr % vw:
            yield "MR is a multiple of VW"
        if vectors * nr + vectors + 1 > registers:
            yield "the micro-tile, a column of A and one element of B fit the registers"
        if vectors * nr * 2 < registers:
            yield "the micro-tile uses at least half of the registers"
        if config["KC"] % config["KU"]:
            yield "KC is a multiple of KU"

    def tiles(self, traits: DeviceTraits, g: Gemm, config: Config) -> Tiles:
        """Cut a problem for the device's compute units."""
        mr, nr, itemsize = config["MR"], config["NR"], precision_of(g).itemsize
        slices = -(-g.k // config["KC"])
        kc = round_up(-(-g.k // slices), config["KU"])
        m_panels, n_panels = -(-g.m // mr), -(-g.n // nr)
        packs_b = self.packs_b(g, config)
        units = traits.compute_units

        def cost(cut: tuple[int, int]) -> float:
            tile_m, tile_n = -(-m_panels // cut[0]) * mr, -(-n_panels // cut[1]) * nr
            turns = -(-cut[0] * cut[1] * g.batch // units)
            return turns * (tile_m * tile_n + PACK_COST * (tile_m + tile_n))

        widest = max(1, PANELS_BYTES // (kc * itemsize * nr)) if packs_b else n_panels
        cuts = [
            (cut_m, min(n_panels, max(-(-n_panels // widest), cut_n)))
            for cut_m in range(1, min(units, m_panels) + 1)
            for cut_n in {1, -(-units // cut_m), -(-2 * units // cut_m)}
        ]
        cut_m, cut_n = min(cuts, key=lambda cut: (cost(cut), cut))
        if g.batch == 1 and n_panels * nr >= cut_n * config["TURNS"] * NARROWEST:
            cut_n *= config["TURNS"]
        mt, nt = -(-m_panels // cut_m) * mr, -(-n_panels // cut_n) * nr
        mc = max(mr, (config["BLOCK_KB"] << 10) // (kc * itemsize) // mr * mr)
        mc = round_up(-(-mt // -(-mt // mc)), mr)  # equal blocks instead of a small last one
        return Tiles(mt, nt, mc, kc, -(-g.m // mt) * -(-g.n // nt) * g.batch)

    @staticmethod
    def packs_b(g: Gemm, config: Config) -> bool:
        """Tell whether B is packed: where its rows would be streams of their own it always is."""
        return bool(config["PACK_B"] or g.trans_b)

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """One launch of as many workers as there are compute units and tiles."""
        precision = precision_of(problem)
        tiles = self.tiles(traits, problem, config)
        workers = min(traits.compute_units, tiles.tiles)
        packs_b = self.packs_b(problem, config)
        width = tiles.mc + config["MR"] + (tiles.nt + config["NR"] if packs_b else 0)
        elements = width * tiles.kc
        reals = elements * (2 if precision.is_complex else 1)
        # The odd cache lines keep the workers' scratch off the same cache sets.
        stride = round_up(reals, SCRATCH_ALIGN) + 64
        defines = {k: v for k, v in config.params if k not in PLANNED}
        defines["PACK_B"] = int(packs_b)
        defines["CLANG_BUILTINS"] = int(traits.clang_builtins)
        spec = self.spec(
            "cpu_packed", precision, Config.of(self.name, defines), GEMM_SIGNATURE + "pipliiii"
        )
        args = (
            *gemm_args(problem), "counters", "cell",
            "scratch", stride, tiles.mt, tiles.nt, tiles.mc, tiles.kc,
        )  # fmt: skip
        step = Step(spec, (workers,), (1,), args)
        return Plan((step,), stride * workers * precision.real_bytes, counts=True)
