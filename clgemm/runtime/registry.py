"""The devices in use: the one that calls run on, those beside it, and those of the caller's queues.

A forked child of a process that has used a driver uses none; see `forks`.  It forgets the handles
that it inherited without releasing them.
"""

from __future__ import annotations

import atexit
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clgemm.errors import DeviceError
from clgemm.runtime import choice, devices, ending, forks
from clgemm.runtime.binaries import Binaries, kept_for
from clgemm.runtime.device import Device
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.queues import QueueState
from clgemm.runtime.reentry import CheckedLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clgemm.runtime.opencl import cl

IDLE_SECONDS = 10.0  # without a call, after which memory and queues that nobody has are given back

_lock = CheckedLock()
_devices: dict[devices.Found, Device] = {}
_foreign: dict[int, Device] = {}
"""Devices that work in contexts of the caller's, by the context's handle."""
states: dict[int, tuple[Device, QueueState]] = {}
"""The device and what calls share, of each queue of the caller's, by the queue's handle."""
in_use: Device | None = None
"""The device that calls use, None before one is opened.  `opened` says the same: this is for the
path of every call, and nobody else sets it."""
at_change: list[Callable[[], None]] = []
"""Called when another device is in use than before, and when decisions of its are forgotten."""
_chosen: Device | None = None
_others: tuple[Device, ...] = ()
forgetting: list[Callable[[Device], None]] = []
"""Called with each device whose context the caller dropped: what else is kept for it must go."""


def current() -> Device | None:
    """Return the device that calls use, opened by the first one.

    Returns
    -------
    Device or None
        None in a forked child whose parent had used a driver: the caller works on the host.

    Raises
    ------
    DeviceError
        If there is no usable device.
    """
    global in_use, _chosen, _others  # noqa: PLW0603 - the devices in use are what this module is for
    if in_use is not None:
        return in_use
    if forks.inherited_a_driver():
        return None
    with _lock():
        if in_use is None:
            chosen, reason, contexts = choice.choose()
            first, *more = (
                _open(found, reason, kept_for(found.traits), context)
                for found, context in zip(chosen, contexts, strict=True)
            )
            _others = tuple(more)
            in_use = _chosen = first
            changed()
    return in_use


def opened() -> Device | None:
    """Return the device that calls use if there is one; never opens it."""
    return in_use


def changed() -> None:
    """Have everybody forget what was decided for the device that was in use."""
    for forget in at_change:
        forget()


def others() -> tuple[Device, ...]:
    """Return the devices that share large calls with the current one, opened by `current`."""
    return _others if _others and in_use is _chosen else ()


def _open(
    found: devices.Found, reason: str, binaries: Binaries | None = None,
    context: cl.Context | None = None,
) -> Device:  # fmt: skip
    if found not in _devices:
        _devices[found] = Device(found, reason, binaries, context)
    return _devices[found]


def open_device(
    found: devices.Found, reason: str = "asked for", binaries: Binaries | None = None
) -> Device:
    """Return the device that was found, opened by the first call.

    Its programs are kept on disk only if that call says where: a search builds hundreds of them.

    Raises
    ------
    DeviceError
        In a forked child whose parent had used a driver.
    """
    forks.refuse_if_inherited()
    with _lock():
        return _open(found, reason, binaries)


def of_queue(queue: cl.CommandQueue) -> tuple[Device, QueueState]:
    """Return the device of a queue of the caller's, and what calls on it share.

    Raises
    ------
    DeviceError
        If the queue's context has several devices: kernels are built for one.  In a forked child
        whose parent had used a driver.
    """
    found = states.get(queue.int_ptr)
    if found is None:
        forks.refuse_if_inherited()
        with _lock():
            _trim_unused()  # what lies idle for a queue may be what holds it, in PoCL
            _forget_dropped()
            device = _of_context(queue.context)
            found = states[queue.int_ptr] = device, QueueState(device.context, queue)
        touch()
    return found


def _of_context(context: cl.Context) -> Device:
    """Return the device that works in a context; hold `_lock`."""
    if in_use is not None and in_use.context == context:
        return in_use
    device = _foreign.get(context.int_ptr)
    if device is None:
        if len(context.devices) != 1:
            raise DeviceError(
                "the arrays' OpenCL context has several devices: make one of a single device, "
                "pyopencl.Context([device])"
            )
        handle = context.devices[0]
        found = devices.Found(handle, devices.read_traits(handle))
        device = Device(found, "the arrays' own", kept_for(found.traits), context)
        _foreign[context.int_ptr] = device
    return device


def _forget_dropped() -> None:
    """Let go of queues that the caller has not any more, and of contexts with no queue left."""
    for handle, (_, state) in list(states.items()):
        if state.is_dropped():
            del states[handle]
    used = {id(device) for device, _ in states.values()}
    for handle, device in list(_foreign.items()):
        if id(device) not in used:
            del _foreign[handle]
            for forget in forgetting:
                forget(device)


def touch() -> None:
    """Note that memory is kept which may have to be given back."""
    _timer.touch()


def give_back() -> None:
    """Give back what queues keep that had no call since the last look; look again if some had.

    Runs in the timer's thread.
    """
    with _lock():
        busy = _trim_unused()
        _forget_dropped()
    if busy:
        touch()


def _trim_unused() -> bool:
    """Have queues that had no call since the last look give back what they keep; hold `_lock`.

    Tells whether there are others.
    """
    busy = False
    for device, state in states.values():
        with device.lock:
            if state.used:
                busy, state.used = True, False
            else:
                state.trim()
    return busy


_timer = IdleTimer(IDLE_SECONDS, give_back)


@contextmanager
def using(device: Device) -> Iterator[Device]:
    """Make `device` the current one inside a with block."""
    global in_use  # noqa: PLW0603 - see current()
    before, in_use = in_use, device
    changed()
    try:
        yield device
    finally:
        in_use = before
        changed()


def _after_fork_in_child() -> None:
    global _lock, in_use, _chosen, _others, _timer  # noqa: PLW0603 - see current()
    _lock = CheckedLock()  # the old one may be held by a thread that does not exist here
    for used in (*_devices.values(), *_foreign.values(), *states.values()):
        forks.keep_for_ever(used)
    _devices.clear()
    states.clear()
    _foreign.clear()
    in_use, _chosen, _others = None, None, ()
    changed()
    _timer = IdleTimer(IDLE_SECONDS, give_back)


@atexit.register
def _end() -> None:
    """Let no other thread be inside a driver when the interpreter ends."""

    def cancel() -> None:
        for device in (*_devices.values(), *_foreign.values()):
            device.scratch.cancel()

    ending.begin(cancel)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
