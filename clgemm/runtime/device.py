"""One device in use: context, queue, kernels, workspace.  Here are the rules for threads and forks.

Threads share a session.  Its queue runs in order, so launches of different threads follow each
other and may share scratch memory; `Session.lock` covers what must stay together (arguments, then
launch).

A forked child inherits handles that no longer work.  It forgets them without releasing them, and
opens a session of its own where the driver allows it: never if another thread was inside the driver
at the fork, since a lock it held there is held for ever in the child.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clgemm.errors import DeviceError
from clgemm.runtime import choice, devices, interrupt, opencl
from clgemm.runtime.binaries import Binaries, kept_for
from clgemm.runtime.memory import DeviceMemory
from clgemm.runtime.opencl import cl
from clgemm.runtime.opencl_errors import translated
from clgemm.runtime.programs import Programs
from clgemm.runtime.scratch import QueueWorkspace, Workspace
from clgemm.streaming.copy_threads import Copiers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.dispatch.explanation import Known
    from clgemm.dispatch.times import BreakEven
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.kernel_runner import Ready
    from clgemm.tuning.store.lookup import Tuned

MANY_QUEUES = 64


class Session:
    """A device that calls run on.

    Parameters
    ----------
    found : devices.Found
        The device and its traits.
    reason : str
        Why this device was chosen, in words.
    binaries : Binaries, optional
        Where its programs are kept between processes.
    context : cl.Context, optional
        A context of the caller's to work in; one of its own by default.
    """

    def __init__(
        self,
        found: devices.Found,
        reason: str,
        binaries: Binaries | None = None,
        context: cl.Context | None = None,
    ) -> None:
        self.traits = found.traits
        self.reason = reason
        self.cl: Any = opencl.load()
        """pyopencl itself: looked up once, the path of a call is short."""
        self.lock = threading.RLock()
        try:
            self.context = context or cl.Context([found.device])
            self.queue = cl.CommandQueue(self.context)
        except cl.Error as error:
            raise translated(error, f"opening {self}") from error
        self.programs = Programs(self.context, self.traits, binaries)
        self.known: dict[tuple[Any, ...], Known] = {}
        """What `driver` decided and built, by the shapes and strides of a call."""
        self.hosted: set[tuple[str, int, int, int]] = set()
        """Precision, m, n and k of plain products that the host computes faster: see `small`."""
        self.device_plans: dict[Gemm, Ready] = {}
        """The same for operands that are on the device, by the problem."""
        self.queues: dict[cl.CommandQueue, QueueWorkspace] = {}
        """What calls on queues of the caller share."""
        self.tuned: dict[str, Tuned] = {}
        """Parameters in use by precision; `tuner` fills it."""
        self.break_evens: dict[str, tuple[Tuned, BreakEven]] = {}
        """Times beside the host's by precision, and the parameters they were measured with."""
        self.refused: set[str] = set()
        """Families that the driver's compiler refused."""
        self.tuning = threading.Lock()
        """Held while parameters are looked up or searched; a forked child's session has its own."""
        self.measuring = threading.Lock()
        """The same for break-evens."""
        self.running: list[None] = []
        """One entry for each call that is on the device now."""
        self.ending = False
        """Whether the interpreter is about to end."""
        self.workspace = Workspace(self.context, system_svm=self.traits.system_svm)
        """Scratch memory and counters; hold `lock` from asking for them until the launch."""
        self.memory = DeviceMemory(self.context, self.traits.max_allocation)
        """Device memory of calls that copy; `copiers` carries what goes there and back."""
        self.copiers = Copiers(self.context, self.memory, self.running)

    def __str__(self) -> str:
        return self.traits.describe()

    def forget(self) -> None:
        """Decide anew on every kind of call."""
        self.known.clear()
        self.hosted.clear()

    def workspace_of(self, queue: cl.CommandQueue) -> QueueWorkspace:
        """Return what calls on a queue of the caller share; hold `lock`."""
        if queue not in self.queues:
            if len(self.queues) >= MANY_QUEUES:
                self.queues.clear()  # what was enqueued keeps its memory alive
            self.queues[queue] = QueueWorkspace(self.context)
        return self.queues[queue]

    def require(self, precision: Precision) -> None:
        """Refuse a precision that the device does not have.

        Raises
        ------
        DeviceError
            For double precision on a device without cl_khr_fp64.
        """
        if precision.real == "double" and not self.traits.fp64:
            raise DeviceError(
                f"{precision.code}gemm: {self.traits.describe()} has no double precision "
                "(cl_khr_fp64); set CLGEMM_DEVICE to a device that has, or use float32 or complex64"
            )


_lock = threading.Lock()
_sessions: dict[devices.Found, Session] = {}
_of_context: dict[cl.Context, Session] = {}
_current: Session | None = None
_chosen: Session | None = None
_others: tuple[Session, ...] = ()
_inherited: list[Session] = []
_host_only = False
"""Whether this is a forked child that must leave its parent's drivers alone."""


def current() -> Session | None:
    """Return the session that calls use, opened by the first one.

    Returns
    -------
    Session or None
        None in a forked child whose driver did not survive the fork: the caller works on the host.

    Raises
    ------
    DeviceError
        If there is no usable device.
    """
    global _current, _chosen, _others  # noqa: PLW0603 - the devices in use are what this module is for
    if _current is not None:
        return _current
    if _host_only:
        return None
    with _lock:
        if _current is None:
            chosen, reason = choice.choose()
            first, *more = (_open(f, reason, kept_for(f.traits)) for f in chosen)
            _others = tuple(more)
            _current = _chosen = first
    return _current


def opened() -> Session | None:
    """Return the session that calls use if there is one; never opens it."""
    return _current


def others() -> tuple[Session, ...]:
    """Return the sessions that share large calls with the current one, opened by `current`."""
    return _others if _others and _current is _chosen else ()


def _open(found: devices.Found, reason: str, binaries: Binaries | None = None) -> Session:
    if found not in _sessions:
        _sessions[found] = Session(found, reason, binaries)
    return _sessions[found]


def open_session(
    found: devices.Found, reason: str = "asked for", binaries: Binaries | None = None
) -> Session:
    """Return the session of a given device, opened by the first call.

    Its programs are kept on disk only if that call says where: trials build hundreds of them.
    """
    with _lock:
        return _open(found, reason, binaries)


def of_queue(queue: cl.CommandQueue) -> Session:
    """Return the session that works in the context of a queue of the caller's.

    Raises
    ------
    DeviceError
        If the context has several devices: kernels are built for one.
    """
    context = queue.context
    if _current is not None and _current.context == context:
        return _current
    with _lock:
        if context not in _of_context:
            if len(context.devices) != 1:
                raise DeviceError(
                    "the arrays' OpenCL context has several devices: make one of a single device, "
                    "pyopencl.Context([device])"
                )
            device = context.devices[0]
            found = devices.Found(device, devices.read_traits(device))
            session = Session(found, "the arrays' own", kept_for(found.traits), context)
            _of_context[context] = session
    return _of_context[context]


@contextmanager
def using(session: Session) -> Iterator[Session]:
    """Make `session` the current one inside a with block."""
    global _current  # noqa: PLW0603 - see current()
    before, _current = _current, session
    try:
        yield session
    finally:
        _current = before


def _after_fork_in_child() -> None:
    global _lock, _current, _chosen, _others, _host_only  # noqa: PLW0603 - see current()
    _host_only |= _lock.locked()
    _lock = threading.Lock()  # the old one may be held by a thread that does not exist here
    for session in (*_sessions.values(), *_of_context.values()):
        busy = bool(session.running) or not session.lock.acquire(blocking=False)
        _host_only |= busy or not session.traits.fork_safe
        # Releasing an inherited handle may hang; one reference too many keeps that away.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        _inherited.append(session)
    _sessions.clear()
    _of_context.clear()
    _current, _chosen, _others = None, None, ()


@atexit.register
def _end() -> None:
    for session in (*_sessions.values(), *_of_context.values()):
        interrupt.end_calls(session)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
