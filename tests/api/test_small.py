"""The short way of small products: what takes it, what does not, and that answers are SciPy's."""

from __future__ import annotations

import itertools
import re
import sys

import numpy as np
import pytest
import scipy.linalg.blas

import clgemm
from clgemm.api import shortcut, small
from clgemm.dispatch import engines
from clgemm.host import blas as host_blas
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.measure.verify import random_matrix

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True, params=["compiled", "python"])
def _by(request, monkeypatch):
    """Have what is compiled tell what is small, and Python's function, as it does elsewhere."""
    if request.param == "python":
        monkeypatch.setattr(clgemm, "matmul", clgemm.matmul.__func__)
    elif shortcut.MODULE is None:
        pytest.skip("clgemm.api._shortcut was not compiled here")


def _arguments(alpha, a, b, trans_a=0, trans_b=0, *, beta=0.0, c=None, overwrite_c=0):
    return alpha, a, b, beta, c, trans_a, trans_b, overwrite_c


@pytest.fixture
def auto(monkeypatch):
    """Let the route decide, as users do; and refuse the long way."""
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")

    def compute(_call, _by_host=None):
        raise AssertionError("a small product took the long way")

    monkeypatch.setattr(engines, "compute", compute)


@pytest.mark.usefixtures("auto")
@pytest.mark.parametrize("code", "sdcz")
def test_small_products_are_scipys_bit_by_bit(code, rng):
    precision = PRECISIONS[code]
    ours, theirs = getattr(clgemm, code + "gemm"), getattr(scipy.linalg.blas, code + "gemm")
    for trans_a, trans_b, order in itertools.product((0, 1, 2), (0, 1, 2), "FC"):
        a = random_matrix(rng, precision, *((5, 7) if not trans_a else (7, 5)))
        b = random_matrix(rng, precision, *((7, 3) if not trans_b else (3, 7)))
        a, b = (np.array(x, order=order) for x in (a, b))
        flags = {"trans_a": trans_a, "trans_b": trans_b}
        got, want = ours(1.5, a, b, **flags), theirs(1.5, a, b, **flags)
        assert got.tobytes("F") == want.tobytes("F")
        assert got.flags.f_contiguous
    x = random_matrix(rng, precision, 6, 6)
    np.testing.assert_array_equal(clgemm.matmul(x, x), np.matmul(x, x))


@pytest.mark.parametrize(
    ("code", "n"), [("s", 64), ("d", 65), ("c", 40), ("c", 41), ("z", 41), ("s", 65)]
)
def test_the_limit_is_that_of_the_route(code, n, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    precision = PRECISIONS[code]
    x = np.ones((n, n), precision.dtype)
    taken = 2 * n**3 * (4 if precision.is_complex else 1) <= small.SMALL_FLOPS
    assert (small.gemm(precision.dtype, _arguments(1.0, x, x)) is not None) == taken
    assert (small.matmul(x, x) is not None) == taken


def test_the_device_s_route_and_unusual_calls_are_left_alone(monkeypatch):
    single = np.dtype(np.float32)
    x = np.ones((4, 4), np.float32)
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    assert small.gemm(single, _arguments(1.0, x, x)) is not None
    unusual = [
        ("1", x, x, 0, 0),
        (1j, x, x, 0, 0),
        (0.0, x, x, 0, 0),
        (1e-50, x, x, 0, 0),
        (1.0, x.astype(np.float64), x, 0, 0),
        (1.0, x.tolist(), x, 0, 0),
        (1.0, x[0], x, 0, 0),
        (1.0, x, x, 3, 0),
        (1.0, x, x, 0, None),
        (1.0, x, x[:3], 0, 0),
        (1.0, x[:0], x, 0, 0),
        (1.0, x.view(np.matrix), x, 0, 0),
    ]
    assert [small.gemm(single, _arguments(*call)) for call in unusual] == [None] * len(unusual)
    assert small.matmul(x, x[0]) is not None, "NumPy takes vectors, and stacks"
    assert small.matmul(x, x[0, 0]) is None
    assert small.matmul(x[:, :0], x[:0]) is None
    assert small.matmul(np.ones((2, 1, 4, 4)), np.ones((3, 4, 4))) is None
    assert small.matmul(x.astype(object), x.astype(object)) is None
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    assert small.gemm(single, _arguments(1.0, x, x)) is None
    assert small.matmul(x, x) is None
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    assert small.gemm(single, _arguments(1.0, x, x)) is not None, "the host is what is asked for"
    assert small.matmul(x, x) is not None


@pytest.mark.parametrize("code", "sdcz")
def test_stacks_and_vectors_are_small_where_the_rule_says_so(code, monkeypatch):
    """`matmul` counts multiplications of usual stacks itself."""
    matmul = sys.modules["clgemm.api.matmul"]
    monkeypatch.delenv("CLGEMM_ROUTE", raising=False)
    monkeypatch.setattr(registry, "in_use", None)
    precision = PRECISIONS[code]
    most = small.MOST_STACKED[precision.dtype]
    stacks = [(), (1,), (2,), (most // 60,), (most // 60 + 1,), (2, 1), (1, 3)]
    matrices = [((3, 4), (4, 5)), ((1, 4), (4, 15)), ((4,), (4, 15)), ((3, 20), (20,))]
    taken = []
    for p, q, (left, right) in itertools.product(stacks, stacks, matrices):
        if not (p or q) and len(left) == len(right):
            continue  # no stack, and no vector
        # A vector has no place in a stack of its own.
        x = np.zeros((p if len(left) > 1 else ()) + left, precision.dtype)
        y = np.zeros((q if len(right) > 1 else ()) + right, precision.dtype)
        got, want = matmul._stacks(x, y, None), small.matmul(x, y)
        assert (got is None) == (want is None), (x.shape, y.shape)
        taken.append(got is not None)
        assert matmul._stacks(x, y.astype(object), None) is None
    assert {True, False} == set(taken)
    for count in (most, most + 1):
        x = np.zeros((1, count), precision.dtype)
        assert (matmul._stacks(x, x[0], None) is None) == (count > most)


@pytest.mark.usefixtures("auto")
@pytest.mark.parametrize("code", "sdcz")
def test_every_plain_argument_takes_the_short_way(code, rng):
    """Bit for bit what SciPy returns, and `c` as SciPy leaves it."""
    precision = PRECISIONS[code]
    ours, theirs = getattr(clgemm, f"{code}gemm"), getattr(scipy.linalg.blas, f"{code}gemm")
    a, b = (random_matrix(rng, precision, *shape) for shape in ((5, 7), (7, 6)))
    factors = [2, -0.5, np.float32(0.25), np.float64(3)]
    factors += [1 - 2j, np.complex64(1j)] if precision.is_complex else []
    for alpha, order, flag in itertools.product(factors, "CF", (0, 1, True)):
        for beta in (0, 0.0, 1, *factors):
            c = random_matrix(rng, precision, 5, 6)
            mine, its = c.copy(order), c.copy(order)
            got = ours(alpha, a, b, beta=beta, c=mine, overwrite_c=flag)
            want = theirs(alpha, a, b, beta=beta, c=its, overwrite_c=flag)
            assert got.tobytes("F") == want.tobytes("F")
            assert mine.tobytes() == its.tobytes()
            assert (got is mine) == (want is its)


def test_unusual_factors_and_results_are_left_to_the_long_way(monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    x = np.ones((4, 4), order="F")
    fixed = x.copy("F")
    fixed.flags.writeable = False
    for more in (
        {"beta": float("nan")}, {"beta": 1e-300}, {"beta": "1"}, {"beta": 1j}, {"c": x[:3]},
        {"c": x.astype(np.float32)}, {"c": x.tolist()}, {"c": x.view(np.matrix)},
        {"c": x, "overwrite_c": 1}, {"c": fixed, "overwrite_c": 1}, {"c": x, "overwrite_c": None},
    ):  # fmt: skip
        assert small.gemm(x.dtype, _arguments(1.0, x, x, **more)) is None, more
    assert small.gemm(x.dtype, _arguments(1.0, x, x, c=fixed)) is not None


@pytest.mark.usefixtures("auto")
@pytest.mark.parametrize(
    ("left", "right"),
    [((9, 5), (5, 7)), ((9, 5), (5,)), ((9, 5), (3, 5, 7)), ((9, 5), (1, 5, 7)), ((40, 1), (1, 40)),
     ((9, 0), (0, 7)), ((0, 5), (5, 7)), ((30, 60), (60, 25)), ((5, 300), (2, 300, 15)),
     ((3000, 4), ()), ((9, 5), ()), ((9, 5), (6, 7)), ((30, 60), (61, 25)), ((3000, 4), (5,))],
    ids=str,
)  # fmt: skip
def test_matrices_times_few_numbers_are_numpys_product(left, right, rng, monkeypatch):
    """Matrices, vectors or stacks: the same bits, and the same mistakes."""
    monkeypatch.delenv("CLGEMM_ROUTE")  # as users have it: what is set is looked at elsewhere
    a, b = np.asarray(rng.uniform(-1, 1, left)), np.asarray(rng.uniform(-1, 1, right))
    want, message = None, ""
    try:
        want = np.matmul(a, b)
    except ValueError as error:
        message = str(error)
    if want is None:
        with pytest.raises(ValueError, match=re.escape(message)):
            clgemm.matmul(a, b)
        return
    out = np.full(want.shape, np.nan)
    for got in (clgemm.matmul(a, b), clgemm.matmul(a, b, out=out)):
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes()
    assert got is out


def _lying(x):
    """Give a matrix as it may lie in memory: ordered, with gaps, turned, swapped, anywhere."""
    moved = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    gaps = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)[::2, ::3]
    gaps[...] = x
    return x, np.asfortranarray(x), gaps, x[::-1, ::-1], x.astype(x.dtype.newbyteorder()), moved


@pytest.mark.parametrize("code", "fdFD")
@pytest.mark.parametrize("shape", [(3, 5, 4), (33, 30, 36), (40, 70, 50)], ids=str)
def test_matrices_are_numpys_product_however_they_lie(code, shape, rng, monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE")
    m, n, k = shape
    a, b = rng.uniform(-1, 1, (m, k)).astype(code), rng.uniform(-1, 1, (k, n)).astype(code)
    # Of matrices that BLAS cannot read older NumPys ask it only in dot.
    bound = 2 * k * np.finfo(code).eps * (np.abs(a) @ np.abs(b))
    for (i, x), (j, y) in itertools.product(enumerate(_lying(a)), enumerate(_lying(b))):
        got, want = clgemm.matmul(x, y), np.matmul(x, y)
        assert (got.dtype, got.strides) == (want.dtype, want.strides)
        assert np.all(np.abs(got - want) <= (0 if i < 2 > j else bound))
    for out, numpys in zip(*(_lying(np.full((m, n), np.nan, code)) for _ in "ab"), strict=True):
        assert clgemm.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, np.matmul(a, b, numpys), strict=True)
    gram = clgemm.matmul(a, a.T)
    assert gram.tobytes() == np.matmul(a, a.T).tobytes() == gram.T.tobytes()


@pytest.mark.parametrize("code", "fdFD")
@pytest.mark.parametrize("k", [2, 7, 64])
def test_vectors_are_numpys_product_however_matrices_lie(code, k, rng, monkeypatch):
    """BLAS computes all of them, numpy.matmul's loop some, in another order."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    a, b = rng.uniform(-1, 1, (40, k)).astype(code), rng.uniform(-1, 1, (k, 30)).astype(code)
    u, v = rng.uniform(-1, 1, (2, k)).astype(code)
    factors = [(x, y) for x in _lying(a) for y in (v, v[:, None])]
    factors += [(x, y) for x in (u, u[None]) for y in _lying(b)]
    for x, y in factors:
        got, want = clgemm.matmul(x, y), np.matmul(x, y)
        bound = 2 * k * np.finfo(code).eps * (np.abs(x) @ np.abs(y))
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert np.all(np.abs(got - want) <= bound)


def _outcome(multiply, a, b):
    try:
        product = multiply(a, b)
    except TypeError as error:
        return type(error), str(error)
    return product.dtype, product.tolist()


@pytest.mark.parametrize("left", ["f", "d", "D", "g", "e", "q", "?", "m", "O", "S1"])
@pytest.mark.parametrize("right", ["f", "D", "q", "m8[s]", "O", "V4"])
def test_types_are_multiplied_as_numpys_matmul_does(left, right, monkeypatch):
    """Its errors, too, where NumPy's dot would have others, or none."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    a, b = (np.ones((3, 4), x) if x != "V4" else np.zeros((3, 4), x) for x in (left, right))
    assert _outcome(clgemm.matmul, a, b.T) == _outcome(np.matmul, a, b.T)


@pytest.mark.parametrize("n", [5, 40])
def test_what_dot_does_not_store_into_matmul_does(n, rng, monkeypatch):
    """Another type, what an operand lies in, more axes; and what neither of both may."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    a, b = rng.uniform(-1, 1, (n, n)), rng.uniform(-1, 1, (n, n))
    want = np.matmul(a, b)
    for out in (np.zeros((n, n), complex), np.zeros((3, n, n)), np.zeros((n, n), "g")):
        assert clgemm.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, np.broadcast_to(want, out.shape))
    for place in (0, 1):
        x = [a.copy(), b.copy()]
        np.testing.assert_array_equal(clgemm.matmul(*x, x[place]), want)
    shifted = np.zeros((n + 1, n))
    shifted[:n] = a
    np.testing.assert_array_equal(clgemm.matmul(shifted[:n], b, shifted[1:]), want)
    fixed = np.zeros((n, n))
    fixed.flags.writeable = False
    for out in (
        fixed,
        np.zeros((n, n + 1)),
        np.zeros(n),
        np.zeros((n, n), int),
    ):
        kept = out.copy()
        with pytest.raises((ValueError, TypeError)) as theirs:
            np.matmul(a, b, out)
        with pytest.raises(type(theirs.value)) as ours:
            clgemm.matmul(a, b, out)
        assert str(ours.value) == str(theirs.value)
        np.testing.assert_array_equal(out, kept)


@pytest.mark.parametrize("kind", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("of_out", "<>")
@pytest.mark.parametrize("of_operands", "<>")
def test_matrices_of_another_byte_order_go_into_such_a_result(
    kind, of_operands, of_out, rng, monkeypatch
):
    """Dot stores into native ones only, whatever it multiplies."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    a, b = rng.integers(-9, 9, (2, 5, 5)).astype(of_operands + kind)
    out = np.zeros((5, 5), of_out + kind)
    assert clgemm.matmul(a, b, out) is out
    np.testing.assert_array_equal(out, np.matmul(a, b))
    assert clgemm.matmul(a, b).dtype == np.matmul(a, b).dtype


@pytest.mark.parametrize("kind", [">f4", ">c16", "f2", "i4", "?", "g", "O"])
@pytest.mark.parametrize("shape", [(6, 9, 0), (0, 9, 3), (5, 0, 4), (5, 1, 0)], ids=str)
def test_empty_products_of_any_type_go_into_a_result(kind, shape, monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE")
    (m, k, n), dtype = shape, np.dtype(kind)  # one object, as of arrays made of one another
    out = np.ones((m, n), dtype)
    got = clgemm.matmul(np.ones((m, k), dtype), np.ones((k, n), dtype), out)
    assert got is out
    assert not out.any()


@pytest.mark.parametrize("code", "fdFD")
def test_numpys_dot_has_small_results_alone(code, monkeypatch):
    """It fills a result with zeros first, which takes longer the larger that is."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    asked, module = [], sys.modules["clgemm.api.matmul"]
    monkeypatch.setattr(module, "_dot", lambda x, y: asked.append(x @ y))
    matmul = module.matmul.__func__
    for k in (2, 9):
        a, b = np.ones((65, k), code), np.ones((k, 64), code)
        assert matmul(a, b).shape == (65, 64)
        assert not asked
        matmul(a[:64], b)
        assert asked.pop().shape == (64, 64)


def test_vectors_meet_what_numpy_lets_them_meet(rng, monkeypatch):
    """Stacks, for which dot is slow, but no numbers."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    vector, stack = rng.uniform(-1, 1, 3), rng.uniform(-1, 1, (3, 3, 3))
    monkeypatch.setattr(sys.modules["clgemm.api.matmul"], "_dot", None)
    for pair in ((vector, stack), (stack, vector)):
        np.testing.assert_array_equal(clgemm.matmul(*pair), np.matmul(*pair), strict=True)
    for pair in ((vector, np.array(3.0)), (np.array(3.0), vector)):
        with pytest.raises(ValueError, match="does not have enough dimensions"):
            clgemm.matmul(*pair)


@pytest.mark.parametrize("out", [None, np.zeros((5, 5))], ids=["fresh", "out"])
def test_what_a_signal_raises_is_heard(out, monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE")
    module, a = sys.modules["clgemm.api.matmul"], np.ones((5, 5))

    def interrupted(*_):
        raise ValueError("by a handler")

    monkeypatch.setattr(module, "_dot", interrupted)
    with pytest.raises(ValueError, match="by a handler"):
        module.matmul.__func__(a, a, out)
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        clgemm.matmul(a, np.ones((6, 5)), out)


def test_a_mistake_is_told_in_the_words_of_matmul_alone(monkeypatch):
    monkeypatch.delenv("CLGEMM_ROUTE")
    for rows in (4, 60):
        with pytest.raises(ValueError, match="matmul: Input operand 1 has a mismatch") as caught:
            clgemm.matmul(np.ones((50, rows)), np.ones((rows + 1, 50)))
        assert caught.value.__context__ is None


@pytest.mark.parametrize(("columns", "whole"), [(50, True), (2048, True), (2100, False)])
def test_outer_products_are_not_numpys_loop(columns, whole, rng, monkeypatch):
    """One that several threads would compute, or that fills a cache, is taken by rows."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    seen, outer = [], host_blas.outer
    monkeypatch.setattr(host_blas, "outer", lambda *x: seen.append(1) or outer(*x))
    monkeypatch.setattr(host_blas, "matmul", None)
    a, b = rng.uniform(-1, 1, (64, 1)), rng.uniform(-1, 1, (1, columns))
    np.testing.assert_array_equal(clgemm.matmul(a, b), a * b)
    assert bool(seen) is not whole


def _special(rng, code, shape):
    """Draw small whole numbers, of which some are zeros of either sign, infinite or NaN."""
    x = rng.integers(-3, 4, shape).astype(code)
    x.flat[rng.integers(x.size)] = rng.choice([np.inf, -np.inf, np.nan, -0.0, 0.0])
    return x


@pytest.mark.parametrize("code", "fd")
@pytest.mark.parametrize("n", [1, 2, 3, 40])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_zeros_infinities_and_nan_are_multiplied_as_by_numpy(code, n, k, rng, monkeypatch):
    """By a dot that takes a single zero for nothing, what it multiplies would be lost."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    for m in (1, 2, 3, 40) * 8:
        a, b = _special(rng, code, (m, k)), _special(rng, code, (k, n))
        spread = np.repeat(b, 2, axis=1)[:, ::2]
        for x, y in ((a, b), (np.asfortranarray(a), spread), (np.zeros_like(a), b)):
            with np.errstate(all="ignore"):
                want, out = np.matmul(x, y), np.full((m, n), 7, code)
                for got in (clgemm.matmul(x, y), clgemm.matmul(x, y, out)):
                    np.testing.assert_array_equal(got, want, strict=True)
                    assert (np.signbit(got) == np.signbit(want))[want == 0].all()
                for pair in ((x[0], y), (x, y[:, 0]), (x[0], y[:, 0])):
                    got, want = clgemm.matmul(*pair), np.matmul(*pair)
                    np.testing.assert_array_equal(got, want, strict=True)
                    assert type(got) is type(want)


def test_a_result_that_lies_in_an_operand_is_not_scipys(rng, monkeypatch):
    """Whichever of them owns the memory."""
    monkeypatch.delenv("CLGEMM_ROUTE")
    memory = np.asfortranarray(rng.uniform(-1, 1, (12, 12)))
    owner, other = memory.copy("F"), memory.copy("F")
    half, rest = memory[:, :6], memory[:, 6:]
    square = np.asfortranarray(rng.uniform(-1, 1, (6, 6)))
    for a, b, c, taken in [
        (owner, other, memory, True),
        (owner, other, owner, False),
        (owner, other, other, False),
        (owner, other, owner[:], False),
        (owner[:], other, owner, False),
        (owner, other[:], other, False),
        (half, square, rest, True),
        (half, square, half, False),
        (half, square, memory[:, 3:9], False),
    ]:
        want = a @ b + 2 * c
        got = small.gemm(c.dtype, (1.0, a, b, 2.0, c, 0, 0, 1))
        assert (got is c) is taken
        assert (got is None) is not taken
        if taken:
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
