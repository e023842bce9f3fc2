"""First calls of a process, for bench_tuning.py: with nothing known, a shipped file, the user's.

And with a driver that has compiled nothing yet, where it keeps what it compiled in a known place.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from pathlib import Path

CHILD = """
import time
start = time.perf_counter()
import json, logging, sys
import numpy as np
searches = []
handler = logging.Handler()
handler.emit = lambda record: searches.append(record.getMessage())
logging.getLogger("clgemm.tuning").addHandler(handler)
logging.getLogger("clgemm.tuning").setLevel(logging.INFO)
import clgemm
imported = time.perf_counter()
n = int(sys.argv[1])
a = np.ones((n, n), np.dtype(sys.argv[2]), order="F")
before = time.perf_counter()
c = getattr(clgemm, sys.argv[3] + "gemm")(1.0, a, a)
after = time.perf_counter()
assert (c == n).all()
print(json.dumps({"import": imported - start, "first call": after - before,
                  "together": after - start,
                  "searched": any("tuning" in text for text in searches)}))
"""


def child_environment() -> dict[str, str]:
    """Give this one's variables, but for the one that would compile clgemm's Python each time.

    An installed package brings its byte code, a source tree writes it when it is first imported.
    """
    return {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def write_bytecode() -> None:
    """Import clgemm once."""
    subprocess.run([sys.executable, "-c", "import clgemm"], env=child_environment(), check=True)


def first_call(
    n: int, code: str, cache: Path, shipped: Path | str, compiled: Path | None = None
) -> dict[str, float]:
    """Start Python, import clgemm, multiply once; `compiled` is for what the driver compiles."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(n), PRECISIONS[code].dtype.char, code],
        env=child_environment()
        | {
            "CLGEMM_CACHE_DIR": str(cache),
            "CLGEMM_SHIPPED": str(shipped),
            "CLGEMM_ROUTE": "device",
        }
        | ({} if compiled is None else {"CUDA_CACHE_PATH": str(compiled)}),
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: float(x) for name, x in json.loads(child.stdout).items()}


def starts(n: int, code: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Time first calls: nothing known, parameters shipped, and the user's own file."""
    caches = [folder / f"{code} {name}" for name in ("cold", "fresh", "none", "shipped")]
    cold, fresh, nothing, shipped = caches
    write_bytecode()
    for path in caches:
        path.mkdir()
    runs = {"empty cache": [first_call(n, code, cold, nothing)]}
    runs["in later processes"] = [first_call(n, code, cold, nothing) for _ in range(repeats)]
    for file in cold.glob("*.json"):
        (shipped / file.name).write_bytes(file.read_bytes())
    runs["with a shipped file"] = [first_call(n, code, fresh, shipped)]
    runs["the same, later"] = [first_call(n, code, fresh, shipped) for _ in range(repeats)]
    report(n, code, runs)
    return dict(runs) | cold_starts(n, code, repeats, folder)


def cold_starts(n: int, code: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Time first calls where the driver has compiled nothing: with what ships, and by a search."""
    nothing = folder / f"{code} nothing shipped"
    write_bytecode()
    runs = {
        f"nothing compiled, {what}": [
            first_call(n, code, folder / name, files, folder / f"{name} compiled")
            for name in (f"{code} {what} {i}" for i in range(repeats))
        ]
        for what, files in (("shipped", ""), ("search", nothing))
    }
    report(n, code, runs)
    return dict(runs)


def report(n: int, code: str, runs: dict[str, list[dict[str, float]]]) -> None:
    """Print the medians."""
    print(f"\nfirst {code}gemm at n = {n}, seconds (medians)")
    print(f"{'':26}{'import':>9}{'first call':>12}{'together':>10}{'searched':>10}")
    for title, some in runs.items():
        m = {name: statistics.median(run[name] for run in some) for name in some[0]}
        print(
            f"{title:26}{m['import']:9.3f}{m['first call']:12.3f}{m['together']:10.3f}"
            f"{'yes' if m['searched'] else 'no':>10}",
            flush=True,
        )
