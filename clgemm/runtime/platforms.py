"""Platforms: those that the ICD loader knows, and the runtime that ``clgemm[cpu]`` installs."""

from __future__ import annotations

import csv
import ctypes
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from clgemm.errors import ClgemmWarning
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl

DISTRIBUTION = "intel-opencl-rt"
LIBRARIES = ("libintelocl.so", "intelocl64.dll")
FOLDERS = ("lib", "Library/bin")  # of an environment: conda's packages have no record
NO_PLATFORM = "PLATFORM_NOT_FOUND_KHR"  # the loader's way of saying that it knows none
silent: list[str] = []
"""What the loader and drivers said that gave no answer when devices were listed last."""


def embedded_platforms() -> list[cl.Platform]:
    """Bind Intel's CPU runtime where `clgemm[cpu]` has put it.

    It registers nothing that an ICD loader would find.  Each OpenCL object carries the table of its
    functions, so platforms taken from the library itself work through the ordinary loader.
    """
    address, faults = None, []
    for library in _libraries():
        try:
            address = _address_in(library)
            break
        except (OSError, AttributeError) as error:
            faults.append(f"{library} cannot be loaded ({error})")
    else:
        if faults:
            warnings.warn(
                f"Intel's OpenCL runtime is installed, but {' and '.join(faults)}; reinstall it "
                "with: pip install --force-reinstall intel-opencl-rt intel-cmplr-lib-rt",
                ClgemmWarning,
                stacklevel=2,
            )
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
    )
    count, ids = ctypes.c_uint(), (ctypes.c_void_p * 8)()
    if not address or prototype(address)(len(ids), ids, ctypes.byref(count)):
        return []
    return [cl.Platform.from_int_ptr(i) for i in ids[: count.value] if i]


def _libraries() -> list[Path]:
    """List the places of the runtime's library: as pip noted them, then this environment's folders.

    What pip puts beside an environment's packages is not always under ``sys.prefix``: see
    ``pip install --user``, Debian's own Python, and environments that see another one's packages.
    """
    given: dict[Path, None] = {}
    for installed in metadata.distributions(name=DISTRIBUTION):
        # Its `files` leave out, from Python 3.12 on, what is gone.
        for name, *_ in csv.reader((installed.read_text("RECORD") or "").splitlines()):
            if name.rpartition("/")[2] in LIBRARIES:
                given[Path(str(installed.locate_file(name))).resolve()] = None
    for folder in FOLDERS:
        for name in LIBRARIES:
            path = Path(sys.prefix) / folder / name
            if path.exists():
                given[path.resolve()] = None
    return list(given)


def _address_in(library: Path) -> Any:
    """Return the address of what lists a runtime's platforms; None if it has no such function."""
    runtime = ctypes.CDLL(str(library))
    runtime.clGetExtensionFunctionAddress.restype = ctypes.c_void_p
    runtime.clGetExtensionFunctionAddress.argtypes = [ctypes.c_char_p]
    return runtime.clGetExtensionFunctionAddress(b"clIcdGetPlatformIDsKHR")


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
