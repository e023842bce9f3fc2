"""The products that candidates are timed with: operands, and what some rows must come to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.problem import PRECISIONS, Operand
from clgemm.runtime import host_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from clgemm.problem import Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.shapes import Shape

CHECKED_ROWS = 4  # of what was timed
PANEL = 128  # columns of B that are multiplied at once for the reference
PERIOD = 1_048_573  # a prime: numbers repeat, but never in the same place of a row or column


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


class Products:
    """Makes each product once, for all candidates.

    Parameters
    ----------
    device : Device
        The device that operands are placed on.
    precision : Precision
        Of the products.
    """

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

    def of(self, shape: Shape) -> Product:
        """Return the operands of one shape, made once for all candidates."""
        if shape not in self._products:
            m, n, k, batch = shape[:4]
            a, place_a = self._operand("a", batch, m, k, trans=shape.trans_a)
            b, place_b = self._operand("b", batch, k, n, trans=shape.trans_b)
            rows = np.random.default_rng(22).integers(0, m, CHECKED_ROWS)
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

    def _reference(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return x @ y in double precision and |x| @ |y|, by panels of y that fit the caches."""
        wide = PRECISIONS["z" if self._precision.is_complex else "d"].dtype
        left, size, n = x.astype(wide), np.abs(x), y.shape[1]
        want, bound = np.empty((len(x), n), wide), np.empty((len(x), n))
        for start in range(0, n, PANEL):
            panel = slice(start, start + PANEL)
            want[:, panel] = left @ y[:, panel].astype(wide)
            bound[:, panel] = size @ np.abs(y[:, panel])
        return want, bound
