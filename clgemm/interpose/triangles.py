"""Products of which one triangle is written, as by syrk: the other one is the caller's.

A kernel that computes one triangle mirrors it, so it writes all of a C.  Where threads copy a
device's results to C, they leave out what is not to be written.  Elsewhere the product is computed
beside C, and merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.runtime.idle import IdleTimer
from clgemm.streaming.runner import StreamingRunner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.dispatch.engine import Decision, Engine
    from clgemm.interpose.arguments import Part, Product
    from clgemm.problem import Call
    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.runner import Work

PANEL = 128  # columns of C that are merged at a time
WIDE_PANEL = 512
"""The same for threads that copy: between NumPy's functions they wait for the interpreter's lock.
On an H100's host syrk of 4096 takes 7.0 ms so in single precision, and 9.9 with narrow ones."""
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


def is_merged(decision: Decision, x: Product) -> bool:
    """Tell whether a product is computed beside C, and a triangle of it merged."""
    by_threads = x.beta == 0 and isinstance(decision.runner, StreamingRunner)
    return x.part in ("lower", "upper") and not by_threads


def multiply(engine: Engine, decision: Decision, x: Product, call: Call) -> None:
    """Compute a call of which a triangle of C is written, as was decided for its `whole`."""
    if not is_merged(decision, x) and isinstance(decision.runner, StreamingRunner):
        runner = _Writer(decision.runner, Triangle(x.part, call.c))
        engine.run(decision._replace(runner=runner), call)
        if x.is_hermitian:
            np.fill_diagonal(call.c.imag, 0)
        return
    product = memory(call.c)
    engine.run(decision, call._replace(beta=0.0, c=product))
    merge(x, product, call.c)
    keep(product)  # if something was raised, who knows who still writes there


def merge(x: Product, product: NDArray[Any], c: NDArray[Any]) -> None:
    """Write a triangle of a product, plus beta times C's, into C.

    Parameters
    ----------
    x : Product
        What is asked for.
    product : ndarray of shape (n, n)
        All of ``alpha * op(A) @ op(B)``; written to.
    c : ndarray of shape (n, n)
        The caller's C.
    """
    write = Triangle(x.part, c)
    for start in range(0, x.n, PANEL):
        stop = min(start + PANEL, x.n)
        columns = slice(start, stop)
        rows = slice(start, x.n) if x.part == "lower" else slice(0, stop)
        if x.beta != 0:
            _add(x, product[rows, columns], c[rows, columns])
        if x.is_hermitian:
            np.fill_diagonal(product[columns, columns].imag, 0)
        write(c[:, columns].T, product[:, columns].T)


class Triangle:
    """Writes values into a triangle of a C, and leaves the other one alone.

    Parameters
    ----------
    part : {"lower", "upper"}
        Which one.
    c : ndarray of shape (n, n)
        Column-major.
    """

    def __init__(self, part: Part, c: NDArray[Any]) -> None:
        self._is_lower = part == "lower"
        self._start = c.ctypes.data
        self._itemsize, self._column_bytes = c.strides

    def __call__(self, to: NDArray[Any], values: NDArray[Any]) -> None:
        """Write the values of some rows and columns.

        By panels of columns, of which only the square on the diagonal is masked: to copy under a
        mask takes twice as long.

        Parameters
        ----------
        to : ndarray
            A view of C's memory: its columns as rows; of one part of one column, or of a stack of
            one matrix, too.
        values : ndarray
            Of the same shape.
        """
        columns, rows = to.size // to.shape[-1], to.shape[-1]
        to, values = to.reshape(columns, rows), values.reshape(columns, rows)
        column, offset = divmod(to.ctypes.data - self._start, self._column_bytes)
        diagonal = column - offset // self._itemsize  # counted in rows of these
        for start in range(0, columns, WIDE_PANEL):
            stop = min(start + WIDE_PANEL, columns)
            first, last = (min(max(diagonal + x, 0), rows) for x in (start, stop))
            beyond = slice(last, rows) if self._is_lower else slice(0, first)
            to[start:stop, beyond] = values[start:stop, beyond]
            row, its_diagonal = np.ogrid[first:last, diagonal + start : diagonal + stop]
            mask = row >= its_diagonal if self._is_lower else row <= its_diagonal
            square = slice(start, stop), slice(first, last)
            np.copyto(to[square], values[square], where=mask.T)


class _Writer:
    """Runs calls with copies, and has their results written by a function."""

    def __init__(self, runner: StreamingRunner, write: Triangle) -> None:
        self._runner, self._write = runner, write

    def run(self, call: Call, stop: Stop | None = None) -> None:
        """Compute and wait."""
        self._runner.run(call, stop, self._write)

    def work(self) -> Work:
        """Say what a call does."""
        return self._runner.work()


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
