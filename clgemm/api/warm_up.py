"""`clgemm.warm_up`: what first products wait for, done beforehand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import settings
from clgemm.api.arguments import is_device_array
from clgemm.api.matmul import matmul
from clgemm.dispatch import engines
from clgemm.dispatch.route import is_small
from clgemm.problem import AS_GIVEN, BY_DTYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from clgemm.problem import Precision

_PAIR = 2
_HALF = np.dtype(np.float16)


def warm_up(*products: Sequence[Any], dtype: DTypeLike = np.float32) -> None:
    """Do beforehand what first products wait for, so that a service answers its first request soon.

    Opens the device, finds parameters, if need be by a search, measures which products the host
    computes faster, and computes each product once: its kernels are built, its memory is there.

    Parameters
    ----------
    *products : pair
        The operands of a product that `clgemm.matmul` will compute: two arrays, two shapes, or one
        of each.  Arrays are NumPy's or lie on a device, and their layout counts, not their values;
        a shape, a tuple of int, stands for a C-ordered NumPy array.
    dtype : dtype, optional
        Type of the arrays that shapes stand for.

    Raises
    ------
    TypeError
        If a product is no pair of arrays and shapes.
    ValueError
        If the shapes of a pair do not match.
    DeviceError
        If no device is usable.

    Notes
    -----
    A search and the measuring after it take ``CLGEMM_TUNE_SECONDS`` together, once a precision and
    device: later processes read what was found.  What was measured holds for products from here
    on, also for kinds that were computed before.  Nothing is done in a forked child, where the
    host computes everything, with ``CLGEMM_ROUTE=host``, and for types that NumPy computes.

    Examples
    --------
    >>> warm_up(((300, 200), (200, 100)), ((64, 50, 50), (50, 50)), dtype="float64")
    >>> a = np.ones((200, 300), np.float32)
    >>> warm_up((a.T, a), (a, (300,)))
    """
    read = [_operands(product, np.dtype(dtype)) for product in products]
    pairs = [(x, y) for x, y in read if _computed_in(x, y) in AS_GIVEN]
    modes = settings.modes()
    engine = None if modes.route == "host" else engines.current()
    if engine is None:
        return
    if modes.route == "auto":
        wanted = (_chosen_for(x, y) for x, y in pairs)
        for precision in dict.fromkeys(found for found in wanted if found is not None):
            for each in (engine, *engines.partners_of(engine)):
                each.warm_up(precision)
    for x, y in pairs:
        product = matmul(x, y)
        if is_device_array(product):
            product.queue.finish()


def _operands(product: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Read one product: two operands that match."""
    if not isinstance(product, tuple | list) or len(product) != _PAIR:
        raise TypeError(f"warm_up: {_said(product)} is no pair of arrays or shapes: {_HOW}")
    x, y = (_operand(each, dtype) for each in product)
    rows = y.shape[-2] if len(y.shape) > 1 else y.shape[0]
    if x.shape[-1] != rows:
        raise ValueError(
            f"warm_up: the operands are {x.shape} and {y.shape}: the inner dimensions differ, "
            f"{x.shape[-1]} != {rows}"
        )
    if not (is_device_array(x) or is_device_array(y)):
        np.broadcast_shapes(x.shape[:-2], y.shape[:-2])  # raises NumPy's ValueError
    return x, y


_HOW = "pass pairs, as warm_up(((m, k), (k, n))) or warm_up((a, b))"


def _operand(given: Any, dtype: np.dtype[Any]) -> Any:
    """Return an array as it is, and zeros in place of a shape."""
    is_shape = isinstance(given, tuple) and all(isinstance(n, int | np.integer) for n in given)
    if not (is_shape or isinstance(given, np.ndarray) or is_device_array(given)):
        raise TypeError(f"warm_up: {_said(given)} is neither an array nor a shape: {_HOW}")
    x = np.zeros(given, dtype) if is_shape else given
    if not x.shape:
        raise ValueError(f"warm_up: an operand of a product has one axis at least: {_HOW}")
    return x


def _said(given: Any) -> str:
    """Name what was given, in a few words."""
    return repr(given) if isinstance(given, int | tuple) else f"a {type(given).__name__}"


def _computed_in(x: Any, y: Any) -> np.dtype[Any]:
    dtype = np.result_type(x.dtype, y.dtype)
    return np.dtype(np.float32) if dtype == _HALF else dtype


def _chosen_for(x: Any, y: Any) -> Precision | None:
    """Return the precision of a product if times of both sides decide where it runs."""
    if is_device_array(x) or is_device_array(y):
        return None
    precision = BY_DTYPE.get(_computed_in(x, y))
    m, n = (x.shape[-2] if x.ndim > 1 else 1), (y.shape[-1] if y.ndim > 1 else 1)
    stack = math.prod(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    if precision is None or min(m, n) <= 1:
        return None
    flops = 2 * precision.multiplications * stack * m * n * x.shape[-1]
    return None if is_small(flops, stack, x.shape[-1]) else precision
