"""What calls these functions by name: opt_einsum, dask, array-API code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contraction import array_namespace as xp
from contraction.outcomes import numbers
from hypothesis import given, settings
from hypothesis import strategies as st

import clgemm

pytestmark = pytest.mark.usefixtures("in_use")
DRAWN = settings(max_examples=60, deadline=None, derandomize=True, database=None)
PAGE = Path(__file__).parents[2] / "docs" / "contractions.md"


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ij,jk->ik", ((9, 8), (8, 7))),
        ("abc,cbd,de->ea", ((3, 8, 9), (9, 8, 5), (5, 4))),
        ("ea,fb,abcd,gc,hd->efgh", ((3, 4), (3, 4), (4, 4, 4, 4), (3, 4), (3, 4))),
        ("bij,bjk,b->kbi", ((3, 9, 8), (3, 8, 7), (3,))),
        ("ijk,ijl,k,l->ij", ((5, 4, 8), (5, 4, 7), (8,), (7,))),
        ("ii,ij->j", ((5, 5), (5, 6))),
        ("ij,ij->", ((5, 6), (5, 6))),
        ("ab,cd->dcab", ((5, 6), (3, 4))),
    ],
)
def test_opt_einsum(text, shapes, where, rng):
    opt_einsum = pytest.importorskip("opt_einsum", reason="opt_einsum is not installed")
    operands = [numbers(rng, shape, "f") for shape in shapes]
    want = np.einsum(text, *operands)
    if where == "device":
        got = opt_einsum.contract(text, *map(clgemm.to_device, operands), backend="clgemm").get()
    else:
        got = opt_einsum.contract(text, *operands, backend="clgemm")
        again = opt_einsum.contract_expression(text, *shapes)
        np.testing.assert_array_equal(again(*operands, backend="clgemm"), want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_dask(rng, monkeypatch):
    array = pytest.importorskip("dask.array", reason="dask is not installed")
    from dask.array import dispatch  # noqa: PLC0415 - only where dask is

    for lookup in (dispatch.tensordot_lookup, dispatch.einsum_lookup):
        monkeypatch.setattr(lookup, "_lookup", dict(lookup._lookup))
    if not PAGE.exists():
        pytest.skip("an installed clgemm has no pages beside it")
    recipe = PAGE.read_text(encoding="utf-8").split("<!-- dask -->")[1].split("```")[1]
    exec(recipe, {"np": np, "clgemm": clgemm})  # noqa: S102 - that is what the page says
    calls = []
    for lookup in (dispatch.tensordot_lookup, dispatch.einsum_lookup):
        ours = lookup.dispatch(np.ndarray)
        lookup.register(
            np.ndarray, lambda *x, ours=ours, **y: calls.append(ours.__name__) or ours(*x, **y)
        )
    a, b = numbers(rng, (20, 30), "f"), numbers(rng, (30, 10), "f")
    x, y = array.from_array(a, chunks=(10, 15)), array.from_array(b, chunks=(15, 10))
    options = {"scheduler": "synchronous"}
    np.testing.assert_array_equal(array.tensordot(x, y, axes=1).compute(**options), a @ b)
    np.testing.assert_array_equal(array.einsum("ij,jk->ik", x, y).compute(**options), a @ b)
    assert set(calls) == {"tensordot", "einsum"}


@DRAWN
@given(
    st.lists(st.integers(1, 4), max_size=2), st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.sampled_from("fdFDil"), st.integers(0, 999),
)  # fmt: skip
def test_array_api_code(batch, extents, dtype, seed):
    """The standard's rules: conjugation, broadcasting, 0-d results, axes from the end."""
    rng = np.random.default_rng(seed)
    m, k, n = extents
    a, b = numbers(rng, (*batch, m, k), dtype), numbers(rng, (k, n), dtype)
    product = xp.matmul(a, b)
    assert product.shape == (*batch, m, n)
    np.testing.assert_array_equal(product, np.einsum("...ij,jk->...ik", a, b))
    np.testing.assert_array_equal(xp.matrix_transpose(a), np.moveaxis(a, -1, -2))
    np.testing.assert_array_equal(xp.tensordot(a, b, axes=1), product)
    np.testing.assert_array_equal(xp.tensordot(a, b, axes=((-1,), (-2,))), product)
    np.testing.assert_array_equal(
        xp.vecdot(a, b[:, 0]), np.einsum("...i,i->...", a.conj(), b[:, 0])
    )
    columns = np.einsum("...ij,ij->...j", b.conj(), b)
    np.testing.assert_array_equal(xp.vecdot(b, b, axis=-2), columns)
    with pytest.raises(ValueError, match="at least 2"):
        xp.matrix_transpose(b[0])
