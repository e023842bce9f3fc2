"""The products that candidates are timed with, one for each size class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import transfer
from clgemm.execute import slots
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS, SIZE_CLASSES, Operand, Precision, describe
from clgemm.tuning import timing
from clgemm.tuning.check import operands
from clgemm.tuning.stopwatch import Stopwatch, Traced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config
    from clgemm.runtime.session import Session
    from clgemm.tuning.timing import Timing

Size = tuple[int, int, int]
"""m, n, k."""

SMALL_N, SKINNY_N = 512, 37
FIRST_N, LARGEST_N, ENOUGH_SECONDS = 512, 4096, 0.002
GIVE_UP = 1.6  # times the best so far: a candidate this slow in its first run is not timed further
CHECKED_ROWS = 4  # of what was timed


class WrongResultError(Exception):
    """What was timed differs from the reference."""


class Product(NamedTuple):
    """What is timed at one size, and what some rows of it must come to."""

    a: Operand
    b: Operand
    place_a: Any
    place_b: Any
    """Both on the device."""
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
    sizes : mapping
        m, n, k by size class; those left out are found at the first configuration.
    clock : str
        Whose clock counts, if that is known: see `Stopwatch`.
    """

    def __init__(
        self, session: Session, precision: Precision, sizes: Mapping[str, Size], clock: str
    ) -> None:
        self._session = session
        self._precision = precision
        self.sizes: dict[str, Size] = dict(sizes)
        self._products: dict[Size, Product] = {}
        self.stopwatch = Stopwatch(session, clock)

    def time(self, config: Config, best: Mapping[str, float], seconds: float) -> dict[str, Timing]:
        """Time every size class that the configuration's family does not decline."""
        if not set(SIZE_CLASSES) <= set(self.sizes):
            self._calibrate(config)
        times = {
            name: self.time_class(config, name, best.get(name), seconds) for name in SIZE_CLASSES
        }
        return {name: timed for name, timed in times.items() if timed is not None}

    def _calibrate(self, config: Config) -> None:
        """Find a square that takes long enough to be timed: CPUs and GPUs differ a thousandfold."""
        n = FIRST_N
        while n < LARGEST_N:
            found = self._prepared(config, (n, n, n))
            if found is not None:
                ready, values = found[0], found[1]
                if timing.measure(lambda: ready.run(values), seconds=0).best >= ENOUGH_SECONDS:  # noqa: B023 - called at once
                    break
            n *= 2
        small = min(SMALL_N, n)
        usual = {"large": (n,) * 3, "small": (small,) * 3, "skinny": (SKINNY_N, n, n)}
        self.sizes = {name: self.sizes.get(name, usual[name]) for name in SIZE_CLASSES}
        kept = set(self.sizes.values())
        self._products = {size: x for size, x in self._products.items() if size in kept}

    def _product(self, size: Size) -> Product:
        """Return the operands of one size, made once for all candidates."""
        if size not in self._products:
            m, n, k = size
            rng = np.random.default_rng(21)
            a, b = next(operands(rng, self._precision, m, n, k, every=False))
            rows = rng.integers(0, m, CHECKED_ROWS)
            wide = PRECISIONS["z" if self._precision.is_complex else "d"].dtype
            left = a.data[rows].astype(wide)
            limit = 2 * (k + 8) * self._precision.eps * (np.abs(left) @ np.abs(b.data))
            place_a, place_b = (transfer.place(self._session, x.data) for x in (a, b))
            self._products[size] = Product(
                a, b, place_a, place_b, rows, left @ b.data.astype(wide), limit
            )
        return self._products[size]

    def _prepared(self, config: Config, size: Size) -> tuple[Traced, Any, NDArray[Any], Any] | None:
        """Build what computes one size; None if the family declines it."""
        product = self._product(size)
        c = np.full((size[1], size[0]), np.nan, self._precision.dtype).T
        problem = describe(product.a, product.b, c, reads_c=False)
        if not self._session.traits.unified_memory:
            problem = problem.dense()  # as the driver has it: copies are aligned
        family = BY_NAME[config.family]
        if not family.accepts(problem):
            return None
        ready = Traced(self._session, family.plan(self._session.traits, problem, config))
        place = transfer.place(self._session, c)
        return ready, slots(problem, 1.0, 0.0, product.place_a, product.place_b, place), c, place

    def time_class(
        self, config: Config, size_class: str, best: float | None = None, seconds: float = 0.04
    ) -> Timing | None:
        """Time one size, None if the family declines it, and check what was timed on some rows.

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
        size = self.sizes[size_class]
        prepared = self._prepared(config, size)
        if prepared is None:
            return None
        ready, values, c, place = prepared
        limit = float("inf") if best is None else best * GIVE_UP
        timed = self.stopwatch.time(ready, values, seconds=seconds, give_up=limit)
        transfer.fetch(self._session, place, c)
        product, (m, n, k) = self._product(size), size
        worst = np.max(np.abs(c[product.rows] - product.want) / product.limit)
        if not worst <= 1:
            raise WrongResultError(f"{m} x {n} x {k}, as timed: error {worst:.3g} times the bound")
        return timed
