"""Calls with arrays on the device, compared with SciPy and NumPy on the same numbers.

Beside what `compare` has, the contract of `pyopencl.array.Array` operands is stricter than that of
NumPy's arrays:

* all operands are Arrays, of one dtype, the routine's own: anything else is a TypeError; matmul has
  all dtypes that a device computes in;
* matrices of gemm have two axes, and out of matmul has the result's own shape and shares no memory
  with an operand: anything else is a ValueError;
* what no BLAS can read where it lies (two steps, a negative one, an odd offset) may be refused with
  a ValueError, and so may a `c` with gaps that has to be copied.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg.blas

import clgemm
from clgemm.problem import BY_DTYPE, ELEMENT_OF, PRECISIONS
from clgemm.runtime import opencl, registry
from clgemm.runtime.opencl import cl

from . import compare, gemm_calls, integer_calls, matmul_calls, operands
from .compare import DifferenceError, require
from .odd_arguments import Odd
from .operands import Made, Operand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.runtime.device import Device

OUT_OF_ORDER = 1
USUAL = {"order": "K", "dtype": None, "casting": "same_kind", "subok": True}
REFUSALS = (TypeError, ValueError, IndexError, OverflowError)
SHIFTS = (0, 1, 2, 3, 4, 8)  # elements
QUEUES = ("device", "in order", "out of order", "none")
_queues: dict[tuple[Device, str], Any] = {}


@dataclass(frozen=True)
class DeviceCall:
    """A call whose operands are on the device."""

    inner: gemm_calls.GemmCall | matmul_calls.MatmulCall
    queues: tuple[str, str, str]
    """Of a, b and c."""
    stays: str
    """The operand that stays on the host, or ""."""
    again: tuple[int, ...] = ()
    """Seeds of other numbers, with which the very same Arrays are filled for calls that follow."""


def draw(rng: np.random.Generator, known: Mapping[str, tuple[int, ...]]) -> DeviceCall:
    """Draw a call."""
    kinds: tuple[Any, ...] = (gemm_calls, matmul_calls, integer_calls)
    inner: Any = kinds[rng.choice(3, p=(0.45, 0.35, 0.2))].draw(rng, known)
    names = ("a", "b", "c") if isinstance(inner, gemm_calls.GemmCall) else ("x1", "x2", "out")
    changes: dict[str, Any] = {}
    for name in names:
        given = getattr(inner, name)
        if isinstance(given, Odd):
            code = getattr(inner, "code", "s")
            given = Operand((3, 3), PRECISIONS[code].dtype.str[1:])
        if given is not None:
            changes[name] = _for_device(rng, given, read_only=name not in {"c", "out"})
    if isinstance(inner, matmul_calls.MatmulCall):
        unusual = tuple((n, x) for n, x in inner.keywords if n != "out" and USUAL.get(n, "") != x)
        changes |= {"keywords": unusual if rng.random() < 0.03 else (), "operator": False}
    queue = str(rng.choice(QUEUES[:3]))
    queues = [queue if rng.random() < 0.85 else str(rng.choice(QUEUES)) for _ in "abc"]
    stays = str(rng.choice(names)) if rng.random() < 0.02 else ""
    count = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
    again = tuple(int(rng.integers(2**31)) for _ in range(count))
    return DeviceCall(replace(inner, **changes), (queues[0], queues[1], queues[2]), stays, again)


def refilled(inner: Any, seed: int) -> Any:
    """Return a call whose arrays lie where they did, and hold other values."""
    found = {f.name: getattr(inner, f.name) for f in fields(inner)}
    arrays = {name: x for name, x in found.items() if isinstance(x, Operand)}
    return replace(
        inner, **{name: replace(x, seed=seed + i) for i, (name, x) in enumerate(arrays.items())}
    )


def elsewhere(rng: np.random.Generator, call: DeviceCall) -> DeviceCall:
    """Return a call whose Arrays lie alike, but begin elsewhere, and are of other queues."""
    changes: dict[str, Any] = {}
    for name in _names(call.inner):
        given = getattr(call.inner, name)
        if given is not None:
            shift = int(rng.choice(SHIFTS)) * np.dtype(given.dtype).itemsize
            changes[name] = replace(given, layout=replace(given.layout, shift=shift))
    queue = str(rng.choice(QUEUES[:3]))
    return DeviceCall(replace(call.inner, **changes), (queue, queue, queue), "")


def _for_device(rng: np.random.Generator, given: Operand, *, read_only: bool) -> Operand:
    """Change an operand such that it can lie on a device, mostly as BLAS reads it."""
    layout = given.layout
    if np.dtype(given.dtype).kind not in "fciub" or np.dtype(given.dtype).itemsize > 16:
        given = replace(given, dtype="f4")
    itemsize = np.dtype(given.dtype).itemsize
    if rng.random() < 0.85:
        layout = replace(layout, step=1, gap=0, negative=(), sliding=False, repeated=(),
                         shift=layout.shift // itemsize * itemsize)  # fmt: skip
    if not read_only:  # of what is written, no element may be there twice
        layout = replace(layout, sliding=False, repeated=())
    return replace(given, form="ndarray", writeable=True, layout=layout)


# --------------------------------------------------------------------------- making


@dataclass
class Uploaded:
    """An operand on the device, and the memory that it lies in."""

    array: Any
    memory: Any
    made: Made


def queue_of(name: str) -> Any:
    """Return a queue of the device in use."""
    device = registry.current()
    if device is None:
        raise RuntimeError("no device is in use here")
    if name == "device":
        return device.queue
    if (device, name) not in _queues:
        flags = OUT_OF_ORDER if name == "out of order" else 0
        _queues[device, name] = cl.CommandQueue(device.context, properties=flags)
    return _queues[device, name]


def _upload(made: Mapping[str, Made], queues: Mapping[str, str]) -> dict[str, Uploaded]:
    """Put operands on the device as they lie; those that share memory share it there."""
    arrays, there, memories = opencl.arrays(), {}, {}
    for name, x in made.items():
        if x.memory is None:
            continue
        queue = queue_of("device" if queues[name] == "none" else queues[name])
        key = id(x.memory)
        if key not in memories:
            memories[key] = arrays.to_device(queue, np.asarray(x.memory))
            memories[key].finish()
        memory = memories[key]
        start = (
            x.array.__array_interface__["data"][0] - x.memory.__array_interface__["data"][0]
        )  # fmt: skip
        array = arrays.Array(
            queue, x.array.shape, x.array.dtype, strides=x.array.strides, data=memory.base_data,
            offset=start,
        )  # fmt: skip
        if queues[name] == "none":
            array = array.with_queue(None)
        there[name] = Uploaded(array, memory, x)
    return there


# --------------------------------------------------------------------------- comparing


def check(call: DeviceCall, *, exact: bool) -> None:
    """Make the call on the device and on the host, and compare; and again on the same Arrays."""
    given = _module(call.inner).make(call.inner)
    queues = dict(zip(_names(call.inner), call.queues, strict=True))
    try:
        there = _upload(given.made, queues)
    except (cl.Error, ValueError, TypeError):
        return  # pyopencl itself has no such array
    _check_on(there, call, given, exact=exact)
    for seed in call.again:
        other = replace(call, inner=refilled(call.inner, seed))
        given = _module(other.inner).make(other.inner)
        _refill(there, given.made)
        _check_on(there, other, given, exact=exact)


def _names(inner: Any) -> tuple[str, str, str]:
    is_gemm = isinstance(inner, gemm_calls.GemmCall)
    return ("a", "b", "c") if is_gemm else ("x1", "x2", "out")


def _module(inner: Any) -> Any:
    return gemm_calls if isinstance(inner, gemm_calls.GemmCall) else matmul_calls


def _refill(there: Mapping[str, Uploaded], made: Mapping[str, Made]) -> None:
    """Let Arrays hold other numbers, and all around them be as it was."""
    for name, x in there.items():
        x.made = made[name]
        cl.enqueue_copy(queue_of("device"), x.memory.base_data, np.asarray(x.made.memory)).wait()


def _check_on(
    there: Mapping[str, Uploaded], call: DeviceCall, given: Any, *, exact: bool
) -> None:  # fmt: skip
    """Make the call on Arrays that hold its numbers and on the host, and compare."""
    inner = call.inner
    is_gemm = isinstance(inner, gemm_calls.GemmCall)
    operand = {
        name: (given.made[name].value if name == call.stays else x.array)
        for name, x in there.items()
    }
    if is_gemm:
        other, mine = _both_gemms(inner, given, operand)
    else:
        other, mine = _both_matmuls(inner, given, operand)
    result = mine.value if mine.error is None else None
    _compare_outcomes(call, mine, other, there, is_gemm=is_gemm)
    written = None
    if result is not None:
        result.finish()
        written = next((x for x in there.values() if x.array is result), None)
    for name, x in there.items():
        if written is not None and x is not written and x.memory is written.memory:
            continue
        _assert_kept(name, x, but_elements=x is written)
    if result is not None and other.error is None:
        _compare_values(inner, result, other, exact=exact)


def _both_gemms(
    call: gemm_calls.GemmCall, given: Any, operand: Mapping[str, Any]
) -> tuple[compare.Outcome, compare.Outcome]:
    theirs = gemm_calls.make(call)
    gemm_calls.protect(call, theirs)
    name = f"{call.code}gemm"
    other = compare.outcome(
        getattr(scipy.linalg.blas, name), *gemm_calls.written(call, theirs.by_name)
    )
    mine = compare.outcome(
        getattr(clgemm, name), *gemm_calls.written(call, {**given.by_name, **operand})
    )
    return other, mine


def _both_matmuls(
    call: matmul_calls.MatmulCall, given: Any, operand: Mapping[str, Any]
) -> tuple[compare.Outcome, compare.Outcome]:
    theirs = matmul_calls.make(call)
    positional = [
        operand.get(name, value)
        for name, value in zip(("x1", "x2", "out"), given.positional, strict=False)
    ]
    keywords = dict(given.keywords)
    if "out" in keywords and "out" in operand:
        keywords["out"] = (operand["out"],) if call.out_as == "tuple" else operand["out"]
    return (
        compare.outcome(np.matmul, theirs.positional, theirs.keywords),
        compare.outcome(clgemm.matmul, positional, keywords),
    )


def _compare_outcomes(
    call: DeviceCall, mine: compare.Outcome, other: compare.Outcome, there: Mapping[str, Uploaded],
    *, is_gemm: bool,
) -> None:  # fmt: skip
    """Compare whether there is a result at all, and of what class an error is."""
    if _is_refused(call, there, is_gemm=is_gemm):
        require(isinstance(mine.error, REFUSALS), f"{mine.error!r} is no refusal")
        return
    if is_gemm and gemm_calls.takes_empty_c(call.inner, mine):
        return
    if other.error is not None:
        wanted = (type(other.error), *REFUSALS)
        require(isinstance(mine.error, wanted), f"{mine.error!r} for {other.error!r}")
        return
    if mine.error is None:
        return
    allowed = isinstance(mine.error, ValueError) and _is_hard(call, there, is_gemm=is_gemm)
    if not allowed:
        raise DifferenceError(f"no result: {mine.error!r}") from mine.error


def _is_refused(call: DeviceCall, there: Mapping[str, Uploaded], *, is_gemm: bool) -> bool:
    """Tell whether the contract of Arrays asks for an error, whatever the host does."""
    inner: Any = call.inner
    names = ("a", "b", "c") if is_gemm else ("x1", "x2", "out")
    queues = {queue for name, queue in zip(names, call.queues, strict=True) if name in there}
    dtypes = {x.array.dtype for x in there.values()}
    mixed = call.stays in there and len(there) > 1
    known = BY_DTYPE if is_gemm else ELEMENT_OF
    if mixed or queues == {"none"} or len(dtypes) > 1 or not dtypes <= known.keys():
        return True
    if is_gemm:
        ranks = {x.array.ndim for x in there.values()}
        return dtypes != {PRECISIONS[inner.code].dtype} or ranks != {2}
    return bool(inner.keywords)


def _is_hard(call: DeviceCall, there: Mapping[str, Uploaded], *, is_gemm: bool) -> bool:
    """Tell whether operands lie, or overlap, such that a ValueError is an answer."""
    inner: Any = call.inner
    if not is_gemm and "out" in there:
        out = there["out"]
        if inner.alias.startswith("out") or out.array.shape != _result_shape(there):
            return True
    for name, x in there.items():
        strides = [abs(s) for s, n in zip(x.array.strides, x.array.shape, strict=True) if n > 1]
        itemsize = x.array.dtype.itemsize
        odd = x.array.offset % itemsize or any(s % itemsize for s in strides)
        backwards = any(s < 0 for s in x.array.strides)
        stepped = bool(strides) and itemsize not in strides[-2:] and 0 not in strides
        core = [s for s, n in zip(x.array.strides[-2:], x.array.shape[-2:], strict=True) if n > 1]
        if odd or backwards or stepped or 0 in core or (core and itemsize not in core):
            return True
        if is_gemm and name == "c" and not x.array.flags.forc:
            return True
    return False


def _result_shape(there: Mapping[str, Uploaded]) -> tuple[int, ...] | None:
    x, y = (np.empty(there[name].array.shape, "i1") for name in ("x1", "x2"))
    try:
        return np.matmul(x, y).shape
    except ValueError:
        return None


def _assert_kept(name: str, x: Uploaded, *, but_elements: bool) -> None:
    """Require that nothing around a result, and nothing of an operand, has changed."""
    now = Made(x.made.value, x.made.array, x.made.memory)
    different = x.memory.get() != now.memory
    if but_elements:
        different[operands.elements_of(x.made.array, x.made.memory)] = False
    require(not different.any(), f"the call changed device memory of {name}")


def _compare_values(inner: Any, result: Any, other: compare.Outcome, *, exact: bool) -> None:
    expected = np.asarray(other.value)
    require(result.dtype == expected.dtype, f"dtype {result.dtype}")
    require(result.shape == expected.shape, f"shape {result.shape} instead of {expected.shape}")
    mine = _download(result)
    if isinstance(inner, gemm_calls.GemmCall):
        gemm_calls.compare_values(inner, mine, expected, exact=exact)
    else:
        bound = matmul_calls.bound_of(inner, expected, exact=exact)
        require(bound is not None, "the product is of no floating-point type")
        compare.assert_close(mine, expected, bound)


def _download(result: Any) -> Any:
    """Bring an Array back, whatever its strides."""
    if not result.size:
        return np.empty(result.shape, result.dtype)
    if result.flags.forc:
        return result.get(queue=queue_of("device"))
    steps = [(n - 1) * abs(s) for n, s in zip(result.shape, result.strides, strict=True)]
    low = result.offset + sum(
        (n - 1) * s for n, s in zip(result.shape, result.strides, strict=True) if s < 0
    )
    memory = np.empty(sum(steps) + result.dtype.itemsize, np.uint8)
    cl.enqueue_copy(queue_of("device"), memory, result.base_data, src_offset=low)
    return np.ndarray(result.shape, result.dtype, memory, result.offset - low, result.strides)
