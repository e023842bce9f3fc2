"""clgemm's matmul against the installed numpy.matmul: the same call, the same outcome.

Nothing here knows what NumPy answers.  Each case is built twice from the same numbers and given to
both functions: either both raise the same class, or the results agree in type, dtype, shape,
layout and values.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from helpers import as_given, pairwise
from hypothesis import given, settings
from hypothesis import strategies as st

import clgemm
from clgemm.api import repeated
from clgemm.api.matmul import matmul
from clgemm.dispatch import engines
from clgemm.host import blas as host_blas

pytestmark = pytest.mark.contract

NATIVE = "fdFD"
TYPES = "?bBhilqefdgFDGO"
ALL_CASTINGS = ["no", "equiv", "safe", "same_kind", "unsafe"]


def whole(dtype: Any, *shape: Any, order: Any = "C") -> Any:
    """Small whole numbers: every product is exact in every type, in any order of its terms."""
    count = int(np.prod(shape))
    values = np.random.default_rng(count).integers(-3, 4, count)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * values[::-1]
    return values.astype(dtype).reshape(shape).copy(order)


def put(x: Any, order: Any) -> Any:
    """Lay an array out in another way, with equal elements."""
    if not x.ndim:
        return x.copy()
    if order == "transposed" and x.ndim > 1:
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if order in {"stepped", "reversed"}:
        step = 2 if order == "stepped" else -1
        base = np.full([abs(step) * n for n in x.shape], 77, x.dtype)
        view = base[(slice(None, None, step),) * x.ndim]
        view[...] = x
        return view
    if order == "unaligned":
        view = np.empty(x.nbytes + 1, np.int8)[1:].view(x.dtype).reshape(x.shape)
        view[...] = x
        return view
    if order == "outer last":
        return np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0)
    dtype = x.dtype.newbyteorder() if order == "swapped" else x.dtype
    return np.array(x, dtype, order="F" if order == "F" else "C")


LAYOUTS = ["C", "F", "transposed", "stepped", "reversed", "unaligned", "swapped", "outer last"]


def outcome(function: Any, args: Any, kwargs: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever NumPy raises is the reference
            return error


def agree(build: Any, bound: Any = None) -> Any:
    """Run one call on both functions and compare; return clgemm's result."""
    (args, kwargs), (args_np, kwargs_np) = build(), build()
    out, out_np = (find_out(*call) for call in ((args, kwargs), (args_np, kwargs_np)))
    before = out.copy() if isinstance(out, np.ndarray) else None
    expected, result = outcome(np.matmul, args_np, kwargs_np), outcome(matmul, args, kwargs)
    assert type(result) is type(expected), (result, expected)
    if isinstance(expected, Exception):
        if before is not None:
            np.testing.assert_array_equal(out, before)
        return result
    assert (result is out) == (expected is out_np)
    if isinstance(expected, np.ndarray | np.generic):
        same_form(result, expected)
        close(result, expected, bound)
        if before is not None:
            close(out, out_np, bound)
            base = out.base
            if bound is None and isinstance(base, np.ndarray) and base.dtype == out.dtype:
                close(base, out_np.base, None)  # what lies between the elements of out is kept
    else:
        assert result == expected
    return result


def find_out(args: Any, kwargs: Any) -> Any:
    out = kwargs.get("out", args[2] if len(args) > 2 else None)
    return out[0] if isinstance(out, tuple) and len(out) == 1 else out


def same_form(result: Any, expected: Any) -> Any:
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if isinstance(expected, np.ndarray):
        for flag in ("c_contiguous", "f_contiguous", "owndata", "writeable", "aligned"):
            assert getattr(result.flags, flag) == getattr(expected.flags, flag), flag
        if expected.size:
            strides, wanted = (
                [step for step, n in zip(x.strides, x.shape, strict=True) if n > 1]
                for x in (result, expected)
            )
            assert strides == wanted
    if isinstance(expected, np.ma.MaskedArray):
        np.testing.assert_array_equal(result.mask, expected.mask)


def close(result: Any, expected: Any, bound: Any) -> Any:
    result, expected = np.asarray(result), np.asarray(expected)
    if bound is None:
        np.testing.assert_array_equal(result, expected)
    else:
        assert (abs(result - bound[0]) <= bound[1]).all()


# --- operands -------------------------------------------------------------------------------------

SHAPES = [
    ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((1, 1), (1, 1)),
    ((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((3,), (2, 2, 3, 4)), ((2, 1, 4, 3), (3,)),
    ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4)),
    ((2, 1, 2, 3), (5, 3, 4)), ((2, 5, 2, 3), (2, 1, 3, 4)), ((2, 5, 2, 3), (2, 5, 3, 4)),
    ((17, 31), (31, 13)), ((1, 3), (3, 1)), ((5, 1, 3), (5, 3, 1)), ((5, 1, 3), (3, 4)),
]  # fmt: skip
EMPTY = [
    ((0,), (0,)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((2, 3), (3, 0)), ((0, 0), (0, 0)),
    ((0, 2, 2), (1, 2, 2)), ((0, 2, 2), (2, 2)), ((2, 0), (0,)), ((5, 2, 0), (5, 0, 3)),
    ((5, 0, 2), (5, 2, 3)),
]  # fmt: skip
BAD_SHAPES = [
    ((2, 2), (3, 2)), ((2,), (3,)), ((2, 3), (2,)), ((2, 2, 2), (3, 2, 2)), ((), (2,)),
    ((2, 2), ()), ((), ()), ((2, 0), (1, 2)), ((0, 2, 2), (3, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", [*SHAPES, *EMPTY, *BAD_SHAPES], ids=str)
def test_shapes(shapes: Any) -> None:
    for dtype in (*NATIVE, "e", "i", "?"):
        agree(lambda dtype=dtype: ([whole(dtype, *shape) for shape in shapes], {}))


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_layout_of_fresh_results(shapes: Any) -> None:
    for order, *views in pairwise([*"KCFA", None, "f"], LAYOUTS, LAYOUTS):
        agree(lambda order=order, views=views: (
            [put(whole("f", *s), v) for s, v in zip(shapes, views, strict=True)], {"order": order}
        ))  # fmt: skip


def test_batches_of_permuted_axes_keep_their_order() -> None:
    for p, q in itertools.product(itertools.permutations(range(3)), repeat=2):
        agree(lambda p=p, q=q: ((
            whole("f", *np.array([2, 3, 4])[np.argsort(p)], 2, 3).transpose(*p, 3, 4),
            whole("f", *np.array([2, 3, 4])[np.argsort(q)], 3, 2).transpose(*q, 3, 4),
        ), {}))  # fmt: skip


@pytest.mark.parametrize("left", TYPES)
def test_pairs_of_types(left: Any) -> None:
    for right in TYPES:
        agree(lambda right=right: ((whole(left, 2, 3), whole(right, 3, 2)), {}))


@pytest.mark.parametrize("other", ["S1", "U1", "M8[s]", "m8[s]", "V4", ">f4", ">c16", "i1,i2"])
def test_types_without_a_loop_and_swapped_ones(other: Any) -> None:
    for dtypes in ((other, "f4"), ("f4", other), (other, other)):
        agree(lambda dtypes=dtypes: ([np.zeros((2, 2), dtype) for dtype in dtypes], {}))


@pytest.mark.parametrize("operand", [
    [[1.0, 2.0], [3.0, 4.0]], [[1, 2], [3, 4]], [1.0, 2.0], ((1.0, 2.0), (3.0, 4.0)),
    [[1j, 2], [3, 4]], [], [[]], [[1, 2], [3]], None, 2.0, "ab", {}, [None, None],
    memoryview(np.eye(2)), range(2),
], ids=lambda operand: type(operand).__name__)  # fmt: skip
def test_operands_that_are_no_arrays(operand: Any) -> None:
    for dtype in "fd":
        agree(lambda dtype=dtype: ((whole(dtype, 2, 2), operand), {}))
        agree(lambda dtype=dtype: ((operand, whole(dtype, 2, 2)), {}))
    agree(lambda: ((operand, operand), {}))


@pytest.mark.skipif(np.__version__.startswith("1."), reason="NumPy 1 has at most 32 axes")
def test_33_dimensions() -> None:
    agree(lambda: ((whole("f", *[1] * 31, 2, 3), whole("f", *[2], *[1] * 30, 3, 4)), {}))


@pytest.mark.parametrize("dtype", "efd")
def test_nan_and_infinity(dtype: Any) -> None:
    a, b = whole(dtype, 4, 5), whole(dtype, 5, 6)
    a[0, 0], a[1, 1], b[2, 2], b[3, 3], b[:, 4] = np.nan, np.inf, -np.inf, np.nan, 0
    agree(lambda: ((a, b), {}))
    agree(lambda: ((a[1], b[:, 1]), {}))


def test_half_precision_accumulates_wider_and_rounds_once() -> None:
    agree(lambda: ((np.ones((1, 4096), "e"), np.ones((4096, 1), "e")), {}))
    agree(lambda: ((np.ones(4096, "e"), np.ones(4096, "e")), {"out": np.zeros((), "f")}))
    agree(lambda: ((np.array([2049.0], "f"), np.array([1.0], "f")), {"dtype": "e"}))
    agree(lambda: ((np.full((1, 2), 300, "e"), np.full((2, 1), 300, "e")), {}))
    a, b = np.array([[2048, 1]], "e"), np.ones((2, 1), "e")
    for dtype in "efd":
        agree(lambda dtype=dtype: ((a, b), {"out": np.zeros((1, 1), dtype)}))


@pytest.mark.parametrize("args", [(), (1,), ("x",), (np.eye(2),), (np.eye(2),) * 4], ids=len)
def test_number_of_arguments(args: Any) -> None:
    agree(lambda: (args, {}))


# --- keywords -------------------------------------------------------------------------------------

A, B, V = whole("f", 2, 3), whole("f", 3, 4), whole("f", 3)
KEYWORDS = [
    {"dtype": "f8"}, {"dtype": np.float64}, {"dtype": "f2"}, {"dtype": "c8"}, {"dtype": "i4"},
    {"dtype": ">f8"}, {"dtype": "O"}, {"dtype": "g"}, {"dtype": "m8"}, {"dtype": "nonsense"},
    {"dtype": np.floating}, {"dtype": type(np.dtype("f8"))}, {"dtype": None},
    {"dtype": "i4", "casting": "unsafe"}, {"dtype": "f8", "casting": "no"},
    *({"casting": name} for name in [*ALL_CASTINGS, "foo", None, 1, [], "SAFE"]),
    *({"order": name} for name in ["Z", "CF", "", 1, []]),
    *({"subok": value} for value in [True, False, None, 2]),
    {"signature": "ff->f"}, {"signature": "dd->d"}, {"signature": (None, None, "d")},
    {"dtype": "d", "signature": "dd->d"}, {"dtype": None, "signature": "ff->f"}, {"sig": "dd->d"},
    {"axis": 0}, {"keepdims": True}, {"where": True}, {"foo": 1}, {"x1": A}, {"out": None},
    {"out": ()}, {"out": (None,)}, {"out": []}, {"out": [[0.0] * 4] * 2}, {"out": 1.0},
    {"out": ...},
]  # fmt: skip


@pytest.mark.parametrize("keywords", KEYWORDS, ids="-".join)
def test_keywords(keywords: Any) -> None:
    for args in ((A, B), (A, V), (V, V), (A.astype("d"), B), (A.astype(">f4"), B), (A, A)):
        agree(lambda args=args: (args, keywords))


AXES = [
    [(0, 1), (0, 1), (0, 1)], [(1, 0), (0, 1), (0, 1)], [(0, 1), (1, 0), (1, 0)],
    [(-2, -1), (-2, -1), (-1, -2)], [(0, 1), (0, 1)], [(0, 1), (0, 1), (0,)], [(0, 1), (0,), (0,)],
    [(0, 1), 0, 0], [0, (0, 1), 0], [0, 0], [0, 0, ()], [(0,), (-1,), ()], [0, 0, 0], [0, 1, ()],
    [(1, 2), (0, 2), (2, 0)], [(0, 2), (1, 2), (0, 2)], [(2, 1), (0, 1), (1, 2)],
    [(0, 1), (0, 1), (0, 0)], [(0, 3), (0, 1), (0, 1)], [(0, True), (0, 1), (0, 1)],
    [(0, 1.0), (0, 1), (0, 1)],
    [[0, 1], (0, 1), (0, 1)], ((0, 1), (0, 1), (0, 1)), None, "ab", [], [None] * 3,
    [(np.int64(0), 1), (0, 1), (0, 1)],
]  # fmt: skip


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_axes(axes: Any) -> None:
    for shapes in [
        ((3, 3), (3, 3)), ((3, 3), (3,)), ((3,), (3, 3)), ((3,), (3,)), ((2, 3, 4), (4, 2, 5)),
        ((3, 2, 3), (3, 3, 3)), ((2, 3, 3), (3, 3)),
    ]:  # fmt: skip
        agree_on_axes(axes, shapes)


def agree_on_axes(axes: Any, shapes: Any) -> None:
    def build(**more: Any) -> Any:
        return [whole("f", *shape) for shape in shapes], {"axes": axes, **more}

    result = agree(build)
    for order in "FA":
        agree(lambda order=order: build(order=order))
    agree(lambda: build(dtype="e"))
    if isinstance(result, np.ndarray):
        for view in LAYOUTS[:-1]:
            agree(lambda view=view: build(out=put(np.zeros_like(result), view)))


# --- out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*"efdFD", ">f4"])
def test_types_of_out(dtype: Any) -> None:
    for char, casting in itertools.product("?ilefdgFDGO", ALL_CASTINGS):
        agree(lambda char=char, casting=casting: (
            (whole(dtype, 2, 3), whole(dtype, 3, 2)),
            {"out": whole(char, 2, 2), "casting": casting},
        ))  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_layouts_of_out(shapes: Any) -> None:
    args = [whole("d", *shape) for shape in shapes]
    like = np.asarray(np.matmul(*args)) + 7
    for view in LAYOUTS if like.ndim else ["C"]:
        agree(lambda view=view: (args, {"out": put(like, view)}))
        agree(lambda view=view: ((*args, put(like, view)), {}))
        agree(lambda view=view: (args, {"out": (put(like, view),), "order": "F"}))
        agree(lambda view=view: (args, {"out": np.stack([put(like, view)] * 2)}))
    agree(lambda: (args, {"out": np.zeros((2, 2, *like.shape), "e")}))


@pytest.mark.parametrize("args", [(A, B), (A, V), (V, V), (V, B), (np.stack([A] * 3), B)], ids=[
    "2d@2d", "2d@1d", "1d@1d", "1d@2d", "3d@2d"
])  # fmt: skip
def test_shapes_of_out(args: Any) -> None:
    for shape in [(2, 2), (4,), (1, 2, 2), (0, 2, 4), (), (4, 2), (2, 1), (8,)]:
        agree(lambda shape=shape: (args, {"out": np.full(shape, 7, "f")}))


def test_out_broadcasts_an_axis_of_both_operands() -> None:
    agree(lambda: ((A[None], B[None]), {"out": np.zeros((3, 2, 4), "f")}))
    agree(lambda: ((A[None], np.stack([B] * 3)), {"out": np.zeros((1, 2, 4), "f")}))
    agree(lambda: ((A[None], B), {"out": np.zeros((2, 4), "f")}))
    agree(lambda: ((A[None, None], B), {"out": np.zeros((1, 2, 4), "f")}))


def test_out_read_only() -> None:
    def build() -> Any:
        out = np.zeros((2, 4), "f")
        out.flags.writeable = False
        return (A, B), {"out": out}

    assert isinstance(agree(build), ValueError)


@pytest.mark.parametrize("dtype", "fdFDei")
def test_out_overlaps(dtype: Any) -> None:
    def build(left: Any, right: Any, place: Any) -> Any:
        base = whole(dtype, 6, 6)
        return (base[left], base[right]), {"out": base[place]}

    every, first, last = slice(None), slice(3), slice(3, None)
    blocks = [every, (first, first), (last, first), (last, last)]
    for places in itertools.product(blocks, repeat=3):
        agree(lambda places=places: build(*places))
    agree(lambda: build(every, first, (first, slice(2, 5))))
    agree(lambda: build(every, (every, 0), (every, 1)))


@pytest.mark.parametrize("distance", [0, 1, 70, 3500])
@pytest.mark.parametrize("dtype", "fD")
def test_a_large_out_that_overlaps_is_computed_apart(dtype: str, distance: int) -> None:
    """The sizes above are too small for a device."""
    n = 90
    memory = np.random.default_rng(7).uniform(-1, 1, 2 * n * n).astype(dtype)
    a, b = memory[: n * n].reshape(n, n), np.asarray(memory[n * n :]).reshape(n, n).copy()
    for left, right in ((a, b), (b, a)):
        before = memory.copy()
        want = left @ right
        out = memory[distance : distance + n * n].reshape(n, n)
        assert clgemm.matmul(left, right, out=out) is out
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-4)
        memory[:] = before


def test_out_given_twice() -> None:
    agree(lambda: ((A, B, np.zeros((2, 4), "f")), {"out": np.zeros((2, 4), "f")}))


# --- subclasses and overrides ---------------------------------------------------------------------


class Plain(np.ndarray):
    pass


class Ranked(np.ndarray):
    __array_priority__ = 15.0


class Humble(np.ndarray):
    __array_priority__ = -5.0


class Wrapped(np.ndarray):
    """Records what it is wrapped with."""

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: Any = False) -> Any:
        result = super().__array_wrap__(array, context, return_scalar)
        if isinstance(result, Wrapped):
            function, operands, place = context
            result.seen = (function.__name__, [type(x) for x in operands], place, return_scalar)
        return result


class Unwrapped(np.ndarray):
    __array_wrap__ = None


class Old(np.ndarray):
    def __array_wrap__(
        self, array: Any, context: Any = None
    ) -> Any:  # NumPy 1 had no third argument
        return ("old", array.shape, len(context))


class Oldest(np.ndarray):
    def __array_wrap__(self, array: Any) -> Any:
        return ("oldest", array.shape)


class Duck:
    """Not an ndarray: converts itself, and wraps what comes out."""

    def __init__(self, array: Any) -> Any:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: Any = False) -> Any:
        return ("duck", array.shape, array.dtype, return_scalar)


class HumbleDuck(Duck):
    __array_priority__ = -5.0


def masked(x: Any) -> Any:
    return np.ma.array(x, mask=np.arange(x.size).reshape(x.shape) % 3 == 0)


SUBCLASSES = {
    "array": np.asarray,
    "list": np.ndarray.tolist,
    "matrix": lambda x: x.view(np.matrix),
    "masked": masked,
    "duck": Duck,
    "humble duck": HumbleDuck,
    **{
        kind.__name__: lambda x, kind=kind: x.view(kind)
        for kind in (Plain, Ranked, Humble, Wrapped, Unwrapped, Old, Oldest)
    },
}


@pytest.mark.parametrize("left", SUBCLASSES)
def test_subclasses(left: Any) -> None:
    for right in SUBCLASSES:
        agree_on_subclasses(left, right)


def agree_on_subclasses(left: Any, right: Any) -> None:
    f, g = SUBCLASSES[left], SUBCLASSES[right]
    result = agree(lambda: ((f(whole("f", 3, 3)), g(whole("f", 3, 3))), {}))
    if isinstance(result, Wrapped):
        expected = np.matmul(f(whole("f", 3, 3)), g(whole("f", 3, 3)))
        assert result.seen == expected.seen
    agree(lambda: ((f(whole("f", 3, 3)), g(whole("f", 3, 3))), {"subok": False}))
    agree(lambda: ((f(whole("f", 3)), g(whole("f", 3))), {}))
    agree(lambda: ((f(whole("f", 3, 3)), g(whole("f", 3))), {}))


@pytest.mark.parametrize("subok", [True, False])
@pytest.mark.parametrize("kind", [name for name in SUBCLASSES if "duck" not in name])
def test_out_is_a_subclass(kind: Any, subok: Any) -> None:
    square = whole("f", 3, 3)
    for args in ((square, square), (square.view(Plain), masked(square))):
        for dtype in "fe":
            agree(lambda args=args, dtype=dtype: (
                args, {"out": SUBCLASSES[kind](np.zeros((3, 3), dtype)), "subok": subok}
            ))  # fmt: skip


def test_memmap(tmp_path: Any) -> None:
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 3))
    x[...] = whole("f", 3, 3)
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(3, 3))
    agree(lambda: ((x, A.T), {}))
    agree(lambda: ((x[0], x[0]), {}))
    agree(lambda: ((x, x), {"subok": False}))
    assert matmul(x, x, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), np.asarray(x) @ np.asarray(x))


class Taker:
    """Takes ufunc calls over."""

    def __array_ufunc__(self, ufunc: Any, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        return (ufunc.__name__, method, len(inputs), sorted(kwargs), type(kwargs.get("out")))


class Refuser:
    __array_ufunc__ = None


class Decliner:
    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented


class TakerArray(np.ndarray):
    __array_ufunc__ = Taker.__array_ufunc__


@pytest.mark.parametrize("special", [Taker, Refuser, Decliner, lambda: A.view(TakerArray)], ids=[
    "taker", "refuser", "decliner", "subclass"
])  # fmt: skip
def test_overrides(special: Any) -> None:
    agree(lambda: ((special(), B), {}))
    agree(lambda: ((A, special()), {}))
    agree(lambda: ((A, special()), {"order": "F", "dtype": "d", "casting": "unsafe"}))
    agree(lambda: ((A, special()), {"axes": [(0, 1)] * 3}))
    agree(lambda: ((A, B), {"out": special()}))
    agree(lambda: ((A, B, special()), {}))
    agree(lambda: ((A, B), {"out": (special(),)}))


class Speaker:
    """Only `__array_function__`, which ufuncs do not consult."""

    def __array_function__(self, *args: Any) -> Any:
        return "spoken"


def test_array_function_is_not_consulted() -> None:
    agree(lambda: ((A, Speaker()), {}))


def test_device_arrays_are_not_mixed_with_others() -> None:
    array = pytest.importorskip("pyopencl.array", reason="pyopencl is not installed")
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        context = cl.Context(cl.get_platforms()[0].get_devices()[:1])
    except (cl.Error, IndexError):
        pytest.skip("no OpenCL device here")
    x = array.to_device(cl.CommandQueue(context), B)
    for args, kwargs in (
        ((A, x), {}), ((x, A), {}), ((A, B), {"out": x}), ((A, B, x), {}), ((x, x, A), {}),
        ((A, B), {"out": (x,)}), ((A, x), {"axes": [(0, 1)] * 3}), ((x, x), {"where": True}),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"pyopencl\.array\.Array"):
            matmul(*args, **kwargs)


# --- how it gets to the device --------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: Any) -> Any:
    """Record the operands of every driver call, and make the call."""
    seen = []
    compute = engines.compute

    def record(call: Any, by_host: Any = None) -> bool:
        _, a, b, _, c, _ = as_given(call)
        seen.append((a, b, c))
        return compute(call, by_host)

    monkeypatch.setattr(engines, "compute", record)
    # A product like one of an earlier test is no new one.
    monkeypatch.setattr(repeated, "matmul", lambda *_: None)
    return seen


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("view", ["C", "F", "transposed", "stepped", "reversed"])
def test_operands_are_not_copied(calls: Any, view: Any, rank: Any) -> None:
    batch = (2, 3)[: rank - 2]
    x, y = put(whole("f", *batch, 4, 5), view), put(whole("f", *batch, 5, 6), view)
    matmul(x, y)
    matmul(x, y[(0,) * (rank - 2)])
    matmul(x[(0,) * (rank - 2)], y)
    matmul(x, y, axes=[(-2, -1)] * 3)
    assert len(calls) >= 4
    for a, b, _ in calls:
        assert np.shares_memory(a, x)
        assert np.shares_memory(b, y)


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6), (2, 3, 4, 6), (4,)])
def test_out_is_written_in_place(calls: Any, shape: Any) -> None:
    y = whole("f", 5, *shape[1:2]) if len(shape) < 3 else whole("f", *shape[:-2], 5, 6)
    x = whole("f", 4, 5) if len(shape) < 3 else whole("f", *shape[:-2], 4, 5)
    wide = np.zeros((*shape[:-1], shape[-1] + 3), "f")
    outs = [np.zeros(shape, "f"), wide[..., 1:-2]]
    outs += [put(outs[0], "transposed")] if len(shape) > 1 else []
    for out in outs:
        calls.clear()
        assert matmul(x, y, out=out) is out
        assert len(calls) == 1
        assert np.shares_memory(calls[0][2], out)
    assert not wide[..., 0].any()
    assert not wide[..., -2:].any()
    calls.clear()
    result = matmul(x, y)
    assert np.shares_memory(calls[0][2], result)


def test_out_is_left_alone_when_the_device_fails(monkeypatch: Any) -> None:
    compute, failing = engines.compute, itertools.cycle([False, True])

    def fail(call: Any, by_host: Any = None) -> bool:
        hosted = compute(call, by_host)
        if next(failing):
            raise RuntimeError("device lost")
        return hosted

    monkeypatch.setattr(engines, "compute", fail)
    out = np.full((3, 2, 4, 6), 7, "f")
    with pytest.raises(RuntimeError, match="device lost"):
        matmul(whole("f", 3, 1, 4, 5), whole("f", 2, 5, 6), out=out)
    assert (out == 7).all()


def test_stacks_are_one_call(calls: Any) -> None:
    for shapes, rank in [
        (((5, 2, 3), (5, 3, 4)), 3), (((2, 5, 2, 3), (2, 5, 3, 4)), 3), (((5, 2, 3), (3, 4)), 2),
        (((2, 5, 2, 3), (3, 4)), 2), (((2, 3), (5, 3, 4)), 3), (((2, 5, 2, 3), (3,)), 2),
    ]:  # fmt: skip
        calls.clear()
        matmul(*(whole("d", *shape) for shape in shapes))
        assert [c.ndim for *_, c in calls] == [rank]


@pytest.mark.parametrize(("args", "kwargs", "count"), [
    ((A, B), {}, 1), ((A, V), {}, 1), ((V, V), {}, 1), ((A.astype("e"), B.astype("e")), {}, 1),
    ((A, B), {"dtype": "d"}, 1), ((A, B), {"axes": [(0, 1)] * 3}, 1), ((A, B), {"order": "F"}, 1),
    ((A.view(Plain), B), {}, 1), ((masked(A[:, :2]), A[:, :2]), {}, 1), ((A.tolist(), B), {}, 1),
    ((A.astype(">f4"), B.astype(">f4")), {}, 1), ((A.astype("i"), B), {}, 1),
    ((A.astype("i"), B.astype("i")), {}, 1), ((A.astype("O"), B.astype("O")), {}, 0),
    ((A, B.astype("g")), {}, 0), ((A[:, :0], B[:0]), {}, 0), ((A, B), {"signature": "ff->f"}, 0),
    ((A.view(TakerArray), B), {}, 0), ((A[None], B), {"out": np.zeros((2, 4), "f")}, 1),
    ((A, B), {"out": np.zeros((3, 2, 4), "e")}, 1),
], ids=range(20))  # fmt: skip
def test_what_is_computed_on_the_device(calls: Any, args: Any, kwargs: Any, count: Any) -> None:
    matmul(*args, **kwargs)
    assert len(calls) == count


@pytest.mark.parametrize(("args", "shape"), [
    ((A, A), None), ((A, B), (2, 3)), ((np.stack([A] * 3), B), (2, 2, 4)), ((A, B), (4,)),
    ((np.stack([A] * 3), B), (1, 2, 4)), ((np.stack([A] * 3), B), (2, 4)),
], ids=range(6))  # fmt: skip
def test_mistakes_do_not_reach_the_device(calls: Any, args: Any, shape: Any) -> None:
    agree(lambda: (args, {"out": None if shape is None else np.zeros(shape, "f")}))
    assert calls == []


# --- any call -------------------------------------------------------------------------------------


def test_matmul_does_not_become_a_method() -> None:
    class Case:
        matmul = clgemm.matmul

    np.testing.assert_array_equal(Case().matmul(A, B), np.matmul(A, B))
    assert Case.matmul is Case().matmul is clgemm.matmul


def test_attributes_are_those_of_the_ufunc() -> None:
    for name in ("nin", "nout", "nargs", "ntypes", "types", "identity", "signature"):
        assert getattr(matmul, name) == getattr(np.matmul, name), name
    with pytest.raises(RuntimeError):
        matmul.reduce(A)
    with pytest.raises(AttributeError):
        _ = matmul.no_such_attribute


def test_matmul_is_pickled_and_copied_by_reference() -> None:
    assert pickle.loads(pickle.dumps(matmul)) is matmul  # noqa: S301 - written one line above
    assert copy.copy(matmul) is copy.deepcopy(matmul) is matmul


@pytest.mark.parametrize("route", ["auto", "host", "device"])
def test_program_may_put_clgemm_in_numpys_place(route: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLGEMM_ROUTE", route)
    numpys = np.matmul
    monkeypatch.setattr(np, "matmul", clgemm.matmul)
    for n, dtype in itertools.product((2, 80), "fDil"):
        x = whole(dtype, n, n)
        for operands in ((x, x), (x, np.stack([x, x])), (np.stack([x, x]), np.stack([x, x]))):
            np.testing.assert_array_equal(np.matmul(*operands), numpys(*operands))
        np.testing.assert_array_equal(np.matmul(x, x, dtype="D"), numpys(x, x, dtype="D"))


@st.composite
def any_call(draw: Any) -> Any:
    """Draw a valid call: types, shapes, views, order, out."""
    size, batch_size = st.sampled_from([0, 1, 2, 3, 5, 7, 13]), st.sampled_from([1, 2, 3])
    m, n, k = draw(size), draw(size), draw(size)
    batch = draw(st.lists(batch_size, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    operands = []
    for core, vector in (((m, k), (k,)), ((k, n), (k,))):
        kept = batch[draw(st.integers(0, len(batch))) :]
        shape = [draw(st.sampled_from([1, count])) for count in kept]
        shape += vector if not shape and draw(st.booleans()) else core
        dtype = np.dtype(draw(st.sampled_from("efdFD")))
        x = rng.standard_normal([*shape, 2]).astype(dtype.char.lower())
        x = x.view(dtype)[..., 0] if dtype.kind == "c" else x[..., 0]
        view = draw(st.sampled_from(LAYOUTS))
        x = put(x, view)
        if x.ndim > 1 and draw(st.integers(0, 9)) == 0:
            x = np.broadcast_to(x[..., :1, :], x.shape)
        operands.append(x)
    kwargs = {"order": draw(st.sampled_from("KCFA"))}
    result = np.asarray(np.matmul(*operands))
    if draw(st.booleans()):
        extra = draw(st.sampled_from([(), (), (2,)]))
        dtype = np.promote_types(result.dtype, draw(st.sampled_from([result.dtype, "f", "D"])))
        kwargs["out"] = (np.full(extra + result.shape, 7, dtype), draw(st.sampled_from(LAYOUTS)))
    return operands, kwargs, result.dtype


@settings(deadline=None, max_examples=200, derandomize=True)
@given(any_call())
def test_any_call(call: Any) -> None:
    operands, kwargs, loop = call

    def build() -> Any:
        given_out = {"out": put(*kwargs["out"])} if "out" in kwargs else {}
        return operands, {**kwargs, **given_out}

    # The computation rounds once per term and once at the end: k + 2 roundings of the loop's type,
    # relative to the sum of magnitudes; four real ones each where the elements are complex.
    x, y = (np.asarray(operand, np.clongdouble) for operand in operands)
    reference, magnitude = np.matmul(x, y), np.matmul(abs(x), abs(y))
    info = np.finfo(loop)
    terms = 4 * (operands[0].shape[-1] + 2)
    agree(build, (reference, terms * info.eps * magnitude + info.smallest_subnormal))


@pytest.mark.parametrize("route", ["device", "host", "auto"])
@pytest.mark.parametrize(
    "shapes",
    [((4,), (4,)), ((3, 4), (4, 5)), ((90, 1), (1, 40)), ((9, 3, 4), (4, 5)), ((70, 70), (70, 70)),
     ((9, 30, 40), (40, 50))],
)  # fmt: skip
def test_types_of_one_size_are_told_apart(route: Any, shapes: Any) -> None:
    """A product of long and long long, which compare equal, is of long long."""
    x, y = map(np.ones, shapes)
    for _ in range(2):  # again, as it is known by then
        for codes in itertools.product("lqLQdf", repeat=2):
            a, b = x.astype(codes[0]), y.astype(codes[1])
            with clgemm.settings.using(route=route):
                found, want = clgemm.matmul(a, b), np.matmul(a, b)
            assert (type(found), found.dtype.char) == (type(want), want.dtype.char), codes


def test_types_of_one_size_are_told_apart_in_one_tall_product() -> None:
    x, y = np.ones((9, 3, 4), "l"), np.ones((4, 5), "q")
    assert host_blas.tall(x, y).dtype.char == np.matmul(x, y).dtype.char
