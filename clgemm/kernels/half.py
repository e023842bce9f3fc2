"""Products of float16 by way of float32: copies of the operands, their product, rounded once.

The copies lie in the scratch memory, behind that of the plan that multiplies them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    GEMM_STRUCT,
    OFFSETS,
    KernelSpec,
    Plan,
    Step,
    gemm_args,
    round_up,
)
from clgemm.problem import HALF

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

FILES = ("half.cl",)
SINGLE_BYTES = 4
ALIGNMENT = 64  # elements between the places of copies: no kernel reads longer vectors
ROWS = 64  # of a work-group that copies


def in_single(problem: Gemm) -> Gemm:
    """Describe the product of float32 copies without gaps."""
    dense = problem.dense()._replace(precision=HALF.wide)
    return dense._replace(offset_a=0, offset_b=0, offset_c=0)


def with_copies(traits: DeviceTraits, problem: Gemm, plan: Plan) -> Plan:
    """Put copies of the operands before a plan for `in_single`, and one of its result behind.

    Parameters
    ----------
    traits : DeviceTraits
        Of the device.
    problem : Gemm
        The product of float16.
    plan : Plan
        What computes the product of the copies.
    """
    single = in_single(problem)
    places, end = [], round_up(-(-plan.scratch_bytes // SINGLE_BYTES), ALIGNMENT)
    for elements in (
        problem.m * problem.k * (problem.batch if problem.stride_a else 1),
        problem.k * problem.n * (problem.batch if problem.stride_b else 1),
        problem.m * problem.n * problem.batch,
    ):
        places.append(end)
        end += round_up(elements, ALIGNMENT)
    rows = min(ROWS, traits.max_work_group_size)
    shapes = (
        (single.lda, (problem.m if problem.trans_a else problem.k), bool(problem.stride_a)),
        (single.ldb, (problem.k if problem.trans_b else problem.n), bool(problem.stride_b)),
        (problem.m, problem.n, True),
    )
    copies = [
        Step(
            KernelSpec(FILES, "round_to_half" if operand == "c" else f"widen_{operand}", (),
                       GEMM_SIGNATURE + "pl"),
            (round_up(height, rows), width, problem.batch if is_stack else 1),
            (rows, 1, 1),
            (*gemm_args(problem), "scratch", place),
        )
        for operand, (height, width, is_stack), place in zip("abc", shapes, places, strict=True)
    ]  # fmt: skip
    products = [_moved(step, places) for step in plan.steps]
    steps = *copies[:2], *products, copies[2]
    return Plan(steps, end * SINGLE_BYTES, plan.counts, plan.takes_tickets)


def _moved(step: Step, places: list[int]) -> Step:
    """Have a launch work on scratch memory, each operand from its place on."""
    problem, *others = step.args
    assert isinstance(problem, bytes)  # noqa: S101 - GEMM_SIGNATURE begins with the problem
    fields = list(GEMM_STRUCT.unpack(problem))
    for field, place in zip(OFFSETS, places, strict=True):
        fields[field] += place
    args = ("scratch" if arg in {"a", "b", "c"} else arg for arg in others)
    return step._replace(args=(GEMM_STRUCT.pack(*fields), *args))
