"""SciPy's gemm and NumPy's matmul on any OpenCL device, tuned on first use.

Importing this package touches no OpenCL: the first call does.
"""

from clgemm._version import __version__
from clgemm.api.device_arrays import to_device
from clgemm.api.explain import explain
from clgemm.api.matmul import matmul
from clgemm.api.warm_up import warm_up
from clgemm.blas import cgemm, dgemm, get_blas_funcs, sgemm, zgemm
from clgemm.dispatch.explanation import Explanation
from clgemm.errors import (
    BuildError,
    ClgemmError,
    ClgemmWarning,
    DeviceError,
    GemmArgumentError,
    TuningError,
)
from clgemm.interpose.hook import install, interposed, uninstall, usage

__all__ = [
    "BuildError",
    "ClgemmError",
    "ClgemmWarning",
    "DeviceError",
    "Explanation",
    "GemmArgumentError",
    "TuningError",
    "__version__",
    "cgemm",
    "dgemm",
    "explain",
    "get_blas_funcs",
    "install",
    "interposed",
    "matmul",
    "sgemm",
    "to_device",
    "uninstall",
    "usage",
    "warm_up",
    "zgemm",
]
