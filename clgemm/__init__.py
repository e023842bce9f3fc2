"""SciPy's gemm and NumPy's matmul on any OpenCL device, tuned on first use.

Importing this package touches no OpenCL: the first call does.
"""

from clgemm._version import __version__
from clgemm.api.device_arrays import to_device
from clgemm.api.explain import explain
from clgemm.api.matmul import matmul
from clgemm.api.warm_up import warm_up
from clgemm.blas import cgemm, dgemm, get_blas_funcs, sgemm, zgemm
from clgemm.contraction.axes import matrix_transpose, transpose
from clgemm.contraction.chains import multi_dot
from clgemm.contraction.products import dot, inner, outer, tensordot, vdot, vecdot
from clgemm.contraction.sums import einsum
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
    "dot",
    "einsum",
    "explain",
    "get_blas_funcs",
    "inner",
    "install",
    "interposed",
    "matmul",
    "matrix_transpose",
    "multi_dot",
    "outer",
    "sgemm",
    "tensordot",
    "to_device",
    "transpose",
    "uninstall",
    "usage",
    "vdot",
    "vecdot",
    "warm_up",
    "zgemm",
]
