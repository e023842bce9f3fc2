"""What a kernel family is: a space of configurations, and a plan for a problem under one of them.

Nothing here or in any family knows an OpenCL API.  A `Plan` is data: kernels by source and defines,
sizes, and arguments as numbers or as names of what `execute` puts in their place.
"""

from __future__ import annotations

import itertools
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from clgemm.kernels.costs import Costs, of_tiles
from clgemm.problem import PRECISIONS, Gemm, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clgemm.traits import DeviceTraits

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Config:
    """One point of a family's space."""

    family: str
    params: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, family: str, params: Mapping[str, int]) -> Config:
        """Make a Config whose parameters are sorted, so that equal ones compare equal."""
        return cls(family, tuple(sorted((name, int(value)) for name, value in params.items())))

    @cached_property
    def _values(self) -> dict[str, int]:
        return dict(self.params)

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __str__(self) -> str:
        return f"{self.family}({', '.join(f'{name}={value}' for name, value in self.params)})"


class KernelSpec(NamedTuple):
    """One kernel: the files it is made of, its defines, and the types of its arguments."""

    files: tuple[str, ...]
    name: str
    defines: tuple[tuple[str, int], ...]
    signature: str
    """A letter an argument: i int, l long, s struct, e element (alpha, beta), p pointer."""
    target: str = ""
    """PTX target that the driver assembles it for, if not the one it would choose: see ptx.py."""


Arg = int | str | bytes
"""A number, a struct, or the name of what is bound at run time: one of `SLOTS`.

Zero for a pointer: memory that the kernel neither reads nor writes."""
SLOTS = ("alpha", "beta", "a", "b", "c", "scratch", "counters", "tickets", "cell")


CELL_STEP = 16
"""Counters that a launch may use: a cache line."""
CANCEL = 1
"""Which of them the host sets when it wants the launch to end early."""
TICKETS = 1 << 14
"""Counters of the launches on a queue: zeros that each launch leaves as zeros."""
LEAST_FENCES = (7, 0)
"""Compute capability of fences between work-groups, without which they cannot meet at tickets."""


def has_tickets(traits: DeviceTraits) -> bool:
    """Tell whether work-groups of a device can meet at tickets, as nv_ticket.cl takes them."""
    return (traits.compute_capability or (0, 0)) >= LEAST_FENCES


class Step(NamedTuple):
    """One launch."""

    kernel: KernelSpec
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    args: tuple[Arg, ...]


class Plan(NamedTuple):
    """Launches in order, and the scratch memory that they share."""

    steps: tuple[Step, ...]
    scratch_bytes: int = 0
    counts: bool = False
    """Whether its one step takes zeros to count with: ``counters`` from ``cell`` on."""
    takes_tickets: bool = False
    """Whether a step takes ``tickets``: work-groups that meet there wait for nobody's launch."""


# What every gemm kernel takes first: GEMM_ARGS in common.cl.
GEMM_SIGNATURE = "see" + "ppp"
GEMM_STRUCT = struct.Struct("=13q3i2h")
OFFSETS = (4, 7, 10)
"""Places in that struct of the elements before the first one of A, B and C."""


def gemm_args(g: Gemm) -> tuple[Arg, ...]:
    """Give the first arguments of a gemm kernel: the problem as common.cl's struct, then slots."""
    problem = GEMM_STRUCT.pack(
        g.m, g.n, g.k, g.batch,
        g.offset_a, g.lda, g.stride_a,
        g.offset_b, g.ldb, g.stride_b,
        g.offset_c, g.ldc, g.stride_c,
        g.trans_a, g.conj_a, g.trans_b, g.conj_b, g.triangle,
    )  # fmt: skip
    return problem, "alpha", "beta", "a", "b", "c"


def precision_defines(precision: Precision) -> dict[str, int]:
    """Give the defines that common.cl turns into types."""
    return {
        "IS_DOUBLE": int(precision.is_double),
        "IS_COMPLEX": int(precision.is_complex),
    }


class KernelFamily(ABC):
    """A kernel design and the space of its parameters."""

    name: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    reals: ClassVar[tuple[str, ...]] = ("float", "double")
    """OpenCL types that the kernels compute in."""

    @abstractmethod
    def supports(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Tell whether the family is worth trying on such a device at all."""

    def computes_in(self, traits: DeviceTraits, precision: Precision) -> bool:
        """Tell whether the kernels and the device have a precision."""
        return precision.real in self.reals and traits.has(precision)

    @abstractmethod
    def space(self, traits: DeviceTraits, precision: Precision) -> dict[str, tuple[int, ...]]:
        """Give each tunable parameter's values, likely ones first."""

    @abstractmethod
    def default(self, traits: DeviceTraits, precision: Precision) -> Config:
        """Give parameters that work on any device the family supports."""

    @abstractmethod
    def broken_rules(
        self, traits: DeviceTraits, precision: Precision, config: Config
    ) -> Iterator[str]:
        """Yield, as a sentence each, the constraints that a configuration breaks."""

    @abstractmethod
    def plan(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Plan:
        """Lay out the launches for a problem."""

    def worth_tuning(self, traits: DeviceTraits) -> bool:
        """Tell whether the family can win on such a device; if not, it only serves when asked."""
        del traits
        return True

    def claims(self, traits: DeviceTraits, problem: Gemm) -> bool:
        """Tell whether it computes a problem better than any general family, without a search."""
        del traits, problem
        return False

    def accepts(self, problem: Gemm) -> bool:
        """Tell whether this problem's sizes fit the family's kernels."""
        return max(problem.m, problem.n, problem.k) <= INT32_MAX // 2

    def costs(self, traits: DeviceTraits, problem: Gemm, config: Config) -> Costs:
        """Count what a problem costs: from these and a few timed products its time is predicted.

        This default is for families whose configurations name a macro-tile MC x NC.
        """
        params = dict(config.params)
        tile = params.get("MC", 1), params.get("NC", 1)
        return of_tiles(traits.compute_units, problem, *tile)

    def candidates(self, traits: DeviceTraits, precision: Precision) -> Iterator[Config]:
        """Yield every configuration that breaks no rule, in the order of the space."""
        space = self.space(traits, precision)
        for values in itertools.product(*space.values()):
            config = Config.of(self.name, dict(zip(space, values, strict=True)))
            if not any(self.broken_rules(traits, precision, config)):
                yield config

    def is_valid(self, traits: DeviceTraits, precision: Precision, config: Config) -> bool:
        """Tell whether a configuration from elsewhere (a file) names this family's parameters."""
        names = {name for name, _ in config.params}
        return (
            config.family == self.name
            and names == set(self.space(traits, precision))
            and not any(self.broken_rules(traits, precision, config))
        )

    def spec(
        self, name: str, precision: Precision, config: Config, signature: str, **more: int
    ) -> KernelSpec:
        """Name a kernel of this family under a configuration."""
        defines = precision_defines(precision) | dict(config.params) | more
        return KernelSpec(self.files, name, tuple(sorted(defines.items())), signature)


def round_up(x: int, multiple: int) -> int:
    """Round `x` up to a multiple."""
    return -(-x // multiple) * multiple


def precision_of(problem: Gemm) -> Precision:
    """Look up the problem's precision."""
    return PRECISIONS[problem.precision]
