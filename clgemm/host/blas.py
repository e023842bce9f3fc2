"""The same gemm by SciPy's own BLAS: for problems too small for a device, and as the reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.host import scipy_blas
from clgemm.problem import BY_DTYPE, dtype_of_product
from clgemm.runtime.runner import Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Call
    from clgemm.runtime.interrupt import Stop


matmul, dot = np.matmul, np.dot
"""NumPy's own, even where a program puts clgemm's in its place."""

PANEL_FLOPS = 2e11
"""Of one call of SciPy's, during which Python hears no Ctrl-C: half a second to one of two cores.
With a quarter as many products take up to 18 % longer, since A is packed anew for each panel."""
LONG = PANEL_FLOPS / 8  # multiplications, of whatever type, which are left to such panels
_MATRIX = 2  # axes
ONE_THREAD = {False: 1 << 17, True: 1 << 15}
"""Elements of a real and of a complex outer product that are computed at once: a core's cache holds
them.  OpenBLAS starts another thread for more than twice as many real ones, or for more complex
ones."""
ZEROED = 1 << 16
"""Bytes of a result that SciPy's gemm takes longer to fill with zeros, which it does to one that it
is not given, than to be given one.  On a Xeon (Emerald Rapids) it takes 1 us longer for 64 KB, 26
for 1 MB, and half a microsecond less for 48 KB."""
NARROWEST = 64  # columns that a call needs to be fast; panels have a multiple of them


def gemm(call: Call) -> None:
    """Compute ``c[...] = alpha * op(a) @ op(b) + beta * c``, matrix by matrix.

    Of integers, which no BLAS has, there are plain products only.
    """
    alpha, a, b, beta, c, conj_a, conj_b, _ = call
    plain = alpha == 1 and beta == 0 and not (conj_a or conj_b)
    if (c.ndim > 2 and plain) or c.dtype not in BY_DTYPE:
        matmul(a, b, out=c)  # loops in C
        return
    routine = scipy_blas.gemm(BY_DTYPE[c.dtype].code)
    if c.ndim == 2:
        _one(routine, call)
        return
    for x, y, z in zip(a, b, c, strict=True):
        _one(routine, call._replace(a=x, b=y, c=z))


def multiply(call: Call) -> None:
    """Compute ``c[...] = a @ b`` as NumPy does with the caller's operands; else as `gemm` does.

    NumPy knows products with vectors, and a matrix times its own transpose.
    """
    alpha, a, b, beta, c, conj_a, conj_b, transposed = call
    plain = alpha == 1 and beta == 0 and not (conj_a or conj_b)
    if not plain or a.size * c.shape[-1] > LONG:
        gemm(call)
        return
    if transposed:
        a, b, c = b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2)
    (outer if is_outer(a, b) else matmul)(a, b, out=c)


def is_outer(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether there are a column and a row to multiply, for which matmul asks no BLAS."""
    return a.ndim == _MATRIX == b.ndim and a.shape[1] == len(b) == 1 < len(a) and b.shape[1] > 1


def outer(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a @ b of such operands by numpy.dot, in a fraction of the time of matmul's loop.

    What is written is the same: sums of one product.  numpy.dot writes into nothing of another
    type, shape or order, so such a result is matmul's, as are mistakes.

    It fills the result with zeros first, and BLAS starts other threads for a large one: so as many
    rows are taken together as stay in a core's cache, and are computed by it alone, but two at
    least.  Of one row the operand would be a single element, a number by which numpy.dot scales
    the other one, and where that is zero it leaves zeros for what is infinite or NaN.
    """
    shape = m, n = len(a), b.shape[1]
    c = np.empty(shape, dtype_of_product(a.dtype, b.dtype)) if out is None else out
    fits = a.dtype in BY_DTYPE and (c.shape, c.dtype) == (shape, a.dtype) and c.flags.carray
    if not fits or (out is not None and _overlaps(out, a, b)):
        return matmul(a, b, out=c)
    rows = max(2, ONE_THREAD[a.dtype.kind == "c"] // n)
    ends = [*range(rows, m - 1, rows), m]
    for start, end in zip([0, *ends], ends, strict=False):
        dot(a[start:end], b, c[start:end])
    return c


def _overlaps(out: NDArray[Any], *operands: NDArray[Any]) -> bool:
    return any(np.may_share_memory(out, x) for x in operands)


def is_tall(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether a stack times one matrix is one tall matrix times it, as it lies in memory."""
    return a.ndim > b.ndim == _MATRIX and a.flags.c_contiguous


def tall(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return a @ b of such operands, in one product instead of NumPy's many."""
    k, n = b.shape
    c = np.empty((*a.shape[:-1], n), dtype_of_product(a.dtype, b.dtype))
    rows = a.reshape(-1, k)
    (outer if is_outer(rows, b) else matmul)(rows, b, out=c.reshape(-1, n))
    return c


class HostRunner:
    """Computes by the host's BLAS."""

    def run(self, call: Call, stop: Stop | None = None) -> None:
        """Compute; see `Runner.run`."""
        del stop
        gemm(call)

    def work(self) -> Work:
        """Say what a call does."""
        return Work()


def _one(routine: Any, call: Call) -> None:
    alpha, a, b, beta, c, conj_a, conj_b, _ = call
    a, trans_a = _operand(a, conj_a)
    b, trans_b = _operand(b, conj_b)
    panels = _panels(c, a.size // c.shape[0])
    if len(panels) > 1:
        a = np.asfortranarray(a)  # not anew for each panel
    for columns in panels:
        panel, right = c[:, columns], b[columns] if trans_b else b[:, columns]
        in_place = panel.flags.f_contiguous and panel.flags.aligned
        kept = panel if beta != 0 or in_place else None
        result = routine(
            alpha, a, right, beta=beta, c=kept, trans_a=trans_a, trans_b=trans_b,
            overwrite_c=in_place,
        )  # fmt: skip
        if result is not panel:
            panel[...] = result


def _panels(c: NDArray[Any], k: int) -> list[slice]:
    """Cut C into columns, as many for each panel, such that none takes long."""
    m, n = c.shape
    flops = 2 * m * n * k * BY_DTYPE[c.dtype].multiplications
    width = math.ceil(n / max(1, math.ceil(flops / PANEL_FLOPS)))
    width = math.ceil(width / NARROWEST) * NARROWEST
    return [slice(start, start + width) for start in range(0, n, width)]


def _operand(x: NDArray[Any], conj: bool) -> tuple[NDArray[Any], int]:
    """Give the array and the BLAS flag (0 N, 1 T, 2 C) that stand for `x`, conjugated or not."""
    if conj:
        return (x.T, 2) if x.flags.c_contiguous else (np.conj(x), 0)
    return (x.T, 1) if x.flags.c_contiguous else (x, 0)
