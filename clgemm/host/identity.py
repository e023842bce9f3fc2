"""What the host computes with: its processor, NumPy's library, the kernels and threads it uses."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np

from clgemm.host import openblas
from clgemm.runtime import processor

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE",
    "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip


def identity() -> dict[str, str | int]:
    """Return the facts that the host's rates depend on, in clear, as JSON can hold them.

    What NumPy's library says of itself is apart, since it changes: see `library`.
    """
    blas = _build_facts().get("Build Dependencies", {}).get("blas", {})
    return {
        "processor": processor.identity() or platform.machine(),
        "cores": processor.usable_cores(),
        "numpy": np.__version__,
        "blas": f"{blas.get('name', '?')} {blas.get('version', '?')}",
        "environment": " ".join(
            f"{name}={os.environ[name]}" for name in THREAD_VARIABLES if os.environ.get(name)
        ),
    }


def _build_facts() -> Any:
    """Return what NumPy knows of its build; NumPy 1.25 can only print it."""
    try:
        return np.show_config(mode="dicts")
    except TypeError:
        return {}


def library() -> dict[str, str | int]:
    """Return the kernels and threads that NumPy's library uses in this process."""
    running = openblas.of_numpy()
    return {
        "kernels": running.core if running else "?",
        "threads": running.threads() if running else 0,
    }
