"""What goes on beside calls: threads that take cases, others that disturb them, forks, Ctrl-C.

None of it may change a result, leave an operand changed, or hold up a call for ever.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING

import numpy as np

from clgemm.dispatch import engine, engines
from clgemm.errors import ClgemmError
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.measure.verify import Verifier
from clgemm.tuning.results import Effort
from clgemm.tuning.store.lookup import competitors, defaults

from . import compare, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .running import Case, Finding

FORK_SECONDS = 60.0  # after which a child counts as hanging
TUNE_EVERY = 40  # turns: a search takes a second or more


class _Crew:
    """Threads that take cases, and one that disturbs them."""

    def __init__(
        self, cases: Iterator[Case], *, exact: bool, heard: Callable[[Finding], None]
    ) -> None:
        self._cases, self._exact, self._heard = cases, exact, heard
        self._lock = threading.Lock()
        self.done = threading.Event()
        self.count = 0
        self.trouble = ""

    def _next(self) -> Case | None:
        with self._lock:
            case = next(self._cases, None)
            self.count += case is not None
        return case

    def take(self) -> None:
        """Run cases until there is none left."""
        while (case := self._next()) is not None:
            found = running.run(case, exact=self._exact)
            if found is not None:
                with self._lock:
                    self._heard(found)

    def disturb(self) -> None:
        """Disturb until all is done."""
        turn = 0
        try:
            while not self.done.wait(0.002):
                disturb_once(turn)
                turn += 1
        except Exception:  # noqa: BLE001 - it is raised in the main thread
            self.trouble = traceback.format_exc()


def run_in_threads(
    cases: Iterator[Case], count: int, *, exact: bool, heard: Callable[[Finding], None]
) -> int:
    """Run cases in several threads, while another one disturbs them.

    Returns
    -------
    int
        How many were run.
    """
    crew = _Crew(cases, exact=exact, heard=heard)
    threads = [threading.Thread(target=crew.take) for _ in range(count)]
    disturber = threading.Thread(target=crew.disturb)
    compare.SHARED.set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python keeps one list of filters for all threads
            for thread in [*threads, disturber]:
                thread.start()
            for thread in threads:
                thread.join()
            crew.done.set()
            disturber.join()
    finally:
        crew.done.set()
        compare.SHARED.clear()
    if crew.trouble:
        raise RuntimeError(crew.trouble)
    return crew.count


def disturb_once(turn: int) -> None:
    """Do one of the things that may happen beside a call."""
    used = engines.current()
    if used is None:
        return
    code = "sdcz"[turn // 5 % 4]
    precision = PRECISIONS[code]
    if not used.device.traits.has(precision):
        return
    config = competitors(used.device.traits, precision)[0].default(used.device.traits, precision)
    what = turn % 5
    if what == 0:
        used.forget()
    elif what == 1:
        fault = Verifier(used.device, precision).quick_mismatch(config)
        if fault is not None:
            raise RuntimeError(f"a check finds {config} wrong: {fault}")
    elif what == 2:
        registry.give_back()
    elif what == 3:
        tuned = defaults(used.device.traits, precision, "fuzzing")
        tuned.unverified.update(tuned.configs)  # the next call checks it before it is used
        used.parameters.use(code, tuned)
        used.forget()
    elif turn % TUNE_EVERY == TUNE_EVERY - 1:
        _tune(used, code)


def _tune(used: engine.Engine, code: str) -> None:
    """Search as cheaply as can be; that nothing is found in so little time is no trouble."""
    try:
        used.parameters.tune(code, Effort("quick", 0.5))
    except ClgemmError as error:
        sys.stderr.write(f"{error}\n")
    used.forget()


# --------------------------------------------------------------------------- forks


def run_with_forks(
    cases: Iterator[Case], *, exact: bool, every: int, heard: Callable[[Finding], None]
) -> tuple[int, int]:
    """Run cases, now and then some of them in a forked child.

    Returns
    -------
    tuple of int
        How many were run, and how many forks there were.
    """
    count = forks = 0
    for case in cases:
        if case.kind not in {"gemm", "matmul", "interposed"}:
            continue
        count += 1
        if count % every == 0:
            forks += 1
            reason = _in_child(lambda case=case: running.run(case, exact=exact))
            if reason:
                heard(running.Finding(case, f"in a forked child: {reason}"))
        found = running.run(case, exact=exact)
        if found is not None:
            heard(found)
    return count, forks


def _in_child(work: Callable[[], Finding | None]) -> str:
    """Run in a forked child; return what went wrong there."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        found = work()
        os.write(write, ("" if found is None else found.reason).encode()[:4000])
        os._exit(0 if found is None else 1)
    os.close(write)
    end, status = time.monotonic() + FORK_SECONDS, None
    while status is None and time.monotonic() < end:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else None
        time.sleep(0.001)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return f"it hangs for {FORK_SECONDS:g} s"
    with os.fdopen(read) as pipe:
        said = pipe.read()
    return said or ("" if status == 0 else f"it ended with status {status}")


# --------------------------------------------------------------------------- Ctrl-C


def run_with_interrupts(
    cases: Iterator[Case], seed: int, *, exact: bool, heard: Callable[[Finding], None]
) -> tuple[int, int]:
    """Run cases, each of them once while Ctrl-C may come at any moment, and once more in peace.

    Returns
    -------
    tuple of int
        How many were run, and in how many Ctrl-C ended the call.
    """
    rng = np.random.default_rng(seed)
    count = interrupted = 0
    for case in cases:
        count += 1
        delay = float(10 ** rng.uniform(-5, -2))
        presser = threading.Timer(delay, signal.raise_signal, (signal.SIGINT,))
        inside = False
        try:
            presser.start()
            inside = True
            running.call_only(case)
            inside = False
        except KeyboardInterrupt:
            interrupted += inside
        _let_it_come(presser)
        found = running.run(case, exact=exact)
        if found is not None:
            heard(running.Finding(case, f"after Ctrl-C: {found.reason}"))
        device = registry.opened()
        if device is not None and device.running:
            heard(running.Finding(case, f"still running: {device.running}"))
    return count, interrupted


def _let_it_come(presser: threading.Timer) -> None:
    """Wait until Ctrl-C has been pressed and heard, or never will be."""
    try:
        presser.cancel()
        presser.join()
        time.sleep(0)  # a signal is heard between two steps of the interpreter
    except KeyboardInterrupt:
        presser.join()
