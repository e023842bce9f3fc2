"""The program of a worker: verifies and measures candidates.  Every failure is a value.

It does what it is told on standard input, a JSON object a line, and answers in the same way;
`pool.Worker` is the other end.  So a candidate that takes the process down takes only this one.
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
from clgemm.kernels import source
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, opencl_errors, registry
from clgemm.runtime.binaries import Binaries, kept_for
from clgemm.tuning.measure.measure import Measurements, WrongResultError
from clgemm.tuning.measure.verify import Verifier
from clgemm.tuning.outcome import WHOLE, Outcome, Part, Setup, Task, config_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clgemm.kernels.family import Config, KernelSpec
    from clgemm.runtime.device import Device
    from clgemm.tuning.measure.timing import Timing

WRONG_DEVICE = 3  # exit status: the devices of this process are not those of its parent


class Tester:
    """Verifies and measures candidates on a device that nothing else uses meanwhile."""

    def __init__(self, device: Device, setup: Setup) -> None:
        self._device = device
        self._makes_operands = setup.measures and not device.traits.unified_memory
        self._measurements = Measurements(device, setup)
        self._verifier = Verifier(device, PRECISIONS[setup.precision])

    def test(
        self, task: Task, config: Config, best: Mapping[str, float], seconds: float, side: int = 0,
        part: Iterable[int] = WHOLE,
    ) -> Outcome:  # fmt: skip
        """Do what `pool.Worker.ask` asks for, at sizes that any worker has found by now."""
        self._measurements.side = self._measurements.side or side
        final, times = task.is_final, dict[str, "Timing"]()
        try:
            with opencl_errors.translated_errors(str(config)):
                if task.only_builds:
                    self._build(config, task, Part(*part))
                elif task.measures:
                    times = self._measurements.measure(config, best, seconds, finalist=final)
                elif mismatch := self._mismatch(config, task):
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
            self._measurements.side,
            {name: round(timed.spread, 4) for name, timed in times.items()},
            self._measurements.stopwatch.clock,
        )

    def _kernels(self, config: Config, task: Task) -> set[KernelSpec]:
        """Name what verifying for a task takes, and measuring after it; for `BUILD` all of that."""
        kernels = set(self._verifier.kernels(config, finalist=task.is_final))
        if not task.is_final:
            kernels.update(self._measurements.kernels(config, finalist=False))
        if task is Task.BUILD:
            kernels.update(self._verifier.kernels(config, finalist=True))
        return kernels

    def _build(self, config: Config, task: Task, part: Part) -> None:
        """Build a part of what a task takes, and make operands to measure it with."""
        kernels = self._kernels(config, task)
        # By their lengths, so that parts are alike, in every process; the worker that makes
        # operands as well has the smallest.
        ordered = sorted(kernels, key=lambda spec: (-len(source.text(spec)), spec))
        with self._device.programs.building(ordered[part.of - 1 - part.number :: part.of]):
            if self._makes_operands and not task.is_final:
                self._measurements.make_operands(config)

    def _mismatch(self, config: Config, task: Task) -> str | None:
        """Build and verify a candidate; return what is wrong."""
        self._build(config, task, WHOLE)
        mismatch = self._verifier.mismatch(config, finalist=task.is_final)
        if task.is_final and not mismatch:
            self._keep(config)
        elif not mismatch:
            self._measurements.warm_up(config)
        return mismatch

    def _keep(self, config: Config) -> None:
        """Keep a winner's programs on disk: who called for the search need not build them again."""
        binaries = kept_for(self._device.traits)
        if binaries is not None:
            for spec in self._verifier.kernels(config, finalist=True):
                self._device.programs.keep(spec, binaries)


def _tester(setup: Setup) -> Tester | None:
    """Open the device; None if it is not the one that the parent means."""
    found = devices.find()[setup.device]
    if found.traits.fingerprint() != setup.fingerprint:
        return None
    kept = Binaries(Path(setup.programs), setup.fingerprint) if setup.programs else None
    return Tester(registry.open_device(found, "a worker", kept), setup)


def serve(orders: Iterable[str], answers: Any) -> int:
    """Answer each line of JSON with another, of which the first is the `Setup`; give the status."""
    tester: Tester | None = None
    for line in orders:
        order: dict[str, Any] = json.loads(line)
        if tester is None:
            tester = _tester(Setup.from_json(order))
            if tester is None:
                return WRONG_DEVICE
            reply: dict[str, Any] = {"ready": True}
        else:
            task, config = Task(order.pop("task")), config_from_json(order.pop("config"))
            reply = tester.test(task, config, **order).as_json()
        print(json.dumps(reply), file=answers, flush=True)
    return 0


def main() -> int:
    """Serve standard input until it ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what the keyboard means
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a driver that prints must not be mistaken
    return serve(sys.stdin, answers)
