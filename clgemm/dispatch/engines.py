"""The engines of this process, one a device, and calls by the one in use: arrays in, array out.

A forked child forgets those that it inherited; where no device is in use, the host computes.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import settings
from clgemm.dispatch.engine import Engine
from clgemm.dispatch.explanation import unmeasured
from clgemm.dispatch.route import HOST
from clgemm.host import blas as host_blas
from clgemm.problem import ELEMENT_OF, PRECISIONS
from clgemm.runtime import forks, reentry, registry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.dispatch.engine import ByHost
    from clgemm.dispatch.explanation import Explanation
    from clgemm.problem import Call
    from clgemm.runtime.device import Device
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.queues import QueueState
    from clgemm.settings import Modes

log = logging.getLogger(__name__)

LATE_SECONDS = 20.0  # a process that ran for so long measures break-evens at its end

_engines: dict[Device, Engine] = {}
_begun = time.monotonic()


def of(device: Device) -> Engine:
    """Return the engine of a device."""
    engine = _engines.get(device)
    if engine is None:
        engine = _engines.setdefault(device, Engine(device))
    return engine


def current() -> Engine | None:
    """Return the engine of the device that calls use; None if the host must do: see `registry`."""
    device = registry.current()
    return None if device is None else of(device)


def opened() -> Engine | None:
    """Return the engine that calls use if there is one; opens nothing."""
    device = registry.opened()
    return None if device is None else _engines.get(device)


def partners_of(engine: Engine) -> tuple[Engine, ...]:
    """Return the engines that share large calls with this one."""
    others = registry.others()
    if not others or engine.device is not registry.opened():
        return ()
    return tuple(of(device) for device in others)


def of_queue(queue: cl.CommandQueue) -> tuple[Engine, QueueState]:
    """Return the engine that works in the context of a queue of the caller's, and its state."""
    found = registry.states.get(queue.int_ptr)  # as registry.of_queue, but sooner
    device, state = registry.of_queue(queue) if found is None else found
    engine = _engines.get(device)
    return of(device) if engine is None else engine, state


def _nested(call: Call, by_host: ByHost | None = None) -> bool:
    """Compute a call that comes from within another one: without a lock, and without a word."""
    if call.c.size and (call.alpha == 0 or call.a.shape[-1] == 0):
        _scale(call.c, call.beta)
    elif call.c.size:
        (by_host or host_blas.gemm)(call)
    return False


@reentry.entry(_nested)
def compute(call: Call, by_host: ByHost | None = None) -> bool:
    """Compute ``c[...] = alpha * op(a) @ op(b) + beta * c`` with arrays of NumPy's.

    Parameters
    ----------
    call : Call
        If beta == 0, `c` is not read; if alpha == 0, `a` and `b` are not.  All three are of one
        dtype (float32, float64, complex64 or complex128, native byte order) and rank, and aligned
        as NumPy means it; strides are free.  `c` must overlap neither `a` nor `b`.
    by_host : callable, optional
        Computes a call on the host; SciPy's gemm by default.

    Returns
    -------
    bool
        Whether the host was found to be faster, and has computed it.

    Raises
    ------
    DeviceError
        If no device is usable or this one lacks the precision.
    MemoryError
        If the device has no memory for the operands.
    """
    if call.c.size == 0:
        return False
    if call.alpha == 0 or call.a.shape[-1] == 0:
        _scale(call.c, call.beta)
        return False
    modes = settings.modes()
    engine = None if modes.route == HOST else current()
    if engine is None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", _on_host(call, modes))
        (by_host or host_blas.gemm)(call)
        return False
    hosted = engine.compute(call, modes, partners_of(engine), by_host)
    return hosted and modes.route == "auto"


def _explain_nested(call: Call) -> Explanation:
    return _explain_host(call, reentry.WHY_HOST)


@reentry.entry(_explain_nested)
def explain(call: Call) -> Explanation:
    """Tell what `compute` would do with a call; there is something to multiply."""
    modes = settings.modes()
    engine = None if modes.route == HOST else current()
    if engine is None:
        return _on_host(call, modes)
    decision = engine.decide(call, modes, partners_of(engine))
    return engine.explain(decision, transposed=call.transposed)


def _on_host(call: Call, modes: Modes) -> Explanation:
    return _explain_host(call, "CLGEMM_ROUTE=host" if modes.route == HOST else forks.WHY_NOT)


def _explain_host(call: Call, why: str) -> Explanation:
    c = call.c.swapaxes(-1, -2) if call.transposed else call.c
    k = call.a.shape[-1]
    return unmeasured(ELEMENT_OF[c.dtype], k, c.shape, why)


def _scale(c: NDArray[Any], beta: complex) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        with np.errstate(all="ignore"):
            c *= c.dtype.type(beta)


def _forget(device: Device) -> None:
    _engines.pop(device, None)


def _after_fork_in_child() -> None:
    for engine in _engines.values():
        forks.keep_for_ever(engine)
    _engines.clear()


@atexit.register
@reentry.entry()
def _measure_break_evens() -> None:
    """Measure, for later processes, what this one had to do without.

    Only for CPU devices, whose kernels are built by then or soon, and only at the end of a process
    that ran for so long that half a second more is nothing.
    """
    engine = opened()
    if engine is None or time.monotonic() - _begun < LATE_SECONDS:
        return
    for precision in PRECISIONS.values():
        if engine.device.traits.unified_memory and engine.break_evens.is_missing(precision):
            engine.try_to_measure(precision)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
registry.forgetting.append(_forget)
