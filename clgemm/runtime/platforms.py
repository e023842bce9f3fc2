"""Platforms: those that the ICD loader knows, and the runtime that ``clgemm[cpu]`` installs."""

from __future__ import annotations

import ctypes
import sys
import warnings
from pathlib import Path

from clgemm.errors import ClgemmWarning
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl

NO_PLATFORM = "PLATFORM_NOT_FOUND_KHR"  # the loader's way of saying that it knows none
silent: list[str] = []
"""What the loader and drivers said that gave no answer when devices were listed last."""


def embedded_platforms() -> list[cl.Platform]:
    """Bind Intel's CPU runtime from the environment's own lib folder, where `clgemm[cpu]` puts it.

    It registers nothing that an ICD loader would find.  Each OpenCL object carries the table of its
    functions, so platforms taken from the library itself work through the ordinary loader.
    """
    folders = [Path(sys.prefix) / "lib", Path(sys.prefix) / "Library" / "bin"]
    names = ("libintelocl.so", "intelocl64.dll")
    library = next((f / n for f in folders for n in names if (f / n).exists()), None)
    if library is None:
        return []
    try:
        runtime = ctypes.CDLL(str(library))
        runtime.clGetExtensionFunctionAddress.restype = ctypes.c_void_p
        runtime.clGetExtensionFunctionAddress.argtypes = [ctypes.c_char_p]
        address = runtime.clGetExtensionFunctionAddress(b"clIcdGetPlatformIDsKHR")
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"the OpenCL runtime {library} cannot be loaded ({error}); reinstall it with: "
            "pip install --force-reinstall 'clgemm[cpu]'",
            ClgemmWarning,
            stacklevel=2,
        )
        return []
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
    )
    count, ids = ctypes.c_uint(), (ctypes.c_void_p * 8)()
    if not address or prototype(address)(len(ids), ids, ctypes.byref(count)):
        return []
    return [cl.Platform.from_int_ptr(i) for i in ids[: count.value] if i]


def known() -> list[cl.Platform]:
    """List the platforms of the ICD loader and the embedded ones."""
    try:
        loaded = list(cl.get_platforms())
    except cl.Error as error:
        loaded = []
        if opencl.error_name(error) != NO_PLATFORM:
            silent.append(str(error))
    names = {_name(p) for p in loaded}
    return loaded + [p for p in embedded_platforms() if _name(p) not in names]


def _name(platform: cl.Platform) -> str:
    """Return a platform's name; "" if it does not say it."""
    try:
        return str(platform.name)
    except cl.Error:
        return ""
