"""One candidate: build it, check it against NumPy, time it.  Every failure is a value.

Run as a program (``python -m clgemm.tuning.workers.main``) this module does what it is told on
standard input, a JSON object a line, and answers in the same way; `worker` is the other end.  So a
candidate that takes the process down takes only this one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgemm.errors import BuildError, ClgemmError
from clgemm.problem import PRECISIONS, Precision
from clgemm.runtime import devices, opencl_errors, registry
from clgemm.runtime.binaries import Binaries, kept_for
from clgemm.tuning.measure.measure import Course, WrongResultError
from clgemm.tuning.measure.verify import Checker
from clgemm.tuning.outcome import CHECK, RACE, TRY, Outcome, config_from_json
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clgemm.kernels.family import Config
    from clgemm.runtime.device import Device

WRONG_DEVICE = 3  # exit status: the devices of this process are not those of its parent


class Trial:
    """Tries candidates of one precision on one device.

    Parameters
    ----------
    device : Device
        The device; nothing else may use it meanwhile.
    precision : Precision
        Of the products.
    asked : mapping, optional
        Shapes that every candidate is timed with, by name: see `Course`.
    side : int
        Of the square among the other shapes; found at the first candidate if it is not known.
    clock : str, optional
        Whose clock counts; found at the first candidate if it is not known.
    leads : bool
        Whether candidates will be timed here, so that operands had better be ready.
    """

    def __init__(
        self,
        device: Device,
        precision: Precision,
        asked: Mapping[str, Shape] | None = None,
        side: int = 0,
        clock: str = "",
        *,
        leads: bool = True,
    ) -> None:
        self._device = device
        self._leads = leads
        self._course = Course(device, precision, asked, side, clock)
        self._checker = Checker(device, precision)

    def attempt(
        self, config: Config, best: Mapping[str, float], *, task: str = TRY, seconds: float = 0.04
    ) -> Outcome:
        """Try one candidate.

        Parameters
        ----------
        config : Config
            The candidate.
        best : mapping
            Seconds of the best so far by shape; what is much slower is not timed to the end.
        task : str
            `VET`: build what it takes to time it, and check it.
            `TRY`: time it, which passed that, with the shapes that the search goes by.
            `CHECK`: check all transposes: what a winner must pass.
            `RACE`: time it, which passed that, with every shape.
        seconds : float
            How long to time each shape.
        """
        try:
            with opencl_errors.translated_errors(str(config)):
                every, times = task in {CHECK, RACE}, {}
                if task in {TRY, RACE}:
                    times = self._course.time(config, best, seconds, every=every)
                elif mismatch := self._mismatch(config, every=every):
                    return Outcome(config, "wrong", mismatch)
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
            self._course.side,
            {name: round(timed.spread, 4) for name, timed in times.items()},
            self._course.stopwatch.clock,
        )

    def learn(self, side: int) -> None:
        """Take the side of the square among the shapes from another process that found it."""
        self._course.side = self._course.side or side

    def _mismatch(self, config: Config, *, every: bool) -> str:
        """Build and check a candidate; return what is wrong, or ""."""
        kernels = self._checker.kernels(config, every=every)
        timed = () if every else self._course.kernels(config, every=False)
        operands = self._leads and not every and not self._device.traits.unified_memory
        with self._device.programs.building((*kernels, *timed)):
            if operands:
                self._course.lay_out(config)
        mismatch = self._checker.mismatch(config, every=every)
        if not mismatch:
            if every:
                self._keep(config)
            else:
                self._course.rehearse(config)
        return mismatch

    def _keep(self, config: Config) -> None:
        """Keep a winner's programs on disk: who called for the search need not build them again."""
        binaries = kept_for(self._device.traits)
        if binaries is not None:
            for spec in self._checker.kernels(config, every=True):
                self._device.programs.keep(spec, binaries)


def _answer(trial: Trial, order: Mapping[str, Any]) -> dict[str, Any]:
    trial.learn(order["side"])
    config = config_from_json(order["config"])
    outcome = trial.attempt(config, order["best"], task=order["do"], seconds=order["seconds"])
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
            folder = order["programs"]
            kept = Binaries(Path(folder), order["fingerprint"]) if folder else None
            device = registry.open_device(found, "a trial", kept)
            asked = {name: Shape(*sizes) for name, sizes in order["asked"].items()}
            precision = PRECISIONS[order["precision"]]
            trial = Trial(
                device, precision, asked, order["side"], order["clock"], leads=order["leads"]
            )
            reply: dict[str, Any] = {"ready": True}
        else:
            reply = _answer(trial, order)
        print(json.dumps(reply), file=answers, flush=True)
    return 0


def main() -> int:
    """Serve standard input until it ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what the keyboard means
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a driver that prints must not be mistaken
    return serve(sys.stdin, answers)


if __name__ == "__main__":
    sys.exit(main())
