"""clgemm.blas against the SciPy that is installed: what one does with a call, the other does.

Each call is made twice, once on each library, with arguments built afresh.  Either both return,
and then the results agree; or both raise, and then clgemm's exception is of SciPy's class.  No
message of another library is written down here.  What clgemm does differently on purpose has tests
of its own below.
"""

from __future__ import annotations

import copy
import ctypes
import inspect
import itertools
import pickle
import re
import sys
import threading
import time
import warnings
from array import array
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scipy.linalg.blas
from helpers import PATIENCE, as_given, pairwise
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.exceptions import ComplexWarning

import clgemm.blas
import clgemm.dispatch.engines
import clgemm.settings
from clgemm.api.arguments import refuse_device_arrays
from clgemm.errors import GemmArgumentError
from clgemm.host import scipy_blas

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arguments = Mapping[str, Any]

pytestmark = pytest.mark.contract

CODES = "sdcz"
DTYPES = {code: np.dtype(name) for code, name in zip(CODES, ("f4", "f8", "c8", "c16"), strict=True)}
# What NumPy warns of; other warnings tell of the device and are clgemm's alone.
WATCHED = (ComplexWarning, RuntimeWarning, DeprecationWarning)

every_code = pytest.mark.parametrize("code", CODES)


# --------------------------------------------------------------------------- the two libraries


def ours(code: str) -> Any:
    return getattr(clgemm.blas, f"{code}gemm")


def theirs(code: str) -> Any:
    return getattr(scipy.linalg.blas, f"{code}gemm")


@dataclass(frozen=True)
class Outcome:
    value: Any
    error: Exception | None
    warned: frozenset[type[Warning]]


def outcome(function: Callable[..., Any], *positional: Any, **keywords: Any) -> Outcome:
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*positional, **keywords)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the other library must do it too
            error = raised
    kinds = (warning.category for warning in caught)
    return Outcome(value, error, frozenset(kind for kind in kinds if issubclass(kind, WATCHED)))


def scipy_error_class() -> type[Exception]:
    """Return what SciPy raises for operands that do not match."""
    error = outcome(scipy.linalg.blas.dgemm, 1.0, np.ones((2, 3)), np.ones((2, 3))).error
    assert error is not None
    return type(error)


def assert_same_refusal(code: str, mine: Exception | None, other: Exception) -> None:
    assert mine is not None, f"SciPy raises {other!r}, clgemm returns"
    assert isinstance(mine, type(other)), f"{mine!r} is no {type(other)}"
    assert f"{code}gemm" in str(mine)
    if isinstance(other, (ValueError, scipy_error_class())):
        assert isinstance(mine, GemmArgumentError)
        assert isinstance(mine, ValueError)
        assert isinstance(mine, scipy_error_class())


def by_the_book(code: str, arguments: Arguments) -> Arguments:
    """Keep infinities and NaNs from a product with alpha = 0, which BLAS says is not computed.

    OpenBLAS' kernels for small matrices, which it has for some processors, compute it all the same.
    """
    alpha, dtype = arguments.get("alpha"), DTYPES[code]
    if not isinstance(alpha, (int, float, complex)):
        return arguments
    real = dtype.type(0).real.dtype.type
    parts = (alpha.real, alpha.imag) if dtype.kind == "c" else (alpha.real,)
    if all(part == 0 or (isinstance(part, float) and real(part) == 0) for part in parts):
        for name in "ab":
            if isinstance(arguments[name], np.ndarray) and arguments[name].dtype.kind in "fc":
                arguments[name] = np.nan_to_num(arguments[name], posinf=1, neginf=1)
    return arguments


def assert_same(code: str, make: Callable[[np.dtype[Any]], Arguments]) -> None:
    """Make one call on both libraries and compare all there is to see."""
    other = outcome(theirs(code), **by_the_book(code, make(DTYPES[code])))
    mine = outcome(ours(code), **make(DTYPES[code]))
    if other.error is not None:
        # SciPy 1.17 gives back one reference to the dtype too many where it cannot convert an
        # operand; when none is left the process crashes.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(DTYPES[code]))
        assert_same_refusal(code, mine.error, other.error)
        return
    assert mine.error is None, f"SciPy returns, clgemm raises {mine.error!r}"
    assert mine.warned == other.warned
    assert type(mine.value) is type(other.value)
    assert mine.value.dtype == other.value.dtype == DTYPES[code]
    assert mine.value.shape == other.value.shape
    assert mine.value.flags.f_contiguous
    assert mine.value.flags.writeable
    assert_same_values(mine.value, other.value)


def assert_same_for_all(make: Callable[[np.dtype[Any]], Arguments]) -> None:
    """Make one call in each precision on both libraries."""
    for code in CODES:
        assert_same(code, make)


def assert_same_values(mine: NDArray[Any], other: NDArray[Any]) -> None:
    """Compare the results of small calls whose sums have a few terms of like size.

    Of a complex infinity only the place is compared: its parts are what a way of multiplying makes
    of them.
    """
    known = np.isfinite(other) if other.dtype.kind == "c" else ~np.isnan(other)
    assert np.array_equal(known, np.isfinite(mine) if mine.dtype.kind == "c" else ~np.isnan(mine))
    eps = np.finfo(mine.dtype).eps
    np.testing.assert_allclose(mine[known], other[known], rtol=64 * eps, atol=64 * eps)


def wide(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def assert_close(
    actual: NDArray[Any],
    alpha: complex,
    a: NDArray[Any],
    b: NDArray[Any],
    beta: complex = 0.0,
    c: NDArray[Any] | None = None,
) -> None:
    """Compare alpha * a @ b + beta * c, by the error bound of a dot product of length k."""
    assert actual.shape == (a.shape[0], b.shape[1])
    expected = alpha * (wide(a) @ wide(b))
    magnitude = abs(alpha) * (abs(wide(a)) @ abs(wide(b)))
    if c is not None and beta != 0:
        expected = expected + beta * wide(c)
        magnitude = magnitude + abs(beta) * abs(wide(c))
    info = np.finfo(actual.dtype)
    bound = 4 * (a.shape[1] + 4) * info.eps * magnitude + info.tiny
    excess = abs(actual - expected) - bound
    assert excess.size == 0 or excess.max() <= 0, f"off by {excess.max()} more than the bound"


# --------------------------------------------------------------------------- arguments


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    real = rng.uniform(-1, 1, shape)
    return np.asarray(real + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else real, dtype)


def counted(shape: tuple[int, ...], dtype: Any = "f8") -> NDArray[Any]:
    """Return an array of 1, 2, 3, ... in C order."""
    return np.arange(1, 1 + int(np.prod(shape)), dtype="f8").reshape(shape).astype(dtype)


def call(t: np.dtype[Any], /, **changes: Any) -> Arguments:
    """Return the arguments of a 2 x 2 x 2 call, with changes."""
    return {"alpha": 1.0, "a": counted((2, 2), t), "b": np.eye(2, dtype=t), **changes}


class ArrayLike:
    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.values


class Sub(np.ndarray):
    pass


class Unreadable:
    pass


def unaligned(shape: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """Return ones that start one byte off, in Fortran order."""
    dtype = np.dtype(dtype)
    flat = np.zeros(int(np.prod(shape)) * dtype.itemsize + 1, np.uint8)[1:].view(dtype)
    flat[:] = 1
    return flat.reshape(shape, order="F")


ITSELF: list[Any] = []
ITSELF.append(ITSELF)

FACTORS: dict[str, Any] = {
    "float": 2.5,
    "int": 3,
    "bool": True,
    "np.bool": np.True_,
    "np.float16": np.float16(2.5),
    "np.float32": np.float32(2.5),
    "np.longdouble": np.longdouble(2.5),
    "np.int8": np.int8(-3),
    "0-d": np.array(2.5),
    "0-d object": np.array(3, dtype=object),
    "0-d text": np.array("3"),
    "0-d complex": np.array(1 + 2j),
    "Fraction": Fraction(1, 2),
    "Decimal": Decimal("2.5"),
    "list": [2, 3],
    "tuple": (2.0, 3),
    "range": range(3, 5),
    "nested list": [[3]],
    "list of text": ["4"],
    "list of None": [None],
    "list of complex": [1 + 2j],
    "1-d": np.array([2, 3]),
    "2-d": np.array([[2, 3], [4, 5]]),
    "1-d object": np.array([2, 3], dtype=object),
    "1-d complex": np.array([1 + 2j]),
    "text": "2",
    "longer text": "25",
    "bytes": b"25",
    "bytearray": bytearray(b"2"),
    "memoryview": memoryview(b"2"),
    "np.str_": np.str_("2"),
    "bad text": "x",
    "bad bytes": b"x",
    "bad np.str_": np.str_("x"),
    "no text": "",
    "complex text": "1j",
    "empty list": [],
    "empty tuple": (),
    "empty array": np.array([]),
    "empty matrix": np.array([[]]),
    "complex": 1 + 2j,
    "np.complex64": np.complex64(1 + 2j),
    "np.complex128": np.complex128(1 + 2j),
    "np.clongdouble": np.clongdouble(1 + 2j),
    "too large": 10**400,
    "list of too large": [10**400],
    "negative zero": -0.0,
    "zero": 0,
    "tiny": 1e-300,
    "None": None,
    "object": Unreadable(),
    "dict": {1: 2},
    "set": {1},
    "function": len,
    "datetime": np.datetime64("2000-01-01"),
}

TRANSPOSITIONS: dict[str, Any] = {
    "0": 0,
    "1": 1,
    "2": 2,
    "3": 3,
    "-1": -1,
    "True": True,
    "False": False,
    "np.True_": np.True_,
    "np.int8": np.int8(1),
    "np.uint64": np.uint64(2),
    "np.float32": np.float32(1.2),
    "1.7": 1.7,
    "-0.5": -0.5,
    "Fraction": Fraction(3, 2),
    "Decimal": Decimal("1.5"),
    "list": [1],
    "tuple": (1,),
    "nested list": [[1]],
    "list of text": ["1"],
    "list of None": [None],
    "0-d": np.array(1),
    "1-d": np.array([1]),
    "1-d float": np.array([1.5]),
    "2-d": np.array([[2]]),
    "digit": "1",
    "digit in bytes": b"1",
    "np.str_": np.str_("1"),
    "N": "N",
    "T": "T",
    "T in bytes": b"T",
    "fraction as text": "1.5",
    "nan": float("nan"),
    "inf": float("inf"),
    "1e10": 1e10,
    "2**31": 2**31,
    "2**63": 2**63,
    "-2**31 - 1": -(2**31) - 1,
    "complex": 1j,
    "complex 1": 1 + 2j,
    "list of complex": [1 + 0j],
    "np.complex64": np.complex64(1),
    "0-d complex": np.array(1 + 0j),
    "1-d complex": np.array([1 + 0j]),
    "empty list": [],
    "empty array": np.array([]),
    "None": None,
    "object": Unreadable(),
    "dict": {},
    "datetime": np.datetime64("2000"),
}

FLAGS: dict[str, Any] = {
    "0": 0,
    "1": 1,
    "5": 5,
    "-1": -1,
    "True": True,
    "False": False,
    "np.int64": np.int64(1),
    "0-d": np.array(1),
    "np.True_": np.True_,
    "2.5": 2.5,
    "text": "x",
    "None": None,
    "list": [1],
    "-2**31": -(2**31),
    "2**31": 2**31,
    "2**63": 2**63,
}

MATRICES: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "int8": lambda _: counted((2, 2), "i1"),
    "uint64": lambda _: counted((2, 2), "u8"),
    "bool": lambda _: np.eye(2, dtype=bool),
    "float16": lambda _: counted((2, 2), "f2"),
    "float32": lambda _: counted((2, 2), "f4"),
    "float64": lambda _: counted((2, 2), "f8"),
    "longdouble": lambda _: counted((2, 2), "g"),
    "complex64": lambda _: counted((2, 2), "c8") * np.complex64(1 + 1j),
    "complex128": lambda _: counted((2, 2), "c16") * (1 + 1j),
    "clongdouble": lambda _: counted((2, 2), "G") * (1 + 1j),
    "object": lambda _: counted((2, 2), object),
    "object of None": lambda _: np.array([[None, 1], [1, 1]]),
    "object of complex": lambda _: np.array([[1 + 2j, 1], [1, 1]], dtype=object),
    "datetime": lambda _: counted((2, 2), "i8").view("M8[D]"),
    "timedelta": lambda _: counted((2, 2), "i8").view("m8[s]"),
    "text array": lambda _: np.array([["2", "3.5"], ["1", "1e2"]]),
    "bytes array": lambda _: np.array([[b"2", b"3.5"], [b"1", b"4"]]),
    "bad text array": lambda _: np.array([["2", "x"], ["1", "4"]]),
    "void": lambda _: np.zeros((2, 2), "V8"),
    "record": lambda _: np.zeros((2, 2), "i4,i4"),
    "byte-swapped": lambda t: counted((2, 2), t.newbyteorder()),
    "too large": lambda _: np.array([[1e300, 1], [1, 1]]),
    "complex too large": lambda _: np.array([[1e300 + 1j, 1], [1, 1]]),
    "list": lambda _: [[1, 2], [3, 4]],
    "tuple": lambda _: ((1, 2), (3, 4)),
    "list of bool": lambda _: [[True, False], [False, True]],
    "list of text": lambda _: [["1", "2"], ["3", "4"]],
    "list of Fraction": lambda _: [[Fraction(1, 2), 1], [1, 1]],
    "list of complex": lambda _: [[1 + 2j, 1], [1, 1]],
    "list of None": lambda _: [[None, 1], [1, 1]],
    "list of too large": lambda _: [[10**400, 1], [1, 1]],
    "list of large": lambda _: [[1e300, 1], [1, 1]],
    "ragged list": lambda _: [[1], [1, 2]],
    "ArrayLike": lambda t: ArrayLike(counted((2, 2), t)),
    "complex ArrayLike": lambda _: ArrayLike(counted((2, 2), "c16")),
    "large ArrayLike": lambda _: ArrayLike([[1e300, 1], [1, 1]]),
    "memoryview": lambda _: memoryview(counted((2, 2))),
    "array.array": lambda _: array("d", [1, 2]),
    "bytearray": lambda _: bytearray(b"12"),
    "range": lambda _: range(1, 3),
    "masked": lambda t: np.ma.array(counted((2, 2), t), mask=[[1, 0], [0, 0]]),
    "matrix": lambda t: counted((2, 2), t).view(np.matrix),
    "Sub": lambda t: counted((2, 2), t).view(Sub),
    "read-only": lambda t: np.broadcast_to(np.ones(2, t), (2, 2)),
    "negative strides": lambda t: counted((2, 2), t)[::-1, ::-1],
    "strided": lambda t: counted((4, 6), t)[::2, 1:5:3],
    "field": lambda t: np.array([[(1, 2), (3, 4)], [(5, 6), (7, 8)]], [("x", "i1"), ("y", t)])["y"],
    "unaligned": lambda t: unaligned((2, 2), t),
    "number": lambda _: 3,
    "complex number": lambda _: 3 + 1j,
    "np.complex64": lambda _: np.complex64(3 + 1j),
    "np.float16": lambda _: np.float16(3),
    "huge number": lambda _: 10**400,
    "text": lambda _: "2",
    "bytes": lambda _: b"2",
    "bad text": lambda _: "x",
    "Decimal": lambda _: Decimal("2.5"),
    "None": lambda _: None,
    "object()": lambda _: Unreadable(),
    "dict": lambda _: {},
    "set": lambda _: {1},
    "vector": lambda t: counted((2,), t),
    "0-d": lambda t: counted((), t),
    "empty list": lambda _: [],
    "list of empty list": lambda _: [[]],
    "empty vector": lambda t: np.empty(0, t),
}

RANKS: dict[str, NDArray[Any]] = {
    "0-d": counted(()),
    "1-d": counted((4,)),
    "1-d, strided": counted((8,))[::-2],
    "3-d": counted((2, 2, 2)),
    "3-d, F": np.asfortranarray(counted((2, 2, 2))),
    "3-d, strided": counted((4, 2, 4))[::2, :, ::2],
    "3-d, 1 first": counted((1, 2, 4)),
    "3-d, 1 second": counted((2, 1, 4)),
    "3-d, 1 last": counted((2, 4, 1)),
    "3-d, two 1s": counted((1, 1, 4)),
    "3-d, three 1s": counted((1, 1, 1)),
    "4-d": counted((1, 2, 1, 4)),
    "5-d": counted((2, 1, 2, 1, 2)),
    "3-d, empty": np.zeros((2, 0, 3)),
    "3-d, empty first": np.zeros((0, 2, 3)),
    "3-d, empty and 1": np.zeros((1, 0, 1)),
}

C_SHAPES = [
    *((), (1,), (2,), (3,), (4,)),
    *itertools.product((1, 2, 3), (1, 2, 3)),
    *((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 2, 1), (2, 2, 2)),
    *((1, 2, 1, 2), (1, 3, 1, 2), (0,), (0, 2), (2, 0), (0, 0), (0, 2, 1)),
]


def by_name(table: Mapping[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", table)


# --------------------------------------------------------------------------- the contract


@by_name(FACTORS)
def test_alpha_is_read_as_scipy_reads_it(case: str) -> None:
    assert_same_for_all(lambda t: call(t, alpha=FACTORS[case]))


@by_name(FACTORS)
def test_beta_is_read_as_scipy_reads_it(case: str) -> None:
    assert_same_for_all(lambda t: call(t, beta=FACTORS[case], c=np.ones((2, 2), t)))


@by_name(TRANSPOSITIONS)
@pytest.mark.parametrize("which", ["trans_a", "trans_b"])
def test_transpositions_are_read_as_scipy_reads_them(case: str, which: str) -> None:
    changes = {which: TRANSPOSITIONS[case]}
    assert_same_for_all(lambda t: call(t, b=counted((2, 2), t), **changes))


@by_name(FLAGS)
def test_overwrite_c_is_read_as_scipy_reads_it(case: str) -> None:
    assert_same_for_all(
        lambda t: call(t, c=np.ones((2, 2), t, "F"), beta=1.0, overwrite_c=FLAGS[case])
    )
    x = np.ones((3, 3), np.float32)  # what is small and plain is read in a short way
    with clgemm.settings.using(route="auto"):
        assert_same_for_all(
            lambda t: call(t, a=x.astype(t), b=x.astype(t), overwrite_c=FLAGS[case])
        )


@by_name(MATRICES)
def test_a_is_read_as_scipy_reads_it(case: str) -> None:
    for b in (np.eye(2), np.eye(1)):
        assert_same_for_all(lambda t, b=b: call(t, a=MATRICES[case](t), b=b))


@by_name(MATRICES)
def test_b_is_read_as_scipy_reads_it(case: str) -> None:
    for a in (np.eye(2), np.eye(1)):
        assert_same_for_all(lambda t, a=a: call(t, a=a, b=MATRICES[case](t)))


@by_name(MATRICES)
def test_c_is_read_as_scipy_reads_it(case: str) -> None:
    # One column for what is read as a vector: if the shape is wrong too, it may be refused first.
    n = 1 if case in {"vector", "array.array", "bytearray", "range"} else 2
    for beta in (0.0, 1.0):
        assert_same_for_all(
            lambda t, beta=beta: call(t, b=np.ones((2, n)), c=MATRICES[case](t), beta=beta)
        )


@pytest.mark.parametrize("trans", [0, 1])
@by_name(RANKS)
def test_rank_of_operands_is_as_in_scipy(case: str, trans: int) -> None:
    for k in (0, 1, 2, 4):
        assert_same("d", lambda _, k=k: {"alpha": 1, "a": RANKS[case], "b": np.ones((k, 3))})
        assert_same(
            "d",
            lambda _, k=k: {"alpha": 1, "a": np.ones((3, k)), "b": RANKS[case], "trans_b": trans},
        )


@pytest.mark.parametrize("shape", C_SHAPES, ids=str)
def test_c_shape_is_checked_as_in_scipy(shape: tuple[int, ...]) -> None:
    laid = (np.ones(shape), np.ones(shape, order="F"), np.ones(shape).tolist())
    for m, n, beta, c in itertools.product((1, 2), (1, 2), (0.0, 2.0), laid):
        operands = {"alpha": 1, "a": np.ones((m, 1)), "b": np.ones((1, n)), "beta": beta}
        assert_same("d", lambda _, more=operands, c=c: more | {"c": copy.copy(c)})


@pytest.mark.parametrize(("m", "n", "k"), [*itertools.product((0, 2), (0, 3), (0, 4))])
def test_empty_operands_are_as_in_scipy(m: int, n: int, k: int) -> None:
    def make(t: np.dtype[Any], **changes: Any) -> Arguments:
        return {"alpha": 2.0, "a": np.ones((m, k), t), "b": np.ones((k, n), t), **changes}

    assert_same_for_all(make)
    assert_same_for_all(lambda t: make(t, beta=2.0))
    if m and n:
        for beta in (0.0, 2.0):
            assert_same_for_all(lambda t, beta=beta: make(t, beta=beta, c=counted((m, n), t)))


@every_code
def test_empty_c_of_the_right_shape_is_taken(code: str) -> None:
    t = DTYPES[code]
    c = np.empty((0, 3), t)
    assert ours(code)(1.0, np.ones((0, 2), t), np.ones((2, 3), t), 1.0, c).shape == (0, 3)


def test_empty_k_does_not_read_c_if_beta_is_zero() -> None:
    nothing = {"a": np.ones((2, 0)), "b": np.ones((0, 2))}
    assert_same_for_all(lambda t: {"alpha": 1.0, "c": np.full((2, 2), np.nan, t)} | nothing)


@pytest.mark.parametrize(
    ("a", "b", "trans_a", "trans_b"),
    [
        ((2, 3), (4, 5), 0, 0),
        ((2, 3), (2, 5), 0, 0),
        ((2, 3), (3, 5), 1, 0),
        ((2, 3), (3, 5), 0, 1),
        ((2, 3), (3, 5), 1, 2),
        ((0,), (0,), 0, 0),
    ],
)
def test_mismatch_is_refused_with_both_shapes(
    a: tuple[int, ...], b: tuple[int, ...], trans_a: int, trans_b: int
) -> None:
    def make(t: np.dtype[Any]) -> Arguments:
        flags = {"trans_a": trans_a, "trans_b": trans_b}
        return {"alpha": 1.0, "a": np.ones(a, t), "b": np.ones(b, t), **flags}

    assert_same_for_all(make)
    shapes = r"op\(a\) is \(\d, \d\) and op\(b\) is \(\d, \d\)"
    for code in CODES:
        with pytest.raises(GemmArgumentError, match=shapes):
            ours(code)(**make(DTYPES[code]))


@pytest.mark.parametrize(
    ("positional", "keywords"),
    [
        ((), {}),
        ((1.0,), {}),
        ((1.0, [[1]]), {}),
        ((), {"a": [[1]], "b": [[1]]}),
        ((1.0, [[1]], [[1]]), {"transa": 1}),
        ((1.0, [[1]], [[1]]), {"alpha": 1.0}),
        ((1.0, [[1]], [[1]], 0.0, None, 0, 0, 0, 0), {}),
    ],
)
def test_wrong_arguments_are_type_errors(
    positional: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    for routine in (routine(code) for code in CODES for routine in (theirs, ours)):
        assert isinstance(outcome(routine, *positional, **keywords).error, TypeError)


@pytest.mark.parametrize(
    "bad",
    [
        {"alpha": "x", "overwrite_c": 2.5},
        {"alpha": "x", "trans_a": []},
        {"alpha": [], "trans_a": "x"},
        {"alpha": "x", "beta": []},
        {"a": {}, "beta": []},
        {"a": {}, "b": "x"},
        {"b": "x", "trans_b": []},
        {"b": np.ones((3, 3)), "c": {}},
        {"c": np.zeros((3, 3), "i4,i4")},
    ],
    ids=str,
)
def test_the_first_of_two_errors_is_scipys(bad: dict[str, Any]) -> None:
    assert_same("d", lambda t: call(t, **bad))


# --------------------------------------------------------------------------- values


ORDERS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "inside": lambda x: np.pad(x, ((2, 1), (3, 2)))[2:-1, 3:-2],
    "inside F": lambda x: np.asfortranarray(np.pad(x, ((2, 1), (3, 2))))[2:-1, 3:-2],
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


def op(x: NDArray[Any], trans: int) -> NDArray[Any]:
    return (x, x.T, x.conj().T)[trans]


@pytest.mark.parametrize(
    ("code", "trans_a", "trans_b", "order"), pairwise(CODES, range(3), range(3), ORDERS)
)
def test_product_of_every_transposition_and_order(
    code: str, trans_a: int, trans_b: int, order: str
) -> None:
    m, n, k, t = 5, 7, 11, DTYPES[code]
    a = ORDERS[order](numbers((k, m) if trans_a else (m, k), t, 1))
    b = ORDERS[order](numbers((n, k) if trans_b else (k, n), t, 2))
    c = ORDERS[order](numbers((m, n), t, 3))
    alpha, beta = (0.5 - 2j, 1.5 + 0.25j) if t.kind == "c" else (0.5, -1.5)
    before = [x.copy() for x in (a, b, c)]
    result = ours(code)(alpha, a, b, beta, c, trans_a, trans_b)
    assert_close(result, alpha, op(a, trans_a), op(b, trans_b), beta, c)
    assert all(np.array_equal(x, y) for x, y in zip((a, b, c), before, strict=True))
    assert_close(
        ours(code)(alpha, a, b, 0, c, trans_a, trans_b), alpha, op(a, trans_a), op(b, trans_b)
    )


@st.composite
def drawn_calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    code, sizes = draw(st.sampled_from(CODES)), st.sampled_from((1, 2, 3, 7, 16, 17, 33, 65))
    m, n, k, t = draw(sizes), draw(sizes), draw(sizes | st.just(0)), DTYPES[code]
    trans_a, trans_b = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    laid = [ORDERS[draw(st.sampled_from(sorted(ORDERS)))] for _ in range(3)]
    factors = st.sampled_from((0.0, 1.0, -1.0, 0.37, *((0.5 - 1.25j,) if t.kind == "c" else ())))
    return code, {
        "alpha": draw(factors),
        "a": laid[0](numbers((k, m) if trans_a else (m, k), t, 1)),
        "b": laid[1](numbers((n, k) if trans_b else (k, n), t, 2)),
        "beta": draw(factors),
        "c": draw(st.sampled_from((None, laid[2](numbers((m, n), t, 3))))),
        "trans_a": trans_a,
        "trans_b": trans_b,
        "overwrite_c": draw(st.integers(0, 1)),
    }


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(drawn=drawn_calls())
def test_any_call_is_within_the_error_bound(drawn: tuple[str, dict[str, Any]]) -> None:
    code, arguments = drawn
    other = theirs(code)(**copy.deepcopy(arguments))
    c = None if arguments["c"] is None else arguments["c"].copy()
    result = ours(code)(**arguments)
    assert (result is arguments["c"]) == (
        bool(arguments["overwrite_c"]) and c is not None and arguments["c"].flags.f_contiguous
    )
    assert (result.shape, result.dtype) == (other.shape, other.dtype)
    op_a, op_b = (op(arguments[x], arguments[f"trans_{x}"]) for x in "ab")
    assert_close(result, arguments["alpha"], op_a, op_b, arguments["beta"], c)


@pytest.mark.parametrize("alpha", [0, 1])
@pytest.mark.parametrize("beta", [0.0, -0.0, 2.0])
def test_nan_shows_where_scipy_shows_it(alpha: float, beta: float) -> None:
    def hurt(place: str) -> Callable[[np.dtype[Any]], Arguments]:
        def make(t: np.dtype[Any]) -> Arguments:
            arguments = {"a": np.ones((3, 4), t), "b": np.ones((4, 5), t), "c": np.ones((3, 5), t)}
            arguments[place][1, 2] = np.nan
            return {"alpha": alpha, "beta": beta, **arguments}

        return make

    for place in "abc":
        assert_same_for_all(hurt(place))


@pytest.mark.parametrize("alpha", [0.0, 1.0, -2.0, np.inf, np.nan])
@pytest.mark.parametrize("beta", [0.0, 1.0, np.inf, np.nan])
def test_infinity_and_nan_propagate_as_in_scipy(alpha: float, beta: float) -> None:
    # Real precisions only: the parts of a complex infinity depend on how a product is spelt out.
    def make(t: np.dtype[Any], **changes: Any) -> Arguments:
        a = np.array([[np.inf, 1, 0], [1, 1, 1], [np.nan, 0, 0], [-np.inf, np.inf, 1]], t)
        b = np.array([[1, 0], [1, 0], [1, np.inf]], t)
        return {"alpha": alpha, "a": a, "b": b, "beta": beta, **changes}

    for code in "sd":
        assert_same(code, make)
        assert_same(code, lambda t: make(t, c=np.array([[0, 1], [np.inf, 1], [1, 1], [1, 1]], t)))


@pytest.mark.parametrize("beta", [np.nan, np.inf, -np.inf, 2.0, None])
def test_beta_without_c_multiplies_zeros(beta: Any) -> None:
    assert_same_for_all(lambda t: call(t, beta=beta))


@pytest.mark.parametrize("code", "cz")
def test_complex_infinite_beta_without_c_is_nan(code: str) -> None:
    assert_same(code, lambda t: call(t, beta=complex(0, np.inf)))


def test_factors_are_rounded_before_they_are_tested_for_zero() -> None:
    nan = np.full((2, 2), np.nan)
    for tiny in (1e-50, 1e-50j):
        code = "c" if isinstance(tiny, complex) else "s"
        assert_same(code, lambda t, tiny=tiny: call(t, beta=tiny, c=nan.astype(t)))
        assert_same(code, lambda t, tiny=tiny: call(t, alpha=tiny, a=nan.astype(t)))
    assert_same("s", lambda t: call(t, alpha=1e300))
    assert_same("d", lambda t: call(t, alpha=1e300))


# --------------------------------------------------------------------------- result and c


C_ARRAYS: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "F": lambda t: np.ones((2, 2), t, "F"),
    "C": lambda t: np.ones((2, 2), t),
    "transpose of C": lambda t: np.ones((2, 2), t).T,
    "F columns": lambda t: np.ones((2, 6), t, "F")[:, 1:3],
    "F rows": lambda t: np.ones((6, 2), t, "F")[1:3],
    "reversed F": lambda t: np.ones((2, 2), t, "F")[:, ::-1],
    "unaligned": lambda t: unaligned((2, 2), t),
    "byte-swapped": lambda t: np.ones((2, 2), t.newbyteorder(), "F"),
    "longdouble": lambda _: np.ones((2, 2), "g", "F"),
    "int64": lambda _: np.ones((2, 2), "i8", "F"),
    "float16": lambda _: np.ones((2, 2), "f2", "F"),
    "Sub": lambda t: np.ones((2, 2), t, "F").view(Sub),
    "matrix": lambda t: np.ones((2, 2), t, "F").view(np.matrix),
    "C matrix": lambda t: np.ones((2, 2), t).view(np.matrix),
    "masked": lambda t: np.ma.array(np.ones((2, 2), t, "F"), mask=[[1, 0], [0, 0]]),
    "3-d": lambda t: np.ones((2, 1, 2), t, "F"),
    "3-d, C": lambda t: np.ones((2, 1, 2), t),
    "3-d, 1 last": lambda t: np.ones((2, 2, 1), t, "F"),
    "list": lambda _: [[1, 1], [1, 1]],
}


@by_name(C_ARRAYS)
def test_result_is_c_exactly_where_it_is_in_scipy(case: str) -> None:
    for code, overwrite_c, beta in itertools.product(CODES, (0, 1), (0.0, 1.0)):
        assert_same_result(code, case, overwrite_c, beta)


def assert_same_result(code: str, case: str, overwrite_c: int, beta: float) -> None:
    results = []
    for routine in (theirs(code), ours(code)):
        c = C_ARRAYS[case](DTYPES[code])
        arguments = call(DTYPES[code], c=c, beta=beta, overwrite_c=overwrite_c)
        results.append((routine(**arguments), c))
    (other, their_c), (mine, our_c) = results
    assert (mine is our_c) == (other is their_c)
    assert type(mine) is type(other)
    assert mine.shape == other.shape
    assert mine.flags.f_contiguous
    assert_same_values(np.asarray(mine), np.asarray(other))
    assert np.array_equal(np.asarray(our_c), np.asarray(their_c))


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("kept", [False, True])
def test_copy_of_c_is_of_its_class_where_scipys_are(
    kept: bool, beta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scipy_blas, "copies_keep_class", lambda: kept)
    masked = np.ma.array(np.ones((2, 2), np.float32), mask=[[1, 0], [0, 0]])
    flat = np.ones((2, 1, 2), np.float32).view(Sub)
    for c in (masked, flat, np.ones((2, 2), int).view(Sub)):
        before = c.copy()
        mine = ours("s")(**call(np.float32, c=c, beta=beta))
        assert type(mine) is (type(c) if kept else np.ndarray)
        assert (mine.shape, mine.dtype) == (c.shape, np.float32)
        assert mine.flags.f_contiguous
        np.testing.assert_array_equal(np.asarray(c), np.asarray(before))
        want = theirs("s")(**call(np.float32, c=np.asarray(c), beta=beta))
        np.testing.assert_array_equal(np.asarray(mine), want)
    if kept:
        mine = ours("s")(**call(np.float32, c=masked, beta=beta))
        np.testing.assert_array_equal(mine.mask, masked.mask)


@every_code
@pytest.mark.parametrize(("shape", "m", "n"), [((), 1, 1), ((2,), 2, 1), ((1, 2), 1, 2)])
def test_result_is_a_c_of_lower_rank_or_one_row(
    code: str, shape: tuple[int, ...], m: int, n: int
) -> None:
    t = DTYPES[code]
    c = np.ones(shape, t)
    result = ours(code)(1.0, np.ones((m, 3), t), np.ones((3, n), t), 1.0, c, overwrite_c=1)
    assert result is c
    assert (c == 4).all()


def test_result_is_a_memmap_c(tmp_path: Any) -> None:
    c = np.memmap(tmp_path / "c", "f8", "w+", shape=(2, 2), order="F")
    assert clgemm.blas.dgemm(1.0, np.eye(2), np.eye(2), c=c, overwrite_c=1) is c
    assert np.array_equal(c, np.eye(2))


@every_code
@pytest.mark.parametrize("order", ORDERS)
def test_result_is_a_new_fortran_array(code: str, order: str) -> None:
    t = DTYPES[code]
    a = ORDERS[order](numbers((3, 3), t))
    for c in (None, a):
        for beta in (0.0, 1.0):
            result = ours(code)(1.0, a, a, beta, c)
            assert type(result) is np.ndarray
            assert result.flags.f_contiguous
            assert result.flags.owndata
            assert not np.shares_memory(result, a)


# --------------------------------------------------------------------------- warnings


@pytest.mark.parametrize("code", "sd")
@pytest.mark.parametrize(
    "changes",
    [
        {"a": np.ones((2, 2), complex)},
        {"b": np.ones((2, 2), np.complex64)},
        {"c": np.ones((2, 2), complex)},
        {"alpha": np.complex64(1)},
        {"beta": np.complex128(1), "c": [[1, 1], [1, 1]]},
        {"trans_a": np.complex64(1)},
        {"a": np.complex64(1), "b": [[1]]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_complex_warning_names_the_line_of_the_caller(code: str, changes: dict[str, Any]) -> None:
    arguments = call(DTYPES[code], **changes)
    with pytest.warns(ComplexWarning) as caught:
        ours(code)(**arguments)
    assert [warning.filename for warning in caught if warning.category is ComplexWarning] == [
        __file__
    ]


def test_overflow_of_a_cast_obeys_errstate() -> None:
    large = np.full((2, 2), 1e300)
    for routine in (scipy.linalg.blas.sgemm, clgemm.blas.sgemm):
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            routine(1.0, large, large)
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            assert np.isposinf(routine(1.0, large, np.ones((2, 1)))).all()


# --------------------------------------------------------------------------- on purpose


@every_code
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_read_only_c_is_never_written(code: str, beta: float) -> None:
    t = DTYPES[code]
    c = np.ones((2, 2), t, "F")
    c.flags.writeable = False
    result = ours(code)(1.0, np.eye(2), np.eye(2), beta, c, overwrite_c=1)
    assert result is not c
    assert (c == 1).all()
    assert np.array_equal(result, np.eye(2) + beta)
    assert result.flags.writeable


def test_read_only_memmap_c_is_never_written(tmp_path: Any) -> None:
    (tmp_path / "c").write_bytes(np.ones(4).tobytes())
    c = np.memmap(tmp_path / "c", "f8", "r", shape=(2, 2), order="F")
    result = clgemm.blas.dgemm(1.0, np.eye(2), np.eye(2), 1.0, c, overwrite_c=1)
    assert np.array_equal(result, np.eye(2) + 1)
    assert (c == 1).all()


@pytest.mark.parametrize(
    ("code", "beta", "shared"), pairwise(CODES, [0.0, 0.5], ["a", "b", "both", "part of a"])
)
def test_c_that_overlaps_an_operand_gives_the_right_answer(
    code: str, beta: float, shared: str
) -> None:
    memory = np.asfortranarray(numbers((6, 9), DTYPES[code]))
    c = memory[:, :6]
    other = np.asfortranarray(numbers((6, 6), DTYPES[code], 1))
    a = {"a": c, "both": c, "part of a": memory[:, 2:8]}.get(shared, other)
    b = c if shared in {"b", "both"} else other
    before = memory.copy()
    result = ours(code)(1.0, a, b, beta, c, overwrite_c=1)
    assert np.array_equal(memory, before)
    assert_close(result, 1.0, a, b, beta, c)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, ">f8"])
def test_c_that_overlaps_an_operand_of_another_type_is_not_written(dtype: Any) -> None:
    """What is multiplied is a copy, but the operand itself is the caller's."""
    memory = np.zeros(8, "f8")
    c = memory[:4].reshape(2, 2, order="F")
    a = memory.view(dtype)[:4].reshape(2, 2)
    a[...] = 3
    before = memory.copy()
    result = clgemm.blas.dgemm(1.0, a, np.eye(2), c=c, overwrite_c=1)
    assert result is not c
    assert np.array_equal(memory, before)
    assert (result == 3).all()


def test_c_between_the_columns_of_an_operand_is_overwritten() -> None:
    memory = np.asfortranarray(numbers((4, 8), "f8"))
    a, c = memory[:, ::2], memory[:, 1:2]
    b = numbers((4, 1), "f8", 1)
    assert clgemm.blas.dgemm(1.0, a, b, c=c, overwrite_c=1) is c
    assert_close(c, 1.0, a, b)


@pytest.mark.parametrize("wrap", [memoryview, ArrayLike])
def test_c_behind_another_object_is_never_written(wrap: Callable[[Any], Any]) -> None:
    c = np.ones((2, 2), order="F")
    result = clgemm.blas.dgemm(1.0, np.eye(2), np.eye(2), 1.0, wrap(c))
    assert np.array_equal(result, np.eye(2) + 1)
    assert (c == 1).all()


def test_list_that_contains_itself_is_refused() -> None:
    # SciPy's wrapper recurs without end here.
    with pytest.raises(TypeError, match="sgemm: alpha"):
        clgemm.blas.sgemm(ITSELF, [[1]], [[1]])
    with pytest.raises(TypeError, match="zgemm: beta"):
        clgemm.blas.zgemm(1.0, [[1]], [[1]], ITSELF)


def test_other_threads_run_during_a_call() -> None:
    """Threads change here only if one of them lets the others run, as a call does."""
    a, ticks, during, done = np.ones((500, 500)), 0, 0, threading.Event()
    end, interval = time.monotonic() + PATIENCE, sys.getswitchinterval()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    clgemm.blas.dgemm(1.0, a, a)
    sys.setswitchinterval(2 * PATIENCE)
    try:
        thread.start()
        while during < 100:
            assert time.monotonic() < end, "no other thread runs during a call"
            before = ticks
            clgemm.blas.dgemm(1.0, a, a)
            during += ticks - before
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join()


FAILING: dict[str, Callable[[np.dtype[Any]], Arguments]] = {
    "mismatch": lambda t: {"a": np.ones((2, 3), t, "F")},
    "c of another shape": lambda t: {"c": np.ones((3, 2), t, "F")},
    "c of four axes": lambda t: {"c": np.ones((2, 2, 2, 2), t, "F")},
    "alpha": lambda _: {"alpha": "x"},
    "beta": lambda _: {"beta": []},
    "trans_a": lambda _: {"trans_a": 3},
    "trans_b": lambda _: {"trans_b": "T"},
    "overwrite_c": lambda _: {"overwrite_c": 1.5},
    "a": lambda _: {"a": [["x"]]},
    "b": lambda _: {"b": [[1], [1, 2]]},
}


@by_name(FAILING)
def test_failed_call_changes_no_array(case: str) -> None:
    for code, t in DTYPES.items():
        arguments = {
            **call(t, a=np.ones((2, 2), t, "F"), b=np.ones((2, 2), t, "F")),
            "beta": 1.0,
            "c": np.ones((2, 2), t, "F"),
            "overwrite_c": 1,
            **FAILING[case](t),
        }
        with pytest.raises((TypeError, ValueError, IndexError), match=f"{code}gemm"):
            ours(code)(**arguments)
        arrays = [x for x in arguments.values() if isinstance(x, np.ndarray)]
        assert all((x == 1).all() for x in arrays)


# --------------------------------------------------------------------------- no copies


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return a list that fills with what the routine passes on."""
    calls: list[tuple[Any, ...]] = []
    real = clgemm.dispatch.engines.compute

    def spy(call: Any) -> bool:
        calls.append(as_given(call))
        return real(call)

    monkeypatch.setattr(clgemm.dispatch.engines, "compute", spy)
    return calls


@pytest.mark.parametrize(("code", "order", "trans"), pairwise(CODES, ORDERS, range(3)))
def test_operands_are_passed_on_where_they_lie(
    passed: list[tuple[Any, ...]], code: str, order: str, trans: int
) -> None:
    a = ORDERS[order](numbers((4, 4), DTYPES[code], 1))
    b = ORDERS[order](numbers((4, 4), DTYPES[code], 2))
    result = ours(code)(1.0, a, b, trans_a=trans, trans_b=trans)
    (_, seen_a, seen_b, _, target, flags) = passed[0]
    for given_array, seen in ((a, seen_a), (b, seen_b)):
        expected = given_array.T if trans else given_array
        assert type(seen) is np.ndarray
        assert seen.strides == expected.strides
        assert seen.ctypes.data == expected.ctypes.data
    assert target is result
    conjugated = trans == 2 and DTYPES[code].kind == "c"
    assert flags == {"conj_a": conjugated, "conj_b": conjugated}


def test_subclasses_and_vectors_are_passed_on_where_they_lie(
    passed: list[tuple[Any, ...]], tmp_path: Any
) -> None:
    a = np.memmap(tmp_path / "a", "f8", "w+", shape=(4, 3))
    b = np.ma.array(np.ones(6)[::2])
    clgemm.blas.dgemm(1.0, a, b)
    (_, seen_a, seen_b, *_) = passed[0]
    assert type(seen_a) is type(seen_b) is np.ndarray
    assert seen_a.ctypes.data == a.ctypes.data
    assert seen_b.ctypes.data == b.data.ctypes.data
    assert (seen_b.shape, seen_b.strides[0]) == ((3, 1), 16)


def test_c_is_passed_on_where_it_lies(passed: list[tuple[Any, ...]]) -> None:
    c = np.ones((2, 6), order="F")[:, 1:3]
    clgemm.blas.dgemm(1.0, np.eye(2), np.eye(2), 1.0, c, overwrite_c=1)
    assert passed[0][4].ctypes.data == c.ctypes.data
    column = np.ones(2)
    clgemm.blas.dgemm(1.0, np.eye(2), np.ones((2, 1)), 1.0, column, overwrite_c=1)
    assert passed[1][4].shape == (2, 1)
    assert passed[1][4].ctypes.data == column.ctypes.data


def test_unaligned_operands_are_copied_once(passed: list[tuple[Any, ...]]) -> None:
    a, b = unaligned((2, 2), "f8"), unaligned((2, 2), "f8").view(Sub)
    clgemm.blas.dgemm(1.0, a, b, c=unaligned((2, 2), "f8"), overwrite_c=1)
    assert all(array.flags.aligned for array in passed[0] if isinstance(array, np.ndarray))


def test_beta_without_c_is_passed_on_as_zero(passed: list[tuple[Any, ...]]) -> None:
    clgemm.blas.dgemm(1.0, np.eye(2), np.eye(2), 2.0)
    assert passed[0][3] == 0


# --------------------------------------------------------------------------- the functions


@every_code
def test_signature_is_what_scipy_documents(code: str) -> None:
    documented = theirs(code).__doc__ or ""
    first = re.match(r"c = \w+\(([\w,\[\]]+)\)", documented)
    defaults = dict(re.findall(r"^(\w+) : .*optional\n\s+Default: (.+)$", documented, re.MULTILINE))
    if first is None or not defaults:  # as f2py does, which differs from build to build
        pytest.skip("the installed SciPy documents its signature in another form")
    names = re.findall(r"\w+", first.group(1))
    parameters = inspect.signature(ours(code)).parameters
    assert list(parameters) == names
    assert defaults.keys() == {"beta", "overwrite_c", "trans_a", "trans_b"}
    for name, text in defaults.items():
        assert parameters[name].default == float(text.strip("()").split(",")[0])
    assert parameters["c"].default is None
    assert all(parameters[name].default is inspect.Parameter.empty for name in names[:3])


@every_code
def test_positional_order_is_scipys(code: str) -> None:
    t = DTYPES[code]
    positional = (2.0, counted((3, 2), t), counted((4, 3), t), 3.0, np.ones((2, 4), t), 1, 2, 0)
    other, mine = theirs(code)(*positional), ours(code)(*positional)
    assert_same_values(mine, other)


@every_code
def test_routine_has_the_attributes_of_scipys(code: str) -> None:
    other, mine = scipy.linalg.blas.get_blas_funcs("gemm", dtype=DTYPES[code]), ours(code)
    for name in ("typecode", "prefix", "dtype", "int_dtype"):
        assert getattr(mine, name) == getattr(other, name), name
    assert mine.module_name == mine.__module__ == "clgemm.blas"
    assert mine.__name__ == mine.__qualname__ == f"{code}gemm"
    assert all(word in mine.__doc__ for word in ("Parameters", "Returns", f"{code}gemm"))


@every_code
def test_routine_is_pickled_and_copied_by_reference(code: str) -> None:
    routine = ours(code)
    assert pickle.loads(pickle.dumps(routine)) is routine  # noqa: S301 - written one line above
    assert copy.copy(routine) is copy.deepcopy(routine) is routine


def test_one_path_serves_the_four_precisions() -> None:
    assert len({ours(code).__wrapped__.__code__ for code in CODES}) == 1


@every_code
def test_routine_does_not_become_a_method(code: str) -> None:
    class Case:
        mine, other = ours(code), theirs(code)

    a, b = counted((2, 3), DTYPES[code]), counted((3, 4), DTYPES[code])
    assert_same_values(Case().mine(1.0, a, b), Case().other(1.0, a, b))
    assert Case.mine is Case().mine is ours(code)


@every_code
@pytest.mark.parametrize("route", ["auto", "host", "device"])
def test_program_may_put_clgemm_in_scipys_place(
    code: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLGEMM_ROUTE", route)
    name, scipys = f"{code}gemm", theirs(code)
    monkeypatch.setattr(scipy.linalg.blas, name, ours(code))
    monkeypatch.setattr(scipy.linalg.blas, "get_blas_funcs", clgemm.blas.get_blas_funcs)
    for n in (2, 80):  # one small product, and one that is not
        a, c = counted((n, n), DTYPES[code]), counted((n, n), DTYPES[code])
        for keywords in ({}, {"beta": 2.0, "c": c, "trans_a": 2}):
            mine = getattr(scipy.linalg.blas, name)(1.0, a, a, **keywords)
            assert_same_values(mine, scipys(1.0, a, a, **keywords))
    assert scipy.linalg.blas.get_blas_funcs("gemm", dtype=DTYPES[code]) is ours(code)


@pytest.mark.parametrize("place", ["alpha", "a", "b", "beta", "c"])
@pytest.mark.parametrize("code", "sz")
def test_device_array_is_refused(code: str, place: str) -> None:
    module = pytest.importorskip("pyopencl.array", reason="pyopencl is not installed")
    device_array = object.__new__(module.Array)
    with pytest.raises(TypeError, match=rf"{code}gemm.*{place}.*\.get\(\)"):
        ours(code)(**call(DTYPES[code], **{place: device_array}))


def test_refusing_device_arrays_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pyopencl.array", raising=False)
    refuse_device_arrays("sgemm", np.eye(2), [[1.0]], None)
    assert "pyopencl.array" not in sys.modules


# --------------------------------------------------------------------------- get_blas_funcs


KINDS = ("f2", "f4", "f8", "c8", "c16", "i4", "g", "O")
NAMES: list[Any] = ["gemm", "gemv", ("gemm",), ["gemm", "gemv", "gemm"], ("axpy", "gemm"), [], ()]


def assert_same_functions(*positional: Any, **keywords: Any) -> None:
    """Compare the functions: ours for gemm, and SciPy's own for any other name."""
    other = outcome(scipy.linalg.blas.get_blas_funcs, *positional, **keywords)
    mine = outcome(clgemm.blas.get_blas_funcs, *positional, **keywords)
    assert type(mine.error) is type(other.error)
    if other.error is not None:
        return
    assert type(mine.value) is type(other.value) or callable(mine.value)
    names = positional[0]
    if isinstance(names, str):
        pairs = [(names, mine.value, other.value)]
    else:
        pairs = list(zip(names, mine.value, other.value, strict=True))
    for name, function, reference in pairs:
        assert function is (ours(reference.typecode) if name == "gemm" else reference)
        assert (function.typecode, function.dtype) == (reference.typecode, reference.dtype)
        assert function.int_dtype == reference.int_dtype


@pytest.mark.parametrize("names", NAMES, ids=str)
def test_get_blas_funcs_by_dtype(names: Any) -> None:
    for kind in KINDS:
        assert_same_functions(names, dtype=kind)
        assert_same_functions(names, (), np.dtype(kind))


@pytest.mark.parametrize("first", KINDS)
def test_get_blas_funcs_by_arrays(first: str) -> None:
    for second, order in itertools.product(KINDS, "CF"):
        arrays = [np.ones((2, 2), kind, order) for kind in (first, second)]
        assert_same_functions("gemm", arrays[:1])
        assert_same_functions(("gemm", "gemv"), arrays)
        assert_same_functions(["gemm"], tuple(arrays), dtype="f4")


@pytest.mark.parametrize(
    ("positional", "keywords"),
    [
        (("no_such_routine",), {}),
        ((("gemm", "no_such_routine"),), {}),
        (("gemm",), {"dtype": "no such type"}),
        (("gemm",), {"ilp64": "preferred"}),
        (("gemm",), {"ilp64": "sometimes"}),
        (("gemm",), {"arrays": 3}),
        ((3,), {}),
        ((), {}),
        (("gemm", (), None, False), {}),
    ],
)
def test_get_blas_funcs_refuses_what_scipy_refuses(
    positional: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    if keywords.get("ilp64") == "preferred":
        mine = clgemm.blas.get_blas_funcs(*positional, **keywords)
        assert mine is clgemm.blas.dgemm
        return
    assert_same_functions(*positional, **keywords)


def test_get_blas_funcs_of_64_bit_integers() -> None:
    other = outcome(scipy.linalg.blas.get_blas_funcs, "gemm", ilp64=True)
    mine = outcome(clgemm.blas.get_blas_funcs, "gemm", ilp64=True)
    assert type(mine.error) is type(other.error)
    assert mine.value is (None if other.error else clgemm.blas.dgemm)


def test_get_blas_funcs_has_the_signature_of_scipys() -> None:
    def plain(function: Any) -> list[tuple[str, Any]]:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        return [(parameter.name, parameter.default) for parameter in parameters]

    assert plain(clgemm.blas.get_blas_funcs) == plain(scipy.linalg.blas.get_blas_funcs)
