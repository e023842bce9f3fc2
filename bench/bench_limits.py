"""clgemm beside NumPy where the cores are limited: variables, threadpoolctl, affinity, joblib.

    python bench/bench_limits.py --json out.json

Each limit holds in a process of its own, in which both multiply NumPy arrays in alternating blocks,
by `matmul` on the route that clgemm chooses.  "busy" is how many cores the process kept busy.  With
joblib four workers compute at the same time, and each tells its own figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environment
import numpy as np

import clgemm
from clgemm.host import threads
from clgemm.problem import PRECISIONS
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = {
    "none": {},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
    "OPENBLAS_NUM_THREADS=1": {"OPENBLAS_NUM_THREADS": "1"},
    "threadpool_limits(1)": {},
    "affinity of one core": {},
    "joblib, 4 workers": {},
}
"""Variables of each; the others are set in the process."""
BLOCK_SECONDS = 0.15
WORKERS = 4


def block(run: Callable[[], object]) -> tuple[float, float]:
    """Return the median seconds of a run, and how many cores were busy."""
    run()
    times: list[float] = []
    start, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < BLOCK_SECONDS or len(times) < 3:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    busy = (time.process_time() - cpu) / (time.perf_counter() - start)
    return statistics.median(times), busy


def compared(code: str, n: int, rounds: int) -> dict[str, Any]:
    """Time one square on both sides."""
    x = np.random.default_rng(n).random((n, n)).astype(PRECISIONS[code].dtype)
    sides = {"clgemm": partial(clgemm.matmul, x, x), "NumPy": partial(np.matmul, x, x)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            timing.settle()
            found[name].append(block(run))
    seconds = {name: statistics.median(t for t, _ in blocks) for name, blocks in found.items()}
    busy = {name: statistics.median(b for _, b in blocks) for name, blocks in found.items()}
    return {
        "code": code, "n": n, "route": clgemm.explain(x, x).route, "allowed": threads.limit(),
        "seconds": seconds, "busy": busy, "ratio": seconds["NumPy"] / seconds["clgemm"],
    }  # fmt: skip


def rows(codes: str, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Time all squares in this process."""
    return [compared(code, n, rounds) for code in codes for n in sizes]


def limited(limit: str, codes: str, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Time all squares under a limit that is set here, if it is not one of the environment's."""
    if limit.startswith("affinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if limit.startswith("threadpool"):
        with import_module("threadpoolctl").threadpool_limits(1):
            return rows(codes, sizes, rounds)
    if limit.startswith("joblib"):
        joblib: Any = import_module("joblib")
        work = joblib.delayed(rows)(codes, sizes, rounds)
        return [row for found in joblib.Parallel(WORKERS)([work] * WORKERS) for row in found]
    return rows(codes, sizes, rounds)


def in_a_process(limit: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Have another process time all squares under a limit; none where a package is missing."""
    options = ["--precisions", arguments.precisions, "--rounds", str(arguments.rounds)]
    options += ["--sizes", *map(str, arguments.sizes)]
    child = subprocess.run(
        [sys.executable, __file__, "--limit", limit, *options],
        env=os.environ | LIMITS[limit], capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        print(f"{limit}: {child.stderr.strip().splitlines()[-1]}")
        return []
    found: list[dict[str, Any]] = json.loads(child.stdout.splitlines()[-1])
    return found


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 500, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", choices=LIMITS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Print a line for each limit, precision and size."""
    arguments = parsed()
    if arguments.limit:
        found = limited(arguments.limit, arguments.precisions, arguments.sizes, arguments.rounds)
        print(json.dumps(found))
        return 0
    environment.restart_clean()
    head = environment.facts(environment.device_in_use())
    for code in arguments.precisions:  # a first product may search for parameters
        clgemm.matmul(*[np.ones((300, 300), PRECISIONS[code].dtype)] * 2)
    print(environment.text(head))
    print(f"{'limit':26}{'':8}{'ms clgemm':>12}{'NumPy':>9}{'ratio':>7}{'busy':>12}  route")
    stored = {}
    for limit in LIMITS:
        stored[limit] = in_a_process(limit, arguments)
        for row in stored[limit]:
            ms = {name: 1e3 * t for name, t in row["seconds"].items()}
            busy = f"{row['busy']['clgemm']:.2f} {row['busy']['NumPy']:.2f}"
            print(
                f"{limit:26}{row['code']} {row['n']:<6}{ms['clgemm']:12.3f}{ms['NumPy']:9.3f}"
                f"{row['ratio']:7.2f}{busy:>12}  {row['route']}, {row['allowed']} allowed",
                flush=True,
            )
    environment.store(arguments.json, head | {"limits": stored})
    return 0


if __name__ == "__main__":
    sys.exit(main())
