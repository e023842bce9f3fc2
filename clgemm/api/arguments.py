"""What a caller of gemm may pass, turned into numbers and arrays by the rules of SciPy's wrappers.

Those wrappers are generous: a factor may be any number, text that reads as one, or the first
element of a sequence; a matrix may be anything NumPy can cast.  Programs rely on it, so the same
steps are taken here in the same order, and what SciPy refuses is refused with an exception of the
same class.  The common types are tested for first: on small matrices the conversions would
otherwise cost more than the product.

Arrays on a device are told apart before NumPy touches them: it knows nothing of
`pyopencl.array.Array`, and would read one element at a time or call it a sequence.
"""

from __future__ import annotations

import operator
import sys
import warnings
from ctypes import c_float
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.exceptions import ComplexWarning

from clgemm.errors import GemmArgumentError
from clgemm.host import scipy_blas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from clgemm.problem import Precision

_Number = TypeVar("_Number", int, float)

# A warning names the user's line.  What was called from there, up to the function that warns: the
# routine, the body that the four share, as_something, what reads a number or an array, the warner.
_STACKLEVEL = 6
# As deep as NumPy's arrays can be; a list that contains itself has no first number.
_DEEPEST = 64
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_TRANSPOSITIONS = range(3)
_MATRIX = 2
# Steps that NumPy may spend on whether strided arrays share memory; undecided counts as shared.
_OVERLAP_WORK: Any = 1000
_ARRAY_TYPES: set[type] = set()  # pyopencl.array.Array, once it was seen


def is_device_array(x: object) -> bool:
    """Tell whether `x` is a `pyopencl.array.Array`, without importing that module."""
    if type(x) in _ARRAY_TYPES:  # sooner
        return True
    # Only a program that has imported pyopencl.array can own such an array.
    array_type = getattr(sys.modules.get("pyopencl.array"), "Array", None)
    if array_type is None:
        return False
    _ARRAY_TYPES.add(array_type)
    return isinstance(x, array_type)


def refuse_device_arrays(where: str, *operands: object) -> None:
    """Raise TypeError if an operand is a `pyopencl.array.Array`.

    Parameters
    ----------
    where : str
        What was called, and with which argument where that is known; the message starts with it.
    *operands : object
        What the user passed.

    Raises
    ------
    TypeError
        If one of the operands lives on a device.

    Examples
    --------
    >>> import numpy as np
    >>> refuse_device_arrays("sgemm", np.eye(2), [[1.0]], None)
    """
    if any(map(is_device_array, operands)):
        raise TypeError(
            f"{where}: got a pyopencl.array.Array where a number or a host array is meant: call "
            ".get() on it; operands are either all on the device or all on the host"
        )


def as_factor(where: str, name: str, value: Any, precision: Precision) -> complex:
    """Return alpha or beta, rounded to the precision.

    Rounding comes before every test for zero: 1e-50 is 0 in single precision, and what is
    multiplied by 0 is not read.  Beyond the range it is infinity, without a warning.
    """
    factor: complex
    if type(value) is float:
        factor = value
    elif precision.is_complex:
        factor = _first_complex(where, name, value)
    else:
        factor = _first_number(float, where, name, value)
    if precision.is_double:
        return factor
    if isinstance(factor, complex):
        return complex(c_float(factor.real).value, c_float(factor.imag).value)
    return c_float(factor).value


def as_transposition(where: str, name: str, value: Any) -> int:
    """Return 0, 1 or 2; None is 0."""
    if type(value) is int and value in _TRANSPOSITIONS:
        return value
    code = 0 if value is None else _first_number(int, where, name, value)
    if not _INT_MIN <= code <= _INT_MAX:
        raise OverflowError(f"{where}: {name} is {code}, too large for a C int: pass 0, 1 or 2")
    if code not in _TRANSPOSITIONS:
        raise GemmArgumentError(
            f"{where}: {name} is {code}: pass 0 (as it is), 1 (transposed) or "
            "2 (conjugated and transposed)"
        )
    return code


def as_flag(where: str, name: str, value: Any) -> bool:
    """Return a flag, for which only an integer is taken."""
    try:
        flag = operator.index(value)
    except TypeError as error:
        raise TypeError(
            f"{where}: {name} is a {type(value).__name__}, which is no integer: pass 0 or 1"
        ) from error
    if not _INT_MIN <= flag <= _INT_MAX:
        raise OverflowError(f"{where}: {name} is {flag}, too large for a C int: pass 0 or 1")
    return flag != 0


def as_matrix(where: str, name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a matrix of the dtype: a view where that is possible, never a subclass.

    A number is 1 x 1 and a vector is a column.  Of three axes or more those of size 1 are dropped,
    and all but the first are then merged in Fortran order.
    """
    array = as_array(where, name, value, dtype)
    if array.ndim == _MATRIX:
        return array
    if array.ndim < _MATRIX:
        return array.reshape((-1, 1) if array.size else (1, 0))
    if not array.size:
        raise GemmArgumentError(
            f"{where}: {name} is {array.shape}, empty and of {array.ndim} axes: "
            "pass an empty matrix of two axes"
        )
    rows = next((size for size in array.shape if size != 1), 1)
    return array.reshape((rows, -1), order="F")


def as_array(where: str, name: str, value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an aligned array of the dtype and of any rank, cast by NumPy's unsafe rule."""
    if type(value) is np.ndarray and value.dtype is dtype and value.flags.aligned:
        return value
    refuse_device_arrays(f"{where}, argument {name}", value)
    try:
        # A list is read in the dtype at once: Python's complex numbers do not fit a real one.
        typed = hasattr(type(value), "__array__")
        array: NDArray[Any] = np.asarray(value) if typed else np.asarray(value, dtype)
        if array.dtype.kind == "c" and dtype.kind != "c":
            _warn_of_cast(where, name)
            array = array.real
        array = array.astype(dtype, copy=False)
        return array if array.flags.aligned else array.copy("K")
    except (TypeError, ValueError, OverflowError) as error:
        message = f"{where}: {name} cannot be read as an array of {dtype}: {error}"
        raise _refusal(error, message) from error


def as_result(
    where: str,
    c: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    beta: complex,
    operands: Sequence[NDArray[Any]] | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what the call returns if a `c` is given, and its memory as a matrix of the shape.

    It holds the values of `c` unless beta is 0.  It is `c` itself only where `operands` are given,
    those that `c` must not share memory with, and where a result can be written as `c` lies.
    """
    if isinstance(c, np.ndarray):  # its shape is wrong before its type is
        _require_shape(where, c.shape, shape)
    array = as_array(where, "c", c, dtype)
    _require_shape(where, array.shape, shape)
    result: NDArray[Any]
    if operands is not None and _is_writeable(c, dtype) and not _overlaps(array, operands):
        result = c
    else:
        result, values = _like(c, array.shape, dtype), array
        array = result.view(np.ndarray)
        if beta != 0:
            array[...] = values
    return result, array if array.shape == shape else array.reshape(shape, order="F")


def _require_shape(where: str, found: tuple[int, ...], shape: tuple[int, int]) -> None:
    """Refuse a `c` that is not of the result's shape, axes of size 1 apart."""
    axes = found if len(found) <= _MATRIX else tuple(d for d in found if d != 1)
    if axes + (1,) * (_MATRIX - len(axes)) != shape:
        raise GemmArgumentError(
            f"{where}: c is {found} and the result is {shape}: pass a c of that shape, or "
            "leave it out"
        )


def _like(c: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return memory for a result that is not `c` itself, of the class that SciPy's would have."""
    if isinstance(c, np.ndarray) and type(c) is not np.ndarray and scipy_blas.copies_keep_class():
        return np.empty_like(c, dtype, "F")
    return np.empty(shape, dtype, "F")


def _is_writeable(c: Any, dtype: np.dtype[Any]) -> bool:
    """Say whether a result can be written into `c` as it lies."""
    if not isinstance(c, np.ndarray) or c.dtype != dtype:
        return False
    return c.flags.f_contiguous and c.flags.aligned and c.flags.writeable


def _overlaps(array: NDArray[Any], operands: Sequence[NDArray[Any]]) -> bool:
    """Say whether an array may share memory with one of the operands."""
    return any(np.may_share_memory(array, operand, _OVERLAP_WORK) for operand in operands)


def _first_number(number: Callable[[Any], _Number], where: str, name: str, value: Any) -> _Number:
    """Return number(value), or that of its real part, or that of its first element."""
    refuse_device_arrays(f"{where}, argument {name}", value)
    failure: Exception | None = None
    for _ in range(_DEEPEST):
        if isinstance(value, np.complexfloating):
            _warn_of_cast(where, name)
            value = value.real
        try:
            return number(value)
        except (TypeError, ValueError, OverflowError) as error:
            failure = error
        if isinstance(value, complex):
            value = value.real
        elif _is_sequence(value):
            value = _first(where, name, value)
        else:
            break
    kind = "an integer" if number is int else "a number"
    message = f"{where}: {name} cannot be read as {kind}: {failure}"
    raise _refusal(failure, message) from failure


def _first_complex(where: str, name: str, value: Any) -> complex:
    """Return complex(value), or that of its first element; text and fractions are refused."""
    refuse_device_arrays(f"{where}, argument {name}", value)
    for _ in range(_DEEPEST):
        try:
            if isinstance(value, (complex, float, int)):
                return complex(value)
            if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
                return complex(np.asarray(value).astype(np.complex128)[()])
        except (TypeError, ValueError, OverflowError) as error:
            message = f"{where}: {name} cannot be read as a complex number: {error}"
            raise _refusal(error, message) from error
        if not _is_sequence(value):
            break
        value = _first(where, name, value)
    raise TypeError(
        f"{where}: {name} cannot be read as a complex number: "
        f"pass an int, a float or a complex, not a {type(value).__name__}"
    )


def _is_sequence(value: Any) -> bool:
    """Say whether the first element of a value may stand for it."""
    if isinstance(value, (str, bytes, dict, np.generic)):
        return False
    return hasattr(type(value), "__getitem__")


def _first(where: str, name: str, value: Any) -> Any:
    """Return the first element of a sequence."""
    try:
        return value[0]
    except IndexError as error:
        raise IndexError(f"{where}: {name} is empty or has no axis: pass a number") from error


def _warn_of_cast(where: str, name: str) -> None:
    """Warn as NumPy does, of the user's line."""
    message = f"{where}: casting complex values of {name} to real discards the imaginary part"
    warnings.warn(message, ComplexWarning, stacklevel=_STACKLEVEL)


def _refusal(error: Exception | None, message: str) -> Exception:
    """Return an exception of the class SciPy raises here, which is that of Python or of NumPy."""
    for kind in (TypeError, OverflowError):
        if isinstance(error, kind):
            return kind(message)
    return GemmArgumentError(message)
