"""The `gpu_integer` family: products of integers and of bool on any device, exact as NumPy's.

The plain design: a macro-tile in local memory, a micro-tile in registers.  What there is to choose
is which of a few tiles the device can run.
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
    round_up,
)
from clgemm.kernels.integers import integer_defines
from clgemm.problem import INTEGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits

TILES = ((128, 128, 16, 8, 8), (64, 64, 16, 4, 4), (32, 32, 16, 4, 4), (16, 16, 8, 4, 4),
         (4, 4, 4, 4, 4))  # fmt: skip
"""MC, NC, KC, MR and NR, the fastest that a device can run first."""
NAMES = ("MC", "NC", "KC", "MR", "NR")
ROUNDS = 2  # of work-groups, that keep the device busy
LEAST_PART = 256  # k of a part, where K is cut
MOST_MICRO_BYTES = 256  # of the micro-tile: registers
SMALLEST = 32  # rows of a macro-tile that is taken for want of work-groups
SUM_ITEMS = 64
PAD = 1


class GpuInteger(KernelFamily):
    """Unsigned arithmetic in local-memory tiles."""

    name: ClassVar[str] = "gpu_integer"
    files: ClassVar[tuple[str, ...]] = ("integers.cl", "gpu_integer/gemm.cl")

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Every device."""
        del traits
        return precision.code in INTEGERS

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """All, but families before it come first."""
        del traits
        return problem.precision in INTEGERS and self.accepts(problem)

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether the number of macro-tiles fits an int."""
        tile = TILES[-1][0]
        tiles = -(-problem.m // tile) * -(-problem.n // tile)
        return super().accepts(problem) and tiles <= INT32_MAX

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give the tiles; `candidates` says which of their parts belong together."""
        del traits, precision
        values = (tuple(dict.fromkeys(column)) for column in zip(*TILES, strict=True))
        return dict(zip(NAMES, values, strict=True))

    def candidates(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        """Yield the tiles that the device can run."""
        for tile in TILES:
            config = Config.of(self.name, dict(zip(NAMES, tile, strict=True)))
            if not any(self.broken_rules(traits, precision, config)):
                yield config

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the largest tile; the last one needs a work-item and some bytes."""
        return next(self.candidates(traits, precision))

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield what the kernel or the device cannot do."""
        lane = lane_bytes(precision)
        if config["MC"] % config["MR"] or config["NC"] % config["NR"]:
            yield "whole micro-tiles cover the macro-tile"
        if items(config) > traits.max_work_group_size:
            yield "the work-group is one the device can run"
        if config["MR"] * config["NR"] * lane > MOST_MICRO_BYTES:
            yield "the micro-tile fits the registers"
        if config["KC"] * (config["MC"] + config["NC"] + 2 * PAD) * lane > traits.local_memory:
            yield "both tiles fit the local memory"

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Lay out one launch, or two where k is cut."""
        g, precision = problem, INTEGERS[problem.precision]
        config = self._fitted(traits, problem, config)
        tiles = -(-g.m // config["MC"]) * -(-g.n // config["NC"])
        wanted = ROUNDS * traits.compute_units // (tiles * g.batch)
        part = round_up(max(LEAST_PART, -(-g.k // max(1, wanted))), config["KC"])
        parts = -(-g.k // part)
        defines = dict(config.params) | integer_defines(precision, lane_bytes(precision))
        spec = self.spec(self.name, precision, Config.of(self.name, defines), GEMM_SIGNATURE + "pl")
        size = (tiles * items(config), g.batch, parts)
        scratch = "scratch" if parts > 1 else 0
        args = (*gemm_args(g), scratch, part if parts > 1 else g.k)
        step = Step(spec, size, (items(config), 1, 1), args)
        if parts == 1:
            return Plan((step,))
        local = min(SUM_ITEMS, traits.max_work_group_size)
        sums = Step(
            spec._replace(name="gpu_integer_sum", signature=GEMM_SIGNATURE + "pi"),
            (round_up(g.m, local), g.n, g.batch), (local, 1, 1),
            (*gemm_args(g), "scratch", parts),
        )  # fmt: skip
        return Plan((step, sums), parts * g.m * g.n * g.batch * lane_bytes(precision))

    def _fitted(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Config:
        """Take a smaller tile where few of this one would be needed."""
        precision = INTEGERS[problem.precision]
        for smaller in self.candidates(traits, precision):
            tiles = -(-problem.m // config["MC"]) * -(-problem.n // config["NC"]) * problem.batch
            if tiles >= traits.compute_units:
                break
            if config["MC"] > smaller["MC"] >= SMALLEST:
                config = smaller
        return config


def lane_bytes(precision: Precision) -> int:
    """Return the bytes of a lane, at least those of an element."""
    return max(4, precision.itemsize)


def items(config: Config) -> int:
    """Return the work-items of a group."""
    return config["MC"] // config["MR"] * (config["NC"] // config["NR"])
