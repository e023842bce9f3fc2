"""Operands that no face takes yet, refused before NumPy touches them.

NumPy knows nothing of `pyopencl.array.Array`: it would read one element at a time through the
device and build an object array, or call it a sequence.  Either is slow, silent and wrong.
"""

from __future__ import annotations

import sys


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
    # Only a program that has imported pyopencl.array can own such an array, so nothing is
    # imported for its sake here.
    array_type = getattr(sys.modules.get("pyopencl.array"), "Array", None)
    if array_type is not None and any(isinstance(operand, array_type) for operand in operands):
        raise TypeError(
            f"{where}: got a pyopencl.array.Array, and device arrays are not supported yet: "
            "call .get() on it first, and put the result back with "
            "pyopencl.array.to_device(queue, result) where the device needs it"
        )
