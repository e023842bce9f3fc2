"""Arrays in, array out: one gemm from NumPy operands to the caller's C.

Everything both faces share is decided here or below: quick returns, the row-major rewrite, copies
of what BLAS cannot express, where to run, and how the data gets there.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from clgemm import settings
from clgemm.dispatch import break_even, team
from clgemm.dispatch.explanation import Known, explained, unmeasured
from clgemm.dispatch.route import HOST, route
from clgemm.errors import BuildError
from clgemm.host import blas as host_blas
from clgemm.kernels import BY_NAME
from clgemm.problem import BY_DTYPE, PRECISIONS, Operand, aligned, describe, expressible, layout_of
from clgemm.runtime import device as sessions
from clgemm.runtime import opencl_errors, transfer
from clgemm.runtime.kernel_runner import Ready, slots
from clgemm.streaming.runner import Pipeline, must_copy
from clgemm.streaming.stream import Arrays
from clgemm.tuning import tuner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.dispatch.explanation import Explanation
    from clgemm.dispatch.multi_device import Several
    from clgemm.dispatch.times import BreakEven
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Session

    Others: TypeAlias = tuple[Session, ...]

log = logging.getLogger(__name__)

LAST_RESORT = "direct"  # the family that takes anything and needs nothing
LONG_FLOPS = 4e9  # a second on a slow CPU; a tenth of a millisecond more does not matter here
KNOWN_CALLS = 4096  # more kinds of calls than this in one process: start over rather than grow


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
        float64, complex64 or complex128, native byte order) and rank, and aligned as NumPy means
        it; strides are free.
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
    wish = settings.route()
    session = None if wish == "host" else sessions.current()
    if session is None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", unmeasured(BY_DTYPE[c.dtype], a.shape, c.shape, _no_device(wish)))
        _on_host(alpha, Operand(a, conj_a), Operand(b, conj_b), beta, c)
        return
    _on_session(session, sessions.others(), wish, alpha, a, b, beta, c, conj_a, conj_b)


def _on_session(
    session: Session, others: Others, wish: str, alpha: complex, a: NDArray[Any], b: NDArray[Any],
    beta: complex, c: NDArray[Any], conj_a: bool, conj_b: bool,
) -> None:  # fmt: skip
    """Find or make the decision on calls of this kind, and run this one."""
    known = _known(session, others, wish, a, b, c, beta != 0, conj_a, conj_b)
    if known is None:
        left, right = expressible(Operand(a, conj_a)), expressible(Operand(b, conj_b))
        _by_copies(session, others, wish, alpha, left, right, beta, c)
        return
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", explained(session, known))
    _run(session, known, alpha, a, b, beta, c, conj_a, conj_b)


def _run(
    session: Session, known: Known, alpha: complex, a: NDArray[Any], b: NDArray[Any],
    beta: complex, c: NDArray[Any], conj_a: bool, conj_b: bool,
) -> None:  # fmt: skip
    """Run a call as was decided."""
    if known.ready is None:
        _on_host(alpha, Operand(a, conj_a), Operand(b, conj_b), beta, c)
        return
    if known.turned:
        a, b, c = b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2)
    try:
        if not isinstance(known.ready, Ready):
            known.ready.run(Arrays(alpha, a, b, beta, c))
            return
        places = [transfer.share(session, x) for x in (a, b, c)]
        known.ready.run(slots(known.problem, alpha, beta, *places))
    except session.cl.Error as error:
        raise opencl_errors.translated(error, known.name(session)) from error


def _known(
    session: Session, others: Others, wish: str, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any],
    reads_c: bool, conj_a: bool, conj_b: bool,
) -> Known | None:  # fmt: skip
    """Find or make the decision on calls of this kind; None if BLAS cannot express an operand."""
    key = (
        wish, others, c.dtype, reads_c, conj_a, conj_b,
        a.shape, a.strides, b.shape, b.strides, c.shape, c.strides,
    )  # fmt: skip
    known = session.known.get(key)
    if known is None or (known.pairs and not all(map(aligned, (a, b, c)))):
        if any(layout_of(x) is None for x in (a, b, c)):
            return None
        left, right = Operand(a, conj_a), Operand(b, conj_b)
        known = _decide(session, others, wish, left, right, c, reads_c=reads_c)
        _remember(session, key, known)
    return known


def _no_device(wish: str) -> str:
    return "CLGEMM_ROUTE=host" if wish == HOST else "the driver did not survive the fork"


def explain(
    a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], *, reads_c: bool, conj_a: bool, conj_b: bool
) -> Explanation:
    """Tell what `gemm` would do with these operands; see there."""
    wish = settings.route()
    session = None if wish == HOST else sessions.current()
    if session is None:
        return unmeasured(BY_DTYPE[c.dtype], a.shape, c.shape, _no_device(wish))
    copied = tuple(name for name, x in zip("abc", (a, b, c), strict=True) if layout_of(x) is None)
    a, b = expressible(Operand(a)).data, expressible(Operand(b)).data
    c = c if layout_of(c) is not None else np.empty(c.shape, c.dtype)
    known = _known(session, sessions.others(), wish, a, b, c, reads_c, conj_a, conj_b)
    assert known is not None  # noqa: S101 - every layout has been seen to
    return explained(session, known, copied)


def _remember(session: Session, key: tuple[Any, ...], known: Known) -> None:
    if len(session.known) >= KNOWN_CALLS:
        session.forget()
    session.known[key] = known
    g = known.problem
    compared = known.decision.device_seconds is not None
    if compared and known.ready is None and g.batch == 1 and g.flops <= host_blas.PANEL_FLOPS:
        session.hosted.add((PRECISIONS[g.precision].dtype.char, g.m, g.n, g.k))


def _scale(c: NDArray[Any], beta: complex) -> None:
    if beta == 0:
        c[...] = 0
    elif beta != 1:
        with np.errstate(all="ignore"):
            c *= c.dtype.type(beta)


def _by_copies(
    session: Session, others: Others, wish: str, alpha: complex, a: Operand, b: Operand,
    beta: complex, c: NDArray[Any],
) -> None:  # fmt: skip
    """Compute with operands that BLAS can express, beside a `c` that it cannot write."""
    result = c
    if layout_of(c) is None:
        result = np.array(c, order="C") if beta != 0 else np.empty(c.shape, c.dtype)
    _on_session(session, others, wish, alpha, a.data, b.data, beta, result, a.conj, b.conj)
    if result is not c:
        c[...] = result


def _on_host(alpha: complex, a: Operand, b: Operand, beta: complex, c: NDArray[Any]) -> None:
    host_blas.gemm(BY_DTYPE[c.dtype].code, alpha, a, b, beta, c)


def _decide(
    session: Session, others: Others, wish: str, a: Operand, b: Operand, c: NDArray[Any], *,
    reads_c: bool,
) -> Known:  # fmt: skip
    """Decide where calls of this kind run and, if on the device, build their plan."""
    precision = BY_DTYPE[c.dtype]
    layout = layout_of(c)
    turned = layout is not None and layout.trans
    if turned:
        # Row-major C: C.T = op(B).T @ op(A).T is the same memory, column-major.
        a, b, c = b.turned, a.turned, c.swapaxes(-1, -2)
    problem = describe(a, b, c, reads_c=reads_c)
    decision = route(session.traits, problem, wish, partial(_break_even, session, precision))
    ready: Ready | Pipeline | Several | None = None
    if decision.where != HOST:
        session.require(precision)
        with opencl_errors.translated_errors(f"{problem.precision}gemm on {session}"):
            if others:
                ready = team.several((session, *others), problem, _break_even, in_place_or_copied)
            ready = ready or in_place_or_copied(session, problem)
    return Known(ready, problem, decision, turned, precision.is_complex)


def in_place_or_copied(session: Session, problem: Gemm) -> Ready | Pipeline:
    """Make ready what computes a problem on a device."""
    copies = must_copy(session, problem)
    return Pipeline(session, problem, build) if copies else build(session, problem)


def _break_even(session: Session, precision: Precision) -> BreakEven | None:
    return break_even.break_evens(session, precision, partial(_product, session))


def _product(session: Session, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> None:
    """Multiply on one device, whatever is faster, and without a line in the log."""
    known = _known(session, (), "device", a, b, c, False, False, False)
    assert known is not None  # noqa: S101 - every layout of a measurement is a BLAS one
    _run(session, known, 1.0, a, b, 0.0, c, False, False)


def build(session: Session, problem: Gemm) -> Ready:
    """Build the plan of a problem, with the next family if a driver refuses the first one's."""
    while True:
        config = tuner.config_for(session, problem)
        plan = BY_NAME[config.family].plan(session.traits, problem, config)
        try:
            with session.lock:
                return Ready(session, plan, long=problem.flops >= LONG_FLOPS)
        except BuildError as error:
            if config.family == LAST_RESORT:
                raise
            session.refused.add(config.family)
            log.warning("%s is not used on %s from here on: %s", config.family, session, error)
