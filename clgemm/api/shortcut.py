"""The compiled part of a call's path, where there is one: see `_shortcut.c`.

Products of plain arrays that NumPy computes reach it without any code of Python's.  Everything is
right without it, and small products take half a microsecond longer, or several where other data has
taken the place of Python's in the caches.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import settings
from clgemm.layouts import is_same_memory
from clgemm.runtime import registry

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
_MATRIX, _STACK = 2, 3  # axes
_INTERFACE = 2
"""Of the compiled module that belongs to this code: in a checkout an older one may be left."""


def _compiled() -> Any:
    """Return the compiled module if there is one that reads arrays as they are, else None."""
    try:
        found = importlib.import_module("clgemm.api._shortcut")
    except ImportError as error:
        _log.debug("small products go through Python's code: %s", error)
        return None
    if getattr(found, "INTERFACE", None) != _INTERFACE:
        _log.warning("small products go through Python's code: install clgemm again to compile it")
        return None
    whole = np.empty((5, 7), np.float32)
    for x in (whole, whole.T[1:, ::-2], np.empty(3, np.complex128)):
        if found.seen(x) != (x.ctypes.data, x.shape, x.strides, x.dtype, x.flags.num):
            _log.warning("small products go through Python's code: NumPy's arrays lie otherwise")
            return None
    return found


MODULE = _compiled()
"""What was compiled for this Python, None where nothing was."""
MODES = settings.VARIABLES, settings.ROUTE, settings.OVERRIDDEN, settings.WAS_OVERRIDDEN
"""What tells whether a mode is set: see `settings`."""
Called: Any = staticmethod if MODULE is None else MODULE.Shortcut
"""What calls a function, `__func__`; a compiled one calls NumPy in its place by its rules."""
HOSTED = None if MODULE is None else MODULE.Kinds()
"""Kinds of products beyond the limits that NumPy has computed on the device in use."""
if HOSTED is not None:
    registry.at_change.append(HOSTED.clear)


def leave_to_numpy(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None) -> None:
    """Have NumPy compute products of such arrays without asking again, until decisions change.

    Results in `out` are left only if they are matrices that lie there as fresh ones would, and
    stacks only if they have one axis of matrices and no `out`.
    """
    least, most = sorted((a.ndim, b.ndim))
    if HOSTED is None or not 0 < least <= most <= _STACK:
        return
    if most == _STACK and (least == 1 or out is not None):
        return
    if out is None or (out.ndim == _MATRIX and out.flags.carray and out.dtype == a.dtype):
        HOSTED.add(a, b, out is not None, is_same_memory(a, b))
