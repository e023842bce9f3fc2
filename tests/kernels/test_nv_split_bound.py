"""The steps of `nv_split`'s error bound, in NumPy's halves: they need no device."""

from __future__ import annotations

import numpy as np
import pytest

from clgemm.kernels.nv_split.family import LEAST_DEPTH
from clgemm.kernels.nv_split.layout import TARGET_FP16, spread_fp16

U = 2.0**-24
COUNT = 200_000
DEPTHS = (64, 100, 1024, 4096, 65536, 1 << 20, 1 << 24)


def scaled_elements(rng, depth):
    """Give floats from the largest to the smallest exponent that a row in fp16 may have."""
    least = TARGET_FP16 - spread_fp16(depth)
    exponents = rng.integers(least, TARGET_FP16 + 1, COUNT)
    exponents[: COUNT // 2] = rng.integers(least, least + 3, COUNT // 2)  # where halves are worst
    bits = rng.integers(0, 1 << 23, COUNT)
    # Few bits set, or all: ties, and what is next to one.
    shift = rng.integers(0, 24, COUNT)
    bits[::3] = (bits[::3] >> shift[::3]) << shift[::3]
    bits[1::3] |= (1 << shift[1::3]) - 1
    x = np.ldexp((1 + bits / 2.0**23), exponents).astype(np.float32)
    return np.where(rng.random(COUNT) < 0.5, -x, x)


def split(x):
    """Split as `store_fp16` of nv_split/parts.cl does."""
    h0 = x.astype(np.float16).astype(np.float32)
    rest = (x - h0) * np.float32(2**11)
    h1 = rest.astype(np.float16).astype(np.float32)
    return h0, rest, h1


@pytest.mark.parametrize("depth", DEPTHS)
def test_what_two_halves_hold_of_a_float(depth, rng):
    x = scaled_elements(rng, depth)
    h0, rest, h1 = split(x)
    exact, size = x.astype(np.float64), np.abs(x.astype(np.float64))
    np.testing.assert_array_equal(rest, (exact - h0) * 2.0**11)  # a float holds it
    lost = np.abs(exact - h0 - h1 * 2.0**-11)
    tau = 2.0 ** (spread_fp16(depth) - TARGET_FP16 - 36)
    assert tau <= max(2.0**-22, np.sqrt(depth) * U)
    assert (lost <= np.maximum(2.0**-23 * size, 2.0**-36)).all()
    assert (lost <= tau * size).all()
    assert (np.abs(h1) * 2.0**-11 <= np.maximum(2.0**-11 * size, 2.0**-25)).all()
    assert (np.abs(h1) * 2.0**-11 <= max(2.0**-11, 2.0**11 * tau) * size).all()


@pytest.mark.parametrize("depth", DEPTHS)
def test_what_three_products_of_halves_lose(depth, rng):
    x, y = scaled_elements(rng, depth), rng.permutation(scaled_elements(rng, depth))
    (x0, _, x1), (y0, _, y1) = (
        (part.astype(np.longdouble) for part in split(z)) for z in (x, y)
    )  # fmt: skip
    product = x.astype(np.longdouble) * y
    kept = x0 * y0 + (x0 * y1 + x1 * y0) * np.longdouble(2.0**-11)
    lost = np.abs(product - kept) / np.abs(product)
    assert lost.max() <= (2 * np.sqrt(depth) + depth / 4 + 1) * U
    tiny = np.minimum(np.abs(x), np.abs(y)) < 2.0**-14
    one = ~((np.abs(x) < 2.0**-14) & (np.abs(y) < 2.0**-14))
    assert lost[one].max() <= (3 * np.sqrt(depth) + 4) * U
    assert tiny.any(), "no half was subnormal: the test tests nothing"


def test_with_the_estimate_for_the_sums_the_whole_is_within_the_bound():
    k = np.arange(LEAST_DEPTH, 1 << 20, dtype=np.float64)
    assert (2 * np.sqrt(k) + k / 4 + 1 + k / 32 + 10 < k).all()
