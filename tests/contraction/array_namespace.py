"""NumPy as a namespace of the array-API standard, with clgemm's products in it."""

from __future__ import annotations

import numpy as np

from clgemm import matmul, matrix_transpose, tensordot, vecdot

__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def __getattr__(name):
    return getattr(np, name)
