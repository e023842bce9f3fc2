"""How long a product takes on the host and on the device, from a few dozen measured shapes.

Each side is a sum of calls, matrices, multiplications, elements read and elements written, each
times the seconds of one; `tuning.cost_model` finds these.  A library does not go by such a sum: it
has kernels for small matrices, begins to use threads at some size, packs or does not.  What the sum
misses at the shapes around is added: by a plane through the misses, in the logarithms of the
extents, to which near shapes contribute most (local linear regression; Cleveland and Devlin, JASA
83(403), 1988).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.problem import PRECISIONS, SYMMETRIC
from clgemm.streaming import direct
from clgemm.tuning import cost_model
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

COPY_RATE = 4e9  # bytes a second at which SciPy copies an operand with gaps before it computes
REACH = 1.75  # factors of two in an extent, over which what is missed fades
RIDGE = 0.3  # in shapes: keeps the plane flat where few are near
HALF = 0.6  # of a product's time, that one takes of which half is computed
MIRRORED = 1e-9
"""Seconds of an element that NumPy copies to the other triangle, one by one: .5 to 2.5 ns on a Zen
5 at 230 to 3900 squares of s and d, 3.5 to 9 where rows are powers of two apart."""
MIRRORED_BESIDE = 6e-11
"""Seconds of a byte of C, in which a CPU device writes a triangle and the other one: 4 to 7e-11 on
a Zen 5, at 270 to 3900 squares of s and d and short k."""
OUTLIER = 1.0  # of a miss, a factor of e: more is taken for noise
COPIED_FIRST = 1.1e-4, 1 / 11e9
"""Seconds of a product whose operands are copied whole: of the call, and of a byte.

By what 16 cores of three shared hosts copy to H100s and back, 400 to 900 square, beside PyTorch and
beside NumPy: they differ by a fifth, and where threads of NumPy's wrote the result's memory last it
takes longer."""
COPIED_BESIDE = 3.6e-4, 1 / 16e9  # the same where other threads copy a part of them, ...
COPIED_BY_MANY = 3.6e-4, 1 / 21e9  # ... and where these are many
COPIED_IN_BLOCKS = 1.8e-3, 1 / 40e9
"""The same in blocks, which threads copy while kernels run, ..."""
BLOCKS_EXPOSED = 0.15  # ... of which this part of the shorter one is not hidden by the other
BESIDE_GPU = {4: 60e9, 8: 28e9}
"""Flops a second of a core, by the bytes of a real number, where nothing of a host is measured."""
BESIDE_GPU_START = 5e-6  # seconds for each core of several until all are at work
USUAL_HERTZ = 3e9  # of cores, which begin two multiply-adds of full vectors a cycle, ...
USUAL_SHARE = 0.75  # ... of which a product that is not small reaches so much


def counts(shape: Shape) -> tuple[int, int, int, int, int]:
    """Count calls, matrices, multiplications, elements read and elements written."""
    m, n, k, batch = shape[:4]
    return 1, batch, batch * m * n * k, batch * (m * k + k * n), batch * m * n


def usual_seconds(traits: DeviceTraits, g: Gemm) -> float:
    """Estimate a product on the host's cores, by either side, where nothing was measured."""
    lanes = traits.simd_bytes // PRECISIONS[g.precision].real_bytes
    rate = traits.compute_units * USUAL_HERTZ * USUAL_SHARE * 4 * lanes
    return g.flops / rate


def _position(shape: Shape) -> tuple[float, ...]:
    """Place a shape where one unit is a factor of two, or a way operands lie."""
    log = math.log2
    return (*(log(x) for x in shape[:4]), float(shape.trans_a), float(shape.trans_b))


@dataclass(frozen=True)
class Curve:
    """Predicts the seconds of one side.

    Parameters
    ----------
    rates : tuple of float
        Seconds of each of the `counts`, none negative.
    seconds : mapping
        What was measured, by shape.
    """

    rates: tuple[float, ...]
    seconds: Mapping[Shape, float]

    @classmethod
    def fitted(cls, seconds: Mapping[Shape, float]) -> Curve:
        """Find the rates that explain the measured times best; relative errors count."""
        rows = np.array([counts(shape) for shape in seconds])
        return cls(cost_model.fit(rows, list(seconds.values())), dict(seconds))

    def one(self, shape: Shape) -> float:
        """Predict one product."""
        places, misses = self._around
        apart = places - np.array(_position(shape))
        weights = np.exp(np.sum(apart**2, axis=1) / (-2 * REACH**2))
        planes = np.column_stack((np.ones(len(apart)), apart))
        weighed = planes * weights[:, None]
        square = weighed.T @ planes + RIDGE * np.eye(planes.shape[1])
        miss = float(np.linalg.solve(square, weighed.T @ misses)[0])
        return self._sum(shape) * math.exp(min(max(miss, -OUTLIER), OUTLIER))

    @cached_property
    def _around(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where the measured shapes are, and the logarithms of what the sum misses there."""
        misses = [math.log(t / self._sum(shape)) for shape, t in self.seconds.items()]
        places = [_position(shape) for shape in self.seconds]
        return np.array(places), np.clip(misses, -OUTLIER, OUTLIER)

    def _sum(self, shape: Shape) -> float:
        total = sum(rate * count for rate, count in zip(self.rates, counts(shape), strict=True))
        return max(total, cost_model.LEAST)

    @cached_property
    def largest(self) -> int:
        """Most multiplications of a product that was measured."""
        return max(counts(shape)[2] for shape in self.seconds)

    def as_json(self) -> list[list[float]]:
        """Give what was measured; the rest follows from it."""
        return [[*map(int, shape), t] for shape, t in self.seconds.items()]

    @classmethod
    def from_json(cls, data: Any) -> Curve:
        """Read what `as_json` gave.

        Raises
        ------
        TypeError, ValueError
            If it is something else.
        """
        found = {}
        for *extents, trans_a, trans_b, t in data:
            m, n, k, batch = map(int, extents)
            found[Shape(m, n, k, batch, bool(trans_a), bool(trans_b))] = float(t)
        if not found or not all(min(s[:4]) > 0 and 0 < t < math.inf for s, t in found.items()):
            raise ValueError("no times, or one that is not positive")
        return cls.fitted(found)


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
        seconds = self.host.one(_shape(g)) + copying
        if g.triangle != SYMMETRIC:
            return seconds
        # NumPy computes half of a matrix times its transpose, but not of one times its conjugate.
        return HALF * seconds + MIRRORED * g.batch * g.m * g.n / 2

    def device_seconds(self, g: Gemm) -> float:
        """Predict a problem on a device that shares the host's memory."""
        nbytes = g.batch * g.m * g.n * PRECISIONS[g.precision].itemsize if g.triangle else 0
        return self.copied_seconds(g) + MIRRORED_BESIDE * nbytes

    def copied_seconds(self, g: Gemm) -> float:
        """Predict a problem on a device that does not, transfers included."""
        return self.device.one(_shape(g)) * (HALF if g.triangle else 1)


def copied_seconds(nbytes: int, kernels: float) -> float:
    """Estimate a product whose operands are copied to a device with a memory of its own and back.

    By what H200s and H100s beside 16 cores take, within a fourth from 512 to 32768 square.

    Parameters
    ----------
    nbytes : int
        Of the three operands.
    kernels : float
        Seconds of the kernels alone.
    """
    if nbytes <= direct.MOST:
        beside = COPIED_BY_MANY if nbytes >= direct.MUCH else COPIED_BESIDE
        start, each = beside if direct.uses_threads(nbytes) else COPIED_FIRST
        return start + nbytes * each + kernels
    start, each = COPIED_IN_BLOCKS
    return start + overlapped(nbytes * each, kernels, BLOCKS_EXPOSED)


def overlapped(copies: float, kernels: float, exposed: float) -> float:
    """Estimate copies and kernels that run at once, a part of the shorter one `exposed`."""
    return max(copies, kernels) + exposed * min(copies, kernels)


class CopiedTimes(NamedTuple):
    """How long one product takes on the host, and on a device to which its operands are copied.

    As measured where it was, and estimated elsewhere: the bus does not go by what small products
    took.
    """

    kernels: float
    """Seconds of the kernels alone."""
    cores: int
    """Of the host."""
    measured: BreakEven | None = None

    def host_seconds(self, g: Gemm) -> float:
        """Predict a problem on the host."""
        if self.measured is not None:
            return self.measured.host_seconds(g)
        rate = self.cores * BESIDE_GPU[PRECISIONS[g.precision].real_bytes]
        return BESIDE_GPU_START * (self.cores - 1) + g.flops / rate

    def device_seconds(self, g: Gemm) -> float:
        """Predict a problem on the device, transfers included."""
        if self.measured is not None and counts(_shape(g))[2] <= self.measured.device.largest:
            return self.measured.copied_seconds(g)
        return copied_seconds(g.operand_bytes, self.kernels)


def _shape(g: Gemm) -> Shape:
    return Shape(g.m, g.n, g.k, g.batch, g.trans_a, g.trans_b)
