"""Arrays as users have them: any type, layout, class and value, each made from numbers alone."""

from __future__ import annotations

import functools
import math
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRECISE = ("f4", "f8", "c8", "c16")
OTHER_TYPES = (
    "?", "i1", "u1", "i2", "u4", "i4", "i8", "u8", "f2", "g", "G", "O",
    ">f4", ">f8", ">c8", ">c16", ">i4", "U3", "S3", "m8[s]", "M8[D]", "V4",
)  # fmt: skip
VALUES = ("whole", "uniform", "scaled", "special", "huge", "subnormal")
FORMS = ("ndarray", "Sub", "Ranked", "matrix", "masked", "memmap", "ArrayLike", "list", "tuple")
NOT_ARRAYS = ("ArrayLike", "list", "tuple")
GUARD = 64  # bytes before and after the elements
POISON = 0xFF  # each float made of such bytes is NaN


class Sub(np.ndarray):
    """A subclass like any other."""


class Ranked(np.ndarray):
    """A subclass that wins over others."""

    __array_priority__ = 15.0


class ArrayLike:
    """What knows how to become an array, and is none."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return self.array


@dataclass(frozen=True)
class Layout:
    """How an array lies in its memory; axes are those of the array, however long they are."""

    order: str = "C"
    """C, F, or "mixed": the axes in an order of their own."""
    step: int = 1
    """Elements from one to the next along the fastest axis."""
    pad: int = 0
    """Further elements behind each walk along that axis."""
    gap: int = 0
    """Further bytes between any two elements."""
    shift: int = 0
    """Bytes before the first element."""
    negative: tuple[int, ...] = ()
    """Axes that are walked backwards."""
    repeated: tuple[int, ...] = ()
    """Axes of stride 0."""
    sliding: bool = False
    """Whether the second axis goes on one element behind the first one's start."""

    def strides(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
        """Return strides in bytes."""
        count = len(shape)
        fastest_first = list(range(count))[:: 1 if self.order == "F" else -1]
        if self.order == "mixed":
            fastest_first = fastest_first[1:] + fastest_first[:1]
        result, run = [0] * count, (itemsize + self.gap) * self.step
        for place, axis in enumerate(fastest_first):
            if axis in self.repeated:
                continue
            result[axis] = -run if axis in self.negative else run
            if not (self.sliding and place == 0):
                run = run * max(1, shape[axis]) + (self.pad * itemsize if place == 0 else 0)
        return tuple(result)


PLAIN = Layout()


@dataclass(frozen=True)
class Operand:
    """An array, described."""

    shape: tuple[int, ...]
    dtype: str
    values: str = "whole"
    seed: int = 0
    layout: Layout = PLAIN
    form: str = "ndarray"
    writeable: bool = True

    @property
    def in_memory(self) -> bool:
        """Whether its elements are bytes of a block of memory."""
        return np.dtype(self.dtype).kind in "?biufcmMV"


@dataclass
class Made:
    """An operand that was made."""

    value: Any
    """What a call is given."""
    array: NDArray[Any]
    """Its elements."""
    memory: NDArray[np.uint8] | None
    """All bytes around them; None for objects, which have no place."""
    before: Any = None

    def remember(self) -> None:
        """Note what there is now."""
        kept = self.array if self.memory is None else self.memory
        self.before = kept.copy()
        self.mask = self.array_mask()

    def array_mask(self) -> Any:
        """Return the mask of a masked array."""
        return np.ma.getmaskarray(self.value).copy() if np.ma.isMA(self.value) else None

    def changed(self, *, but_elements: bool = False) -> str:
        """Say what has changed since, or ""."""
        if self.memory is None:
            same = self.array.shape == self.before.shape and all(
                x is y or x == y or (x != x and y != y)  # noqa: PLR0124 - NaN
                for x, y in zip(self.array.flat, self.before.flat, strict=True)
            )
            return "" if same else "its elements"
        different = self.memory != self.before
        if but_elements:
            different[elements_of(self.array, self.memory)] = False
            return "memory around its elements" if different.any() else ""
        if self.mask is not None and not np.array_equal(self.mask, self.array_mask()):
            return "its mask"
        return "its memory" if different.any() else ""


def elements_of(array: NDArray[Any], memory: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Tell which bytes of a block of memory are elements of an array in it."""
    mask = np.zeros(memory.size, np.uint8)
    offset = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    if array.size:
        bytes_of = np.ndarray(
            (*array.shape, array.itemsize), np.uint8, mask, offset, (*array.strides, 1)
        )
        bytes_of[...] = 1
    return mask.astype(bool)


@functools.cache
def dtype_of(name: str) -> np.dtype[Any]:
    """Return one object for a type, as arrays have that come of each other."""
    return np.dtype(name)


def make(operand: Operand) -> Made:
    """Make an array, the same each time."""
    dtype = dtype_of(operand.dtype)
    values = _values(operand, dtype)
    if not operand.in_memory:
        array = np.array(values, order="F" if operand.layout.order == "F" else "C")
        value = _in_form(array, operand.form)
        return Made(value, np.array(value) if isinstance(value, (list, tuple)) else array, None)
    strides = operand.layout.strides(operand.shape, dtype.itemsize)
    reach = sum(
        (n - 1) * abs(step) for n, step in zip(operand.shape, strides, strict=True) if n > 1
    )
    size = 2 * GUARD + operand.layout.shift + reach + dtype.itemsize
    memory = _memory(size, operand.form)
    start = GUARD + operand.layout.shift + sum(
        (n - 1) * -step for n, step in zip(operand.shape, strides, strict=True)
        if step < 0 and n > 1
    )  # fmt: skip
    array = np.ndarray(operand.shape, dtype, np.asarray(memory), start, strides)
    array[...] = values
    value = _in_form(_as_in(memory, array, start), operand.form)
    if operand.form in {"list", "tuple"}:
        return Made(value, np.array(value), None)  # which may have another shape if it is empty
    if not operand.writeable and isinstance(value, np.ndarray):
        value.flags.writeable = False
    return Made(value, array, np.asarray(memory))


def _memory(size: int, form: str) -> NDArray[np.uint8]:
    if form == "memmap":
        with tempfile.TemporaryFile() as file:
            memory = np.memmap(file, np.uint8, "w+", shape=(size,))
    else:
        # NumPy's own memory may begin anywhere; what is aligned here always is.
        room = np.empty(size + GUARD, np.uint8)
        begin = -room.__array_interface__["data"][0] % GUARD
        memory = room[begin : begin + size]
    memory[...] = POISON
    return memory


def _as_in(memory: NDArray[np.uint8], array: NDArray[Any], start: int) -> NDArray[Any]:
    """View an array once more; as a memmap if its memory is one."""
    if type(memory) is np.ndarray or not array.size:
        return array.view()
    first = memory[start : start + array.itemsize].view(array.dtype)
    return np.lib.stride_tricks.as_strided(first, array.shape, array.strides, subok=True)


def _in_form(array: NDArray[Any], form: str) -> Any:
    """Pass an array as another class, where that class can have it."""
    views = {"Sub": Sub, "Ranked": Ranked, "matrix": np.matrix}
    if form in views and (form != "matrix" or array.ndim == 2):
        return array.view(views[form])
    if form == "masked" and array.dtype.kind in "?biufc":
        return np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) % 5 == 1)
    if form in {"list", "tuple"}:
        rows = array.tolist()
        return tuple(rows) if form == "tuple" and array.ndim else rows
    return ArrayLike(array) if form == "ArrayLike" else array


# --------------------------------------------------------------------------- elements


def _values(operand: Operand, dtype: np.dtype[Any]) -> NDArray[Any]:
    rng = np.random.default_rng(operand.seed)
    if dtype.kind not in "fc":
        low = -3 if dtype.kind in "iOmM" else 0
        with np.errstate(all="ignore"):
            whole = rng.integers(low, 2 if dtype.kind == "?" else 4, operand.shape)
        if operand.values == "extreme" and dtype.kind in "iu":
            return _extremes(rng, operand.shape, dtype)
        if operand.values == "sparse":
            whole = whole * (rng.random(operand.shape) < 0.05)
        if dtype.kind in "mM":
            return whole.astype("i8").view(dtype.newbyteorder("=")).astype(dtype)
        return np.zeros(operand.shape, dtype) if dtype.kind == "V" else whole.astype(dtype)
    real = _reals(rng, operand.values, operand.shape, dtype)
    if dtype.kind == "c":
        with np.errstate(all="ignore"):
            both = np.empty(operand.shape, dtype.newbyteorder("="))
            both.real, both.imag = real, _reals(rng, operand.values, operand.shape, dtype)
            return both.astype(dtype)
    with np.errstate(all="ignore"):
        return real.astype(dtype)


def _extremes(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Give integers of all sizes, of which many are the least, the greatest, or next to 0."""
    limits, native = np.iinfo(dtype), dtype.newbyteorder("=")
    found = rng.integers(limits.min, limits.max, shape, native, endpoint=True)
    special = np.array([limits.min, limits.max, limits.max - 1, 0, 1, 0], native)
    special[-1] = ~special[-3]  # -1, or all bits
    found = np.where(rng.random(shape) < 0.4, rng.choice(special, shape), found)
    return found.astype(dtype)


def _reals(
    rng: np.random.Generator, values: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    if values == "whole":
        return rng.integers(-3, 4, shape).astype(float)
    reals = rng.uniform(-1, 1, shape)
    limits = np.finfo(dtype)
    if values == "scaled":
        exponents = rng.integers(-6, 7, (*shape[:-1], 1) if shape else ())
        reals = reals * (3.0 if dtype.itemsize == 2 else 10.0) ** exponents
    elif values == "huge":
        reals = reals * float(limits.max) ** rng.choice([0.45, 0.5, 0.75])
    elif values == "subnormal":
        reals = reals * float(limits.tiny) ** rng.choice([0.5, 1.0, 1.02])
    elif values == "special" and reals.size:
        count = 1 + int(rng.integers(0, 3))
        places = rng.integers(0, reals.size, count)
        reals = np.array(reals)
        reals.reshape(-1)[places] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], count)
    return reals


# --------------------------------------------------------------------------- drawing


def draw_layout(rng: np.random.Generator, rank: int, itemsize: int, *, input_only: bool) -> Layout:
    """Draw how an array of a rank lies; one that is written has no element twice."""
    order = str(rng.choice(["C", "F", "mixed"], p=[0.45, 0.45, 0.1]))
    if rng.random() < 0.4:
        return Layout(order)
    several = tuple(axis for axis in range(rank) if rng.random() < 0.4)
    return Layout(
        order,
        step=int(rng.choice([1, 2, 3], p=[0.75, 0.15, 0.1])),
        pad=int(rng.choice([0, 1, 3, 16], p=[0.5, 0.2, 0.2, 0.1])),
        gap=int(rng.choice([0, 1, itemsize // 2], p=[0.9, 0.05, 0.05])),
        shift=int(rng.choice([0, 1, itemsize // 2, itemsize, 3 * itemsize, 16],
                             p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])),
        negative=several if rng.random() < 0.25 else (),
        repeated=several if input_only and rng.random() < 0.15 else (),
        sliding=bool(input_only and rng.random() < 0.06),
    )  # fmt: skip


def draw(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, values: str = "",
    input_only: bool = True, forms: tuple[str, ...] = FORMS,
) -> Operand:  # fmt: skip
    """Draw an array of a shape; now and then it is of another type or class."""
    if rng.random() < 0.06:
        dtype = str(rng.choice(OTHER_TYPES if rng.random() < 0.7 else PRECISE))
    form = "ndarray" if rng.random() < 0.85 else str(rng.choice(forms))
    small = math.prod(shape) <= 400
    if (form == "memmap" and rng.random() < 0.7) or (form in {"list", "tuple"} and not small):
        form = "ndarray"
    kind = np.dtype(dtype)
    if kind.kind in "OUSg" and not small:
        kind = np.dtype(dtype := "f8")
    return Operand(
        shape, dtype, values or draw_values(rng), int(rng.integers(2**31)),
        draw_layout(rng, len(shape), kind.itemsize, input_only=input_only),
        form, bool(rng.random() < 0.93),
    )  # fmt: skip


def draw_values(rng: np.random.Generator) -> str:
    """Draw the kind of values of an array."""
    return str(rng.choice(VALUES, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05]))
