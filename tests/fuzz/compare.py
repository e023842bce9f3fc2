"""What has to agree, and by how much: the contract between clgemm and what it stands in for.

Where clgemm differs on purpose, the difference and its reason stand here.

* No floating-point flags: a device raises none, so RuntimeWarnings that NumPy gives for a product
  may be missing.
* Complex infinities: only their place is compared.  Their parts are what a way of multiplying
  makes of them, and BLAS' own kernels differ in it.  The same holds for every element if alpha is
  infinite or NaN: it may multiply before or after the sum, which turns infinity into NaN.
* Elements whose |A||B| comes near the largest number of the type may overflow on the way, in one
  order of the sum and not in another: they are not compared.
* Underflow: each product and sum may be off by the smallest normal number.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.exceptions import ComplexWarning

from clgemm.errors import ClgemmWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

WATCHED = (ComplexWarning, RuntimeWarning, DeprecationWarning, ClgemmWarning)
SHARED = threading.Event()
"""Set while several threads take cases."""
REFERENCES = 100_000
HEADROOM = 4  # of the largest number, within which a sum of this magnitude cannot overflow
ROUNDINGS = 8  # more than there are terms: alpha, beta, and complex parts


def _keep_types() -> None:
    """Take references to types that nobody gives back.

    With each operand that they cannot convert, SciPy's wrappers (f2py) give back one that they do
    not have: after some thousand such calls a type is freed that arrays have, and a process ends
    with a crash.
    """
    keep = ctypes.pythonapi.Py_IncRef
    keep.argtypes = [ctypes.py_object]
    for code in "fdFD":
        dtype = np.dtype(code)
        for _ in range(REFERENCES):
            keep(dtype)


_keep_types()


class DifferenceError(AssertionError):
    """The two libraries disagree."""


def require(condition: object, message: str) -> None:
    """Raise a DifferenceError unless something holds."""
    if not condition:
        raise DifferenceError(message)


@dataclass(frozen=True)
class Outcome:
    """What a call did."""

    value: Any
    error: Exception | None
    warned: frozenset[type[Warning]]


def outcome(
    function: Callable[..., Any], positional: Any, keywords: Mapping[str, Any]
) -> Outcome:  # fmt: skip
    """Call, and tell what came of it; without warnings if several threads call."""
    value, error = None, None
    with warnings.catch_warnings(record=True) if alone() else nullcontext([]) as caught:
        if alone():
            warnings.simplefilter("always")
        try:
            value = function(*positional, **keywords)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the other library must do it too
            error = raised
    kinds = (warning.category for warning in caught)
    return Outcome(value, error, frozenset(kind for kind in kinds if issubclass(kind, WATCHED)))


def alone() -> bool:
    """Tell whether warnings can be heard: Python keeps one list of filters for all threads."""
    return not SHARED.is_set()


def tell(x: Any) -> str:
    """Describe a value in a line."""
    if isinstance(x, np.ndarray):
        return f"{type(x).__name__}({x.shape}, {x.dtype}, strides {x.strides})"
    return repr(x)[:100]


# --------------------------------------------------------------------------- values


@dataclass(frozen=True)
class Bound:
    """How far a result may be from the reference."""

    size: Any
    """|alpha||A||B| + |beta||C|, of what is finite."""
    terms: int
    dtype: np.dtype[Any]
    """What is computed in."""
    rounded: np.dtype[Any] | None = None
    """What the sum is rounded to, if that is another type, before it is cast to the result's."""
    exact: bool = False
    """Whether every way of computing gives the same numbers."""
    loose: bool = False
    """Whether only the place of what is not finite can be compared, as in complex types."""
    factor: float = 1.0
    """By which an underflow may be multiplied afterwards; 2 if the reference is as inexact."""
    twice: bool = True
    """Whether the reference rounds as the result does."""


def assert_close(mine: NDArray[Any], other: NDArray[Any], bound: Bound) -> None:
    """Compare two results of floating-point products; a NaN stands where the other has one."""
    mine, other = np.asarray(mine), np.asarray(other)
    if not mine.size:
        return
    if bound.exact or mine.dtype.kind not in "fc":
        same = (mine == other) | ((mine != mine) & (other != other))  # noqa: PLR0124 - NaN
        if not same.all():
            raise DifferenceError(f"not exact{_where(~same, mine, other)}")
        return
    limits = [np.finfo(x) for x in (bound.dtype, bound.rounded or bound.dtype, mine.dtype)]
    size = np.broadcast_to(np.asarray(bound.size, np.longdouble), mine.shape)
    safe = size <= min(float(x.max) for x in limits) / HEADROOM
    with np.errstate(all="ignore"):
        _compare_places(mine, other, safe, bound)
        known = safe & np.isfinite(mine) & np.isfinite(other)
        wide = np.clongdouble if mine.dtype.kind == "c" else np.longdouble
        off = np.abs(mine.astype(wide) - other.astype(wide))
        tiny = sum(float(x.tiny) for x in limits)
        tolerance = (
            (1 + bound.twice) * (bound.terms + ROUNDINGS) * float(limits[0].eps) * size
            + (1 + bound.twice) * sum(float(x.eps) for x in limits[1:]) * np.abs(other)
            + (bound.terms + ROUNDINGS) * tiny * max(1.0, bound.factor)
        )
        wrong = known & ~(off <= tolerance)
    if wrong.any():
        raise DifferenceError(f"beyond the bound{_where(wrong, mine, other, tolerance)}")


def _compare_places(mine: Any, other: Any, safe: Any, bound: Bound) -> None:
    """Compare where NaN and infinities are."""
    if bound.loose or mine.dtype.kind == "c":
        wrong = safe & (np.isfinite(mine) != np.isfinite(other))
    else:
        wrong = safe & (np.isnan(mine) != np.isnan(other))
        infinite = np.isinf(mine) | np.isinf(other)
        wrong |= safe & infinite & ~np.isnan(mine) & (mine != other)
    if wrong.any():
        raise DifferenceError(f"NaN or infinity{_where(wrong, mine, other)}")


def _where(wrong: Any, mine: Any, other: Any, tolerance: Any = None) -> str:
    """Tell of the first wrong element."""
    place = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
    text = f" at {place} and {np.count_nonzero(wrong) - 1} more of {wrong.size}: "
    text += f"{mine[place]!r} instead of {other[place]!r}"
    return text if tolerance is None else f"{text}, tolerance {float(tolerance[place]):.3g}"


def cast(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Cast as BLAS' wrappers do, without a word."""
    with np.errstate(all="ignore"), warnings.catch_warnings() if alone() else nullcontext():
        if alone():
            warnings.simplefilter("ignore")
        return x.astype(dtype)


def magnitude(x: NDArray[Any]) -> NDArray[Any]:
    """Return absolute values, with 0 for what is not finite, in double precision."""
    with np.errstate(all="ignore"):
        found = np.abs(x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble))
        found = found.astype(np.float64)
    return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)


# --------------------------------------------------------------------------- form


def assert_same_form(mine: NDArray[Any], other: NDArray[Any]) -> None:
    """Compare types, shapes and the order in memory."""
    require(type(mine) is type(other), f"{type(mine)} instead of {type(other)}")
    require(
        (mine.dtype, mine.dtype.char, mine.shape) == (other.dtype, other.dtype.char, other.shape),
        f"{mine.dtype!r} {mine.shape} instead of {other.dtype!r} {other.shape}",
    )
    for flag in ("c_contiguous", "f_contiguous", "owndata", "writeable", "aligned"):
        same = getattr(mine.flags, flag) == getattr(other.flags, flag)
        require(same, f"{flag} is {getattr(mine.flags, flag)}")
    if other.size:
        ours, theirs = (
            [step for step, n in zip(x.strides, x.shape, strict=True) if n > 1]
            for x in (mine, other)
        )
        require(ours == theirs, f"strides {ours} instead of {theirs}")
    if isinstance(other, np.ma.MaskedArray):
        require(np.array_equal(mine.mask, other.mask), "another mask")
