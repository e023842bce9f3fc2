"""clgemm.matmul of integers and bool: NumPy's values to the bit, types and errors as well."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers import GPU
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from layouts import HOWS, matrices, separate

import clgemm
from clgemm.api import integers
from clgemm.dispatch import engines
from clgemm.dispatch.integers import route_integers
from clgemm.errors import ClgemmWarning, DeviceError
from clgemm.problem import INTEGERS, Operand, describe
from clgemm.runtime import registry

pytestmark = pytest.mark.usefixtures("in_use")
DTYPES = [precision.dtype for precision in INTEGERS.values()]
SHAPES = [(1, 1, 1), (1, 40, 3), (40, 1, 3), (37, 35, 29), (64, 24, 16), (131, 25, 300), (5, 7, 1)]


def drawn(rng, dtype, *shape, kind="any"):
    """Draw elements of a type: of any size, or only the least, the greatest, and next to 0."""
    if dtype.kind == "b":
        return rng.random(shape) < {"any": 0.5, "extreme": 0.03}[kind]
    limits = np.iinfo(dtype)
    if kind == "extreme":
        extremes = np.array([limits.min, limits.max, 0, 1, limits.max - 1], dtype)
        return rng.choice(np.append(extremes, ~extremes[2:4]), shape)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def assert_same(got, want):
    assert type(got) is type(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["any", "extreme"])
def test_values_are_numpys(dtype, kind, rng):
    for m, n, k in SHAPES:
        a, b = drawn(rng, dtype, m, k, kind=kind), drawn(rng, dtype, k, n, kind=kind)
        assert_same(clgemm.matmul(a, b), np.matmul(a, b))
        assert_same(clgemm.matmul(a, b[:, 0]), np.matmul(a, b[:, 0]))
        assert_same(clgemm.matmul(a[0], b), np.matmul(a[0], b))
        assert_same(clgemm.matmul(a[0], b[:, 0]), np.matmul(a[0], b[:, 0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_wrap_around_as_pythons_integers_do_modulo_their_width(dtype, rng):
    a, b = drawn(rng, dtype, 50, 700), drawn(rng, dtype, 700, 60)
    got, width = clgemm.matmul(a, b), 8 * dtype.itemsize
    for i, j in rng.integers(0, 50, (40, 2)):
        exact = sum(x * y for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
        if dtype.kind == "b":
            assert got[i, j] == (exact > 0)
        else:
            assert (int(got[i, j]) - exact) % 2**width == 0


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "u8", "?"])
def test_operands_lie_anyhow(dtype, rng):
    m, n, k = 38, 45, 41
    flat_a, flat_b, flat_c = (
        drawn(rng, np.dtype(dtype), (2 * rows + 3) * (2 * columns + 1))
        for rows, columns in ((m, k), (k, n), (m, n))
    )
    for how_a, how_b in itertools.product(HOWS, HOWS):
        a, b = matrices(flat_a, m, k)[how_a](), matrices(flat_b, k, n)[how_b]()
        want = np.matmul(a, b)
        assert_same(clgemm.matmul(a, b), want)
    flat_c[...] = 0
    for how in HOWS:
        out = matrices(flat_c, m, n)[how]()
        assert clgemm.matmul(a, b, out=out) is out
        np.testing.assert_array_equal(out, want)
        around = np.count_nonzero(flat_c) - np.count_nonzero(want)
        assert not around, "what is around it stays as it was"
        flat_c[...] = 0


@pytest.mark.parametrize("dtype", ["i1", "i2", "u4", "i8", "?"])
def test_odd_operands(dtype, rng):
    a, b = drawn(rng, np.dtype(dtype), 45, 50), drawn(rng, np.dtype(dtype), 50, 45)
    want = np.matmul(a, b)
    swapped = a.astype(np.dtype(dtype).newbyteorder())
    assert_same(clgemm.matmul(swapped, b), np.matmul(swapped, b))
    memory = np.zeros(a.nbytes + 1, np.uint8)
    misaligned = memory[1:].view(dtype).reshape(a.shape)
    misaligned[...] = a
    assert_same(clgemm.matmul(misaligned, b), want)
    a.flags.writeable = b.flags.writeable = False
    assert_same(clgemm.matmul(a, b), want)
    assert_same(clgemm.matmul(a, a.T), np.matmul(a, a.T))
    assert_same(clgemm.matmul(a.tolist(), b), np.matmul(a.tolist(), b))
    square = a[:45, :45].copy()
    want = np.matmul(square, square)
    assert_same(clgemm.matmul(square, square, square), want)


def test_a_true_that_is_not_one_is_true(rng):
    a = rng.choice(np.array([0, 0, 1, 2, 4, 128, 255], np.uint8), (40, 300)).view(bool)
    b = rng.choice(np.array([0, 0, 1, 8, 64], np.uint8), (300, 50)).view(bool)
    got = clgemm.matmul(a, b)
    assert_same(got, np.matmul(a, b))
    assert set(np.unique(got.view(np.uint8))) <= {0, 1}


@pytest.mark.parametrize("share", [1.0, 0.9, 0.3, 0.01, 0.0])
def test_bool_of_every_density(share, rng):
    """Ends early where all is true; one sum that never is keeps a tile from it."""
    for m, n, k in ((140, 30, 500), (129, 13, 300), (128, 24, 257)):
        a, b = rng.random((m, k)) < share, rng.random((k, n)) < share
        assert_same(clgemm.matmul(a, b), np.matmul(a, b))
        a[m // 2] = False
        assert_same(clgemm.matmul(a, b), np.matmul(a, b))
        a[m // 2, -1] = b[-1, n - 1] = True
        assert_same(clgemm.matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize(("first", "second"), list(itertools.product("?bBhHiIlL", "?bHiL")))
def test_mixed_types(first, second, rng):
    a, b = drawn(rng, np.dtype(first), 40, 41), drawn(rng, np.dtype(second), 41, 42)
    if np.result_type(a, b).kind == "f":  # what holds int64 and uint64: floats, and BLAS'
        a, b = a % 100, b % 100
    assert_same(clgemm.matmul(a, b), np.matmul(a, b))


def test_a_stack(rng):
    for dtype in map(np.dtype, ("i1", "i4", "u8", "?")):
        for left, right in (
            ((5, 33, 34), (5, 34, 35)), ((2, 3, 20, 30), (3, 30, 25)), ((7, 40, 30), (30, 20)),
            ((4, 1, 20, 20), (3, 20, 20)), ((40, 30), (6, 30, 20)), ((3, 40), (5, 40, 2)),
        ):  # fmt: skip
            a, b = drawn(rng, dtype, *left), drawn(rng, dtype, *right)
            assert_same(clgemm.matmul(a, b), np.matmul(a, b))
            view = a.swapaxes(-1, -2)[..., ::-1].swapaxes(-1, -2)[..., ::-1, :]
            assert_same(clgemm.matmul(view, b), np.matmul(view, b))


KEYWORDS = [
    {"dtype": "i8"}, {"dtype": "i1"}, {"dtype": "i1", "casting": "unsafe"}, {"dtype": "f4"},
    {"casting": "no"}, {"casting": "equiv"}, {"dtype": "u4", "casting": "safe"}, {"order": "F"},
    {"out": np.zeros((40, 42), "i8")}, {"out": np.zeros((40, 42), "i2")}, {"dtype": "?"},
    {"out": np.zeros((40, 42), "f4")}, {"out": np.zeros((40, 42), "i1"), "casting": "unsafe"},
    {"out": np.zeros((2, 40, 42), "i4")}, {"out": np.zeros((3, 3), "i4")}, {"axes": [(1, 0)] * 3},
    {"out": np.zeros((42, 40), "i4").T}, {"signature": "ll->l"}, {"subok": False}, {"foo": 1},
]  # fmt: skip


@pytest.mark.parametrize("keywords", KEYWORDS, ids=range(len(KEYWORDS)))
@pytest.mark.parametrize("first", ["i4", "u2", "?", "i8"])
def test_keywords_and_errors_are_numpys(keywords, first, rng):
    a, b = drawn(rng, np.dtype(first), 40, 41), drawn(rng, np.dtype("i4"), 41, 42)
    if "axes" in keywords:
        a, b = a[:40, :40], b[:40, :40]
    results = []
    for matmul in (np.matmul, clgemm.matmul):
        given = {k: v.copy("K") if k == "out" else v for k, v in keywords.items()}
        try:
            results.append(matmul(a, b, **given))
        except (TypeError, ValueError) as error:
            results.append((type(error), str(error)))
        results.append(given.get("out"))
    want, want_out, got, got_out = results
    if isinstance(want, tuple):
        assert got == want
    elif keywords.get("dtype") == "f4":  # sums of floats, by whichever side is faster
        size = np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))
        assert (got.dtype, got.shape, got.strides) == (want.dtype, want.shape, want.strides)
        assert np.all(np.abs(got - want) <= 2 * len(b) * np.finfo("f4").eps * size)
    else:
        assert_same(got, want)
        assert got.strides == want.strides
    if want_out is not None:
        assert_same(got_out, want_out)


def test_shapes_that_do_not_match_are_numpys_error():
    a, empty = np.ones((40, 41), "i4"), np.ones((40, 0), "i4")
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        clgemm.matmul(a, a)
    assert_same(clgemm.matmul(empty, empty.T), np.zeros((40, 40), "i4"))


@settings(
    max_examples=150, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_any_small_arrays(data):
    shapes = data.draw(
        hnp.mutually_broadcastable_shapes(
            signature=np.matmul.signature, max_dims=2, min_side=1, max_side=9
        )
    )
    dtypes = hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.unsigned_integer_dtypes()
    dtype = data.draw(dtypes)
    other = data.draw(st.just(dtype) | dtypes)
    a, b = (
        data.draw(hnp.arrays(kind, shape))
        for kind, shape in zip((dtype, other), shapes.input_shapes, strict=True)
    )
    got, want = clgemm.matmul(a, b), np.matmul(a, b)
    if want.dtype.kind == "f":  # of uint64 and signed integers
        assert got.dtype == want.dtype
        sizes = np.matmul(abs(a.astype(float)), abs(b.astype(float)))
        assert np.all(abs(got - want) <= 2 * a.shape[-1] * np.finfo(float).eps * sizes)
    else:
        assert_same(got, want)


# --------------------------------------------------------------------------- where it runs


def test_what_is_small_is_numpys(monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    a = np.ones((20, 20), "i4")
    monkeypatch.setattr(engines, "compute", None)  # not asked
    for dtype in DTYPES:
        assert_same(clgemm.matmul(a.astype(dtype), a.astype(dtype)), np.matmul(a, a).astype(dtype))
    assert_same(clgemm.matmul(a.tolist(), a), np.matmul(a.tolist(), a))
    assert_same(clgemm.matmul(a[:, :1], a[:1]), np.matmul(a[:, :1], a[:1]))
    assert_same(clgemm.matmul(a[0], a), np.matmul(a[0], a))


def test_what_is_large_is_the_devices(device, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    a = np.empty((1000, 1000), "i2")
    found = clgemm.explain(a, a)
    assert (found.route, found.calls) == ("device", 1)
    assert ("cpu_integer" in found.config) == (device.traits.kind == "cpu")
    assert found.product == "int16 (1000 x 1000 x 1000)"
    assert clgemm.explain(a, a[0]).product == "int16 (1000 x 1 x 1000)"


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "i8", "?"])
@pytest.mark.parametrize("room", [1 << 30, 100 << 10])
def test_a_device_with_a_memory_of_its_own(device, dtype, room, rng, monkeypatch):
    """Blocks are copied there and back; none is added to, so that k stays whole."""
    apart = separate(device)
    monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", str(room / 2**20))
    with registry.using(apart):
        for m, n, k in ((150, 130, 140), (9, 900, 11), (12, 10, 2000), (700, 500, 40)):
            a, b = drawn(rng, np.dtype(dtype), m, k), drawn(rng, np.dtype(dtype), n, k).T
            assert_same(clgemm.matmul(a, b), np.matmul(a, b))
        stack = drawn(rng, np.dtype(dtype), 5, 60, 50)
        assert_same(clgemm.matmul(stack, stack[0].T), np.matmul(stack, stack[0].T))
        found = clgemm.explain(a, b)
    if room > 1 << 20:  # a CPU's kernels take more scratch memory
        assert (found.route, found.bytes_down) == ("device", 700 * 500 * np.dtype(dtype).itemsize)


def test_a_gpu_gets_what_outweighs_the_bus():
    gpu = replace(GPU, compute_units=100)
    for size, where in ((40, "host"), (200, "device"), (2000, "device")):
        problem = problem_of("i4", size)
        assert route_integers(gpu, problem, "auto").where == where
        assert route_integers(gpu, problem, "host").where == "host"
    assert route_integers(gpu, problem_of("b1", 300), "auto").where == "host"
    assert (
        route_integers(replace(gpu, kind="other"), problem_of("i4", 2000), "device").where == "host"
    )


def problem_of(code, n):
    a = np.empty((n, n), INTEGERS[code].dtype, "F")
    return describe(Operand(a), Operand(a), a, reads_c=False)


@pytest.mark.parametrize("k", [300, 1000, 3000])
def test_a_row_with_gaps_goes_anywhere(k, monkeypatch, rng):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    a, b = drawn(rng, np.dtype("i4"), 1, k), drawn(rng, np.dtype("i4"), k, 200)
    memory = np.zeros(400, "i4")
    clgemm.matmul(a, b, memory[None, ::2])
    np.testing.assert_array_equal(memory[::2], np.matmul(a, b)[0])
    assert not memory[1::2].any()


def test_numpy_computes_where_there_is_no_device(monkeypatch, rng):
    def none(*_):
        raise DeviceError("no device")

    integers._warn_once.cache_clear()
    a = drawn(rng, np.dtype("i4"), 50, 50)
    monkeypatch.setattr(engines, "compute", none)
    with pytest.warns(ClgemmWarning, match="NumPy multiplies integers"):
        assert_same(clgemm.matmul(a, a), np.matmul(a, a))
    assert_same(clgemm.matmul(a[None], a), np.matmul(a[None], a))
    with pytest.raises(DeviceError, match="no device"):
        clgemm.matmul(a.astype("f4"), a.astype("f4"))


@pytest.mark.families("cpu_packed")
def test_numpy_computes_what_a_compiler_refuses(device, monkeypatch, rng):
    used = engines.of(device)
    used.forget()
    monkeypatch.setattr(used.parameters, "refused", {"cpu_integer", "gpu_integer"})
    a = drawn(rng, np.dtype("u2"), 51, 52)
    try:
        assert_same(clgemm.matmul(a, a.T), np.matmul(a, a.T))
        assert "no kernel" in clgemm.explain(a, a.T).why
    finally:
        used.forget()
