"""One tuning run: candidates in order, each in a child process; the best are checked, and race.

A few children build candidates and check them side by side, ahead of being timed: so builds use all
cores, and what is broken is known early.  Then one child times them, alone.  Whatever a candidate
does to its child costs that candidate and nothing else.  What took a process down stays in the
store's journal, so it is never tried again on that device and driver.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from clgemm.runtime import devices
from clgemm.tuning import shapes
from clgemm.tuning.outcome import CHECK, RACE, TRY, VET, Outcome, config_as_json
from clgemm.tuning.results import DEADLY, Effort, Result, failures
from clgemm.tuning.search.budget import Budget
from clgemm.tuning.search.candidates import Proposal, Search
from clgemm.tuning.search.finalists import RACERS, Finals
from clgemm.tuning.search.progress import Progress
from clgemm.tuning.store.lookup import competitors
from clgemm.tuning.workers import pool
from clgemm.tuning.workers.pool import Crew
from clgemm.tuning.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.store.store import Store

log = logging.getLogger(__name__)

TIMED_SECONDS = 0.008, 0.03, 0.06, 0.12, 0.24  # each shape is timed for, by effort
SAMPLE_SHARE = 0.3  # of the time that is left, spent on the sample
LARGEST_BRACKET = 64
AHEAD = 6  # candidates that are vetted before one of them is timed


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
        self._size = pool.size(traits)
        self._budget = Budget(effort.seconds, self._size)
        self._traits, self._precision = traits, precision
        self._store, self._effort = store, effort
        families = competitors(traits, precision)
        quick = effort.mode == "quick"
        self._search = Search(families, traits, precision, first, known_only=quick)
        self._outcomes: list[Outcome] = []
        self._vetted: dict[Config, None] = {}
        self._timed: set[Config] = set()
        self._side = 0
        for config, outcome in failures(store, traits, precision).items():
            self._search.skip(config)
            self._outcomes.append(outcome)

    def run(self) -> Result:
        """Search, check, race.

        Raises
        ------
        TuningError
            If no candidate passed its checks, or no child process can be started.
        """
        interrupted = False
        title = self._precision.code, self._traits.describe(), self._effort.seconds
        with ExitStack() as stack:
            team = stack.enter_context(Crew(self._children(stack)))
            progress = stack.enter_context(Progress(*title))
            team.start()  # apart, so that no candidate's time has it in it
            finals = Finals(self._search, self._budget, self._attempt, self._outcomes)
            try:
                self._try_candidates(team, progress)
                times = finals.run(team)
            except KeyboardInterrupt:
                if not self._effort.keeps_on_interrupt:
                    raise
                interrupted = True
                times = finals.checked(team)
            shapes = self._shapes()
            found = finals.model(self._traits, self._precision.code, shapes, times)
        return Result(found, self._outcomes, self._budget.passed(), interrupted)

    def _children(self, stack: ExitStack) -> list[Worker]:
        """Make the children, and a folder for their programs if the driver does not share them."""
        traits, folder = self._traits, ""
        if not traits.caches_programs:
            kept = tempfile.TemporaryDirectory(prefix="clgemm-", ignore_cleanup_errors=True)
            folder = stack.enter_context(kept)
        index = [f.traits for f in devices.find()].index(traits)
        code, asked = self._precision.code, self._effort.asked
        return [
            Worker(index, traits.fingerprint(), code, asked, folder, leads=place == 0)
            for place in range(self._size)
        ]

    def _try_candidates(self, team: Crew, progress: Progress) -> None:
        proposal = self._search.propose()  # the first one in any case, however short the search
        while proposal is not None:
            self._vet(team, proposal.config)
            if proposal.config in self._vetted:
                self._time(team, proposal)
            progress.show(len(self._outcomes), self._rate())
            proposal = self._search.propose() if self._has_time() else None
        for config in list(self._vetted):  # timing takes little beside what building them took
            if config not in self._timed and self._budget.fits_timing():
                self._time(team, Proposal(config, 0))

    def _has_time(self) -> bool:
        """Tell whether another candidate fits; many take less, for their kernels are built."""
        found = len(self._search.results())
        if not found:
            return self._budget.left() > 0
        left = self._budget.searching(min(1.0, found / RACERS))
        typical = self._budget.typical()
        self._search.bracket = min(LARGEST_BRACKET, int(SAMPLE_SHARE * left / typical))
        return left > typical / 3

    def _vet(self, team: Crew, config: Config) -> None:
        """Build and check a candidate, unless it is done, and those that will follow."""
        if config in self._vetted:
            return
        end = self._budget.passed() + SAMPLE_SHARE * self._budget.left()
        ahead = (c for c in self._search.ahead() if c not in self._vetted)
        batch = dict.fromkeys((config, *itertools.islice(ahead, AHEAD)))
        for outcome in team.each(
            batch,
            lambda worker, c: self._attempt(worker, c, VET),
            lambda overdue: self._budget.passed() < end or (overdue and self._budget.fits()),
        ):
            if outcome.ok:
                self._vetted[outcome.config] = None
            else:
                self._search.report(outcome)
                self._outcomes.append(outcome)

    def _time(self, team: Crew, proposal: Proposal) -> None:
        team.leader.start()  # if the one before took its process down: this time is its own
        seconds = TIMED_SECONDS[min(proposal.effort, len(TIMED_SECONDS) - 1)]
        self._timed.add(proposal.config)
        outcome = self._attempt(team.leader, proposal.config, TRY, seconds=seconds)
        self._search.report(outcome)
        self._outcomes.append(outcome)
        if outcome.ok:
            self._side = outcome.side
            team.learn(outcome)

    def _rate(self) -> float:
        """Return the best GFLOP/s at the first of the shapes, 0 if none was timed."""
        best = self._search.best()
        name = next(iter(best), "")
        return self._shapes()[name].rate(self._precision.code, best[name]) if best else 0.0

    def _shapes(self) -> dict[str, shapes.Shape]:
        return shapes.standard(self._side) | dict(self._effort.asked)

    def _attempt(
        self, worker: Worker, config: Config, task: str, *, seconds: float = 0.0
    ) -> Outcome:
        """Do something with a candidate, noted in the journal meanwhile; any thread may."""
        candidate = config_as_json(config)
        self._store.begin(candidate)
        outcome: Outcome | None = None
        best = self._search.best() if task == TRY else {}
        budget = self._budget
        patience = {
            VET: budget.patience, TRY: budget.try_patience,
            CHECK: budget.last_patience, RACE: budget.race_patience,
        }  # fmt: skip
        wait = partial(patience[task], config.family)
        begun = time.monotonic()
        try:
            outcome = worker.attempt(config, best, task=task, patience=wait, seconds=seconds)
            took = time.monotonic() - begun
            if outcome.status == "hang" and not self._budget.is_hang(took):
                outcome = replace(outcome, status="late")  # not for a search with more time
        finally:  # whoever interrupts a search from the keyboard does not blame the candidate
            if outcome is None or outcome.status not in DEADLY:
                self._store.end(candidate)
        if not outcome.ok:
            log.debug("candidate %s: %s: %s", config, outcome.status, outcome.detail)
        self._learn(outcome, task, took)
        return outcome

    def _learn(self, outcome: Outcome, task: str, seconds: float) -> None:
        """Note how long what took."""
        if task == VET and outcome.ok:
            self._budget.vetted(outcome.config.family, seconds)
        elif task == TRY and outcome.ok:
            self._budget.timed(seconds)
        elif task == CHECK and outcome.ok:
            self._budget.has_winner = True
