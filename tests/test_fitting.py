"""Rates from times: the best that are not negative, which SciPy's solver finds as well."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from clgemm.tuning import fitting


@pytest.mark.parametrize(("times", "kinds"), [(9, 6), (17, 4), (4, 6), (1, 3)])
def test_the_same_as_nonnegative_least_squares(times, kinds, rng):
    for _ in range(20):
        counts = rng.uniform(0, 10.0 ** rng.integers(0, 9, kinds), (times, kinds))
        seconds = rng.uniform(1e-5, 1e-2, times)
        found = np.array(fitting.rates(counts, seconds))
        rows = counts / seconds[:, None]
        scale = rows.max(axis=0)
        want, miss = nnls(rows / scale, np.ones(times))
        assert np.all(found >= 0)
        assert np.linalg.norm(rows @ found - 1) <= miss + 1e-9
        if times >= kinds:
            np.testing.assert_allclose(found * scale, want, atol=1e-7)


def test_exact_rates_are_found(rng):
    rates = np.array([1e-6, 0.0, 2e-11, 3e-10])
    counts = rng.uniform(1, 1e6, (12, 4))
    np.testing.assert_allclose(fitting.rates(counts, counts @ rates), rates, rtol=1e-6, atol=1e-16)


def test_only_the_kinds_that_may_count_do(rng):
    counts = rng.uniform(1, 2, (5, 4))
    found = fitting.rates(counts, counts.sum(axis=1), columns=[1, 3])
    assert found[0] == found[2] == 0
    assert min(found[1], found[3]) >= 0
    assert max(found) > 0


def test_what_never_occurs_costs_nothing():
    assert fitting.rates(np.array([[0, 2], [0, 4]]), [1.0, 2.0]) == (0.0, pytest.approx(0.5))
