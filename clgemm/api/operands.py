"""Arrays on a device, told apart before NumPy touches them.

NumPy knows nothing of `pyopencl.array.Array`: it would read one element at a time through the
device and build an object array, or call it a sequence.  Either is slow, silent and wrong.
"""

from __future__ import annotations

import sys


def is_device_array(x: object) -> bool:
    """Tell whether `x` is a `pyopencl.array.Array`, without importing that module."""
    # Only a program that has imported pyopencl.array can own such an array.
    array_type = getattr(sys.modules.get("pyopencl.array"), "Array", None)
    return array_type is not None and isinstance(x, array_type)


def refuse_device_arrays(where: str, *operands: object) -> None:
    """Raise TypeError if an operand is a `pyopencl.array.Array`.

    Parameters
    ----------
    where : str
        What was called, and with which argument where that is known; the message starts with it.
    *operands : object
        What the user passed.

    Raises
    ------
    TypeError
        If one of the operands lives on a device.

    Examples
    --------
    >>> import numpy as np
    >>> refuse_device_arrays("sgemm", np.eye(2), [[1.0]], None)
    """
    if any(map(is_device_array, operands)):
        raise TypeError(
            f"{where}: got a pyopencl.array.Array where a number or a host array is meant: call "
            ".get() on it; operands are either all on the device or all on the host"
        )
