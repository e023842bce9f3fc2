"""What clgemm raises, and the one warning it gives.

Every message says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from clgemm.lazy_imports import lazy_import

if TYPE_CHECKING:
    from typing_extensions import Self


class ClgemmError(Exception):
    """Base of every error that clgemm raises on its own account."""


class DeviceError(ClgemmError, RuntimeError):
    """No usable OpenCL device, or one that cannot do what was asked."""


class BuildError(DeviceError):
    """An OpenCL compiler refused a kernel; the message ends with its log."""


class NoKernelError(DeviceError):
    """No kernel is left that computes in a type on a device: all that could were refused."""


class TuningError(ClgemmError, RuntimeError):
    """No candidate survived a tuning run, or a tuning setting cannot be used."""


class GemmArgumentError(ClgemmError, ValueError):
    """A bad argument of a gemm call.

    What is raised is an instance of SciPy's own error class as well, so whoever catches that one
    catches it.  The two meet in a subclass that the first error makes: SciPy's is imported then.
    """

    def __new__(cls, *args: object) -> Self:
        """Make an instance of the class that is SciPy's, too."""
        kind = _argument_error() if cls is GemmArgumentError else cls
        return cast("Self", super().__new__(kind, *args))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as this class, which other processes find by its name."""
        return GemmArgumentError, self.args


def scipy_error(blas: Any = None) -> type[Exception]:
    """Return the class of what SciPy's BLAS wrappers raise, which is no ValueError.

    Parameters
    ----------
    blas : module, optional
        `scipy.linalg.blas`, imported if it is not given.
    """
    generated = getattr(blas or lazy_import("scipy.linalg.blas"), "_fblas", None)
    found: Any = getattr(generated, "__fblas_error", None) or getattr(generated, "error", None)
    return cast("type[Exception]", found or Exception)


@functools.cache
def _argument_error() -> type[GemmArgumentError]:
    bases = (GemmArgumentError, scipy_error())
    names = {"__module__": __name__, "__doc__": GemmArgumentError.__doc__}
    return cast("type[GemmArgumentError]", type(GemmArgumentError.__name__, bases, names))


class ClgemmWarning(UserWarning):
    """Something was skipped (a device, a cache file) and the call goes on without it."""
