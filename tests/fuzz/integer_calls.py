"""Calls of matmul with integers and bool: what comes of them is NumPy's, to the bit.

NumPy 2.4 itself crashes when products of objects with a time overflow for the second time: such
operands are drawn small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from . import matmul_calls
from .matmul_calls import call_only, check
from .operands import Operand

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["call_only", "check", "draw"]

DTYPES = ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "q", "Q")
SWAPPED = (">i2", ">u4", ">i8")
VALUES = ("whole", "extreme", "extreme", "sparse")


def draw(rng: np.random.Generator, known: Mapping[str, tuple[int, ...]]) -> matmul_calls.MatmulCall:
    """Draw a call; operands are mostly of one type, and out of the type that comes of them."""
    first = str(rng.choice(DTYPES if rng.random() < 0.95 else SWAPPED))
    second = first if rng.random() < 0.75 else str(rng.choice(DTYPES))
    result = np.result_type(np.dtype(first), np.dtype(second)).newbyteorder("=")
    sizes = known.get(result.str[1:], known["i4"])
    call = matmul_calls.draw_of(rng, (first, second, result.str.lstrip("<|=")), sizes, VALUES)
    x1, x2 = call.x1, call.x2
    if not (isinstance(x1, Operand) and isinstance(x2, Operand)):
        return call
    if {np.dtype(x.dtype).kind for x in (x1, x2)} & set("mMO"):
        return replace(call, x1=replace(x1, values="whole"), x2=replace(x2, values="whole"))
    return call
