"""What other tests rely on: rows that cover every pair, and an environment that is nobody's own."""

from __future__ import annotations

import itertools
import os

import pytest
from helpers import pairwise


@pytest.mark.parametrize("sizes", [(2, 2), (4, 3, 3, 6), (1, 5, 2), (20, 6, 8, 8)], ids=str)
def test_every_pair_of_values_is_in_a_row_and_few_rows_are_needed(sizes):
    rows = pairwise(*map(range, sizes))
    assert rows == pairwise(*map(range, sizes)), "the rows are the same each time"
    for i, j in itertools.combinations(range(len(sizes)), 2):
        pairs = itertools.product(range(sizes[i]), range(sizes[j]))
        assert {(row[i], row[j]) for row in rows} == set(pairs)
    *_, second, first = sorted(sizes)
    assert first * second <= len(rows) <= 1.1 * first * second


def test_nothing_sets_up_the_host_s_blas():
    prefixes = ("OPENBLAS_", "GOTO_", "OMP_", "MKL_", "BLIS_", "VECLIB_")
    assert [name for name in os.environ if name.startswith(prefixes)] == []
