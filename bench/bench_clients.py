"""Programs of other people's packages, as they are and under ``python -m clgemm run``.

    pip install scikit-learn statsmodels pyscf numba gensim
    python -m clgemm tune
    python bench/bench_clients.py --rounds 3
    python bench/bench_clients.py --in-turn 9

Each program runs in processes of its own, in turn without and with clgemm; what both find must
agree.  The time is the fastest of a program's repeats, medians over the rounds: imports and the
device's opening are left out, which the columns `start` and `under` have.  What could be gained at
most is bounded by the share of the time that calls take which can be interposed: `calls` has how
many a process made, and `device` how many of them were computed there.  Packages that are not
installed are named and left out.

On a busy machine two processes differ by a fifth.  With `--in-turn` each program runs in one
process, without and with clgemm in turn, so often.  Times are medians, and the ratio is that of
neighbouring turns, in the median and from quartile to quartile: threads of some programs wait for
cores that others hold, and their turns differ by half.  `limit` is how many times as fast it would
be if calls that can be interposed took no time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import environment
import numpy as np
from client_programs import END, IN_TURN, PROGRAMS

TOLERANCE = 1e-3  # relative: some of these programs iterate in float32
MISSING = "ModuleNotFoundError"
MOST_SHARE = 0.99  # of a program's time that its calls may take


class Run(NamedTuple):
    """One process."""

    wall: float
    seconds: list[float]
    """Of each repeat."""
    values: list[float]
    account: dict[str, Any]


def run(name: str, *, with_clgemm: bool) -> Run | str:
    """Run a program; a text says which package it lacks."""
    with tempfile.TemporaryDirectory() as folder:
        program, account = Path(folder, "program.py"), Path(folder, "account.json")
        program.write_text(PROGRAMS[name] + END, encoding="utf-8")
        under = ["-m", "clgemm", "run", "--json", str(account)] if with_clgemm else []
        begin = time.perf_counter()
        found = subprocess.run(
            [sys.executable, *under, str(program)], capture_output=True, text=True, check=False,
            env=environment.without_blas_variables(os.environ),
        )  # fmt: skip
        wall = time.perf_counter() - begin
        if MISSING in found.stderr:
            return found.stderr.strip().splitlines()[-1]
        if found.returncode:
            raise SystemExit(f"{name} failed:\n{found.stderr}")
        said = json.loads(found.stdout)
        told = json.loads(account.read_text(encoding="utf-8")) if with_clgemm else {}
    return Run(wall, said["seconds"], said["values"], told)


def compare(name: str, rounds: int) -> dict[str, Any] | None:
    """Run a program in turn without and with clgemm, and print its row."""
    plain: list[Run] = []
    under: list[Run] = []
    for _ in range(rounds):
        for runs in (plain, under):
            found = run(name, with_clgemm=runs is under)
            if isinstance(found, str):
                print(f"{name:32} not run: {found}")
                return None
            runs.append(found)
    require_equal(name, under[0].values, plain[0].values)
    without, with_it = (
        statistics.median(min(run.seconds) for run in runs) for runs in (plain, under)
    )
    starts = [statistics.median(r.wall - sum(r.seconds) for r in runs) for runs in (plain, under)]
    rows = under[0].account["rows"]
    row = {
        "program": name, "without": without, "with": with_it, "ratio": without / with_it,
        "start without": starts[0], "start with": starts[1],
        "calls": sum(x["calls"] for x in rows), "on device": sum(x["device_calls"] for x in rows),
    }  # fmt: skip
    print(
        f"{name:32}{1e3 * without:10.1f}{1e3 * with_it:10.1f}{row['ratio']:8.2f}"
        f"{starts[0]:8.2f}{starts[1]:8.2f}{row['calls']:9}{row['on device']:9}"
    )
    return row


def require_equal(name: str, values: list[float], expected: list[float]) -> None:
    """End if results differ."""
    got, want = np.array(values), np.array(expected)
    if not np.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * abs(want).max()):
        raise SystemExit(f"{name}: results differ: {got} instead of {want}")


def compare_in_turn(name: str, turns: int) -> dict[str, Any] | None:
    """Run a program in one process, without and with clgemm in turn, and print its row."""
    program = f"TURNS = {turns}\n{PROGRAMS[name]}{IN_TURN}"
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.getenv("PYTHONPATH")])])
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=environment.without_blas_variables(os.environ) | {"PYTHONPATH": paths},
    )  # fmt: skip
    if MISSING in found.stderr:
        print(f"{name:32} not run: {found.stderr.strip().splitlines()[-1]}")
        return None
    if found.returncode:
        raise SystemExit(f"{name} failed:\n{found.stderr}")
    said: dict[str, Any] = json.loads(found.stdout)
    require_equal(name, said["values"]["with"], said["values"]["without"])
    plain, under = (np.array(said["seconds"][way]) for way in ("without", "with"))
    first, ratio, third = np.quantile(plain / under, (0.25, 0.5, 0.75))
    without, with_it = np.median(plain), np.median(under)
    limit = 1 / (1 - min(MOST_SHARE, said["hooked"] / without))
    print(
        f"{name:32}{1e3 * without:10.1f}{1e3 * with_it:10.1f}{ratio:8.2f}{first:8.2f}{third:8.2f}"
        f"{said['calls']:9}{said['device']:9}{limit:8.2f}",
        flush=True,
    )
    return {"program": name, "ratio": float(ratio), "limit": limit} | said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-turn", type=int, default=0, metavar="N", help="in one process each")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    environment.restart_clean()
    head = environment.facts(environment.device_in_use())
    print(environment.text(head))
    print(
        f"{'program':32}{'ms plain':>10}{'ms under':>10}{'ratio':>8}"
        + ("    from      to" if given.in_turn else "   start   under")
        + f"{'calls':>9}{'device':>9}"
        + ("   limit" if given.in_turn else "")
    )
    names = [name for name in PROGRAMS if given.only in name]
    if given.in_turn:
        found = [compare_in_turn(name, given.in_turn) for name in names]
    else:
        found = [compare(name, given.rounds) for name in names]
    rows = [row for row in found if row is not None]
    environment.store(given.json, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
