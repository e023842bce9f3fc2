"""Runs one plan on one session.  It decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl

if TYPE_CHECKING:
    from clgemm.kernels.family import Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.session import Session


def slots(problem: Gemm, alpha: complex, beta: complex, a: Any, b: Any, c: Any) -> dict[str, Any]:
    """Say what the names in a plan's arguments stand for in one call.

    Parameters
    ----------
    problem : Gemm
        The problem.
    alpha, beta : complex
        Scalars within the precision's range; the imaginary parts are dropped in s and d.
    a, b, c : Buffer or SVM
        The operands on the device.
    """
    precision = PRECISIONS[problem.precision]
    scalar = precision.dtype.type
    if not precision.is_complex:
        alpha, beta = alpha.real, beta.real
    return {
        "alpha": scalar(alpha), "beta": scalar(beta),
        "a": a, "b": b, "c": c,
    }  # fmt: skip


_Launch = tuple["cl.Kernel", tuple[int, ...], tuple[int, ...], list[Any], list[tuple[int, str]]]


class Ready:
    """A plan whose kernels are built and whose arguments wait for their values.

    Parameters
    ----------
    session : Session
        Where it will run.
    plan : Plan
        What will run.
    """

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._enqueue = opencl.load().enqueue_nd_range_kernel
        self._scratch_bytes = plan.scratch_bytes
        self._counts = plan.counts
        self._launches: list[_Launch] = [
            (
                session.programs.kernel(step.kernel),
                step.global_size,
                step.local_size,
                list(step.args),
                [(i, name) for i, name in enumerate(step.args) if isinstance(name, str)],
            )
            for step in plan.steps
        ]

    def run(self, values: dict[str, Any]) -> None:
        """Launch every step and wait for the last one; the GIL is released meanwhile.

        Parameters
        ----------
        values : dict
            What the names in the plan's arguments stand for, but for scratch and counters.  The
            caller keeps the memory alive: OpenCL does not.
        """
        session = self._session
        session.running.append(None)
        try:
            with session.lock:
                if self._scratch_bytes:
                    values["scratch"] = session.scratch(self._scratch_bytes)
                if self._counts:
                    values["counters"], values["cell"] = session.counter()
                for kernel, global_size, local_size, constants, named in self._launches:
                    args = constants.copy()  # what is kept must not keep the caller's memory alive
                    for i, name in named:
                        args[i] = values[name]
                    kernel.set_args(*args)
                    event = self._enqueue(session.queue, kernel, global_size, local_size)
            event.wait()
        finally:
            session.running.pop()
