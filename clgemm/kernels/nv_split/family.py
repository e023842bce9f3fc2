"""The `nv_split` family: fp32 and complex64 at fp32 accuracy on Hopper's tensor cores.

A float x, scaled by a power of two that its row shares, is split into halves, and products of
halves, which the tensor cores add up in fp32, make up the product.  Three launches:

- survey: the exponent of each row's largest element, and what each 32 rows span (their records);
  also, by FMA, the last row or column of C where it would need a row of tiles for itself;
- pack: the parts, in the layout that the tensor cores read, zero where a tile hangs over;
- gemm: each tile in the cheapest way that its rows allow, decided on the device from the records.

Small problems, which launches dominate, have one kernel for the first two.

C is column-major, so the kernels compute C^T = X Y^T with X = op(B)^T and Y = op(A): see split.cl.

Why the error stays below that of an FMA product, k u (|A||B|) componentwise, u = 2^-24
----------------------------------------------------------------------------------------
*fp16x3.*  A row is scaled so that its largest element lies in [2^14, 2^15).  A half has 11 bits,
but below 2^-14 it is subnormal, a multiple of 2^-24.  So with h0 = fp16(x) and r = x - h0,
|r| <= max(2^-11 |x|, 2^-25).  r is a float, since it is a multiple of x's last bit and no larger
than x, and so is r 2^11.  With h1 = fp16(r 2^11), again a half:

- d = x - h0 - h1 2^-11 is at most max(2^-23 |x|, 2^-36).  The first holds where h1 is normal:
  r 2^11 lies below x's power of two, or is it, hence exact.  The second is half of h1's subnormal
  spacing; all h1 of subnormal h0 are there.
- |h1| 2^-11 is at most max(2^-11 |x|, 2^-25), as r is: both are halves after scaling by 2^11, and
  rounding passes none.

So |d| <= tau |x| and |h1| 2^-11 <= max(2^-11, 2^11 tau) |x| wherever |x| >= 2^-36 / tau and
tau >= 2^-23, that is for every element of a row whose exponents span at most 14 + 36 + log2(tau):
`spread_fp16`.  The survey measures that span without rounding, before anything is split; zeros are
split exactly and do not count.  A product x y loses d y, x d', d d' and h1 h1' 2^-22, together at
most (2 tau + tau^2 + max(2^-22, 2^22 tau^2)) |x y|.  With tau = max(2^-22, sqrt(k) 2^-24) rounded
down to a power of two, and k >= 64, this is at most (2 sqrt(k) + k/4 + 1) u |x y|; the second term
is of pairs of which both h0 are subnormal, others lose at most (3 sqrt(k) + 4) u |x y|.
The tensor cores add exact products in blocks of 16 with truncated
alignment and slices (64 deep) are added in fp32; of that no bound is published.  It was estimated
as (k/32 + 10) u (|A||B|), and never seen above 25 u for k = 4096 (positive data, the worst).  With
the estimate the whole is below k u (|A||B|) from k = 64 on, where it is 45 u; smaller k the family
refuses.
*bf16x6.*  A float has 24 bits, three bf16 have 8 each, signs included: nothing is lost as long as
the last part is no subnormal bf16, i.e. the span of a row is at most 159 with the largest element
at 2^50.  Dropped products (parts 1-2, 2-1, 2-2) are at most 2^-23 |x y|.  Products of the parts
kept are normal floats if |x y| >= 2^-102 for all x and y of the tile: spans sum to at most 202.
*fma.*  All other tiles: the operands, multiplied and added by fp32 FMA.  These are tiles of which a
row holds infinities or NaN, so that they come out as from any FMA product; tiles in which a sum of
products could exceed the largest float (`top_limit`), so that overflow does too; and spans wider
than the above, as in data scaled elementwise by 2^+-60.
Results are unscaled by one rounding (ldexp), which is where underflow acts.

A tile is a few hundred rows square, so what needs a slower way costs the tiles it touches.
Complex elements are pairs of reals; |re re'| + |im im'| <= |z z'|, so the bound holds for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm import settings
from clgemm.kernels.costs import Costs, of_tiles
from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    INT32_MAX,
    Arg,
    Config,
    KernelFamily,
    KernelSpec,
    Plan,
    Step,
    gemm_args,
    precision_defines,
    precision_of,
)
from clgemm.kernels.mirror import mirror
from clgemm.kernels.nv_split.layout import (
    TIMES,
    Grid,
    Tile,
    best_tile,
    core,
    edges,
    is_short,
    lay_out,
    reals,
)
from clgemm.kernels.nv_split.parts import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

SIGNATURE = GEMM_SIGNATURE + "sp"  # Split and the scratch
SURVEY_ITEMS, PACK_ITEMS, SHORT_ITEMS, GEMM_ITEMS = 1024, 256, 256, 384
LOCAL_BYTES = 226 << 10  # what a kernel may declare, whatever OpenCL says
FMA_DEPTH = 8
RING = 8  # segments that are known ahead, as in gemm.cl
LEAST_DEPTH = 64
LEAST_SIDE = 140  # m n / (m + n), in reals: below, packing costs more than the products save
LEAST_PRODUCTS = 2 * 10**8  # of reals: below, one launch of FMA takes less time, ...
SHORT, LEAST_SHORT = 192, 35 * 10**7  # ... with less depth, of reals, from more on
SCRATCH_SHARE = 4  # of the device's memory one part

SURVEY_FILES = ("nv_split/split.cl", "nv_split/survey.cl")
PACK_FILES = ("nv_split/split.cl", "nv_split/parts.cl", "nv_split/pack.cl")
SHORT_FILES = ("nv_split/split.cl", "nv_split/parts.cl", "nv_split/short.cl")
GEMM_FILES = (
    "nv_async.cl", "nv_split/split.cl", "nv_split/wgmma.cl", "nv_split/walk.cl", "nv_split/fma.cl",
    "nv_split/shift.cl", "nv_split/store.cl", "nv_split/finish.cl", "nv_split/turns.cl",
    "nv_split/gemm.cl",
)  # fmt: skip


class NvSplit(KernelFamily):
    """Products of halves on the tensor cores, by wgmma."""

    name: ClassVar[str] = "nv_split"
    files: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys((*SURVEY_FILES, *PACK_FILES, *SHORT_FILES, *GEMM_FILES, "mirror.cl"))
    )
    reals: ClassVar[tuple[str, ...]] = ("float",)
    gemm_items: ClassVar[int] = GEMM_ITEMS
    target: ClassVar[str] = "sm_90a"

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Single precision on compute capability 9.x, unless ``CLGEMM_FP32`` forbids it."""
        capability = traits.compute_capability or (0, 0)
        hopper = (9, 0) <= capability < (10, 0)
        return self.computes_in(traits, precision) and hopper and settings.splits_fp32()

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the largest tile allowed, and strips of X in a band of the raster.

        A plan takes a smaller tile where that keeps more of the device busy.
        """
        del traits, precision
        return {"MI": (2, 1), "BY": (128, 64), "GROUP": (8, 4, 16)}

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest tile."""
        del traits, precision
        return Config.of(self.name, {"MI": 2, "BY": 128, "GROUP": 8})

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernels are not written for."""
        del traits, precision
        if Tile(config["MI"], config["BY"]) not in TIMES:
            yield "MI and BY make one of the tiles 256 x 128, 128 x 128, 128 x 64"
        if config["GROUP"] < 1:
            yield "a band of the raster has at least one strip"

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether splitting pays, keeps the bound, and fits ints."""
        m, n = problem.m, problem.n
        rows_x, rows_y, depth = reals(problem)
        least = LEAST_SHORT if depth < SHORT else LEAST_PRODUCTS
        return (
            super().accepts(problem)
            and problem.k >= LEAST_DEPTH
            and m * n * precision_of(problem).parts >= LEAST_SIDE * (m + n)
            and rows_x * rows_y * depth * problem.batch >= least
            and max(rows_x, rows_y, depth) <= INT32_MAX // 2
            and problem.batch * m * n // 4096 <= INT32_MAX // 4
        )

    def costs(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Costs:
        """Count two or three launches, and tiles of which a row of X is a column of C."""
        params = dict(config.params)
        tile = Tile(params["MI"], params["BY"])
        launches = 2 if is_short(problem) else 3
        return of_tiles(traits.compute_units, problem, tile.by, tile.bx, launches)

    @staticmethod
    def stages(tile: Tile) -> int:
        """Give the slices that fit the local memory, beside fma tiles, exponents and barriers."""
        rows = tile.bx + tile.by
        others = 1024 + rows * (FMA_DEPTH + RING) * 4  # the ring has exponents of all rows
        return (LOCAL_BYTES - others) // (rows * 256)

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Survey, pack and multiply, as often as the limit of the scratch memory demands."""
        workers = traits.compute_units
        tile = best_tile(problem, Tile(config["MI"], config["BY"]), workers)
        limit = traits.global_memory // SCRATCH_SHARE
        steps: list[Step] = []
        scratch = 0
        for part in parts_of(problem, tile, workers, limit):
            grid = lay_out(part, tile, workers)
            steps += self._steps(traits, part, tile, grid, config)
            scratch = max(scratch, grid.scratch_bytes)
        return Plan((*steps, *mirror(traits, problem)), scratch)

    def _steps(
        self, traits: DeviceTraits, problem: Gemm, tile: Tile, grid: Grid, config: Config
    ) -> Iterator[Step]:
        shape = precision_defines(precision_of(problem)) | {
            "MI": tile.mi, "BY": tile.by, "RECORD_ROWS": grid.record_rows,
        }  # fmt: skip
        surveys = shape | dict(zip(("EDGE_X", "EDGE_Y"), edges(problem, tile), strict=True))
        # Only the first kernel knows of edges.
        args = (*gemm_args(core(problem, tile)), grid.split.pack(), "scratch")
        if grid.pack_groups:
            survey, pack = (
                kernel_spec("nv_split_survey", SURVEY_FILES, surveys),
                kernel_spec(
                    "nv_split_pack",
                    PACK_FILES,
                    shape,
                    self.target if traits.compute_capability else "",
                ),
            )
            yield _step(survey, grid.survey_groups, SURVEY_ITEMS, args)
            yield _step(pack, grid.pack_groups, PACK_ITEMS, args)
        else:
            both = kernel_spec("nv_split_short", SHORT_FILES, surveys)
            yield _step(both, grid.survey_groups, SHORT_ITEMS, args)
        triangle = {"TRIANGLE": 1} if problem.triangle else {}
        gemm = self._gemm(traits, config, shape | triangle)
        yield _step(gemm, grid.split.workers, self.gemm_items, args)

    def _gemm(self, traits: DeviceTraits, config: Config, shape: dict[str, int]) -> KernelSpec:
        """Name the kernel that multiplies."""
        del traits
        stages = self.stages(Tile(shape["MI"], shape["BY"]))
        defines = shape | {"STAGES": stages, "GROUP": config["GROUP"], "IN_TURN": 1}
        return kernel_spec("nv_split_gemm", GEMM_FILES, defines, self.target)


def _step(kernel: KernelSpec, groups: int, items: int, args: tuple[Arg, ...]) -> Step:
    return Step(kernel, (groups * items,), (items,), args)


def kernel_spec(
    name: str, files: tuple[str, ...], defines: dict[str, int], target: str = ""
) -> KernelSpec:
    """Name one of the kernels."""
    return KernelSpec(files, name, tuple(sorted(defines.items())), SIGNATURE, target)
