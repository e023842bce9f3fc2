"""SciPy's BLAS, imported by the first call that needs it, and nowhere else.

Importing `scipy.linalg` takes as long as all else that a process does until its first product on a
device is there; such a product needs none of it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "scipy.linalg.blas"


@functools.cache
def module() -> ModuleType:
    """Return `scipy.linalg.blas`; threads that ask for it at once wait for one import."""
    return importlib.import_module(_NAME)


def package() -> ModuleType:
    """Return `scipy` itself, which is soon imported."""
    return importlib.import_module("scipy")


def is_loaded() -> bool:
    """Tell whether anybody imported it, or the library that is behind it."""
    return _NAME in sys.modules or f"{_NAME.rpartition('.')[0]}._fblas" in sys.modules


def gemm(code: str) -> Any:
    """Return SciPy's gemm of a precision, as it stands now: programs replace it in tests."""
    return getattr(module(), f"{code}gemm")


def extension() -> Any:
    """Return the compiled module behind it, None where there is none."""
    return getattr(module(), "_fblas", None)


def error_class() -> type[Exception]:
    """Return the class of what SciPy's wrappers raise, which is no ValueError."""
    generated = extension()
    found: Any = getattr(generated, "__fblas_error", None) or getattr(generated, "error", None)
    return cast("type[Exception]", found or Exception)
