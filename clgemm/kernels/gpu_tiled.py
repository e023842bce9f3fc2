"""The `gpu_tiled` family: local-memory tiles and register blocking, for GPUs.

The design of Nugteren's OpenCL SGEMM tutorial (kernels 4 to 10: wide data types, 2D register
blocking, rectangular tiles, prefetch into registers) with the parameters of AutoGEMM: macro-tile
MC x NC, slice depth KC, micro-tile MR x NR.  Edges are guarded inside the kernel; transposition is
taken care of by the loads, so that no operand is copied.  Right on CPU devices too, not fast there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    INT32_MAX,
    Config,
    KernelFamily,
    Plan,
    Step,
    gemm_args,
    precision_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

LANES = 32  # neighbouring work-items that access local memory together
MAX_VECTOR_BYTES = 16  # the widest access of a work-item
MODEST = ((64, 64, 16, 8, 4), (64, 64, 8, 8, 4), (32, 32, 8, 4, 4))  # MC, NC, KC, MR, NR
MAX_MICRO_REALS = 160  # accumulators beyond this spill to memory on every GPU known


class GpuTiled(KernelFamily):
    """Double-buffered macro-tiles in local memory."""

    name: ClassVar[str] = "gpu_tiled"
    files: ClassVar[tuple[str, ...]] = ("gpu_tiled.cl",)

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Any device with work-groups of two groups of lanes and some local memory."""
        return (traits.fp64 or precision.real == "float") and any(self._modest(traits, precision))

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """On a CPU a tile in local memory is only a second copy in the same cache."""
        return traits.kind != "cpu"

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give tile sizes independent in M, N and K, vector widths and lane shapes."""
        del traits
        widest = max(1, MAX_VECTOR_BYTES // precision.itemsize)
        return {
            "MC": (128, 64, 32, 256),
            "NC": (128, 64, 32, 256),
            "KC": (16, 8, 32),
            "MR": (8, 4, 16),
            "NR": (8, 4, 16),
            "VW": tuple(w for w in (4, 2, 1) if w <= widest),
            "PAD": (4,),
            "LANES_M": (8, 4),
            "GROUP_M": (8, 4, 16),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest of a few modest tiles that the device can run."""
        return next(self._modest(traits, precision))

    def _modest(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        widest = max(1, MAX_VECTOR_BYTES // precision.itemsize)
        for mc, nc, kc, mr, nr in MODEST:
            sizes = {"MC": mc, "NC": nc, "KC": kc, "MR": mr, "NR": nr, "VW": min(4, widest)}
            config = Config.of(self.name, sizes | {"PAD": 4, "LANES_M": 8, "GROUP_M": 8})
            if not any(self.broken_rules(traits, precision, config)):
                yield config

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernel or the device cannot do."""
        mc, nc, kc = config["MC"], config["NC"], config["KC"]
        mr, nr, vw, lanes_m = config["MR"], config["NR"], config["VW"], config["LANES_M"]
        items = (mc // mr) * (nc // nr)
        if vw & (vw - 1) or vw < 1 or mr % vw or nr % vw or kc % vw or config["PAD"] % vw:
            yield "VW is a power of two that divides MR, NR, KC and PAD"
        if mc % (mr * lanes_m) or nc % (nr * (LANES // lanes_m)):
            yield "whole groups of lanes cover the macro-tile"
        if items > traits.max_work_group_size:
            yield "the work-group is one the device can run"
        if items < 2 * LANES:
            yield "a work-group has at least two groups of lanes"
        if items and ((mc * kc) % (vw * items) or (nc * kc) % (vw * items)):
            yield "every work-item moves the same number of vectors"
        if (
            mr * nr * (2 if precision.is_complex else 1) * precision.real_bytes
            > 4 * MAX_MICRO_REALS
        ):
            yield "the micro-tile fits the registers"
        if self.local_bytes(precision, config) > traits.local_memory:
            yield "both buffers of both operands fit the local memory"

    @staticmethod
    def local_bytes(precision: Precision, config: Config) -> int:
        """Count the local memory of a work-group."""
        width = config["MC"] + config["NC"] + 2 * config["PAD"]
        return 2 * config["KC"] * width * precision.itemsize

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether the number of macro-tiles fits an int."""
        return super().accepts(problem) and problem.m * problem.n // 1024 < INT32_MAX // 2

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """One launch: macro-tiles along the first dimension, the stack along the second."""
        del traits
        vw = config["VW"]
        spec = self.spec(
            "gpu_tiled",
            precision_of(problem),
            config,
            GEMM_SIGNATURE,
            TRANS_A=int(problem.trans_a),
            TRANS_B=int(problem.trans_b),
            WIDE_A=int(problem.aligned and not (problem.lda % vw or problem.stride_a % vw)),
            WIDE_B=int(problem.aligned and not (problem.ldb % vw or problem.stride_b % vw)),
        )
        items = (config["MC"] // config["MR"]) * (config["NC"] // config["NR"])
        tiles = -(-problem.m // config["MC"]) * -(-problem.n // config["NC"])
        step = Step(spec, (tiles * items, problem.batch), (items, 1), gemm_args(problem))
        return Plan((step,))
