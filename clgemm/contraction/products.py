"""Products of two: dot, inner, vdot, outer, tensordot and vecdot.

What is a product of matrices goes to `clgemm.matmul`.  What is not, and every mistake, is NumPy's:
products with numbers, types that are none of numbers, subclasses, operands that override
`__array_function__`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api.arguments import is_device_array
from clgemm.api.drop_in import stands_in_for
from clgemm.api.matmul import matmul
from clgemm.api.small import LEAST
from clgemm.contraction import device_operations as on_device
from clgemm.contraction import numpys
from clgemm.contraction.pairs import pair
from clgemm.settings import allows_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NDARRAY = np.ndarray
NUMBERS = frozenset("biufc")
"""Kinds of types whose sums of products are the same whichever of NumPy's functions adds up."""
_MATRIX = 2  # axes


@stands_in_for(lambda: numpys.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Dot product of two arrays, as `numpy.dot` defines it.

    Parameters
    ----------
    a, b : array_like
        Numbers are multiplied, vectors and matrices as by `clgemm.matmul`; of more axes, the last
        one of `a` and the last but one of `b` are summed over.
    out : ndarray, optional
        Where the result is stored: of its type and shape, C-contiguous.

    Returns
    -------
    ndarray or scalar
        The axes of `a` but its last one, then those of `b` but the one that is summed over; an
        Array on the device if the operands are Arrays.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.dot` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> dot([[1.0, 2.0]], [[3.0], [4.0]])
    array([[11.]])
    """
    if out is None and _is_tiny(a, b):
        return numpys.dot(a, b)
    if (
        a.__class__ is _NDARRAY is b.__class__
        and out is None
        and a.ndim == _MATRIX == b.ndim
        and a.shape[1] == b.shape[0]
        and a.dtype.kind in NUMBERS
        and b.dtype.kind in NUMBERS
    ):
        return matmul(a, b)
    if is_device_array(a) or is_device_array(b) or is_device_array(out):
        return _dot_on_device(a, b, out)
    x, y = plain(a), plain(b)
    if x is None or y is None or not _fit(x, y, out):
        return numpys.dot(a, b, out)
    if x.ndim == 1 or y.ndim <= _MATRIX:
        return matmul(x, y) if out is None else matmul(x, y, out=out)
    return contract(x, y, [x.ndim - 1], [y.ndim - 2], out)


@stands_in_for(lambda: numpys.inner)
def inner(a: Any, b: Any, /) -> Any:
    """Sum products over the last axes of two arrays, as `numpy.inner` does.

    Parameters
    ----------
    a, b : array_like
        Of the same extent along their last axes, or numbers.

    Returns
    -------
    ndarray or scalar
        Of shape ``(*a.shape[:-1], *b.shape[:-1])``; an Array on the device if the operands are.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.inner` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> inner([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]])
    array([[11., 17.]])
    """
    if _is_tiny(a, b):
        return numpys.inner(a, b)
    if is_device_array(a) or is_device_array(b):
        on_device.require("inner", a=a, b=b)
        if not (a.ndim and b.ndim) or a.shape[-1] != b.shape[-1]:
            raise ValueError(f"inner: a is {a.shape} and b is {b.shape}: the last axes differ")
        return on_device.contract(a, b, [a.ndim - 1], [b.ndim - 1])
    x, y = plain(a), plain(b)
    if x is None or y is None or not (x.ndim and y.ndim) or x.shape[-1] != y.shape[-1]:
        return numpys.inner(a, b)
    if y.ndim <= _MATRIX:
        return matmul(x, y.T)
    return contract(x, y, [x.ndim - 1], [y.ndim - 1])


@stands_in_for(lambda: numpys.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sum products over given axes of two arrays, as `numpy.tensordot` does.

    Parameters
    ----------
    a, b : array_like
        The operands.
    axes : int or (array_like, array_like)
        How many last axes of `a` and first ones of `b` are summed over, or which ones.

    Returns
    -------
    ndarray
        The other axes of `a`, then those of `b`; an Array on the device if the operands are.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.tensordot` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> a = np.ones((2, 3, 4))
    >>> tensordot(a, np.ones((4, 3, 5)), axes=([1, 2], [1, 0]))[0, 0]
    np.float64(12.0)
    """
    if a.__class__ is _NDARRAY is b.__class__ and axes.__class__ is int and axes > 0:
        shape = a.shape[-axes:]
        depth = math.prod(shape)
        usual = a.dtype.kind in NUMBERS and b.dtype.kind in NUMBERS
        if depth and usual and axes <= a.ndim and shape == b.shape[:axes]:
            product = matmul(a.reshape(a.size // depth, depth), b.reshape(depth, b.size // depth))
            return product.reshape(a.shape[:-axes] + b.shape[axes:])
    if is_device_array(a) or is_device_array(b):
        on_device.require("tensordot", a=a, b=b)
        found = _axes(a, b, axes)
        if found is None:
            raise ValueError(
                f"tensordot: a is {a.shape} and b is {b.shape}, which do not fit axes={axes!r}"
            )
        return on_device.contract(a, b, *found)
    x, y = plain(a, subclasses=True), plain(b, subclasses=True)
    found = None if x is None or y is None else _axes(x, y, axes)
    if x is None or y is None or found is None:
        return numpys.tensordot(a, b, axes)
    return contract(x, y, *found)


@stands_in_for(lambda: numpys.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    """Dot product of all elements of two arrays, those of `a` conjugated, as `numpy.vdot`.

    Parameters
    ----------
    a, b : array_like
        Of as many elements.

    Returns
    -------
    scalar
        By NumPy itself, which reads each element once; an Array without axes if the operands are
        Arrays on a device.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.vdot` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> vdot(np.array([1j, 2.0]), np.array([1j, 2.0]))
    np.complex128(5+0j)
    """
    if is_device_array(a) or is_device_array(b):
        on_device.require("vdot", a=a, b=b)
        if a.size != b.size:
            raise ValueError(f"vdot: a has {a.size} elements and b has {b.size}")
        return matmul(on_device.ravelled(on_device.conjugate(a)), on_device.ravelled(b))
    return numpys.vdot(a, b)


@stands_in_for(lambda: numpys.vecdot)
def vecdot(x1: Any, x2: Any, /, *given: Any, **more: Any) -> Any:
    """Dot products of vectors along an axis, those of `x1` conjugated, as `numpy.vecdot`.

    Parameters
    ----------
    x1, x2 : array_like
        Vectors along their last axes; the others broadcast.
    *given, **more
        For arrays of NumPy's as for any ufunc; for Arrays on a device axis alone.

    Returns
    -------
    ndarray or scalar
        Of the shape to which the other axes broadcast.  By NumPy itself, which reads each element
        once; an Array if the operands are on a device.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.vecdot` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> vecdot(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 1.0]))
    array([3., 7.])
    """
    if not (is_device_array(x1) or is_device_array(x2)):
        return numpys.vecdot(x1, x2, *given, **more)
    axis = more.pop("axis", -1)
    if given or more:
        raise TypeError("vecdot: pyopencl.array.Array operands take no argument but axis")
    on_device.require("vecdot", x1=x1, x2=x2)
    x, y = (_with_axis_last(x, axis) for x in (x1, x2))
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"vecdot: the vectors have {x.shape[-1]} and {y.shape[-1]} elements")
    x, y = on_device.conjugate(on_device.in_c_order(x)), on_device.in_c_order(y)
    product = matmul(x.reshape(*x.shape[:-1], 1, x.shape[-1]), y.reshape(*y.shape, 1))
    return product.reshape(product.shape[:-2])


@stands_in_for(lambda: numpys.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply each element of one array by each of another, as `numpy.outer` does.

    Parameters
    ----------
    a, b : array_like
        Of any shapes; they are flattened.
    out : ndarray, optional
        Where the result is stored, of shape ``(a.size, b.size)``.

    Returns
    -------
    ndarray
        By NumPy itself, as fast as memory takes it; an Array if the operands are on a device.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.outer` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> outer([1.0, 2.0], [3.0, 4.0])
    array([[3., 4.],
           [6., 8.]])
    """
    if is_device_array(a) or is_device_array(b) or is_device_array(out):
        on_device.require("outer", a=a, b=b, **({} if out is None else {"out": out}))
        x, y = on_device.ravelled(a), on_device.ravelled(b)
        return matmul(x.reshape(x.size, 1), y.reshape(1, y.size), out=out)
    return numpys.outer(a, b, out)


def _fit(x: NDArray[Any], y: NDArray[Any], out: Any) -> bool:
    """Tell whether arrays have a dot product, for which `out` is as it has to be."""
    axis = max(0, y.ndim - 2)
    if not (x.ndim and y.ndim) or x.shape[-1] != y.shape[axis]:
        return False
    shape = x.shape[:-1] + y.shape[:axis] + y.shape[axis + 1 :]
    return out is None or _may_hold(out, shape, np.result_type(x.dtype, y.dtype))


def _is_tiny(a: Any, b: Any) -> bool:
    """Tell whether NumPy multiplies in less time than it takes to look at the operands."""
    return (
        a.__class__ is _NDARRAY is b.__class__ and 0 < a.ndim <= _MATRIX >= b.ndim
        and len(a) * b.size <= LEAST and allows_host()
    )  # fmt: skip


def plain(x: Any, *, subclasses: bool = False) -> NDArray[Any] | None:
    """Return an operand as an array of numbers; None where only NumPy knows what to do with it.

    Parameters
    ----------
    x : object
        The operand.
    subclasses : bool
        Whether the function has plain results of subclasses, too.
    """
    if x.__class__ is not _NDARRAY:
        is_list = isinstance(x, (list, tuple))
        if not is_list and not (subclasses and _is_usual_subclass(x)):
            return None
        x = np.asarray(x)
        if is_list and not x.size:
            return None  # dot and inner take its type from the other operand
    found: NDArray[Any] = x
    return found if found.dtype.kind in NUMBERS else None


def _is_usual_subclass(x: object) -> bool:
    usual = np.ndarray.__array_function__
    return isinstance(x, np.ndarray) and type(x).__array_function__ is usual


def contract(
    x: NDArray[Any], y: NDArray[Any], axes_x: Sequence[int], axes_y: Sequence[int],
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:  # fmt: skip
    """Sum products over pairs of axes, from 0 up, of arrays of numbers."""
    found = pair(x, y, axes_x, axes_y)
    a = x.transpose(found.left).reshape(found.m, found.depth)
    b = y.transpose(found.right).reshape(found.depth, found.n)
    if out is not None:
        matmul(a, b, out=out.reshape(found.m, found.n))
        return out
    product: NDArray[Any] = matmul(a, b).reshape(found.shape)
    return product


def _axes(x: Any, y: Any, axes: Any) -> tuple[list[int], list[int]] | None:
    """Read tensordot's axes, as numbers from 0 up; None if they are wrong."""
    try:
        if not hasattr(axes, "__iter__"):
            axes = range(-axes, 0), range(axes)
        left, right = axes
        pairs = [
            [range(z.ndim)[k] for k in (chosen if hasattr(chosen, "__len__") else [chosen])]
            for z, chosen in ((x, left), (y, right))
        ]
        if any(len(set(found)) < len(found) for found in pairs):
            return None
        if [x.shape[k] for k in pairs[0]] != [y.shape[k] for k in pairs[1]]:
            return None
    except (TypeError, ValueError, IndexError):
        return None
    return pairs[0], pairs[1]


def _may_hold(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether dot may write its result there; else it is NumPy's, or the error is.

    Of an out without axes NumPy returns the number in it.
    """
    return (
        type(out) is np.ndarray
        and out.ndim > 0
        and out.shape == shape
        and out.dtype == dtype.newbyteorder("=")
        and out.flags.carray
    )


def _dot_on_device(a: Any, b: Any, out: Any) -> Any:
    on_device.require("dot", a=a, b=b, **({} if out is None else {"out": out}))
    if a.ndim == 1 or b.ndim <= _MATRIX:
        a, b = (x if x.ndim < _MATRIX else on_device.mergeable(x) for x in (a, b))
        return matmul(a, b, out=out)  # which has a word for what has no axis
    if not a.ndim or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"dot: a is {a.shape} and b is {b.shape}: the inner dimensions differ")
    return on_device.contract(a, b, [a.ndim - 1], [b.ndim - 2], out)


def _with_axis_last(x: Any, axis: int) -> Any:
    axes = list(range(x.ndim))
    try:
        axes.append(axes.pop(axis))
    except IndexError:
        raise ValueError(f"vecdot: an operand of shape {x.shape} has no axis {axis}") from None
    return x.transpose(axes)
