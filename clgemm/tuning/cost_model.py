"""How long a product takes: a sum of counts, each times the seconds that one takes.

These rates are fitted to measured times, and never negative: what is larger never comes out faster.
What the sum misses at a timed shape it misses nearby too (threads that start, tiles that do not
fill), so an `Estimate` is corrected by the misses, weighted by how near the shapes are: at a timed
shape it says what was measured.  A `Model` chooses among a few configurations by their estimates.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.kernels import BY_NAME
from clgemm.kernels.costs import Costs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.shapes import Shape

    Position = Sequence[float]
    Measured = Iterable[tuple[Sequence[float], Position, float]]
    """Counts, position (a unit is a factor of two) and seconds of each shape that was timed."""

LEAD = 0.97  # of the time of one before it: a variant this close is not worth another kernel
NEAR = 0.25  # squared distance below which a timed shape counts fully
FAR_WEIGHT = 0.05  # of no correction: what is far from all timed shapes is left to the sum
MOST_VARIANTS = 4  # deciding takes a few microseconds for each
WORTH = 0.015  # mean gain, in log time over all shapes, that another variant must bring
LEAST = 1e-9  # seconds: a sum of which every rate is zero
FIRST_TOLD = "launches", "shared", "operands", "results", "busiest", "depth"
"""Costs by how much a family's times say of them: one that packs shows it in a few products."""
AT_MOST = 10.0  # times the best, which a variant counts that does not run a shape at all


def fit(
    counts: NDArray[Any], seconds: Sequence[float], columns: Collection[int] | None = None
) -> tuple[float, ...]:
    """Find the seconds of each count such that their sum is near the times; relative errors count.

    The best rates that are not negative are the plain least squares of some of the counts, the
    others zero.  A handful of counts has few such choices: all are tried.

    Parameters
    ----------
    counts : ndarray of shape (times, kinds)
        How much of each kind there is at each time.
    seconds : sequence of float
        The times.
    columns : collection of int, optional
        Kinds that may be other than zero; all by default.
    """
    rows = np.asarray(counts, float) / np.asarray(seconds, float)[:, None]
    kinds = rows.shape[1]
    able = [i for i in (range(kinds) if columns is None else columns) if rows[:, i].any()]
    scale = np.maximum(rows.max(axis=0), np.finfo(float).tiny)
    best, least = np.zeros(kinds), math.inf
    for size in range(1, min(len(able), len(rows)) + 1):
        for chosen in map(list, itertools.combinations(able, size)):
            part = rows[:, chosen] / scale[chosen]
            found = np.linalg.lstsq(part, np.ones(len(rows)), rcond=None)[0]
            error = float(np.sum((part @ found - 1) ** 2))
            if np.all(found >= 0) and error < least:
                best, least = np.zeros(kinds), error
                best[chosen] = found / scale[chosen]
    return tuple(best.tolist())


class Estimate:
    """Predicts seconds from the `rates` of counts, and from what was measured nearby."""

    def __init__(self, rates: Sequence[float], measured: Measured) -> None:
        self._rates = rates
        self._misses = [
            (position, math.log(seconds / self._sum(counts)))
            for counts, position, seconds in measured
        ]

    def seconds(self, counts: Sequence[float], position: Position) -> float:
        """Predict what so many of each count take, at a position."""
        missed, total = 0.0, FAR_WEIGHT
        for there, miss in self._misses:
            weight = 1 / (NEAR + math.dist(position, there) ** 2) ** 2
            missed += weight * miss
            total += weight
        return self._sum(counts) * math.exp(missed / total)

    def _sum(self, counts: Sequence[float]) -> float:
        seconds: float = sum(map(mul, self._rates, counts))
        return max(seconds, LEAST)


@dataclass(frozen=True)
class Variant:
    """A configuration and what is known of its times."""

    config: Config
    rates: tuple[float, ...]
    """Seconds of each of its `Costs`; empty if it was not timed."""
    seconds: Mapping[str, float]
    """By the name of a timed shape."""


@dataclass(frozen=True)
class Model:
    """Predicts the times of variants on one device in one precision."""

    traits: DeviceTraits
    code: str
    shapes: Mapping[str, Shape]
    variants: tuple[Variant, ...]
    """The best on the whole first."""

    def choose(self, problem: Gemm, refused: Collection[str] = ()) -> Config | None:
        """Return the configuration that is predicted to be the fastest, of no `refused` family.

        It is None if the families of all variants decline the problem.
        """
        families = [variant.config.family for variant in self.variants]
        able = [
            place
            for place, name in enumerate(families)
            if name not in refused and BY_NAME[name].accepts(problem)
        ]
        if not able:
            return None
        best, times = able[0], self.predict(problem, able) if len(able) > 1 else {}
        for place, seconds in times.items():
            if seconds < LEAD * times.get(best, 0.0):  # an untimed first one stands
                best = place
        return self.variants[best].config

    def predict(self, problem: Gemm, places: Sequence[int]) -> dict[int, float]:
        """Return the seconds that variants will take, by their place; nothing of untimed ones."""
        position = _position(problem)
        found = {}
        for place in places:
            config, estimate = self.variants[place].config, self._estimates[place]
            if estimate is not None:
                costs = BY_NAME[config.family].costs(self.traits, problem, config)
                found[place] = estimate.seconds(costs, position)
        return found

    def least_seconds(self, problem: Gemm) -> float | None:
        """Return the seconds of the variant that is predicted to be the fastest; None if untimed.

        Large products are not much faster than any that was timed: a device that is at the limit
        of its power for long lowers its clock.
        """
        times = self.predict(problem, range(len(self.variants))).values()
        if not times:
            return None
        half = 0.5 if problem.triangle else 1.0
        return max(min(times), half * problem.flops / self._best_rate)

    @cached_property
    def _best_rate(self) -> float:
        """Most operations a second of what was timed; infinite if nothing was."""
        rates = (
            self.shapes[name].problem(self.code).flops / seconds
            for variant in self.variants
            for name, seconds in variant.seconds.items()
            if name in self.shapes and seconds > 0
        )
        return max(rates, default=math.inf)

    @cached_property
    def _estimates(self) -> list[Estimate | None]:
        return [self._estimate(variant) if variant.rates else None for variant in self.variants]

    def _estimate(self, variant: Variant) -> Estimate:
        return Estimate(variant.rates, (
            (
                costs_of(self.traits, self.code, variant.config, shape),
                _position(shape.problem(self.code)),
                variant.seconds[name],
            )
            for name, shape in self.shapes.items()
            if variant.seconds.get(name, 0) > 0
        ))  # fmt: skip


def _position(g: Gemm) -> Position:
    """Place a problem where one unit is a factor of two, or a way operands lie."""
    log = math.log2
    odd = (g.lda | g.ldb) % 4 != 0
    return log(g.m), log(g.n), log(g.k), log(g.batch), g.trans_a, g.trans_b, odd


def costs_of(traits: DeviceTraits, code: str, config: Config, shape: Shape) -> Costs:
    """Count what a timed shape costs."""
    return BY_NAME[config.family].costs(traits, shape.problem(code), config)


def fitted(
    traits: DeviceTraits, code: str, shapes: Mapping[str, Shape], config: Config,
    seconds: Mapping[str, float],
) -> Variant:  # fmt: skip
    """Find the seconds of each cost that explain a configuration's times best.

    With fewer times than costs one cost less than there are times is told apart, those first that
    weigh most; two at least.
    """
    timed = {name: x for name, x in seconds.items() if name in shapes and x > 0}
    counts = np.array([costs_of(traits, code, config, shapes[name]) for name in timed], float)
    kinds = FIRST_TOLD[: max(2, len(timed) - 1)] if len(timed) < len(FIRST_TOLD) else FIRST_TOLD
    told_apart = [Costs._fields.index(name) for name in kinds]
    return Variant(config, fit(counts, list(timed.values()), told_apart), timed)


def portfolio(times: Mapping[Config, Mapping[str, float]]) -> list[Config]:
    """Choose few configurations of which one is near the best at each shape.

    Parameters
    ----------
    times : mapping
        Seconds by shape, by configuration.

    Returns
    -------
    list of Config
        The one that is best on the whole first, then what each further one improves most.
    """
    names = {name for seconds in times.values() for name in seconds}
    best = {name: min(x[name] for x in times.values() if name in x) for name in names}

    def loss(configs: Sequence[Config]) -> float:
        """Return the mean log of time to the best."""
        behind = (
            min(AT_MOST, *(times[c].get(name, math.inf) / best[name] for c in configs))
            for name in names
        )
        return sum(map(math.log, behind)) / len(names)

    taken: list[Config] = []
    while len(taken) < min(MOST_VARIANTS, len(times)):
        config = min((c for c in times if c not in taken), key=lambda c: loss([*taken, c]))
        if taken and loss(taken) - loss([*taken, config]) < WORTH:
            break
        taken.append(config)
    return taken
