"""How long a product takes on the host and on the device, from a few measured shapes.

Each side counts calls, multiplications, elements read and elements written; `tuning.cost_model`
finds the seconds of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.problem import PRECISIONS
from clgemm.tuning import cost_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.problem import Gemm

COPY_RATE = 4e9  # bytes a second at which SciPy copies an operand with gaps before it computes

Shape = tuple[int, int, int]


def counts(m: int, n: int, k: int) -> tuple[int, int, int, int]:
    """Count calls, multiplications, elements read and elements written of one product."""
    return 1, m * n * k, m * k + k * n, m * n


@dataclass(frozen=True)
class Curve:
    """Predicts the seconds of one side.

    Parameters
    ----------
    rates : tuple of float
        Seconds of each of the `counts`, none negative.
    seconds : mapping
        What was measured, by m, n, k.
    """

    rates: tuple[float, ...]
    seconds: Mapping[Shape, float]

    @classmethod
    def fitted(cls, seconds: Mapping[Shape, float]) -> Curve:
        """Find the rates that explain the measured times best; relative errors count."""
        rows = np.array([counts(*shape) for shape in seconds])
        return cls(cost_model.fit(rows, list(seconds.values())), dict(seconds))

    def one(self, m: int, n: int, k: int) -> float:
        """Predict one product."""
        return self._estimate.seconds(counts(m, n, k), _position(m, n, k))

    @cached_property
    def _estimate(self) -> cost_model.Estimate:
        return cost_model.Estimate(
            self.rates,
            ((counts(*shape), _position(*shape), t) for shape, t in self.seconds.items()),
        )

    def as_json(self) -> list[list[float]]:
        """Give what was measured; the rest follows from it."""
        return [[*shape, t] for shape, t in self.seconds.items()]

    @classmethod
    def from_json(cls, data: Any) -> Curve:
        """Read what `as_json` gave.

        Raises
        ------
        TypeError, ValueError
            If it is something else.
        """
        found = {(int(m), int(n), int(k)): float(t) for m, n, k, t in data}
        if not found or not all(min(s) > 0 and 0 < t < math.inf for s, t in found.items()):
            raise ValueError("no times, or one that is not positive")
        return cls.fitted(found)


def _position(m: int, n: int, k: int) -> tuple[float, float, float]:
    """Place a shape where one unit is a factor of two."""
    return math.log2(m), math.log2(n), math.log2(k)


class BreakEven(NamedTuple):
    """What was measured of one device and precision beside the host's own BLAS."""

    host: Curve
    device: Curve

    def least(self, other: BreakEven) -> BreakEven:
        """Merge two measurements, of which noise can only have slowed down some."""
        sides = []
        for x, y in zip(self, other, strict=True):
            both = dict(y.seconds)
            for shape, t in x.seconds.items():
                both[shape] = min(t, both.get(shape, t))
            sides.append(Curve.fitted(both))
        return BreakEven(*sides)

    def host_seconds(self, g: Gemm) -> float:
        """Predict a problem, as its operands lie in the host's memory."""
        gaps = 0
        if g.batch == 1:
            rows_a, rows_b = (g.k if g.trans_a else g.m), (g.n if g.trans_b else g.k)
            gaps = (g.lda != rows_a) * g.m * g.k + (g.ldb != rows_b) * g.k * g.n
        copying = gaps * PRECISIONS[g.precision].itemsize / COPY_RATE
        return g.batch * self.host.one(g.m, g.n, g.k) + copying

    def device_seconds(self, g: Gemm) -> float:
        """Predict a problem on the device, transfers included; a stack is launched once."""
        one = self.device.one(g.m, g.n, g.k)
        launch = min(self.device.rates[0], one)
        return launch + g.batch * (one - launch)
