"""The end of a search: the finalists' last checks, their races, and the few that win."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from clgemm.errors import TuningError
from clgemm.tuning import cost_model
from clgemm.tuning.outcome import CHECK, RACE, Outcome, medians
from clgemm.tuning.search.budget import RACE_SHARE
from clgemm.tuning.shapes import standard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Config
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.search.budget import Budget
    from clgemm.tuning.search.candidates import Search
    from clgemm.tuning.shapes import Shape
    from clgemm.tuning.workers.pool import Crew
    from clgemm.tuning.workers.worker import Worker

    class Attempt(Protocol):
        """Does something with a candidate."""

        def __call__(
            self, worker: Worker, config: Config, task: str, *, seconds: float = 0.0
        ) -> Outcome:
            """Give the candidate to a child."""
            ...


RACERS, RACE_ROUNDS = 6, 3
SHAPES = len(standard(8))  # that finalists are timed with
MOST_FAILURES = 8  # of finalists in their last check, before the search gives up

Times = dict["Config", dict[str, float]]


class Finals:
    """Checks and races the best candidates of a search.

    Parameters
    ----------
    search : Search
        Knows them, and learns which of them fail.
    budget : Budget
        The time there is.
    attempt : callable
        Does something with a candidate.
    outcomes : list of Outcome
        Of all trials; what happens here is added.
    """

    def __init__(
        self, search: Search, budget: Budget, attempt: Attempt, outcomes: list[Outcome]
    ) -> None:
        self._search, self._budget = search, budget
        self._attempt, self._outcomes = attempt, outcomes

    def run(self, team: Crew) -> Times:
        """Check the finalists, then race them; return the seconds of those that passed."""
        passed = self.checked(team)
        if len(passed) < 2 or not self._budget.racing():
            return passed
        return self._race(team, list(passed))

    def checked(self, team: Crew) -> Times:
        """Check finalists side by side, as many as there is time for; return what they took."""
        passed: list[Config] = []
        failed = 0
        racing = RACE_SHARE * self._budget.seconds
        while not passed and failed < MOST_FAILURES:
            finalists = self._search.finalists(RACERS)
            if not finalists:
                break
            outcomes = team.each(
                finalists,
                lambda worker, config: self._attempt(worker, config, CHECK),
                lambda _overdue: self._budget.left() > racing,
            )
            passed += [outcome.config for outcome in outcomes if outcome.ok]
            for outcome in (x for x in outcomes if not x.ok):
                failed += 1
                self._fail(outcome)
        return self._tried(sorted(passed, key=finalists.index) if passed else [])

    def _fail(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._search.report(outcome)

    def _tried(self, configs: list[Config]) -> Times:
        """Return what candidates took in the search, of those that did not fail since."""
        results = self._search.results()
        return {config: dict(results[config].seconds) for config in configs if config in results}

    def _race(self, team: Crew, racers: list[Config]) -> Times:
        """Time them with every shape, in turns, so that what disturbs one disturbs all."""
        turn = RACE_SHARE * self._budget.seconds / (SHAPES * RACERS * RACE_ROUNDS)
        turns: dict[Config, list[Outcome]] = {}
        out: set[Config] = set()
        for config in racers * RACE_ROUNDS:
            if config in out or self._budget.left() <= 0:
                continue
            outcome = self._attempt(team.leader, config, RACE, seconds=turn)
            if outcome.ok:
                turns.setdefault(config, []).append(outcome)
            elif outcome.status == "late":
                break
            else:
                out.add(config)
                turns.pop(config, None)
                self._fail(outcome)
        self._outcomes += (replace(x[0], seconds=medians(x)) for x in turns.values())
        return {c: medians(x) for c, x in turns.items()} or self._tried(racers)

    def model(
        self, traits: DeviceTraits, code: str, shapes: Mapping[str, Shape], times: Times
    ) -> cost_model.Model:
        """Choose the few that are near the best at each shape.

        Raises
        ------
        TuningError
            If there are none.
        """
        if not times:
            failed = [o for o in self._outcomes if not o.ok]
            if failed and all(o.status == "late" for o in failed):
                raise TuningError(
                    f"no candidate was ready within {self._budget.passed():.1f} s; "
                    "CLGEMM_TUNE_SECONDS gives a search more time"
                )
            reasons = [f"{o.config}: {o.status}" for o in failed]
            raise TuningError(
                f"no candidate passed its checks ({'; '.join(reasons) or 'none was tried'})"
            )
        weighted = self._search.weighted
        chosen = cost_model.portfolio(
            {c: {name: weighted(c, x) for name, x in times[c].items()} for c in times}
        )
        fits = (cost_model.fitted(traits, code, shapes, c, times[c]) for c in chosen)
        return cost_model.Model(traits, code, shapes, tuple(fits))
