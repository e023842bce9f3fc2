"""SciPy's BLAS, imported by the first call that needs it, and nowhere else.

Importing `scipy.linalg` takes as long as all else that a process does until its first product on a
device is there; such a product needs none of it.
"""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.lazy_imports import lazy_import, lazy_import_apart
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "scipy.linalg.blas"


@functools.cache
def module() -> ModuleType:
    """Return `scipy.linalg.blas`; threads that ask for it at once wait for one import."""
    return lazy_import_apart(_NAME)


@functools.cache
def gemm(code: str) -> Any:
    """Return SciPy's own gemm of a precision, whatever a program has put in its place since."""
    return _own(f"{code}gemm", extension(), module())


@functools.cache
def get_blas_funcs() -> Any:
    """Return SciPy's own `get_blas_funcs`, likewise."""
    return _own("get_blas_funcs", module(), lazy_import("scipy.linalg"))


@functools.cache
def copies_keep_class() -> bool:
    """Tell whether a result that SciPy could not write into `c` is of the class of `c`."""

    class Subclass(np.ndarray):
        pass

    c = np.zeros((1, 1), np.float32, "F")
    return isinstance(gemm("s")(1.0, c, c, c=c.view(Subclass)), Subclass)


def _own(name: str, *places: Any) -> Any:
    """Return the first function of that name that is not clgemm's."""
    for place in places:
        found = getattr(place, name, None)
        module_name = str(getattr(found, "__module__", ""))
        if found is not None and module_name.partition(".")[0] != __name__.partition(".")[0]:
            return found
    raise RuntimeError(
        f"clgemm cannot find SciPy's own {name}, because it was replaced by clgemm's everywhere: "
        "import scipy.linalg before clgemm"
    )


def extension() -> Any:
    """Return the compiled module behind it, None where there is none."""
    found = getattr(module(), "_fblas", None)
    if found is None:  # a signal handler's call may fall into this thread's import
        with suppress(ImportError):
            found = lazy_import("scipy.linalg._fblas")
    return found


def _take() -> None:
    """Take SciPy's functions before a program can replace them."""
    for code in PRECISIONS:
        gemm(code)
    get_blas_funcs()


if _NAME in sys.modules:
    _take()
