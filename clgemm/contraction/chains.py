"""Products of more than two matrices, in the cheapest order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.api.arguments import is_device_array
from clgemm.api.drop_in import stands_in_for
from clgemm.contraction import device_operations as on_device
from clgemm.contraction import numpys
from clgemm.contraction.products import dot, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

_MATRIX = 2  # axes
_ENDS = (1, 2)
_NDARRAY = np.ndarray


@stands_in_for(lambda: numpys.multi_dot)
def multi_dot(arrays: Sequence[Any], *, out: Any = None) -> Any:
    """Multiply two or more arrays in the cheapest order, as `numpy.linalg.multi_dot` does.

    Parameters
    ----------
    arrays : sequence of array_like
        Matrices; the first one may be a row and the last one a column, of one axis each.
    out : ndarray, optional
        Where the result is stored, as for `dot`.

    Returns
    -------
    ndarray or scalar
        With the rows of the first one and the columns of the last one, as far as they have them; an
        Array on the device if the operands are Arrays.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.linalg.multi_dot` raises them, LinAlgError among them; TypeError also where
        operands on a device (`pyopencl.array.Array`) meet operands on the host.

    Examples
    --------
    >>> multi_dot([np.ones(2), np.ones((2, 3)), np.ones((3, 4))])
    array([6., 6., 6., 6.])
    """
    if not hasattr(arrays, "__len__"):
        return numpys.multi_dot(arrays, out=out)
    found: list[Any] = list(arrays)
    if not all(x.__class__ is _NDARRAY for x in found) or out is not None:
        read = _read(found, out)
        if read is None:
            return numpys.multi_dot(arrays, out=out)
        found = read
    if len(found) == _MATRIX:
        return dot(arrays[0], arrays[1], out)
    ranks = [x.ndim for x in found]
    inner = ranks[1:-1]
    ends = ranks[0] in _ENDS and ranks[-1] in _ENDS if inner else False
    if not ends or inner.count(_MATRIX) < len(inner):
        if any(map(is_device_array, found)):
            raise ValueError(
                f"multi_dot: device arrays of {ranks} axes: pass two or more matrices; only the "
                "first one and the last one may have one axis"
            )
        return numpys.multi_dot(arrays, out=out)
    if ranks[0] == 1:
        found[0] = found[0].reshape(1, -1)
    if ranks[-1] == 1:
        found[-1] = found[-1].reshape(-1, 1)
    product = (_product_of_three if len(found) == 3 else _product)(found, out)
    if ranks[0] == 1 == ranks[-1]:
        return product.reshape(()) if is_device_array(product) else product[0, 0]
    return product.reshape(-1) if 1 in {ranks[0], ranks[-1]} else product


def _read(arrays: list[Any], out: Any) -> list[Any] | None:
    """Return operands as arrays of either kind; None where only NumPy knows what to do."""
    if any(map(is_device_array, arrays)) or is_device_array(out):
        named = {f"arrays[{number}]": x for number, x in enumerate(arrays)}
        on_device.require("multi_dot", **named, **({} if out is None else {"out": out}))
        return arrays
    found = [plain(x) for x in arrays]
    usual = out is None or out.__class__ is _NDARRAY
    return found if usual and all(x is not None for x in found) else None


def _product_of_three(matrices: list[Any], out: Any) -> Any:
    """Multiply three matrices; of two orders that cost the same NumPy takes the second one."""
    a, b, c = matrices
    (p, q), (r, s) = a.shape, c.shape
    if p * r * (q + s) < q * s * (p + r):
        return dot(dot(a, b), c, out)
    return dot(a, dot(b, c), out)


def _product(matrices: list[Any], out: Any) -> Any:
    splits = _splits([*(x.shape[0] for x in matrices), matrices[-1].shape[1]])

    def part(i: int, j: int, out: Any = None) -> Any:
        if i == j:
            return matrices[i]
        k = splits[i, j]
        return dot(part(i, k), part(k + 1, j), out)

    return part(0, len(matrices) - 1, out)


def _splits(extents: list[int]) -> dict[tuple[int, int], int]:
    """Find behind which matrix each part of a chain is cut, by Cormen's dynamic programming.

    Of orders that cost the same it takes the one that NumPy takes.
    """
    count = len(extents) - 1
    cost = {(i, i): 0 for i in range(count)}
    splits = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            cost[i, j], splits[i, j] = min(
                (cost[i, k] + cost[k + 1, j] + extents[i] * extents[k + 1] * extents[j + 1], k)
                for k in range(i, j)
            )
    return splits
