"""What is said of two arrays' memory without asking where they lie is what addresses say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from clgemm.layouts import address_of, is_same_memory

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
