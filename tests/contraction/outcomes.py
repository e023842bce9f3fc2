"""What a call comes to, clgemm's beside NumPy's: a value, or an error.

Operands hold small whole numbers, so that each sum is exact, in whichever order it is computed.
"""

from __future__ import annotations

import warnings

import numpy as np

DTYPES = "bhilqBHILQ?efdgFDG"
COMMON = "fdFDilb?e"


def numbers(rng, shape, dtype, order="C"):
    """Draw an array of an element type by NumPy's letter for it."""
    dtype = np.dtype(dtype)
    x = rng.integers(0, 2 if dtype.kind == "b" else 4, shape)
    if dtype.kind in "ifc":
        x = x - 1
    if dtype.kind == "c":
        x = x + 1j * rng.integers(-1, 3, shape)
    return np.asarray(x).astype(dtype, order=order)


def outcome(call, *args, **more):
    """Call; return what comes of it, or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(*args, **more)
        except Exception as error:  # noqa: BLE001 - which one it is, is compared
            return error


def assert_same(got, want, *, types=True):
    """Compare two outcomes: classes, texts of errors, element types, shapes, values."""
    # NumPy has two classes of integers as wide as a long, of types that are equal.
    if isinstance(want, Exception) or (types and not (np.isscalar(want) and np.isscalar(got))):
        assert type(got) is type(want), f"{got!r} is no {want!r}"
    if isinstance(want, Exception):
        assert str(got) == str(want)
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
