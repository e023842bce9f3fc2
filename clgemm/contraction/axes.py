"""What permutes axes.

pyopencl brings no Array to the host that is neither C- nor F-contiguous, so an Array is copied
where a view would be neither; its own `.transpose` makes a view of any kind.
"""

from __future__ import annotations

from typing import Any

from clgemm.api.arguments import is_device_array
from clgemm.api.drop_in import stands_in_for
from clgemm.contraction import device_operations as on_device
from clgemm.contraction import numpys

_MATRIX = 2  # axes


@stands_in_for(lambda: numpys.transpose)
def transpose(a: Any, axes: Any = None) -> Any:
    """Permute the axes of an array, as `numpy.transpose` does.

    Parameters
    ----------
    a : array_like
        The array.
    axes : sequence of int, optional
        Which axis comes where; by default their order is reversed.

    Returns
    -------
    ndarray
        A view; of an Array on the device an Array, copied if a view could not be brought back.

    Raises
    ------
    TypeError, ValueError
        Where `numpy.transpose` raises them.

    Examples
    --------
    >>> import numpy as np
    >>> transpose(np.ones((2, 3, 4)), (0, -1, 1)).shape
    (2, 4, 3)
    """
    if not is_device_array(a):
        return numpys.transpose(a, axes)
    if axes is None:
        return on_device.contiguous(a.transpose())
    places = [k + a.ndim if k < 0 else k for k in axes]
    if sorted(places) != list(range(a.ndim)):
        raise ValueError(f"transpose: axes={axes!r} permute no array of shape {a.shape}")
    return on_device.contiguous(a.transpose(places))


@stands_in_for(lambda: numpys.matrix_transpose)
def matrix_transpose(x: Any, /) -> Any:
    """Transpose a matrix or a stack of matrices, as `numpy.matrix_transpose` does.

    Parameters
    ----------
    x : array_like
        Of two axes or more.

    Returns
    -------
    ndarray
        A view; of an Array on the device an Array, copied if a view could not be brought back.

    Raises
    ------
    ValueError
        Where `numpy.matrix_transpose` raises them.

    Examples
    --------
    >>> import numpy as np
    >>> matrix_transpose(np.ones((2, 3, 4))).shape
    (2, 4, 3)
    """
    if not is_device_array(x):
        return numpys.matrix_transpose(x)
    if x.ndim < _MATRIX:
        raise ValueError(f"matrix_transpose: x has {x.ndim} axes: pass a matrix or a stack of them")
    return on_device.contiguous(x.transpose([*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]))
