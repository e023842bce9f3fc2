"""One candidate: build it, check it against SciPy, time it.  Every failure is a value.

Run as a program (``python -m clgemm.tuning.trial``) this module does what it is told on standard
input, a JSON object a line, and answers in the same way; `worker` is the other end.  So a candidate
that takes the process down takes only this one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.errors import BuildError, ClgemmError
from clgemm.problem import PRECISIONS, Precision
from clgemm.runtime import devices
from clgemm.runtime import session as sessions
from clgemm.tuning.check import Checker
from clgemm.tuning.course import Course, Size, WrongResultError
from clgemm.tuning.outcome import Outcome, config_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clgemm.kernels.family import Config
    from clgemm.runtime.session import Session

WRONG_DEVICE = 3  # exit status: the devices of this process are not those of its parent


class Trial:
    """Tries candidates of one precision on one device.

    Parameters
    ----------
    session : Session
        The device; nothing else may use it meanwhile.
    precision : Precision
        Of the products.
    sizes : mapping, optional
        m, n, k to time, by size class; those left out are found at the first candidate.
    clock : str, optional
        Whose clock counts; found at the first candidate if it is not known.
    """

    def __init__(
        self,
        session: Session,
        precision: Precision,
        sizes: Mapping[str, Size] | None = None,
        clock: str = "",
    ) -> None:
        self._session = session
        self._course = Course(session, precision, sizes or {}, clock)
        self._checker = Checker(session, precision)

    def attempt(
        self, config: Config, best: Mapping[str, float], *, every: bool, seconds: float = 0.04
    ) -> Outcome:
        """Try one candidate.

        Parameters
        ----------
        config : Config
            The candidate.
        best : mapping
            Seconds of the best so far by size class; what is much slower is not timed to the end.
        every : bool
            Check all transposes and time nothing: what a winner must pass.
        seconds : float
            How long to time each size.
        """
        try:
            with sessions.translated_errors(str(config)):
                mismatch = self._checker.mismatch(config, every=every)
                if mismatch:
                    return Outcome(config, "wrong", mismatch)
                if every:
                    self._keep(config)
                times = {} if every else self._course.time(config, best, seconds)
        except WrongResultError as error:
            return Outcome(config, "wrong", str(error))
        except BuildError as error:
            return Outcome(config, "build", str(error))
        except (ClgemmError, MemoryError) as error:
            return Outcome(config, "run", str(error))
        return Outcome(
            config,
            "ok",
            "",
            {name: timed.quartile for name, timed in times.items()},
            dict(self._course.sizes),
            {name: round(timed.spread, 4) for name, timed in times.items()},
            self._course.stopwatch.clock,
        )

    def _keep(self, config: Config) -> None:
        """Keep a winner's programs on disk: who called for the search need not build them again."""
        binaries = sessions.binaries(self._session.traits)
        if binaries is not None:
            for spec in self._checker.kernels(config):
                self._session.programs.keep(spec, binaries)

    def race(
        self, configs: Sequence[Config], size_class: str, rounds: int, seconds: float
    ) -> list[float]:
        """Time candidates in turns, so that what disturbs one disturbs all.

        Parameters
        ----------
        configs : sequence of Config
            Candidates that were timed before.
        size_class : str
            Where they compete.
        rounds : int
            Turns of each.
        seconds : float
            Length of a turn.

        Returns
        -------
        list of float
            Seconds of each: the median of its turns' lower quartiles, infinity if it was wrong.
        """
        turns: list[list[float]] = [[] for _ in configs]
        for _ in range(rounds):
            for config, times in zip(configs, turns, strict=True):
                try:
                    timed = self._course.time_class(config, size_class, seconds=seconds)
                except WrongResultError:
                    timed = None
                times.append(float("inf") if timed is None else timed.quartile)
        return [
            max(times) if max(times) == float("inf") else float(np.median(times)) for times in turns
        ]


def _answer(trial: Trial, order: Mapping[str, Any]) -> dict[str, Any]:
    if order["do"] == "race":
        configs = [config_from_json(data) for data in order["configs"]]
        return {"seconds": trial.race(configs, order["size"], order["rounds"], order["seconds"])}
    config = config_from_json(order["config"])
    outcome = trial.attempt(config, order["best"], every=order["every"], seconds=order["seconds"])
    return outcome.as_json()


def serve(orders: Iterable[str], answers: Any) -> int:
    """Answer each line of JSON with another; the first one says which device to open.

    Returns
    -------
    int
        `WRONG_DEVICE` if it is another one here, else 0 at the end of the orders.
    """
    trial: Trial | None = None
    for line in orders:
        order = json.loads(line)
        if trial is None:
            found = devices.find()[order["device"]]
            if found.traits.fingerprint() != order["fingerprint"]:
                return WRONG_DEVICE
            session = sessions.open_session(found)
            trial = Trial(session, PRECISIONS[order["precision"]], _sizes(order), order["clock"])
            reply: dict[str, Any] = {"ready": True}
        else:
            reply = _answer(trial, order)
        print(json.dumps(reply), file=answers, flush=True)
    return 0


def _sizes(order: Mapping[str, Any]) -> dict[str, Size]:
    return {name: (int(m), int(n), int(k)) for name, (m, n, k) in order["sizes"].items()}


def main() -> int:
    """Serve standard input until it ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what the keyboard means
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a driver that prints must not be mistaken
    return serve(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(main())
