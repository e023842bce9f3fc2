"""What is said of arrays' memory without asking where they lie is what addresses say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clgemm.layouts import address_of, is_aligned, is_same_memory, layout_of

SQUARE = np.arange(36.0).reshape(6, 6)
VIEWS = {
    "itself": SQUARE,
    "transpose": SQUARE.T,
    "view": SQUARE.view(),
    "first rows": SQUARE[:3],
    "last rows": SQUARE[3:],
    "first columns": SQUARE[:, :3],
    "backwards": SQUARE[::-1],
    "both ways backwards": SQUARE[::-1, ::-1],
    "one row, repeated": np.broadcast_to(SQUARE[1], (6, 6)),
    "flat": SQUARE.reshape(-1),
    "other type": SQUARE.view(np.int64),
    "copy": SQUARE.copy(),
    "bytes": np.frombuffer(SQUARE.tobytes()).reshape(6, 6),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.product(VIEWS, VIEWS)), ids=str)
def test_the_same_memory_is_what_begins_at_one_address(one, other):
    a, b = VIEWS[one], VIEWS[other]
    assert is_same_memory(a, b) == (address_of(a) == address_of(b))


WIDE = np.zeros(128, np.uint8)
"""Aligned for complex numbers, as what NumPy allocates is, and several times as long as one."""


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "f2", "i8"])
@pytest.mark.parametrize("shift", [0, 1, 4, 8, 16])
def test_what_is_aligned_begins_at_a_multiple_of_an_element(dtype, shift):
    size = np.dtype(dtype).itemsize
    count = (WIDE.nbytes - 16) // size
    part = WIDE[shift : shift + count * size].view(dtype)
    whole = WIDE.view(dtype)
    for x in (
        part, part[::-1], part[: count // 2 * 2].reshape(2, -1).T, part[1:2], part.copy(),
        np.broadcast_to(part[:1], len(whole)),  # of as many bytes as all of the memory
        whole, whole[::-1], whole.reshape(2, -1).T, whole[1:], np.frombuffer(WIDE.data, dtype),
    ):  # fmt: skip
        assert is_aligned(x) == (address_of(x) % size == 0)
        assert (layout_of(x[None]) is None) == (not is_aligned(x) or min(x.strides) < 0)
