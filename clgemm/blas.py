"""`scipy.linalg.blas`'s gemm on an OpenCL device: sgemm, dgemm, cgemm, zgemm, get_blas_funcs.

The four routines take what SciPy's take and return what SciPy's return, apart from this, on
purpose:

- a read-only `c` is never written: the result is computed in a copy, whatever overwrite_c is;
- a `c` that shares memory with `a` or `b` is not written either, so the answer is right;
- a bad argument raises `GemmArgumentError`, which is both SciPy's own error and a ValueError;
- the GIL is released while the device works.

Operands are passed on where they lie, whatever their order and strides: only another dtype costs
a copy here.  pyopencl Arrays are computed on their own queue: see `device_arrays`.
"""

from __future__ import annotations

import cmath
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np

from clgemm.api import device_arrays, repeated, repeated_arrays, small
from clgemm.api.arguments import (
    as_factor,
    as_flag,
    as_matrix,
    as_result,
    as_transposition,
    is_device_array,
)
from clgemm.api.drop_in import stands_in_for
from clgemm.dispatch import engines
from clgemm.errors import GemmArgumentError
from clgemm.host import scipy_blas
from clgemm.problem import PRECISIONS, Call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import DTypeLike, NDArray

    from clgemm.problem import Precision

__all__ = ["cgemm", "dgemm", "get_blas_funcs", "sgemm", "zgemm"]

_CONJUGATE = 2

_DOC = """Compute alpha * op(a) @ op(b) + beta * c in {dtype}.

    Parameters
    ----------
    alpha : {factor}
        Factor of the product.  If it is 0, the values of `a` and `b` do not matter.
    a : array_like
        First operand, op(a) of shape (m, k), cast to {dtype} if need be.  A vector is a column, a
        number is 1 x 1.
    b : array_like
        Second operand, op(b) of shape (k, n), likewise.
    beta : {factor}, optional
        Factor of `c`, 0 by default.  If it is 0, the values of `c` do not matter.
    c : array_like, optional
        What is added to, zeros by default; of the result's shape, axes of size 1 apart.
    trans_a : {{0, 1, 2}}, optional
        op(a): 0 for `a`, 1 for its transpose, 2 for its conjugate transpose.
    trans_b : {{0, 1, 2}}, optional
        op(b), likewise.
    overwrite_c : int, optional
        If it is not 0, the result may be written into `c`.  It is if `c` is a writeable, aligned
        and Fortran-contiguous array of {dtype} that shares no memory with `a` or `b`; the result
        is then `c` itself.

    Returns
    -------
    numpy.ndarray
        A Fortran-contiguous array of {dtype}, of shape (m, n).

    Raises
    ------
    GemmArgumentError
        If shapes do not match or text is no number: both SciPy's own error and a ValueError.
    TypeError, IndexError, OverflowError
        If an argument cannot be read for its type, for being empty, or for its size.
    DeviceError
        If no device is usable{lacks}.
    MemoryError
        If there is no memory for the result or, on a device, for Arrays.

    See Also
    --------
    scipy.linalg.blas.{name} : The same on the CPU.

    Notes
    -----
    Operands may also be `pyopencl.array.Array` of {dtype}, all of them.  They are computed where
    they lie, on their own queue, and so is what is returned.

    Examples
    --------
    >>> import numpy as np
    >>> from clgemm.blas import {name}
    >>> a = np.array([[1, 2], [3, 4]], dtype=np.{dtype})
    >>> b = np.array([[1, 0], [1, 1]], dtype=np.{dtype})
    >>> bool(np.allclose({name}(2.0, a, b), 2 * (a @ b)))
    True
    >>> bool(np.allclose({name}(1.0, a, b, beta=1.0, c=a, trans_b=1), a @ b.T + a))
    True
    """


class Routine(Protocol):
    """A gemm of one precision, with the attributes that SciPy's functions carry."""

    __doc__: str | None
    __name__: str
    __qualname__: str
    typecode: str
    prefix: str
    dtype: np.dtype[Any]
    int_dtype: np.dtype[Any]
    module_name: str

    def __call__(
        self,
        alpha: Any,
        a: Any,
        b: Any,
        beta: Any = 0.0,
        c: Any = None,
        trans_a: Any = 0,
        trans_b: Any = 0,
        overwrite_c: Any = 0,
    ) -> NDArray[Any]:
        """Compute alpha * op(a) @ op(b) + beta * c."""
        ...


def _routine(code: str) -> Routine:
    """Return the gemm of a precision."""
    precision, name = PRECISIONS[code], f"{code}gemm"
    dtype = precision.dtype

    def gemm(
        alpha: Any,
        a: Any,
        b: Any,
        beta: Any = 0.0,
        c: Any = None,
        trans_a: Any = 0,
        trans_b: Any = 0,
        overwrite_c: Any = 0,
    ) -> NDArray[Any]:
        arguments = (alpha, a, b, beta, c, trans_a, trans_b, overwrite_c)
        product = small.gemm(dtype, arguments)
        if product is None:
            product = repeated_arrays.gemm(code, arguments)
        return _gemm(name, precision, *arguments) if product is None else product

    factor = "complex" if precision.is_complex else "float"
    lacks = ", or this one lacks double precision" if precision.is_double else ""
    gemm.__doc__ = _DOC.format(name=name, dtype=precision.dtype, factor=factor, lacks=lacks)
    gemm.__name__ = gemm.__qualname__ = name
    routine = cast("Routine", stands_in_for(partial(scipy_blas.gemm, code))(gemm))
    routine.typecode = routine.prefix = code
    routine.dtype, routine.int_dtype = precision.dtype, np.dtype(np.intc)
    routine.module_name = __name__
    small.faces[dtype] = routine
    return routine


def _gemm(
    where: str,
    precision: Precision,
    alpha: Any,
    a: Any,
    b: Any,
    beta: Any,
    c: Any,
    trans_a: Any,
    trans_b: Any,
    overwrite_c: Any,
) -> NDArray[Any]:
    """Read the arguments in the order SciPy reads them, and hand the product on."""
    plain = type(a) is np.ndarray and type(b) is np.ndarray and c is None
    if not plain and any(map(is_device_array, (a, b, c))):
        arguments = (alpha, a, b, beta, c, trans_a, trans_b, overwrite_c)
        return cast("NDArray[Any]", device_arrays.gemm(where, precision, *arguments))
    dtype, is_complex = precision.dtype, precision.is_complex
    overwrite_c = as_flag(where, "overwrite_c", overwrite_c)
    trans_a = as_transposition(where, "trans_a", trans_a)
    trans_b = as_transposition(where, "trans_b", trans_b)
    alpha = as_factor(where, "alpha", alpha, precision)
    beta = 0.0 if beta is None else as_factor(where, "beta", beta, precision)
    given = [x for x in (a, b) if isinstance(x, np.ndarray)]  # may be copied below
    a = as_matrix(where, "a", a, dtype)
    b = as_matrix(where, "b", b, dtype)
    op_a, op_b = a.T if trans_a else a, b.T if trans_b else b
    if op_a.shape[1] != op_b.shape[0]:
        raise GemmArgumentError(
            f"{where}: op(a) is {op_a.shape} and op(b) is {op_b.shape}: the inner dimensions "
            f"differ, {op_a.shape[1]} != {op_b.shape[0]}; set trans_a or trans_b, or pass "
            "operands that match"
        )
    shape = (op_a.shape[0], op_b.shape[1])
    if c is not None:
        kept = (a, b, *given) if overwrite_c else None
        result, target = as_result(where, c, dtype, shape, beta, kept)
    else:
        target, beta = _without_c(shape, dtype, beta)
        result = target
    conj_a, conj_b = is_complex and trans_a == _CONJUGATE, is_complex and trans_b == _CONJUGATE
    hosted = engines.compute(Call.of(alpha, op_a, op_b, beta, target, conj_a, conj_b))
    if alpha != 0:
        arguments = (alpha, a, b, beta, c, trans_a, trans_b, overwrite_c)
        repeated.remember_gemm(arguments, None if hosted else target)
    return result


def _without_c(
    shape: tuple[int, int], dtype: np.dtype[Any], beta: complex
) -> tuple[NDArray[Any], complex]:
    """Return memory for the result, and what it is multiplied by before."""
    if cmath.isfinite(beta):
        return np.empty(shape, dtype, "F"), 0.0
    # A c left out is zeros, and zero times NaN or infinity shows.
    return np.zeros(shape, dtype, "F"), beta


sgemm = _routine("s")
dgemm = _routine("d")
cgemm = _routine("c")
zgemm = _routine("z")
_ROUTINES = {routine.typecode: routine for routine in (sgemm, dgemm, cgemm, zgemm)}


@stands_in_for(scipy_blas.get_blas_funcs)
def get_blas_funcs(
    names: str | Iterable[str],
    arrays: Sequence[NDArray[Any]] = (),
    dtype: DTypeLike | None = None,
    ilp64: bool | Literal["preferred"] | None = None,
) -> Any:
    """Return BLAS functions by name: gemm from clgemm, every other one from SciPy.

    Parameters
    ----------
    names : str or sequence of str
        Names without the letter of the precision.
    arrays : sequence of numpy.ndarray, optional
        The precision is that of the most general of them.
    dtype : dtype_like, optional
        What decides on the precision if there are no arrays; float64 by default.
    ilp64 : {False, True, 'preferred'}, optional
        Whether SciPy's functions take 64-bit integers; the default is that of the installed SciPy.
        A gemm from here takes any size.

    Returns
    -------
    callable or list of callable
        One function for one name given as a str, else a list in the order of the names.

    Raises
    ------
    ValueError, RuntimeError
        Where SciPy raises them: a name it does not know, 64-bit integers it was built without.

    Examples
    --------
    >>> import numpy as np
    >>> gemm, gemv = get_blas_funcs(("gemm", "gemv"), dtype=np.complex64)
    >>> gemm is cgemm, gemv.typecode
    (True, 'c')
    """
    more = {} if ilp64 is None else {"ilp64": ilp64}
    scipys = partial(scipy_blas.get_blas_funcs(), arrays=arrays, dtype=dtype, **more)
    if isinstance(names, str):
        return _chosen(names, scipys(names))
    names = tuple(names)
    functions = scipys(names)
    return [_chosen(name, function) for name, function in zip(names, functions, strict=True)]


def _chosen(name: str, function: Any) -> Any:
    """Return clgemm's function in place of SciPy's, where there is one."""
    return _ROUTINES[function.typecode] if name == "gemm" else function
