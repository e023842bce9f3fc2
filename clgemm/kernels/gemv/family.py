"""The `gemv` family: products with a vector, and outer products, on GPUs.

They do two operations an element of the matrix, so what counts is the rate of the memory: each
element is read once, in the longest vectors that its address allows, and enough reads are under way
at any time.  Rows that are contiguous become dot products, columns that are contiguous are scaled
and added, and where there are too few of them for the device, k is split.  The last work-group of
its rows adds the parts in a fixed order, or a second launch where work-groups cannot meet.  Right
for every problem and on every device, fast for these.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.family import Config, KernelFamily, Plan, precision_of
from clgemm.kernels.gemv.plan import FEW_ROWS, KERNEL_FILES, MOST_SUMS, TICKET_FILE, Cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

LEAST_ENTRY = 4096  # elements of the matrix of each entry of a stack, to keep a work-group busy
MOST_ENTRIES = 65535  # work-groups that every GPU takes along the third dimension
MOST_COLUMNS = 1 << 20  # of an outer product: as many as groups along the second dimension can have


NARROW = {"s": 8, "d": 16, "c": 32, "z": 32}
"""Work-items along a column: as few as keep what they read together in one piece.  On an H200 half
as many cost double precision 8 %, and a quarter as many complex types half of the memory's rate."""


class Gemv(KernelFamily):
    """A row or column of C at a time, its sums in registers."""

    name: ClassVar[str] = "gemv"
    files: ClassVar[tuple[str, ...]] = tuple(
        dict.fromkeys(
            (TICKET_FILE, *itertools.chain.from_iterable(KERNEL_FILES.values()), "mirror.cl")
        )
    )

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Any device."""
        return self.computes_in(traits, precision) and any(self._defaults(traits, precision))

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """Tell that it takes what it claims, and no part in a search."""
        del traits
        return False

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """Claim vectors and outer products, alone or in stacks of large ones."""
        g = problem
        if traits.kind != "gpu" or min(g.m, g.n, g.k) > 1 or g.batch > MOST_ENTRIES:
            return False
        if min(g.m, g.n) > 1 and g.n > MOST_COLUMNS:
            return False
        large = g.batch == 1 or g.m * g.n * g.k >= LEAST_ENTRY
        return large and self.accepts(g) and self.supports(traits, precision_of(g))

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the shape of a work-group, and how much it reads at once."""
        del traits, precision
        return {
            "ITEMS": (256, 128, 64, 32, 16, 512),
            "ROWS": (2, 4, 1, 8),
            "READS": (8, 4, 16),
            "LANES": (32, 16, 64, 8),
            "NARROW": (8, 16, 32, 4),
            "GROUPS": (4, 2, 8, 16),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest usual work-group that the device runs."""
        return next(self._defaults(traits, precision))

    def _defaults(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        usual = {"ROWS": 2, "READS": 8, "LANES": 32, "NARROW": NARROW[precision.code], "GROUPS": 4}
        for items in (256, 128, 64, 32, 16):
            lanes = min(usual["LANES"], items)
            narrow = min(usual["NARROW"], lanes)
            config = Config.of(
                self.name, usual | {"ITEMS": items, "LANES": lanes, "NARROW": narrow}
            )
            if not any(self.broken_rules(traits, precision, config)):
                yield config

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernels or the device cannot do."""
        p = dict(config.params)
        if p["ITEMS"] > traits.max_work_group_size:
            yield "the work-group is one the device can run"
        if p["LANES"] > p["ITEMS"]:
            yield "LANES divides ITEMS"
        if p["NARROW"] > p["LANES"]:
            yield "NARROW divides LANES"
        if max(p["ROWS"], FEW_ROWS) > p["READS"]:
            yield "ROWS divides READS"
        if p["ITEMS"] * max(p["ROWS"] * precision.itemsize, MOST_SUMS) > traits.local_memory:
            yield "the sums of all work-items fit the local memory"

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """One launch, and one more where that adds the parts of k."""
        return Cut(traits, problem, config).plan()
