"""The `nv_fused` family: fp32 and complex64 at fp32 accuracy in one launch, on Hopper.

`nv_split` surveys and packs before it multiplies: one or two launches more, which for mid-size and
thin products take as long as the products themselves.  Here each work-group reads its operands as
they lie, splits them as it goes along, and multiplies: half of its warps do the one, half the
other, at the same time.

Nothing is known of the operands before they are split.  So the floats of a first slot choose powers
of two that scale all, and a slot, 32 deep, is split into two fp16 as if its floats fitted.  It is
left out of the products if one does not, and split anew into three bf16, whose exponents are a
float's: six products instead of three.  See fp16.cl.

*fp16x3.*  The derivation in nv_split/family.py holds with tau = 2^-22 for all k: a float that,
scaled, is 0 or 2^-14 and more has |d| <= tau |x|.  Products lose (2 tau + 2^-22) |x y|, 12 u, and
with what tensor cores cut off, by estimate (k/32 + 10) u, the whole is below k u from k = 32 on.
Sums are multiplied by a power of two and added by one FMA, which is where underflow acts.
*bf16x6.*  It holds, too, with what takes the place of the survey:

- A float that is 0, or 2^-110 and more, is held by three bf16 with all its bits: the last bit of
  the last one is 2^-133 at least, as those of subnormal bf16 are.
- Products of the parts kept are normal floats if the least floats of X and Y that are not 0 make
  2^-102 and more.  Those that split keep the least floats of a tile.
- Overflow of a float that is rounded, or of a sum, leaves an infinity or NaN in the sum, as
  operands do that are not finite: 0 times an infinity is a NaN, and such a sum stays so.

Where one of these fails, or a sum of fp16 products is not finite, the tile is computed anew by fp32
FMA.  So data of which some floats are tiny take longer here than in `nv_split`, which scales.

With k = 16 the bound of bf16x6, k u (|A||B|), is 16 u: dropped products are 2 u, and what tensor
cores cut off is estimated as (k/32 + 10) u.

A tile is 128 columns of C by 128, 96 or 64 reals of its rows, or 64 by 256 or 192.  Tiles that do
not come out even with the units are cut along k.  Where that is a work-group's last task, those of
a tile wait for each other, and each adds up the parts of some columns; else who is last of a tile
adds up all of them (nv_ticket.cl).  Work-groups of a tile follow each other, so the device has
begun all of them, or begins the others as soon as those of tiles before have ended.  `estimate`
chooses.

Tiles of a short k are stored while the next one is computed: see async_store.cl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm import settings
from clgemm.kernels.costs import Costs, of_tiles
from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    INT32_MAX,
    Config,
    KernelFamily,
    KernelSpec,
    Plan,
    Step,
    gemm_args,
    precision_defines,
    precision_of,
)
from clgemm.kernels.gpu_tiled.tiling import known_seconds
from clgemm.kernels.nv_fused import estimate
from clgemm.kernels.nv_split.family import FMA_DEPTH, LOCAL_BYTES, NvSplit
from clgemm.kernels.nv_split.layout import SLICE, Tile, reals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

ITEMS = 512
SLOT_BYTES = 192  # of a row of X or Y: three parts, 32 deep
MOST_STAGES = 6
PAD = 16  # reals behind a column of a tile: neighbours' vectors meet other banks of local memory
LEAST_DEPTH = 16
LEAST_FLOPS = 3e8  # of what it claims: below, gpu_tiled takes less time ...
LEAST_CLAIMED = 32  # ... and with less depth, of reals, than a slot ...
LEAST_SHORT = 5e8  # ... and in complex tiles of one or two slots, with fewer than so many
SIGNATURE = GEMM_SIGNATURE + "iiiiiiipp"
SPLIT = NvSplit()
LARGEST = max(tile.by for tile in estimate.TIMES)  # rows of Y

FILES = (
    "nv_async.cl", "nv_ticket.cl", "nv_split/split.cl", "nv_split/parts.cl", "nv_split/wgmma.cl",
    "nv_split/fma.cl", "nv_split/shift.cl", "nv_split/store.cl", "nv_split/turns.cl",
    "nv_fused/sync.cl", "nv_fused/tasks.cl", "nv_fused/fp16.cl", "nv_fused/chunks.cl",
    "nv_fused/produce.cl", "nv_fused/async_store.cl", "nv_fused/gemm.cl",
)  # fmt: skip


class NvFused(KernelFamily):
    """Products of fp16 and bf16 that are split in the same launch."""

    name: ClassVar[str] = "nv_fused"
    files: ClassVar[tuple[str, ...]] = FILES
    reals: ClassVar[tuple[str, ...]] = ("float",)

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Single precision on compute capability 9.x, unless ``CLGEMM_FP32`` forbids it."""
        capability = traits.compute_capability or (0, 0)
        hopper = (9, 0) <= capability < (10, 0)
        return self.computes_in(traits, precision) and hopper and settings.splits_fp32()

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """No search is needed: it serves what it claims."""
        del traits
        return False

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """Claim what it is estimated to compute before other families."""
        depth = reals(problem)[2]
        is_short = precision_of(problem).is_complex and depth < 2 * LEAST_CLAIMED
        least = LEAST_SHORT if is_short else LEAST_FLOPS
        if problem.flops < least or depth < LEAST_CLAIMED or not self.accepts(problem):
            return False
        units = traits.compute_units
        return estimate.seconds(problem, LARGEST, units) < _others_seconds(traits, problem)

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the rows of Y of the largest tile allowed."""
        del traits, precision
        return {"BY": tuple(sorted({tile.by for tile in estimate.TIMES}, reverse=True))}

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Allow all tiles."""
        return next(self.candidates(traits, precision))

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernels are not written for."""
        del traits, precision
        if config["BY"] not in {tile.by for tile in estimate.TIMES}:
            yield "BY makes one of the tiles 64 x 256, 64 x 192, 128 x 128, 128 x 96, 128 x 64"

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether the bound holds, and sizes fit ints; Gram products are not halved here."""
        m, n = problem.m, problem.n
        return (
            super().accepts(problem)
            and problem.k >= LEAST_DEPTH
            and not problem.triangle
            and max(*reals(problem), 2 * problem.lda, 2 * problem.ldb) <= INT32_MAX // 2
            and problem.batch * m * n // 4096 <= INT32_MAX // 4
        )

    def costs(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Costs:
        """Count one launch, and tiles of which a row of X is a column of C."""
        tile = next(tile for tile in estimate.TIMES if tile.by <= config["BY"])
        rows = tile.by // precision_of(problem).parts
        return of_tiles(traits.compute_units, problem, rows, tile.bx)

    @staticmethod
    def stages(tile: Tile, pitch: int = 0) -> int:
        """Give the slots that fit the local memory, beside a tile with columns so far apart."""
        rows = tile.bx + tile.by
        others = 1024 + rows * FMA_DEPTH * 4 + tile.bx * pitch * 4
        return min(MOST_STAGES, (LOCAL_BYTES - others) // (rows * SLOT_BYTES))

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Multiply, by as many work-groups as there is work for, and units."""
        way = estimate.best_way(problem, config["BY"], traits.compute_units)
        tile, tiles = way.tile, estimate.count_tiles(problem, way.tile)
        rows_x, rows_y, depth = reals(problem)
        pitch = tile.by + PAD if estimate.stores_async(problem, way) else 0
        defines = precision_defines(precision_of(problem)) | {
            "MI": tile.mi, "BY": tile.by, "GROUPS_X": tile.groups_x, "PITCH": pitch,
            "STAGES": self.stages(tile, pitch), "TAKES_FP16": int(estimate.takes_fp16(problem)),
            "ROWS_OF_X": estimate.how_rows_lie(problem, is_y=False),
            "ROWS_OF_Y": estimate.how_rows_lie(problem, is_y=True),
        }  # fmt: skip
        kernel = KernelSpec(
            FILES, "nv_fused_gemm", tuple(sorted(defines.items())), SIGNATURE, "sm_90a"
        )
        args = (
            *gemm_args(problem), tiles, way.whole, way.piece.numerator, way.piece.denominator,
            -(-rows_x // tile.bx), -(-rows_y // tile.by), -(-depth // SLICE),
            "scratch", "tickets",
        )  # fmt: skip
        step = Step(kernel, (way.groups * ITEMS,), (ITEMS,), args)
        is_cut = way.whole < tiles
        scratch = is_cut * 2 * way.groups * tile.bx * tile.by * 4
        return Plan((step,), scratch, takes_tickets=is_cut)


def _others_seconds(traits: DeviceTraits, g: Gemm) -> float:
    """Estimate what the family takes that would be the first of others, as far as is known."""
    tiled = known_seconds(traits, g)
    if not SPLIT.accepts(g):
        return tiled
    return min(tiled, estimate.split_seconds(g, traits.compute_units))
