"""Measures configurations with products of the shapes that tell them apart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.timing import Stopwatch, TracedPlan
from clgemm.tuning.shapes import SEARCHED, Shape, standard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config, KernelSpec
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.measure.timing import Timing
    from clgemm.tuning.outcome import Setup

FIRST_N, LARGEST_N, ENOUGH_SECONDS = 512, 4096, 0.002
FIRST_N_OF_GPUS = 1024  # a launch takes a good part of a smaller square's time
GIVE_UP = 1.6  # times the best so far: a candidate this slow in two runs is not timed further
VERIFIED_ROWS = 4  # of what was timed
PANEL = 128  # columns of B that are multiplied at once for the reference
PERIOD = 1_048_573  # a prime: numbers repeat, but never in the same place of a row or column


class WrongResultError(Exception):
    """What was timed differs from the reference."""


class Product(NamedTuple):
    """What is timed at one shape, and what some rows of it must come to."""

    a: Operand
    b: Operand
    place_a: Any
    place_b: Any
    """Both on the device."""
    entries: tuple[int, ...]
    """First and last of the stack."""
    rows: NDArray[Any]
    want: NDArray[Any]
    limit: NDArray[Any]

    def verify(self, shape: Shape, c: NDArray[Any]) -> None:
        """Raise WrongResultError if some rows of the result differ from the reference."""
        stack = c if shape.batch > 1 else c[None]
        got = np.stack([stack[entry][self.rows] for entry in self.entries])
        worst = np.max(np.abs(got - self.want) / self.limit)
        if not worst <= 1:
            raise WrongResultError(f"{shape}, as timed: error {worst:.3g} times the bound")


class Products:
    """Makes each product once, for all candidates."""

    def __init__(self, device: Device, precision: Precision) -> None:
        self._device = device
        self._precision = precision
        self._numbers: NDArray[Any] | None = None
        self._products: dict[Shape, Product] = {}
        self._operands: dict[tuple[Any, ...], tuple[NDArray[Any], Any]] = {}

    def forget_all_but(self, shapes: Iterable[Shape]) -> None:
        """Forget the others, and all operands that no product needs any more."""
        kept = set(shapes)
        self._products = {shape: x for shape, x in self._products.items() if shape in kept}
        used = {id(place) for x in self._products.values() for place in (x.place_a, x.place_b)}
        self._operands = {key: x for key, x in self._operands.items() if id(x[1]) in used}

    def of(self, shape: Shape) -> Product:
        """Return the operands of one shape, made once for all candidates."""
        if shape not in self._products:
            m, n, k, batch = shape[:4]
            a, place_a = self._operand("a", batch, m, k, trans=shape.trans_a)
            b, place_b = self._operand("b", batch, k, n, trans=shape.trans_b)
            rows = np.random.default_rng(22).integers(0, m, VERIFIED_ROWS)
            entries = tuple(dict.fromkeys((0, batch - 1)))
            stack_a, stack_b = (a, b) if batch > 1 else (a[None], b[None])
            found = [self._reference(stack_a[entry][rows], stack_b[entry]) for entry in entries]
            want, bound = (np.stack(x) for x in zip(*found, strict=True))
            limit = 2 * (k + 8) * self._precision.eps * bound
            self._products[shape] = Product(
                Operand(a), Operand(b), place_a, place_b, entries, rows, want, limit
            )
        return self._products[shape]

    def _operand(
        self, name: str, batch: int, rows: int, columns: int, *, trans: bool
    ) -> tuple[NDArray[Any], Any]:
        """Return an operand and its place on the device; shapes share those that are alike."""
        key = name, batch, rows, columns, trans
        if key not in self._operands:
            x = self._random(batch, rows, columns, trans=trans)
            self._operands[key] = x, host_memory.place(self._device, x)
        return self._operands[key]

    def _random(self, batch: int, rows: int, columns: int, *, trans: bool) -> NDArray[Any]:
        """Return a matrix or stack, column-major unless `trans`."""
        if self._numbers is None:
            rng = np.random.default_rng(21)
            numbers = rng.uniform(-1, 1, PERIOD)
            if self._precision.is_complex:
                numbers = numbers + 1j * rng.uniform(-1, 1, PERIOD)
            self._numbers = numbers.astype(self._precision.dtype)
        flat = np.resize(self._numbers, batch * rows * columns)
        if trans:
            x = flat.reshape(batch, rows, columns)
        else:
            x = flat.reshape(batch, columns, rows).swapaxes(1, 2)
        return x if batch > 1 else x[0]

    def _reference(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return x @ y in double precision and |x| @ |y|, by panels of y that fit the caches."""
        wide = PRECISIONS[self._precision.wide].dtype
        left, size, n = x.astype(wide), np.abs(x), y.shape[1]
        want, bound = np.empty((len(x), n), wide), np.empty((len(x), n))
        for start in range(0, n, PANEL):
            panel = slice(start, start + PANEL)
            want[:, panel] = left @ y[:, panel].astype(wide)
            bound[:, panel] = size @ np.abs(y[:, panel])
        return want, bound


class Measurements:
    """Measures configurations on a device that nothing else uses meanwhile, with equal products."""

    def __init__(self, device: Device, setup: Setup) -> None:
        self._device = device
        self._precision = PRECISIONS[setup.precision]
        self._asked = dict(setup.asked)
        first_n = FIRST_N if device.traits.unified_memory else FIRST_N_OF_GPUS
        self._first_n = min(first_n, LARGEST_N)
        """Of the smallest square that is timed."""
        self.side = setup.side
        """Of the square that takes long enough to be timed; 0 until the first configuration."""
        self._products = Products(device, self._precision)
        self.stopwatch = Stopwatch(device, setup.clock)

    def measure(
        self, config: Config, best: Mapping[str, float], seconds: float, *, finalist: bool = False
    ) -> dict[str, Timing]:
        """Time the shapes that the search goes by, or all of a finalist; none that is declined.

        Parameters
        ----------
        best : mapping
            Seconds of the best so far by shape: what is much slower is not timed to the end.
        seconds : float
            How long to measure each.
        """
        if not self.side:
            self.side = self._calibrate(config)
        self._device.programs.build_ahead(self.kernels(config, finalist=finalist))
        times = {
            name: self.time_shape(config, shape, best.get(name), seconds)
            for name, shape in self._shapes(finalist=finalist).items()
        }
        return {name: timed for name, timed in times.items() if timed is not None}

    def _calibrate(self, config: Config) -> int:
        """Find a square that takes long enough to be timed: CPUs and GPUs differ a thousandfold.

        One square is timed, for each may take a kernel of its own; larger ones follow from it.
        """
        n = self._smallest(config)
        found = self._prepared(config, Shape(n, n, n))
        if found is None:
            return LARGEST_N
        seconds = timing.measure(found[0].run, seconds=0).best
        while n < LARGEST_N and seconds < ENOUGH_SECONDS:
            n, seconds = 2 * n, 8 * seconds
        self._products.forget_all_but(standard(n).values())
        return n

    def _smallest(self, config: Config) -> int:
        """Return the side of the smallest square that a family does not decline."""
        family, n = BY_NAME[config.family], self._first_n
        while n < LARGEST_N and not family.accepts(self._problem(Shape(n, n, n))):
            n *= 2
        return n

    def _shapes(self, *, finalist: bool) -> dict[str, Shape]:
        """Name what `measure` times; sizes that are not known yet are guessed."""
        side = self.side or (FIRST_N if self._device.traits.unified_memory else LARGEST_N)
        shapes = standard(side)
        if finalist:
            return shapes | self._asked
        return self._asked or {name: shapes[name] for name in SEARCHED}

    def _expected(self, config: Config, *, finalist: bool = False) -> list[Shape]:
        """List what `measure` will compute with."""
        expected = list(self._shapes(finalist=finalist).values())
        n = self.side or self._smallest(config)
        return expected if self.side else [*expected, Shape(n, n, n)]

    def kernels(self, config: Config, *, finalist: bool) -> Iterator[KernelSpec]:
        """Name the kernels that `measure` takes, of the shapes that the family does not decline."""
        family = BY_NAME[config.family]
        for problem in map(self._problem, self._expected(config, finalist=finalist)):
            if family.accepts(problem):
                plan = family.plan(self._device.traits, problem, config)
                yield from (step.kernel for step in plan.steps)

    def make_operands(self, config: Config) -> None:
        """Make the operands of what `measure` will time."""
        for shape in self._expected(config):
            self._products.of(shape)

    def warm_up(self, config: Config) -> None:
        """Run what `measure` will time once: some compilers for CPUs do their work no earlier."""
        if self._device.traits.unified_memory:
            for shape in self._expected(config):
                prepared = self._prepared(config, shape)
                if prepared is not None:
                    prepared[0].run()

    def _problem(self, shape: Shape) -> Gemm:
        """Describe a shape, of operands as they will lie."""
        aligned = not self._device.traits.unified_memory
        return shape.problem(self._precision.code)._replace(aligned=aligned)

    def _prepared(
        self, config: Config, shape: Shape
    ) -> tuple[TracedPlan, NDArray[Any], Any] | None:
        """Build what computes one shape, its result and the result's place; None if declined."""
        product = self._products.of(shape)
        stack = (shape.batch,) if shape.batch > 1 else ()
        c = np.full((*stack, shape.n, shape.m), np.nan, self._precision.dtype).swapaxes(-1, -2)
        problem = describe(product.a, product.b, c, reads_c=False)
        if not self._device.traits.unified_memory:
            problem = problem.dense()  # as calls have it: copies are aligned
        family = BY_NAME[config.family]
        if not family.accepts(problem):
            return None
        plan = family.plan(self._device.traits, problem, config)
        place = host_memory.place(self._device, c)
        values = (1.0, 0.0, product.place_a, product.place_b, place, NO_OFFSETS)
        return TracedPlan(self._device, problem, plan, values), c, place

    def time_shape(
        self, config: Config, shape: Shape, best: float | None = None, seconds: float = 0.04
    ) -> Timing | None:
        """Time one shape, None if the family declines it, and verify some rows of the result.

        Raises
        ------
        WrongResultError
            If what was timed is wrong.
        """
        prepared = self._prepared(config, shape)
        if prepared is None:
            return None
        plan, c, place = prepared
        give_up = math.inf if best is None else best * GIVE_UP
        timed = self.stopwatch.time(plan, seconds=seconds, give_up=give_up)
        host_memory.fetch(self._device, place, c)
        self._products.of(shape).verify(shape, c)
        return timed
