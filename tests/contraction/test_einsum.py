"""einsum has NumPy's results and errors, and multiplies matrices where there are some."""

from __future__ import annotations

import numpy as np
import pytest
from contraction.outcomes import assert_same, expressions, numbers, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

import clgemm
from clgemm.contraction import plans, sums

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("in_use")]
DRAWN = settings(max_examples=250, deadline=None, derandomize=True, database=None)
ORDERS = ["auto", True, "greedy", "optimal", False]


@pytest.fixture(autouse=True)
def _nothing_is_tiny(monkeypatch):
    monkeypatch.setattr(sums, "TINY", 0)


@pytest.fixture(params=["opt_einsum", "numpy"])
def orders(request, monkeypatch):
    """Take the order of contractions from either side."""
    plans._of.cache_clear()
    if request.param == "numpy":
        monkeypatch.setattr(plans, "_opt_einsum", lambda: None)
    else:
        pytest.importorskip("opt_einsum", reason="opt_einsum is not installed")
    yield
    plans._of.cache_clear()


@DRAWN
@given(expressions(), st.sampled_from(ORDERS))
def test_any_expression(expression, optimize):
    text, operands = expression
    want = outcome(np.einsum, text, *operands)
    got = outcome(clgemm.einsum, text, *operands, optimize=optimize)
    if isinstance(want, Exception):  # what NumPy refuses, and how, differs between its two ways
        theirs = outcome(np.einsum, text, *operands, optimize=optimize not in {"auto", False})
        assert isinstance(got, Exception) == isinstance(theirs, Exception)
    else:
        assert_same(got, want, types=optimize in {"auto", False})


@settings(DRAWN, max_examples=100)
@given(expressions(mistakes=False), st.data())
def test_keywords(expression, data):
    text, operands = expression
    given_words = data.draw(st.fixed_dictionaries({}, optional={
        "dtype": st.sampled_from([*"fdDi", None, "O"]),
        "casting": st.sampled_from(["safe", "same_kind", "unsafe", "no"]),
        "order": st.sampled_from("CFAKcx"),
    }))  # fmt: skip
    want = outcome(np.einsum, text, *operands, **given_words)
    got = outcome(clgemm.einsum, text, *operands, **given_words)
    if isinstance(want, TypeError | ValueError) and len(operands) < 2:
        assert_same(got, want)
    elif isinstance(want, Exception):
        assert isinstance(got, type(want))
    else:
        assert_same(got, want)
        asked = given_words.get("order", "K")
        if asked in "CFc" and len(operands) > 1 and np.ndim(want):
            assert got.flags[f"{asked.upper()}_CONTIGUOUS"]


@pytest.mark.parametrize("operands", [("ij,jk->ik", 2), ("ij,jk,kl", 3)])
def test_a_result_of_another_byte_order(operands, rng):
    text, count = operands
    matrices = [numbers(rng, (5, 5), "f") for _ in range(count)]
    got, want = (f(text, *matrices, dtype=">f8") for f in (clgemm.einsum, np.einsum))
    np.testing.assert_array_equal(got, want, strict=True)


@settings(DRAWN, max_examples=100)
@given(expressions(mistakes=False), st.sampled_from("CF"), st.booleans())
def test_out(expression, order, overlaps):
    text, operands = expression
    want = outcome(np.einsum, text, *operands)
    if isinstance(want, Exception):
        return
    ours, others = (np.full(np.shape(want), 7, np.asarray(want).dtype, order) for _ in "ab")
    if overlaps:
        for k, x in enumerate(operands):
            if x.shape == ours.shape and x.dtype == ours.dtype:
                ours[...] = x
                operands[k] = ours
                break
    expected = outcome(np.einsum, text, *[x.copy() for x in operands], out=others)
    got = outcome(clgemm.einsum, text, *operands, out=ours)
    assert_same(got, expected)
    if not isinstance(expected, Exception):
        assert got is ours


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("optimize", ["auto", True, "greedy", "optimal", ("greedy", 50)])
def test_many_operands_in_any_order(optimize, rng):
    text = "ea,fb,abcd,gc,hd,x->efgh"
    c = [numbers(rng, (3, 4), "d") for _ in range(4)]
    operands = [*c[:2], numbers(rng, (4, 4, 4, 4), "d"), *c[2:], numbers(rng, 3, "d")]
    assert_same(
        clgemm.einsum(text, *operands, optimize=optimize), np.einsum(text, *operands), types=False
    )
    path = np.einsum_path(text, *operands)[0]
    for given_path in (path, tuple(path)):
        got = clgemm.einsum(text, *operands, optimize=given_path)
        assert_same(got, np.einsum(text, *operands), types=False)


TWO = np.ones((2, 2))


@pytest.mark.parametrize(
    "operands",
    [
        (), ("",), ("ij",), (None,), ("ij,jk", TWO), (TWO, [0, 0]), (TWO, "ij"),
        (TWO, [0, 1], TWO, [1, 30], [30, 0]), (TWO, [0, -1], TWO, [1, 2]),
        (np.ones((2, 3)), [Ellipsis, 1], np.ones((3, 2)), [1, Ellipsis], [Ellipsis]),
        (np.ones(2), [60], np.ones(2), [60]), (5, [], np.ones(2), [0]),
        ("i j , j k - > ik", TWO, TWO), ("i j , j k -> ik", TWO, TWO), ("ij,jk->->ik", TWO, TWO),
        ("i..,.i", np.ones(2), np.ones(2)), ("ij,jk->ii", TWO, TWO), ("ij,jk->z", TWO, TWO),
        ("ij,jk", [[1, 2], [3, 4]], [[1.0, 2.0]]), ("ij,jk", [[1, 2], [3, 4]], [[1.0, 2], [3, 4]]),
        ("i,i", np.ones(3, object), np.ones(3, object)), ("i,i", np.array(["a"]), np.array(["b"])),
        ("ij,jk", TWO.view(np.matrix), TWO), (",ij", 3, np.ones((2, 2), "f")),
        ("ij,jk", np.ma.ones((2, 2)), TWO), ("ij,jk,", TWO, TWO, 2.0), ("...i->i", TWO),
        ("...i,i->i", TWO, np.ones(2)),
    ],
    ids=str,
)  # fmt: skip
def test_anything_else(operands):
    assert_same(outcome(clgemm.einsum, *operands), outcome(np.einsum, *operands))


def test_unknown_keywords_and_orders_are_numpys_to_refuse(rng):
    a = numbers(rng, (3, 3), "f")
    for more in ({"axis": 1}, {"optimize": "fast"}, {"optimize": 3}, {"out": 3}, {"order": 3}):
        want = outcome(np.einsum, "ij,jk,kl", a, a, a, **more)
        got = outcome(clgemm.einsum, "ij,jk,kl", a, a, a, **more)
        assert type(got) is type(want), more


@pytest.mark.parametrize(
    ("text", "shapes", "count"),
    [
        ("ij,jk->ik", ((9, 8), (8, 7)), 1), ("ij,jk->ki", ((9, 8), (8, 7)), 1),
        ("bij,bjk->bik", ((3, 9, 8), (3, 8, 7)), 1), ("ijk,jil->kl", ((9, 8, 7), (8, 9, 5)), 1),
        ("ij,jk,kl->il", ((9, 8), (8, 7), (7, 6)), 2), ("iij,jk->ik", ((5, 5, 8), (8, 7)), 1),
        ("ij,j->i", ((9, 8), (8,)), 1), ("...ij,...jk", ((2, 9, 8), (8, 7)), 1),
        ("ij,ij->ij", ((9, 8), (9, 8)), 0), ("i,j->ij", ((9,), (8,)), 0), ("ij->ji", ((9, 8),), 0),
        ("ij,kj,l->ik", ((9, 8), (7, 8), (3,)), 1),
    ],
)  # fmt: skip
def test_products_of_matrices_are_products(text, shapes, count, rng, monkeypatch):
    calls = []
    real = sums.matmul
    monkeypatch.setattr(sums, "matmul", lambda *x, **y: calls.append(x) or real(*x, **y))
    operands = [numbers(rng, shape, "f") for shape in shapes]
    assert_same(clgemm.einsum(text, *operands), np.einsum(text, *operands))
    assert len(calls) == count


def test_a_plan_is_made_once(rng, monkeypatch):
    a = numbers(rng, (7, 7), "f")
    clgemm.einsum("xy,yz,zw->xw", a, a, a)
    monkeypatch.setattr(plans, "_path", None)
    assert_same(clgemm.einsum("xy,yz,zw->xw", a, a, a), a @ a @ a)


def test_the_product_is_written_into_out(rng, monkeypatch):
    found = []
    real = sums.matmul
    monkeypatch.setattr(sums, "matmul", lambda a, b, out=None: found.append(out) or real(a, b, out))
    a, b, out = numbers(rng, (6, 5), "f"), numbers(rng, (5, 4), "f"), np.empty((6, 4), "f")
    assert clgemm.einsum("ij,jk->ik", a, b, out=out) is out
    assert np.may_share_memory(found[0], out)
    clgemm.einsum("ij,jk->ki", a, b, out=np.empty((4, 6), "f"))
    square = numbers(rng, (5, 5), "f")
    want = square @ square
    clgemm.einsum("ij,jk->ik", square, square, out=square)
    np.testing.assert_array_equal(square, want)
