"""Products like an earlier one take a short way: to the same bits, and only while it holds."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.linalg.blas
from helpers import run_python

import clgemm
from clgemm.api import repeated, small
from clgemm.dispatch import engines
from clgemm.host import blas as host_blas
from clgemm.host import scipy_blas, threads
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.measure.verify import random_matrix

M, N, K = 170, 110, 130


@pytest.fixture
def shortly(device, monkeypatch):
    """Let the device compute, and refuse the long way from the second call on."""
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    engines.of(device).forget()

    def use():
        monkeypatch.setattr(engines, "compute", None)

    yield use
    engines.of(device).forget()


@pytest.fixture
def operands(rng):
    return rng.uniform(-1, 1, (M, K)), rng.uniform(-1, 1, (K, N))


@pytest.mark.parametrize("code", "sdcz")
def test_later_products_are_the_first_one_bit_by_bit(device, shortly, code, rng):
    device.require(PRECISIONS[code])
    a, b = (random_matrix(rng, PRECISIONS[code], *shape) for shape in ((M, K), (K, N)))
    out = np.empty((M, N), a.dtype)
    gemm = getattr(clgemm, f"{code}gemm")
    calls = {
        "matmul": lambda: clgemm.matmul(a, b),
        "out": lambda: clgemm.matmul(a, b, out=out).copy(),
        "gemm": lambda: gemm(2.0, a, b),
        "conjugated": lambda: gemm(2.0, a, b.T, trans_b=2),
    }
    first = {name: call() for name, call in calls.items()}
    shortly()
    out[...] = np.nan
    for name, call in calls.items():
        again = call()
        assert again.tobytes() == first[name].tobytes(), name
        assert again.flags.c_contiguous == first[name].flags.c_contiguous
        assert again.flags.owndata
    assert clgemm.matmul(a, b, out=out) is out
    np.testing.assert_allclose(clgemm.matmul(2 * a, b), 2 * first["matmul"])


STACKS = [
    ((3, 40, 50), (3, 50, 60)),
    ((40, 50), (3, 50, 60)),
    ((3, 40, 50), (50, 60)),
    ((2, 3, 40, 50), (2, 3, 50, 60)),
    ((3, 50, 50), (3, 50, 50)),
]


@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("shapes", STACKS, ids=str)
@pytest.mark.parametrize("code", "sz")
def test_later_stacks_are_the_first_one_bit_by_bit(device, shortly, code, shapes, turned, rng):
    device.require(PRECISIONS[code])
    a, b = (
        random_matrix(rng, PRECISIONS[code], math.prod(shape[:-1]), shape[-1]).reshape(shape)
        for shape in shapes
    )
    a, b = (
        np.swapaxes(x.swapaxes(-1, -2).copy(), -1, -2) if name in turned else x
        for name, x in zip("ab", (a, b), strict=True)
    )
    first = clgemm.matmul(a, b)
    out = np.empty_like(first)
    clgemm.matmul(a, b, out=out)
    assert out.tobytes() == first.tobytes()
    shortly()
    again = clgemm.matmul(a, b)
    out[...] = np.nan
    assert clgemm.matmul(a, b, out=out) is out
    assert out.tobytes() == again.tobytes() == first.tobytes()
    assert again.strides == first.strides
    assert again.flags.owndata
    np.testing.assert_allclose(clgemm.matmul(2 * a, b), 2 * first, rtol=1e-5)
    with pytest.raises(TypeError):
        clgemm.matmul(a[..., :-1], b[..., :-1, :])


OUTS = {
    "rows apart": lambda shape: np.full((*shape[:-1], shape[-1] + 3), np.nan)[..., :-3],
    "matrices apart": lambda shape: np.full((2 * shape[0], *shape[1:]), np.nan)[::2],
    "column-major": lambda shape: np.full((shape[0], *shape[:0:-1]), np.nan).swapaxes(1, 2),
}


@pytest.mark.parametrize("out", OUTS.values(), ids=OUTS)
def test_stacks_go_the_short_way_wherever_a_kernel_can_write(shortly, out, rng):
    a, b = rng.uniform(-1, 1, (3, 40, 50)), rng.uniform(-1, 1, (3, 50, 60))
    made = out((3, 40, 60))
    clgemm.matmul(a, b, out=made)
    shortly()
    made[...] = np.nan
    before = made.base.copy()
    assert clgemm.matmul(a, b, out=made) is made
    np.testing.assert_allclose(made, a @ b, rtol=1e-12, atol=1e-12)
    made[...] = np.nan
    np.testing.assert_array_equal(made.base, before)


def test_a_stack_that_cannot_be_written_in_its_place_goes_the_long_way(device, monkeypatch, rng):
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    engines.of(device).forget()
    a, b = rng.uniform(-1, 1, (3, 40, 40)), rng.uniform(-1, 1, (3, 40, 40))
    want, out = a @ b, np.empty((3, 40, 40))
    for _ in range(2):
        clgemm.matmul(a, b, out=out)
    memory = np.concatenate([a, np.empty((1, 40, 40))])
    for place in (memory[:3], memory[1:]):
        memory[:3] = a
        got = clgemm.matmul(memory[:3], b, out=place)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    apart = np.full((3, 40, 40, 2), np.nan)[..., 0]
    wider = np.empty((1, 3, 40, 40))
    for _ in range(2):
        for given in (apart, wider):
            given[...] = np.nan
            np.testing.assert_allclose(
                clgemm.matmul(a, b, out=given), want.reshape(given.shape), rtol=1e-12
            )
    out[...], out.flags.writeable = 7, False
    with pytest.raises(ValueError, match="read-only"):
        clgemm.matmul(a, b, out=out)
    assert (out == 7).all()
    engines.of(device).forget()


@pytest.mark.parametrize("shape", [(200, 90), (3, 70, 60)], ids=str)
def test_a_matrix_times_its_transpose_is_kept_apart_from_other_products(shortly, shape, rng):
    """Both are of one kind, but of the first half is computed, and it is symmetric."""
    a, b = (rng.uniform(-1, 1, shape) for _ in "ab")
    at, bt = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
    general, gram = clgemm.matmul(a, bt), clgemm.matmul(a, at)
    shortly()
    for _ in range(2):
        assert clgemm.matmul(a, bt).tobytes() == general.tobytes()
        assert clgemm.matmul(a, at).tobytes() == gram.tobytes()
    np.testing.assert_array_equal(gram, gram.swapaxes(-1, -2))
    np.testing.assert_allclose(gram, a @ at, atol=1e-12)


@pytest.mark.parametrize("code", "dz")
def test_gemms_with_one_matrix_are_kept_apart_from_other_ones(shortly, code, rng):
    """A product with its own conjugate is Hermitian only if alpha is real."""
    a, b = (random_matrix(rng, PRECISIONS[code], 150, 70) for _ in "ab")
    gemm, trans = getattr(clgemm, f"{code}gemm"), 2 if code == "z" else 1
    factors = (1.5, 2j) if code == "z" else (1.5,)
    cases = [(alpha, a, x) for alpha in factors for x in (a, b)]
    first = [gemm(alpha, x, y, trans_b=trans) for alpha, x, y in cases]
    shortly()
    for _ in range(2):
        again = [gemm(alpha, x, y, trans_b=trans) for alpha, x, y in cases]
        assert [x.tobytes() for x in again] == [x.tobytes() for x in first]
    for (alpha, x, y), found in zip(cases, again, strict=True):
        np.testing.assert_allclose(found, alpha * (x @ y.conj().T), atol=1e-11)
    np.testing.assert_array_equal(again[0], again[0].conj().T)


def test_the_host_s_products_with_one_matrix_leave_others_to_the_device(device, monkeypatch, rng):
    """Equal calls give equal bits, whatever is called between them."""
    a, b = (rng.uniform(-1, 1, (200, 90)) for _ in "ab")
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    engines.of(device).forget()
    with registry.using(device):
        first = clgemm.matmul(a, b.T)
        monkeypatch.setenv("CLGEMM_ROUTE", "auto")
        repeated.remember(a, a.T, None, None)
        repeated.remember_gemm((1.0, a, a, 0.0, None, 0, 1, 0), None)
        assert repeated.matmul(a, a.T).tobytes() == np.matmul(a, a.T).tobytes()
        monkeypatch.setenv("CLGEMM_ROUTE", "device")
        assert repeated.matmul(a, a.T) is None
        assert repeated.matmul(a, b.T).tobytes() == first.tobytes()
    engines.of(device).forget()


def test_a_product_takes_memory_for_its_result_alone(device, monkeypatch, rng):
    """Else the system takes it back after each call, and page faults take as long as a product."""
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    monkeypatch.setattr(repeated, "matmul", lambda *_: None)
    monkeypatch.setattr(repeated, "gemm", lambda *_: None)
    with registry.using(device):
        a = np.asfortranarray(rng.uniform(-1, 1, (700, 20)))
        calls = (
            lambda: clgemm.matmul(a, a.T), lambda: clgemm.dgemm(1.0, a, a, trans_b=1),
            lambda: clgemm.matmul(a, 2 * a.T), lambda: clgemm.dgemm(1.0, a, 2 * a, trans_b=1),
        )  # fmt: skip
        for call in calls:
            call()
            tracemalloc.start()
            try:
                nbytes = call().nbytes
                assert nbytes <= tracemalloc.get_traced_memory()[1] < 1.5 * nbytes
            finally:
                tracemalloc.stop()


@pytest.mark.parametrize("route", ["device", "auto"])
@pytest.mark.parametrize("code", "sdcz")
def test_later_gemms_read_and_write_c_as_the_first_one(device, code, route, rng, monkeypatch):
    """By the device and, for the other route, by the host: with each kind of beta and of `c`."""
    precision = PRECISIONS[code]
    device.require(precision)
    gemm, known = getattr(clgemm, f"{code}gemm"), engines.of(device)
    compute = engines.compute
    a, b = (random_matrix(rng, precision, *shape) for shape in ((M, K), (K, N)))
    a, c = a.copy("C"), random_matrix(rng, precision, M, N)
    cases = itertools.product((0.0, 1, -0.5), (0, 2), "CF", (0, 1))
    for beta, trans, order, overwrite in cases:
        monkeypatch.setenv("CLGEMM_ROUTE", "device")
        y = b.T.copy("F") if trans else b
        known.forget()
        first = gemm(2.0, a, y, beta=beta, c=c.copy(order), trans_b=trans, overwrite_c=overwrite)
        want = 2 * a @ (y.conj().T if trans else y) + beta * c
        if route == "auto":
            known.forget()
            arguments = (2.0, a, y, beta, c, 0, trans, overwrite)
            repeated.remember_gemm(arguments, None)
        monkeypatch.setenv("CLGEMM_ROUTE", route)
        monkeypatch.setattr(engines, "compute", None)
        mine = c.copy(order)
        got = gemm(2, a, y, beta=beta, c=mine, trans_b=trans, overwrite_c=overwrite)
        bound = 4 * K * precision.eps * (np.abs(a) @ np.abs(b) + np.abs(c)).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)
        assert got.flags.f_contiguous
        assert (got is mine) == bool(overwrite and order == "F")
        assert got is mine or mine.tobytes() == c.copy(order).tobytes()
        assert route == "auto" or got.tobytes() == first.tobytes()
        monkeypatch.setattr(engines, "compute", compute)
    known.forget()


def test_a_result_beside_its_operands_takes_the_long_way(shortly, rng):
    """Where `c` shares memory with an operand, and for other betas than those met."""
    a, b = (np.asfortranarray(rng.uniform(-1, 1, (M, M))) for _ in "ab")
    want, c = a @ b, np.zeros((M, M), order="F")
    clgemm.dgemm(1.0, a, b, c=c, overwrite_c=1)
    shortly()
    with pytest.raises(TypeError):
        clgemm.dgemm(1.0, a, b, c=a, overwrite_c=1)
    with pytest.raises(TypeError):
        clgemm.dgemm(1.0, a, b, beta=1.0, c=c, overwrite_c=1)
    np.testing.assert_allclose(clgemm.dgemm(1.0, a, b, c=c), want, atol=1e-12)


def test_another_kind_takes_the_long_way(shortly, operands):
    a, b = operands
    clgemm.matmul(a, b)
    shortly()
    clgemm.matmul(a.copy(), b.copy())
    others = {
        "type": (a.astype(np.float32), b.astype(np.float32)),
        "byte order": (a.astype(">f8"), b),
        "order": (np.asfortranarray(a), b),
        "gaps": (np.repeat(a, 2, axis=1)[:, ::2], b),
        "shape": (a[:-1], b),
        "subclass": (a.view(np.matrix), b),
    }
    for x, y in others.values():
        with pytest.raises(TypeError):
            clgemm.matmul(x, y)


def test_out_is_looked_at_each_time(shortly, operands):
    a, b = operands
    want, c = clgemm.matmul(a, b), np.empty((M, N))
    clgemm.matmul(a, b, out=c)
    c.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        clgemm.matmul(a, b, out=c)
    square = a[:K].copy()
    product, other = square @ square.T.copy(), square.T.copy()
    clgemm.matmul(square, other, out=np.empty((K, K)))
    np.testing.assert_allclose(clgemm.matmul(square, other, out=square), product)
    shortly()
    assert clgemm.matmul(a, b).tobytes() == want.tobytes()


@pytest.mark.parametrize("code", "dz")
def test_misaligned_operands_are_not_taken(device, shortly, code, rng):
    device.require(PRECISIONS[code])
    a, b = (
        np.ascontiguousarray(random_matrix(rng, PRECISIONS[code], *shape))
        for shape in ((M, K), (K, N))
    )
    want = clgemm.matmul(a, b)
    places = []
    for offset in (8, 1) if code == "z" else (1,):
        memory = np.empty(a.nbytes + 8, np.uint8)
        moved = memory[offset : offset + a.nbytes].view(a.dtype).reshape(a.shape)
        moved[...] = a
        np.testing.assert_allclose(clgemm.matmul(moved, b), want)
        places.append(moved)
    shortly()
    assert clgemm.matmul(a, b).tobytes() == want.tobytes()
    for moved in places:
        with pytest.raises(TypeError):  # the long way, which copies them
            clgemm.matmul(moved, b)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("code", "sdcz")
def test_aligned_arrays_are_computed_after_misaligned_ones(
    device, code, order, which, rng, monkeypatch
):
    """Which are copied first: what is decided on them is no decision on others that lie alike."""
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    device.require(PRECISIONS[code])
    shapes = (33, 21), (21, 41), (33, 41)
    arrays = [np.array(random_matrix(rng, PRECISIONS[code], *x), order=order) for x in shapes]
    memory = np.empty(arrays[which].nbytes + 1, np.uint8)
    moved = np.ndarray(shapes[which], arrays[0].dtype, memory, 1, arrays[which].strides)
    moved[...] = arrays[which]
    given = [moved if place == which else x for place, x in enumerate(arrays)]
    want = np.matmul(*arrays[:2])
    engines.of(device).forget()
    for a, b, c in (given, arrays) * 2:
        clgemm.matmul(a, b, out=c)
        np.testing.assert_allclose(c, want, rtol=1e-4)
    engines.of(device).forget()


def test_it_holds_for_the_modes_and_cores_that_it_was_found_with(
    device, shortly, operands, monkeypatch
):
    a, b = operands
    clgemm.matmul(a, b)
    clgemm.dgemm(1.0, a, b)
    shortly()
    for name, value in (("CLGEMM_ROUTE", "auto"), ("CLGEMM_FP32", "fma")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(TypeError):
                clgemm.matmul(a, b)
            with pytest.raises(TypeError):
                clgemm.dgemm(1.0, a, b)
    if device.traits.kind == "cpu" and device.traits.compute_units > 1:
        with monkeypatch.context() as patch:
            patch.setattr(threads, "limit", lambda: 1)
            with pytest.raises(TypeError):
                clgemm.matmul(a, b)
    clgemm.matmul(a, b)


def test_what_the_host_computed_holds_unless_the_device_is_asked_for(device, operands, monkeypatch):
    a, b = operands
    known = engines.of(device)
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    repeated.remember(a, b, None, None)
    arguments = (2.0, a, b, 0.0, None, 0, 0, 0)
    repeated.remember_gemm(arguments, None)
    for route in ("auto", "host"):
        monkeypatch.setenv("CLGEMM_ROUTE", route)
        assert repeated.matmul(a, b).tobytes() == np.matmul(a, b).tobytes()
        np.testing.assert_allclose(repeated.gemm(arguments), 2 * (a @ b))
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    assert repeated.matmul(a, b) is None
    assert repeated.gemm(arguments) is None
    known.forget()


@pytest.mark.parametrize(
    ("shapes", "result"),
    [
        (((M, K), (K, N)), (M, N)),
        (((9, M, K), (9, K, N)), (9, M, N)),
        (((2, 1, M, K), (3, K, N)), (2, 3, M, N)),
        (((9000, K), (K,)), (9000,)),
    ],
    ids=str,
)
def test_numpy_computes_again_without_another_look(
    device, shapes, result, rng, monkeypatch, caplog
):
    """Each function that is called on the way takes a tenth of a microsecond."""
    a, b = (rng.uniform(-1, 1, shape) for shape in shapes)
    out = np.empty(result)
    monkeypatch.delenv("CLGEMM_ROUTE", raising=False)
    with registry.using(device):
        repeated.remember(a, b, None, None)
        repeated.remember(a, b, out, None)
        with monkeypatch.context() as patch:
            patch.setattr(repeated, "by", None)
            assert clgemm.matmul(a, b).tobytes() == np.matmul(a, b).tobytes()
            assert clgemm.matmul(a, b, out=out) is out
            for other in (a.swapaxes(-1, -2).copy().swapaxes(-1, -2), a.astype(np.float32)):
                with pytest.raises(TypeError):
                    clgemm.matmul(other, b)
            with pytest.raises(TypeError):
                clgemm.matmul(a, b, out=np.empty((*result, 2))[..., 0])
            with caplog.at_level("DEBUG", "clgemm"), pytest.raises(TypeError):
                clgemm.matmul(a, b)
        assert out.tobytes() == np.matmul(a, b).tobytes()
    engines.of(device).forget()


@pytest.mark.parametrize("shape", [(M, K), (9, M, K)], ids=str)
def test_what_is_kept_for_a_kind_computes_it(device, shape, rng, monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE", raising=False)
    a, out = rng.uniform(-1, 1, shape), np.empty((*shape[:-1], N))
    b = rng.uniform(-1, 1, (*shape[:-2], K, N))
    known = engines.of(device)
    known.forget()
    known.repeat(repeated._kind(a, b, None), lambda *given: ("fresh", given))
    known.repeat(repeated._kind(a, b, out), lambda *given: ("out", given))
    with registry.using(device):
        assert clgemm.matmul(a, b) == ("fresh", (a, b))
        assert clgemm.matmul(a, b, out=out) == ("out", (a, b, out))
    known.forget()


@pytest.mark.parametrize(
    ("orders", "trans"),
    list(itertools.product(["FF", "CF", "FC", "CC"], [(0, 0), (1, 0), (0, 1), (1, 1)])),
)
@pytest.mark.parametrize(("beta", "overwrite"), list(itertools.product([0.0, -0.5, None], [0, 1])))
@pytest.mark.parametrize("zeroed", [0, 1 << 16])
def test_gemms_that_scipy_computes_again_are_given_all_that_counts(
    device, orders, trans, beta, overwrite, zeroed, rng, monkeypatch
):
    """`beta` None: a factor of no `c`; `zeroed` 0: with memory for the result, which holds NaN."""
    monkeypatch.delenv("CLGEMM_ROUTE", raising=False)
    monkeypatch.setattr(host_blas, "ZEROED", zeroed)
    shapes = ((M, K), (K, N))
    a, b = (
        np.asarray(rng.uniform(-1, 1, shape[::-1] if turned else shape), order=order)
        for shape, turned, order in zip(shapes, trans, orders, strict=True)
    )
    c = None if beta is None else np.asarray(rng.uniform(-1, 1, (M, N)), order="F")
    arguments = (-2.0, a, b, 3.0 if beta is None else beta, c, *trans, overwrite)
    want = -2.0 * (a.T if trans[0] else a) @ (b.T if trans[1] else b)
    if c is not None:
        want += beta * c
    as_it_was = None if c is None else c.copy()
    engines.of(device).forget()
    with registry.using(device), monkeypatch.context() as patched:
        patched.setattr(np, "empty", _of_nan)
        repeated.remember_gemm(arguments, None)
        got = repeated.gemm(arguments)
    engines.of(device).forget()
    np.testing.assert_allclose(got, want, rtol=0, atol=4 * K * np.finfo(float).eps)
    assert got.flags.f_contiguous
    assert (got is c) == bool(c is not None and overwrite)
    assert got is c or c is None or c.tobytes() == as_it_was.tobytes()


def _of_nan(shape, dtype=float, order="C"):
    return np.full(shape, np.nan, dtype, order)


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize(("rows", "given"), [(128, True), (127, False)])
def test_scipy_fills_no_large_result_with_zeros(device, code, rows, given, rng, monkeypatch):
    """It does so to one that it is not given, before it computes."""
    monkeypatch.delenv("CLGEMM_ROUTE", raising=False)
    precision = PRECISIONS[code]
    columns = host_blas.ZEROED // 128 // precision.dtype.itemsize
    a, b = (random_matrix(rng, precision, *shape) for shape in ((rows, K), (K, columns)))
    seen: list[tuple[Any, ...]] = []

    def routine(*arguments):
        seen.append(arguments)
        return getattr(scipy.linalg.blas, f"{code}gemm")(*arguments)

    monkeypatch.setattr(scipy_blas, "gemm", lambda _code: routine)
    monkeypatch.setitem(small._ROUTINES, precision.dtype, routine)
    arguments = (1.0, a, b, 0.0, None, 0, 0, 0)
    engines.of(device).forget()
    with registry.using(device), monkeypatch.context() as patched:
        patched.setattr(np, "empty", _of_nan)
        repeated.remember_gemm(arguments, None)
        results = [repeated.gemm(arguments)]
        patched.setitem(small.MOST, precision.dtype, host_blas.LONG)
        results.append(small.gemm(precision.dtype, arguments))
    engines.of(device).forget()
    for got, arguments in zip(results, seen, strict=True):
        assert got.tobytes() == getattr(scipy.linalg.blas, f"{code}gemm")(1.0, a, b).tobytes()
        assert (len(arguments) == 8 and arguments[4] is got) == given


@pytest.mark.parametrize("route", ["device", "auto"])
def test_operands_that_do_not_fit_are_numpy_s_to_judge(device, route, rng, monkeypatch):
    """Also if they lie as others that were multiplied, and have as many rows."""
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    a, b = rng.uniform(-1, 1, (M, K)), rng.uniform(-1, 1, (K, N))
    column, row = rng.uniform(-1, 1, (M, 3)), rng.uniform(-1, 1, (1, N))
    engines.of(device).forget()
    with registry.using(device):
        clgemm.matmul(a, b)
        clgemm.matmul(column[:, :1], row)
        if route == "auto":
            monkeypatch.delenv("CLGEMM_ROUTE")
            repeated.remember(column[:, :1], row, None, None)
        for x, y in ((a[:, :-1], b), (column[:, :2], row)):
            assert repeated.matmul(x, y) is None
            with pytest.raises(ValueError, match="mismatch"):
                clgemm.matmul(x, y)
    engines.of(device).forget()


def test_log_lines_tell_of_every_call(shortly, operands, caplog):
    a, b = operands
    with caplog.at_level("DEBUG", logger="clgemm"):
        clgemm.matmul(a, b)
        count = len(caplog.records)
        clgemm.matmul(a, b)
    assert len(caplog.records) > count > 0
    shortly()
    clgemm.matmul(a, b)


@pytest.mark.parametrize("code", "sdcz")
def test_outer_products_are_numpys(code, rng, monkeypatch):
    """Zeros without a sign, NaN and infinity among them where BLAS knows what these are."""
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    precision = PRECISIONS[code]
    a, b = random_matrix(rng, precision, 300, 1), random_matrix(rng, precision, 1, 41)
    a[:2, 0], b[0, :2] = (0, -1), (0, -1)
    if not precision.is_complex:
        a[2, 0], b[0, 2] = np.inf, np.nan
    spread = np.repeat(b, 3, axis=1)[:, ::3]
    # Parts of complex products are sums of two, which may be rounded once or twice.
    exact = precision.eps if precision.is_complex else 0
    with np.errstate(invalid="ignore"):
        for x, y in itertools.product((a, np.repeat(a, 2, axis=0)[::2]), (b, spread)):
            assert host_blas.is_outer(x, y)
            want = np.matmul(x, y)
            for got in (small.matmul(x, y), clgemm.matmul(x, y), host_blas.outer(x, y)):
                np.testing.assert_allclose(got, want, rtol=exact, atol=exact)
                assert (np.signbit(got.real) == np.signbit(want.real))[got.real == 0].all()
                assert got.flags.c_contiguous
                assert got.flags.owndata
        for order in "CF":
            out = np.full((300, 41), np.nan, precision.dtype, order)
            assert clgemm.matmul(a, b, out=out) is out
            np.testing.assert_allclose(out, np.matmul(a, b), rtol=exact, atol=exact)
        overlapping = np.ones((300, 41), precision.dtype)
        want = np.matmul(overlapping[:, :1], b)
        host_blas.outer(overlapping[:, :1], b, overlapping)
        np.testing.assert_array_equal(overlapping, want)
        overlapping = np.resize(overlapping, (9000, 41))  # in several pieces
        want = np.matmul(overlapping[:, 1:2], overlapping[:1])
        host_blas.outer(overlapping[:, 1:2], overlapping[:1], overlapping)
        np.testing.assert_allclose(overlapping, want, rtol=exact, atol=exact)
    with pytest.raises(ValueError, match="mismatch"):
        clgemm.matmul(np.ones((40, 5)), np.ones((1, 40)))


def test_what_is_an_outer_product():
    column, row = np.ones((9, 1)), np.ones((1, 8))
    assert host_blas.is_outer(column, row)
    assert host_blas.is_outer(column[:2], row[:, :2])
    assert not host_blas.is_outer(column[:1], row)  # a number times a row
    assert not host_blas.is_outer(column, row[:, :1])
    assert not host_blas.is_outer(column, column.T[:, :0])
    assert not host_blas.is_outer(row, column[:8])
    assert not host_blas.is_outer(column, row[0])
    assert not host_blas.is_outer(column[None], row)
    assert not host_blas.is_outer(column, np.ones((2, 8)))


@pytest.mark.parametrize("code", "sdcz")
def test_an_outer_product_waits_for_no_other_thread(code, rng, monkeypatch):
    """OpenBLAS wakes one for a large piece; a piece of one row would lose zeros times infinity."""
    precision, taken, dot = PRECISIONS[code], [], host_blas.dot
    monkeypatch.setattr(host_blas, "dot", lambda a, b, c: taken.append(c.shape) or dot(a, b, c))
    for m, n in [(700, 801), (2, 300_000), (5, 300_000), (300_000, 2), (3, 70_000)]:
        a, b = random_matrix(rng, precision, m, 1), random_matrix(rng, precision, 1, n)
        taken.clear()
        np.testing.assert_allclose(host_blas.outer(a, b), a @ b, rtol=0, atol=4 * precision.eps)
        assert sum(rows for rows, _ in taken) == m
        assert min(rows for rows, _ in taken) > 1
        most = host_blas.ONE_THREAD[code in "cz"]
        assert max(rows * n for rows, n in taken) <= max(most + n, 3 * n)
        assert (len(taken) > 1) == (m > 3)


def test_an_outer_product_does_not_load_scipy():
    program = """
import sys
import numpy as np
import clgemm
a = np.arange(700.0)[:, None]
assert (clgemm.matmul(a, a.T) == np.outer(a, a)).all()
assert "scipy.linalg" not in sys.modules
"""
    run = run_python(program)
    assert run.returncode == 0, run.stderr


class Proxy:
    """Something that says of itself that it is an array, as wrappers of other packages do."""

    def __init__(self, x):
        self._x = x

    @property
    def __class__(self):
        return np.ndarray

    def __len__(self):
        return len(self._x)

    def __getattr__(self, name):
        return getattr(self._x, name)


@pytest.mark.parametrize("route", ["auto", "device"])
def test_what_only_says_that_it_is_an_array(route, operands, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", route)
    for a, b in (operands, (operands[0][:3, :2], operands[1][:2, :3])):
        for _ in range(3):
            clgemm.matmul(a, b)
            clgemm.dgemm(1.0, a, b)
        for x, y in ((Proxy(a), b), (a, Proxy(b))):
            got = clgemm.matmul(x, y)
            assert type(got) is np.ndarray
            np.testing.assert_allclose(got, a @ b, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(clgemm.dgemm(1.0, x, y), a @ b, rtol=1e-9, atol=1e-12)
        with pytest.raises(TypeError):
            clgemm.matmul(a, b, out=Proxy(np.empty((len(a), b.shape[1]), a.dtype)))
