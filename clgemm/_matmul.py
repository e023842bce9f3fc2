"""numpy.matmul on a device: the rules of the ufunc here, the arithmetic in the driver.

What a device does not help with goes to NumPy itself: types without a BLAS precision, empty
products, operands that override `__array_ufunc__`, rare keywords, and every mistake.  The error
for a mistake is then NumPy's own, in class and in words, whatever version is installed.
"""

from __future__ import annotations

import contextlib
import math
import operator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import driver, stacks
from clgemm.operands import refuse_device_arrays
from clgemm.problem import BY_DTYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)
_ORDERS = MappingProxyType({None: "K"} | {letter: letter.upper() for letter in "KCFAkcfa"})
_DEFAULTS = MappingProxyType(
    {"out": None, "casting": "same_kind", "order": "K", "dtype": None, "subok": True}
)
_CASTINGS = frozenset({"no", "equiv", "safe", "same_kind", "unsafe"})


class _NotOurs(ValueError):  # noqa: N818 - it is not an error: NumPy answers the call instead
    """The call is NumPy's to answer, with a result or with its own error."""


class _Call(NamedTuple):
    """A call that has passed every check."""

    a: NDArray[Any]  # (..., m, k), of the type the device computes in
    b: NDArray[Any]  # (..., k, n), of the same type
    c: NDArray[Any]  # the result seen as (..., m, n)
    shape: tuple[int, ...]  # of a @ b; c may have more batch axes
    loop: np.dtype[Any]  # what NumPy computes in, and rounds to before it casts to c's type
    result: NDArray[Any]  # what the call returns before a subclass wraps it


def matmul(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    **more: Any,
) -> Any:
    """Matrix product of two arrays, as `numpy.matmul` defines it.

    Parameters
    ----------
    x1, x2 : array_like
        Operands of one axis or more; batch axes broadcast.  Views are used where they lie: only
        another type, byte order or alignment costs a copy on the host.
    out : ndarray or tuple of one ndarray, optional
        Where the result is stored, and what is returned.  It is computed in place if type, layout
        and memory allow, in a temporary otherwise.
    casting, order, dtype, subok
        As for any ufunc.
    **more
        `axes` is honoured on the device.  With any other keyword the call is NumPy's.

    Returns
    -------
    ndarray or scalar
        A scalar if both operands have one axis; a subclass where ufuncs return one.

    Raises
    ------
    TypeError
        If an operand is a `pyopencl.array.Array`, and where `numpy.matmul` does.
    ValueError
        Where `numpy.matmul` does.

    Notes
    -----
    *Types.* float32, float64, complex64 and complex128 products are computed on the device, in
    that type.  float16 products are computed in float32 and rounded once, at the end.  bool,
    integer, long double and object products are computed by NumPy.

    *Floating-point errors.* A device raises no flags, so `numpy.errstate` does not see an overflow
    or an invalid operation in the product: infinities and NaNs appear without a warning.

    *Symmetry.* `numpy.matmul` makes ``A @ A.T`` exactly symmetric.  Here it need not be, least of
    all for complex types, where a kernel may add the parts of a product in another order.

    Examples
    --------
    >>> matmul(np.eye(2), [[1.0, 2.0], [3.0, 4.0]])
    array([[1., 2.],
           [3., 4.]])
    """
    values = zip(_DEFAULTS.items(), (out, casting, order, dtype, subok), strict=True)
    given = {name: value for (name, default), value in values if value is not default} | more
    if not given and (plain := _plain(x1, x2)) is not None:
        return plain
    if type(out) is tuple and len(out) == 1:
        (out,) = out
    refuse_device_arrays("matmul", x1, x2, out)
    call = None
    if not (any(map(_overrides, (x1, x2, out))) or more.keys() - {"axes"}):
        # Whatever is wrong, NumPy raises it again below, and for its own reason.
        with contextlib.suppress(TypeError, ValueError):
            _require(isinstance(subok, bool))
            call = _check(x1, x2, out, casting, order, dtype, more)
    if call is None:
        # An override is shown the keywords of the call, hence only those that the user gave.
        return np.matmul(x1, x2, **given)
    _compute(call)
    return _wrapped(call.result, x1, x2, out, subok)


def _plain(a: Any, b: Any) -> NDArray[Any] | None:
    """Multiply two plain matrices of one precision; None if that is not what they are."""
    if not (type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == 2 == b.ndim):
        return None
    (m, k), (rows, n), dtype = a.shape, b.shape, a.dtype
    if not (k == rows and dtype == b.dtype and dtype in BY_DTYPE and m and n and k):
        return None
    if not (a.flags.aligned and b.flags.aligned):
        return None
    c = np.empty((m, n), dtype)
    driver.gemm(1.0, a, b, 0.0, c)
    return c


def _require(condition: object) -> None:
    """Leave the call to NumPy unless the condition holds."""
    if not condition:
        raise _NotOurs


def _overrides(x: object) -> bool:
    """Say whether the type of an operand takes ufunc calls over, or refuses them."""
    default = np.ndarray.__array_ufunc__
    return getattr(type(x), "__array_ufunc__", default) is not default


def _check(
    x1: Any, x2: Any, out: Any, casting: Any, order: Any, dtype: Any, more: Mapping[str, Any]
) -> _Call:
    """Prepare a call; TypeError or ValueError if it is NumPy's to answer."""
    x, y = np.asarray(x1), np.asarray(x2)
    _require(x.ndim and y.ndim and casting in _CASTINGS and order in _ORDERS)
    _require(out is None or (isinstance(out, np.ndarray) and out.flags.writeable))
    loop = _loop_dtype(x, y, out, dtype, casting)
    computed = _SINGLE if loop == _HALF else loop
    _require(computed in BY_DTYPE)
    order = _ORDERS[order]
    if order == "A":
        order = "F" if x.flags.f_contiguous and y.flags.f_contiguous else "C"
    home = None  # of the core axes of the result, if they are not the last ones
    if "axes" in more:
        *sources, home = _core_axes(more["axes"], (min(x.ndim, 2), min(y.ndim, 2)))
        x, y = (np.moveaxis(z, p, range(-len(p), 0)) for z, p in zip((x, y), sources, strict=True))
    has_rows, has_columns = x.ndim > 1, y.ndim > 1
    a, b = (x if has_rows else x[None]), (y if has_columns else y[:, None])
    (m, k), (rows, n) = a.shape[-2:], b.shape[-2:]
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    _require(k == rows and math.prod((m, n, k, *batch)))
    core = (m,) * has_rows + (n,) * has_columns
    if out is None:
        result = stacks.empty((a, b), batch + core, loop, order, home)
    else:
        result = np.asarray(out)
    c = result if home is None else np.moveaxis(result, home, range(-len(core), 0))
    outer = c.shape[: c.ndim - len(core)]
    _require(c.size and c.shape == outer + core and _broadcast(batch, outer) == outer)
    c = c[(..., slice(None) if has_rows else None, slice(None) if has_columns else None)]
    a, b = _cast(a, loop, computed), _cast(b, loop, computed)
    return _Call(a, b, c, (*batch, m, n), loop, result)


def _loop_dtype(x: NDArray[Any], y: NDArray[Any], out: Any, dtype: Any, casting: Any) -> Any:
    """Return the type NumPy would compute in, having checked every cast."""
    target = None if out is None else out.dtype
    if dtype is None and x.dtype == y.dtype and (target is None or target == x.dtype):
        return x.dtype
    signature = None if dtype is None else (None, None, dtype)
    operands = (x.dtype, y.dtype, target)
    return np.matmul.resolve_dtypes(operands, signature=signature, casting=casting)[-1]


def _core_axes(axes: Any, counts: tuple[int, int]) -> list[tuple[int, ...]]:
    """Return the core axes of x1, x2 and the result, as tuples; their range is not checked."""
    wanted = (*counts, sum(counts) - 2)
    _require(isinstance(axes, list))
    entries = [*axes, ()] if len(axes) == 2 and not wanted[2] else axes
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in entries]
    _require([len(entry) for entry in entries] == list(wanted))
    _require(not any(isinstance(place, bool) for entry in entries for place in entry))
    return [tuple(map(operator.index, entry)) for entry in entries]


def _broadcast(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast two batch shapes, at little cost where there is nothing to do."""
    return p if p == q or not q else q if not p else np.broadcast_shapes(p, q)


def _cast(x: NDArray[Any], loop: np.dtype[Any], computed: np.dtype[Any]) -> NDArray[Any]:
    """Convert an operand as NumPy would, and on to the type of the device if that is another."""
    x = x.astype(loop, copy=False).astype(computed, copy=False)
    return x if x.flags.aligned else x.copy()


def _compute(call: _Call) -> None:
    """Fill the result: where it lies if the driver can, through a temporary otherwise."""
    a, b, c, shape, loop, _ = call
    problems = []
    if c.dtype == a.dtype and c.shape == shape and c.flags.aligned:
        overlap = np.may_share_memory(c, a) or np.may_share_memory(c, b)
        problems = [] if overlap else stacks.fold(a, b, c)
    filled = c
    if not (problems and stacks.is_direct(problems[0][2])):
        filled = np.empty(shape, a.dtype)
        problems = stacks.fold(a, b, filled)
    for problem in problems:
        driver.gemm(1.0, problem[0], problem[1], 0.0, problem[2])
    if filled is not c:
        # The user's casting rule has been checked; this also broadcasts into more batch axes.
        np.copyto(c, filled.astype(loop, copy=False), casting="unsafe")


def _wrapped(result: NDArray[Any], x1: Any, x2: Any, out: Any, subok: bool) -> Any:
    """Return the result as the type that ufuncs give it."""
    wrap = None
    if out is not None:
        result = out
        wrap = None if type(out) is np.ndarray else out.__array_wrap__
    elif subok:
        wrap = _wrap_of(x1, x2)
    if wrap is None:
        return result if result.ndim or out is not None else result[()]
    context = (np.matmul, (x1, x2) if out is None else (x1, x2, out), 0)
    arguments = (result, context, out is None and not result.ndim)
    for count in (3, 2):  # NumPy 1 had no third argument
        with contextlib.suppress(TypeError):
            return wrap(*arguments[:count])
    return wrap(result)


def _wrap_of(*operands: Any) -> Any:
    """Return `__array_wrap__` of the operand with the highest priority; a plain array's is None."""
    wrap, highest = None, -math.inf
    for x in operands:
        plain = type(x) is np.ndarray
        if not (plain or hasattr(x, "__array_wrap__")):
            continue
        priority = 0.0 if plain else getattr(x, "__array_priority__", 0.0)
        if priority > highest or (priority == 0.0 and wrap is None):
            wrap, highest = None if plain else x.__array_wrap__, priority
    return wrap
