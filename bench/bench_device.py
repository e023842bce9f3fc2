"""clgemm beside cuBLAS, both with operands on the device: the tables of one NVIDIA GPU in one run.

    python bench/bench_device.py [--precisions sdcz] [--sets squares,fallback,fma,ops,skinny]
                                 [--sizes 512 1024 ...] [--json out.json]
    python bench/bench_device.py --family gpu_tiled --config '{"MC": 128, ...}'

Needs PyTorch or CuPy.  Each case is run by what the tuner takes and by the default (and the first
candidates) of every family that accepts it; each result is checked before it is timed, packing and
all other passes are part of the time, TF32 is off.  Medians over alternating blocks; a block is
many runs, so that launching hides behind running.  The last columns are what one run alone takes,
waited for, of cuBLAS and of the tuner's choice: there the launch path counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import device_peers
import numpy as np
import on_device

from clgemm.cli import versions
from clgemm.errors import ClgemmError
from clgemm.kernels import FAMILIES
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.runtime import session as sessions
from clgemm.tuning import tuner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from clgemm.problem import Gemm
    from clgemm.runtime.session import Session

SIZES = (512, 1024, 2048, 4096, 8192)
LARGEST = {"s": 8192, "d": 8192, "c": 4096, "z": 4096}
OPS_SIZES = (2048, 4096)
SKINNY = ((64, 8192, 8192), (8192, 64, 8192), (8192, 8192, 64), (256, 256, 65536))
SETS = ("squares", "fallback", "fma", "ops", "skinny")
CUBLAS = "cuBLAS"


@dataclass(frozen=True)
class Case:
    """One product to time."""

    kind: str
    g: Gemm

    @property
    def label(self) -> str:
        """Name in the table."""
        g = self.g
        size = str(g.n) if g.m == g.n == g.k else f"{g.m}x{g.n}x{g.k}"
        ops = f"{'NT'[g.trans_a]}{'NT'[g.trans_b]}"
        return f"{self.kind:9}{g.precision} {ops} {size}"


def cases(sets: list[str], codes: str, sizes: list[int]) -> Iterator[Case]:
    """List the cases, those that share operands after each other."""
    for kind in sets:
        for code in codes:
            squares = [n for n in sizes if n <= LARGEST[code]]
            if kind == "squares" or (kind in {"fallback", "fma"} and code == "s"):
                least = 2048 if kind == "fallback" else 0
                shapes = [((n, n, n), "NN") for n in squares if n >= least]
            elif kind == "ops" and code in "sd":
                shapes = [
                    ((n + odd,) * 3, ops)
                    for n in OPS_SIZES
                    for odd, ops in ((0, "NN"), (0, "TN"), (0, "NT"), (0, "TT"), (1, "NN"))
                ]
            elif kind == "skinny" and code in "sd":
                shapes = [(shape, "NN") for shape in SKINNY]
            else:
                shapes = []
            for shape, ops in shapes:
                yield Case(kind, on_device.problem(code, *shape, ops))


def operands(case: Case) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make flat random operands.

    Those of ``fallback`` are large entries that meet zeros with the rest at 2^-30: a row of A
    cannot be scaled so that halves hold it.
    """
    g = case.g
    a, b = on_device.normal(g.precision, g.m * g.k, 1), on_device.normal(g.precision, g.k * g.n, 2)
    if case.kind == "fallback":
        a *= np.float32(2.0**-30)
        a[: g.m] = 1  # the first column of A ...
        b[:: g.k] = 0  # ... meets the first row of B
    return a, b


def contestants(
    session: Session, g: Gemm, forced: tuple[str, Config | None], more: int
) -> dict[str, Config]:
    """Name what runs the case: the tuner's choice, then every family that accepts it."""
    precision, traits = PRECISIONS[g.precision], session.traits
    family_name, config = forced
    if config is not None:
        return {"forced": config}
    found = {} if family_name else {"tuner": tuner.config_for(session, g)}
    for family in FAMILIES:
        wanted = family.name == family_name if family_name else family.name != "direct"
        if not (wanted and family.supports(traits, precision) and family.accepts(g)):
            continue
        default = family.default(traits, precision)
        others = (c for c in family.candidates(traits, precision) if c != default)
        for i, candidate in enumerate([default, *itertools.islice(others, more)]):
            found[f"{family.name} {i or 'default'}"] = candidate
    return found


def alone(run: Callable[[], None], finish: Callable[[], None]) -> float:
    """Time single runs, each waited for."""
    return statistics.median(on_device.block(run, finish, 1) for _ in range(15))


def run_case(
    session: Session, case: Case, peer: device_peers.CuBLAS, entrants: dict[str, Config],
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """Check and time one case."""
    a, b = operands(case)
    resident = on_device.Resident(session, case.g, a, b)
    launch, finish, fetch = peer.product(case.g, a, b)
    errors, faults = {CUBLAS: resident.error_of(fetch())}, {}
    runs = {CUBLAS: (launch, finish)}
    same: dict[Config, str] = {}
    for name, config in entrants.items():
        if config in same:
            continue
        same[config] = name
        try:
            run = resident.launches(config)
            errors[name] = resident.error(run)
        except ClgemmError as fault:
            faults[name] = str(fault).splitlines()[0]
            continue
        if errors[name] <= 1:
            runs[name] = (run, resident.finish)
        else:
            faults[name] = f"WRONG: {errors[name]:.3g} times the error bound"
    seconds = on_device.side_by_side(runs, rounds)
    ours = {name: t for name, t in seconds.items() if name != CUBLAS}
    best = min(ours, key=lambda name: ours[name], default="")
    taken = same.get(entrants.get("tuner", Config.of("", {})), "")
    return {
        "label": case.label, "kind": case.kind, "problem": case.g._asdict(),
        "seconds": seconds, "error_over_bound": errors, "faults": faults,
        "configs": {name: str(config) for name, config in entrants.items()},
        "best": best, "taken": taken,
        "tflops": {name: case.g.flops / t / 1e12 for name, t in seconds.items()},
        "ratio": {name: seconds[CUBLAS] / t for name, t in ours.items()},
        "alone": {name: alone(*runs[name]) for name in {CUBLAS, best, taken} & set(runs)},
    }  # fmt: skip


def print_row(row: dict[str, Any]) -> None:
    """Print one line of the table, then what failed."""
    tflops, best, taken = row["tflops"], row["best"], row["taken"]
    text = f"{row['label']:30}{tflops[CUBLAS]:9.1f}"
    for name in (taken, best):
        text += f"{tflops[name]:9.1f}{row['ratio'][name]:6.2f}" if name in tflops else f"{'-':>15}"
    alone_us = {name: 1e6 * t for name, t in row["alone"].items()}
    if best in alone_us:
        text += f"{alone_us[CUBLAS]:9.0f}{alone_us.get(taken, alone_us[best]):7.0f}"
        text += f"  {row['configs'][best]}"
    print(text, flush=True)
    for name, fault in row["faults"].items():
        print(f"    {name}: {fault}", flush=True)


def head_of(session: Session, peer: device_peers.CuBLAS) -> dict[str, Any]:
    """Say what was measured, where and when."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": session.traits.describe(),
        "driver": session.traits.driver_version,
        "versions": versions(),
        "peer": peer.name,
        "CLBlast": device_peers.clblast(),
        "limits": device_peers.limits(session),
    }


def loaded(session: Session, peer: device_peers.CuBLAS) -> dict[str, Any]:
    """Look at the card while cuBLAS, and what the tuner takes, keep it busy."""
    g = on_device.problem("s", 4096, 4096, 4096)
    case = Case("squares", g)
    a, b = operands(case)
    resident = on_device.Resident(session, g, a, b)
    launch, finish, _ = peer.product(g, a, b)
    return {
        CUBLAS: device_peers.under_load(launch, finish),
        "clgemm": device_peers.under_load(
            resident.launches(tuner.config_for(session, g)), resident.finish
        ),
    }


def forced_config(arguments: argparse.Namespace) -> tuple[str, Config | None]:
    """Read --family and --config."""
    if arguments.config:
        params: dict[str, int] = json.loads(arguments.config)
        return arguments.family, Config.of(arguments.family, params)
    return arguments.family or "", None


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--sets", default=",".join(SETS), help="of " + ", ".join(SETS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=2, help="of each family, but the default")
    parser.add_argument("--family")
    parser.add_argument("--config", help="parameters as a JSON object; needs --family")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if set(arguments.sets.split(",")) - set(SETS):
        parser.error(f"--sets takes some of {', '.join(SETS)}")
    if arguments.config and not arguments.family:
        parser.error("--config needs --family")
    return arguments


def main() -> int:
    """Run the cases and print the table."""
    arguments = parsed()
    peer, session = device_peers.CuBLAS.find(), sessions.current()
    if session is None or session.traits.compute_capability is None:
        raise SystemExit("the device in use is no NVIDIA GPU; set CLGEMM_DEVICE=nvidia")
    head = head_of(session, peer)
    lines = {k: v for k, v in head.items() if k != "limits"} | head["limits"]
    print("\n".join(f"{k}: {v:.1f}" if isinstance(v, float) else f"{k}: {v}"
                    for k, v in lines.items()))  # fmt: skip
    columns = f"{'cuBLAS':>9}{'tuner':>9}{'ratio':>6}{'best':>9}{'ratio':>6}{'alone us':>16}"
    print(f"\n{'TFLOP/s':30}{columns}")
    rows, start, way = [], time.perf_counter(), os.environ.get("CLGEMM_FP32", "auto")
    for case in cases(arguments.sets.split(","), arguments.precisions, arguments.sizes):
        wanted = "fma" if case.kind == "fma" else way
        if os.environ.get("CLGEMM_FP32", "auto") != wanted:
            os.environ["CLGEMM_FP32"] = wanted
            session.tuned.clear()  # it decides what may compete
        entrants = contestants(session, case.g, forced_config(arguments), arguments.candidates)
        rows.append(run_case(session, case, peer, entrants, arguments.rounds))
        print_row(rows[-1])
    os.environ["CLGEMM_FP32"] = way
    session.tuned.clear()
    head["under load"] = loaded(session, peer)
    print(f"\nunder load: {head['under load']}\n{time.perf_counter() - start:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(head | {"rows": rows}, indent=1), encoding="utf-8")
    return int(any(row["faults"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
