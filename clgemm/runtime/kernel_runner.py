"""Runs one plan on one session.  It decides nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from clgemm.kernels.family import SLOTS
from clgemm.runtime import interrupt, opencl

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.kernels.family import Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Session
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.scratch import QueueWorkspace


Values = tuple[complex, complex, Any, Any, Any]
"""alpha, beta, a, b and c: what a call brings; `SLOTS` starts with their names."""


def slots(problem: Gemm, alpha: complex, beta: complex, a: Any, b: Any, c: Any) -> Values:
    """Say what the first names in a plan's arguments stand for in one call.

    Parameters
    ----------
    problem : Gemm
        The problem.
    alpha, beta : complex
        Scalars within the precision's range; the imaginary parts are dropped in s and d.
    a, b, c : Buffer or SVM
        The operands on the device.
    """
    if problem.precision in "sd":
        return alpha.real, beta.real, a, b, c
    return alpha, beta, a, b, c


_Launch = tuple["cl.Kernel", tuple[int, ...], tuple[int, ...], list[Any], list[tuple[int, int]]]


class Ready:
    """A plan whose kernels are built and whose arguments wait for their values.

    Parameters
    ----------
    session : Session
        Where it will run.
    plan : Plan
        What will run.
    long : bool
        Whether it may run for so long that Ctrl-C must end it.
    """

    def __init__(self, session: Session, plan: Plan, *, long: bool = False) -> None:
        self._session = session
        self._long = long
        self._enqueue = opencl.load().enqueue_nd_range_kernel
        self.scratch_bytes = plan.scratch_bytes
        """Scratch memory that it needs."""
        self._counts = plan.counts
        self._launches: list[_Launch] = [
            (
                session.programs.kernel(step.kernel),
                step.global_size,
                step.local_size,
                list(step.args),
                [(i, SLOTS.index(x)) for i, x in enumerate(step.args) if isinstance(x, str)],
            )
            for step in plan.steps
        ]

    def enqueue(
        self,
        values: Values,
        queue: cl.CommandQueue,
        wait_for: list[cl.Event],
        workspace: QueueWorkspace | None = None,
    ) -> cl.Event:
        """Launch every step on a queue of the caller's and wait for none.

        Parameters
        ----------
        values : tuple
            What `slots` gave, of Buffers.
        queue : cl.CommandQueue
            In the session's context.
        wait_for : list of cl.Event
            What must have ended before the first step.
        workspace : QueueWorkspace, optional
            By default what calls on the queue share.

        Returns
        -------
        cl.Event
            The last step's.
        """
        session = self._session
        with interrupt.in_use(session), session.lock:
            shared = workspace or session.workspace_of(queue)
            waits = [*wait_for, *shared.last]
            scratch = shared.scratch(self.scratch_bytes) if self.scratch_bytes else None
            counters = None
            if self._counts:
                counters, waits = shared.counters(queue, waits)
            bound = (*values, scratch, counters, 0)
            for kernel, global_size, local_size, constants, named in self._launches:
                args = constants.copy()
                for i, slot in named:
                    args[i] = bound[slot]
                kernel.set_args(*args)
                event = self._enqueue(queue, kernel, global_size, local_size, None, waits)
                waits = [event]
            shared.last = waits
        return waits[0]

    def run(
        self, values: Values, stop: interrupt.Stop | None = None, *, poisoned: bool = False
    ) -> None:
        """Launch every step and wait for the last one; the GIL is released meanwhile.

        Parameters
        ----------
        values : tuple
            What `slots` gave.  The caller keeps the memory alive: OpenCL does not.
        stop : Stop, optional
            Set if the result, void then, is not wanted any more.
        poisoned : bool
            Fill the scratch memory with NaN before.
        """
        session, workspace = self._session, self._session.workspace
        session.running.append(None)
        scratch = None
        try:
            if session.ending:
                interrupt.end_thread()
            if self.scratch_bytes:  # this call's alone until its last launch has ended
                scratch = workspace.lease(self.scratch_bytes)
            with session.lock:
                if poisoned and scratch is not None:
                    workspace.poison(session.queue, scratch)
                counters, cell = workspace.counter() if self._counts else (None, 0)
                bound = (*values, scratch, counters, cell)
                for kernel, global_size, local_size, constants, named in self._launches:
                    args = constants.copy()  # what is kept must not keep the caller's memory alive
                    for i, slot in named:
                        args[i] = bound[slot]
                    kernel.set_args(*args)
                    event = self._enqueue(session.queue, kernel, global_size, local_size)
            self._wait(event, partial(workspace.cancel, cell), values, stop)
            if scratch is not None:  # after an error nobody knows whether it is still in use
                workspace.release(scratch)
            if session.ending:  # and what was computed may be void
                interrupt.end_thread()
        finally:
            session.running.pop()

    def _wait(
        self, event: cl.Event, cancel: Callable[[], None], values: Values,
        stop: interrupt.Stop | None,
    ) -> None:  # fmt: skip
        """Wait for the last launch, which ends early where it can if it is cancelled."""
        if stop is not None:
            with stop.cancels(cancel):
                event.wait()
        elif (self._long or len(self._session.running) > 1) and interrupt.is_heard():
            interrupt.wait(event, cancel, values)
        else:
            event.wait()
