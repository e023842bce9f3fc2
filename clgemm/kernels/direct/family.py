"""The `direct` family: one work-item an element of C.  Never tuned, never fast, always right."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    Config,
    KernelFamily,
    Plan,
    Step,
    gemm_args,
    precision_of,
    round_up,
)
from clgemm.kernels.mirror import mirror

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm, Precision
    from clgemm.traits import DeviceTraits


class Direct(KernelFamily):
    """Reads both operands where they lie, with 64-bit sizes and strides."""

    name: ClassVar[str] = "direct"
    files: ClassVar[tuple[str, ...]] = ("direct/gemm.cl",)

    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Every device has it."""
        return self.computes_in(traits, precision)

    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Nothing to tune."""
        del traits, precision
        return {}

    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give the only configuration."""
        del traits, precision
        return Config.of(self.name, {})

    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """No rule to break."""
        del traits, precision, config
        return iter(())

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """Tell that it is what remains when nothing else works, not a competitor."""
        del traits
        return False

    def accepts(self, problem: Gemm) -> bool:
        """Any size."""
        del problem
        return True

    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """One launch, a row of C along the first dimension so that neighbours read neighbours."""
        rows = 8 if traits.max_work_group_size >= 64 else 1
        local = (rows, rows, 1)
        size = (round_up(problem.m, rows), round_up(problem.n, rows), problem.batch)
        spec = self.spec("direct", precision_of(problem), config, GEMM_SIGNATURE)
        step = Step(spec, size, local, gemm_args(problem))
        return Plan((step, *mirror(traits, problem)))
