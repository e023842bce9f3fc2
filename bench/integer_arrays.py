"""Products of Arrays on a device of types that BLAS has not, and PyTorch's of two of them."""

from __future__ import annotations

import itertools
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from alternating import Way, throughput

import clgemm
from clgemm.problem import HALF

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from clgemm.problem import Precision

DIGIT = 16  # bits, of which products of doubles are exact


def drawn(rng: np.random.Generator, precision: Precision, n: int) -> NDArray[Any]:
    """Draw a square matrix: integers of all bits, one bool in a hundred, normal halves."""
    if precision.code == HALF.code:
        return rng.normal(size=(n, n)).astype(precision.dtype)
    if precision.dtype == bool:
        return rng.random((n, n)) < 0.01
    limits = np.iinfo(precision.dtype)
    return rng.integers(limits.min, limits.max, (n, n), precision.dtype, endpoint=True)


def is_right(found: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether a product is NumPy's, or of halves a sum in float32 that was rounded once."""
    if a.dtype == bool:
        return np.array_equal(found, a.astype("f4") @ b.astype("f4") > 0)
    if a.dtype.kind == "f":
        x, y = a.astype(float), b.astype(float)
        exact = x @ y
        bound = abs(exact) / 2**11 + len(b) / 2**23 * (abs(x) @ abs(y)) + 2.0**-25
        return bool(np.all(abs(found - exact) <= bound))
    total = np.zeros(found.shape, np.uint64)
    bits = 8 * a.dtype.itemsize
    for i, j in itertools.product(range(0, bits, DIGIT), repeat=2):
        if i + j < bits:
            x, y = (_digit(z, at) for z, at in ((a, i), (b, j)))
            total += (x @ y).astype(np.uint64) << np.uint64(i + j)
    return np.array_equal(found, total.astype(a.dtype))


def _digit(x: NDArray[Any], at: int) -> NDArray[Any]:
    digits: NDArray[Any] = x.astype(np.uint64) >> np.uint64(at) & np.uint64(2**DIGIT - 1)
    return digits.astype(float)


def ways(a: NDArray[Any], b: NDArray[Any]) -> Mapping[str, Way]:
    """Check clgemm's product of Arrays, and give what to time."""
    x, y = clgemm.to_device(a), clgemm.to_device(b)
    out = clgemm.to_device(np.ones(a.shape, a.dtype))
    clgemm.matmul(x, y, out=out)
    if not is_right(out.get(), a, b):
        raise SystemExit(f"{a.dtype}, n = {len(a)}: WRONG")
    found = {"clgemm": Way(partial(clgemm.matmul, x, y, out=out), out.queue.finish)}
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return found
    if not torch.cuda.is_available() or a.dtype not in {np.dtype("i1"), HALF.dtype}:
        return found
    p = torch.from_numpy(a).cuda()
    q = torch.from_numpy(np.ascontiguousarray(b.T)).cuda().t()  # as _int_mm is fastest
    if a.dtype == HALF.dtype:
        q = torch.from_numpy(b).cuda()
    product = torch.matmul if a.dtype == HALF.dtype else torch._int_mm  # noqa: SLF001 - no other
    return found | {"PyTorch": Way(partial(product, p, q), torch.cuda.synchronize)}


def rows(precisions: list[Precision], sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Time all types and sizes, and print a line for each."""
    found = []
    print(f"{'':12}{'n':>7}{'clgemm':>12}{'Top/s':>8}{'PyTorch':>12}{'times':>8}")
    for precision, n in itertools.product(precisions, sizes):
        rng = np.random.default_rng(n)
        seconds = throughput(ways(drawn(rng, precision, n), drawn(rng, precision, n)), rounds)
        ours, theirs = seconds["clgemm"], seconds.get("PyTorch")
        told = f"{precision.dtype!s:12}{n:7}{1e6 * ours:9.1f} us{2e-12 * n**3 / ours:8.1f}"
        print(told + (f"{1e6 * theirs:9.1f} us{theirs / ours:8.2f}" if theirs else ""), flush=True)
        found.append({"type": str(precision.dtype), "n": n} | seconds)
    return found
