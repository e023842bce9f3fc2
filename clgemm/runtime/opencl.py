"""The only place where pyopencl is imported, at the first attribute asked of `cl`.

pyopencl keeps caches of compiled programs and of generated argument code in the user's cache
directory, and fails where that directory is read-only, full or no directory at all.  clgemm needs
neither, so they are off while it imports pyopencl, and it goes past them if the program imported
pyopencl first: programs are built without a cache, and arguments set without generated code.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from typing import TYPE_CHECKING, Any, cast

from clgemm.lazy_imports import lazy_import

__all__ = [
    "argument_setters",
    "arrays",
    "bare_launch",
    "build",
    "cl",
    "error_name",
    "from_binary",
    "load",
    "make_kernel",
    "new_array",
    "to_binary",
    "tools",
    "was_used",
]

_NO_CACHE = "PYOPENCL_NO_CACHE"
_used = False
_module: Any = None

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyopencl as cl
else:

    class _LazyModule:
        """Imports pyopencl when first used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(load(), name)

    cl = _LazyModule()


def load() -> Any:
    """Import pyopencl (once) and return the module."""
    global _used, _module  # noqa: PLW0603 - of the process: see `was_used`
    _used = True  # before the import: a fork may fall into it
    if _module is None:
        _module = _imported()
    return _module


def _imported() -> Any:
    before = os.environ.get(_NO_CACHE)
    os.environ.setdefault(_NO_CACHE, "1")
    try:
        return lazy_import("pyopencl")  # waits for another thread that is at it
    finally:
        if before is None:
            os.environ.pop(_NO_CACHE, None)  # another thread may have been faster


def was_used() -> bool:
    """Tell whether clgemm has used a driver here, or before this process was forked.

    Whatever it asks of one, it asks through this module.
    """
    return _used


@functools.cache
def tools() -> Any:
    """Return the module pyopencl.tools."""
    load()
    return lazy_import("pyopencl.tools")


@functools.cache
def arrays() -> Any:
    """Return the module pyopencl.array."""
    load()
    return lazy_import("pyopencl.array")


def build(context: cl.Context, text: str) -> cl.Program:
    """Compile a program from source, past pyopencl's cache of binaries.

    No build option is given, so none that relaxes arithmetic: NaN, infinities and signed zeros
    behave as in BLAS.
    """
    return _built(context, text)


def from_binary(context: cl.Context, binary: bytes) -> cl.Program:
    """Make a program of what `to_binary` gave for the same device and driver."""
    return _built(context, context.devices, [binary])


def _built(*contents: Any) -> cl.Program:
    """Build a program of what pyopencl's own class takes.

    What compilers say of what they accept ("kernel was not vectorized") is left unread.  pyopencl's
    `Program.build` makes warnings of it, and Python has one list of filters for all threads: to
    silence them here would silence others, and for good where two builds overlap.
    """
    inner = _inner_program()
    if inner is not None:
        program = inner(*contents)
        try:
            program._build(b"")  # noqa: SLF001 - see `_inner_program`
        except cl.Error:
            pass  # the public way says why, with the compiler's log
        else:
            return cast("cl.Program", program)
    public: Any = cl.Program(*contents)
    # False keeps pyopencl's cache out; its annotations know None only.
    return cast("cl.Program", public.build(cache_dir=False))


@functools.cache
def _inner_program() -> Any:
    """Return what `pyopencl.Program` wraps and builds without a warning, None if it has no such."""
    inner = getattr(load()._cl, "_Program", None)  # noqa: SLF001 - the public way warns
    return inner if hasattr(inner, "_build") else None


def to_binary(program: cl.Program) -> bytes:
    """Return what the compiler made of a program for its only device."""
    binaries: Any = program.get_info(cl.program_info.BINARIES)
    return bytes(binaries[0])


def error_name(error: cl.Error) -> str:
    """Return the OpenCL name of an error, such as INVALID_BUFFER_SIZE."""
    status: Any = cl.status_code
    return str(status.to_string(error.code, "code %d"))


def make_kernel(program: cl.Program, name: str) -> cl.Kernel:
    """Create a kernel object.

    Making the first one imports `pyopencl.invoker`, which opens a cache; see the module's text.
    """
    try:
        return cl.Kernel(program, name)
    except cl.Error:
        raise
    except Exception:  # noqa: BLE001 - a cache fails with OSError, KeyError, sqlite3's errors ...
        load()._PYOPENCL_NO_CACHE = True  # noqa: SLF001 - there is no public way after import
        return cl.Kernel(program, name)


def argument_setters(kernel: Any) -> tuple[Callable[[Any], object], Callable[[Any], object]]:
    """Return what sets arguments given as bytes, and what sets memory.

    Both take a tuple of places and values in turn.  What pyopencl's own generated code calls takes
    a tenth of a microsecond an argument; the public `set_arg` 5 to 8 for bytes.
    """
    numbers = getattr(kernel, "_set_arg_buf_multi", None)
    memory = getattr(kernel, "_set_arg_multi", None)
    if numbers is not None and memory is not None:
        return numbers, memory

    def set_each(arguments: tuple[Any, ...]) -> None:
        for place, value in zip(arguments[::2], arguments[1::2], strict=True):
            kernel.set_arg(place, value)

    return set_each, set_each


@functools.cache
def bare_launch() -> Callable[..., int] | None:
    """Return clEnqueueNDRangeKernel itself, None where it cannot be found.

    pyopencl's function makes an event of each launch, which takes two microseconds of an NVIDIA
    device's time and one of the host's.  As there, the GIL is kept: a launch does not wait.  The
    function is that of the very loader that pyopencl is linked with.  Pass handles as
    `ctypes.c_void_p`: it has no `argtypes`, since to convert nine arguments takes .4 us.
    """
    try:
        launch = ctypes.PyDLL(load()._cl.__file__).clEnqueueNDRangeKernel  # noqa: SLF001 - the linked module
    except (AttributeError, OSError):  # Windows finds no functions of what a library needs
        return None
    return cast("Callable[..., int]", launch)


def new_array(
    queue: cl.CommandQueue, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any,
    size: int, allocator: Any,
) -> Any:  # fmt: skip
    """Make a pyopencl Array whose elements are not set.

    The constructor works out, at 10 microseconds, what is known here; pyopencl's own operations
    go round that in the same way.

    Parameters
    ----------
    queue : cl.CommandQueue
        The Array's.
    shape, strides : tuple of int
        In elements and in bytes.
    dtype : numpy.dtype
        Of an element.
    size : int
        Elements.
    allocator : callable or None
        Gives its memory; None for the driver.
    """
    kind = arrays().Array
    if not _has_fast_constructor(kind):
        return kind(queue, shape, dtype, allocator=allocator, strides=strides)
    return kind(
        None, shape, dtype, "C", allocator, None, 0, strides, None, None, _fast=True, _size=size,
        _context=queue.context, _queue=queue,
    )  # fmt: skip


@functools.cache
def _has_fast_constructor(kind: Any) -> bool:
    known = inspect.signature(kind.__init__).parameters
    return {"_fast", "_size", "_context", "_queue"} <= set(known)
