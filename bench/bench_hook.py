"""NumPy's own products without the hook and under it, in turn: large ones, and what tiny ones cost.

    python bench/bench_hook.py [--sizes 1024 2048 4096] [--precisions sdcz] [--tiny 8 16 32]

`a @ b` and `a.T @ a` of squares, with `out`, which NumPy computes by gemm and syrk, and mirrors by
a loop of its own; also syrk, or herk of complex elements, as SciPy calls it.  Seconds are medians
of blocks in turn, results are compared first, and `device` says whether they were computed there:
where the host is faster, they are not.
Parameters must be known: run `python -m clgemm tune` before.  Tiny products go to the original in
machine code; their times are the fastest of many blocks, in nanoseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import timeit
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import environment
import numpy as np
import scipy.linalg.blas
from numpy.testing import assert_allclose

import clgemm
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 5
BLOCK_SECONDS = 0.1
MOST_RUNS = 20
TINY_CALLS, TINY_ROUNDS = 20_000, 15


class Row(NamedTuple):
    """One product."""

    what: str
    n: int
    without: float
    under: float
    on_device: bool


def products(code: str, n: int) -> dict[str, Callable[[], Any]]:
    """Give NumPy's and SciPy's products by name; each returns what it has computed."""
    precision, rng = PRECISIONS[code], np.random.default_rng(7)
    parts = [rng.standard_normal((n, n)) for _ in range(4)]
    a, b = (parts[i] + 1j * parts[i + 1] if precision.is_complex else parts[i] for i in (0, 2))
    a, b = a.astype(precision.dtype), b.astype(precision.dtype)
    out = np.empty_like(a)
    found: dict[str, Callable[[], Any]] = {
        f"{code} a @ b": partial(np.matmul, a, b, out=out),
        f"{code} a.T @ a": partial(np.matmul, a.T, a, out=out),
    }
    name = code + ("herk" if precision.is_complex else "syrk")
    rank_k, c = getattr(scipy.linalg.blas, name), np.zeros((n, n), a.dtype, order="F")
    found[f"{name} of SciPy"] = partial(rank_k, 1.0, a.T, c=c, overwrite_c=1)
    return found


def on_device() -> int:
    """Count the calls that the device has computed so far."""
    return sum(row.device_calls for row in clgemm.usage().rows)


def block(run: Callable[[], Any], count: int) -> float:
    """Return the seconds of one of so many runs, after one more."""
    run()
    begin = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - begin) / count


def compare(what: str, n: int, run: Callable[[], Any], rounds: int) -> Row:
    """Time a product without the hook and under it, in turn."""
    want = run().copy()
    with clgemm.interposed():
        run()  # decides
        before = on_device()
        got = run()
        went = on_device() > before
    assert_allclose(got, want, rtol=0, atol=1e-3 * abs(want).max())
    begin = time.perf_counter()
    run()
    count = max(1, min(MOST_RUNS, int(BLOCK_SECONDS / (time.perf_counter() - begin))))
    without, under = [], []
    for _ in range(rounds):
        without.append(block(run, count))
        with clgemm.interposed():
            under.append(block(run, count))
    return Row(what, n, statistics.median(without), statistics.median(under), went)


def tiny(n: int) -> Row:
    """Time a product that is small; in seconds."""
    a, out = np.ones((n, n)), np.empty((n, n))
    timer = timeit.Timer(partial(np.matmul, a, a.T.copy(), out=out))
    without, under = [], []
    for _ in range(TINY_ROUNDS):
        without.append(timer.timeit(TINY_CALLS) / TINY_CALLS)
        with clgemm.interposed():
            under.append(timer.timeit(TINY_CALLS) / TINY_CALLS)
    return Row("d a @ b, tiny", n, min(without), min(under), on_device=False)


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield what is asked for."""
    traits = environment.device_in_use().traits
    for n in given.tiny:
        yield tiny(n)
    for code in given.precisions:
        if traits.has(PRECISIONS[code]):
            for n in given.sizes:
                for what, run in products(code, n).items():
                    yield compare(what, n, run, given.rounds)


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--tiny", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    environment.restart_clean()
    head = environment.facts(environment.device_in_use())
    print(environment.text(head))
    print(f"{'product':16}{'n':>6}{'without':>14}{'under':>14}{'ratio':>8}  on the device")
    found = []
    for row in rows(given):
        unit, scale = ("ms", 1e3) if row.without > 1e-4 else ("ns", 1e9)
        print(
            f"{row.what:16}{row.n:6}{scale * row.without:11.3f} {unit}{scale * row.under:11.3f} "
            f"{unit}{row.without / row.under:8.2f}  {'yes' if row.on_device else 'no'}",
            flush=True,
        )
        found.append(row._asdict())
    environment.store(given.json, head | {"rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
