"""Products of integers and bool, which no device is needed for: NumPy has a loop of its own."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING

from clgemm.dispatch import engines
from clgemm.dispatch.integers import MOST_SMALL
from clgemm.errors import ClgemmWarning, DeviceError
from clgemm.host import blas as host_blas
from clgemm.problem import INTEGER_DTYPES
from clgemm.settings import allows_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.problem import Call


def is_small(multiplications: int) -> bool:
    """Tell whether a product of integers is NumPy's without a look at any device."""
    return multiplications <= MOST_SMALL and allows_host()


def compute(call: Call, by_host: Callable[[Call], object]) -> bool:
    """Compute a call as `engines.compute` does, and integers without any device if there is none.

    Returns
    -------
    bool
        Whether the host was found to be faster, and has computed it.
    """
    if call.c.dtype not in INTEGER_DTYPES:
        return engines.compute(call, by_host)
    try:
        return engines.compute(call, by_host)
    except (DeviceError, MemoryError) as error:
        _warn_once(f"NumPy multiplies integers from here on where a device fails: {error}")
        host_blas.multiply(call)  # this one alone: a later call may find the device well
        return False


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, ClgemmWarning, stacklevel=4)
