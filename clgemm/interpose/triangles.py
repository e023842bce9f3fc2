"""Products of which one triangle is written, as by syrk: computed whole beside C, then merged.

A kernel that computes one triangle mirrors it, so it writes all of a C; the other triangle of a
caller's C is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.runtime.idle import IdleTimer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.dispatch.engine import Decision, Engine
    from clgemm.interpose.arguments import Part, Product
    from clgemm.problem import Call

PANEL = 128  # columns of C that are merged at a time
MOST_KEPT = 1 << 27  # bytes of memory for a product that stay, for the next one, ...
KEPT_SECONDS = 10.0  # ... that comes by then

_kept: list[NDArray[Any]] = []
_rest = IdleTimer(KEPT_SECONDS, _kept.clear)


def whole(call: Call) -> Call:
    """Return the product of a call, alone, into memory of its own: what is decided on.

    Without a real alpha, as NumPy has it: what is known of the host's Gram products is known of
    those.  With another one, a matrix times its own conjugate is not Hermitian.
    """
    alpha = 1.0 if call.alpha.imag == 0 else call.alpha
    return call._replace(alpha=alpha, beta=0.0, c=np.empty_like(call.c, order="F"))


def multiply(engine: Engine, decision: Decision, x: Product, call: Call) -> None:
    """Compute a call of which a triangle of C is written, as was decided for its `whole`."""
    product = memory(call.c)
    engine.run(decision, call._replace(beta=0.0, c=product))
    merge(x, product, call.c)
    keep(product)  # if something was raised, who knows who still writes there


def merge(x: Product, product: NDArray[Any], c: NDArray[Any]) -> None:
    """Write a triangle of a product, plus beta times C's, into C.

    By panels of columns, of which only the square on the diagonal is masked: to copy under a mask
    takes twice as long.

    Parameters
    ----------
    x : Product
        What is asked for.
    product : ndarray of shape (n, n)
        All of ``alpha * op(A) @ op(B)``; written to.
    c : ndarray of shape (n, n)
        The caller's C.
    """
    for start in range(0, x.n, PANEL):
        columns = slice(start, min(start + PANEL, x.n))
        beyond = slice(columns.stop, x.n) if x.part == "lower" else slice(0, start)
        for rows in (beyond, columns):
            if x.beta != 0:
                _add(x, product[rows, columns], c[rows, columns])
        square = product[columns, columns]
        if x.is_hermitian:
            np.fill_diagonal(square.imag, 0)
        c[beyond, columns] = product[beyond, columns]
        np.copyto(c[columns, columns], square, where=_triangle(x.part, len(square)))


def _add(x: Product, product: NDArray[Any], c: NDArray[Any]) -> None:
    """Add beta times a part of C to that of a product."""
    with np.errstate(all="ignore"):  # of the other triangle, which is not the caller's
        if x.is_hermitian:  # beta is real, and the diagonal's imaginary parts hold whatever they do
            product.real += product.real.dtype.type(x.beta.real) * c.real
            product.imag += product.real.dtype.type(x.beta.real) * c.imag
        else:
            product += product.dtype.type(x.beta) * c


def written(x: Product) -> NDArray[np.bool_]:
    """Return an array of C's shape, true where C is written: few bytes that columns share."""
    if x.part == "whole":
        return np.broadcast_to(np.bool_(True), (x.m, x.n))
    return _triangle(x.part, x.n)


def _triangle(part: Part, n: int) -> NDArray[np.bool_]:
    ones = np.zeros(2 * n - 1, bool)
    ones[n - 1 :] = True
    lower = np.lib.stride_tricks.as_strided(ones[n - 1 :], (n, n), (1, -1), writeable=False)
    return lower if part == "lower" else lower.T


def memory(c: NDArray[Any]) -> NDArray[Any]:
    """Return memory for a product like C, column-major; that of an earlier one if it fits."""
    try:
        found = _kept.pop()  # no other thread has it then
    except IndexError:
        found = np.empty(0, np.uint8)
    if found.nbytes < c.nbytes:
        found = np.empty(c.nbytes, np.uint8)
    return np.ndarray(c.shape, c.dtype, found, order="F")


def keep(product: NDArray[Any]) -> None:
    """Give back what `memory` has returned, of which nothing is read or written any more."""
    base = product.base
    if isinstance(base, np.ndarray) and base.nbytes <= MOST_KEPT:
        _kept[:] = [base]
        _rest.touch()
