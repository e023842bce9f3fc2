"""Drawn operands, and what a call comes to, clgemm's beside NumPy's: a value, or an error.

Operands hold small whole numbers, so that each sum is exact, in whichever order it is computed.
"""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import strategies as st

DTYPES = "bhilqBHILQ?efdgFDG"
COMMON = "fdFDilb?e"

shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=4).map(tuple)


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


@st.composite
def expressions(draw, mistakes=True):
    """Draw subscripts and operands; a few of them wrong."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    sizes = {x: draw(st.sampled_from([0, 1, 2, 2, 3, 3, 4])) for x in "ijklBz"}
    dots = draw(st.sampled_from([(), (), (), (2,), (2, 3)]))
    terms, operands = [], []
    dtype = draw(st.sampled_from(COMMON))
    for _ in range(draw(st.integers(1, 4))):
        labels = draw(st.lists(st.sampled_from(list(sizes)), max_size=3))
        shape = [1 if draw(st.integers(0, 9)) == 0 else sizes[x] for x in labels]
        if mistakes and draw(st.integers(0, 40)) == 0:
            shape.append(2)
        if dots and draw(st.booleans()):
            place = draw(st.integers(0, len(labels)))
            hidden = dots[draw(st.integers(0, len(dots))) :]
            labels.insert(place, "...")
            shape[place:place] = [1 if draw(st.integers(0, 4)) == 0 else n for n in hidden]
        kind = draw(st.sampled_from([dtype] * 6 + list(COMMON)))
        terms.append(draw(st.sampled_from(["", "", " "])) + "".join(labels))
        operands.append(numbers(rng, shape, kind, draw(st.sampled_from("CF"))))
    text = ",".join(terms)
    if draw(st.booleans()):
        there = sorted(set(text) - set(" ,."))
        result = draw(st.permutations(there))[: draw(st.integers(0, 4))]
        if "..." in text and draw(st.integers(0, 9)):
            result.insert(draw(st.integers(0, len(result))), "...")
        if mistakes and draw(st.integers(0, 40)) == 0:
            result.append("i")
        text += "->" + "".join(result)
    return text, operands
