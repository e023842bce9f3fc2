"""What a small call costs, in microseconds, through the public functions.

    python bench/bench_overhead.py [--n 8] [--precisions sdcz] [--json out.json]

NumPy's arrays: SciPy and NumPy themselves, clgemm as it routes such a call (to the host's BLAS) and
with CLGEMM_ROUTE=device.  Arrays on the device: with `out`, without, and with waiting for the
result; where nobody waits, the time is the host's alone.  Medians of many calls in turn, less what
timing one takes.  Each result is checked before it is timed.

NumPy's arrays in turn with others: each call after a product of 200 x 200 of NumPy's, which is not
timed and leaves nothing else in a core's caches, as a program's other work does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alternating
import environment
import numpy as np
import scipy.linalg.blas
from alternating import Way

import clgemm
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

ROUTE = "CLGEMM_ROUTE"
ROUNDS = 5
NEIGHBOUR = 200  # rows and columns of a product in between
TURNS = 500  # of each call in a round


def operands(code: str, n: int) -> list[NDArray[Any]]:
    """Make two column-major matrices of small whole numbers, whose product has no error."""
    rng = np.random.default_rng(3)
    dtype = PRECISIONS[code].dtype
    return [rng.integers(-3, 4, (n, n)).astype(dtype, order="F") for _ in "ab"]


def numpy_calls(code: str, n: int) -> dict[str, Callable[[], Any]]:
    """Give calls of NumPy's arrays by name."""
    a, b = operands(code, n)
    out = np.empty((n, n), a.dtype)
    theirs, ours = getattr(scipy.linalg.blas, f"{code}gemm"), getattr(clgemm, f"{code}gemm")
    return {
        f"scipy.linalg.blas.{code}gemm(1, a, b)": partial(theirs, 1.0, a, b),
        f"clgemm.{code}gemm(1, a, b)": partial(ours, 1.0, a, b),
        "numpy.matmul(a, b)": partial(np.matmul, a, b),
        "clgemm.matmul(a, b)": partial(clgemm.matmul, a, b),
        "numpy.matmul(a, b, out=c)": partial(np.matmul, a, b, out=out),
        "clgemm.matmul(a, b, out=c)": partial(clgemm.matmul, a, b, out=out),
    }


def device_calls(code: str, n: int) -> tuple[dict[str, Callable[[], Any]], Callable[[], object]]:
    """Give calls of Arrays by name, and what waits for them."""
    x, y = map(clgemm.to_device, operands(code, n))
    z = clgemm.to_device(np.zeros((n, n), x.dtype))
    gemm, finish = getattr(clgemm, f"{code}gemm"), x.queue.finish
    into_out, fresh = partial(clgemm.matmul, x, y, out=z), partial(clgemm.matmul, x, y)

    def waited(run: Callable[[], Any]) -> Any:
        result = run()
        finish()
        return result

    calls: dict[str, Callable[[], Any]] = {
        "clgemm.matmul(x, y, out=z)": into_out,
        "clgemm.matmul(x, y)": fresh,
        f"clgemm.{code}gemm(1, x, y)": partial(gemm, 1.0, x, y),
        "clgemm.matmul(x, y, out=z), waited for": partial(waited, into_out),
        "clgemm.matmul(x, y), waited for": partial(waited, fresh),
    }
    return calls, finish


def timed(code: str, n: int, rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each group of calls with the microseconds of each."""
    a, b = operands(code, n)
    want = a @ b
    before = os.environ.pop(ROUTE, None)
    of_numpy = numpy_calls(code, n)
    try:
        yield "NumPy's arrays", _timed(of_numpy, alternating.nothing, want, rounds)
        yield "NumPy's, in turn with others", _in_turn(code, of_numpy, rounds)
        os.environ[ROUTE] = "device"
        sent = {name: run for name, run in of_numpy.items() if name.startswith("clgemm")}
        yield "NumPy's, sent to the device", _timed(sent, alternating.nothing, want, rounds)
        yield "Arrays on the device", _timed(*device_calls(code, n), want, rounds)
    finally:
        os.environ.pop(ROUTE, None)
        if before is not None:
            os.environ[ROUTE] = before


def _in_turn(code: str, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Time calls of whose code and data nothing is left in the nearest caches."""
    x, clock, rng = operands(code, NEIGHBOUR)[0], time.perf_counter, np.random.default_rng(3)
    a, b = calls["numpy.matmul(a, b)"].args  # type: ignore[attr-defined]  # of a partial
    python = partial(getattr(clgemm.matmul, "__func__", clgemm.matmul), a, b)
    everyone: dict[str, Callable[[], Any]] = {
        **calls, "clgemm.matmul(a, b), nothing compiled": python, "nothing": alternating.nothing
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in everyone}
    for _ in range(TURNS * rounds):
        for name in rng.permutation(list(everyone)):
            np.matmul(x, x)
            start = clock()
            everyone[name]()
            times[name].append(clock() - start)
    floor = statistics.median(times.pop("nothing"))
    return {name: 1e6 * (statistics.median(found) - floor) for name, found in times.items()}


def _timed(
    calls: dict[str, Callable[[], Any]], finish: Callable[[], object], want: NDArray[Any],
    rounds: int,
) -> dict[str, float]:  # fmt: skip
    for name, run in calls.items():
        result = run()
        got = result if isinstance(result, np.ndarray) else result.get()
        if not np.array_equal(got, want):
            raise SystemExit(f"{name}: WRONG")
    times = alternating.call_times({x: Way(run, finish) for x, run in calls.items()}, rounds)
    return {name: 1e6 * seconds for name, seconds in times.items()}


def main() -> int:
    """Print a table a precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    environment.restart_clean()
    device, n = environment.device_in_use(), arguments.n
    head = environment.facts(device) | {"n": n}
    print(environment.text(head))
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for code in arguments.precisions:
        if not device.traits.has(PRECISIONS[code]):
            continue
        for group, times in timed(code, n, arguments.rounds):
            rows.setdefault(code, {})[group] = times
            print(f"{PRECISIONS[code].dtype}, {n} x {n}, {group}: us a call")
            for name, t in times.items():
                print(f"    {name:42}{t:9.2f}", flush=True)
        print()
    environment.store(arguments.json, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
