"""The same functions for pyopencl Arrays: computed where they are, and brought back by `.get()`."""

from __future__ import annotations

import numpy as np
import pytest
from contraction.outcomes import assert_same, expressions, numbers, outcome, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

import clgemm
from clgemm.contraction import device_operations, plans
from clgemm.problem import BY_DTYPE
from clgemm.runtime import opencl, reentry, registry
from clgemm.runtime.opencl import cl

pytestmark = pytest.mark.usefixtures("in_use")
DRAWN = settings(max_examples=60, deadline=None, derandomize=True, database=None)
PRECISIONS = "fdFD"


@pytest.fixture
def codes(device):
    return PRECISIONS if device.traits.fp64 else "fF"


def there(x, *, order=None, gap=0):
    """Copy an array to the device; `gap` elements stand before it, and between its rows."""
    if order is not None:
        x = np.asarray(x, order=order)
    if not gap or not x.ndim or not x.size:
        return clgemm.to_device(x)
    wide = np.full((*x.shape[:-1], x.shape[-1] + gap), 77, x.dtype)
    wide[..., gap:] = x
    return clgemm.to_device(wide)[..., gap:]


def assert_equal(got, want):
    assert isinstance(got, opencl.arrays().Array)
    assert_same(got.get(), np.asarray(want), types=False)


@pytest.mark.parametrize("name", ["dot", "inner", "vdot", "outer", "vecdot"])
def test_products_of_two(name, codes):
    original = getattr(np, name, None)
    if original is None:
        pytest.skip(f"NumPy {np.__version__} has no {name}")

    @DRAWN
    @given(
        shapes.filter(len), shapes.filter(len), st.sampled_from(codes), st.integers(0, 3),
        st.tuples(*[st.sampled_from("CF")] * 2), st.integers(0, 9999),
    )  # fmt: skip
    def check(a, b, code, gap, orders, seed):
        place = max(-2, -len(b)) if name == "dot" else -1
        b = b if seed % 9 == 0 else tuple(
            a[-1] if k == place % len(b) else n for k, n in enumerate(b)
        )  # fmt: skip
        if name == "vdot" and seed % 9:
            b = a[::-1]
        rng = np.random.default_rng(seed)
        x, y = numbers(rng, a, code), numbers(rng, b, code)
        want = outcome(original, x, y)
        got = outcome(
            getattr(clgemm, name), there(x, order=orders[0], gap=gap), there(y, order=orders[1])
        )
        if isinstance(want, Exception):
            assert isinstance(got, ValueError)
        elif isinstance(got, ValueError):
            assert "call .copy()" in str(
                got
            )  # what clgemm.matmul says of operands with two strides
            assert gap or "F" in orders
        else:
            assert_equal(got, want)

    check()


@settings(DRAWN, max_examples=150)
@given(expressions(mistakes=False), st.sampled_from("fF"), st.integers(0, 2))
def test_any_expression(expression, code, gap):
    """All that subscripts can say: products, sums, diagonals, broadcasting, permutations."""
    text, operands = expression
    operands = [np.real(x).astype(code) for x in operands]
    want = outcome(np.einsum, text, *operands)
    got = outcome(clgemm.einsum, text, *[there(x, gap=gap) for x in operands])
    if isinstance(want, Exception):
        assert isinstance(got, ValueError)
    else:
        assert_equal(got, want)


@pytest.mark.parametrize("axes", [1, 2, ([0, 2], [1, 0]), ([-1, 0], [0, -2]), (1, 2), 0])
def test_tensordot(axes, codes, rng):
    for code in codes:
        x, y = numbers(rng, (4, 3, 5), code), numbers(rng, (5, 4, 3), code)
        if axes == 2:
            y = numbers(rng, (3, 5, 2), code)
        for gap in (0, 2):
            got = clgemm.tensordot(there(x, gap=gap), there(y, order="F"), axes)
            assert_equal(got, np.tensordot(x, y, axes))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_multi_dot(count, rng):
    extents = [7, 3, 9, 2, 8, 5]
    arrays = [numbers(rng, extents[k : k + 2], "f") for k in range(count)]
    assert_equal(clgemm.multi_dot(list(map(there, arrays))), np.linalg.multi_dot(arrays))
    out = there(np.zeros((7, extents[count]), np.float32))
    assert clgemm.multi_dot(list(map(there, arrays)), out=out) is out
    assert_equal(out, np.linalg.multi_dot(arrays))
    ends = [arrays[0][0], *arrays[1:-1], arrays[-1][:, 0].copy()]
    assert_equal(clgemm.multi_dot(list(map(there, ends))), np.linalg.multi_dot(ends))


def test_dot_of_stacks_of_rows_and_columns_with_gaps(rng):
    """Which become one matrix, of two steps: no BLAS reads that where it lies."""
    wide = numbers(rng, (6, 5, 8), "f")
    matrix, vector = numbers(rng, (5, 3), "f"), numbers(rng, (5,), "f")
    for gap in (1, 4, 8):
        columns = np.ascontiguousarray(wide[..., :gap])
        rows = columns.transpose(0, 2, 1)
        ours = clgemm.to_device(columns)
        assert_equal(clgemm.dot(there(vector), ours[..., :1]), np.dot(vector, columns[..., :1]))
        ours = ours.transpose((0, 2, 1))[:, :1]
        for x in (vector, matrix):
            assert_equal(clgemm.dot(ours, there(x)), np.dot(rows[:, :1], x))


def test_out(rng):
    x, y = numbers(rng, (6, 3, 5), "f"), numbers(rng, (4, 5, 7), "f")
    out = there(np.zeros((6, 3, 4, 7), np.float32))
    assert clgemm.dot(there(x), there(y), out=out) is out
    assert_equal(out, np.dot(x, y))
    out = there(np.zeros((7, 3, 6), np.float32), order="F")
    assert clgemm.einsum("ijk,lkm->mji", there(x), there(y), out=out) is out
    assert_equal(out, np.einsum("ijk,lkm->mji", x, y))
    out = there(np.zeros((15, 2), np.float32))
    assert clgemm.outer(there(x[0]), there(y[0, 0, :2]), out=out) is out
    assert_equal(out, np.outer(x[0], y[0, 0, :2]))
    square = there(x[0, :, :3].copy())
    with pytest.raises(ValueError, match="shares memory"):
        clgemm.einsum("ij,jk", square, square, out=square)
    with pytest.raises(ValueError, match="the result is"):
        clgemm.einsum("ij,jk", square, square, out=there(np.zeros((2, 2), np.float32)))


def test_axes(rng):
    x = numbers(rng, (2, 3, 4), "f")
    for axes in (None, (1, 0, 2), (2, 0, -2), [0, 1, 2]):
        assert_equal(clgemm.transpose(there(x), axes), np.transpose(x, axes))
    assert_equal(clgemm.matrix_transpose(there(x)), np.swapaxes(x, -1, -2))
    flat = there(x)
    assert clgemm.transpose(flat).base_data == flat.base_data  # a view
    for axes in ((0, 1), (0, 0, 1), (0, 1, 5)):
        with pytest.raises(ValueError, match="permute"):
            clgemm.transpose(flat, axes)
    with pytest.raises(ValueError, match="1 axes"):
        clgemm.matrix_transpose(there(x[0, 0]))


def test_a_diagonal_of_extent_one_is_broadcast(rng):
    x, y = numbers(rng, (4, 2), "f"), numbers(rng, (2, 3, 1, 1), "f")
    got = clgemm.einsum("Bi,ilBB->l", there(x), there(y))
    assert_equal(got, np.einsum("Bi,ilBB->l", x, y))
    with pytest.raises(ValueError, match="does not fit"):
        clgemm.einsum("Bi,ilBB->l", there(x), there(numbers(rng, (2, 3, 1, 4), "f")))


def test_signed_zeros_and_infinities_of_products_of_elements():
    x, y = np.array([-0.0, np.inf, 2], np.float32), np.array([1.0, 2, -0.0], np.float32)
    got = clgemm.einsum("i,i->i", there(x), there(y)).get()
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x * y))
    np.testing.assert_array_equal(got, x * y)


def test_vecdot_along_another_axis(rng):
    x, y = numbers(rng, (5, 3), "F"), numbers(rng, (2, 5, 3), "F")
    want = np.einsum("ij,bij->bj", x.conj(), y)
    assert_equal(clgemm.vecdot(there(x), there(y), axis=-2), want)
    with pytest.raises(TypeError, match="but axis"):
        clgemm.vecdot(there(x), there(y), keepdims=True)
    with pytest.raises(ValueError, match="no axis 4"):
        clgemm.vecdot(there(x), there(y), axis=4)


CALLS = {
    "dot": clgemm.dot,
    "inner": clgemm.inner,
    "vdot": clgemm.vdot,
    "outer": clgemm.outer,
    "vecdot": clgemm.vecdot,
    "tensordot": lambda x, y: clgemm.tensordot(x, y, 1),
    "einsum": lambda x, y: clgemm.einsum("ij,jk", x, y),
    "multi_dot": lambda x, y: clgemm.multi_dot([x, y, x]),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_refused_and_why(name):
    x = np.ones((3, 3), np.float32)
    call = CALLS[name]
    for pair in ((there(x), x), (x, there(x))):
        with pytest.raises(TypeError, match="on the host are mixed"):
            call(*pair)
    with pytest.raises(TypeError, match="astype"):
        call(there(x), there(x.astype(np.int32)))
    with pytest.raises(TypeError, match="astype"):
        call(there(x.astype(np.int32)), there(x.astype(np.int32)))


def test_einsum_refuses_what_it_cannot_do():
    x = there(np.ones((3, 3), np.float32))
    for more in ({"order": "F"}, {"casting": "no"}, {"where": True}):
        with pytest.raises(TypeError, match="leave it out"):
            clgemm.einsum("ij,jk", x, x, **more)
    with pytest.raises(TypeError, match="astype"):
        clgemm.einsum("ij,jk", x, x, dtype="d")
    assert_equal(clgemm.einsum("ij,jk", x, x, dtype="f", order="K"), np.full((3, 3), 3, "f"))
    with pytest.raises(ValueError, match="does not fit"):
        clgemm.einsum("ij,jkl", x, x)
    with pytest.raises(TypeError):  # NumPy's own
        clgemm.einsum("ij,jk,kl", x, x, x, optimize=3)
    axes = "abcdefghi"
    many = there(np.ones((2,) * 9, np.float32))
    with pytest.raises(ValueError, match="8 are the most"):
        clgemm.einsum(f"{axes}->acebdfhgi", many)


def test_operands_of_two_queues(device, rng):
    """Each waits for what it reads."""
    other = cl.CommandQueue(device.context)
    x, y = numbers(rng, (40, 30, 20), "f"), numbers(rng, (40, 20), "f")
    left, right = there(x), opencl.arrays().to_device(other, y)
    got = clgemm.einsum("ijk,ik->ijk", left, right)
    assert_equal(got, x * y[:, None])
    assert_equal(clgemm.einsum("ijk,ik->ji", left, right), np.einsum("ijk,ik->ji", x, y))


def test_nothing_waits_and_nothing_is_copied_to_the_host(monkeypatch, rng):
    x, y = numbers(rng, (4, 30, 20), "f"), numbers(rng, (30, 4, 20), "f")
    a, b = there(x), there(y)
    clgemm.einsum("ijk,jil->kl", a, b)  # builds kernels
    array = opencl.arrays().Array

    def never(*_, **__):
        raise AssertionError("an operand was brought to the host")

    with monkeypatch.context() as patched:
        for name in ("get", "get_async", "map_to_host"):
            patched.setattr(array, name, never)
        got = clgemm.einsum("ijk,jil->kl", a, b)
    assert_equal(got, np.einsum("ijk,jil->kl", x, y))


def test_a_call_from_within_another_one_is_computed_by_way_of_the_host(rng):
    x, y = numbers(rng, (4, 3, 5), "F"), numbers(rng, (3, 4, 5), "F")
    a, b = there(x), there(y)

    @reentry.entry()
    def handler():
        return [
            clgemm.einsum("ijk,jil->kl", a, b), clgemm.einsum("ijk,jik->kij", a, b),
            clgemm.einsum("ijk->j", a), clgemm.vdot(a, a),
        ]  # fmt: skip

    want = [
        np.einsum("ijk,jil->kl", x, y), np.einsum("ijk,jik->kij", x, y), np.einsum("ijk->j", x),
        np.vdot(x, x),
    ]  # fmt: skip
    for got, expected in zip(handler(), want, strict=True):
        assert_equal(got, expected)


@pytest.mark.parametrize("optimize", [False, ["einsum_path", (0, 1, 2, 3)], ("greedy", 2)])
def test_more_than_two_operands_at_once_are_contracted_by_twos(optimize, rng):
    operands = [numbers(rng, shape, "f") for shape in ((2, 3), (3, 4), (4, 5), (2, 5))]
    got = clgemm.einsum("ij,jk,kl,il->ijkl", *map(there, operands), optimize=optimize)
    assert_equal(got, np.einsum("ij,jk,kl,il->ijkl", *operands))


def test_plans_of_both_kinds_of_array_are_the_same(rng):
    x = numbers(rng, (5, 5), "f")
    clgemm.einsum("ij,jk,kl->il", *[there(x)] * 3)
    before = plans._of.cache_info().misses
    clgemm.einsum("ij,jk,kl->il", *[there(x)] * 3)
    assert plans._of.cache_info().misses == before


def test_kernels_are_lent_to_one_thread_and_kept(monkeypatch, codes):
    x = np.arange(24.0).astype(codes[0]).reshape(2, 3, 4)
    assert_equal(clgemm.matrix_transpose(there(x)), np.swapaxes(x, -1, -2))

    def refused(*_):
        raise AssertionError("a kernel was made again")

    monkeypatch.setattr(opencl, "make_kernel", refused)
    assert_equal(clgemm.matrix_transpose(there(x[:, :2])), np.swapaxes(x[:, :2], -1, -2))
    device = registry.current()
    with device_operations._kernel(device, BY_DTYPE[x.dtype], "copy_elements") as lent:
        monkeypatch.undo()
        with device_operations._kernel(device, BY_DTYPE[x.dtype], "copy_elements") as other:
            assert other is not lent
