"""Which candidate to try next: known good ones first, then the neighbourhood of the best.

The spaces are flat near their best points and fall off in steps (a tile that no longer fits the
registers), so a walk that changes one parameter at a time from a good start finds the top within a
few trials; a seeded sample in between keeps it from staying on a local one.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from clgemm.kernels.family import Config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clgemm.kernels.family import KernelFamily
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.outcome import Outcome

EVERY_OTHER = 4  # one candidate in so many comes from the sample
SEED = 2011
LEAD = 0.97  # what a known good configuration's time counts


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
    """

    def __init__(
        self,
        families: Sequence[KernelFamily],
        traits: DeviceTraits,
        precision: Precision,
        first: Sequence[Config] = (),
    ) -> None:
        self._families = {family.name: family for family in families}
        self._traits = traits
        self._precision = precision
        known = [c for c in first if c.family in self._families]
        known = [c for c in known if self._families[c.family].is_valid(traits, precision, c)]
        self._first = [*known, *(f.default(traits, precision) for f in families)]
        self._sample = [c for f in families for c in f.candidates(traits, precision)]
        random.Random(SEED).shuffle(self._sample)  # noqa: S311 - reproducible, not secret
        self._tried: set[Config] = set()
        self._results: list[Outcome] = []
        self._count = 0

    def skip(self, config: Config) -> None:
        """Never propose this candidate."""
        self._tried.add(config)

    def report(self, outcome: Outcome) -> None:
        """Learn what became of a candidate."""
        self._tried.add(outcome.config)
        if outcome.ok:
            self._results.append(outcome)

    def best(self) -> dict[str, float]:
        """Return the least seconds so far, by size class."""
        best: dict[str, float] = {}
        for outcome in self._results:
            for name, seconds in outcome.seconds.items():
                best[name] = min(seconds, best.get(name, seconds))
        return best

    def ranking(self, size_class: str) -> list[Outcome]:
        """Return the outcomes that are ok, fastest first.

        A known good configuration stands unless another one is clearly faster: noise must not
        replace it.
        """

        def key(outcome: Outcome) -> float:
            lead = LEAD if outcome.config in self._first else 1
            return outcome.seconds[size_class] * lead

        return sorted((o for o in self._results if size_class in o.seconds), key=key)

    def propose(self) -> Config | None:
        """Return the next candidate, None when the space is exhausted."""
        self._count += 1
        sources = [self._untried(iter(self._first)), self._untried(self._neighbours())]
        sample = self._untried(iter(self._sample))
        if self._count % EVERY_OTHER == 0:
            sources.insert(1, sample)
        else:
            sources.append(sample)
        return next((config for config in sources if config is not None), None)

    def _untried(self, configs: Iterator[Config]) -> Config | None:
        return next((c for c in configs if c not in self._tried), None)

    def _neighbours(self) -> Iterator[Config]:
        """Yield what differs from a size class' best in one parameter, then in two."""
        for size_class in self.best():
            start = self.ranking(size_class)[0].config
            family = self._families[start.family]
            space = family.space(self._traits, self._precision)
            single = [(name, v) for name, values in space.items() for v in values
                      if v != start[name]]  # fmt: skip
            for name, value in single:
                yield from self._valid(family, dict(start.params) | {name: value})
            for name, value in single:
                for other, more in single:
                    if other != name:
                        yield from self._valid(
                            family, dict(start.params) | {name: value, other: more}
                        )

    def _valid(self, family: KernelFamily, params: dict[str, int]) -> Iterator[Config]:
        config = Config.of(family.name, params)
        if not any(family.broken_rules(self._traits, self._precision, config)):
            yield config
