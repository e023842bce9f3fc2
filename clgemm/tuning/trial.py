"""One candidate: build it, check it against SciPy, time it.  Every failure is a value.

Run as a program (``python -m clgemm.tuning.trial``) this module tries what it is told on standard
input, a JSON object a line, and answers in the same way; `worker` is the other end.  So a candidate
that takes the process down takes only this one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import host, transfer
from clgemm.errors import BuildError, ClgemmError
from clgemm.execute import Ready, slots
from clgemm.kernels import BY_NAME
from clgemm.problem import (
    ALIGNMENT,
    PRECISIONS,
    SIZE_CLASSES,
    Operand,
    Precision,
    address_of,
    describe,
)
from clgemm.runtime import devices
from clgemm.runtime import session as sessions
from clgemm.tuning import timing
from clgemm.tuning.outcome import Outcome, config_from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config
    from clgemm.runtime.session import Session

CHECK_SHAPES = ((261, 133, 401), (5, 3, 2))
SMALL_N, SKINNY_N = 512, 37
LARGEST_N, ENOUGH_SECONDS = 4096, 0.002
GIVE_UP = 1.6  # times the best so far: a candidate this slow in its first run is not timed further


CHECKED_ROWS = 4  # of what was timed


class WrongResultError(Exception):
    """What was timed differs from the reference."""


def random_matrix(
    rng: np.random.Generator, precision: Precision, rows: int, columns: int
) -> NDArray[Any]:
    """Return an F-ordered matrix with elements uniform in (-1, 1)."""
    x = rng.uniform(-1, 1, (columns, rows))
    if precision.is_complex:
        x = x + 1j * rng.uniform(-1, 1, (columns, rows))
    return x.astype(precision.dtype).T


def run_once(
    session: Session, config: Config, a: Operand, b: Operand, c: NDArray[Any],
    alpha: complex = 1.0, beta: complex = 0.0, *, poison: bool = False,
) -> None:  # fmt: skip
    """Compute ``c[...] = alpha*a@b + beta*c`` with one configuration.

    `poison` fills the scratch memory with NaN before.
    """
    problem = describe(a, b, c, reads_c=beta != 0)
    if session.traits.unified_memory:
        # Where operands are copied they always are aligned: let kernels rely on it here, too.
        aligned = not (address_of(a.data) | address_of(b.data)) % ALIGNMENT
        problem = problem._replace(aligned=aligned)
    else:
        problem = problem.dense()
    plan = BY_NAME[config.family].plan(session.traits, problem, config)
    ready = Ready(session, plan)
    places = [transfer.place(session, x) for x in (a.data, b.data, c)]
    if poison and plan.scratch_bytes:
        with session.lock:
            session.workspace.poison(session.queue, plan.scratch_bytes)
    ready.run(slots(problem, alpha, beta, *places))
    transfer.fetch(session, places[2], c)


def operands(
    rng: np.random.Generator, precision: Precision, m: int, n: int, k: int, *, every: bool
) -> Iterator[tuple[Operand, Operand]]:
    """Yield operands for op(A) @ op(B): N with N, or (`every`) N, T and C with N, T and C."""
    ops = "NTC" if every and precision.is_complex else "NT" if every else "N"
    for op_a in ops:
        for op_b in ops:
            a = random_matrix(rng, precision, *((m, k) if op_a == "N" else (k, m)))
            b = random_matrix(rng, precision, *((k, n) if op_b == "N" else (n, k)))
            yield (
                Operand(a if op_a == "N" else a.T, conj=op_a == "C"),
                Operand(b if op_b == "N" else b.T, conj=op_b == "C"),
            )


def check(session: Session, config: Config, precision: Precision, *, every: bool) -> str:
    """Compare with SciPy on odd shapes, beta zero and not, poisoned C, padding and scratch.

    Returns
    -------
    str
        The first mismatch with its numbers, or "".
    """
    rng = np.random.default_rng(20)
    wide = "z" if precision.is_complex else "d"
    for m, n, k in CHECK_SHAPES:
        for a, b in operands(rng, precision, m, n, k, every=every):
            bound = np.abs(a.data) @ np.abs(b.data)
            for alpha, beta in ((1.0, 0.0), (-1.25, 0.5)):
                room = np.full((n, m + 3), np.nan, precision.dtype).T  # three rows of padding
                c = room[:m]
                if beta:
                    c[...] = random_matrix(rng, precision, m, n)
                want = np.asarray(c, PRECISIONS[wide].dtype, order="F").copy(order="F")
                left, right = (Operand(x.data.astype(want.dtype), x.conj) for x in (a, b))
                host.gemm(wide, alpha, left, right, beta, want)
                limit = 2 * (k + 8) * precision.eps * (abs(alpha) * bound + abs(want) + abs(beta))
                run_once(session, config, a, b, c, alpha, beta, poison=True)
                worst = np.max(np.abs(c - want) / limit)
                if not worst <= 1 or not np.all(np.isnan(room[m:])):
                    return f"{m} x {n} x {k}, beta {beta}: error {worst:.3g} times the bound"
    return ""


class Trial:
    """Tries candidates of one precision on one device."""

    def __init__(self, session: Session, precision: Precision) -> None:
        self._session = session
        self._precision = precision
        self._sizes: dict[str, tuple[int, int, int]] = {}

    def attempt(self, config: Config, best: Mapping[str, float], *, every: bool) -> Outcome:
        """Try one candidate.

        Parameters
        ----------
        config : Config
            The candidate.
        best : mapping
            Seconds of the best so far by size class; what is much slower is not timed to the end.
        every : bool
            Check all transposes and time nothing: what a winner must pass.
        """
        try:
            with sessions.translated_errors(str(config)):
                mismatch = check(self._session, config, self._precision, every=every)
                if mismatch:
                    return Outcome(config, "wrong", mismatch)
                seconds = {} if every else self._time(config, best)
        except WrongResultError as error:
            return Outcome(config, "wrong", str(error))
        except BuildError as error:
            return Outcome(config, "build", str(error))
        except (ClgemmError, MemoryError) as error:
            return Outcome(config, "run", str(error))
        return Outcome(config, "ok", "", seconds, dict(self._sizes))

    def _time(self, config: Config, best: Mapping[str, float]) -> dict[str, float]:
        if not self._sizes:
            self._calibrate(config)
        times = {
            name: self._one_size(config, self._sizes[name], best.get(name, float("inf")))
            for name in SIZE_CLASSES
        }
        return {name: seconds for name, seconds in times.items() if seconds is not None}

    def _calibrate(self, config: Config) -> None:
        """Find a square that takes long enough to be timed: CPUs and GPUs differ a thousandfold."""
        n = 512
        while n < LARGEST_N:
            seconds = self._one_size(config, (n, n, n))
            if seconds is not None and seconds >= ENOUGH_SECONDS:
                break
            n *= 2
        small = min(SMALL_N, n)
        self._sizes = {"large": (n,) * 3, "small": (small,) * 3, "skinny": (SKINNY_N, n, n)}

    def _one_size(
        self, config: Config, size: tuple[int, int, int], best: float = float("inf")
    ) -> float | None:
        """Time one size, None if the family declines it, and check what was timed on some rows."""
        m, n, k = size
        rng = np.random.default_rng(21)
        a, b = next(operands(rng, self._precision, m, n, k, every=False))
        c = np.zeros((n, m), self._precision.dtype).T
        session = self._session
        problem = describe(a, b, c, reads_c=False)
        if not BY_NAME[config.family].accepts(problem):
            return None
        ready = Ready(session, BY_NAME[config.family].plan(session.traits, problem, config))
        places = [transfer.place(session, x) for x in (a.data, b.data, c)]
        values = slots(problem, 1.0, 0.0, *places)
        seconds = timing.measure(lambda: ready.run(values), give_up=best * GIVE_UP).best
        transfer.fetch(session, places[2], c)
        rows = rng.integers(0, m, CHECKED_ROWS)
        wide = PRECISIONS["z" if self._precision.is_complex else "d"].dtype
        left = a.data[rows].astype(wide)
        limit = 2 * (k + 8) * self._precision.eps * (np.abs(left) @ np.abs(b.data))
        worst = np.max(np.abs(c[rows] - left @ b.data.astype(wide)) / limit)
        if not worst <= 1:
            raise WrongResultError(f"{m} x {n} x {k}, as timed: error {worst:.3g} times the bound")
        return seconds


def main() -> int:
    """Answer one line of JSON with another until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a driver that prints must not be mistaken
    trial: Trial | None = None
    for line in sys.stdin:
        order = json.loads(line)
        if trial is None:
            found = devices.find()[order["device"]]
            if found.traits.fingerprint() != order["fingerprint"]:
                return 3  # the devices of this process are not those of its parent
            session = sessions.open_session(found)
            trial = Trial(session, PRECISIONS[order["precision"]])
        outcome = trial.attempt(
            config_from_json(order["config"]), order["best"], every=order["every"]
        )
        print(json.dumps(outcome.as_json()), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
