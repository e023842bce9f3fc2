"""From NumPy array to NumPy array: products that cross a bus, and memory that is kept.

    python bench/bench_host.py --parts memory              # 10 000 calls of mixed sizes
    python bench/bench_host.py --parts bus --json out.json # a GPU: PyTorch, NumPy, and the bus

Blocks of calls alternate, and those in which other processes ran are measured again.  Each result
is compared with PyTorch's before it is timed.  How calls compare with SciPy's: see bench_gemm.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alternating
import environment
import numpy as np
from alternating import Way

import clgemm
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from clgemm.runtime.device import Device

BUS_SIZES = (2048, 4096, 8192, 16384)
BURST_SECONDS = 0.1  # of calls in a row, where memory that was idle has to be found again
NUMPY_SECONDS = 0.02  # the same beside NumPy, which is far slower where operands are large ...
NUMPY_IN_TURN = 4096  # ... and has one turn beyond this size
CALLS, WARM = 10_000, 100
PINNED_BYTES = 1 << 28


def pinned_rates(torch: Any) -> tuple[float, float]:
    """Measure the bus: bytes a second to the GPU and from it, by pinned memory."""
    here = torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(PINNED_BYTES, dtype=torch.uint8, device="cuda")
    rates = []
    for target, source in ((there, here), (here, there)):
        times = []
        for _ in range(6):
            torch.cuda.synchronize()
            start = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        rates.append(PINNED_BYTES / min(times))
    return rates[0], rates[1]


def over_the_bus(sizes: list[int], codes: str, rounds: int) -> dict[str, Any]:
    """Compare fresh products with PyTorch's and NumPy's, in turn with each, over a bus."""
    torch: Any = import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    up, down = pinned_rates(torch)
    print(f"\npinned memory: {up / 1e9:.1f} GB/s to the GPU, {down / 1e9:.1f} GB/s back")
    titles = ("PyTorch ms", "NumPy ms", "clgemm ms", "predicted", "PyTorch/", "NumPy/", "/bus")
    print(f"{'':10}" + "".join(f"{title:>12}" for title in titles))
    rows = []
    for code, n in itertools.product(codes, sizes):
        dtype, rng = PRECISIONS[code].dtype, np.random.default_rng(1)
        a, b = ((rng.random((n, n)) - 0.5).astype(dtype) for _ in "ab")

        def by_torch(a: Any = a, b: Any = b) -> Any:
            return (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu()

        error = float(np.max(np.abs(clgemm.matmul(a, b) - by_torch().numpy())))
        if not error <= 2 * n**1.5 * PRECISIONS[code].eps:
            raise SystemExit(f"{code}gemm {n}: WRONG, differs by {error:.3g}")
        told = clgemm.explain(a, b)
        predicted = told.host_seconds if told.route == "host" else told.device_seconds
        ours, numpy = Way(partial(clgemm.matmul, a, b)), Way(partial(np.matmul, a, b))
        ways = {"PyTorch": Way(by_torch), "clgemm": ours}
        found = alternating.throughput(ways, rounds, quiet=True, together=BURST_SECONDS)
        ways, turns = {"NumPy": numpy, "clgemm": ours}, rounds if n <= NUMPY_IN_TURN else 1
        beside = alternating.throughput(ways, turns, quiet=True, together=NUMPY_SECONDS)
        bus = a.nbytes * (2 / up + 1 / down)
        rows.append({"precision": code, "n": n, "seconds": found, "beside_numpy": beside,
                     "bus_seconds": bus, "route": told.route, "predicted": predicted,
                     "error": error})  # fmt: skip
        seconds = found["PyTorch"], beside["NumPy"], found["clgemm"], predicted or math.nan
        cells = [1e3 * x for x in seconds]
        cells += [found["PyTorch"] / found["clgemm"], beside["NumPy"] / beside["clgemm"]]
        cells += [found["clgemm"] / bus]
        text = "".join(f"{x:12.2f}" for x in cells)
        print(f"{code}gemm{n:5}{text}  {told.route}", flush=True)
    return {"bytes_per_second": {"up": up, "down": down}, "rows": rows}


def resident_bytes() -> int:
    """Return the memory that this process has in use, by the operating system's account."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_kept(device: Device, calls: int, kinds: int) -> dict[str, Any]:
    """Make calls of mixed sizes and watch memory, the process' and the device's pool."""
    rng = np.random.default_rng(7)
    shapes = [tuple(int(x) for x in rng.integers(1, 400, 3)) for _ in range(kinds)]
    marks = []
    for call in range(calls):
        m, n, k = shapes[call % kinds]
        code = "sdcz"[call // kinds % 4] if kinds > WARM else "sdcz"[call % 4]
        dtype = PRECISIONS[code].dtype
        a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
        c = clgemm.matmul(a, b) if call % 2 else getattr(clgemm, f"{code}gemm")(1.0, a, b)
        if c[-1, -1] != k:
            raise SystemExit(f"{code}gemm {m} x {n} x {k}: WRONG")
        if call + 1 in {WARM, calls // 2, calls}:
            pool = device.memory.used + device.memory.idle
            marks.append({"calls": call + 1, "resident": resident_bytes(), "pool": pool})
    ends = marks[0], marks[-1]  # the same one of a single call
    first, last = ({x: mark[x] / 1e6 for x in ("resident", "pool")} for mark in ends)
    print(
        f"{calls} calls of {kinds * (4 if kinds <= WARM else 1)} kinds, "
        f"MB after {marks[0]['calls']} and at the end: "
        f"resident {first['resident']:.1f} {last['resident'] - first['resident']:+.1f}, "
        f"device pool {first['pool']:.1f} {last['pool'] - first['pool']:+.1f}",
        flush=True,
    )
    return {"kinds": kinds, "marks": marks}


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", default=["memory"],
                        choices=("bus", "memory"))  # fmt: skip
    parser.add_argument("--sizes", type=int, nargs="+", default=list(BUS_SIZES))
    parser.add_argument("--precisions", default="s", help="letters of sdcz")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--json", type=Path, help="written, or added to if it is there")
    return parser.parse_args()


def main() -> int:
    """Measure what was asked for."""
    arguments = parsed()
    environment.restart_clean()
    device = environment.device_in_use()
    facts = environment.facts(device)
    print(environment.text(facts))
    found: dict[str, Any] = {}
    if "bus" in arguments.parts:
        found["bus"] = over_the_bus(arguments.sizes, arguments.precisions, arguments.rounds)
    if "memory" in arguments.parts:
        # As many kinds as the first hundred calls see, then a new one with every call.
        found["memory"] = [
            memory_kept(device, arguments.calls, kinds) for kinds in (25, arguments.calls)
        ]
    if arguments.json:
        before = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
        environment.store(arguments.json, before | facts | found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
