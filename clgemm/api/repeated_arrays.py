"""Products of Arrays that were multiplied before, the very same objects: launched at once.

To look at shapes, types, places and queues, and to find what was decided on such a call, takes
longer than many a product takes a GPU.  So a call that comes again is kept with what it launches.
It is kept as long as its operands: nothing here keeps an Array alive, and a later call looks
whether all that a launch depends on is what it was.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm import settings
from clgemm.runtime import ending, events, opencl, registry
from clgemm.runtime.ending import inside
from clgemm.runtime.events import InOrder
from clgemm.runtime.opencl_errors import translated

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.api.repeated import Arguments
    from clgemm.dispatch.engine import Engine
    from clgemm.runtime.device import Device
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.queues import QueueState
    from clgemm.settings import Modes

MOST = 1024
"""Calls that are kept; when there are more, all are forgotten."""

_OPERANDS = 2
_NUMBERS, _FLAGS = frozenset({int, float}), frozenset({int, bool})
_SWITCH, _ON = (0, 1), (1,)
_ref = weakref.ref
Key = tuple[Any, ...]
"""The identities of a, b and out, and what else a call has been given."""


class _Repeat(NamedTuple):
    """A call that came again."""

    facts: tuple[Any, ...]
    """Of both operands and of out; see `_facts`.  They keep memory, as long as the Arrays live."""
    launch: Callable[[Any], None]
    """Multiplies into such memory."""
    new: Callable[[Any], Any] | None
    """Makes a result like that of the first operand's call; None where it is given."""
    modes: Modes
    units: int
    engine: Engine
    found: tuple[Device, QueueState]
    """What is known of the queue."""
    handle: int
    """The queue's."""
    forgotten: int
    """How often the engine had forgotten what it decided."""
    references: tuple[weakref.ref[Any], ...]
    """They end what is kept here with the first of the Arrays that goes."""


_repeats: dict[Key, _Repeat] = {}
_seen: dict[Key, tuple[weakref.ref[Any], ...]] = {}
"""Calls that came once, and the Arrays: others may have taken their places in memory since."""


def _facts(x: Any) -> tuple[Any, ...]:
    """List what the launch of a product depends on, but the events."""
    return x.base_data, x.offset, x.shape, x.strides, x.dtype, x.queue


def matmul(a: Any, b: Any, out: Any) -> Any:
    """Multiply Arrays that were multiplied before; return None where there is more to look at."""
    return _again((id(a), id(b), id(out)), a, b, out)


def gemm(code: str, arguments: Arguments) -> Any:
    """Do as `matmul` does, with the arguments of a BLAS routine."""
    key = key_of_gemm(code, arguments) if _repeats else None
    return None if key is None else _again(key, arguments[1], arguments[2], arguments[4])


def key_of_gemm(code: str, arguments: Arguments) -> Key | None:
    """Return what a call with the arguments of a BLAS routine is kept by, None if it is not."""
    alpha, a, b, beta, c, trans_a, trans_b, overwrite_c = arguments
    if not (
        trans_a.__class__ is int is trans_b.__class__
        and alpha.__class__ in _NUMBERS and beta.__class__ in _NUMBERS
        and overwrite_c.__class__ in _FLAGS and overwrite_c in (_SWITCH if c is None else _ON)
    ):  # fmt: skip
        return None
    return id(a), id(b), id(c), code, alpha, beta, trans_a, trans_b


def _again(key: Key, a: Any, b: Any, out: Any) -> Any:
    """Launch what is kept by a key; return None if nothing is, or it may not be so any more."""
    repeat = _repeats.get(key)
    if repeat is None:
        return None
    facts, launch, new, modes, units, engine, found, handle, forgotten, _ = repeat
    state = found[1]
    if (
        modes is not settings.modes()
        or units != engine.units()
        or forgotten != engine.forgotten
        or found is not registry.states.get(handle)
        or facts != (_facts(a) + _facts(b) if new else _facts(a) + _facts(b) + _facts(out))
        or not _wait_for_nothing((a, b) if new else (a, b, out), state.queue)
    ):
        return None
    me = get_ident()
    if me in inside:  # it may come from within another call: see `runtime.reentry`
        return None
    try:
        inside.add(me)
        ending.leave()
        if new:
            out = new(a)
            events.follow(out, state.queue)
        launch(out.base_data)
    except opencl.load().Error as error:
        raise translated(error, "a product of device arrays") from error
    finally:
        inside.discard(me)
    return out


def _wait_for_nothing(arrays: tuple[Any, ...], queue: cl.CommandQueue) -> bool:
    """Tell whether the order of a queue is all that the operands, and out if it is there, wait for.

    Then there is nothing to change in what out tells of its events, either.
    """
    for x in arrays[:_OPERANDS]:
        pending = x.events
        if pending.__class__ is InOrder and pending.queue is not None:
            if pending.queue is not queue:
                return False
        elif pending:
            return False
    if len(arrays) == _OPERANDS:
        return True
    pending = arrays[_OPERANDS].events
    return pending.__class__ is InOrder and pending.queue is queue


def is_repeated(key: Key, a: Any, b: Any, out: Any) -> bool:
    """Tell whether such a call of these Arrays came before, and note that it came."""
    seen = _seen.get(key)
    if seen is not None and seen[0]() is a and seen[1]() is b and (out is None or seen[2]() is out):
        return True
    if len(_seen) >= MOST:
        _seen.clear()
    _seen[key] = (_ref(a), _ref(b)) if out is None else (_ref(a), _ref(b), _ref(out))
    return False


def remember(
    key: Key, arrays: tuple[Any, ...], engine: Engine, launch: Callable[[Any], None],
    new: Callable[[Any], Any] | None,
) -> None:  # fmt: skip
    """Keep a call on one queue.

    Parameters
    ----------
    key : tuple
        What it is found by.
    arrays : tuple of pyopencl.array.Array
        a, b and, unless `new` makes it, out.
    engine : Engine
        What has computed the call.
    launch : callable
        Computes it again, into the memory that it takes.
    new : callable, optional
        Makes a result, as that of its argument, a.
    """
    handle = arrays[0].queue.int_ptr

    def drop(_: weakref.ref[Any]) -> None:
        _repeats.pop(key, None)

    if len(_repeats) >= MOST:
        _repeats.clear()
    _repeats[key] = _Repeat(
        sum(map(_facts, arrays), ()),
        launch,
        new,
        settings.modes(),
        engine.units(),
        engine,
        registry.states[handle],
        handle,
        engine.forgotten,
        tuple(weakref.ref(x, drop) for x in arrays),
    )
