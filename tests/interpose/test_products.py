"""Interposed products beside the same ones by NumPy: of compiled clients, NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from clients import needs_compiler
from helpers import pairwise
from scipy.linalg import blas as scipy_blas

import clgemm
from clgemm.problem import PRECISIONS
from clgemm.runtime import machine_code, registry
from clgemm.tuning.measure.verify import random_matrix

NAMES = {
    "wide cblas": "scipy_cblas_{}gemm64_", "wide fortran": "scipy_{}gemm_64_",
    "cblas": "cblas_{}gemm", "fortran": "{}gemm_",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("restored")
needs_machine_code = pytest.mark.skipif(
    machine_code.why_not() is not None, reason=str(machine_code.why_not())
)


def laid(rng, precision, rows, columns, order, gap):
    """Return a matrix and memory that holds it, with gaps of NaNs, and its leading dimension."""
    if order == "C":
        view, memory, ld = laid(rng, precision, columns, rows, "F", gap)
        return view.T, memory, ld
    ld = rows + gap
    memory = np.full(ld * columns, np.nan, precision.dtype)
    view = memory.reshape(columns, ld).T[:rows]
    view[...] = random_matrix(rng, precision, rows, columns)
    return view, memory, ld


def op(x, how):
    return {"N": x, "T": x.T, "C": x.T.conj()}[how]


def near(got, want, k, precision, scale=1.0):
    return np.abs(got - want).max() <= 8 * k * precision.eps * scale


@needs_compiler
@pytest.mark.parametrize(
    ("form", "code", "order", "ta", "tb", "gap", "alpha", "beta"),
    pairwise(NAMES, "sdcz", "CF", "NTC", "NTC", (0, 3), (1.0, -1.5), (0.0, 1.0, 0.5)),
)
def test_a_compiled_client_gets_what_numpy_computes(
    device, client, originals, rng, form, code, order, ta, tb, gap, alpha, beta
):
    precision, name = PRECISIONS[code], NAMES[form].format(code)
    if not device.traits.has(precision):
        pytest.skip("this device has no double precision")
    order = order if "cblas" in form else "F"
    if precision.is_complex:
        alpha, beta = alpha * (1 + 0.5j), beta * (1 - 0.25j)
    m, n, k = 41, 23, 67
    a, at_a, lda = laid(rng, precision, *((m, k) if ta == "N" else (k, m)), order, gap)
    b, at_b, ldb = laid(rng, precision, *((k, n) if tb == "N" else (n, k)), order, gap)
    c, at_c, ldc = laid(rng, precision, m, n, order, gap)
    want = alpha * (op(a, ta) @ op(b, tb)) + beta * c
    if beta == 0:
        at_c[...] = np.nan
    more = {"order": order, "trans_a": ta, "trans_b": tb, "ld": (lda, ldb, ldc)}
    before = originals()
    with registry.using(device), clgemm.interposed(least=1000):
        client.gemm(name, alpha, at_a, at_b, beta, at_c, m=m, n=n, k=k, **more)
    assert originals() == before, "the original was called"
    assert near(c, want, k, precision, 4)
    gaps = np.ones(at_c.shape, bool)
    (gaps.reshape(-1, ldc).T[: c.shape[0]] if order == "F" else gaps.reshape(-1, ldc)[:, :n])[
        ...
    ] = 0
    assert np.isnan(at_c[gaps]).all(), "what lies beside C was written"


@needs_compiler
def test_what_cannot_be_done_goes_to_the_original(device, client, originals, rng):
    precision = PRECISIONS["s"]
    a, b = (random_matrix(rng, precision, 30, 30) for _ in "ab")
    memory = np.zeros(3000, np.float32)
    whole = {"order": "F", "ld": (30, 30, 30), "m": 30, "n": 30, "k": 30}
    with registry.using(device), clgemm.interposed(least=1000):
        before = originals()
        client.gemm("cblas_sgemm", 1, a, b, 0, memory, **whole)
        assert originals() == before
        # An alpha of 0, C over A, an element that is cut in two, and rows that overlap.
        client.gemm("cblas_sgemm", 0, a, b, 0, memory, **whole)
        memory[:900] = a.T.ravel()
        client.gemm("cblas_sgemm", 1, memory, b, 0, memory[450:], **whole)
        odd = memory.view(np.uint8)[2 : 2 + 8000].view(np.float32)
        client.gemm("cblas_sgemm", 1, a, b, 0, odd, **whole)
        client.gemm("cblas_sgemm", 1, a, b, 0, memory, **whole | {"ld": (30, 30, 12)})
    assert originals() == before + 4


@needs_compiler
def test_threads_that_python_does_not_know_get_the_original(device, paths, originals, rng):
    import ctypes  # noqa: PLC0415

    precision = PRECISIONS["s"]
    a, b, c = (np.asfortranarray(random_matrix(rng, precision, 40, 40)) for _ in "abc")
    # As PyDLL, the caller keeps the interpreter's lock and waits for the thread.
    library = ctypes.PyDLL(str(paths["foreign"]))
    with registry.using(device), clgemm.interposed(least=1000):
        before = originals()
        library.in_foreign_thread(*(ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)))
    assert originals() == before + 1
    assert near(c, a @ b, 40, precision, 4)


PRODUCTS = {
    "@": lambda a, b: a @ b,
    "dot": np.dot,
    "ndarray.dot": lambda a, b: a.dot(b),
    "inner": lambda a, b: np.inner(a, b.T),
    "tensordot": lambda a, b: np.tensordot(a, b, 1),
    "einsum": lambda a, b: np.einsum("ij,jk->ik", a, b, optimize=True),
    "multi_dot": lambda a, b: np.linalg.multi_dot([a, b, b.T]),
    "a Gram product": lambda a, _: a @ a.T,
    "another one": lambda a, _: np.asfortranarray(a).T @ a,
    "syrk": lambda a, _: scipy_blas.get_blas_funcs("syrk", (a,))(1, a, trans=1),
    "matrix_power": lambda a, b: np.linalg.matrix_power((a @ b).T @ (a @ b), 3),
    "a stack": lambda a, b: np.stack([a, 2 * a]) @ b,
    "out": lambda a, b: np.matmul(a, b, out=np.empty((a.shape[0], b.shape[1]), a.dtype)),
    "row-major": lambda a, b: np.asfortranarray(a) @ b,
    "gemm": lambda a, b: scipy_blas.get_blas_funcs("gemm", (a, b))(1, a, b),
    "gemm in place": lambda a, b: scipy_blas.get_blas_funcs("gemm", (a, b))(
        2, a, b, 0.5, np.asfortranarray(np.ones((a.shape[0], b.shape[1]), a.dtype)), overwrite_c=1
    ),
    "solve_sylvester": lambda a, b: scipy.linalg.solve_sylvester(
        (a @ b)[:80, :80], (a @ b)[:80, :80], np.eye(80)
    ),
}
SEEN = {"matrix_power": 2, "multi_dot": 2, "a stack": 2}
SCIPYS = {"gemm", "gemm in place", "syrk"}


def require_scipys():
    """Skip where SciPy's wrappers have no slots, as old ones: a table has the addresses."""
    with clgemm.interposed():
        if not any("_fblas" in row.module for row in clgemm.usage().rows):
            pytest.skip("scipy.linalg.blas of this SciPy has no slots")


@needs_machine_code
@pytest.mark.parametrize("code", PRECISIONS)
@pytest.mark.parametrize("what", PRODUCTS)
def test_numpy_and_scipy_are_seen(device, rng, what, code):
    precision = PRECISIONS[code]
    if not device.traits.has(precision):
        pytest.skip("this device has no double precision")
    if what in SCIPYS:
        require_scipys()
    a, b = random_matrix(rng, precision, 90, 110), random_matrix(rng, precision, 110, 80)
    want = PRODUCTS[what](a, b)
    with registry.using(device), clgemm.interposed(least=1000):
        before = on_device()
        got = PRODUCTS[what](a, b)
        assert on_device() - before >= SEEN.get(what, 1)
    after = on_device()
    PRODUCTS[what](a, b)
    assert on_device() == after
    assert got.dtype == want.dtype
    assert got.strides == want.strides
    assert np.abs(got - want).max() <= 1e4 * precision.eps * np.abs(want).max()


@needs_machine_code
def test_numpy_sees_no_floating_point_error_of_a_kernel(device, rng):
    a, b = (
        random_matrix(rng, PRECISIONS["d" if device.traits.fp64 else "s"], 90, 90) for _ in "ab"
    )
    with registry.using(device), clgemm.interposed(least=1000), np.errstate(all="raise"):
        before = on_device()
        for _ in range(5):
            a @ b
        assert on_device() - before == 5


@needs_machine_code
def test_clgemm_s_own_host_products_do_not_come_back(device, rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    a = random_matrix(rng, PRECISIONS["s"], 150, 150)
    with registry.using(device), clgemm.interposed(least=1000):
        with clgemm.settings.using(route="host"):
            assert near(clgemm.matmul(a, a), a @ a, 150, PRECISIONS["s"], 4)
            assert near(clgemm.sgemm(1.0, a, a), a @ a, 150, PRECISIONS["s"], 4)
        before = on_device()
        with clgemm.settings.using(route="device"):
            clgemm.matmul(a, a)
        assert on_device() == before, "clgemm's own call is none of an interposed module's"


def on_device():
    return sum(row.device_calls for row in clgemm.usage().rows)


@needs_machine_code
def test_what_is_not_computed_is_counted(device):
    """NumPy's products with vectors; SciPy's triangular solutions and symmetric matrices."""
    require_scipys()
    a = np.arange(25.0).reshape(5, 5) + np.eye(5)
    calls = {
        "gemv": lambda: a @ a[0],
        "symm": lambda: scipy_blas.dsymm(1, a, a),
        "trsm": lambda: scipy_blas.dtrsm(1, a, a),
    }

    def counts():
        return {
            routine: sum(
                row.calls
                for row in clgemm.usage().rows
                if row.only_counted and routine in row.entry and row.device_calls == 0
            )
            for routine in calls
        }

    want = [call() for call in calls.values()]
    with registry.using(device), clgemm.interposed(least=0):
        before = counts()
        got = [call() for call in calls.values()]
        after = counts()
        text = str(clgemm.usage())
    assert all(np.array_equal(x, y) for x, y in zip(got, want, strict=True))
    assert {name: after[name] - before[name] for name in calls} == dict.fromkeys(calls, 1)
    assert "only counted: " in text
