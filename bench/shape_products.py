"""A drawn product with its operands: as clgemm computes it, and as its peer does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg.blas

import clgemm
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from random_shapes import Drawn

    from clgemm.dispatch.explanation import Explanation

FACES = ("matmul", "gemm")
PEERS = {"matmul": "NumPy", "gemm": "SciPy"}


def uniform(rng: np.random.Generator, shape: tuple[int, ...], code: str) -> NDArray[Any]:
    """Return elements between -1 and 1, C-ordered; of complex numbers both parts are."""
    p = PRECISIONS[code]
    real_type: Any = np.dtype(f"f{p.real_bytes}").type
    flat = rng.random(int(np.prod(shape)) * p.parts, dtype=real_type)
    flat *= 2
    flat -= 1
    return flat.view(p.dtype).reshape(shape)


def stored(rng: np.random.Generator, drawn: Drawn, place: int) -> NDArray[Any]:
    """Make an operand as it lies in memory: a, if `place` is 0, or b."""
    name, op, order = "ab"[place], drawn.ops[place], drawn.orders[place]
    shape: tuple[int, ...] = (drawn.k, drawn.n) if place else (drawn.m, drawn.k)
    if name in drawn.vectors:
        return uniform(rng, (drawn.k,), drawn.code)
    shape = shape if op == "N" else shape[::-1]
    if drawn.batch > 1 and name != drawn.shared:
        shape = (drawn.batch, *shape)
    if order == "C":
        return uniform(rng, shape, drawn.code)
    return uniform(rng, (*shape[:-2], *shape[:-3:-1]), drawn.code).swapaxes(-1, -2)


def seen(x: NDArray[Any], op: str) -> NDArray[Any]:
    """Return op(x): a view, but for conjugation."""
    if op == "N":
        return x
    return x.swapaxes(-1, -2).conj() if op == "C" else x.swapaxes(-1, -2)


class Product:
    """A product of NumPy arrays through one face, and the same through its peer's.

    Parameters
    ----------
    drawn : Drawn
        The product.
    face : str
        One of `FACES`.
    """

    def __init__(self, drawn: Drawn, face: str) -> None:
        self.drawn = drawn
        rng = np.random.default_rng(drawn.m + drawn.n + drawn.k)
        self._a = stored(rng, drawn, 0)
        self._b = self._a if drawn.gram else stored(rng, drawn, 1)
        self.ours: Callable[[], Any]
        """Computes it with clgemm."""
        self.theirs: Callable[[], Any]
        """Computes it with the peer."""
        if face == "matmul":
            x, y = seen(self._a, drawn.ops[0]), seen(self._b, drawn.ops[1])
            self.ours, self.theirs = partial(clgemm.matmul, x, y), partial(np.matmul, x, y)
            self._explain = partial(clgemm.explain, x, y)
        else:
            flags = {f"trans_{x}": "NTC".index(op) for x, op in zip("ab", drawn.ops, strict=True)}
            name, operands = f"{drawn.code}gemm", (1.0, self._a, self._b)
            self.ours = partial(getattr(clgemm, name), *operands, **flags)
            self.theirs = partial(getattr(scipy.linalg.blas, name), *operands, **flags)
            c = np.empty((drawn.m, drawn.n), self._a.dtype, order="F")
            self._explain = partial(clgemm.explain, self._a, self._b, c, **flags)

    def explained(self) -> Explanation:
        """Tell where clgemm computes it, and why."""
        return self._explain()

    def error(self) -> float:
        """Compare both; 1 is 2 k^1.5 eps max|A| max|B|, which errors of random signs keep."""
        ours, theirs = np.asarray(self.ours()), np.asarray(self.theirs())
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return float("inf")
        largest = float(np.max(np.abs(self._a)) * np.max(np.abs(self._b)))
        bound = 2 * self.drawn.k**1.5 * PRECISIONS[self.drawn.code].eps * largest
        return float(np.max(np.abs(ours - theirs)) / bound)
