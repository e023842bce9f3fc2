"""The `nv_mma` family: fp32 and complex64 at fp32 accuracy where `nv_split` has no wgmma.

The survey, the pack, the ways to compute a tile and what decides between them are those of
`nv_split`; so is the error bound, which its module derives.  The products come from ``mma.sync``,
which every tensor core of compute capability 8.0 and newer has.  It adds up 16 products with
truncation; the large ones of 32 deep are then added in fp32, twice as often as in `nv_split`, so
the estimate made there, (k/32 + 10) u (|A||B|), holds here, too.  The small ones of fp16 stay in
accumulators of their own for a whole segment: k/8 truncations of 2^-23 at most, which count 2^-11.

A product of fp32 numbers takes three of halves.  Data-centre GPUs multiply halves 13 to 16 times as
fast as their fp32 units multiply floats.  Those of compute capability 8.6, 8.9 and 12.0 do it 2 to
4 times as fast: there the tuner finds out whether this family or `gpu_tiled` is the faster one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm import settings
from clgemm.kernels.nv_split.family import (
    PACK_FILES,
    SHORT_FILES,
    SURVEY_FILES,
    NvSplit,
    kernel_spec,
)
from clgemm.kernels.nv_split.layout import Tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.kernels.family import Config, KernelSpec
    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

OLDEST = (8, 0)  # compute capability with cp.async, mbarriers and products 16 x 8 x 16 of halves
HOPPER = (9, 0)  # and newer: a wait that sleeps in the hardware
LOCAL_KB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
"""Local memory of a work-group by compute capability, whatever OpenCL says."""
LEAST_LOCAL_KB = 99  # of all others
SLOT_BYTES = 192  # of a row of X or Y, a stage
MOST_STAGES = 4
MORE_BYTES = 2560  # what a work-group keeps beside the slots: exponents, most of all
MMA_ITEMS = 256
LEAST_FLOPS = 1_500_000_000  # below, three launches cost more than faster products save

GEMM_FILES = (
    "nv_async.cl", "nv_split/split.cl", "nv_mma/mma.cl", "nv_split/walk.cl", "nv_split/fma.cl",
    "nv_split/shift.cl", "nv_split/store.cl", "nv_split/finish.cl", "nv_mma/gemm.cl",
)  # fmt: skip


class NvMma(NvSplit):
    """Products of halves on the tensor cores, by mma.sync."""

    name: ClassVar[str] = "nv_mma"
    files: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys((*SURVEY_FILES, *PACK_FILES, *SHORT_FILES, *GEMM_FILES, "mirror.cl"))
    )
    gemm_items: ClassVar[int] = MMA_ITEMS
    target: ClassVar[str] = ""

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Single precision from compute capability 8.0 on, unless ``CLGEMM_FP32`` forbids it."""
        return (
            self.computes_in(traits, precision)
            and (traits.compute_capability or (0, 0)) >= OLDEST
            and settings.splits_fp32()
        )

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """On Hopper `nv_split` does the same by a faster instruction."""
        return (traits.compute_capability or (0, 0))[0] != HOPPER[0]

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the largest tile allowed, of 128 rows of X, and strips in a band of the raster."""
        return super().space(traits, precision) | {"MI": (1,)}

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest tile."""
        return next(self.candidates(traits, precision))

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernels are not written for."""
        yield from super().broken_rules(traits, precision, config)
        if config["MI"] > 1:
            yield "a warp's accumulators, of large and of small products, fit its registers"

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether splitting pays, keeps the bound, and fits ints."""
        return super().accepts(problem) and problem.flops >= LEAST_FLOPS

    @staticmethod
    def slots(traits: DeviceTraits, tile: Tile) -> int:
        """Give the stages that fit the local memory."""
        room = LOCAL_KB.get(traits.compute_capability or (0, 0), LEAST_LOCAL_KB) << 10
        return min(MOST_STAGES, (room - MORE_BYTES) // ((tile.bx + tile.by) * SLOT_BYTES))

    def _gemm(self, traits: DeviceTraits, config: Config, shape: dict[str, int]) -> KernelSpec:
        defines = shape | {
            "STAGES": self.slots(traits, Tile(shape["MI"], shape["BY"])),
            "GROUP": config["GROUP"],
            "TRY_WAIT": int((traits.compute_capability or (0, 0)) >= HOPPER),
        }
        return kernel_spec("nv_mma_gemm", GEMM_FILES, defines)
