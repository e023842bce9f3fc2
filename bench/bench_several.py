"""One large product on one device and on several, from NumPy array to NumPy array.

    python bench/bench_several.py nvidia:0 nvidia:0,nvidia:1 nvidia:all --n 32768 --precision d

Each list of devices, as CLGEMM_DEVICE takes it, is timed in a process of its own.  Some rows of the
result are compared with NumPy's before.  Beside the times stands what copying alone takes at the
rate at which all cores together copy memory, which every operand passes on its way to a device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import clgemm
from clgemm import host_blas
from clgemm.cli import versions
from clgemm.problem import PRECISIONS
from clgemm.runtime import session as sessions
from clgemm.tuning.check import random_matrix

ROWS = 8  # of the result are compared
COPIED_BYTES = 1 << 26  # by each thread


def copy_rate() -> float:
    """Return the bytes a second that all cores together copy."""
    threads = host_blas.usable_cores()
    pairs = [tuple(np.ones(COPIED_BYTES, np.uint8) for _ in "ab") for _ in range(threads)]
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), pairs))
            times.append(time.perf_counter() - start)
    return threads * COPIED_BYTES / min(times)


def one(code: str, n: int, rounds: int) -> dict[str, Any]:
    """Time one product on the devices that CLGEMM_DEVICE names."""
    session = sessions.current()
    if session is None:
        raise SystemExit("no OpenCL device can be used here")
    precision, rng = PRECISIONS[code], np.random.default_rng(1)
    a, b = (random_matrix(rng, precision, n, n) for _ in "ab")
    rows = rng.integers(0, n, ROWS)
    wide = PRECISIONS["z" if precision.is_complex else "d"].dtype
    want = a[rows].astype(wide) @ b
    bound = 2 * n * precision.eps * (np.abs(a[rows]) @ np.abs(b))
    c = clgemm.matmul(a, b)
    worst = float(np.max(np.abs(c[rows] - want) / bound))
    if not worst <= 1:
        raise SystemExit(f"{code}gemm {n}: WRONG, {worst:.3g} times the bound")
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        clgemm.matmul(a, b, out=c)
        times.append(time.perf_counter() - start)
    return {
        "devices": [session.traits.describe(), *(s.traits.describe() for s in sessions.others())],
        "explanation": str(clgemm.explain(a, b, c)),
        "seconds": times,
        "error": worst,
    }


def in_child(devices: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `one` in a process that uses these devices."""
    words = ["--one", "--n", arguments.n, "--precision", arguments.precision,
             "--rounds", arguments.rounds]  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)],
        env=os.environ | {"CLGEMM_DEVICE": devices},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{devices}: the process ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("devices", nargs="*", help="lists as CLGEMM_DEVICE takes them")
    parser.add_argument("--n", type=int, default=32768)
    parser.add_argument("--precision", choices=PRECISIONS, default="d")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure what was asked for."""
    arguments = parsed()
    if arguments.one:
        print(json.dumps(one(arguments.precision, arguments.n, arguments.rounds)))
        return 0
    if not arguments.devices:
        raise SystemExit("name at least one device, such as nvidia:0")
    n, precision = arguments.n, PRECISIONS[arguments.precision]
    flops = 2 * n**3 * (4 if precision.is_complex else 1)
    rate, size = copy_rate(), precision.itemsize * n**2
    print(versions())
    print(f"memory is copied at {rate / 1e9:.1f} GB/s by {host_blas.usable_cores()} cores")
    rows, first = [], None
    for devices in arguments.devices:
        row = in_child(devices, arguments)
        count, best = len(row["devices"]), min(row["seconds"])
        first = first or best
        # Each device gets one operand whole and its part of the other one, and C comes back once.
        copying = size * (count + 1 + 1) / rate
        print(
            f"{devices}: {count} device(s), {best:.3f} s, {flops / best / 1e12:.2f} TFLOP/s, "
            f"{first / best:.2f} times the first; copying alone {copying:.3f} s\n  "
            f"{row['explanation']}",
            flush=True,
        )
        rows.append(row | {"wish": devices, "copying_seconds": copying})
    if arguments.json:
        found = {"versions": versions(), "n": n, "precision": precision.code, "rows": rows,
                 "copied_bytes_per_second": rate}  # fmt: skip
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
