"""Which candidate to try next, and for how long.

Known good ones come first, then each family's default.  A seeded sample follows, by successive
halving: many candidates are timed briefly, the better half of them longer, and so on.  The spaces
are flat near their best points and fall off in steps (a tile that no longer fits the registers), so
a walk that changes one parameter at a time from the best so far finds the top within a few trials;
one candidate in four still comes from the sample, which keeps the walk from a local top.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, NamedTuple

from clgemm.kernels.family import Config
from clgemm.problem import Gemm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from clgemm.kernels.family import KernelFamily, KernelSpec
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.outcome import Outcome

EVERY_OTHER = 4  # one candidate in so many comes from the sample
SEED = 2011
LEAD = 0.97  # what a known good configuration's time counts
BRACKET = 4  # candidates that a halving starts with, unless whoever searches knows better
TYPICAL_N = 1000  # side of a product whose kernels stand for those of all
LEAST = 1e-9  # seconds; what a clock may have missed is not nothing
FIELD = 1.08  # times the best: what is slower is not worth another race


class Proposal(NamedTuple):
    """What to time next."""

    config: Config
    effort: int
    """0: briefly; each further one twice as long."""


class Search:
    """Proposes candidates and learns from their outcomes.

    Parameters
    ----------
    families : sequence of KernelFamily
        Those that compete.
    traits, precision
        What for.
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
        self._traits = traits
        self._precision = precision
        known = [c for c in first if c.family in self._families]
        known = [c for c in known if self._families[c.family].is_valid(traits, precision, c)]
        self._first = [*known, *(f.default(traits, precision) for f in families)]
        self._sample = [] if known_only else self._shuffled()
        self._known_only = known_only
        self._tried: set[Config] = set()
        self._results: dict[Config, Outcome] = {}
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
        turns = itertools.zip_longest(*spaces)
        return [config for turn in turns for config in turn if config is not None]

    def skip(self, config: Config) -> None:
        """Never propose this candidate."""
        self._tried.add(config)

    def report(self, outcome: Outcome) -> None:
        """Learn what became of a candidate; of several times the last one counts."""
        self._tried.add(outcome.config)
        if outcome.ok:
            self._results[outcome.config] = outcome
        else:
            self._results.pop(outcome.config, None)  # one failure rules it out

    def best(self) -> dict[str, float]:
        """Return the least seconds so far, by shape."""
        best: dict[str, float] = {}
        for outcome in self._results.values():
            for name, seconds in outcome.seconds.items():
                best[name] = min(seconds, best.get(name, seconds))
        return best

    def ranking(self, shape: str) -> list[Outcome]:
        """Return the outcomes that are ok, fastest first.

        A known good configuration stands unless another one is clearly faster: noise must not
        replace it.
        """
        timed = [o for o in self._results.values() if shape in o.seconds]
        return sorted(timed, key=lambda o: self.weighted(o.config, o.seconds[shape]))

    def weighted(self, config: Config, seconds: float) -> float:
        """Return a time with the lead of known good configurations."""
        return seconds * (LEAD if config in self._first else 1)

    def finalists(self, most: int) -> list[Config]:
        """Return those that may be the best somewhere: of each shape, and of each family."""
        fields = [self.field(shape, most) for shape in self.best()]
        leaders = [field[0] for field in fields]
        of_families = []
        for family in self._families:
            own = [o for o in self._results.values() if o.config.family == family and o.seconds]
            of_families += [o.config for o in sorted(own, key=self._behind)[:1]]
        others = [c for turn in itertools.zip_longest(*fields) for c in turn if c is not None]
        return list(dict.fromkeys((*leaders, *of_families, *others)))[:most]

    def results(self) -> Mapping[Config, Outcome]:
        """Return the outcomes of the candidates that are ok."""
        return self._results

    def _behind(self, outcome: Outcome) -> float:
        """Tell how far a candidate is from the best, in the shape where it comes closest."""
        best, times = self.best(), outcome.seconds
        return min(seconds / max(best[name], LEAST) for name, seconds in times.items())

    def field(self, shape: str, most: int) -> list[Config]:
        """Return at most so many candidates that are too close to the best to tell apart."""
        ranking = self.ranking(shape)[:most]
        best = min((o.seconds[shape] for o in ranking), default=0.0)
        return [o.config for o in ranking if o.seconds[shape] <= best * FIELD]

    def propose(self) -> Proposal | None:
        """Return the next candidate, None when nothing is left to try."""
        return next(self._schedule, None)

    def ahead(self) -> Iterator[Config]:
        """Yield what is likely to be proposed next, whatever comes of the candidates before."""
        yield from self._untried(self._first)
        if not self._known_only:
            if self._walking:
                yield from self._untried(self._neighbours())
            yield from self._untried(self._sample)

    def _in_order(self) -> Iterator[Proposal]:
        for config in self._first:
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
            tried = self._better_half(tried)
            for config in tried:
                yield Proposal(config, effort)

    def _better_half(self, configs: list[Config]) -> list[Config]:
        """Keep those that come closest to the best in some shape."""
        timed = [c for c in configs if c in self._results and self._results[c].seconds]
        order = sorted(timed, key=lambda c: self._behind(self._results[c]))
        return order[: len(configs) // 2]

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

    def _untried(self, configs: Iterable[Config]) -> Iterator[Config]:
        return (c for c in configs if c not in self._tried)

    def _neighbours(self) -> Iterator[Config]:
        """Yield what differs from a shape's best in one parameter, then in two.

        Of the former those come first whose kernels are built, as only their plan differs: where a
        build takes a second, several of them are tried in its place.
        """
        leaders = [self.ranking(shape)[0].config for shape in self.best()]
        near = [config for leader in leaders for config in self._near(leader, 1)]
        built = {self._kernels(config) for config in self._results}
        yield from sorted(near, key=lambda config: self._kernels(config) not in built)
        for leader in leaders:
            yield from self._near(leader, 2)

    def _kernels(self, config: Config) -> frozenset[KernelSpec]:
        if config not in self._specs:
            n = TYPICAL_N
            problem = Gemm(
                self._precision.code, n, n, n, 1,
                False, False, n, 0, False, False, n, 0, n, 0, False,
            )  # fmt: skip
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
