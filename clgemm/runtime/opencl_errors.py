"""What OpenCL's errors mean to a caller: a cause, a place and a remedy."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from clgemm.errors import DeviceError
from clgemm.runtime import opencl
from clgemm.runtime.memory import is_short_of_memory
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

TRANSIENT = frozenset({"DEVICE_NOT_AVAILABLE", "OUT_OF_HOST_MEMORY"})


def is_transient(error: BaseException | None) -> bool:
    """Tell whether an OpenCL call failed by what no kernel can be blamed for."""
    return isinstance(error, cl.Error) and opencl.error_name(error) in TRANSIENT


def translated(error: Any, where: str) -> DeviceError | MemoryError:
    """Turn an OpenCL error into one of clgemm's, with a cause and a remedy.

    Parameters
    ----------
    error : pyopencl.Error
        What was raised.
    where : str
        What was being done, on which device.
    """
    code = opencl.error_name(error)
    if is_short_of_memory(error):
        return MemoryError(
            f"{where}: the device has no memory for this call ({code}); use smaller blocks, or "
            "CLGEMM_ROUTE=host"
        )
    return DeviceError(
        f"{where}: {error.routine} failed with {code}; set CLGEMM_DEVICE to another device, or "
        "CLGEMM_ROUTE=host to work without one"
    )


@contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Do the same for a block of code that is not in the path of every call."""
    try:
        yield
    except cl.Error as error:
        raise translated(error, where) from error


def translating(where: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Do the same for a function; it costs a tenth of a microsecond a call.

    What has been translated inside the function, with a better word of where, stays as it is.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*arguments: P.args, **more: P.kwargs) -> T:
            try:
                return function(*arguments, **more)
            except cl.Error as error:
                raise translated(error, where) from error

        return call

    return decorated
