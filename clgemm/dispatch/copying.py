"""Products with operands that BLAS cannot express where they lie: copied first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.layouts import expressible, layout_of
from clgemm.problem import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.runner import Runner


class CopyingRunner:
    """Computes calls with operands that BLAS cannot express, or a C that it cannot write.

    Parameters
    ----------
    compute : callable
        Computes a call of such copies.
    inner : Runner
        What that comes to.
    """

    def __init__(self, compute: Callable[[Call], object], inner: Runner) -> None:
        self._compute = compute
        self.work = inner.work

    def run(self, call: Call, stop: Stop | None = None) -> None:
        """Copy, and compute as any other call; see `Runner.run`."""
        del stop
        inner, c = copied_call(call, values=True)
        self._compute(inner)
        if c is not call.c:
            call.c[...] = c


def copied_call(call: Call, *, values: bool) -> tuple[Call, NDArray[Any]]:
    """Return a call of the same shapes whose operands BLAS can express, and its C."""
    fitting = expressible if values else _empty_like
    a, b = fitting(call.a), fitting(call.b)
    c = call.c
    if layout_of(c) is None:
        c = np.array(c, order="C") if values and call.beta != 0 else np.empty(c.shape, c.dtype)
    return Call.of(call.alpha, a, b, call.beta, c, call.conj_a, call.conj_b), c


def _empty_like(x: NDArray[Any]) -> NDArray[Any]:
    """Return what `expressible` would, without the values of a copy."""
    if layout_of(x) is not None:
        return x
    if x.ndim > 2 and x.strides[0] == 0:
        return np.broadcast_to(np.empty(x.shape[1:], x.dtype), x.shape)
    return np.empty(x.shape, x.dtype)
