"""Times configurations with products of the shapes that tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import transfer
from clgemm.execute import slots
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS, Operand, Precision, describe
from clgemm.tuning import timing
from clgemm.tuning.shapes import SEARCHED, Shape, standard
from clgemm.tuning.stopwatch import Stopwatch, Traced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config, KernelSpec
    from clgemm.runtime.session import Session
    from clgemm.tuning.timing import Timing

FIRST_N, LARGEST_N, ENOUGH_SECONDS = 512, 4096, 0.002
GIVE_UP = 1.6  # times the best so far: a candidate this slow in its first run is not timed further
CHECKED_ROWS = 4  # of what was timed
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
    entries: tuple[int, int]
    """First and last of the stack."""
    rows: NDArray[Any]
    want: NDArray[Any]
    limit: NDArray[Any]


class Course:
    """Times configurations of one precision on one device.

    Parameters
    ----------
    session : Session
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
        session: Session,
        precision: Precision,
        asked: Mapping[str, Shape] | None = None,
        side: int = 0,
        clock: str = "",
    ) -> None:
        self._session = session
        self._precision = precision
        self._asked = dict(asked or {})
        self.side = side
        self._numbers: NDArray[Any] | None = None
        self._products: dict[Shape, Product] = {}
        self.stopwatch = Stopwatch(session, clock)

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
        kernels = self._kernels(config, (shapes[name] for name in names))
        self._session.programs.build_ahead(kernels)
        times = {
            name: self.time_shape(config, shapes[name], best.get(name), seconds) for name in names
        }
        return {name: timed for name, timed in times.items() if timed is not None}

    def _calibrate(self, config: Config) -> int:
        """Find a square that takes long enough to be timed: CPUs and GPUs differ a thousandfold."""
        n = FIRST_N
        while n < LARGEST_N:
            found = self._prepared(config, Shape(n, n, n))
            if found is not None:
                ready, values = found[0], found[1]
                if timing.measure(lambda: ready.run(values), seconds=0).best >= ENOUGH_SECONDS:  # noqa: B023 - called at once
                    break
            n *= 2
        kept = set(standard(n).values())
        self._products = {shape: x for shape, x in self._products.items() if shape in kept}
        return n

    def _random(self, batch: int, rows: int, columns: int, *, trans: bool) -> NDArray[Any]:
        """Return a matrix or stack, column-major unless `trans`."""
        if self._numbers is None:
            rng, count = np.random.default_rng(21), PERIOD
            numbers = rng.uniform(-1, 1, count)
            if self._precision.is_complex:
                numbers = numbers + 1j * rng.uniform(-1, 1, count)
            self._numbers = numbers.astype(self._precision.dtype)
        flat = np.resize(self._numbers, batch * rows * columns)
        if trans:
            x = flat.reshape(batch, rows, columns)
        else:
            x = flat.reshape(batch, columns, rows).swapaxes(1, 2)
        return x if batch > 1 else x[0]

    def _product(self, shape: Shape) -> Product:
        """Return the operands of one shape, made once for all candidates."""
        if shape not in self._products:
            m, n, k, batch = shape[:4]
            a = self._random(batch, m, k, trans=shape.trans_a)
            b = self._random(batch, k, n, trans=shape.trans_b)
            rows = np.random.default_rng(22).integers(0, m, CHECKED_ROWS)
            entries = (0, batch - 1)
            wide = PRECISIONS["z" if self._precision.is_complex else "d"].dtype
            stack_a, stack_b = (a, b) if batch > 1 else (a[None], b[None])
            left = np.stack([stack_a[entry][rows] for entry in entries]).astype(wide)
            right = [stack_b[entry] for entry in entries]
            want = np.stack([x @ y.astype(wide) for x, y in zip(left, right, strict=True)])
            bound = np.stack([np.abs(x) @ np.abs(y) for x, y in zip(left, right, strict=True)])
            limit = 2 * (k + 8) * self._precision.eps * bound
            place_a, place_b = (transfer.place(self._session, x) for x in (a, b))
            self._products[shape] = Product(
                Operand(a), Operand(b), place_a, place_b, entries, rows, want, limit
            )
        return self._products[shape]

    def _kernels(self, config: Config, shapes: Iterable[Shape]) -> Iterator[KernelSpec]:
        """Name the kernels that shapes take, of those that the family does not decline."""
        traits, family = self._session.traits, BY_NAME[config.family]
        for shape in shapes:
            problem = shape.problem(self._precision.code)
            problem = problem._replace(aligned=not traits.unified_memory)
            if family.accepts(problem):
                plan = family.plan(traits, problem, config)
                yield from (step.kernel for step in plan.steps)

    def _prepared(
        self, config: Config, shape: Shape
    ) -> tuple[Traced, Any, NDArray[Any], Any] | None:
        """Build what computes one shape; None if the family declines it."""
        product = self._product(shape)
        stack = (shape.batch,) if shape.batch > 1 else ()
        c = np.full((*stack, shape.n, shape.m), np.nan, self._precision.dtype).swapaxes(-1, -2)
        problem = describe(product.a, product.b, c, reads_c=False)
        if not self._session.traits.unified_memory:
            problem = problem.dense()  # as the driver has it: copies are aligned
        family = BY_NAME[config.family]
        if not family.accepts(problem):
            return None
        ready = Traced(self._session, family.plan(self._session.traits, problem, config))
        place = transfer.place(self._session, c)
        return ready, slots(problem, 1.0, 0.0, product.place_a, product.place_b, place), c, place

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
        ready, values, c, place = prepared
        limit = float("inf") if best is None else best * GIVE_UP
        timed = self.stopwatch.time(ready, values, seconds=seconds, give_up=limit)
        transfer.fetch(self._session, place, c)
        product = self._product(shape)
        stacked = c if shape.batch > 1 else c[None]
        got = np.stack([stacked[entry][product.rows] for entry in product.entries])
        worst = np.max(np.abs(got - product.want) / product.limit)
        if not worst <= 1:
            raise WrongResultError(f"{shape}, as timed: error {worst:.3g} times the bound")
        return timed
