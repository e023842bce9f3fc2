"""The only place where pyopencl is imported, at the first attribute asked of `cl`.

pyopencl keeps caches of compiled programs and of generated argument code in the user's cache
directory, and fails where that directory is read-only, full or no directory at all.  clgemm needs
neither, so they are off while it imports pyopencl.  If the program imported pyopencl first, its
setting stands, and `disable_caches` is there for the moment when they turn out to be unusable.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

__all__ = [
    "arrays",
    "build",
    "cl",
    "disable_caches",
    "error_name",
    "from_binary",
    "load",
    "make_kernel",
    "to_binary",
]

_NO_CACHE = "PYOPENCL_NO_CACHE"

if TYPE_CHECKING:
    import pyopencl as cl
else:

    class _LazyModule:
        """Imports pyopencl when first used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(load(), name)

    cl = _LazyModule()


def load() -> Any:
    """Import pyopencl (once) and return the module."""
    module = sys.modules.get("pyopencl")
    if module is not None and hasattr(module, "get_platforms"):
        return module
    before = os.environ.get(_NO_CACHE)
    os.environ.setdefault(_NO_CACHE, "1")
    try:
        return importlib.import_module("pyopencl")
    finally:
        if before is None:
            os.environ.pop(_NO_CACHE, None)  # another thread may have been faster


def disable_caches() -> None:
    """Turn pyopencl's caches off after it was imported with them on."""
    load()._PYOPENCL_NO_CACHE = True  # noqa: SLF001 - pyopencl offers no public way after import


def arrays() -> Any:
    """Return the module pyopencl.array."""
    load()
    return importlib.import_module("pyopencl.array")


def build(context: cl.Context, text: str) -> cl.Program:
    """Compile a program from source, past pyopencl's cache of binaries.

    No build option is given, so none that relaxes arithmetic: NaN, infinities and signed zeros
    behave as in BLAS.
    """
    return _built(cl.Program(context, text))


def from_binary(context: cl.Context, binary: bytes) -> cl.Program:
    """Make a program of what `to_binary` gave for the same device and driver."""
    return _built(cl.Program(context, context.devices, [binary]))


def _built(program: Any) -> cl.Program:
    with warnings.catch_warnings():
        # Compilers greet ("kernel was not vectorized"); what they refuse still raises.
        warnings.simplefilter("ignore")
        # False keeps pyopencl's cache out; its annotations know None only.
        program.build(cache_dir=False)
    return cast("cl.Program", program)


def to_binary(program: cl.Program) -> bytes:
    """Return what the compiler made of a program for its only device."""
    binaries: Any = program.get_info(cl.program_info.BINARIES)
    return bytes(binaries[0])


def error_name(error: cl.Error) -> str:
    """Return the OpenCL name of an error, such as INVALID_BUFFER_SIZE."""
    status: Any = cl.status_code
    return str(status.to_string(error.code, "code %d"))


def make_kernel(program: cl.Program, name: str, dtypes: list[Any]) -> cl.Kernel:
    """Create a kernel object whose scalar arguments have the given types (None: a pointer).

    Making the first one imports `pyopencl.invoker`, which opens a cache; see the module's text.
    """
    try:
        return _typed_kernel(program, name, dtypes)
    except cl.Error:
        raise
    except Exception:  # noqa: BLE001 - a cache fails with OSError, KeyError, sqlite3's errors ...
        disable_caches()
        return _typed_kernel(program, name, dtypes)


def _typed_kernel(program: cl.Program, name: str, dtypes: list[Any]) -> cl.Kernel:
    kernel = cl.Kernel(program, name)
    kernel.set_scalar_arg_dtypes(dtypes)
    return kernel
