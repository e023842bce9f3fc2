"""Workers: child processes that try candidates, and that are replaced when one takes them down.

A few of them build and verify side by side, as builds take a core each, and one that hangs holds up
no other.  What is measured is measured by one of them alone, while the others wait.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

from clgemm.errors import TuningError
from clgemm.runtime.interrupt import until_done
from clgemm.runtime.processor import starved_seconds, thread_times, usable_cores
from clgemm.runtime.reentry import entry
from clgemm.tuning.outcome import WHOLE, Outcome, Part, Task, config_as_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from typing_extensions import Self

    from clgemm.kernels.family import Config
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.outcome import Setup

    Patience = Callable[[float], float]
    Ask = Callable[["Worker", Config], Outcome]

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST = 4  # workers: each has a context on the device and starts in a few tenths of a second
GPU_BUILDS = 3  # of a candidate for a GPU at a time, as far as a driver builds side by side
LOOK_SECONDS = 0.05  # between looks at whether anybody still waits, or may go on
STOPPED_SECONDS = 1.0  # between looks: all processes were stopped meanwhile, as by Ctrl-Z
END_SECONDS = 5.0  # that a worker is waited for which says no more, or was killed
STDERR_TAIL = 400  # characters of a dead worker's last words that are kept
PYTHON = re.compile("python|pypy|graalpy", re.IGNORECASE)

# OpenBLAS' threads spin for tens of milliseconds after a call, on cores that are about to be timed.
ENVIRONMENT = {"CLGEMM_TUNE": "off", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PROGRAM = """\
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # not the current directory
from importlib import machinery, util
spec = machinery.PathFinder.find_spec("clgemm", [sys.argv[1]])
sys.modules["clgemm"] = util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["clgemm"])
from clgemm.tuning.workers import main
sys.exit(main.main())
"""
"""Runs `main` of this very package, wherever it lies, and no other one of its name.

Python 3.10 has no option that keeps the current directory out of ``sys.path``.
"""


class NoAnswerError(Exception):
    """A worker did not answer: what became of it (crash, hang or late), and in which words."""


class Worker:
    """One worker as the searching process has it.

    Parameters
    ----------
    setup : Setup
        What it is told first.
    patience_to_start : callable
        Tells by the seconds that passed how many more to wait until it is ready.
    """

    command: ClassVar[tuple[str, ...]] = ("-c", PROGRAM, str(Path(__file__).parents[3]))
    """Its program, after the interpreter."""

    def __init__(self, setup: Setup, patience_to_start: Patience) -> None:
        self._setup = setup
        self._patience_to_start = patience_to_start
        self.dropped = False
        """While it is set no answer is waited for: a thread that does gives up, blaming nobody."""
        self.starved = 0.0
        """Seconds that the last process without an answer had no core in, though it wanted one."""
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()
        self._stderr: IO[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @entry()
    def ask(
        self,
        task: Task,
        config: Config,
        patience: Patience,
        *,
        best: Mapping[str, float] | None = None,
        seconds: float = 0.0,
        part: Part = WHOLE,
    ) -> Outcome:
        """Let the worker do something with a candidate; start it if there is none.

        Parameters
        ----------
        patience : callable
            Tells by the seconds that passed how many more to wait: when none are left, the worker
            is taken for hung and killed.
        best : mapping, optional
            Seconds of the best so far by shape; what is much slower is not timed to the end.
        seconds : float
            How long to time each shape.
        part : Part
            Of the kernels, which to build if nothing else is to be done.

        Returns
        -------
        Outcome
            With status crash, hang or late if the worker gave no answer.
        """
        order = {
            "task": task.value, "config": config_as_json(config), "best": dict(best or {}),
            "seconds": seconds, "side": self._setup.side, "part": part,
        }  # fmt: skip
        self.start()
        try:
            outcome = Outcome.from_json(self._exchange(order, patience))
        except NoAnswerError as error:
            return Outcome(config, *error.args)
        if outcome.status == "run":
            self.stop()  # a context in which a launch failed may fail every later one
        return outcome

    def learn(self, outcome: Outcome) -> None:
        """Tell this worker, and those that replace it, the sizes and the clock of an outcome."""
        self._setup = self._setup._replace(side=outcome.side, clock=outcome.clock)

    @entry()
    def start(self) -> None:
        """Start the process if there is none and let it open the device.

        Raises
        ------
        TuningError
            If it cannot: that is no candidate's fault.
        """
        if self._process is not None:
            return
        why_not = why_no_worker()
        if why_not:
            raise TuningError(f"no candidate can be tried: {why_not}")
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, no words of a user
            [sys.executable, *self.command], env=os.environ | ENVIRONMENT, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
        )  # fmt: skip
        self._answers = queue.Queue()
        listening = self._process.stdout, self._answers
        listener = threading.Thread(
            target=_listen, args=listening, name="clgemm-tuning", daemon=True
        )
        try:
            listener.start()
        except RuntimeError as error:  # a limit of the system, or the interpreter ends
            self.stop()  # nobody would hear its answers
            raise TuningError(f"no candidate can be tried: {error}") from error
        try:
            self._exchange(self._setup._asdict(), self._patience_to_start)
        except NoAnswerError as error:
            raise TuningError(f"no candidate can be tried: {error.args[1]}") from error

    def _exchange(self, order: Mapping[str, Any], patience: Patience) -> dict[str, Any]:
        """Send an order to the process and wait for the answer."""
        assert self._process is not None  # noqa: S101 - `start` started it
        assert self._process.stdin is not None  # noqa: S101 - Popen was asked for a pipe
        try:
            with suppress(OSError):  # the process has ended, as the answer says
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._wait(patience))
        except BaseException:  # the keyboard as well: no later answer may be taken for another
            self.stop()
            raise
        return answer

    def _wait(self, patience: Patience) -> str:
        """Wait for a line."""
        assert self._process is not None  # noqa: S101 - `start` started it
        begun = looked = time.monotonic()
        stopped, before = 0.0, thread_times(self._process.pid)
        while not self.dropped:
            now = time.monotonic()
            stopped += now - looked if now - looked > STOPPED_SECONDS else 0.0
            looked, waited = now, now - begun - stopped
            more = patience(waited)
            if more <= 0:
                after = thread_times(self._process.pid)
                self.starved = stopped + starved_seconds(before, after, waited)
                raise NoAnswerError("hang", f"no answer within {waited:.3g} s")
            with suppress(queue.Empty):
                line = self._answers.get(timeout=min(LOOK_SECONDS, more))
                if not line:
                    raise NoAnswerError("crash", self._last_words())
                return line
        raise NoAnswerError("late", "the search ended before it answered")

    def _last_words(self) -> str:
        assert self._process is not None  # noqa: S101 - it has just ended
        try:
            code = str(self._process.wait(END_SECONDS))
        except subprocess.TimeoutExpired:
            code = "its answers, and hangs"
        self._stderr.seek(0)
        words = self._stderr.read()[-STDERR_TAIL:].decode(errors="replace").strip()
        return f"the worker ended with {code}: {words}"

    def kill(self) -> None:
        """Have the process end; `stop` waits for that."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # a driver may keep it from ending
                process.wait(END_SECONDS)
            for pipe in (process.stdin, process.stdout, self._stderr):
                if pipe is not None:
                    with suppress(OSError):  # what was still to be written to a dead process
                        pipe.close()


def why_no_worker() -> str | None:
    """Say why this program cannot start a Python of its own, None if it can."""
    if getattr(sys, "frozen", False):
        return "a frozen program would start itself again in place of a worker"
    if not PYTHON.match(Path(sys.executable or "").name):
        return f"this program's executable is no Python: sys.executable is {sys.executable!r}"
    return None


@entry()
def _listen(pipe: IO[str], answers: queue.Queue[str]) -> None:
    """Pass a process' lines on; an empty one says that it has ended."""
    try:
        for line in pipe:
            answers.put(line)
    except (OSError, ValueError) as error:  # the pipe was closed by stop()
        log.debug("reading from a stopped worker: %s", error)
    answers.put("")


def size(traits: DeviceTraits) -> int:
    """Return how many workers this machine has cores for; GPUs' families have many kernels."""
    builds = 1 if traits.kind == "cpu" else GPU_BUILDS
    return max(1, min(MOST, usable_cores() // builds))


class WorkerPool:
    """The workers of one search, of which the first one measures."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = list(workers)
        self._threads = ThreadPoolExecutor(len(self._workers), "clgemm-tuning")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop(dropped=True)
        self._threads.shutdown()
        for worker in self._workers:
            worker.kill()  # they end side by side: with a context of a GPU that takes a while
        for worker in self._workers:
            worker.stop()

    @property
    def size(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def measuring(self) -> Worker:
        """The worker that measures."""
        return self._workers[0]

    def start(self) -> None:
        """Start the workers, those that can be.

        Raises
        ------
        TuningError
            If the one that measures cannot.
        """
        starts = {worker: self._submit(worker.start) for worker in self._workers}
        measuring = starts.pop(self.measuring)
        until_done([measuring])
        measuring.result()
        for worker, started in starts.items():
            error = started.exception()
            if isinstance(error, TuningError | OSError):
                log.debug("one worker less tries candidates: %s", error)
                self._workers.remove(worker)
            elif error is not None:
                raise error

    def _submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        try:
            return self._threads.submit(work, *arguments)
        except RuntimeError as error:  # a limit of the system, or the interpreter ends
            raise TuningError(f"no candidate can be tried: {error}") from error

    def learn(self, outcome: Outcome) -> None:
        """Let all workers know what the first one found out when it measured a candidate."""
        for worker in self._workers:
            worker.learn(outcome)

    def build(self, ask: Callable[[Worker, Part], Outcome]) -> None:
        """Have each worker build a part of the same candidate's kernels.

        A driver that has one compiler a process builds them side by side so, and what it or clgemm
        keeps on disk is there for who needs the whole.  What does not build is left for that one.
        """
        count = len(self._workers)
        parts = [(worker, Part(i, count)) for i, worker in enumerate(self._workers)]
        running = [self._submit(ask, worker, part) for worker, part in parts]
        self._finish(running)

    def _finish(self, running: Sequence[Future[Outcome]]) -> None:
        """Wait; end at once what runs if that is interrupted."""
        try:
            until_done(running)
        except BaseException:
            self._drop(dropped=True)
            wait(running)
            self._drop(dropped=False)
            raise
        for done in running:
            done.result()

    def each(
        self, configs: Iterable[Config], ask: Ask, go_on: Callable[[bool], bool]
    ) -> list[Outcome]:
        """Try candidates, one a worker at a time; return what became of them, as they ended.

        Parameters
        ----------
        configs : iterable of Config
            In order; the first one for each worker is tried in any case.
        ask : callable
            Lets a worker try one, in a thread of its own.
        go_on : callable
            Tells whether another one may be begun, by whether one takes much longer than any that
            has ended: that one is waited for anyway.
        """
        waiting, idle = iter(configs), list(self._workers)
        fresh, longest = len(idle), math.inf
        running: dict[Future[Outcome], tuple[Worker, float]] = {}
        outcomes: list[Outcome] = []
        try:
            while True:
                now = time.monotonic()
                overdue = any(now - begun > longest for _, begun in running.values())
                while idle and (fresh > 0 or go_on(overdue)):
                    config = next(waiting, None)
                    if config is None:
                        break
                    fresh -= 1
                    worker = idle.pop(0)
                    running[self._submit(ask, worker, config)] = worker, now
                if not running:
                    return outcomes
                for done in wait(running, LOOK_SECONDS, FIRST_COMPLETED).done:
                    worker, begun = running.pop(done)
                    idle.append(worker)
                    outcomes.append(done.result())
                    took = time.monotonic() - begun
                    longest = max(2 * took + LOOK_SECONDS, 0 if math.isinf(longest) else longest)
        except BaseException:  # the keyboard, or a worker that cannot be replaced
            self._drop(dropped=True)
            wait(running)
            self._drop(dropped=False)
            raise

    def _drop(self, *, dropped: bool) -> None:
        for worker in self._workers:
            worker.dropped = dropped
