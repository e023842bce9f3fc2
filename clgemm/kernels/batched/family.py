"""The `batched` family: stacks of small matrices, on GPUs.

A small product is a few reads, a few steps and a few writes, and little else: a macro-tile made
for large matrices would be mostly empty, and waiting would be all that it does.  Here a work-group
is as large as it takes, several entries of the stack share one where they are tiny, and it goes on
from entry to entry, so that the next one is on its way while one is multiplied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.batched.plan import Cut
from clgemm.kernels.family import Config, KernelFamily, Plan, precision_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

LEAST_BATCH = 32  # entries, below which tiles of other families keep as much of a device busy
MOST_EXTENT = 64  # of m and n: what one work-group computes
MOST_BESIDE_DMMA = 31  # where double precision has tensor cores: nv_dmma is faster from 32 on
MOST_AREA_BESIDE_DMMA = 900
"""The same of m * n for real numbers, of which nv_dmma computes whole tiles: with 33 x 18, 40 x 20
and 8 x 64 that takes 1.6, 1.1 and 1.2 times as long on an H100, with 35 x 27 as long."""
MOST_DEPTH = 256  # of k
MOST_MICRO_BYTES = 512  # accumulators beyond this spill to memory
LARGEST_ROWS = {"s": 8, "c": 8}  # of a micro-tile, if not 4: fewer reads of local memory
RESIDENT = {"c": 256, "z": 384}  # if not 512: so many registers their micro-tiles need


class Batched(KernelFamily):
    """A work-group an entry, or several."""

    name: ClassVar[str] = "batched"
    files: ClassVar[tuple[str, ...]] = ("batched/gemm.cl", "mirror.cl")

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Any device."""
        return self.computes_in(traits, precision) and any(self._defaults(traits, precision))

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """Tell that it takes what it claims, and no part in a search."""
        del traits
        return False

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """Claim stacks of many matrices that are small in all directions."""
        g = problem
        if traits.kind != "gpu" or g.batch < LEAST_BATCH:
            return False
        precision = precision_of(g)
        beside_dmma = precision.is_double and (traits.compute_capability or (0, 0)) >= (8, 0)
        small = max(g.m, g.n) <= MOST_EXTENT and g.k <= MOST_DEPTH
        if small and beside_dmma and max(g.m, g.n) > MOST_BESIDE_DMMA:
            small = not precision.is_complex and g.m * g.n <= MOST_AREA_BESIDE_DMMA
        return small and self.supports(traits, precision)

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the micro-tile, the work-group and what it may have of local memory."""
        del traits, precision
        return {
            "MR": (4, 8, 2, 1),
            "NR": (4, 8, 2, 1),
            "ITEMS": (256, 128, 64, 32, 16),
            "BUNDLE": (256, 128, 64, 32, 16),
            "SHARE": (32, 64, 16),
            "LOCAL_KB": (36, 18, 48, 9),
            "FETCH": (64, 128, 32),
            "AHEAD": (1, 0),
            "RESIDENT": (512, 1024, 768, 384, 256),
            "LIMIT": (1, 0),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest usual work-group that the device runs."""
        return next(self._defaults(traits, precision))

    def _defaults(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        rows = LARGEST_ROWS.get(precision.code, 4)
        usual = {"MR": rows, "NR": 4, "SHARE": 32, "FETCH": 64, "AHEAD": 1}
        usual |= {"RESIDENT": RESIDENT.get(precision.code, 512), "LIMIT": 1}
        for items, local in ((256, 36), (256, 18), (128, 18), (64, 18), (32, 9), (16, 9)):
            sizes = {"ITEMS": items, "BUNDLE": items, "LOCAL_KB": local}
            config = Config.of(self.name, usual | sizes)
            if not any(self.broken_rules(traits, precision, config)):
                yield config

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernel or the device cannot do."""
        p = dict(config.params)
        if p["ITEMS"] > traits.max_work_group_size:
            yield "the work-group is one the device can run"
        if p["LOCAL_KB"] << 10 > traits.local_memory:
            yield "LOCAL_KB of local memory are there"
        if p["MR"] * p["NR"] * precision.itemsize > MOST_MICRO_BYTES:
            yield "the micro-tile fits the registers"

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """One launch."""
        return Cut(traits, problem, config).plan()
