"""The last launch of Gram products: what lies below the diagonal of C goes above it, too.

GPU families end their plans with it, and most leave out the macro-tiles above the diagonal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    KernelSpec,
    Step,
    gemm_args,
    precision_defines,
    precision_of,
)
from clgemm.problem import GENERAL

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

SIDES = ((32, 256), (8, 64), (1, 1))
"""Squares, and work-items that turn one: the first that the device can run is taken."""
LINE_BYTES = 256  # that a column of a square has at most: all of it takes 17 KB of local memory

LEAST_FLOPS = {"float": 3.5e9, "double": 3e9}
"""Of each matrix of a stack: in less time than these take, half of them saves less than a launch
costs and full waves of macro-tiles gain.  Measured on an H200, as is the next."""
LEAST_DEPTH = 256  # less k does not outweigh the traffic of the mirror


def where_it_pays(traits: DeviceTraits, problem: Gemm) -> Gemm:
    """Give the problem, general if a GPU computes that in no more time than a Gram product.

    `cpu_packed` mirrors what is in the cache, so on a CPU a Gram product always pays.
    """
    if traits.kind != "gpu" or not problem.triangle:
        return problem
    least = LEAST_FLOPS[precision_of(problem).real] * problem.batch
    pays = problem.flops >= least and problem.k >= LEAST_DEPTH
    return problem if pays else problem._replace(triangle=GENERAL)


def mirror(traits: DeviceTraits, problem: Gemm) -> tuple[Step, ...]:
    """Give the launch that completes C, or none if all of it is computed."""
    if not problem.triangle:
        return ()
    precision = precision_of(problem)
    side, items = next(x for x in SIDES if x[1] <= traits.max_work_group_size)
    side = min(side, LINE_BYTES // precision.itemsize)
    defines = precision_defines(precision) | {"SIDE": side, "HIGH": items // side}
    spec = KernelSpec(("mirror.cl",), "mirror", tuple(sorted(defines.items())), GEMM_SIGNATURE)
    squares = -(-problem.n // side)
    groups = squares * (squares + 1) // 2 * problem.batch
    return (Step(spec, (groups * items,), (items,), gemm_args(problem)),)
