"""What tuning costs, and how good a choice it makes in its default budget.

    python bench/bench_tuning.py [--precision s] [--parts starts repeat full] [--json out.json]

starts: the first call with an empty cache, with the same parameters shipped, and in later
processes; each in a process of its own, timed from before the import of clgemm to the result.
repeat: two searches with the default budget, one after the other, and how far their choices differ.
full: the default budget against CLGEMM_TUNE=full, on twelve products that neither of them timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import settings, transfer
from clgemm.execute import Ready, slots
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS, SIZE_CLASSES, Operand, Precision, describe
from clgemm.runtime import session as sessions
from clgemm.tuning import timing, tuner
from clgemm.tuning.record import Effort

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clgemm.kernels.family import Config
    from clgemm.runtime.session import Session

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
DTYPES = {"s": "f", "d": "d", "c": "F", "z": "D"}
# m, n, k and stack: odd, skinny, small k, long k, and stacks; none is a size that is tuned with.
SHAPES = (
    (769, 1031, 515, 1), (1537, 1201, 901, 1), (2047, 513, 1023, 1), (333, 333, 333, 1),
    (129, 700, 255, 1), (1500, 23, 1100, 1), (17, 2011, 800, 1), (1900, 1700, 31, 1),
    (901, 903, 64, 1), (200, 190, 6001, 1), (181, 177, 190, 12), (70, 68, 75, 40),
)  # fmt: skip


def first_call(n: int, code: str, cache: Path, shipped: Path) -> dict[str, float]:
    """Start Python, import clgemm, multiply once."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(n), DTYPES[code], code],
        env=os.environ
        | {
            "CLGEMM_CACHE_DIR": str(cache),
            "CLGEMM_SHIPPED": str(shipped),
            "CLGEMM_ROUTE": "device",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: float(x) for name, x in json.loads(child.stdout).items()}


def starts(n: int, code: str, repeats: int, folder: Path) -> dict[str, Any]:
    """Time first calls: nothing known, parameters shipped, and the user's own file."""
    caches = [folder / name for name in ("cold", "with a shipped file", "none", "shipped")]
    cold, fresh, nothing, shipped = caches
    for path in caches:
        path.mkdir()
    runs = {"empty cache": [first_call(n, code, cold, nothing)]}
    runs["in later processes"] = [first_call(n, code, cold, nothing) for _ in range(repeats)]
    for file in cold.glob("*.json"):
        (shipped / file.name).write_bytes(file.read_bytes())
    runs["with a shipped file"] = [first_call(n, code, fresh, shipped)]
    runs["the same, later"] = [first_call(n, code, fresh, shipped) for _ in range(repeats)]
    print(f"\nfirst {code}gemm at n = {n}, seconds (medians)")
    print(f"{'':24}{'import':>9}{'first call':>12}{'together':>10}{'searched':>10}")
    for title, some in runs.items():
        m = {name: statistics.median(run[name] for run in some) for name in some[0]}
        print(
            f"{title:24}{m['import']:9.3f}{m['first call']:12.3f}{m['together']:10.3f}"
            f"{'yes' if m['searched'] else 'no':>10}",
            flush=True,
        )
    return dict(runs)


def search(session: Session, code: str, mode: str, cache: Path) -> dict[str, Config]:
    """Search in a cache directory of its own; return the choices by size class."""
    os.environ |= {"CLGEMM_CACHE_DIR": str(cache), "CLGEMM_SHIPPED": "off"}
    factor = settings.FULL_FACTOR if mode == "full" else 1
    result = tuner.tune(session, code, Effort(mode, settings.tune_seconds() * factor))
    failed = sum(not o.ok for o in result.outcomes)
    print(f"{mode}: {len(result.outcomes)} trials in {result.seconds:.1f} s, {failed} ruled out")
    for name, outcome in result.choices.items():
        print(f"  {name:8}{outcome.config}", flush=True)
    return {name: outcome.config for name, outcome in result.choices.items()}


def product(
    session: Session, precision: Precision, shape: tuple[int, int, int, int],
    choices: Mapping[str, Config],
) -> Callable[[], None]:  # fmt: skip
    """Return what computes one product, of arrays that stay where they are."""
    m, n, k, batch = shape
    rng = np.random.default_rng(4)

    def some(rows: int, columns: int) -> Any:
        x = rng.uniform(-1, 1, (batch, columns, rows)).astype(precision.dtype).swapaxes(1, 2)
        return x if batch > 1 else x[0]

    a, b, c = some(m, k), some(k, n), some(m, n)
    problem = describe(Operand(a), Operand(b), c, reads_c=False)
    config = choices[problem.size_class]
    family = BY_NAME[config.family]
    if not family.accepts(problem):
        family = BY_NAME["direct"]
        config = family.default(session.traits, precision)
    ready = Ready(session, family.plan(session.traits, problem, config))
    place_a, place_b, place_c = (transfer.place(session, x) for x in (a, b, c))
    values = slots(problem, 1.0, 0.0, place_a, place_b, place_c)
    kept = (a, b, c)  # the device may share their memory

    def run() -> None:
        assert kept
        ready.run(values)

    return run


def against(
    session: Session, code: str, shapes: tuple[tuple[int, int, int, int], ...],
    one: Mapping[str, Config], other: Mapping[str, Config],
) -> list[float]:  # fmt: skip
    """Time two sets of choices side by side; return the rates of one as parts of the other's."""
    ratios = []
    for shape in shapes:
        runs = {
            name: product(session, PRECISIONS[code], shape, choices)
            for name, choices in (("one", one), ("other", other))
        }
        times = timing.side_by_side(runs, rounds=3)
        ratios.append(times["other"].median / times["one"].median)
        noisy = "  (noisy machine)" if any(t.noisy for t in times.values()) else ""
        flops = 2 * math.prod(shape) * (4 if PRECISIONS[code].is_complex else 1)
        rates = [flops / times[name].median / 1e9 for name in ("one", "other")]
        print(
            f"  {' x '.join(map(str, shape)):24}{rates[0]:9.1f}{rates[1]:9.1f} GFLOP/s"
            f"{100 * ratios[-1]:8.1f} %{noisy}",
            flush=True,
        )
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    print(f"  geometric mean {100 * mean:.1f} %, worst {100 * min(ratios):.1f} %", flush=True)
    return ratios


def repeat(session: Session, code: str, folder: Path) -> list[float]:
    """Search twice and compare the choices, each at a size of its class."""
    print(f"\n{code}gemm, two searches in a row: the first one's rate as a part of the second's")
    one, two = (search(session, code, "auto", folder / name) for name in ("one", "two"))
    sizes = {"large": (1024, 1024, 1024, 1), "small": (512, 512, 512, 1),
             "skinny": (37, 1024, 1024, 1)}  # fmt: skip
    return against(session, code, tuple(sizes[name] for name in SIZE_CLASSES), one, two)


def full(session: Session, code: str, folder: Path) -> list[float]:
    """Compare the default budget's choices with those of a full search."""
    print(
        f"\n{code}gemm, default budget against full: rates, and the first as a part of the second"
    )
    default = search(session, code, "auto", folder / "default")
    return against(session, code, SHAPES, default, search(session, code, "full", folder / "full"))


def main() -> int:
    """Print and store what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--precision", default="s", choices=list("sdcz"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--parts", nargs="+", default=["starts"], choices=["starts", "repeat", "full"]
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    code = arguments.precision
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        if "starts" in arguments.parts:
            found["starts"] = starts(arguments.n, code, arguments.repeats, here)
        if {"repeat", "full"} & set(arguments.parts):
            session = sessions.current()
            assert session is not None
            print(f"\ndevice: {session.traits.describe()}")
            if "repeat" in arguments.parts:
                found["repeat"] = repeat(session, code, here)
            if "full" in arguments.parts:
                found["full"] = full(session, code, here)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
