"""numpy.matmul on a device: the rules of the ufunc here, the arithmetic behind `dispatch`.

What a device does not help with goes to NumPy itself: types that it does not compute in, empty
products, operands that override `__array_ufunc__`, rare keywords, and every mistake.  The error
for a mistake is then NumPy's own, in class and in words, whatever version is installed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.api import (
    device_arrays,
    integers,
    repeated,
    repeated_arrays,
    shortcut,
    small,
    stacks,
)
from clgemm.api.arguments import is_device_array
from clgemm.api.drop_in import stands_in_for
from clgemm.api.ufunc_result import wrapped
from clgemm.dispatch.route import DEEP
from clgemm.host import blas as host_blas
from clgemm.problem import AS_GIVEN, BY_DTYPE, Call, dtype_of_product
from clgemm.runtime import registry
from clgemm.settings import OVERRIDDEN, ROUTE, VARIABLES, chooses_route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)
_ORDERS = MappingProxyType({None: "K"} | {letter: letter.upper() for letter in "KCFAkcfa"})
_DEFAULTS = MappingProxyType({"casting": "same_kind", "order": "K", "dtype": None, "subok": True})
_NDARRAY, _numpys, _overridden = np.ndarray, host_blas.matmul, OVERRIDDEN.get
_dot = host_blas.dot
_DEBUG = logging.DEBUG
_LEAST, _ROWS, _MOST, _SHALLOW = small.LEAST, small.ROWS, small.MOST, small.SHALLOW
# Multiplications, up to which products are numpy.dot's; of other types not even empty ones are.
_DOT = {dtype: _MOST[dtype] for dtype in BY_DTYPE}
_DOT_OUTER = {dtype: host_blas.ONE_THREAD[dtype.kind == "c"] for dtype in BY_DTYPE}
_DOT_ELEMENTS = 4096
"""Of a result that `numpy.dot` fills with zeros before BLAS computes it, in less time than the
ufunc machinery of `numpy.matmul` takes: of 36 KB more does not help, of 300 KB it costs 5 us.  For
outer products `numpy.matmul` has a loop, which takes longer by far."""
_MOST_STACKED = small.MOST_STACKED
_logger, _root = repeated.LOGGERS
_TINY = 2000  # multiplications, fewer than which take less time than to see what they are
TALL = 2_000_000
"""Multiplications of a stack with one operand in common, up to which NumPy's loop takes less time
than finding out that it is one tall matrix."""
_KNOWN = _DEFAULTS.keys() | {"out", "axes"}
_CASTINGS = frozenset({"no", "equiv", "safe", "same_kind", "unsafe"})


class _Call(NamedTuple):
    """A call that has passed every check."""

    a: NDArray[Any]  # (..., m, k), of the type the device computes in
    b: NDArray[Any]  # (..., k, n), of the same type
    c: NDArray[Any]  # the result seen as (..., m, n)
    shape: tuple[int, ...]  # of a @ b; c may have more batch axes
    loop: np.dtype[Any]  # what NumPy computes in, and rounds to before it casts to c's type
    result: NDArray[Any]  # `out`, or the fresh array, before a subclass wraps it


@stands_in_for(lambda: host_blas.matmul)
def matmul(x1: Any, x2: Any, /, out: Any = None, **given: Any) -> Any:
    """Matrix product of two arrays, as `numpy.matmul` defines it.

    Parameters
    ----------
    x1, x2 : array_like
        Of shapes (..., m, k) and (..., k, n), or vectors; NumPy's or `pyopencl.array.Array`, both
        of a kind.  Used where they lie: only another type, byte order or alignment costs a copy.
    out : ndarray or tuple of one ndarray, optional
        Where the result is stored, and what is returned.  It is computed in place if type, layout
        and memory allow, in a temporary otherwise.
    **given
        casting, order, dtype, subok and axes as for any ufunc.  With other keywords NumPy computes.

    Returns
    -------
    ndarray or scalar
        Of shape (..., m, n).  A scalar if both operands have one axis; a subclass where ufuncs
        return one; an Array on the device if the operands are Arrays.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.matmul` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.
    DeviceError
        If no device is usable, or this one lacks the type, as some have no double precision.
    MemoryError
        If there is no memory for the result or, on a device, for Arrays.

    Notes
    -----
    *Types.* float32, float64, complex64 and complex128 products are computed on the device, in
    that type.  float16 products are summed in float32 and rounded once, at the end.  Products of
    integers and of bool have NumPy's values, to the bit: integers wrap around.  They are computed
    on CPUs and GPUs, and by NumPy where its loop takes less time.  Long double and object products
    are computed by NumPy.  Operands on a device are of one type, any but those two.

    *Floating-point errors.* A device raises no flags, so `numpy.errstate` does not see an overflow
    or an invalid operation in the product: infinities and NaNs appear without a warning.  The
    same holds for what `numpy.dot` multiplies: small matrices, vectors, columns with rows.  Of
    complex ones an infinity may leave other parts NaN than in the loop of `numpy.matmul`.

    *Symmetry.* `numpy.matmul` makes ``A @ A.T`` exactly symmetric.  So does a device, in about half
    the time of another product; a GPU only from some 3 * 10**9 floating-point operations and inner
    extents of 256 on.  Where the host's gemm computes, or where operands are copied to the device
    in several blocks, it need not be.

    Examples
    --------
    >>> matmul([[1.0, 2.0]], [[3.0], [4.0]])
    array([[11.]])
    """
    # Every check costs a small product a twentieth of its time, and a tenth after others: what each
    # attribute takes is seldom in the caches.  What says that it is an array is one to NumPy, too.
    # Small products are numpy.dot's, which is matmul's call of BLAS with less ado, where it may.
    compute: Any = None
    found: Any = None
    if not given and (
        x1.__class__ is _NDARRAY is x2.__class__ and (out is None or out.__class__ is _NDARRAY)
    ):
        if _overridden() is None and ROUTE not in VARIABLES:  # as `allows_host`, but sooner
            axes, axes2 = x1.ndim, x2.ndim
            if axes == 2 == axes2:
                (m, k), (rows, n), dtype = x1.shape, x2.shape, x1.dtype
                product = (size := m * n) * rows
                if (
                    k == rows and dtype is x2.dtype
                    and product <= (_DOT if k > 1 else _DOT_OUTER).get(dtype, -1)
                    and (size <= _DOT_ELEMENTS if k > 1 else m > 1 < n)  # a number: see `outer`
                    and (out is None
                         or (out.flags.carray and out.dtype is dtype and out.shape == (m, n)))
                ):  # fmt: skip
                    compute = _dot
                elif product <= (
                    _ROWS if m == 1 or n == 1 else _MOST if rows >= DEEP else _SHALLOW
                ).get(dtype, _LEAST) and (rows > 1 or size <= _DOT_ELEMENTS):
                    compute = _numpys
                else:
                    found = (_by_modes if rows == 1 else _matrices)(x1, x2, out)
            elif (axes == 1 or axes2 == 1) and (size := x1.size + x2.size) <= _LEAST:
                compute = _dot if (
                    out is None and 2 <= axes + axes2 <= 3 and (k := len(x2)) > 1
                    and k == x1.shape[-1] and size <= k * _DOT_ELEMENTS
                    and (dtype := x1.dtype) is x2.dtype and dtype in _DOT
                ) else _numpys  # fmt: skip
            elif axes == 2 and _is_least(x1, x2):
                compute = _numpys
            else:
                found = _stacks(x1, x2, out)
            if compute is not None:
                return compute(x1, x2) if out is None else compute(x1, x2, out)
        else:
            found = _by_modes(x1, x2, out)
    elif not given:
        found = repeated_arrays.matmul(x1, x2, out)
    return _new_kind(x1, x2, out, given) if found is None else found


def rules_of_shortcut(by_matmul: Any, by_dot: Any) -> tuple[Any, ...]:
    """Return what the compiled part of `matmul` decides by: the figures of the function here.

    Parameters
    ----------
    by_matmul, by_dot : callable
        What it calls where the function here calls `numpy.matmul` and `numpy.dot`.
    """
    limits = tuple(
        (dtype, _MOST[dtype], _SHALLOW[dtype], _ROWS[dtype], outer, _MOST_STACKED[dtype])
        for dtype, outer in _DOT_OUTER.items()
    )
    of = _NDARRAY, shortcut.MODES, by_matmul, by_dot, shortcut.HOSTED, (_logger, _root)
    return *of, limits, (DEEP, _DOT_ELEMENTS, _LEAST)


if shortcut.MODULE is not None:
    matmul.rules_of_matmul(*rules_of_shortcut(_numpys, _dot))  # type: ignore[attr-defined]  # of _StandIn


def _is_least(x1: Any, x2: Any) -> bool:
    """Tell whether a matrix times a stack, or a vector, is small whatever its type."""
    product = len(x1) * (size := x2.size)  # as many multiplications in a stack
    return product < _TINY or (product <= _LEAST and size > 1 and len(x2) > 1)


def _matrices(x1: Any, x2: Any, out: Any) -> Any:
    """Multiply two matrices of a kind that was met, else return None; the route is "auto"."""
    device = registry.in_use
    if device is None:
        return None
    kind = len(x1), len(x2), x2.size, x1.dtype, x2.dtype, x1.strides, x2.strides
    found = device.repeated.get(kind if out is None else repeated.into(kind, out))
    if found is _numpys and (_logger.level or _root.level) > _DEBUG:
        return _numpys(x1, x2) if out is None else _numpys(x1, x2, out)
    return repeated.by(found, x1, x2, out, True)


def _stacks(x1: Any, x2: Any, out: Any) -> Any:
    """Multiply vectors or stacks that are small, or of a kind that was met, else return None.

    The route is known to be "auto": see `_by_modes`.
    """
    dtype = x1.dtype
    if x2.ndim == 2 or (x1.ndim == 3 == x2.ndim and len(x1) == len(x2)):
        product = x1.size * x2.shape[-1]  # as in nearly all stacks
    else:
        product = repeated.multiplications(x1, x2)
    if 0 < product <= _MOST_STACKED.get(dtype, 0) and x2.dtype == dtype:
        return _numpys(x1, x2) if out is None else _numpys(x1, x2, out)
    device = registry.in_use
    if device is None:
        return None
    kind = dtype, x1.shape, x1.strides, x2.dtype, x2.shape, x2.strides
    found = device.repeated.get(kind if out is None else repeated.into(kind, out))
    if found is _numpys and (_logger.level or _root.level) > _DEBUG:
        return _numpys(x1, x2) if out is None else _numpys(x1, x2, out)
    return repeated.by(found, x1, x2, out, True)


def _by_modes(x1: Any, x2: Any, out: Any) -> Any:
    """Multiply what is small or of a kind that was met, else return None; modes may be set."""
    found = small.matmul(x1, x2, out)
    return repeated.matmul(x1, x2, out) if found is None else found


def _new_kind(x1: Any, x2: Any, out: Any, given: dict[str, Any]) -> Any:
    """Multiply what is neither small nor of a kind that was met."""
    if not given:
        if is_device_array(x1):
            if type(out) is tuple and len(out) == 1:
                (out,) = out
            return device_arrays.matmul(x1, x2, out)
        plain = _plain(x1, x2, out)
        if plain is not None:
            return plain
    return _any(x1, x2, out, given)


def _any(x1: Any, x2: Any, out: Any, given: dict[str, Any]) -> Any:
    """Multiply whatever the operands are, with whatever keywords."""
    asked = given if out is None else given | {"out": out}
    given = {name: x for name, x in asked.items() if x is not _DEFAULTS.get(name, _Call)}
    if type(out) is tuple and len(out) == 1:
        (out,) = out
    if is_device_array(x1) or is_device_array(x2) or is_device_array(out):
        if given.keys() - {"out"}:
            raise TypeError("matmul: pyopencl.array.Array operands take no keyword but out")
        return device_arrays.matmul(x1, x2, out)
    call = None
    # Whatever is wrong, NumPy raises it again below, and for its own reason.
    with contextlib.suppress(TypeError, ValueError, IndexError):
        _require(not any(map(_overrides, (x1, x2, out))))
        call = _check(x1, x2, out, _DEFAULTS | given)
    if call is None:
        # An override is shown the keywords of the call, hence all that the user gave.
        return host_blas.matmul(x1, x2, **asked)
    hosted = _compute(call, fresh=out is None)
    if not given.keys() - {"out"}:
        if hosted:
            repeated.remember(x1, x2, out, None)
        elif call.c.shape == call.shape:
            repeated.remember_stack(x1, x2, out, call.result)
    return wrapped(call.result, x1, x2, out, given.get("subok", True))


def _plain(a: Any, b: Any, out: Any) -> NDArray[Any] | None:
    """Multiply two matrices that need no conversion; None where there is more to look at."""
    if not (type(a) is np.ndarray and type(b) is np.ndarray and a.ndim == 2 == b.ndim):
        return None
    (m, k), (rows, n), dtype = a.shape, b.shape, a.dtype
    fits = k == rows and dtype == b.dtype and dtype in AS_GIVEN and m and n and k
    if not (fits and a.flags.aligned and b.flags.aligned):
        return None
    if out is None:
        c = np.empty((m, n), dtype_of_product(dtype, b.dtype))
    elif type(out) is np.ndarray and out.shape == (m, n) and out.dtype == dtype:
        if not out.flags.behaved or np.may_share_memory(out, a) or np.may_share_memory(out, b):
            return None
        c = out
    else:
        return None
    hosted = integers.compute(Call.of(1.0, a, b, 0.0, c), host_blas.multiply)
    repeated.remember(a, b, out, None if hosted else c)
    return c


def _require(condition: object) -> None:
    """Leave the call to NumPy, which has an answer or its own error, unless this holds."""
    if not condition:
        raise ValueError


def _overrides(x: object) -> bool:
    """Say whether the type of an operand takes ufunc calls over, or refuses them."""
    default = np.ndarray.__array_ufunc__
    return getattr(type(x), "__array_ufunc__", default) is not default


def _check(x1: Any, x2: Any, out: Any, keywords: Mapping[str, Any]) -> _Call:
    """Prepare a call; TypeError or ValueError if it is NumPy's to answer."""
    _require(keywords.keys() <= _KNOWN and isinstance(keywords["subok"], bool))
    casting, order, dtype = (keywords[name] for name in ("casting", "order", "dtype"))
    x, y = np.asarray(x1), np.asarray(x2)
    _require(x.ndim and y.ndim and casting in _CASTINGS and order in _ORDERS)
    _require(out is None or (isinstance(out, np.ndarray) and out.flags.writeable))
    loop = _loop_dtype(x, y, out, dtype, casting)
    computed = _SINGLE if loop == _HALF else loop
    _require(computed in AS_GIVEN)
    order = _ORDERS[order]
    if order == "A":
        order = "F" if x.flags.f_contiguous and y.flags.f_contiguous else "C"
    home = None  # of the result's core axes, if they are not the last ones
    if "axes" in keywords:
        *sources, home = _core_axes(keywords["axes"], (min(x.ndim, 2), min(y.ndim, 2)))
        x, y = (np.moveaxis(z, p, range(-len(p), 0)) for z, p in zip((x, y), sources, strict=True))
    has_rows, has_columns = x.ndim > 1, y.ndim > 1
    a, b = (x if has_rows else x[None]), (y if has_columns else y[:, None])
    (m, k), (rows, n) = a.shape[-2:], b.shape[-2:]
    batch = _broadcast(a.shape[:-2], b.shape[:-2])
    multiplications = math.prod((m, n, k, *batch))
    _require(k == rows and multiplications)
    _require(computed in BY_DTYPE or not integers.is_small(multiplications))
    core = (m,) * has_rows + (n,) * has_columns
    result = stacks.empty((a, b), batch + core, loop, order, home) if out is None else out
    c = np.asarray(result)
    c = c if home is None else np.moveaxis(c, home, range(-len(core), 0))
    outer = c.shape[: c.ndim - len(core)]  # may lack leading axes of size 1, as NumPy's may
    _require(c.size and c.shape == outer + core)
    _require(math.prod(_broadcast(batch, outer)) == math.prod(outer))
    c = c[(..., slice(None) if has_rows else None, slice(None) if has_columns else None)]
    a, b = _cast(a, loop, computed), _cast(b, loop, computed)
    return _Call(a, b, c, (*batch, m, n), loop, result)


def _loop_dtype(x: NDArray[Any], y: NDArray[Any], out: Any, dtype: Any, casting: Any) -> Any:
    """Return the type NumPy would compute in, having checked every cast."""
    target = None if out is None else out.dtype
    same = x.dtype == y.dtype and (target is None or target == x.dtype)
    if dtype is None and same and x.dtype in AS_GIVEN:
        return dtype_of_product(x.dtype, y.dtype)
    dtypes, signature = (x.dtype, y.dtype, target), (None, None, dtype)
    return host_blas.matmul.resolve_dtypes(dtypes, signature=signature, casting=casting)[-1]


def _core_axes(axes: Any, counts: tuple[int, int]) -> list[tuple[int, ...]]:
    """Return the core axes of x1, x2 and the result, as tuples; their range is not checked."""
    _require(isinstance(axes, list))
    entries = [entry if isinstance(entry, tuple) else (entry,) for entry in axes]
    _require([len(entry) for entry in entries] == [*counts, sum(counts) - 2])
    _require(not any(isinstance(place, bool) for entry in entries for place in entry))
    return [tuple(map(operator.index, entry)) for entry in entries]


def _broadcast(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast two batch shapes, at little cost where there is nothing to do."""
    return p if p == q or not q else q if not p else np.broadcast_shapes(p, q)


def _cast(x: NDArray[Any], loop: np.dtype[Any], computed: np.dtype[Any]) -> NDArray[Any]:
    """Convert an operand as NumPy would, and on to the type of the device if that is another."""
    x = x.astype(loop, copy=False).astype(computed, copy=False)
    return x if x.flags.aligned else x.copy()


def _compute(call: _Call, *, fresh: bool) -> bool:
    """Fill the result: where it lies if it can be written there, through a temporary otherwise.

    Returns
    -------
    bool
        Whether the host has computed it as `small.matmul` would.
    """
    a, b, c, shape, loop, _ = call
    problems: list[stacks.Problem] = []
    if c.dtype == a.dtype == loop and c.shape == shape and c.flags.aligned:
        overlap = not fresh and (np.may_share_memory(c, a) or np.may_share_memory(c, b))
        problems = [] if overlap else stacks.fold(a, b, c)
    # A user's array is filled by one call or by none: a failure must leave it as it was.
    count = len(problems)
    in_place = (count == 1 or (fresh and count)) and stacks.is_direct(problems[0][2])
    filled = c if in_place else np.empty(shape, a.dtype)
    hosted: list[Call] = []
    problems = problems if in_place else stacks.fold(a, b, filled)
    for left, right, product in problems:
        integers.compute(Call.of(1.0, left, right, 0.0, product), hosted.append)
    all_hosted = len(hosted) == len(problems) and a.size * b.shape[-1] <= host_blas.LONG
    is_tall = fresh and host_blas.is_tall(a, b)
    merged = c.ndim > 2 and problems[0][2].ndim == 2 and a.size * b.shape[-1] > TALL
    by_numpy = all_hosted and not (merged or is_tall)
    if by_numpy:
        host_blas.matmul(a, b, out=filled)
    else:
        for product_of_matrices in hosted:
            host_blas.multiply(product_of_matrices)
    if not in_place:
        # The user's casting rule has been checked; this also broadcasts into more batch axes.
        np.copyto(c, filled.astype(loop, copy=False), casting="unsafe")
    return (by_numpy or (all_hosted and is_tall)) and bool(in_place) and chooses_route()
