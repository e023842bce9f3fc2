"""dot, inner, vdot, outer, tensordot, vecdot and multi_dot have NumPy's results and errors."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle

import numpy as np
import pytest
from contraction.outcomes import COMMON, DTYPES, assert_same, numbers, outcome, seeds, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import clgemm
from clgemm.contraction import numpys

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("in_use")]
NAMES = ["dot", "inner", "vdot", "outer", "tensordot"]
NAMES += [name for name in ("vecdot", "matrix_transpose") if hasattr(np, name)]
ALL = [*NAMES, "einsum", "multi_dot", "transpose"]
DRAWN = settings(max_examples=120, deadline=None, derandomize=True, database=None)


def theirs(name):
    return getattr(np, name, None) or getattr(np.linalg, name)


@st.composite
def pairs(draw):
    """Draw two arrays whose last axes, or last but one, often fit."""
    rng = np.random.default_rng(draw(seeds))
    a, b = draw(shapes), draw(shapes)
    if a and b and draw(st.integers(0, 5)):
        place = draw(st.sampled_from([-1, max(-2, -len(b)), 0]))
        b = tuple(a[-1] if k == place % len(b) else n for k, n in enumerate(b))
    dtype = draw(st.sampled_from(DTYPES))
    other = draw(st.sampled_from([dtype, dtype, *COMMON]))
    orders = draw(st.tuples(*[st.sampled_from("CF")] * 2))
    x, y = numbers(rng, a, dtype, orders[0]), numbers(rng, b, other, orders[1])
    if a and draw(st.booleans()):
        x = np.repeat(x, 2, axis=0)[::2]
    return x, y


@pytest.mark.parametrize("name", ["dot", "inner", "vdot", "outer", *NAMES[5:6]])
def test_products_of_two(name):
    @DRAWN
    @given(pairs())
    def check(pair):
        assert_same(outcome(getattr(clgemm, name), *pair), outcome(theirs(name), *pair))

    check()


@DRAWN
@given(pairs(), st.data())
def test_tensordot(pair, data):
    x, y = pair
    count = st.integers(0, 3)
    axis = st.integers(-3, 3)
    axes = data.draw(st.one_of(count, st.tuples(axis, axis), st.tuples(
        st.lists(axis, max_size=2), st.lists(axis, max_size=2))))  # fmt: skip
    if isinstance(axes, int) and data.draw(st.booleans()):
        y = numbers(np.random.default_rng(0), (*x.shape[max(0, x.ndim - axes) :], 3), y.dtype)
    assert_same(outcome(clgemm.tensordot, x, y, axes), outcome(np.tensordot, x, y, axes))


@DRAWN
@given(
    st.lists(st.integers(1, 6), min_size=3, max_size=7), st.sampled_from(DTYPES),
    st.tuples(st.booleans(), st.booleans()), seeds,
)  # fmt: skip
def test_multi_dot(extents, dtype, vectors, seed):
    rng = np.random.default_rng(seed)
    arrays = [numbers(rng, s, dtype) for s in itertools.pairwise(extents)]
    arrays[0] = arrays[0][0] if vectors[0] else arrays[0]
    arrays[-1] = arrays[-1][:, 0] if vectors[1] else arrays[-1]
    want = outcome(np.linalg.multi_dot, arrays)
    assert_same(outcome(clgemm.multi_dot, arrays), want)
    if isinstance(want, np.ndarray):
        out = np.empty_like(numpys.dot(np.ones((1, 1), dtype), np.ones((1, 1), dtype)), shape=(
            1 if vectors[0] else extents[0], 1 if vectors[1] else extents[-1]))  # fmt: skip
        assert_same(outcome(clgemm.multi_dot, arrays, out=out.copy()),
                    outcome(np.linalg.multi_dot, arrays, out=out.copy()))  # fmt: skip


ARRAYS = [np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 2))]


@pytest.mark.parametrize(
    "arrays",
    [
        [], ARRAYS[:1], ARRAYS[:1] * 3, [*ARRAYS, np.ones((2, 2, 2))], [np.float64(2), *ARRAYS],
        [ARRAYS[0], np.ones(3), ARRAYS[1]], [x.tolist() for x in ARRAYS],
        [x.view(np.matrix) for x in ARRAYS], [x.astype(object) for x in ARRAYS],
        np.ones((3, 2, 2)), iter(ARRAYS), None, ["a", "b", "c"],
    ],
)  # fmt: skip
def test_multi_dot_of_anything(arrays):
    again = copy.copy(arrays)
    assert_same(outcome(clgemm.multi_dot, arrays), outcome(np.linalg.multi_dot, again))


@pytest.mark.parametrize(
    "pair",
    [
        (2, 3), (2.0, [1.0, 2.0]), ([1, 2], [3, 4]), ([[1.0]], [1, 2]), (None, None), ("a", "b"),
        (np.array(["a"]), np.array(["b"])), (np.ones(3, object), np.ones(3, object)),
        (np.ones((2, 2)).view(np.matrix), np.ones((2, 2))), (np.ma.ones((2, 2)), np.ones((2, 2))),
        (np.ones(2, "m8[s]"), np.ones(2)), (np.ones((2, 2), ">f8"), np.ones((2, 2), ">f8")),
        ([[1, 2], [3]], [1]), (np.ones((2, 2, 2)), [1.0, 2.0]), (np.float32(2), np.ones(3)),
        (np.zeros((2, 0), "i2"), []), ([], np.zeros(0, "c8")), ([[], []], np.zeros((0, 3), "u1")),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("name", ["dot", "inner", "vdot", "outer", "tensordot", *NAMES[5:6]])
def test_anything_else(name, pair):
    assert_same(outcome(getattr(clgemm, name), *pair), outcome(theirs(name), *pair))


@pytest.mark.parametrize("pair", [((3, 4), (4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5))])
@pytest.mark.parametrize("kind", ["right", "F", "type", "shape", "rank", "read", "swap", "list"])
def test_out_of_dot(pair, kind, rng):
    a, b = (numbers(rng, shape, "f") for shape in pair)
    want = np.dot(a, b)
    outs = []
    for _ in "ab":
        out = np.zeros_like(want, order="F" if kind == "F" else "C")
        out = {"type": out.astype("d"), "shape": out[:-1].copy(), "rank": out[None],
               "swap": out.astype(">f4"), "list": out.tolist()}.get(kind, out)  # fmt: skip
        if kind == "read":
            out.flags.writeable = False
        outs.append(out)
    got, expected = outcome(clgemm.dot, a, b, outs[0]), outcome(np.dot, a, b, outs[1])
    assert_same(got, expected)
    assert (got is outs[0]) == (expected is outs[1])
    np.testing.assert_array_equal(outs[0], outs[1])


@pytest.mark.parametrize("dtype", ["f", "D", "i"])
def test_out_without_axes(dtype, rng):
    """NumPy fills it, and returns a number."""
    a, b = (numbers(rng, (7,), dtype) for _ in "ab")
    outs = [np.zeros((), dtype) for _ in "ab"]
    got, want = clgemm.dot(a, b, out=outs[0]), np.dot(a, b, out=outs[1])
    assert type(got) is type(want)
    assert got == want == outs[0] == outs[1]


def test_out_that_is_an_operand(rng):
    a, b = numbers(rng, (4, 4), "f"), numbers(rng, (4, 4), "f")
    want = np.dot(a, b)
    assert clgemm.dot(a, b, out=b) is b
    np.testing.assert_array_equal(b, want)


def test_operands_that_override(rng):
    class Own:
        def __array_function__(self, function, types, args, kwargs):
            return function.__name__

    x = numbers(rng, (3, 3), "f")
    for name in ("dot", "inner", "vdot", "outer", "tensordot"):
        assert getattr(clgemm, name)(Own(), x) == name
        assert getattr(clgemm, name)(x, Own()) == name
    assert clgemm.einsum("ij,jk", x, Own()) == "einsum"
    assert clgemm.multi_dot([x, Own(), x]) == "multi_dot"
    assert clgemm.multi_dot([x, Own()]) == "multi_dot"
    assert clgemm.multi_dot([x, x], out=Own()) == "multi_dot"
    assert clgemm.transpose(Own()) == "transpose"


@pytest.mark.parametrize("name", ALL)
def test_functions_look_like_numpys(name):
    ours, original = getattr(clgemm, name), theirs(name)
    assert ours.__name__ == name
    assert ours.__doc__
    assert pickle.loads(pickle.dumps(ours)) is ours  # noqa: S301 - it was just made
    want = outcome(inspect.signature, original)  # NumPy 1 tells none of its compiled functions
    if not isinstance(want, ValueError):
        assert inspect.signature(ours) == want


def test_they_may_take_the_place_of_numpys(monkeypatch, rng):
    a, b, c = (numbers(rng, (5, 5), "f") for _ in "abc")
    want = a @ b @ c
    for name in ("dot", "inner", "vdot", "outer", "tensordot", "einsum", "transpose"):
        monkeypatch.setattr(np, name, getattr(clgemm, name))
    monkeypatch.setattr(np.linalg, "multi_dot", clgemm.multi_dot)
    np.testing.assert_array_equal(np.einsum("ij,jk,kl->il", a, b, c, optimize="greedy"), want)
    np.testing.assert_array_equal(np.linalg.multi_dot([a, b, c]), want)
    np.testing.assert_array_equal(np.linalg.multi_dot([a, b.view(np.matrix), c]), want)
    np.testing.assert_array_equal(np.tensordot(np.dot(a, b), c.astype(object), 1), want)


def test_a_contraction_copies_no_operand_that_lies_right(monkeypatch, rng):
    """Whatever the order in which the axes are given."""
    found = []
    real = clgemm.contraction.products.matmul
    monkeypatch.setattr(
        clgemm.contraction.products, "matmul", lambda a, b: found.append((a, b)) or real(a, b)
    )
    x, y = numbers(rng, (6, 3, 4, 5), "f"), numbers(rng, (4, 5, 7), "f")
    clgemm.tensordot(x, y, ([3, 2], [1, 0]))
    clgemm.tensordot(y, x, ([1, 0], [3, 2]))
    clgemm.inner(x, numbers(rng, (2, 2, 5), "f"))
    for a, b in found[:2]:
        assert any(np.may_share_memory(z, x) for z in (a, b))
        assert any(np.may_share_memory(z, y) for z in (a, b))
    assert np.may_share_memory(found[2][0], x)
