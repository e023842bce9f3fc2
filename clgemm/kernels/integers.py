"""What kernels of integers and of bool share: `integers.cl`, and the defines that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clgemm.problem import Precision

BYTE = 8  # bits


def integer_defines(precision: Precision, lane_bytes: int) -> dict[str, int]:
    """Give the defines that `integers.cl` turns into types of elements and of lanes."""
    return {
        "BITS": precision.itemsize * BYTE,
        "LANE_BITS": lane_bytes * BYTE,
        "IS_BOOL": int(precision.dtype == bool),
    }
