"""Pages of fresh memory, taken from the system before they are written to.

The system gives a page, cleared, when it is first touched.  That takes as long as copying what goes
there, so it had better be done while threads have nothing to copy.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14: contents stay as they are
PAGE = 4096
CHUNK = 4 << 20  # bytes taken at a time: two of the system's huge pages


@cache
def _advise() -> Callable[[int, int, int], int] | None:
    """Return the system's `madvise`, or None where it is not known to take pages in advance."""
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    advise.restype = ctypes.c_int
    return advise


def chunks(x: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Cut the memory of a dense array into chunks: the address and bytes of each.

    They begin and end at multiples of their size, so that no two share a huge page, except for the
    first and the last one.
    """
    start = x.ctypes.data
    stop = start + x.nbytes
    start -= start % PAGE
    while start < stop:
        after = min(stop, start - start % CHUNK + CHUNK)
        yield start, after - start
        start = after


def take(address: int, nbytes: int) -> bool:
    """Take the pages of a chunk, as far as they are not there yet; tell whether that worked.

    The interpreter is free meanwhile.
    """
    advise = _advise()
    return advise is not None and advise(address, nbytes, POPULATE_WRITE) == 0
