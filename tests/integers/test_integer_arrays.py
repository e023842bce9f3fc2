"""clgemm.matmul of Arrays on a device: integers and bool exact, float16 rounded once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import clgemm
from clgemm.problem import HALF, INTEGERS

pytestmark = pytest.mark.usefixtures("in_use")
EXACT = [precision.dtype for precision in INTEGERS.values()]
SHAPES = [
    ((1, 1), (1, 1)), ((1, 40), (40, 3)), ((40, 1), (1, 35)), ((37, 35), (35, 29)),
    ((131, 25), (25, 300)), ((5, 600), (600, 7)), ((150, 97), (97, 140)), ((40,), (40,)),
    ((40,), (40, 3)), ((3, 40), (40,)), ((6, 33, 34), (6, 34, 35)), ((2, 1, 20, 30), (3, 30, 25)),
    ((7, 40, 30), (30, 20)), ((40, 30), (6, 30, 20)), ((4, 0), (0, 3)), ((0, 4), (4, 3)),
]  # fmt: skip


def drawn(rng, dtype, *shape, kind="any"):
    """Draw elements of all bits, or only the least, the greatest, and next to 0."""
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.1
    limits = np.iinfo(dtype)
    if kind == "extreme":
        extremes = [limits.min, limits.max, limits.min // 2, 0, 1, limits.max - 1]
        return rng.choice(np.array(extremes, dtype), shape)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def assert_product(got, a, b):
    """Compare an Array with NumPy's product: exactly, or as a float32 sum that was rounded."""
    assert got.dtype == a.dtype
    value = got.get()
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(value, np.matmul(a, b), strict=True)
        return
    x, y = a.astype(float), b.astype(float)
    want, size = np.matmul(x, y), np.matmul(abs(x), abs(y))
    assert value.shape == want.shape
    bound = a.shape[-1] * np.finfo(np.float32).eps * size + abs(want) * 2.0**-11 + 2.0**-25
    assert np.all(abs(value.astype(float) - want) <= 1.001 * bound)


@pytest.mark.parametrize("dtype", [*EXACT, HALF.dtype], ids=str)
@pytest.mark.parametrize("kind", ["any", "extreme"])
def test_values_are_numpys(dtype, kind, rng):
    for of_a, of_b in SHAPES:
        a, b = drawn(rng, dtype, *of_a, kind=kind), drawn(rng, dtype, *of_b, kind=kind)
        assert_product(clgemm.matmul(clgemm.to_device(a), clgemm.to_device(b)), a, b)


@pytest.mark.parametrize("dtype", [*EXACT, HALF.dtype], ids=str)
def test_operands_lie_anyhow_and_nothing_around_out_changes(dtype, rng):
    m, n, k = 70, 45, 61
    for turned_a, turned_b, turned_c in itertools.product((0, 1), repeat=3):
        memory = [drawn(rng, dtype, 80 + 3 * i, 91 - 4 * i) for i in range(3)]
        arrays = [clgemm.to_device(x) for x in memory]
        here, there = (
            [
                x[i + 1 : i + 1 + columns, 3 : 3 + rows].T
                if turned
                else x[i + 1 : i + 1 + rows, 3 : 3 + columns]
                for i, (x, turned, (rows, columns)) in enumerate(
                    zip(xs, (turned_a, turned_b, turned_c), ((m, k), (k, n), (m, n)), strict=True)
                )
            ]
            for xs in (memory, arrays)
        )
        out = there[2]
        assert clgemm.matmul(*there[:2], out=out) is out
        arrays[2].finish()
        after = arrays[2].get()
        found = after[3 : 3 + n, 3 : 3 + m].T if turned_c else after[3 : 3 + m, 3 : 3 + n]
        assert_product(clgemm.to_device(found), *here[:2])
        found[...] = here[2]
        np.testing.assert_array_equal(after, memory[2])


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "?", "f2"])
def test_a_matrix_by_its_own_transpose(dtype, rng):
    a = drawn(rng, np.dtype(dtype), 120, 70)
    there = clgemm.to_device(a)
    assert_product(clgemm.matmul(there, there.T), a, a.T)
    assert_product(clgemm.matmul(there.T, there), a.T, a)


def test_a_true_that_is_not_one_is_true(rng):
    a = rng.choice(np.array([0, 0, 1, 2, 4, 128, 255], np.uint8), (40, 300)).view(bool)
    b = rng.choice(np.array([0, 0, 1, 8, 64], np.uint8), (300, 50)).view(bool)
    got = clgemm.matmul(clgemm.to_device(a), clgemm.to_device(b)).get()
    np.testing.assert_array_equal(got, np.matmul(a, b))
    assert set(np.unique(got.view(np.uint8))) <= {0, 1}


def test_halves_overflow_and_are_not_finite_as_numpys():
    a = np.array([[60000, 60000], [np.inf, 1], [np.nan, 1], [np.inf, -np.inf], [6e-8, 6e-8]], "f2")
    b = np.array([[1, 0.25], [1, 1]], "f2")
    with np.errstate(all="ignore"):
        want = np.matmul(a, b)
    got = clgemm.matmul(clgemm.to_device(a), clgemm.to_device(b)).get()
    np.testing.assert_array_equal(got, want)


def test_types_that_differ_are_refused(rng):
    a, b = (clgemm.to_device(drawn(rng, np.dtype(x), 4, 4)) for x in ("i4", "i8"))
    for x, y in ((a, b), (b, a), (a, clgemm.to_device(np.ones((4, 4), "f4")))):
        with pytest.raises(TypeError, match="astype"):
            clgemm.matmul(x, y)
    with pytest.raises(TypeError, match="int32, int32, int64"):
        clgemm.matmul(a, a, out=b)
    longs = clgemm.to_device(np.ones((2, 2), "G"))
    with pytest.raises(TypeError, match="of one type"):
        clgemm.matmul(longs, longs)
