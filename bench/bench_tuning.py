"""What tuning costs: the first call with an empty cache, and in later processes.

    python bench/bench_tuning.py [--n 1024] [--precision s] [--json out.json]

Each call runs in a process of its own; the time is from before the import of clgemm to the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import time
start = time.perf_counter()
import logging, sys, numpy as np
searches = []
handler = logging.Handler()
handler.emit = lambda record: searches.append(record.getMessage())
logging.getLogger("clgemm").addHandler(handler)
logging.getLogger("clgemm").setLevel(logging.INFO)
import clgemm
imported = time.perf_counter()
n = int(sys.argv[1])
a = np.ones((n, n), np.dtype(sys.argv[2]), order="F")
before = time.perf_counter()
c = getattr(clgemm, sys.argv[3] + "gemm")(1.0, a, a)
after = time.perf_counter()
assert (c == n).all()
import json
print(json.dumps({"import": imported - start, "first call": after - before,
                  "together": after - start, "searched": bool(searches)}))
"""
DTYPES = {"s": "f", "d": "d", "c": "F", "z": "D"}


def first_call(n: int, code: str, cache: str) -> dict[str, float]:
    """Start Python, import clgemm, multiply once."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(n), DTYPES[code], code],
        env=os.environ | {"CLGEMM_CACHE_DIR": cache, "CLGEMM_ROUTE": "device"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: float(x) for name, x in json.loads(child.stdout).items()}


def main() -> int:
    """Print and store one cold and several warm starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--precision", default="s", choices=list("sdcz"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        runs = [
            first_call(arguments.n, arguments.precision, cache)
            for _ in range(1 + arguments.repeats)
        ]
    cold, warm = runs[0], runs[1:]
    medians = {name: statistics.median(run[name] for run in warm) for name in cold}
    print(f"{'seconds':24}{'import':>9}{'first call':>12}{'together':>10}{'searched':>10}")
    for title, run in (("empty cache", cold), (f"later, median of {len(warm)}", medians)):
        print(
            f"{title:24}{run['import']:9.3f}{run['first call']:12.3f}{run['together']:10.3f}"
            f"{'yes' if run['searched'] else 'no':>10}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"cold": cold, "warm": warm}, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
