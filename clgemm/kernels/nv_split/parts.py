"""How a problem whose packed operands do not fit the memory is cut into parts for `nv_split`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgemm.kernels.family import round_up
from clgemm.kernels.nv_split.layout import Tile, lay_out, reals
from clgemm.problem import GENERAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.problem import Gemm


def parts_of(problem: Gemm, tile: Tile, workers: int, limit: int) -> Iterator[Gemm]:
    """Cut a problem along its stack, then along n or m, until each part's scratch fits the limit.

    A part that cannot be cut any further is given as it is; memory then decides.
    """
    rows_x, rows_y, _ = reals(problem)
    if lay_out(problem, tile, workers).scratch_bytes <= limit:
        yield problem
        return
    if problem.batch > 1:
        halves = _cut_stack(problem)
    elif max(rows_x, rows_y) <= 16 * tile.bx:
        yield problem
        return
    else:
        halves = _cut_n(problem, tile) if rows_x >= rows_y else _cut_m(problem, tile)
    for half in halves:
        yield from parts_of(half, tile, workers, limit)


def _cut_stack(problem: Gemm) -> tuple[Gemm, Gemm]:
    half = problem.batch // 2
    return problem._replace(batch=half), problem._replace(
        batch=problem.batch - half,
        offset_a=problem.offset_a + half * problem.stride_a,
        offset_b=problem.offset_b + half * problem.stride_b,
        offset_c=problem.offset_c + half * problem.stride_c,
    )


def _cut_n(problem: Gemm, tile: Tile) -> tuple[Gemm, Gemm]:
    half = round_up(problem.n // 2, tile.bx)
    problem = problem._replace(triangle=GENERAL)
    return problem._replace(n=half), problem._replace(
        n=problem.n - half,
        offset_b=problem.offset_b + half * (1 if problem.trans_b else problem.ldb),
        offset_c=problem.offset_c + half * problem.ldc,
    )


def _cut_m(problem: Gemm, tile: Tile) -> tuple[Gemm, Gemm]:
    half = round_up(problem.m // 2, tile.by)
    problem = problem._replace(triangle=GENERAL)
    return problem._replace(m=half), problem._replace(
        m=problem.m - half,
        offset_a=problem.offset_a + half * (problem.lda if problem.trans_a else 1),
        offset_c=problem.offset_c + half,
    )
