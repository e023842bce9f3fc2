"""What a call with copies asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clgemm.host import blas as host_blas

if TYPE_CHECKING:
    from clgemm.problem import Call
    from clgemm.runtime.interrupt import Stop

Write = Callable[[NDArray[Any], NDArray[Any]], object]
"""Writes results: a view of some columns of C, transposed, and the values that belong there."""


class Request(NamedTuple):
    """A call, when nobody wants it any more, and how its results are written."""

    call: Call
    stop: Stop | None = None
    write: Write | None = None
    """None if they are copied.  It may leave parts of C as they are, so C is not read then."""

    def by_host(self) -> None:
        """Have the host compute it."""
        call = self.call
        if self.write is None:
            host_blas.gemm(call)
            return
        product = np.empty_like(call.c, order="F")
        host_blas.gemm(call._replace(c=product))
        self.write(call.c.swapaxes(-1, -2), product.swapaxes(-1, -2))
