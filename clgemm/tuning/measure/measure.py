"""Times configurations with products of the shapes that tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.kernels import BY_NAME
from clgemm.problem import describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.products import Products
from clgemm.tuning.measure.stopwatch import Stopwatch, Traced
from clgemm.tuning.shapes import SEARCHED, Shape, standard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config, KernelSpec
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.measure.timing import Timing

FIRST_N, LARGEST_N, ENOUGH_SECONDS = 512, 4096, 0.002
GIVE_UP = 1.6  # times the best so far: a candidate this slow in two runs is not timed further


class WrongResultError(Exception):
    """What was timed differs from the reference."""


class Course:
    """Times configurations of one precision on one device.

    Parameters
    ----------
    device : Device
        The device; nothing else may use it meanwhile.
    precision : Precision
        Of the products.
    asked : mapping, optional
        Shapes by name that every candidate is timed with, instead of `SEARCHED`.
    side : int
        Of the square that takes long enough to be timed; 0: found at the first configuration.
    clock : str
        Whose clock counts, if that is known: see `Stopwatch`.
    """

    def __init__(
        self,
        device: Device,
        precision: Precision,
        asked: Mapping[str, Shape] | None = None,
        side: int = 0,
        clock: str = "",
    ) -> None:
        self._device = device
        self._precision = precision
        self._asked = dict(asked or {})
        self.side = side
        self._products = Products(device, precision)
        self.stopwatch = Stopwatch(device, clock)

    @property
    def shapes(self) -> dict[str, Shape]:
        """All shapes, by name."""
        return standard(self.side) | self._asked

    def time(
        self, config: Config, best: Mapping[str, float], seconds: float, *, every: bool = False
    ) -> dict[str, Timing]:
        """Time the shapes that the search goes by, or every one, unless the family declines it.

        Parameters
        ----------
        best : mapping
            Seconds of the best so far by shape: what is much slower is not timed to the end.
        seconds : float
            How long to measure each.
        """
        if not self.side:
            self.side = self._calibrate(config)
        shapes = self.shapes
        names = shapes if every else (self._asked or SEARCHED)
        self._device.programs.build_ahead(self.kernels(config, every=every))
        times = {
            name: self.time_shape(config, shapes[name], best.get(name), seconds) for name in names
        }
        return {name: timed for name, timed in times.items() if timed is not None}

    def _calibrate(self, config: Config) -> int:
        """Find a square that takes long enough to be timed: CPUs and GPUs differ a thousandfold.

        One square is timed, for each may take a kernel of its own; larger ones follow from it.
        """
        n = self._first(config)
        found = self._prepared(config, Shape(n, n, n))
        if found is None:
            return LARGEST_N
        seconds = timing.measure(found[0].run, seconds=0).best
        while n < LARGEST_N and seconds < ENOUGH_SECONDS:
            n, seconds = 2 * n, 8 * seconds
        self._products.forget_all_but(standard(n).values())
        return n

    def _first(self, config: Config) -> int:
        """Return the side of the smallest square that a family does not decline."""
        family, n = BY_NAME[config.family], FIRST_N
        while n < LARGEST_N and not family.accepts(self._problem(Shape(n, n, n))):
            n *= 2
        return n

    def kernels(self, config: Config, *, every: bool) -> Iterator[KernelSpec]:
        """Name the kernels that `time` takes, of the shapes that the family does not decline."""
        family = BY_NAME[config.family]
        for problem in map(self._problem, self._expected(config, every=every)):
            if family.accepts(problem):
                plan = family.plan(self._device.traits, problem, config)
                yield from (step.kernel for step in plan.steps)

    def lay_out(self, config: Config) -> None:
        """Make the operands of what `time` will time."""
        for shape in self._expected(config, every=False):
            self._products.of(shape)

    def rehearse(self, config: Config) -> None:
        """Run what `time` will time once: some compilers for CPUs do their work no earlier."""
        if self._device.traits.unified_memory:
            for shape in self._expected(config, every=False):
                prepared = self._prepared(config, shape)
                if prepared is not None:
                    prepared[0].run()

    def _expected(self, config: Config, *, every: bool) -> list[Shape]:
        """List what `time` will time; sizes that are not known yet are guessed."""
        unified = self._device.traits.unified_memory
        shapes = standard(self.side or (FIRST_N if unified else LARGEST_N)) | self._asked
        expected = [shapes[name] for name in (shapes if every else (self._asked or SEARCHED))]
        if not self.side:
            n = self._first(config)
            expected.append(Shape(n, n, n))
        return expected

    def _problem(self, shape: Shape) -> Gemm:
        """Describe a shape, of operands as they will lie."""
        aligned = not self._device.traits.unified_memory
        return shape.problem(self._precision.code)._replace(aligned=aligned)

    def _prepared(self, config: Config, shape: Shape) -> tuple[Traced, NDArray[Any], Any] | None:
        """Build what computes one shape; None if the family declines it."""
        product = self._products.of(shape)
        stack = (shape.batch,) if shape.batch > 1 else ()
        c = np.full((*stack, shape.n, shape.m), np.nan, self._precision.dtype).swapaxes(-1, -2)
        problem = describe(product.a, product.b, c, reads_c=False)
        if not self._device.traits.unified_memory:
            problem = problem.dense()  # as the driver has it: copies are aligned
        family = BY_NAME[config.family]
        if not family.accepts(problem):
            return None
        plan = family.plan(self._device.traits, problem, config)
        place = host_memory.place(self._device, c)
        values = (1.0, 0.0, product.place_a, product.place_b, place, NO_OFFSETS)
        return Traced(self._device, problem, plan, values), c, place

    def time_shape(
        self, config: Config, shape: Shape, best: float | None = None, seconds: float = 0.04
    ) -> Timing | None:
        """Time one shape, None if the family declines it, and check what was timed on some rows.

        Parameters
        ----------
        best : float, optional
            Seconds of the best so far: what is much slower is not timed to the end.
        seconds : float
            How long to measure.

        Raises
        ------
        WrongResultError
            If what was timed is wrong.
        """
        prepared = self._prepared(config, shape)
        if prepared is None:
            return None
        plan, c, place = prepared
        limit = float("inf") if best is None else best * GIVE_UP
        timed = self.stopwatch.time(plan, seconds=seconds, give_up=limit)
        host_memory.fetch(self._device, place, c)
        product = self._products.of(shape)
        stacked = c if shape.batch > 1 else c[None]
        got = np.stack([stacked[entry][product.rows] for entry in product.entries])
        worst = np.max(np.abs(got - product.want) / product.limit)
        if not worst <= 1:
            raise WrongResultError(f"{shape}, as timed: error {worst:.3g} times the bound")
        return timed
