"""One tuning run: candidates in order, each in a child process; the best race, and are checked.

Whatever a candidate does to its child costs that candidate and nothing else.  What took a process
down stays in the store's journal, so it is never tried again on that device and driver.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from clgemm.errors import TuningError
from clgemm.runtime import devices
from clgemm.tuning import model, shapes
from clgemm.tuning.lookup import competitors
from clgemm.tuning.outcome import CHECK, RACE, TRY, Outcome, config_as_json, medians
from clgemm.tuning.progress import Progress
from clgemm.tuning.record import DEADLY, Effort, Result, failures
from clgemm.tuning.search import Search
from clgemm.tuning.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.search import Proposal
    from clgemm.tuning.shapes import Shape
    from clgemm.tuning.store import Store

log = logging.getLogger(__name__)

HANG_SECONDS = 30.0  # a candidate that needs longer to build, check and time is of no use
LEAST_HANG_SECONDS = 3.0  # on a busy machine a good candidate may stall for a second or two
LATE_SHARE = 1 / 5  # of the budget, after which a candidate is given up for this search
HANG_SHARE = 1 / 3  # of the time that is left, which one candidate may use up
SOME_SECONDS = 0.1  # what a trial takes at least
TIMED_SECONDS = 0.008, 0.03, 0.06, 0.12, 0.24  # each shape is timed for, by effort
RACE_SHARE = 0.25  # of the budget, kept for the races
RACERS, RACE_ROUNDS = 6, 3
SAMPLE_SHARE = 0.3  # of the time that is left, spent on the sample
LARGEST_BRACKET = 64
MOST_FAILURES = 8  # of winners in their last check, before the search gives up
WINNERS = 2  # that the time for the last check is kept for: most searches end with one or two


class Campaign:
    """Searches for one precision's parameters on one device.

    Parameters
    ----------
    traits : DeviceTraits
        The device.
    precision : Precision
        What for.
    store : Store
        Where its journal is; the result is the caller's to write.
    effort : Effort
        How hard to search.
    first : sequence of Config
        Known good configurations of near devices.
    """

    def __init__(
        self,
        traits: DeviceTraits,
        precision: Precision,
        store: Store,
        effort: Effort,
        first: Sequence[Config] = (),
    ) -> None:
        self._start = time.monotonic()
        self._traits, self._precision = traits, precision
        self._store, self._effort = store, effort
        families = competitors(traits, precision)
        quick = effort.mode == "quick"
        self._search = Search(families, traits, precision, first, known_only=quick)
        self._outcomes: list[Outcome] = []
        self._durations: dict[Config, float] = {}  # of those that went well
        self._side = 0
        for config, outcome in failures(store, traits, precision).items():
            self._search.skip(config)
            self._outcomes.append(outcome)

    def run(self) -> Result:
        """Search, race, check.

        Raises
        ------
        TuningError
            If no candidate passed its checks, or no child process can be started.
        """
        traits, code = self._traits, self._precision.code
        index = [f.traits for f in devices.find()].index(traits)
        interrupted = False
        with (
            Worker(index, traits.fingerprint(), code, self._effort.asked) as worker,
            Progress(code, traits.describe(), self._effort.seconds) as progress,
        ):
            worker.start()  # apart, so that no candidate's time has it in it
            try:
                self._try_candidates(worker, progress)
                times = self._race(worker)
            except KeyboardInterrupt:
                if not self._effort.keeps_on_interrupt:
                    raise
                interrupted = True
                times = {c: o.seconds for c, o in self._search.results().items() if o.seconds}
            found = self._winners(worker, times)
        return Result(found, self._outcomes, self._passed(), interrupted)

    def _passed(self) -> float:
        return time.monotonic() - self._start

    def _left(self) -> float:
        """Return the seconds that the search may still take.

        Each winner is checked in all transposes, which builds more kernels and takes no longer
        than the longest trial.  The caller need not build: what passed is kept on disk.
        """
        racing = RACE_SHARE * min(1.0, len(self._search.results()) / RACERS)
        return (
            (1 - racing) * self._effort.seconds - self._passed() - (1 + WINNERS) * self._longest()
        )

    def _typical(self) -> float:
        return max(SOME_SECONDS, statistics.median(self._later() or [0.0]))

    def _longest(self) -> float:
        return max(self._later(), default=SOME_SECONDS)

    def _later(self) -> list[float]:
        """Return what trials took but the first, which made the operands as well."""
        return list(self._durations.values())[1:]

    def _try_candidates(self, worker: Worker, progress: Progress) -> None:
        while True:
            if self._durations:
                left = self._left()
                typical = self._typical()
                if left < typical / 3:  # many take less, for their kernels are built
                    break
                bracket = int(SAMPLE_SHARE * left / typical)
                self._search.bracket = min(LARGEST_BRACKET, bracket)
            elif self._passed() > HANG_SECONDS + 2 * self._effort.seconds:
                break  # nothing works here
            proposal = self._search.propose()
            if proposal is None:
                break
            worker.start()  # if the one before took its process down: this one's time is its own
            began = time.monotonic()
            outcome = self._time(worker, proposal)
            self._search.report(outcome)
            self._outcomes.append(outcome)
            if outcome.ok:
                self._durations[proposal.config] = time.monotonic() - began
                self._side = outcome.side
            progress.show(len(self._outcomes), self._rate())

    def _rate(self) -> float:
        """Return the best GFLOP/s at the first of the shapes, 0 if none was timed."""
        best = self._search.best()
        name = next(iter(best), "")
        return self._shapes()[name].rate(self._precision.code, best[name]) if best else 0.0

    def _time(self, worker: Worker, proposal: Proposal) -> Outcome:
        seconds = TIMED_SECONDS[min(proposal.effort, len(TIMED_SECONDS) - 1)]
        return self._attempt(worker, proposal.config, TRY, seconds=seconds)

    def _limit(self, config: Config) -> float:
        """Return how long a candidate may take: longer than any before, not all that is left."""
        if config.family not in {c.family for c in self._search.results()}:
            return HANG_SECONDS  # nothing is known of its family's builds
        least = min(LEAST_HANG_SECONDS, LATE_SHARE * self._effort.seconds)
        some = max(least, 2 * max(self._durations.values()), HANG_SHARE * self._left())
        return min(HANG_SECONDS, some)

    def _attempt(
        self, worker: Worker, config: Config, task: str, *, seconds: float = 0.0
    ) -> Outcome:
        candidate = config_as_json(config)
        self._store.begin(candidate)
        outcome: Outcome | None = None
        best = self._search.best() if task == TRY else {}
        limit = self._limit(config) if task == TRY else HANG_SECONDS
        try:
            outcome = worker.attempt(config, best, task=task, limit=limit, seconds=seconds)
            if outcome.status == "hang" and limit < LEAST_HANG_SECONDS:
                outcome = replace(outcome, status="late")  # not for a search with more time
        finally:  # whoever interrupts a search from the keyboard does not blame the candidate
            if outcome is None or outcome.status not in DEADLY:
                self._store.end(candidate)
        if not outcome.ok:
            log.debug("candidate %s: %s: %s", config, outcome.status, outcome.detail)
        return outcome

    def _race(self, worker: Worker) -> dict[Config, dict[str, float]]:
        """Time the finalists with every shape, in turns, so that what disturbs one disturbs all."""
        finalists, budget = self._search.finalists(RACERS), self._effort.seconds - self._longest()
        ends = itertools.accumulate((self._durations[c] for c in finalists), initial=self._passed())
        racers = [c for c, end in zip(finalists, list(ends)[1:], strict=True) if end < budget]
        if len(racers) < 2:
            return {c: dict(self._search.results()[c].seconds) for c in finalists}
        turn = RACE_SHARE * budget / (len(self._shapes()) * RACERS * RACE_ROUNDS)
        turns: dict[Config, list[Outcome]] = {config: [] for config in racers}
        for config in racers * RACE_ROUNDS:
            if config in turns and (not turns[config] or self._passed() < budget):
                outcome = self._attempt(worker, config, RACE, seconds=turn)
                if outcome.ok:
                    turns[config].append(outcome)
                else:
                    del turns[config]
                    self._outcomes.append(outcome)
                    self._search.report(outcome)
        self._outcomes += (replace(x[0], seconds=medians(x)) for x in turns.values())
        return {config: medians(outcomes) for config, outcomes in turns.items()}

    def _winners(self, worker: Worker, times: dict[Config, dict[str, float]]) -> model.Model:
        """Choose the few that are near the best at each shape, and pass the full check."""
        traits, code = self._traits, self._precision.code
        passed: set[Config] = set()
        failed: set[Config] = set()
        tried = {c: o.seconds for c, o in self._search.results().items() if o.seconds}
        while len(failed) < MOST_FAILURES:
            pool = {c: x for c, x in times.items() if c not in failed}
            pool = pool or {c: x for c, x in tried.items() if c not in failed}
            if not pool:
                break
            chosen = model.portfolio({c: self._weighted(c, x) for c, x in pool.items()})
            for config in chosen:
                if config not in passed:
                    (passed if self._passes(worker, config) else failed).add(config)
            if not failed.intersection(chosen):
                every = self._shapes()
                fits = (model.fitted(traits, code, every, c, pool[c]) for c in chosen)
                return model.Model(traits, code, every, tuple(fits))
        reasons = [f"{o.config}: {o.status}" for o in self._outcomes if not o.ok]
        raise TuningError(
            f"no candidate passed its checks ({'; '.join(reasons) or 'none was tried'})"
        )

    def _weighted(self, config: Config, seconds: Mapping[str, float]) -> dict[str, float]:
        return {name: self._search.weighted(config, x) for name, x in seconds.items()}

    def _shapes(self) -> dict[str, Shape]:
        return shapes.standard(self._side) | dict(self._effort.asked)

    def _passes(self, worker: Worker, config: Config) -> bool:
        verdict = self._attempt(worker, config, CHECK)
        if not verdict.ok:
            self._outcomes.append(verdict)
        return verdict.ok
