"""What products of pyopencl Arrays do: decided once for each kind of call.

It depends on the shapes, strides and types of the operands, and on how their offsets are aligned.
The code that serves NumPy's arrays works it out, from arrays that have a layout and no memory.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.api import stacks
from clgemm.errors import GemmArgumentError
from clgemm.layouts import address_of, layout_of
from clgemm.problem import (
    ALIGNMENT,
    BY_DTYPE,
    ELEMENT_OF,
    PRECISIONS,
    Call,
    alignment_class,
    describe,
    dtype_of_product,
)
from clgemm.runtime.opencl_errors import translated_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.dispatch.engine import Engine
    from clgemm.problem import Precision
    from clgemm.runtime.kernel_runner import KernelRunner

_MATRIX = 2
COARSEST = 63  # bytes: no kernel relies on more than multiples of 64
_BASES = (1 << 44, 2 << 44, 3 << 44)  # where layouts of a, b and c begin: no buffer is as long


class Product(NamedTuple):
    """One of the products that a call consists of."""

    runner: KernelRunner
    transposed: bool
    """The first operand is b: C is row-major, and its transpose is computed."""
    offsets: tuple[int, int, int]
    """Elements from the first one of the three operands, in the runner's order."""


class ArrayDecision(NamedTuple):
    """What calls of a kind do."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Of a fresh result, in bytes."""
    dtype: np.dtype[Any]
    """Of a fresh result."""
    size: int
    """Its elements."""
    products: tuple[Product, ...]
    """None if there is nothing to add up: the result is zero, or beta * c."""


def decide_matmul(engine: Engine, a: Any, b: Any, out: Any, *, same: bool) -> ArrayDecision:
    """Check the operands of a kind of call, and make what computes it.

    `same` tells whether `a` and `b` begin at the same place of the same memory.
    """
    arrays = [a, b] if out is None else [a, b, out]
    require_element_type(*arrays)
    x, y = _layouts(a, b)
    if not x.ndim or not y.ndim:
        raise ValueError("matmul: an operand has no axis: multiply by a number instead")
    left, right = (x if x.ndim > 1 else x[None]), (y if y.ndim > 1 else y[:, None])
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"matmul: a is {a.shape} and b is {b.shape}: the inner dimensions differ, "
            f"{left.shape[-1]} != {right.shape[-2]}"
        )
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    m, n = left.shape[-2], right.shape[-1]
    shape = batch + (m,) * (x.ndim > 1) + (n,) * (y.ndim > 1)
    if out is not None and out.shape != shape:
        raise ValueError(f"matmul: out is {out.shape} and the result is {shape}")
    strides = _c_strides(shape, a.dtype.itemsize) if out is None else out.strides
    size, dtype = math.prod(shape), dtype_of_product(a.dtype, b.dtype)
    if not size or not left.shape[-1]:
        return ArrayDecision(shape, strides, dtype, size, ())
    z = _layouts(a, b, _Result(shape, strides, a.dtype) if out is None else out)[2]
    c = z[(..., *((slice(None),) if x.ndim > 1 else (None,)),
           *((slice(None),) if y.ndim > 1 else (None,)))]  # fmt: skip
    products = tuple(
        _product(engine, Call.of(1.0, first, second, 0.0, product), same=same)
        for first, second, product in stacks.fold(left, right, c)
    )
    return ArrayDecision(shape, strides, dtype, size, products)


def decide_gemm(
    engine: Engine, arrays: tuple[Any, Any, Any], beta: Any, trans_a: int, trans_b: int, *,
    same: bool,
) -> ArrayDecision:  # fmt: skip
    """Make what computes a kind of call into a result that is there.

    `same` tells whether `a` and `b` begin at the same place, and C is mirrored with any alpha.
    """
    x, y, z = _layouts(*arrays)
    left, right = x.T if trans_a else x, y.T if trans_b else y
    conj = 2 if np.iscomplexobj(z) else None
    call = Call.of(1.0, left, right, beta, z, trans_a == conj, trans_b == conj)
    return ArrayDecision(z.shape, z.strides, z.dtype, z.size, (_product(engine, call, same=same),))


def shape_of_product(
    where: str, precision: Precision, a: Any, b: Any, c: Any, trans_a: int, trans_b: int
) -> tuple[int, int]:
    """Check the operands of a kind of call; return the shape of its result."""
    arrays = (a, b) if c is None else (a, b, c)
    require_dtype(where, precision.dtype, *arrays)
    if any(x.ndim != _MATRIX for x in arrays):
        raise GemmArgumentError(f"{where}: device arrays must be matrices, of two axes each")
    left = a.shape[::-1] if trans_a else a.shape
    right = b.shape[::-1] if trans_b else b.shape
    shape = (left[0], right[1])
    if left[1] != right[0] or (c is not None and c.shape != shape):
        raise GemmArgumentError(
            f"{where}: op(a) is {left}, op(b) is {right}"
            + (f" and c is {c.shape}" if c is not None else "")
            + ": pass operands that match, or set trans_a or trans_b"
        )
    return shape


def require_dtype(where: str, dtype: np.dtype[Any], *arrays: Any) -> None:
    """Refuse Arrays unless all are of one type that a BLAS routine computes in."""
    dtypes = [x.dtype for x in arrays]
    if dtype not in BY_DTYPE or any(x != dtype for x in dtypes):
        raise TypeError(
            f"{where}: device arrays are {', '.join(map(str, dtypes))}: pass arrays of one of "
            "float32, float64, complex64, complex128, the routine's own; .astype() converts"
        )


def require_element_type(*arrays: Any) -> None:
    """Refuse operands and out of `matmul` unless all are of one type that a device computes in."""
    dtypes = [x.dtype for x in arrays]
    if dtypes[0] not in ELEMENT_OF or any(x != dtypes[0] for x in dtypes):
        raise TypeError(
            f"matmul: device arrays are {', '.join(map(str, dtypes))}: pass arrays of one type, "
            f"which is one of {', '.join(map(str, ELEMENT_OF))}; .astype() converts"
        )


def _product(engine: Engine, call: Call, *, same: bool) -> Product:
    """Make what computes one product of layouts; those of `same` memory may be one matrix."""
    precision = ELEMENT_OF[call.c.dtype]
    if precision.code in PRECISIONS:  # of other types the engine tells what it cannot compute
        engine.device.require(precision)
    bases = (_BASES[1], _BASES[0], _BASES[2]) if call.transposed else _BASES
    places, ends = [], []
    for x, base in zip((call.a, call.b, call.c), bases, strict=True):
        begin = _begin(x)
        place, rest = divmod(address_of(x) - begin, x.itemsize)
        start, odd = divmod(begin - base, x.itemsize)
        if rest or odd or layout_of(x) is None:
            raise ValueError(
                "an operand lies in device memory as no BLAS can read it (two strides, a negative "
                "one, or an odd offset): call .copy() on it first"
            )
        places.append(place)
        ends.append(place | start)  # a multiple of what both are multiples of
    is_gram = same and places[0] == places[1]
    problem = describe(
        *call.operands, call.c, reads_c=call.beta != 0, is_gram=is_gram
    )._replace(
        offset_a=alignment_class(ends[0]), offset_b=alignment_class(ends[1]),
        offset_c=alignment_class(ends[2]),
        aligned=not (ends[0] | ends[1]) * precision.itemsize
        % math.lcm(ALIGNMENT, precision.itemsize),
    )  # fmt: skip
    with translated_errors(f"a product of {precision.dtype} on {engine}"):
        runner = engine.build(problem)
    return Product(runner, call.transposed, (places[0], places[1], places[2]))


def _begin(x: NDArray[Any]) -> int:
    """Return where the operand begins that a view is of."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return address_of(x)


class _NotThere(np.ndarray):
    """An array that has a layout and no memory: what shows the variables of a traceback asks it."""

    def __repr__(self) -> str:
        return f"<a layout: {self.dtype}, shape {self.shape}, strides {self.strides}>"

    __str__ = __repr__


class _Layout:
    """What NumPy needs to make an array of something that is not there."""

    def __init__(self, x: Any, base: int) -> None:
        self.__array_interface__ = {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": x.dtype.str,
            "data": (base + (x.offset & -x.offset & COARSEST), False),
            "version": 3,
        }


def _layouts(*arrays: Any) -> list[NDArray[Any]]:
    """Make arrays of Arrays' shapes and strides, whose elements nobody may read or write."""
    places = [_Layout(x, base) for x, base in zip(arrays, _BASES, strict=False)]
    return [np.asarray(place).view(_NotThere) for place in places]


class _Result(NamedTuple):
    """The layout of a result that is not there yet."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int = 0


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for extent in shape[:0:-1]:
        strides.append(strides[-1] * max(1, extent))
    return tuple(reversed(strides)) if shape else ()
