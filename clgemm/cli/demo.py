"""``clgemm demo``: products by clgemm and by SciPy, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import blas
from clgemm.api.explain import explain
from clgemm.cli import values
from clgemm.cli.info import versions
from clgemm.dispatch import engines
from clgemm.dispatch.route import HOST
from clgemm.host import scipy_blas
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.verify import random_matrix

if TYPE_CHECKING:
    import argparse

    from clgemm.problem import Precision

DEMO_N = 2048


def add_parser(commands: Any) -> None:
    """Add ``demo`` to the command line's subcommands."""
    p = commands.add_parser("demo", help="multiply in four precisions and compare with SciPy")
    p.add_argument("--n", type=values.count, default=DEMO_N, help="size of the square matrices")
    values.add_precision(p, "--precision", "--precisions")


def run(arguments: argparse.Namespace) -> int:
    """Multiply matrices with clgemm and with SciPy, compare results and print times.

    Returns
    -------
    int
        0 if every result agreed with SciPy's within the error bound.
    """
    print(versions())
    device = registry.current()
    if device is None:
        print("no device can be used in this process")
        return 1
    print(f"device: {device.traits.describe()} ({device.reason})\n")
    supported = [PRECISIONS[c] for c in arguments.precision if device.traits.has(PRECISIONS[c])]
    for precision in supported:
        origin = engines.of(device).parameters.of(precision.code).origin
        print(f"{precision.code}gemm: parameters {origin}", flush=True)
    title = f"n = {arguments.n}"
    print(f"\n{title:8} {'SciPy':>20} {'clgemm':>20} {'speed-up':>9}  error / bound")
    good = True
    for precision in supported:
        good &= _compare(precision, arguments.n)
    print("\nall results agree with SciPy" if good else "\nA RESULT IS WRONG", flush=True)
    return 0 if good else 1


def _compare(precision: Precision, n: int) -> bool:
    rng = np.random.default_rng(1)
    a, b = (random_matrix(rng, precision, n, n) for _ in "ab")
    ours = getattr(blas, precision.code + "gemm")
    theirs = scipy_blas.gemm(precision.code)
    bound = 2 * n * precision.eps * (np.abs(a) @ np.abs(b))
    error = float(np.max(np.abs(ours(1.0, a, b) - theirs(1.0, a, b)) / bound))
    times = timing.side_by_side(
        {
            "SciPy": lambda: theirs(1.0, a, b),
            "clgemm": lambda: ours(1.0, a, b),
        }
    )
    flops = 2 * n**3 * (4 if precision.is_complex else 1)
    columns = "".join(
        f"{1e3 * t.median:9.2f} ms{flops / t.median / 1e9:5.0f} GF/s" for t in times.values()
    )
    ratio = times["SciPy"].median / times["clgemm"].median
    noisy = "  (noisy machine)" if any(t.noisy for t in times.values()) else ""
    if explain(a, b, np.empty((n, n), precision.dtype, "F")).route == HOST:
        noisy += "  (left to SciPy, which is as fast here)"
    print(f"{precision.code}gemm    {columns} {ratio:8.2f}x  {error:.1e}{noisy}", flush=True)
    return error <= 1
