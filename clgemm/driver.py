"""Arrays in, array out: one gemm from NumPy operands to the caller's C.

Everything both faces share is decided here or below: quick returns, the row-major rewrite, copies
of what BLAS cannot express, where to run, and how the data gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clgemm import host, settings, transfer
from clgemm.execute import Ready, slots
from clgemm.kernels import BY_NAME
from clgemm.problem import BY_DTYPE, PRECISIONS, Gemm, Layout, Operand, describe, layout_of
from clgemm.route import route
from clgemm.runtime import session as sessions
from clgemm.tuning import tuner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.runtime.session import Session

HOST: Literal["host"] = "host"
READY_PLANS = 4096  # more shapes than this in one process: start over rather than grow


def gemm(
    alpha: complex,
    a: NDArray[Any],
    b: NDArray[Any],
    beta: complex,
    c: NDArray[Any],
    *,
    conj_a: bool = False,
    conj_b: bool = False,
) -> None:
    """Compute ``c[...] = alpha * op(a) @ op(b) + beta * c``.

    Parameters
    ----------
    alpha, beta : complex
        Scalars.  If beta == 0, `c` is not read; if alpha == 0, `a` and `b` are not.
    a : ndarray of shape (m, k) or (batch, m, k)
    b : ndarray of shape (k, n) or (batch, k, n)
    c : ndarray of shape (m, n) or (batch, m, n)
        Written in place; must overlap neither `a` nor `b`.  All three are of one dtype (float32,
        float64, complex64 or complex128, native byte order) and rank; strides are free.
    conj_a, conj_b : bool
        Whether the operand is conjugated.  A transposed one is passed as its ``.T``.

    Raises
    ------
    DeviceError
        If no device is usable or this one lacks the precision.
    MemoryError
        If the device has no memory for the operands.
    """
    if c.size == 0:
        return
    if alpha == 0 or a.shape[-1] == 0:
        _scale(c, beta)
        return
    layout = layout_of(c)
    if layout is None:
        # No BLAS can write such an array: compute beside it and copy.
        result = np.array(c, order="C") if beta != 0 else np.empty(c.shape, c.dtype)
        gemm(alpha, a, b, beta, result, conj_a=conj_a, conj_b=conj_b)
        c[...] = result
        return
    left, right = Operand(a, conj_a), Operand(b, conj_b)
    if layout.trans:
        # Row-major C: C.T = op(B).T @ op(A).T is the same memory, column-major.
        c, left, right = c.swapaxes(-1, -2), right.turned, left.turned
        layout = layout._replace(trans=False)
    _column_major(alpha, left, right, beta, c, layout)


def _scale(c: NDArray[Any], beta: complex) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        with np.errstate(all="ignore"):
            c *= c.dtype.type(beta)


def _expressible(x: Operand) -> tuple[Operand, Layout | None]:
    """Return the operand with its layout, copied once if no BLAS layout fits it."""
    layout = layout_of(x.data)
    if layout is not None:
        return x, layout
    if x.data.ndim > 2 and x.data.strides[0] == 0:  # a stack of one matrix repeated
        x = Operand(np.broadcast_to(np.array(x.data[0], order="C"), x.data.shape), x.conj)
    else:
        x = Operand(np.array(x.data, order="C"), x.conj)
    return x, layout_of(x.data)


def _column_major(
    alpha: complex, a: Operand, b: Operand, beta: complex, c: NDArray[Any], layout: Layout
) -> None:
    wish = settings.route()
    session = None if wish == "host" else sessions.current()
    if session is None:
        host.gemm(BY_DTYPE[c.dtype].code, alpha, a, b, beta, c)
        return
    (a, la), (b, lb) = _expressible(a), _expressible(b)
    problem = describe(a, b, c, reads_c=beta != 0, layouts=(la, lb, layout))
    if not session.traits.unified_memory:
        problem = problem.dense()
    try:
        ready = session.ready.get((wish, problem)) or _ready(session, wish, problem)
        if isinstance(ready, str):
            host.gemm(problem.precision, alpha, a, b, beta, c)
            return
        a_arg, b_arg = transfer.place(session, a.data), transfer.place(session, b.data)
        c_arg = transfer.place(session, c, read=problem.reads_c)
        ready.run(slots(problem, alpha, beta, a_arg, b_arg, c_arg))
        transfer.fetch(session, c_arg, c)
    except session.cl.Error as error:
        raise sessions.translated(error, f"{problem.precision}gemm on {session}") from error


def _ready(session: Session, wish: str, problem: Gemm) -> Ready | Literal["host"]:
    """Decide where a problem runs and, if on the device, build its plan: once for each problem."""
    ready: Ready | Literal["host"] = HOST
    if route(session.traits, problem, wish) != HOST:
        session.require(PRECISIONS[problem.precision])
        config = tuner.config_for(session, problem)
        plan = BY_NAME[config.family].plan(session.traits, problem, config)
        with session.lock:
            ready = Ready(session, plan)
    if len(session.ready) >= READY_PLANS:
        session.ready.clear()
    session.ready[wish, problem] = ready
    return ready
