"""clgemm beside SciPy, NumPy arrays in and NumPy arrays out: one table, and the same as JSON.

    python bench/bench_gemm.py                            # squares in four precisions
    python bench/bench_gemm.py --set small                # n = 2 ... 192
    python bench/bench_gemm.py --set all --json out.json  # with transposes, skinny shapes, stacks
    python bench/bench_gemm.py --set gram                 # a.T @ a beside NumPy's, and a.T @ b
    python bench/bench_gemm.py --set layer                # x @ w.T, row-major, with few rows of x
    python bench/bench_gemm.py --core-types SkylakeX Zen  # SciPy also with forced OpenBLAS kernels

SciPy runs as it does without variables such as OPENBLAS_CORETYPE: where one is set, the script
starts itself again without it.  OpenBLAS picks its kernels when it is loaded, so each forced core
type runs in a process of its own and is asked to measure in turn with the others.

Every result is compared with SciPy's before it is timed.  Times are medians over alternating blocks
of one run; blocks in which other processes took part of the machine are measured again, and the
table says how many were.  A line holds if clgemm takes at most 1.05 times as long as SciPy and 2 us
more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environment
import numpy as np
import scipy.linalg.blas

import clgemm
from clgemm.dispatch import engines
from clgemm.problem import PRECISIONS
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

PEERS_SECONDS = 0.2  # that threads of SciPy in another process spin on for
SQUARES = (256, 512, 1024, 2048, 4096)
SMALL = (2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192)
MOST_RUNS = 100_000  # of a block, which small products fill, too
SLOWER, MICROSECONDS = 1.05, 2.0  # what a call may take: so many times SciPy's time, and so much
GRAM = ((2000, 100), (300, 20_000))  # n and k beside the squares
LAYER = (3351, 2909)  # of weights; their product with x is that of their transpose, column-major
ROWS = (8, 16, 32, 64, 100, 128)  # of x
SKINNY = ((37, 4096, 513), (4096, 37, 513), (4096, 4096, 32), (64, 64, 65536))


@dataclass(frozen=True)
class Case:
    """One product to time."""

    code: str
    m: int
    n: int
    k: int
    ops: str = "NN"
    order: str = "F"
    batch: int = 1
    beta: float = 0.0
    is_gram: bool = False
    """Whether it is ``a.T @ a``."""

    @property
    def flops(self) -> int:
        """Operations of one run."""
        each = PRECISIONS[self.code].multiplications
        return 2 * self.m * self.n * self.k * self.batch * each

    @property
    def label(self) -> str:
        """Name in the table."""
        size = str(self.n) if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"
        stack = f" stack of {self.batch}" if self.batch > 1 else ""
        beta = f" beta {self.beta:g}, overwrite_c" if self.beta else ""
        gram = " Gram" if self.is_gram else ""
        return f"{self.code} {self.ops} {self.order} {size}{stack}{beta}{gram}"


def cases(which: str, codes: str, sizes: list[int]) -> list[Case]:
    """List the cases of a set."""
    found: list[Case] = []
    for code in codes:
        ops = "NTC" if PRECISIONS[code].is_complex else "NT"
        if which in {"small", "all"}:
            found += [Case(code, n, n, n) for n in SMALL]
        if which in {"squares", "all"}:
            found += [Case(code, n, n, n) for n in sizes]
        if which in {"ops", "all"}:
            found += [
                Case(code, n, n, n, x + y, order)
                for n in (1000, 1021, 2047)
                for order in "FC"
                for x in ops
                for y in ops
            ]
        if which in {"beta", "all"}:
            found.append(Case(code, 2048, 2048, 2048, beta=0.5))
        if which in {"skinny", "all"}:
            found += [Case(code, *shape) for shape in SKINNY]
            found.append(Case(code, 96, 96, 96, order="C", batch=200))
        if which in {"layer", "all"}:
            found += [Case(code, LAYER[0], rows, LAYER[1], "TN") for rows in ROWS]
        if which == "gram":
            shapes = [*((n, n) for n in sizes), *GRAM]
            found += [Case(code, n, n, k, "TN", "C", is_gram=True) for n, k in shapes]
    return found


class Work:
    """The operands of a case, and the ways to multiply them."""

    def __init__(self, case: Case) -> None:
        self._case = case
        rng = np.random.default_rng(1)
        a = self._matrix(rng, case.m, case.k, case.ops[0])
        b = self._matrix(rng, case.k, case.n, case.ops[1])
        self._a, self._b = a, a if case.is_gram else b
        self._other = b
        self._flags = {"trans_a": "NTC".index(case.ops[0]), "trans_b": "NTC".index(case.ops[1])}
        self._c = np.zeros((case.m, case.n), PRECISIONS[case.code].dtype, order="F")

    def _matrix(self, rng: np.random.Generator, rows: int, columns: int, op: str) -> NDArray[Any]:
        case, precision = self._case, PRECISIONS[self._case.code]
        shape = (rows, columns) if op == "N" else (columns, rows)
        if case.batch > 1:
            shape = (case.batch, *shape)  # type: ignore[assignment]
        x = rng.uniform(-1, 1, shape)
        if precision.is_complex:
            x = x + 1j * rng.uniform(-1, 1, shape)
        return np.asarray(x, precision.dtype, order="C" if case.order == "C" else "F")

    def scipy(self) -> NDArray[Any]:
        """Multiply with SciPy, a stack and a Gram product with NumPy (the same BLAS)."""
        if self._case.batch > 1:
            return np.asarray(np.matmul(self._a, self._b))
        if self._case.is_gram:
            return np.asarray(np.matmul(self._a.T, self._a))
        return self._gemm(getattr(scipy.linalg.blas, self._case.code + "gemm"))

    def route(self) -> str:
        """Say where clgemm computes it."""
        beta = self._case.beta
        c = None if self._case.batch > 1 else self._c
        return clgemm.explain(self._a, self._b, c, beta=beta, **self._flags).route

    def clgemm(self) -> NDArray[Any]:
        """Multiply with clgemm."""
        if self._case.batch > 1:
            return np.asarray(clgemm.matmul(self._a, self._b))
        if self._case.is_gram:
            return np.asarray(clgemm.matmul(self._a.T, self._a))
        return self._gemm(getattr(clgemm, self._case.code + "gemm"))

    def general(self) -> NDArray[Any]:
        """Multiply what is no Gram product, but as large as this one, with clgemm."""
        return np.asarray(clgemm.matmul(self._a.T, self._other))

    def ways(self) -> dict[str, Callable[[], NDArray[Any]]]:
        """Name what is timed."""
        found = {"clgemm": self.clgemm, "SciPy": self.scipy}
        return found | ({"general": self.general} if self._case.is_gram else {})

    def _gemm(self, routine: Any) -> NDArray[Any]:
        more = {"beta": self._case.beta, "c": self._c, "overwrite_c": 1} if self._case.beta else {}
        return np.asarray(routine(1.0, self._a, self._b, **self._flags, **more))

    def error(self) -> float:
        """Compare both; 1 is 2 k^1.5 eps max|A| max|B|, which errors of random signs keep."""
        self._c[...] = 0
        ours = self.clgemm().copy()
        self._c[...] = 0
        theirs = self.scipy().copy()
        eps = PRECISIONS[self._case.code].eps
        largest = float(np.max(np.abs(self._a)) * np.max(np.abs(self._b)))
        return float(np.max(np.abs(ours - theirs)) / (2 * self._case.k**1.5 * eps * largest))


class Peer:
    """SciPy in another process, with a forced OpenBLAS core type."""

    def __init__(self, core_type: str) -> None:
        self.name = f"SciPy {core_type}"
        self._child = subprocess.Popen(
            [sys.executable, __file__, "--peer"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OPENBLAS_CORETYPE": core_type},
        )  # fmt: skip

    def measure(self, case: Case) -> timing.Timing:
        """Let the other process measure one block."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(asdict(case)) + "\n")
        self._child.stdin.flush()
        return timing.Timing(*json.loads(self._child.stdout.readline()))

    def stop(self) -> None:
        """End the other process."""
        self._child.communicate()


def answer() -> None:
    """Be the other process: measure the cases that come on standard input."""
    last: tuple[Case, Work] | None = None
    for line in sys.stdin:
        case = Case(**json.loads(line))
        if last is None or last[0] != case:
            last = case, Work(case)
        print(json.dumps(measure(last[1].scipy)), flush=True)


def measure(run: Callable[[], object]) -> timing.Timing:
    """Time one block."""
    return timing.quiet_measure(run, most=MOST_RUNS)


def run_case(case: Case, peers: list[Peer], rounds: int) -> dict[str, Any]:
    """Check and time one case."""
    work = Work(case)
    error = work.error()
    if not error <= 1:
        raise SystemExit(f"{case.label}: WRONG, {error:.3g} times the error bound")
    blocks: dict[str, list[timing.Timing]] = {}
    for _ in range(rounds):
        for name, run in work.ways().items():
            timing.settle()
            time.sleep(PEERS_SECONDS if peers else 0)
            blocks.setdefault(name, []).append(measure(run))
        for peer in peers:
            timing.settle()
            time.sleep(PEERS_SECONDS if peers else 0)
            blocks.setdefault(peer.name, []).append(peer.measure(case))
    seconds = {name: statistics.median(t.median for t in ts) for name, ts in blocks.items()}
    rejected = sum(t.rejected for ts in blocks.values() for t in ts)
    most = SLOWER * seconds["SciPy"] + MICROSECONDS * 1e-6
    return {
        "case": asdict(case),
        "label": case.label,
        "error_over_bound": error,
        "seconds": seconds,
        "gflops": {name: case.flops / s / 1e9 for name, s in seconds.items()},
        "ratio": {n: s / seconds["clgemm"] for n, s in seconds.items() if n != "clgemm"},
        "route": work.route(),
        "holds": seconds["clgemm"] <= most,
        "rejected_blocks": rejected,
        "noisy": any(t.noisy for ts in blocks.values() for t in ts),
    }


def print_row(row: dict[str, Any]) -> None:
    """Print one line of the table."""
    rates = "".join(f"{row['gflops'][name]:12.1f}" for name in row["gflops"])
    ratios = "".join(f"{ratio:9.2f}" for ratio in row["ratio"].values())
    noise = f"  {row['rejected_blocks']} rejected" if row["rejected_blocks"] else ""
    micro = "".join(f"{1e6 * row['seconds'][name]:12.2f}" for name in ("clgemm", "SciPy"))
    verdict = f"  {row['route']:7}{'holds' if row['holds'] else 'SLOW'}{noise}"
    print(
        f"{row['label']:34}{rates} |{ratios} |{micro}{verdict}{' NOISY' if row['noisy'] else ''}",
        flush=True,
    )


def main() -> int:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    sets = ("squares", "small", "ops", "beta", "skinny", "gram", "layer", "all")
    parser.add_argument("--set", default="squares", dest="which", choices=sets)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SQUARES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core-types", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        answer()
        return 0
    environment.restart_clean()
    device = environment.device_in_use()
    parameters = engines.of(device).parameters
    head = environment.facts(device)
    head["parameters"] = {c: parameters.of(c).origin for c in arguments.precisions}
    print(environment.text(head))
    peers = [Peer(name) for name in arguments.core_types]
    general = ["general"] if arguments.which == "gram" else []
    names = ["clgemm", "SciPy", *general, *(p.name for p in peers)]
    titles = "".join(f"{name[-11:]:>12}" for name in names)
    print(f"{'GFLOP/s, ratio to each SciPy, us':34}{titles}")
    rows = []
    for case in cases(arguments.which, arguments.precisions, arguments.sizes):
        rows.append(run_case(case, peers, arguments.rounds))
        print_row(rows[-1])
    for peer in peers:
        peer.stop()
    held = sum(row["holds"] for row in rows)
    print(f"{held} of {len(rows)} within {SLOWER} times SciPy + {MICROSECONDS:g} us")
    environment.store(arguments.json, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
