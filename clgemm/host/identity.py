"""What the host's own BLAS is: its processor, SciPy's library, the kernels and threads it uses."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any, NamedTuple

from clgemm.host import scipy_blas
from clgemm.runtime import processor

# Two ways of naming OpenBLAS' functions: as SciPy's wheels do, and as everybody else does.
PREFIXES = ("scipy_", "")
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


class OpenBlas(NamedTuple):
    """SciPy's OpenBLAS as it runs in this process."""

    core: str
    """Whose kernels it chose, such as Haswell (AVX2) or SkylakeX (AVX-512)."""
    threads: int
    config: str
    """Its version and how it was built."""


def openblas() -> OpenBlas | None:
    """Ask SciPy's OpenBLAS; None if SciPy uses another BLAS or it cannot be asked."""
    try:
        library = ctypes.CDLL(scipy_blas.extension().__file__)
    except (AttributeError, OSError):
        return None
    for prefix in PREFIXES:
        try:
            core, config, threads = (
                getattr(library, f"{prefix}openblas_get_{what}")
                for what in ("corename", "config", "num_threads")
            )
        except AttributeError:
            continue
        core.restype = config.restype = ctypes.c_char_p
        return OpenBlas(core().decode(), int(threads()), config().decode())
    return None


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def identity() -> dict[str, str | int]:
    """Return the facts that the host's rates depend on, in clear, as JSON can hold them.

    What its BLAS says of itself once it is loaded is apart: see `library`.
    """
    scipy = scipy_blas.package()
    blas = scipy.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    return {
        "processor": processor.identity() or platform.machine(),
        "cores": usable_cores(),
        "scipy": scipy.__version__,
        "blas": f"{blas.get('name', '?')} {blas.get('version', '?')}",
        "environment": " ".join(
            f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if os.environ.get(name)
        ),
    }


def library() -> dict[str, str | int]:
    """Return the kernels and threads that the host's BLAS uses in this process; loads it."""
    running = openblas()
    return {
        "kernels": running.core if running else "?",
        "threads": running.threads if running else 0,
    }


def is_as_noted(noted: Any) -> bool:
    """Tell whether the host's BLAS is as `library` described it in another process.

    A library that is not loaded is not asked if it was found with a thread a core, as it will be
    unless its variables, a part of `identity`, say otherwise: no program can have changed that yet.
    """
    if not isinstance(noted, dict):
        return False
    if noted.get("threads") == usable_cores() and not scipy_blas.is_loaded():
        return True
    return noted == library()
