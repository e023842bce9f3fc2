"""One tuning run: candidates in order, each in a child process; the best race, and are checked.

Whatever a candidate does to its child costs that candidate and nothing else.  What took a process
down stays in the store's journal, so it is never tried again on that device and driver.
"""

from __future__ import annotations

import logging
import statistics
import time
from typing import TYPE_CHECKING

from clgemm.errors import TuningError
from clgemm.problem import SIZE_CLASSES
from clgemm.runtime import devices
from clgemm.tuning.lookup import competitors
from clgemm.tuning.outcome import Outcome, config_as_json
from clgemm.tuning.progress import Progress
from clgemm.tuning.record import DEADLY, Effort, Result, failures
from clgemm.tuning.search import Search
from clgemm.tuning.worker import NoAnswer, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.search import Proposal
    from clgemm.tuning.store import Store

log = logging.getLogger(__name__)

HANG_SECONDS = 30.0  # a candidate that needs longer to build, check and time is of no use
LEAST_HANG_SECONDS = 3.0  # on a busy machine a good candidate may stall for a second or two
HANG_SHARE = 1 / 3  # of the time that is left, which one candidate may use up
SOME_SECONDS = 0.1  # what a trial takes at least
TIMED_SECONDS = 0.008, 0.03, 0.06, 0.12, 0.24  # each size is timed for, by effort
RACE_SHARE = 0.12  # of the budget, kept for the races
RACERS, RACE_ROUNDS = 3, 3
SAMPLE_SHARE = 0.3  # of the time that is left, spent on the sample
LARGEST_BRACKET = 64
RUNNERS_UP = 5  # how far down the ranking a winner is looked for


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
        self._durations: list[float] = []  # of those that went well
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
            Worker(index, traits.fingerprint(), code, self._effort.sizes) as worker,
            Progress(code, traits.describe(), self._effort.seconds) as progress,
        ):
            worker.start()  # apart, so that no candidate's time has it in it
            try:
                self._try_candidates(worker, progress)
                orders = {name: self._race(worker, name) for name in SIZE_CLASSES}
            except KeyboardInterrupt:
                if not self._effort.keeps_on_interrupt:
                    raise
                interrupted = True
                orders = {name: self._search.field(name, RUNNERS_UP) for name in SIZE_CLASSES}
            choices = self._winners(worker, orders)
        return Result(choices, self._outcomes, self._passed(), interrupted)

    def _passed(self) -> float:
        return time.monotonic() - self._start

    def _left(self) -> float:
        """Return the seconds that the search may still take.

        Each winner is checked in all transposes, which builds more kernels and takes no longer
        than the longest trial.  The caller need not build: what passed is kept on disk.
        """
        longest = max(self._durations, default=SOME_SECONDS)
        leaders = {self._search.ranking(name)[0].config for name in self._search.best()}
        kept = RACE_SHARE * self._effort.seconds + max(1, len(leaders)) * longest
        return self._effort.seconds - self._passed() - kept

    def _try_candidates(self, worker: Worker, progress: Progress) -> None:
        while True:
            if self._durations:
                left = self._left()
                typical = max(SOME_SECONDS, statistics.median(self._durations))
                if left < typical / 3:  # many take less, for their kernels are built
                    break
                bracket = int(SAMPLE_SHARE * left / typical)
                self._search.bracket = min(LARGEST_BRACKET, bracket)
            elif self._passed() > HANG_SECONDS + 2 * self._effort.seconds:
                break  # nothing works here
            proposal = self._search.propose()
            if proposal is None:
                break
            began = time.monotonic()
            outcome = self._time(worker, proposal)
            self._search.report(outcome)
            self._outcomes.append(outcome)
            if outcome.ok:
                self._durations.append(time.monotonic() - began)
            progress.show(self._outcomes, self._search.best())

    def _time(self, worker: Worker, proposal: Proposal) -> Outcome:
        seconds = TIMED_SECONDS[min(proposal.effort, len(TIMED_SECONDS) - 1)]
        return self._attempt(worker, proposal.config, every=False, seconds=seconds)

    def _limit(self) -> float:
        """Return how long a candidate may take: longer than any before, not all that is left."""
        if not self._durations:
            return HANG_SECONDS
        some = max(LEAST_HANG_SECONDS, 2 * max(self._durations), HANG_SHARE * self._left())
        return min(HANG_SECONDS, some)

    def _attempt(
        self, worker: Worker, config: Config, *, every: bool, seconds: float = 0.0
    ) -> Outcome:
        candidate = config_as_json(config)
        self._store.begin(candidate)
        outcome: Outcome | None = None
        best = {} if every else self._search.best()
        limit = HANG_SECONDS if every else self._limit()
        try:
            outcome = worker.attempt(config, best, every=every, limit=limit, seconds=seconds)
        finally:  # whoever interrupts a search from the keyboard does not blame the candidate
            if outcome is None or outcome.status not in DEADLY:
                self._store.end(candidate)
        if not outcome.ok:
            log.debug("candidate %s: %s: %s", config, outcome.status, outcome.detail)
        return outcome

    def _race(self, worker: Worker, size_class: str) -> list[Config]:
        """Order the best of a size class by timing them in turns."""
        racers = self._search.field(size_class, RACERS)
        if len(racers) < 2:
            return racers
        turn = RACE_SHARE * self._effort.seconds / (len(SIZE_CLASSES) * RACERS * RACE_ROUNDS)
        for config in racers:
            self._store.begin(config_as_json(config))
        try:
            times = worker.race(
                racers, size_class, limit=HANG_SECONDS, rounds=RACE_ROUNDS, seconds=turn
            )
        finally:  # each of them ran before: who did it is not known, and the check will tell
            for config in racers:
                self._store.end(config_as_json(config))
        if isinstance(times, NoAnswer):
            log.debug("a race ended early: %s: %s", times.status, times.detail)
            return racers
        for config, seconds in zip(racers, times, strict=True):
            if seconds == float("inf"):
                self._outcomes.append(Outcome(config, "wrong", "in a race, as timed"))
                self._search.report(self._outcomes[-1])
        weighted = {c: self._search.weighted(c, t) for c, t in zip(racers, times, strict=True)}
        return sorted((c for c in racers if weighted[c] < float("inf")), key=weighted.__getitem__)

    def _winners(
        self, worker: Worker, orders: Mapping[str, Iterable[Config]]
    ) -> dict[str, Outcome]:
        """Take the fastest candidate of each size class that also passes the full check."""
        verdicts: dict[Config, bool] = {}
        choices: dict[str, Outcome] = {}
        for name in SIZE_CLASSES:
            timed = {o.config: o for o in self._search.ranking(name)}
            order = [c for c in dict.fromkeys([*orders[name], *timed]) if c in timed]
            for config in order[:RUNNERS_UP]:
                if config not in verdicts:
                    verdict = self._attempt(worker, config, every=True)
                    verdicts[config] = verdict.ok
                    if not verdict.ok:
                        self._outcomes.append(verdict)
                if verdicts[config]:
                    choices[name] = timed[config]
                    break
            else:
                reasons = [f"{o.config}: {o.status}" for o in self._outcomes if not o.ok]
                raise TuningError(
                    f"no candidate passed its checks ({'; '.join(reasons) or 'none was tried'})"
                )
        return choices
