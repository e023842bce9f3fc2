"""A drawn product of Arrays on a device: as clgemm computes it, and as cuBLAS does by PyTorch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from alternating import Way
from device_peers import CuBLAS
from shape_products import uniform

import clgemm
from clgemm.api.array_decisions import decide_matmul
from clgemm.dispatch import engines
from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl, registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from random_shapes import Drawn


class ArrayProduct:
    """A product on the device by both; an operand that is transposed is a view on both sides.

    Parameters
    ----------
    drawn : Drawn
        The product.  Operands of stacks are taken as they lie.
    """

    def __init__(self, drawn: Drawn) -> None:
        peer = CuBLAS.find()
        if isinstance(peer, str):
            raise SystemExit(f"--arrays: {peer}")
        torch: Any = peer.torch
        self._drawn = drawn
        rng = np.random.default_rng(drawn.m + drawn.n + drawn.k)
        self._a, self._b = _stored(rng, drawn, 0), _stored(rng, drawn, 1)
        x, y = self._seen(clgemm.to_device(operand) for operand in (self._a, self._b))
        p, q = self._seen(torch.from_numpy(operand).cuda() for operand in (self._a, self._b))
        self._torchs = torch.matmul(p, q)
        shape = tuple(self._torchs.shape)
        dtype = PRECISIONS[drawn.code].dtype
        self._out = opencl.arrays().empty(x.queue, shape, dtype, allocator=x.allocator)
        self._x, self._y = x, y
        self.ours = Way(partial(clgemm.matmul, x, y, out=self._out), self._out.queue.finish)
        """Computes it with clgemm."""
        self.theirs = Way(partial(torch.matmul, p, q, out=self._torchs), torch.cuda.synchronize)
        """Computes it with cuBLAS."""

    def _seen(self, stored: Iterable[Any]) -> tuple[Any, Any]:
        """Return views of A and B; those of a stack are taken as they lie."""
        ops = self._drawn.ops if self._drawn.batch == 1 else "NN"
        a, b = (x if op == "N" else x.T for x, op in zip(stored, ops, strict=True))
        return a, b

    def kernels(self) -> str:
        """Name the configuration that computes it, of a stack the first of its products."""
        engine = engines.of(registry.of_queue(self._x.queue)[0])
        decision = decide_matmul(engine, self._x, self._y, self._out, same=False)
        return decision.products[0].runner.work().config

    def error(self) -> float:
        """Compare both; 1 is 2 k^1.5 eps max|A| max|B|, which errors of random signs keep."""
        clgemm.matmul(self._x, self._y, out=self._out.fill(np.nan))
        ours, theirs = self._out.get(), self._torchs.cpu().numpy()
        largest = float(np.max(np.abs(self._a)) * np.max(np.abs(self._b)))
        bound = 2 * self._drawn.k**1.5 * PRECISIONS[self._drawn.code].eps * largest
        worst = float(np.max(np.abs(ours - theirs)) / bound)
        return worst if np.isfinite(worst) else float("inf")


def _stored(rng: np.random.Generator, drawn: Drawn, place: int) -> NDArray[Any]:
    shape: tuple[int, ...] = (drawn.k, drawn.n) if place else (drawn.m, drawn.k)
    if drawn.ops[place] != "N" and drawn.batch == 1:
        shape = shape[::-1]
    if drawn.batch > 1 and "ab"[place] != drawn.shared:
        shape = (drawn.batch, *shape)
    return uniform(rng, shape, drawn.code)
