"""What clgemm raises, and the one warning it gives.

Every message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import scipy.linalg.blas

if TYPE_CHECKING:

    class _FblasError(Exception):
        """Stands for SciPy's own class while types are checked."""

else:
    # SciPy's generated wrappers raise a class of their own, which is no ValueError.  A caller who
    # catches that class must catch ours too; a SciPy without it leaves ValueError alone.
    _module: Any = getattr(scipy.linalg.blas, "_fblas", None)
    _FblasError = getattr(_module, "__fblas_error", None) or getattr(_module, "error", Exception)


class ClgemmError(Exception):
    """Base of every error that clgemm raises on its own account."""


class DeviceError(ClgemmError, RuntimeError):
    """No usable OpenCL device, or one that cannot do what was asked."""


class BuildError(DeviceError):
    """An OpenCL compiler refused a kernel; the message ends with its log."""


class TuningError(ClgemmError, RuntimeError):
    """No candidate survived a tuning run, or a tuning setting cannot be used."""


class GemmArgumentError(ClgemmError, _FblasError, ValueError):
    """A bad argument of a gemm call: derives from SciPy's error class and from ValueError."""


class ClgemmWarning(UserWarning):
    """Something was skipped (a device, a cache file) and the call goes on without it."""
