"""Which candidate to try next, and for how long.

Known good ones come first, then each family's default.  A seeded sample follows, by successive
halving: many candidates are timed briefly, the better half of them longer, and so on.  The spaces
are flat near their best points and fall off in steps (a tile that no longer fits the registers), so
a walk that changes one parameter at a time from the best so far soon finds the top; one candidate
in four still comes from the sample, which keeps the walk from a local top.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.family import Config
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clgemm.kernels.family import KernelFamily, KernelSpec
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.outcome import Outcome

EVERY_OTHER = 4  # one candidate in so many comes from the sample
SEED = 2011
LEAD = 0.97  # what a known good configuration's time counts
BRACKET = 4  # candidates that a halving starts with, unless whoever searches knows better
TYPICAL = Shape(1000, 1000, 1000)  # its kernels stand for those of all shapes
LEAST = 1e-9  # seconds; what a clock may have missed is not nothing
CLOSE = 1.08  # times the best: what is slower is no finalist


class Proposal(NamedTuple):
    """What to time next."""

    config: Config
    effort: int
    """0: briefly; each further one twice as long."""


class Candidates:
    """Proposes candidates and learns from their outcomes.

    Parameters
    ----------
    families : sequence of KernelFamily
        Those that compete.
    first : sequence of Config
        Known good configurations, tried before anything else if they fit this device.
    known_only : bool
        Try those and the defaults, and nothing else.
    """

    def __init__(
        self,
        families: Sequence[KernelFamily],
        traits: DeviceTraits,
        precision: Precision,
        first: Sequence[Config] = (),
        *,
        known_only: bool = False,
    ) -> None:
        self._families = {family.name: family for family in families}
        self._traits, self._precision = traits, precision
        self.first = [
            config
            for config in first
            if config.family in self._families
            and self._families[config.family].is_valid(traits, precision, config)
        ]
        self.first += (family.default(traits, precision) for family in families)
        """Those that are tried before anything else."""
        self._sample = [] if known_only else self._shuffled()
        self._known_only = known_only
        self._tried: set[Config] = set()
        self.results: dict[Config, Outcome] = {}
        """Outcomes of the candidates that are ok."""
        self._specs: dict[Config, frozenset[KernelSpec]] = {}
        self._walking = False
        self._schedule = self._in_order()
        self.bracket = BRACKET
        """Candidates that the halving starts with; read once, when it starts."""

    def _shuffled(self) -> list[Config]:
        """Mix the spaces, each family in turn: a large space must not drown a small one."""
        spaces = [
            list(f.candidates(self._traits, self._precision)) for f in self._families.values()
        ]
        for space in spaces:
            random.Random(SEED).shuffle(space)  # noqa: S311 - reproducible, not secret
        return list(_in_turns(spaces))

    def report(self, outcome: Outcome) -> None:
        """Learn what became of a candidate; of several times the last one counts."""
        self._tried.add(outcome.config)
        if outcome.ok:
            self.results[outcome.config] = outcome
        else:
            self.results.pop(outcome.config, None)  # one failure rules it out

    def is_tried(self, config: Config) -> bool:
        """Tell whether it is known what became of a candidate."""
        return config in self._tried

    def best(self) -> dict[str, float]:
        """Return the least seconds so far, by shape."""
        best: dict[str, float] = {}
        for outcome in self.results.values():
            for name, seconds in outcome.seconds.items():
                best[name] = min(seconds, best.get(name, seconds))
        return best

    def weighted(self, config: Config, seconds: float) -> float:
        """Return a time with the lead of known good configurations."""
        return seconds * (LEAD if config in self.first else 1)

    def ranking(self, shape: str) -> list[Outcome]:
        """Return the outcomes that are ok, fastest first.

        A known good configuration stands unless another one is clearly faster: noise must not
        replace it.
        """
        timed = [o for o in self.results.values() if shape in o.seconds]
        return sorted(timed, key=lambda o: self.weighted(o.config, o.seconds[shape]))

    def finalists(self, most: int) -> list[Config]:
        """Return those that may be the best somewhere: of each shape, and of each family."""
        fields = [self.close_to_best(shape, most) for shape in self.best()]
        timed = sorted((o for o in self.results.values() if o.seconds), key=self._behind)
        of_families = {outcome.config.family: outcome.config for outcome in reversed(timed)}
        best_of = [of_families[name] for name in self._families if name in of_families]
        leaders = [field[0] for field in fields]
        return list(dict.fromkeys((*leaders, *best_of, *_in_turns(fields))))[:most]

    def close_to_best(self, shape: str, most: int) -> list[Config]:
        """Return at most so many candidates that are too close to the best to tell apart."""
        ranking = self.ranking(shape)[:most]
        best = min((o.seconds[shape] for o in ranking), default=0.0)
        return [o.config for o in ranking if o.seconds[shape] <= best * CLOSE]

    def _behind(self, outcome: Outcome) -> float:
        """Tell how far a candidate is from the best, in the shape where it comes closest."""
        best, times = self.best(), outcome.seconds
        return min(seconds / max(best[name], LEAST) for name, seconds in times.items())

    def propose(self) -> Proposal | None:
        """Return the next candidate, None when nothing is left to try."""
        return next(self._schedule, None)

    def ahead(self) -> Iterator[Config]:
        """Yield what is likely to be proposed next, whatever comes of the candidates before."""
        yield from self._untried(self.first)
        if not self._known_only:
            if self._walking:
                yield from self._untried(self._neighbours())
            yield from self._untried(self._sample)

    def _untried(self, configs: Iterable[Config]) -> Iterator[Config]:
        return (c for c in configs if c not in self._tried)

    def _in_order(self) -> Iterator[Proposal]:
        for config in self.first:
            if config not in self._tried:
                yield Proposal(config, 1)
        if not self._known_only:
            yield from self._halving()
            yield from self._walk()

    def _halving(self) -> Iterator[Proposal]:
        """Time a sample briefly, its better half for longer, until one is left."""
        tried, effort = [], 0
        for config in itertools.islice(self._untried(self._sample), self.bracket):
            tried.append(config)
            yield Proposal(config, 0)
        while len(tried) > 1:
            effort += 1
            timed = [c for c in tried if c in self.results and self.results[c].seconds]
            timed.sort(key=lambda c: self._behind(self.results[c]))
            tried = timed[: len(tried) // 2]
            for config in tried:
                yield Proposal(config, effort)

    def _walk(self) -> Iterator[Proposal]:
        """Try the neighbourhood of the best, and now and then the sample, until nothing is left."""
        self._walking = True
        for count in itertools.count(1):
            near, far = self._untried(self._neighbours()), self._untried(self._sample)
            order = (far, near) if count % EVERY_OTHER == 0 else (near, far)
            config = next(itertools.chain(*order), None)
            if config is None:
                return
            yield Proposal(config, 1)

    def _neighbours(self) -> Iterator[Config]:
        """Yield what differs from a shape's best in one parameter, then in two.

        Of the former those come first whose kernels are built, as only their plan differs: where a
        build takes a second, several of them are tried in its place.
        """
        leaders = [self.ranking(shape)[0].config for shape in self.best()]
        near = [config for leader in leaders for config in self._near(leader, 1)]
        built = {self._kernels(config) for config in self.results}
        yield from sorted(near, key=lambda config: self._kernels(config) not in built)
        for leader in leaders:
            yield from self._near(leader, 2)

    def _kernels(self, config: Config) -> frozenset[KernelSpec]:
        if config not in self._specs:
            problem = TYPICAL.problem(self._precision.code)
            plan = self._families[config.family].plan(self._traits, problem, config)
            self._specs[config] = frozenset(step.kernel for step in plan.steps)
        return self._specs[config]

    def _near(self, start: Config, changes: int) -> Iterator[Config]:
        family = self._families[start.family]
        space = family.space(self._traits, self._precision)
        single = [(name, v) for name, values in space.items() for v in values if v != start[name]]
        for chosen in itertools.combinations(single, changes):
            changed = dict(chosen)
            if len(changed) == changes:
                config = Config.of(family.name, dict(start.params) | changed)
                if not any(family.broken_rules(self._traits, self._precision, config)):
                    yield config


def _in_turns(lists: Iterable[Iterable[Config]]) -> Iterator[Config]:
    """Yield the first of each list, then the second of each, and so on."""
    turns = itertools.zip_longest(*lists)
    return (config for turn in turns for config in turn if config is not None)
