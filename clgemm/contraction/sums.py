"""Sums in Einstein's notation: a product of matrices wherever two operands are contracted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api.arguments import is_device_array
from clgemm.api.drop_in import stands_in_for
from clgemm.api.matmul import matmul
from clgemm.contraction import device_operations as on_device
from clgemm.contraction import numpys, plans, subscripts
from clgemm.contraction.products import NUMBERS, plain
from clgemm.settings import allows_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.contraction.plans import Matrix, Plan, Product

_NDARRAY = np.ndarray
TINY = 4096
"""Multiplications up to which NumPy's loop takes less time than finding out what they are."""
TINY_PAIR = 1 << 18
"""Elements of one of two operands times those of the other, up to which that is so."""
_KNOWN = frozenset({"dtype", "order", "casting"})
_ORDERS = "KCFAkcfa"


@stands_in_for(lambda: numpys.einsum)
def einsum(*operands: Any, out: Any = None, optimize: Any = "auto", **given: Any) -> Any:
    """Sum products of operands over axes that have the same label, as `numpy.einsum` does.

    Parameters
    ----------
    *operands : str and array_like, or array_like and list in turn
        Subscripts and operands, in either of NumPy's ways.
    out : ndarray, optional
        Where the result is stored.
    optimize : optional
        In which order more than two operands are contracted.  By default, and if it is True, in
        the one that opt_einsum finds where that is installed, else in NumPy's.  A name, a path or
        a limit of memory is NumPy's.  With False, NumPy computes them all at once.
    **given
        dtype, order and casting, as for `numpy.einsum`.

    Returns
    -------
    ndarray or scalar
        An Array on the device if the operands are Arrays.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.einsum` raises them; TypeError also where operands on a device
        (`pyopencl.array.Array`) meet operands on the host.

    Notes
    -----
    All operands are converted to their common type first, as by NumPy with ``optimize=False``.

    Examples
    --------
    >>> a = np.arange(6.0).reshape(2, 3)
    >>> einsum("ij,kj->ik", a, a)
    array([[ 5., 14.],
           [14., 50.]])
    """
    found = subscripts.as_text(operands)
    if found is not None:
        text, arrays = found
        if any(x.__class__ is not _NDARRAY and is_device_array(x) for x in arrays) or (
            out is not None and is_device_array(out)
        ):
            return _on_device(text, arrays, out, optimize, given)
        result = _einsum(text, arrays, out, optimize, given)
        if result is not None:
            return result
    if isinstance(optimize, str) and optimize == "auto":
        optimize = False
    return numpys.einsum(*operands, out=out, optimize=optimize, **given)


def _einsum(
    text: str, arrays: list[Any], out: Any, optimize: Any, given: dict[str, Any]
) -> Any | None:
    """Compute an einsum of arrays of NumPy's; None if NumPy has to."""
    if len(arrays) < plans.PAIR or not given.keys() <= _KNOWN:
        return None
    most = TINY_PAIR if len(arrays) == plans.PAIR else TINY
    elements = math.prod(x.size for x in arrays if x.__class__ is _NDARRAY)
    if elements <= most and allows_host() and all(x.__class__ is _NDARRAY for x in arrays):
        return None
    operands = _converted(arrays, given.get("dtype"), given.get("casting", "safe"))
    order = given.get("order", "K")
    if operands is None or not isinstance(order, str) or order not in _ORDERS:
        return None
    plan = plans.of(text, tuple(x.shape for x in operands), optimize)
    if plan is None or not (out is None or _fits(out, operands[0].dtype, plan)):
        return None
    if out is None:
        return _laid_out(_computed(plan, operands, None), order.upper(), operands)
    result = _computed(plan, operands, out)
    if result is not out:
        np.copyto(out, result)
    return out


def _laid_out(result: NDArray[Any], order: str, operands: list[NDArray[Any]]) -> Any:
    """Return a result in the order that was asked for, and a scalar if it has no axis."""
    if order == "A":
        order = "F" if all(x.flags.f_contiguous for x in operands) else "C"
    if order in "CF":
        result = np.asarray(result, order=order)  # type: ignore[call-overload]
    return result if result.ndim else result[()]


def _converted(arrays: list[Any], dtype: Any, casting: Any) -> list[NDArray[Any]] | None:
    """Return operands in the type in which NumPy would compute; None if they are for NumPy."""
    found = [plain(x, subclasses=True) for x in arrays]
    operands = [x for x in found if x is not None]
    if len(operands) < len(found):
        return None
    try:
        common = np.result_type(*operands) if dtype is None else np.dtype(dtype)
        may = all(np.can_cast(x.dtype, common, casting) for x in operands)
    except (TypeError, ValueError):
        return None
    if not may or common.kind not in NUMBERS or not (dtype is None or common.isnative):
        return None
    return [x.astype(common.newbyteorder("="), copy=False) for x in operands]


def _fits(out: Any, dtype: np.dtype[Any], plan: Plan) -> bool:
    """Tell whether a result of a plan can be stored as it is; else NumPy knows what to do."""
    product = plan.steps[-1].product
    if product is None or type(out) is not np.ndarray:
        return False  # None of three or more operands at once
    shape = tuple(product.shape[axis] for axis in product.axes)
    return out.shape == shape and out.dtype == dtype and out.flags.writeable


def _computed(plan: Plan, operands: list[Any], out: NDArray[Any] | None) -> NDArray[Any]:
    """Make one contraction after the other."""
    operands = [
        np.squeeze(x, axes) if axes else x for x, axes in zip(operands, plan.squeezed, strict=True)
    ]
    for number, step in enumerate(plan.steps, 1):
        chosen = [operands.pop(place) for place in step.places]
        product = step.product
        may_fill = number == len(plan.steps) and out is not None and out.flags.carray
        into = out if may_fill else None  # `matmul` knows what to do if it is an operand, too
        if product is not None and _is_of_matrices(product):
            operands.append(_multiplied(product, chosen, into))
        else:
            operands.append(np.asarray(numpys.einsum(step.text, *chosen)))
    result: NDArray[Any] = operands[0]
    return result


def _is_of_matrices(product: Product) -> bool:
    """Tell whether a BLAS has something to gain: each element is read more than once.

    A product with one vector is of that kind, too: NumPy's loop runs on one core.
    """
    m, n, _ = product.m, product.n, product.depth
    return bool(product.depths) and m * n > 1 and product.multiplications > TINY


def _multiplied(
    product: Product, operands: list[NDArray[Any]], out: NDArray[Any] | None
) -> NDArray[Any]:
    """Compute a product of two, by `matmul`; into `out` if its layout allows."""
    x, y = reversed(operands) if product.swapped else operands
    a, b = _as_matrices(product.left, x), _as_matrices(product.right, y)
    shape = (*product.left.shape[:-1], product.n)
    if out is not None and product.axes == tuple(range(len(product.axes))):
        matmul(a, b, out=out.reshape(shape))
        return out
    made: NDArray[Any] = matmul(a, b).reshape(product.shape)
    return made.transpose(product.axes)


def _as_matrices(matrix: Matrix, x: NDArray[Any]) -> NDArray[Any]:
    if matrix.term != matrix.reduced:
        x = np.asarray(numpys.einsum(f"{matrix.term}->{matrix.reduced}", x))
    return x.transpose(matrix.axes).reshape(matrix.shape)


def _on_device(text: str, arrays: list[Any], out: Any, optimize: Any, given: dict[str, Any]) -> Any:
    """Compute an einsum of Arrays, two at a time."""
    named = {f"operand {number}": x for number, x in enumerate(arrays)}
    on_device.require("einsum", **named, **({} if out is None else {"out": out}))
    dtype = given.get("dtype")
    if dtype is not None and any(x.dtype != np.dtype(dtype) for x in arrays):
        raise TypeError(f"einsum: device arrays are not of {dtype}: .astype() converts them")
    usual = {"dtype": dtype, "order": "K", "casting": "safe"}
    refused = [name for name, value in given.items() if usual.get(name, usual) != value]
    if refused:
        raise TypeError(
            f"einsum: pyopencl.array.Array operands do not take {', '.join(refused)}: leave it out"
        )
    plan = plans.of(text, tuple(x.shape for x in arrays), optimize, by_twos=True)
    if plan is None:
        raise ValueError(
            f"einsum: {text!r} does not fit device arrays of shapes "
            f"{', '.join(str(x.shape) for x in arrays)}"
        )
    return on_device.summed(plan, arrays, out)
