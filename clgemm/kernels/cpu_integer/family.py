"""The `cpu_integer` family: products of integers and of bool on CPU devices, exact as NumPy's.

The loops are those of `cpu_packed`; what differs is the arithmetic, as `integers.cl` has it, and
that there are no factors, no triangles and no cuts along K.  8-bit integers are computed in lanes
of 16 bits, which SIMD units multiply, and bool in lanes of 8, of which ands and ors are the
products and sums.

A call is cut into a grid of tiles that the work-groups, one a compute unit, take from a counter.
Each worker packs its own panels of A and B, at a price that decides how C is cut.
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
    round_up,
)
from clgemm.kernels.integers import integer_defines
from clgemm.problem import INTEGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

PACK_COST, TURN_COST = 8, 32
"""Multiply-adds that packing one element is worth, as it lies or transposed."""
PANELS_BYTES = 3 << 20  # packed panels of B that a worker may keep
VECTORS = 32  # SIMD registers the widest CPUs have
WIDE_BYTES = 64  # AVX-512
SCRATCH_ALIGN = 512  # lanes; keeps every panel on a cache line
PLANNED = frozenset({"KC", "BLOCK_KB"})  # parameters of the plan, not of the kernel


class Tiles(NamedTuple):
    """How a problem is cut."""

    mt: int
    nt: int
    """Rows and columns of a tile."""
    mc: int
    """Rows of a block of A."""
    kc: int
    """Depth of a slice."""
    tiles: int


class CpuInteger(KernelFamily):
    """GotoBLAS/BLIS blocking in unsigned integers."""

    name: ClassVar[str] = "cpu_integer"
    files: ClassVar[tuple[str, ...]] = (
        "integers.cl",
        "cpu_integer/types.cl",
        "cpu_integer/pack.cl",
        "cpu_integer/gemm.cl",
    )

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """CPU devices, whose compilers know vectors as wide as a register."""
        return traits.kind == "cpu" and precision.code in INTEGERS

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """No other family computes integers."""
        return traits.kind == "cpu" and problem.precision in INTEGERS

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give micro-tiles and block sizes."""
        return {
            "VW": (traits.simd_bytes // lane_bytes(precision),),
            "MV": (2, 3, 1),
            "NR": (12, 8, 4),
            "KC": (256, 384, 128),
            "BLOCK_KB": (256, 512),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give a micro-tile that fills the registers: 32 of them with AVX-512, 16 without."""
        return Config.of(
            self.name,
            {
                "VW": traits.simd_bytes // lane_bytes(precision),
                "MV": 2,
                "NR": 12 if traits.simd_bytes >= WIDE_BYTES else 4,
                # A short slice shows early which sums of bool are true already.
                "KC": 128 if precision.dtype == bool else 256,
                "BLOCK_KB": 256,
            },
        )

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what keeps a configuration from being fast or legal."""
        if config["VW"] * lane_bytes(precision) != traits.simd_bytes:
            yield "VW lanes fill a SIMD register"
        vectors, columns = config["MV"], config["NR"]
        registers = VECTORS if traits.simd_bytes >= WIDE_BYTES else VECTORS // 2
        if vectors * columns + vectors + 2 > registers:
            yield "the micro-tile, a column of A, an element of B and a product fit the registers"
        if columns % 4:
            yield "NR is a multiple of what packing reads at once"

    def tiles(self, traits: DeviceTraits, g: Gemm, config: Config) -> Tiles:
        """Cut a problem for the device's compute units."""
        lane, mr, nr = lane_bytes(INTEGERS[g.precision]), rows_of(config), config["NR"]
        kc = -(-g.k // -(-g.k // config["KC"]))
        m_panels, n_panels = -(-g.m // mr), -(-g.n // nr)
        widest = max(1, PANELS_BYTES // (kc * lane * nr))
        units = traits.compute_units
        price_a = TURN_COST if g.trans_a else PACK_COST
        price_b = PACK_COST if g.trans_b else TURN_COST

        def cost(cut: tuple[int, int]) -> tuple[int, tuple[int, int]]:
            mt, nt = -(-m_panels // cut[0]) * mr, -(-n_panels // cut[1]) * nr
            turns = -(-cut[0] * cut[1] * g.batch // units)
            return turns * (mt * nt + price_a * mt + price_b * nt), cut

        fewest = -(-n_panels // widest)
        cuts = [
            (cut_m, min(n_panels, max(fewest, -(-turns * units // cut_m))))
            for cut_m in range(1, min(units, m_panels) + 1)
            for turns in (1, 2)
        ]
        cut_m, cut_n = min([(1, fewest), *cuts], key=cost)
        mt, nt = -(-m_panels // cut_m) * mr, -(-n_panels // cut_n) * nr
        mc = max(mr, (config["BLOCK_KB"] << 10) // (kc * lane) // mr * mr)
        mc = round_up(-(-mt // -(-mt // mc)), mr)  # equal blocks instead of a small last one
        return Tiles(mt, nt, mc, kc, -(-g.m // mt) * -(-g.n // nt) * g.batch)

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Lay out one launch of as many workers as there are compute units and tiles."""
        precision = INTEGERS[problem.precision]
        lane, tiles = lane_bytes(precision), self.tiles(traits, problem, config)
        workers = min(traits.compute_units, tiles.tiles)
        mr, nr = rows_of(config), config["NR"]
        lanes = (tiles.mc + mr + tiles.nt + nr) * tiles.kc + mr * nr
        # The odd cache lines keep the workers' scratch off the same cache sets.
        stride = round_up(lanes, SCRATCH_ALIGN) + WIDE_BYTES
        defines = {name: x for name, x in config.params if name not in PLANNED}
        defines |= integer_defines(precision, lane)
        defines["CLANG_BUILTINS"] = int(traits.clang_builtins)
        spec = self.spec(
            "cpu_integer", precision, Config.of(self.name, defines), GEMM_SIGNATURE + "pipliiii"
        )
        args = (
            *gemm_args(problem), "counters", "cell",
            "scratch", stride, tiles.mt, tiles.nt, tiles.mc, tiles.kc,
        )  # fmt: skip
        step = Step(spec, (workers,), (1,), args)
        return Plan((step,), stride * workers * lane, counts=True)


def lane_bytes(precision: Precision) -> int:
    """Return the bytes of a lane, at least those of an element."""
    return 2 if precision.itemsize == 1 and precision.dtype != bool else precision.itemsize


def rows_of(config: Config) -> int:
    """Return the rows of a micro-tile."""
    return config["VW"] * config["MV"]
