"""Products of a matrix and its own transpose, as users write them, and what only looks like one."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from helpers import square

import clgemm
from clgemm import settings
from clgemm.dispatch import engines
from clgemm.problem import GENERAL, HERMITIAN, PRECISIONS, SYMMETRIC, Call
from clgemm.tuning.measure.verify import random_matrix

N, K = 100, 37


def require(device, code):
    if not device.traits.has(PRECISIONS[code]):
        pytest.skip(f"{device.traits.describe()} has no double precision")


def matrix(rng, code, rows=K, columns=N, order="C"):
    return np.array(random_matrix(rng, PRECISIONS[code], rows, columns), order=order)


def assert_product(got, a, b, alpha=1.0):
    want, size = reference.gemm(alpha, a, b, 0.0, got)
    reference.assert_within_bound(got, want, size, a.shape[1], np.finfo(got.dtype).eps)


def assert_mirrored(device, c, image):
    """Fail unless C is exactly its mirror image; a GPU computes all of so small a one."""
    if device.traits.kind != "gpu":
        np.testing.assert_array_equal(c, image)


def triangle(device, a, b, c=None, alpha=1.0, beta=0.0, *, conj_a=False, conj_b=False):
    """Tell what a call is taken for."""
    c = np.zeros((a.shape[-2], b.shape[-1]), a.dtype) if c is None else c
    call = Call.of(alpha, a, b, beta, c, conj_a, conj_b)
    return engines.of(device).decide(call, settings.modes()).problem.triangle


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("code", "sdcz")
def test_matmul_of_a_matrix_and_its_transpose_is_symmetric(device, code, order, rng):
    require(device, code)
    a = matrix(rng, code, order=order)
    wide = matrix(rng, code, K, N + 9, order)[:, 4 : N + 4]
    for x in (a, wide):
        for left, right in ((x.T, x), (x, x.T)):
            assert triangle(device, left, right) == SYMMETRIC
            for out in (None, *(np.full((len(left),) * 2, np.nan, x.dtype, o) for o in "CF")):
                got = clgemm.matmul(left, right, out)
                assert_mirrored(device, got, got.T)
                assert_product(got, left, right)


@pytest.mark.parametrize("code", "cz")
def test_gemm_with_the_same_operand_is_symmetric_or_hermitian(device, code, rng):
    require(device, code)
    gemm = getattr(clgemm, code + "gemm")
    for order in "CF":
        a = matrix(rng, code, order=order)
        for trans_a, trans_b in ((1, 0), (2, 0), (0, 1), (0, 2)):
            left, right = ((x, x.T, x.T.conj())[flag] for x, flag in ((a, trans_a), (a, trans_b)))
            got = gemm(-0.5, a, a, trans_a=trans_a, trans_b=trans_b)
            is_hermitian = 2 in {trans_a, trans_b}
            assert_mirrored(device, got, got.T.conj() if is_hermitian else got.T)
            assert_product(got, left, right, -0.5)


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("k", [1, 2, 300])
def test_a_single_column_and_a_single_row(device, code, k, rng):
    require(device, code)
    for n in (1, 2):
        a = matrix(rng, code, k, n)
        assert triangle(device, a.T, a) == (SYMMETRIC if n > 1 else GENERAL)
        assert_product(clgemm.matmul(a.T, a), a.T, a)
        gemm = getattr(clgemm, code + "gemm")
        got = gemm(1.0, a, a, trans_a=2)
        assert_mirrored(device, got, got.T.conj())  # so a single number is real
        assert_product(got, a.T.conj(), a)


def test_what_is_hermitian_with_a_real_alpha_is_not_with_another(device, rng):
    a = matrix(rng, "c")
    same = {"conj_a": True}
    assert triangle(device, a.T, a, alpha=2.0, **same) == HERMITIAN
    assert triangle(device, a.T, a, alpha=2 + 0j, **same) == HERMITIAN
    assert triangle(device, a.T, a, alpha=2 + 1j, **same) == GENERAL
    assert triangle(device, a.T, a, alpha=2 + 1j) == SYMMETRIC
    for alpha in (2.0, 2 + 1j, 3.0):
        assert_product(clgemm.cgemm(alpha, a, a, trans_a=2), a.T.conj(), a, alpha)


def test_beta_makes_a_general_product(device, rng):
    a, c = matrix(rng, "s"), np.asfortranarray(matrix(rng, "s", N, N))
    assert triangle(device, a.T, a, c, beta=0.5) == GENERAL
    before = c.copy()
    got = clgemm.sgemm(1.0, a, a, 0.5, c, trans_a=1)
    want, size = reference.gemm(1.0, a.T, a, 0.5, before)
    reference.assert_within_bound(got, want, size, K, np.finfo(np.float32).eps)


def test_what_only_looks_like_a_gram_product_is_none(device, rng):
    a = matrix(rng, "s", N, N)
    memory = matrix(rng, "s", 70, N)
    stack = np.array([matrix(rng, "s") for _ in range(4)])
    pairs = {
        "not transposed": (a, a),
        "both transposed": (a.T, a.T),
        "rows that overlap": (memory[:50], memory[10:60].T),
        "columns that overlap": (a[:, :50].T, a[:, 1:51]),
        "another number of rows": (memory[:50], memory.T),
        "a copy": (a, a.T.copy()),
        "every other row": (memory[:40:2], memory[:20].T),
        "matrices of a stack": (stack[0].T, stack[1]),
        "a stack and its first matrix": (
            stack.swapaxes(1, 2),
            np.broadcast_to(stack[0], (4, K, N)),
        ),
    }
    for what, (x, y) in pairs.items():
        c = np.zeros((*x.shape[:-2], x.shape[-2], y.shape[-1]), np.float32)
        assert triangle(device, x, y, c) == GENERAL, what
        got = clgemm.matmul(x, y)
        for left, right, product in zip(
            *(z if z.ndim > 2 else [z] for z in (x, y, got)), strict=True
        ):
            assert_product(product, left, right)


def test_views_with_the_same_layout_are_one_matrix(device, rng):
    memory = matrix(rng, "s", 2 * K, N)
    for x in (memory[3:40], memory[::2], memory[:, 5:50]):
        assert triangle(device, x, x.T) == SYMMETRIC
        got = clgemm.matmul(x, x[:].T)
        assert_mirrored(device, got, got.T)
        assert_product(got, x, x.T)


def test_stacks_of_gram_products_are_symmetric(device, rng):
    x = np.array([matrix(rng, "s") for _ in range(5)])
    turned = x.swapaxes(1, 2)
    assert triangle(device, turned, x, np.zeros((5, N, N), np.float32)) == SYMMETRIC
    got = clgemm.matmul(turned, x)
    assert_mirrored(device, got, got.swapaxes(1, 2))
    for a, product in zip(x, got, strict=True):
        assert_product(product, a.T, a)


@pytest.mark.parametrize("code", "sdcz")
def test_arrays_on_a_device(device, code, rng):
    require(device, code)
    a = matrix(rng, code)
    x = clgemm.to_device(a)
    for left, right, p, q in ((x.T, x, a.T, a), (x, x.T, a, a.T)):
        got = clgemm.matmul(left, right).get()
        assert_mirrored(device, got, got.T)
        assert_product(got, p, q)
    assert_product(clgemm.matmul(x[:30], x[5:35].T).get(), a[:30], a[5:35].T)
    gemm = getattr(clgemm, code + "gemm")
    for alpha in (2.0, 1.5 - 0.5j if PRECISIONS[code].is_complex else 1.5):
        got = gemm(alpha, x, x, trans_a=2).get()
        assert_product(got, a.T.conj(), a, alpha)
        if not np.imag(alpha):
            assert_mirrored(device, got, got.T.conj())


def test_a_part_of_a_gram_product_is_general():
    gram = square(N)._replace(triangle=SYMMETRIC, batch=4)
    assert gram.block(2, N, N, N).triangle == SYMMETRIC
    for part in ((4, 50, N, N), (4, N, 50, N), (4, 50, 50, N), (4, N, N, 50)):
        assert gram.block(*part).triangle == GENERAL
    assert gram.dense().triangle == SYMMETRIC
