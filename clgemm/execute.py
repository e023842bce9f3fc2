"""Runs one plan on one session.  It decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.problem import PRECISIONS
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.session import Session


def slots(problem: Gemm, alpha: complex, beta: complex, a: Any, b: Any, c: Any) -> dict[str, Any]:
    """Say what the names in a plan's arguments stand for in one call.

    Parameters
    ----------
    problem : Gemm
        The problem.
    alpha, beta : complex
        Scalars; the imaginary parts are dropped in s and d.
    a, b, c : Buffer or SVM
        The operands on the device.
    """
    precision = PRECISIONS[problem.precision]
    scalar = precision.dtype.type
    if not precision.is_complex:
        alpha, beta = alpha.real, beta.real
    with np.errstate(over="ignore"):  # 1e300 becomes inf in single precision, as in SciPy
        return {
            "alpha": scalar(alpha), "beta": scalar(beta),
            "a": a, "b": b, "c": c,
            "offset_a": 0, "offset_b": 0, "offset_c": 0,
        }  # fmt: skip


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
        self._scratch_bytes = plan.scratch_bytes
        self._launches = [
            (session.programs.kernel(s.kernel), s.global_size, s.local_size, s.args)
            for s in plan.steps
        ]

    def run(self, values: Mapping[str, Any]) -> None:
        """Launch every step and wait for the last one; the GIL is released meanwhile.

        Parameters
        ----------
        values : mapping
            For each name in the plan's arguments (`family.SLOTS` but scratch) what it stands for.
            The caller keeps the memory alive: OpenCL does not.
        """
        session = self._session
        with session.lock:
            bound = dict(values)
            if self._scratch_bytes:
                bound["scratch"] = session.scratch(self._scratch_bytes)
            for kernel, global_size, local_size, args in self._launches:
                values_in_order: list[Any] = [bound[x] if type(x) is str else x for x in args]
                kernel.set_args(*values_in_order)
                event = cl.enqueue_nd_range_kernel(session.queue, kernel, global_size, local_size)
            session.queue.flush()
        event.wait()
