"""One search: candidates in order, each in a worker; the finalists among them are compared.

A few workers build candidates and verify them side by side, ahead of being measured: so builds use
all cores, and what is broken is known early.  Then one worker measures them, alone.  On GPUs, of
which a candidate has many kernels, the workers build those of the first one together; if that took
long, as on a driver that has compiled nothing yet, no other is begun before it is measured.
Whatever a
candidate does to its worker costs that candidate and nothing else.  What took a process down stays
in the store's journal, so it is never tried again on that device and driver.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clgemm.errors import TuningError
from clgemm.runtime import devices
from clgemm.tuning import cost_model, shapes
from clgemm.tuning.outcome import Outcome, Part, Setup, Task, config_as_json
from clgemm.tuning.results import Effort, Result
from clgemm.tuning.search.budget import FINAL_SHARE, Budget
from clgemm.tuning.search.candidates import Candidates, Proposal
from clgemm.tuning.store.entries import current_trials, stored_config
from clgemm.tuning.store.lookup import competitors, entry_name
from clgemm.tuning.workers import pool
from clgemm.tuning.workers.pool import Worker, WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.store.store import Store

log = logging.getLogger(__name__)

DEADLY = frozenset({"crash", "hang"})
RULED_OUT = DEADLY | {"wrong", "build"}  # "run" may have been another's use of memory
TIMED_SECONDS = 0.008, 0.03, 0.06, 0.12, 0.24  # each shape is timed for, by effort
SAMPLE_SHARE = 0.3  # of the time that is left, spent on the sample
LARGEST_BRACKET = 64
AHEAD = 6  # candidates that are verified before one of them is measured
SLOW_SHARE = 0.2  # of the budget, in which the workers together build a candidate
FINALISTS, ROUNDS = 6, 3
MOST_FAILURES = 8  # of finalists, before the search gives up

Times = dict["Config", dict[str, float]]
"""Seconds by shape, by configuration."""


class Search:
    """Searches for one precision's parameters on one device.

    Parameters
    ----------
    store : Store
        Where its journal is; the result is the caller's to write.
    first : sequence of Config
        Known good configurations of near devices.
    in_use : sequence of Config
        What the result replaces: it is tried before all others and to the end, beyond the time of a
        short search, or there is no result.
    """

    def __init__(
        self,
        traits: DeviceTraits,
        precision: Precision,
        store: Store,
        effort: Effort,
        first: Sequence[Config] = (),
        in_use: Sequence[Config] = (),
    ) -> None:
        self._traits, self._precision = traits, precision
        self._store, self._effort = store, effort
        size = pool.size(traits)
        self._budget = Budget(effort.seconds, size)
        self._candidates = Candidates(
            competitors(traits, precision), traits, precision, (*in_use, *first),
            known_only=effort.mode == "quick",
        )  # fmt: skip
        self._outcomes: list[Outcome] = []
        self._verified: dict[Config, None] = {}
        self._measured: set[Config] = set()
        self._is_slow = False
        """Whether builds are slow for this budget: then all workers are for one candidate."""
        self._built: dict[Config, float] = {}
        """Candidates that all workers built together, and how many seconds of work each was."""
        self._unanswered: set[Config] = set()
        """Finalists that there was no time to verify."""
        self._side = 0
        for outcome in ruled_out(store, traits, precision).values():
            self._report(outcome)
        candidates = set(self._candidates.first)
        self._in_use = [c for c in in_use if c in candidates and not self._candidates.is_tried(c)]
        self._programs: tempfile.TemporaryDirectory[str] | None = None
        if not traits.caches_programs:  # workers then share what they compiled through a folder
            self._programs = tempfile.TemporaryDirectory("", "clgemm-", ignore_cleanup_errors=True)
        self._pool = WorkerPool(self._workers(size))

    def _workers(self, size: int) -> list[Worker]:
        index = [found.traits for found in devices.find()].index(self._traits)
        programs = self._programs.name if self._programs else ""
        fingerprint, code = self._traits.fingerprint(), self._precision.code
        setup = Setup(index, fingerprint, code, self._effort.asked, programs)
        patience = self._budget.patience_to_start
        return [Worker(setup._replace(measures=place == 0), patience) for place in range(size)]

    def run(self) -> Result:
        """Measure candidates, then compare the finalists among them.

        Raises
        ------
        TuningError
            If no candidate was verified, what is in use could not be tried, or no worker can be
            started.
        """
        interrupted = False
        title = f"clgemm: tuning {self._precision.code}gemm on {self._traits.describe()}"
        with self._programs or nullcontext(), self._pool, progress(title) as show:
            self._pool.start()  # apart, so that no candidate's time has it in it
            try:
                self._try_candidates(show)
                times = self._verified_finalists()
                if len(times) > 1 and self._budget.fits_finalists():
                    times = self._measured_finalists(list(times))
            except KeyboardInterrupt:
                if not self._effort.keeps_on_interrupt:
                    raise
                interrupted = True
                times = self._verified_finalists()
            self._require_in_use()
            model = self._model(times)
        return Result(model, self._outcomes, self._budget.passed(), interrupted)

    def _try_candidates(self, show: Callable[[str], None]) -> None:
        proposal = self._candidates.propose()  # the first in any case, however short the search
        while proposal is not None:
            self._verify(proposal.config)
            if proposal.config in self._verified:
                self._measure(proposal)
            show(self._status())
            proposal = self._candidates.propose() if self._has_time() else None
        for config in list(self._verified):  # measuring takes little beside what building took
            if config not in self._measured and self._budget.fits_measuring():
                self._measure(Proposal(config, 0))

    def _has_time(self) -> bool:
        """Tell whether another candidate fits; many take less, for their kernels are built."""
        if any(not self._candidates.is_tried(config) for config in self._in_use):
            return self._budget.waits_for_needed()
        found = len(self._candidates.results)
        if not found:
            return self._budget.left() > 0
        left = self._budget.for_candidates(min(1.0, found / FINALISTS))
        typical = self._budget.typical()
        self._candidates.bracket = min(LARGEST_BRACKET, int(SAMPLE_SHARE * left / typical))
        return left > typical / 3

    def _verify(self, config: Config) -> None:
        """Build and verify a candidate, unless it is done, and those that will follow."""
        if config in self._verified:
            return
        budget = self._budget
        if not self._verified:
            for first in dict.fromkeys((config, *self._in_use)):
                if first not in self._built:
                    took = self._build(Task.BUILD, first)
                    self._built[first] = took * self._pool.size
                    self._is_slow = self._is_slow or took > SLOW_SHARE * budget.seconds
        end = budget.passed() + SAMPLE_SHARE * budget.left()
        is_alone = self._is_slow and config in self._built
        likely = () if is_alone else self._candidates.ahead()
        ahead = (c for c in likely if c not in self._verified)
        for outcome in self._pool.each(
            dict.fromkeys((config, *itertools.islice(ahead, AHEAD))),
            partial(self._ask, Task.VERIFY),
            lambda overdue: budget.passed() < end or (overdue and budget.fits_candidate()),
        ):
            if outcome.ok:
                self._verified[outcome.config] = None
            else:
                self._report(outcome)
        if is_alone and config in self._verified:  # what another one would take
            budget.note(Task.VERIFY, config.family, self._built[config])

    def _build(self, task: Task, config: Config) -> float:
        """Build a candidate's kernels, a part in each worker; return the seconds that took."""
        patience = self._patience(task, config)

        def ask(worker: Worker, part: Part) -> Outcome:
            return worker.ask(task, config, patience, part=part)

        begun = time.monotonic()
        self._pool.build(ask)
        return time.monotonic() - begun

    def _measure(self, proposal: Proposal) -> None:
        measuring = self._pool.measuring
        measuring.start()  # if the one before took its process down: this time is its own
        seconds = TIMED_SECONDS[min(proposal.effort, len(TIMED_SECONDS) - 1)]
        self._measured.add(proposal.config)
        outcome = self._ask(Task.MEASURE, measuring, proposal.config, seconds=seconds)
        self._report(outcome)
        if outcome.ok:
            self._side = outcome.side
            self._pool.learn(outcome)

    def _report(self, outcome: Outcome) -> None:
        self._candidates.report(outcome)
        self._outcomes.append(outcome)

    def _ask(
        self, task: Task, worker: Worker, config: Config, *, seconds: float = 0.0
    ) -> Outcome:  # fmt: skip
        """Do something with a candidate, noted in the journal meanwhile; any thread may."""
        candidate = config_as_json(config)
        self._store.begin(candidate)
        outcome: Outcome | None = None
        best = self._candidates.best() if task is Task.MEASURE else {}
        patience = self._patience(task, config)
        begun = time.monotonic()
        try:
            outcome = worker.ask(task, config, patience, best=best, seconds=seconds)
            took = time.monotonic() - begun
            needed = config in self._in_use
            is_hang = self._budget.is_hang(took, worker.starved, needed=needed)
            if outcome.status == "hang" and not is_hang:
                outcome = replace(outcome, status="late")  # not for a search with more time
        finally:  # whoever interrupts a search from the keyboard does not blame the candidate
            if outcome is None or outcome.status not in DEADLY:
                self._store.end(candidate)
        if outcome.ok:
            self._budget.note(task, config.family, took)
        else:
            log.debug("candidate %s: %s: %s", config, outcome.status, outcome.detail)
        return outcome

    def _patience(self, task: Task, config: Config) -> Callable[[float], float]:
        """Return what tells how many more seconds to wait, by those waited."""
        needed = config in self._in_use
        return partial(self._budget.patience, task, config.family, needed=needed)

    def _verified_finalists(self) -> Times:
        """Verify finalists side by side, as many as there is time for; return what they took."""
        kept, failed = FINAL_SHARE * self._budget.seconds, 0
        while failed < MOST_FAILURES and (finalists := self._candidates.finalists(FINALISTS)):
            if self._is_slow and finalists[0] not in self._built:
                self._build(Task.BUILD_FINALIST, finalists[0])
            outcomes = self._pool.each(
                finalists,
                partial(self._ask, Task.VERIFY_FINALIST),
                lambda _overdue: self._budget.left() > kept,
            )
            self._unanswered = set(finalists) - {outcome.config for outcome in outcomes}
            for outcome in (x for x in outcomes if not x.ok):
                failed += 1
                self._report(outcome)
            passed = {outcome.config for outcome in outcomes if outcome.ok}
            if passed:
                return self._times(config for config in finalists if config in passed)
        return {}

    def _times(self, configs: Iterable[Config]) -> Times:
        """Return what candidates took in the search, of those that did not fail since."""
        results = self._candidates.results
        return {config: dict(results[config].seconds) for config in configs if config in results}

    def _measured_finalists(self, finalists: list[Config]) -> Times:
        """Time them with every shape, in turns, so that what disturbs one disturbs all.

        If the end comes before each had a turn, what they took in the search has to do.
        """
        measurements = len(shapes.standard(8)) * FINALISTS * ROUNDS
        seconds = FINAL_SHARE * self._budget.seconds / measurements
        found: dict[Config, list[Outcome]] = {}
        out: set[Config] = set()
        for config in finalists * ROUNDS:
            if config in out or self._budget.left() <= 0:
                continue
            task, worker = Task.MEASURE_FINALIST, self._pool.measuring
            outcome = self._ask(task, worker, config, seconds=seconds)
            if outcome.ok:
                found.setdefault(config, []).append(outcome)
            elif outcome.status == "late":
                break
            else:
                out.add(config)
                found.pop(config, None)
                self._report(outcome)
        if any(config not in found and config not in out for config in finalists):
            return self._times(finalists)
        times = {
            config: {x: statistics.median(o.seconds[x] for o in some) for x in some[0].seconds}
            for config, some in found.items()
        }
        self._outcomes += (replace(found[c][0], seconds=x) for c, x in times.items())
        return times

    def _require_in_use(self) -> None:
        """Raise if what is in use was not tried to the end: it may be faster than all others.

        Such as kernels of which a driver with an empty cache compiles many.
        """
        last = {outcome.config: outcome.status for outcome in self._outcomes}
        late = [
            config
            for config in self._in_use
            if last.get(config, "late") == "late" or config in self._unanswered
        ]
        if late:
            raise TuningError(
                f"{' and '.join(map(str, late))}: in use until now, and not tried to the end in "
                f"{self._budget.passed():.1f} s, so what is in use stays; CLGEMM_TUNE_SECONDS "
                "gives a search more time"
            )

    def _model(self, times: Times) -> cost_model.Model:
        """Choose the few that are near the best at each shape."""
        if not times:
            raise TuningError(self._why_none())
        weighted = self._candidates.weighted
        chosen = cost_model.portfolio(
            {c: {name: weighted(c, x) for name, x in times[c].items()} for c in times}
        )
        traits, code, timed = self._traits, self._precision.code, self._shapes()
        fits = (cost_model.fitted(traits, code, timed, c, times[c]) for c in chosen)
        return cost_model.Model(traits, code, timed, tuple(fits))

    def _why_none(self) -> str:
        failed = [o for o in self._outcomes if not o.ok]
        if failed and all(o.status == "late" for o in failed):
            return (
                f"no candidate was ready within {self._budget.passed():.1f} s; "
                "CLGEMM_TUNE_SECONDS gives a search more time"
            )
        reasons = "; ".join(f"{o.config}: {o.status}" for o in failed)
        return f"no candidate was found to be right ({reasons or 'none was tried'})"

    def _status(self) -> str:
        """Say how many were tried, the best GFLOP/s at the first shape, and the time left."""
        text = f"{len(self._outcomes)} tried"
        for name, seconds in list(self._candidates.best().items())[:1]:
            rate = self._shapes()[name].rate(self._precision.code, seconds)
            text += f", best {rate:.0f} GFLOP/s"
        return f"{text}, {max(0.0, self._budget.left()):.0f} s left"

    def _shapes(self) -> dict[str, shapes.Shape]:
        return shapes.standard(self._side) | dict(self._effort.asked)


def ruled_out(store: Store, traits: DeviceTraits, precision: Precision) -> dict[Config, Outcome]:
    """Return what is never tried again on this device and driver with these sources, and why."""
    found: dict[Config, Outcome] = {}
    for data in current_trials(store.read().entries.get(entry_name(precision))):
        outcome = Outcome.from_json(data)
        if outcome.status in RULED_OUT and stored_config(data["config"], traits, precision):
            found[outcome.config] = outcome
    for data in store.interrupted():
        config = stored_config(data, traits, precision)
        if config is not None:
            reason = "a process that searched was killed while it was tried"
            found.setdefault(config, Outcome(config, "crash", reason))
    return found


@contextmanager
def progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show a line on a terminal, and nowhere else, until the end of a with block.

    Yields
    ------
    callable
        Shows how things stand.
    """
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None

    def write(text: str) -> None:
        if terminal is not None:
            terminal.write(f"\r\x1b[K{text}")
            terminal.flush()

    write(f"{title} ...")
    try:
        yield lambda text: write(f"{title}: {text}")
    finally:
        write("")
