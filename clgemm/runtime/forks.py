"""How a forked child gets away from the drivers of its parent.

It inherits drivers whose threads are gone.  What these held at the fork, which may be any lock at
any time, is held for ever in the child: Intel's workers go to sleep under one when a product has
already ended, and PoCL's never take up a launch.  So the child of a process that has used a driver
leaves all of them alone to its very end: it computes on the host, and ends without what the drivers
do at the end of a process.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from clgemm.errors import DeviceError
from clgemm.runtime import opencl

_inherited_a_driver = False

WHY_NOT = (
    "OpenCL drivers do not survive a fork, and the parent of this process had used one: start "
    'processes with multiprocessing.set_start_method("spawn")'
)
"""Why a forked child uses no device."""


def inherited_a_driver() -> bool:
    """Tell whether this is a forked child whose parent had used a driver."""
    return _inherited_a_driver


def refuse_if_inherited() -> None:
    """Refuse what needs a driver in such a child.

    Raises
    ------
    DeviceError
        That tells what to do instead.
    """
    if _inherited_a_driver:
        raise DeviceError(WHY_NOT)


def keep_for_ever(handles: object) -> None:
    """Never release handles of a driver, or what holds some: it may hang."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handles))


def _after_fork_in_child() -> None:
    global _inherited_a_driver  # noqa: PLW0603 - of the process
    if opencl.was_used():
        _inherited_a_driver = True
        _end_without_exit_handlers()


def _end_without_exit_handlers() -> None:
    """Have the C library's exit run none of the handlers that were registered before the fork.

    Among them are the drivers', which wait for their threads.  Python's own come before, and what
    the C library has yet to write is written.
    """
    library: Any = ctypes.pythonapi  # finds the C library's functions, too
    on_exit = getattr(library, "on_exit", None)
    if on_exit is None:  # another C library than glibc
        return
    # The last one registered is the first to run, and _exit takes the status as its first argument.
    on_exit(library._exit, None)  # noqa: SLF001 - that is its name
    library["__cxa_atexit"](library.fflush, None, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
