"""The `batched` family: stacks of small matrices, on GPUs.

A small product is a few reads, a few steps and a few writes, and little else: a macro-tile made
for large matrices would be mostly empty, and waiting would be all that it does.  Here a work-group
is as large as it takes, several entries of the stack share one where they are tiny, and it goes on
from entry to entry, so that the next one is on its way while one is multiplied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.batched.plan import FILES, Cut
from clgemm.kernels.batched.runs import FILES as RUN_FILES
from clgemm.kernels.batched.runs import Runs
from clgemm.kernels.family import Config, KernelFamily, Plan, precision_of, round_up
from clgemm.kernels.gpu_tiled.tiling import known_seconds, vector_width
from clgemm.kernels.nv_dmma.estimate import LOCAL_BYTES
from clgemm.problem import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

LEAST_BATCH = 32  # entries, below which tiles of other families keep as much of a device busy
MOST_EXTENT = 64  # of m and n: what one work-group computes
MOST_CUT, MOST_MULTIPLIED = 128, 60_000
"""The same in single precision where several compute it, and most multiplications of an entry then,
if they are read by vectors.  Else estimates decide: each of both takes up to a third less time than
the other, by how k and C fill slices and tiles."""
MOST_AREA = 2400
"""Of m * n in single precision: gpu_tiled is faster with 51 x 53, and slower with 48 x 48."""
WASTED, WASTED_DEPTH = 1.75, 40
"""Beside nv_dmma, which computes whole tiles: how many times C they must cover, and what depth of k
adds one to that.  Of 56 drawn stacks two took more than a tenth longer so on an H100."""
DMMA_TILE = 32  # real rows, and columns, of its smallest tile
MOST_DEPTH = 256  # of k
MOST_ESTIMATED, LEAST_DEEP = 64, 16
"""Of k, and of m and n from which on what is deeper takes longer than is estimated."""
MOST_MICRO_BYTES = 512  # accumulators beyond this spill to memory
BEST = {
    "s": {"MR": 4, "NR": 4, "FETCH": 32, "RESIDENT": 512},
    "d": {"MR": 4, "NR": 4, "FETCH": 64, "RESIDENT": 384},
    "c": {"MR": 4, "NR": 2, "FETCH": 64, "RESIDENT": 512},
    "z": {"MR": 4, "NR": 2, "FETCH": 64, "RESIDENT": 512},
}
"""The best for 28 to 30 stacks of each precision on an H100.  Larger micro-tiles need so many
registers that fewer work-groups run at a time, or that some are spilled."""


class Batched(KernelFamily):
    """A work-group an entry, or several."""

    name: ClassVar[str] = "batched"
    files: ClassVar[tuple[str, ...]] = (*FILES, *RUN_FILES[-1:], "mirror.cl")

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Any device."""
        return self.computes_in(traits, precision) and any(self._defaults(traits, precision))

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """Tell that it takes what it claims, and no part in a search."""
        del traits
        return False

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """Claim stacks of many matrices that are small in all directions, or read as runs."""
        if traits.kind != "gpu" or problem.batch < LEAST_BATCH or problem.k > MOST_DEPTH:
            return False
        precision = precision_of(problem)
        if not self.supports(traits, precision):
            return False
        config = self.default(traits, precision)
        if problem.batch >= traits.compute_units and Runs(traits, problem, config).pay:
            return True
        widest = ALIGNMENT // precision.itemsize
        if precision.is_double or vector_width(traits, problem, widest) > 1:
            return _is_small(traits, problem)
        is_deep = problem.k > MOST_ESTIMATED and min(problem.m, problem.n) >= LEAST_DEEP
        if max(problem.m, problem.n) > MOST_CUT or is_deep:
            return False
        return Cut(traits, problem, config).seconds < known_seconds(traits, problem)

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
            "RUNS": (1, 0),
        }

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest usual work-group that the device runs."""
        return next(self._defaults(traits, precision))

    def _defaults(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        usual = {"SHARE": 32, "AHEAD": 1, "LIMIT": 1, "RUNS": 1} | BEST[precision.code]
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
        """One launch, which reads runs of elements where that pays."""
        runs = Runs(traits, problem, config)
        return runs.plan() if runs.pay else Cut(traits, problem, config).plan()


def _is_small(traits: DeviceTraits, g: Gemm) -> bool:
    """Tell whether tiles of other families take longer for an entry, by what they do on an H100."""
    precision, most = precision_of(g), max(g.m, g.n)
    if not precision.is_double:
        few = most <= MOST_CUT and g.m * g.n * g.k <= MOST_MULTIPLIED
        return (few or most <= MOST_EXTENT) and g.m * g.n <= MOST_AREA
    if most > MOST_EXTENT:
        return False
    if traits.compute_capability not in LOCAL_BYTES:  # no nv_dmma
        return True
    rows = g.m * precision.parts
    covered = round_up(rows, DMMA_TILE) * round_up(g.n, DMMA_TILE)
    return covered >= (WASTED + g.k / WASTED_DEPTH) * rows * g.n
