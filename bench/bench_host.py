"""From NumPy array to NumPy array: clgemm beside SciPy, NumPy and PyTorch; memory that is kept.

    python bench/bench_host.py                             # SciPy, n = 2 ... 4096, four precisions
    python bench/bench_host.py --parts small memory        # up to 1024; 10 000 calls of mixed sizes
    python bench/bench_host.py --parts bus --json out.json # a GPU: PyTorch, NumPy, and the bus

A line of the first table holds if clgemm takes at most 1.05 times as long as SciPy and 2 us more.
Blocks of calls alternate, and those in which other processes ran are measured again.  Each result
is compared with SciPy's before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_gemm import Case, Work

import clgemm
from clgemm.cli.main import versions
from clgemm.host import identity
from clgemm.problem import PRECISIONS
from clgemm.runtime import processor, registry
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.runtime.device import Device

SIZES = (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 2048, 4096)
SMALL = 1024
BUS_SIZES = (2048, 4096, 8192, 16384)
BLOCK_SECONDS = 0.02
LONG_SECONDS = 1.0
BURST_SECONDS = 0.1  # of calls in a row, where memory that was idle has to be found again
SLOWER, MICROSECONDS = 1.05, 2.0  # what a call may take: so many times SciPy's time, and so much
WIDEST = {"SkylakeX", "Cooperlake", "Sapphirerapids", "Zen5"}
"""OpenBLAS' names for AVX-512 kernels."""
CALLS, WARM = 10_000, 100
PINNED_BYTES = 1 << 28


def block(run: Callable[[], object], count: int) -> float:
    """Return the seconds of one of `count` runs; other processes hardly run meanwhile."""
    found = float("inf")
    for _ in range(8):
        neighbours, start = timing.Neighbours(), time.perf_counter()
        for _ in range(count):
            run()
        seconds = (time.perf_counter() - start) / count
        if neighbours.share() < timing.FOREIGN_SHARE:
            return seconds
        found = min(found, seconds)
        time.sleep(timing.PAUSE)
    return found


def alternating(
    runs: dict[str, Callable[[], object]], rounds: int, *, together: float = 0.0
) -> dict[str, float]:
    """Time ways to do the same in turn; return the medians of the blocks.

    Blocks of each way are of equal length, or if `together` is given of equally many calls, as many
    as the fastest makes in so many seconds.
    """
    counts = {}
    for name, run in runs.items():
        seconds = BLOCK_SECONDS
        for _ in range(2):
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            if seconds > LONG_SECONDS:
                break  # the first one is as good as the second
        counts[name] = max(1, int((together or BLOCK_SECONDS) / max(seconds, 1e-7)))
    if together:
        counts = dict.fromkeys(runs, max(counts.values()))
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            timing.settle()
            times[name].append(block(run, counts[name]))
    return {name: statistics.median(t) for name, t in times.items()}


def beside_scipy(codes: str, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Compare squares with SciPy and print a line for each."""
    rows = []
    print(f"\n{'':10}{'SciPy us':>12}{'clgemm us':>12}{'SciPy/clgemm':>14}  route    holds")
    for code in codes:
        for n in sizes:
            case = Case(code, n, n, n)
            work = Work(case)
            if not work.error() <= 1:
                raise SystemExit(f"{case.label}: WRONG")
            x = np.empty((n, n), PRECISIONS[code].dtype, "F")
            told = clgemm.explain(x, x, x)
            ways: dict[str, Callable[[], object]] = {"SciPy": work.scipy, "clgemm": work.clgemm}
            found = alternating(ways, rounds if n <= SMALL else 3)
            ours, theirs = 1e6 * found["clgemm"], 1e6 * found["SciPy"]
            holds = ours <= SLOWER * theirs + MICROSECONDS
            rows.append({
                "case": asdict(case), "us": {"SciPy": theirs, "clgemm": ours},
                "ratio": theirs / ours, "route": told.route, "holds": holds,
            })  # fmt: skip
            print(
                f"{code}gemm{n:5}{theirs:12.2f}{ours:12.2f}{theirs / ours:14.2f}  {told.route:8}"
                f" {'yes' if holds else 'NO'}",
                flush=True,
            )
    held = sum(bool(row["holds"]) for row in rows)
    print(f"{held} of {len(rows)} within {SLOWER} times SciPy + {MICROSECONDS:g} us")
    return rows


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


def over_the_bus(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Compare sgemm with PyTorch and NumPy where operands cross a bus."""
    torch: Any = import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    up, down = pinned_rates(torch)
    print(f"\npinned memory: {up / 1e9:.1f} GB/s to the GPU, {down / 1e9:.1f} GB/s back")
    titles = ("PyTorch ms", "NumPy ms", "clgemm ms", "PyTorch/", "NumPy/", "/bus")
    print(f"{'':10}" + "".join(f"{title:>12}" for title in titles))
    rows = []
    for n in sizes:
        rng = np.random.default_rng(1)
        a, b = (rng.random((n, n), np.float32) - np.float32(0.5) for _ in "ab")

        def by_torch(a: Any = a, b: Any = b) -> Any:
            return (torch.from_numpy(a).cuda() @ torch.from_numpy(b).cuda()).cpu()

        error = float(np.max(np.abs(clgemm.matmul(a, b) - by_torch().numpy())))
        if not error <= 2 * n**1.5 * PRECISIONS["s"].eps:
            raise SystemExit(f"sgemm {n}: WRONG, differs by {error:.3g}")
        runs: dict[str, Callable[[], object]] = {
            "PyTorch": by_torch,
            "clgemm": lambda a=a, b=b: clgemm.matmul(a, b),  # type: ignore[misc]
        }
        found = alternating(runs, rounds, together=BURST_SECONDS)
        found |= alternating({"NumPy": lambda a=a, b=b: a @ b}, 1)  # type: ignore[misc]
        bus = a.nbytes * (2 / up + 1 / down)
        ours = found["clgemm"]
        rows.append({"n": n, "seconds": found, "bus_seconds": bus, "error": error})
        cells = [1e3 * found[name] for name in ("PyTorch", "NumPy", "clgemm")]
        cells += [found["PyTorch"] / ours, found["NumPy"] / ours, ours / bus]
        print(f"sgemm{n:5}" + "".join(f"{x:12.2f}" for x in cells), flush=True)
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
    first, last = ({x: mark[x] / 1e6 for x in ("resident", "pool")} for mark in marks[::2])
    print(
        f"{calls} calls of {kinds * (4 if kinds <= WARM else 1)} kinds, MB after {WARM} and at the "
        f"end: resident {first['resident']:.1f} {last['resident'] - first['resident']:+.1f}, "
        f"device pool {first['pool']:.1f} {last['pool'] - first['pool']:+.1f}",
        flush=True,
    )
    return {"kinds": kinds, "marks": marks}


def head(device: Device) -> dict[str, Any]:
    """Tell where and with what this was measured."""
    running = identity.openblas()
    kernels = "its BLAS does not tell its kernels"
    if running is not None:
        widest = ": already the widest there are, FMA by FMA" if running.core in WIDEST else ""
        kernels = f"{running.core} kernels, {running.threads} threads{widest}"
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device.traits.describe(),
        "driver": device.traits.driver_version,
        "processor": f"{processor.identity()}, {identity.usable_cores()} cores",
        "SciPy runs": kernels,
        "versions": versions(),
    }


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", nargs="+", default=["scipy"],
                        choices=("scipy", "small", "bus", "memory"))  # fmt: skip
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--json", type=Path, help="written, or added to if it is there")
    return parser.parse_args()


def main() -> int:
    """Measure what was asked for."""
    arguments = parsed()
    device = registry.current()
    if device is None:
        raise SystemExit("no OpenCL device can be used here")
    facts = head(device)
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()))
    found: dict[str, Any] = {}
    if {"scipy", "small"} & set(arguments.parts):
        most = max(SIZES) if "scipy" in arguments.parts else SMALL
        sizes = arguments.sizes or [n for n in SIZES if n <= most]
        found["scipy"] = beside_scipy(arguments.precisions, sizes, arguments.rounds)
    if "bus" in arguments.parts:
        found["bus"] = over_the_bus(arguments.sizes or list(BUS_SIZES), arguments.rounds)
    if "memory" in arguments.parts:
        # As many kinds as the first hundred calls see, then a new one with every call.
        found["memory"] = [
            memory_kept(device, arguments.calls, kinds) for kinds in (25, arguments.calls)
        ]
    if arguments.json:
        before = json.loads(arguments.json.read_text("utf-8")) if arguments.json.exists() else {}
        if "scipy" in before and "scipy" in found:
            found["scipy"] = before["scipy"] + found["scipy"]
        arguments.json.write_text(json.dumps(before | facts | found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
