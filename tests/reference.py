"""The reference that results are compared with: wider arithmetic and the a-priori bound."""

from __future__ import annotations

import numpy as np

WIDER = {np.dtype("f4"): np.float64, np.dtype("c8"): np.complex128}


def wide(x):
    """Return `x` in a type that makes its own rounding negligible, the fastest one there is."""
    x = np.asarray(x)
    widest = np.clongdouble if np.iscomplexobj(x) else np.longdouble
    return x.astype(WIDER.get(x.dtype, widest))


def gemm(alpha, a, b, beta, c):
    """Return alpha*a@b + beta*c in a wider type, and |alpha||a||b| + |beta||c|."""
    with np.errstate(all="ignore"):
        product = wide(a) @ wide(b)
        size = abs(alpha) * (np.abs(wide(a)) @ np.abs(wide(b)))
        if beta == 0:
            return alpha * product, size
        return alpha * product + beta * wide(c), size + abs(beta) * np.abs(wide(c))


def assert_within_bound(got, want, size, k, eps):
    """Fail unless |got - want| <= (k + 8) * eps * size in every element.

    (k + 8) * eps is the a-priori bound of a product of depth k, each product and sum rounded once
    and complex ones up to four times, with alpha and beta on top; `size` is
    |alpha||A||B| + |beta||C|.
    """
    __tracebackhide__ = True
    tiny = np.finfo(got.dtype).tiny * (k + 8)
    excess = np.abs(wide(got) - want) - (k + 8) * eps * size - tiny
    if excess.size and not np.max(excess) <= 0:
        i = np.unravel_index(np.argmax(np.where(np.isnan(excess), np.inf, excess)), excess.shape)
        raise AssertionError(
            f"at {i}: {got[i]!r} instead of {want[i]!r}, bound {size[i]!r} * {k + 8} eps"
        )
