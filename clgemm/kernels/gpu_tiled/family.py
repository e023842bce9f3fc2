"""The `gpu_tiled` family: local-memory tiles and register blocking, for GPUs.

The designs of Nugteren's OpenCL SGEMM tutorial, of Steinsland's thesis and of AutoGEMM are points
of one space: each operand with a tile in local memory or without (with micro-tiles of one or of
many elements: the thesis' five blocking schemes), vector widths of their own for global and local
accesses, tiles padded or turned, one or two stages, any unroll, packed panels or operands where
they lie.  Edges are clamped or padded with zeros inside the kernels.  Right on CPU devices too, not
fast there.

A configuration names the tile for problems that fill the device.  Smaller problems run with it cut
in half as often as it takes, and what then is still too little work is split along k: `tiling`.
With AUTO the tile is chosen by the problem's size, of those whose rates are known there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.family import INT32_MAX, Config, KernelFamily, Plan
from clgemm.kernels.gpu_tiled.plan import Cut
from clgemm.kernels.gpu_tiled.tiling import USUAL, fitted, items, local_elements
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

LANES = 32  # neighbouring work-items that access local memory together
MAX_VECTOR_BYTES = 32  # wider accesses are several instructions anyway
MAX_MICRO_REALS = 160  # accumulators beyond this spill to memory on every GPU known

# MC, NC, KC, MR, NR, LANES_M: tiles that were the best of some device, those of today first.
TILES = (
    (128, 64, 16, 8, 8, 8), (64, 64, 16, 4, 4, 8), (128, 128, 16, 8, 16, 4), (64, 64, 16, 8, 8, 8),
    (128, 64, 8, 8, 8, 8), (64, 64, 16, 8, 4, 8), (64, 64, 16, 4, 8, 4), (128, 128, 8, 8, 16, 4),
    (256, 128, 8, 8, 16, 4), (64, 32, 32, 8, 4, 8),
    (128, 128, 8, 8, 8, 8), (64, 64, 8, 8, 4, 8), (64, 64, 8, 4, 4, 8), (64, 32, 16, 4, 4, 8),
    (128, 128, 16, 8, 8, 8), (256, 128, 16, 16, 8, 8), (64, 32, 32, 4, 4, 8),
    (32, 32, 16, 4, 2, 8), (96, 96, 16, 6, 6, 16), (160, 160, 16, 10, 10, 8),
    (128, 128, 16, 8, 8, 16), (32, 32, 8, 4, 4, 8), (32, 32, 32, 4, 1, 8), (32, 32, 32, 1, 8, 32),
    (16, 16, 16, 1, 1, 16),
)  # fmt: skip
# The best of an H200 by precision, with what differs from the usual design.
BEST: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "s": ((128, 64, 16, 8, 8, 8), {"PACK": 2, "AUTO": 1}),
    "d": ((128, 64, 8, 8, 8, 8), {"PACK": 2}),
    "c": ((64, 64, 16, 4, 4, 8), {"AUTO": 1}),
    "z": ((64, 64, 8, 4, 4, 8), {}),
}
# What variants change of the usual design, and why they may win.
VARIANTS: tuple[dict[str, int], ...] = (
    {},
    {"PACK": 2},  # packing is not free
    {"PACK": 2, "SLICED_K": 4, "AHEAD": 0},  # too few macro-tiles to hide each other's waits
    {"AHEAD": 0},  # registers for one step of fragments only
    {"PACK": 2, "AHEAD": 0},
    {"PACK": 2, "STAGES": 1, "AHEAD": 0},  # half the local memory, so more work-groups at a time
    {"VG": 2, "VW": 2, "PAD": 2},  # local memory with banks of 8 bytes
    {"KU": 4, "AHEAD": 0},  # small instruction caches
    {"PACK": 0, "LOCAL_B": 0, "AHEAD": 0},  # a cache that broadcasts: B needs no tile
    {"PACK": 0, "LOCAL_A": 0, "AHEAD": 0},
    # no local memory in hardware
    {"PACK": 0, "LOCAL_A": 0, "LOCAL_B": 0, "STAGES": 1, "AHEAD": 0, "PAD": 0},
    {"PACK": 0, "VW": 1, "PAD": 1, "TURN_B": 1, "STAGES": 1, "AHEAD": 0},  # scalar local reads
    {"VG": 1, "VW": 1, "PAD": 1, "ZORDER": 0},  # scalar units throughout
)
MODEST = ((64, 64, 16, 8, 4, 8), (64, 64, 8, 8, 4, 8), (32, 32, 8, 4, 4, 8))


class GpuTiled(KernelFamily):
    """Macro-tiles in local memory, micro-tiles in registers."""

    name: ClassVar[str] = "gpu_tiled"
    files: ClassVar[tuple[str, ...]] = (
        "gpu_tiled/tile.cl", "gpu_tiled/micro_tile.cl", "gpu_tiled/gemm.cl",
        "gpu_tiled/pack.cl", "gpu_tiled/sum.cl", "nv_ticket.cl", "mirror.cl",
    )  # fmt: skip

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Any device with work-groups of two groups of lanes and some local memory."""
        return self.computes_in(traits, precision) and any(self._modest(traits, precision))

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """On a CPU a tile in local memory is only a second copy in the same cache."""
        return traits.kind != "cpu"

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give every parameter's values; `candidates` says which of them make sense together."""
        del traits
        widths = tuple(w for w in (4, 2, 1, 8) if w * precision.itemsize <= MAX_VECTOR_BYTES)
        return {
            "MC": (128, 64, 256, 32, 160, 96, 16), "NC": (128, 64, 256, 32, 160, 96, 16),
            "KC": (16, 8, 32, 4), "MR": (8, 16, 4, 6, 10, 2, 1), "NR": (8, 4, 16, 6, 10, 2, 1),
            "VG": widths, "VW": widths, "PAD": (4, 0, 1, 2, 8),
            "LANES_M": (8, 4, 16, 32), "ZORDER": (1, 0), "GROUP_M": (8, 4, 16, 1),
            "LOCAL_A": (1, 0), "LOCAL_B": (1, 0), "TURN_A": (0, 1), "TURN_B": (0, 1),
            "STAGES": (2, 1), "AHEAD": (1, 0), "KU": (0, 8, 4, 2, 1), "PACK": (1, 2, 0),
            "SPLIT": (64, 8, 1), "SLICED_K": (1, 2, 4), "AUTO": (0, 1),
        }  # fmt: skip

    def candidates(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        """Yield tiles in each of the variants: what stands out in one way only, likely first."""
        for variant in VARIANTS:
            for tile in TILES:
                config = self._config(precision, tile, variant)
                if not any(self.broken_rules(traits, precision, config)):
                    yield config

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give NVIDIA's GPUs the best tile of an H200, others the largest modest one that fits."""
        if traits.compute_capability:
            best = self._config(precision, *BEST[precision.code])
            if not any(self.broken_rules(traits, precision, best)):
                return best
        return next(self._modest(traits, precision))

    def _modest(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        configs = (self._config(precision, tile, {"PACK": 0}) for tile in MODEST)
        return (c for c in configs if not any(self.broken_rules(traits, precision, c)))

    def _config(
        self, precision: Precision, tile: tuple[int, ...], variant: dict[str, int]
    ) -> Config:
        params = dict(zip(("MC", "NC", "KC", "MR", "NR", "LANES_M"), tile, strict=True))
        params |= USUAL | variant
        for name, sizes in (("VG", ("MC", "NC", "KC")), ("VW", ("MR", "NR"))):
            while (
                any(params[size] % params[name] for size in sizes)
                or params[name] * precision.itemsize > ALIGNMENT
            ):
                params[name] //= 2
        if params["LANES_M"] > 8:
            params["ZORDER"] = 0
        return Config.of(self.name, params)

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernels or the device cannot do."""
        p = dict(config.params)
        yield from _broken_shapes(p)
        yield from _broken_tiles(p)
        if items(p) > traits.max_work_group_size:
            yield "the work-group is one the device can run"
        if p["VG"] * precision.itemsize > MAX_VECTOR_BYTES:
            yield "a vector is at most 32 bytes"
        if p["MR"] * p["NR"] * precision.itemsize > 4 * MAX_MICRO_REALS:
            yield "the micro-tile fits the registers"
        if local_elements(p) * precision.itemsize > traits.local_memory:
            yield "all stages of both tiles fit the local memory"

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether the number of macro-tiles fits an int."""
        return super().accepts(problem) and problem.m * problem.n // 256 < INT32_MAX // 2

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Pack if it pays, then one launch for the macro-tiles, then add the parts of k."""
        return Cut(traits, problem, fitted(traits, problem, config)).plan()


def _broken_shapes(p: dict[str, int]) -> Iterator[str]:
    """Yield what keeps the parts of a work-group from fitting together."""
    vg, vw = p["VG"], p["VW"]
    if p["MR"] % vw or p["NR"] % vw:
        yield "VW divides MR and NR"
    if p["KC"] % vg or p["MC"] % vg or p["NC"] % vg:
        yield "VG divides MC, NC and KC"
    if p["MC"] % (p["MR"] * p["LANES_M"]) or p["NC"] % (p["NR"] * (LANES // p["LANES_M"])):
        yield "whole groups of lanes cover the macro-tile"
    if p["ZORDER"] and p["LANES_M"] > 8:
        yield "blocks of 2 x 4 lanes make up a group of lanes"
    if items(p) < 2 * LANES:
        yield "a work-group has at least two groups of lanes"
    if p["KC"] % p["SLICED_K"] or p["NR"] % p["SLICED_K"]:
        yield "SLICED_K divides KC and NR"
    if p["KU"] and p["KC"] // p["SLICED_K"] % p["KU"]:
        yield "KU divides KC / SLICED_K"


def _broken_tiles(p: dict[str, int]) -> Iterator[str]:
    """Yield what keeps the operands from their way through local memory."""
    tiled = [x for x in "AB" if p["LOCAL_" + x]]
    if items(p) and any(
        p[width] * p["KC"] % (p["VG"] * items(p))
        for x, width in (("A", "MC"), ("B", "NC"))
        if x in tiled
    ):
        yield "every work-item moves the same number of vectors"
    if p["PAD"] % p["VW"] and any(not p["TURN_" + x] for x in tiled):
        yield "rows of a p-major tile start on a vector"
    if p["PACK"] and (len(tiled) < 2 or p["TURN_A"] or p["TURN_B"]):
        yield "packed panels are p-major tiles of both operands"
    if any(p["TURN_" + x] and x not in tiled for x in "AB"):
        yield "without a tile there is nothing to turn"
    if not tiled and (p["STAGES"] > 1 or p["PAD"]):
        yield "without tiles there are no stages and no padding"
    if p["SLICED_K"] > 1 and len(tiled) < 2:
        yield "shares of a slice take tiles of both operands"
    depth = p["KC"] // p["SLICED_K"]
    if p["AHEAD"] and (len(tiled) < 2 or p["STAGES"] < 2 or p["KU"] or depth % 2):
        yield "reading ahead takes two stages of both tiles and a whole, even slice unrolled"
