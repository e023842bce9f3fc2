"""Drawn operands, and what a call comes to, clgemm's beside NumPy's: a value, or an error.

Operands hold small whole numbers, so that each sum is exact, in whichever order it is computed.
"""

from __future__ import annotations

import random
import warnings

import numpy as np
from hypothesis import strategies as st

DTYPES = "bhilqBHILQ?efdgFDG"
COMMON = "fdFDilb?e"

shapes = st.lists(st.sampled_from([0, 1, 2, 3, 5]), max_size=4).map(tuple)
seeds = st.integers(0, 2**31)


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


def expressions(*, mistakes=True):
    """Draw subscripts and operands; a few of them wrong.

    By a generator of a drawn seed: hypothesis itself prefers what is simple, and few of that are
    products of matrices.
    """
    return seeds.map(lambda seed: _expression(random.Random(seed), mistakes))


def _expression(chance, mistakes):
    rng = np.random.default_rng(chance.getrandbits(32))
    extents = [0, 1] + [2, 3, 4, 5] * 5
    sizes = {x: chance.choice(extents) for x in "ijklB"}
    dots = chance.choice([(), (), (), (2,), (2, 3)])
    terms, operands = [], []
    dtype = chance.choice(COMMON)
    for _ in range(chance.choice([1, 2, 2, 2, 3, 3, 4])):
        labels = chance.sample(list(sizes), chance.randint(1, 3))
        if chance.random() < 0.15:
            labels.append(chance.choice(labels))
        shape = [1 if chance.random() < 0.05 else sizes[x] for x in labels]
        if mistakes and chance.random() < 0.02:
            shape.append(2)
        if dots and chance.random() < 0.5:
            place = chance.randint(0, len(labels))
            hidden = dots[chance.randint(0, len(dots)) :]
            labels.insert(place, "...")
            shape[place:place] = [1 if chance.random() < 0.2 else n for n in hidden]
        kind = dtype if chance.random() < 0.8 else chance.choice(COMMON)
        terms.append(chance.choice(["", "", " "]) + "".join(labels))
        operands.append(numbers(rng, shape, kind, chance.choice("CF")))
    text = ",".join(terms)
    if chance.random() < 0.6:
        there = sorted(set(text) - set(" ,."))
        result = chance.sample(there, min(len(there), chance.randint(0, 4)))
        if "..." in text and chance.random() < 0.95:
            result.insert(chance.randint(0, len(result)), "...")
        if mistakes and chance.random() < 0.02:
            result.append("i")
        text += "->" + "".join(result)
    return text, operands
