"""The same gemm by SciPy's own BLAS: for problems too small for a device, and as the reference."""

from __future__ import annotations

import functools
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
OUTER = 1 << 17
"""Elements of an outer product that is worth the time to load SciPy's BLAS."""
SHORT, NARROW = {False: 2000, True: 4000}, {False: 2, True: 4}
"""Elements and columns of real and complex outer products, below which NumPy's loop is as fast."""
ONE_THREAD = {False: 1 << 18, True: 1 << 15}
"""Multiplications of real and of complex numbers up to which OpenBLAS starts no other thread."""
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
    """Tell whether there are one column and one row to multiply, for which NumPy asks no BLAS.

    And enough of them that SciPy's gemm takes less time than NumPy's loop.
    """
    if not (a.ndim == b.ndim == _MATRIX and a.shape[1] == b.shape[0] == 1):
        return False
    m, n, is_complex = a.shape[0], b.shape[1], a.dtype.kind == "c"
    if m == 1 or n < NARROW[is_complex]:  # of vectors NumPy does ask BLAS
        return False
    return bool(m * n >= SHORT[is_complex])


def outer(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return a @ b of such operands by SciPy's gemm, in a fraction of the time of NumPy's loop.

    What is written is the same: sums of one product.  SciPy would write into a copy of what it
    cannot write into, so a result of another type or shape is NumPy's, as are mistakes.

    Rows are taken together that the calling thread computes alone: a thread of SciPy's would wait
    for milliseconds beside one of NumPy's that looks for work, and delay NumPy's next product.
    """
    shape = a.shape[0], b.shape[1]
    c = np.empty(shape, dtype_of_product(a.dtype, b.dtype)) if out is None else out
    fits = a.dtype in BY_DTYPE and (c.shape, c.dtype) == (shape, a.dtype) and c.flags.carray
    fits = fits and not (out is not None and _overlaps(out, a, b))
    if not fits or not (c.size > OUTER or _asks_scipy(a.dtype.kind == "c")):
        return matmul(a, b, out=c)
    routine = scipy_blas.gemm(BY_DTYPE[a.dtype].code)
    m, n = shape
    rows = max(1, ONE_THREAD[a.dtype.kind == "c"] // n)
    for start in range(0, m, rows):
        panel = slice(start, start + rows)
        routine(1.0, b.T, a[panel].T, c=c[panel].T, overwrite_c=True)
    return c


def _asks_scipy(is_complex: bool) -> bool:
    """Tell whether SciPy's gemm computes outer products that are not worth the time to load it.

    NumPy's loop and SciPy round complex products differently, so the first one decides on all.
    """
    return _was_loaded() if is_complex else scipy_blas.is_loaded()


@functools.cache
def _was_loaded() -> bool:
    return scipy_blas.is_loaded()


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
