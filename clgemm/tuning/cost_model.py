"""Which of a few configurations is the fastest for a shape: a small model of each, fitted to times.

A configuration's time is a sum of counts (`kernels.costs`), each times the seconds that one takes:
coefficients that are never negative, so that what is larger never comes out faster.  What the sum
misses at a timed shape it will miss nearby too: predictions are corrected by these misses, weighted
by how near the shapes are, so at a timed shape the model says what was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING

import numpy as np

from clgemm.kernels import BY_NAME
from clgemm.kernels.costs import Costs
from clgemm.tuning import fitting

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.shapes import Shape

LEAD = 0.97  # of the time of one before it: a variant this close is not worth another kernel
NEAR = 0.25  # squared distance below which a timed shape counts fully
FAR_WEIGHT = 0.05  # of no correction: what is far from all timed shapes is left to the sum
MOST_VARIANTS = 4  # deciding takes a few microseconds for each
WORTH = 0.015  # mean gain, in log time over all shapes, that another variant must bring
LEAST = 1e-12  # seconds: a sum of which every rate is zero
FIRST_TOLD = "launches", "shared", "operands", "results", "busiest", "depth"
"""Costs by how much a family's times say of them: one that packs shows it in a few products."""
AT_MOST = 10.0  # times the best, which a variant counts that does not run a shape at all


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
        """Return the configuration that is predicted to be the fastest.

        Parameters
        ----------
        problem : Gemm
            Of any shape.
        refused : collection of str
            Families that must not run.

        Returns
        -------
        Config or None
            None if the families of all variants decline it.
        """
        able = [
            place
            for place, variant in enumerate(self.variants)
            if variant.config.family not in refused
            and BY_NAME[variant.config.family].accepts(problem)
        ]
        if not able:
            return None
        best = able[0]
        if len(able) > 1 and self.variants[best].rates:
            times = self.predict(problem, able)
            for place, seconds in times.items():
                if seconds < LEAD * times[best]:
                    best = place
        return self.variants[best].config

    def predict(self, problem: Gemm, places: Sequence[int]) -> dict[int, float]:
        """Return the seconds that variants will take, by their place."""
        here = _position(problem)
        weights = [1 / (NEAR + _distance(here, there)) ** 2 for there in self._positions]
        found = {}
        for place in places:
            variant = self.variants[place]
            if not variant.rates:
                continue
            missed, total = 0.0, FAR_WEIGHT
            for index, miss in self._misses[place]:
                missed += weights[index] * miss
                total += weights[index]
            costs = BY_NAME[variant.config.family].costs(self.traits, problem, variant.config)
            found[place] = sum(map(mul, variant.rates, costs)) * math.exp(missed / total)
        return found

    @cached_property
    def _positions(self) -> list[tuple[float, ...]]:
        return [_position(shape.problem(self.code)) for shape in self.shapes.values()]

    @cached_property
    def _misses(self) -> list[list[tuple[int, float]]]:
        """By variant: places of the shapes it was timed with, and the log of time to sum there."""
        return [
            [
                (index, math.log(variant.seconds[name] / self._sum(variant, shape)))
                for index, (name, shape) in enumerate(self.shapes.items())
                if variant.rates and variant.seconds.get(name, 0) > 0
            ]
            for variant in self.variants
        ]

    def _sum(self, variant: Variant, shape: Shape) -> float:
        costs = costs_of(self.traits, self.code, variant.config, shape)
        return max(float(sum(map(mul, variant.rates, costs))), LEAST)


def _position(g: Gemm) -> tuple[float, ...]:
    """Place a problem where one unit is a factor of two, or a way operands lie."""
    log = math.log2
    odd = (g.lda | g.ldb) % 4 != 0
    return log(g.m), log(g.n), log(g.k), log(g.batch), g.trans_a, g.trans_b, odd


def _distance(x: tuple[float, ...], y: tuple[float, ...]) -> float:
    m, n, k, batch, trans_a, trans_b, odd = x
    dm, dn, dk, db = m - y[0], n - y[1], k - y[2], batch - y[3]
    ways = (trans_a != y[4]) + (trans_b != y[5]) + (odd != y[6])
    return dm * dm + dn * dn + dk * dk + db * db + ways


def costs_of(traits: DeviceTraits, code: str, config: Config, shape: Shape) -> Costs:
    """Count what a timed shape costs."""
    return BY_NAME[config.family].costs(traits, shape.problem(code), config)


def fitted(
    traits: DeviceTraits, code: str, shapes: Mapping[str, Shape], config: Config,
    seconds: Mapping[str, float],
) -> Variant:  # fmt: skip
    """Find the seconds of each cost that explain the times best; relative errors count.

    With fewer times than costs one cost less than there are times is told apart, those first that
    weigh most; two at least.
    """
    timed = {name: x for name, x in seconds.items() if name in shapes and x > 0}
    counts = np.array([costs_of(traits, code, config, shapes[name]) for name in timed], float)
    kinds = FIRST_TOLD[: max(2, len(timed) - 1)] if len(timed) < len(FIRST_TOLD) else FIRST_TOLD
    told_apart = [Costs._fields.index(name) for name in kinds]
    return Variant(config, fitting.rates(counts, list(timed.values()), told_apart), timed)


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
