"""Pages of machine code: written first, executable then, never writable again, and never freed.

A thread may be inside such a page at any time, that of the interpreter's end included.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import sys
from typing import Any


@functools.cache
def why_not() -> str | None:
    """Return why no machine code can be placed in this process, None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        system = f"{platform.system()} on {platform.machine()}"
        return f"there is machine code for 64-bit Linux on x86-64 only, not for {system}"
    if platform.python_implementation() != "CPython":
        return "it needs CPython"
    try:
        executable(b"\xc3")
    except OSError as error:
        return f"the system allows no machine code to be placed: {error}"
    return None


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library


def memory(size: int) -> int:
    """Return the address of writable pages that nobody frees, at the interpreter's end neither."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    found = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if found in (None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), "mmap failed")
    return int(found)


def executable(data: bytes) -> int:
    """Return the address of pages that hold data, readable and executable from here on.

    Raises
    ------
    OSError
        If the system allows no memory to be made executable.
    """
    size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    start = memory(size)
    ctypes.memmove(start, data, len(data))
    if _libc().mprotect(start, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    return start
