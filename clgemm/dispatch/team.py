"""Who takes part in a product when several devices are in use, and what each is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgemm.dispatch.multi_device import Member, Several
from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl_errors, transfer
from clgemm.runtime.kernel_runner import Ready, slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clgemm.dispatch.multi_device import Runner
    from clgemm.dispatch.times import BreakEven
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Session
    from clgemm.streaming.runner import Pipeline
    from clgemm.streaming.stream import Arrays

LEAST_SECONDS = 2e-3  # on the fastest device: to share less costs more than it saves
LEAST_FLOPS = 2 * 1024**3  # the same where nothing was measured


def several(
    team: Sequence[Session],
    problem: Gemm,
    break_even: Callable[[Session, Precision], BreakEven | None],
    make: Callable[[Session, Gemm], Ready | Pipeline],
) -> Several | None:
    """Share a problem among devices, if that pays.

    Parameters
    ----------
    team : sequence of Session
        The devices; those without the problem's precision are left out.
    problem : Gemm
        The problem, as its operands lie in the host's memory.
    break_even : callable
        Gives what was measured of a device and precision; None if nothing is to be measured.
    make : callable
        Makes ready what computes a problem on one device.
    """
    precision = PRECISIONS[problem.precision]
    able = [s for s in team if s.traits.fp64 or precision.real != "double"]
    found = [break_even(session, precision) for session in able]
    seconds = [x.device_seconds(problem) for x in found if x is not None]
    if len(seconds) == len(able):
        if min(seconds) < LEAST_SECONDS:
            return None
        rates = {s.traits.fingerprint(): 1 / t for s, t in zip(able, seconds, strict=True)}
    elif problem.flops < LEAST_FLOPS:
        return None
    else:
        rates = {s.traits.fingerprint(): _guessed_rate(s) for s in able}
    members = [_member(session, rates[session.traits.fingerprint()], make) for session in able]
    shared = Several(problem, members)
    return shared if len(shared.workers) > 1 else None


def _guessed_rate(session: Session) -> float:
    traits = session.traits
    return float(traits.compute_units * traits.simd_bytes * (traits.clock_mhz or 1000))


def _member(
    session: Session, rate: float, make: Callable[[Session, Gemm], Ready | Pipeline]
) -> Member:
    def runner(problem: Gemm) -> Runner:
        return _Runner(session, problem, make(session, problem))

    kind = session.traits.fingerprint()
    return Member(kind, rate, not session.traits.unified_memory, runner, str(session))


class _Runner:
    """Computes problems of one kind on one device."""

    def __init__(self, session: Session, problem: Gemm, ready: Ready | Pipeline) -> None:
        self._session = session
        self._problem = problem
        self._ready = ready

    def run(self, arrays: Arrays) -> None:
        """Compute; C is written where it lies."""
        with opencl_errors.translated_errors(f"{self._problem.precision}gemm on {self._session}"):
            if not isinstance(self._ready, Ready):
                self._ready.run(arrays)
                return
            places = [transfer.share(self._session, x) for x in (arrays.a, arrays.b, arrays.c)]
            self._ready.run(slots(self._problem, arrays.alpha, arrays.beta, *places), arrays.stop)
