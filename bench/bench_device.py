"""clgemm beside cuBLAS and CLBlast, operands on the device: all tables of an NVIDIA GPU in one run.

    python bench/bench_device.py --json out.json [--clblast-tuned clblast_xgemm_*.json]
    python bench/bench_device.py --sets squares,fma --precisions s --sizes 512 1024
    python bench/bench_device.py --family gpu_tiled [--config '{"MC": 128, ...}']

Needs PyTorch or CuPy.  A case runs as a user's call would: with tuned parameters or, under
``CLGEMM_TUNE=off``, with defaults; the output says which.  Each result is checked before it is
timed, packing and all other passes are part of the time, TF32 is off.  Medians over alternating
blocks of many runs.  CLBlast is found by the linker or by $CLBLAST_LIBRARY; the JSON files that its
``clblast_tuner_xgemm`` writes show it tuned.  The last lines are the tables as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import device_cases
import device_limits
import device_peers
import device_report
import on_device
from device_cases import CLBLAST, CLGEMM, CUBLAS, SETS, SIZES, TUNED, Case

from clgemm.cli import versions
from clgemm.errors import ClgemmError
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.runtime import session as sessions
from clgemm.tuning import tuner

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_peers import CLBlast, CuBLAS, Run
    from on_device import Operands

    from clgemm.problem import Gemm
    from clgemm.runtime.session import Session

PEER_ROUNDS = 2  # of CLBlast, which is far behind
FP32 = "CLGEMM_FP32"


class Bench:
    """What all cases share.

    Parameters
    ----------
    session : Session
        The device.
    cublas, clblast : CuBLAS, CLBlast or str
        The peers; a string says why CLBlast is not there.
    forced : Callable
        The configuration of a problem.
    rounds : int
        Blocks of each way to run a case.
    """

    def __init__(
        self, session: Session, cublas: CuBLAS, clblast: CLBlast | str,
        forced: Callable[[Session, Gemm], Config], rounds: int,
    ) -> None:  # fmt: skip
        self.session, self.cublas, self.clblast = session, cublas, clblast
        self._config, self._rounds = forced, rounds

    def run(self, case: Case, operands: Operands) -> dict[str, Any]:
        """Check and time one case."""
        forms = case.forms
        row: dict[str, Any] = {
            "kind": case.kind, "code": case.code, "size": case.size, "errors": {}, "faults": {},
            "configs": {},
        }  # fmt: skip
        runs: dict[str, Run] = {}
        for name, g in forms.items():
            resident = on_device.Resident(self.session, g, operands)
            config = self._config(self.session, g)
            row["configs"][name] = str(config)
            try:
                run = resident.launches(config)
                self._admit(row, runs, name, resident.error(run), (run, resident.finish))
            except ClgemmError as fault:
                row["faults"][name] = str(fault).splitlines()[0]
        first = next(iter(forms.values()))
        runs_cublas, fetch = self.cublas.product(first, operands)
        resident = on_device.Resident(self.session, first, operands)
        self._admit(row, runs, CUBLAS, resident.error_of(fetch()), runs_cublas)
        row["seconds"] = on_device.side_by_side(runs, self._rounds)
        row["tflops"] = {
            name: forms.get(name, first).flops / t / 1e12 for name, t in row["seconds"].items()
        }
        if case.kind in {"squares", "skinny"}:
            self.run_clblast(case, operands, row, CLBLAST)
        return row

    def run_clblast(self, case: Case, operands: Operands, row: dict[str, Any], name: str) -> None:
        """Check and time CLBlast with the parameters that it has now."""
        if isinstance(self.clblast, str):
            return
        g = next(iter(case.forms.values()))
        resident = on_device.Resident(self.session, g, operands)
        run, finish = self.clblast.product(self.session, resident)
        runs: dict[str, Run] = {}
        try:
            self._admit(row, runs, name, resident.error(run, before=0.0), (run, finish))
        except RuntimeError as fault:
            row["faults"][name] = str(fault)
        for found, t in on_device.side_by_side(runs, PEER_ROUNDS).items():
            row["seconds"][found], row["tflops"][found] = t, g.flops / t / 1e12

    @staticmethod
    def _admit(
        row: dict[str, Any], runs: dict[str, Run], name: str, error: float, run: Run
    ) -> None:
        """Let a way to run a case be timed if its result was right."""
        row["errors"][name] = error
        if error <= 1:
            runs[name] = run
        else:
            row["faults"][name] = f"WRONG: {error:.3g} times the error bound"


def run_all(
    bench: Bench, found: list[Case], tuned: dict[str, dict[str, int]]
) -> list[dict[str, Any]]:
    """Run the cases of each precision on the same operands, then CLBlast's again, tuned."""
    session, rows = bench.session, []
    for code in dict.fromkeys(case.code for case in found):
        ours = [case for case in found if case.code == code]
        count = max(case.elements for case in ours)
        flat = (on_device.normal(code, count, seed) for seed in (1, 2))
        usual = on_device.Operands(session, *flat)
        peers: list[tuple[Case, dict[str, Any]]] = []
        for case in ours:
            choose_fp32(session, "fma" if case.kind == "fma" else "")
            fallback = case.kind == "fallback"
            row = bench.run(
                case, device_cases.fallback_operands(session, case, usual) if fallback else usual
            )
            rows.append(row)
            if case.kind in {"squares", "skinny"}:
                peers.append((case, row))
            print(device_report.line(row), flush=True)
        choose_fp32(session, "")
        if code in tuned and not isinstance(bench.clblast, str):
            bench.clblast.override(session, code, tuned[code])
            for case, row in peers:
                bench.run_clblast(case, usual, row, TUNED)
                print(device_report.line(row), flush=True)
    return rows


_FP32_BEFORE = os.environ.get(FP32, "auto")


def choose_fp32(session: Session, way: str) -> None:
    """Set CLGEMM_FP32; "": as it was when the bench began."""
    way = way or _FP32_BEFORE
    if os.environ.get(FP32, "auto") != way:
        os.environ[FP32] = way
        session.tuned.clear()  # it decides what may compete


def parameters_in_use(session: Session, codes: str) -> dict[str, str]:
    """Say where parameters come from, by precision; may search for them."""
    found = {code: tuner.tuned_for(session, code).origin for code in codes}
    if "s" in codes:
        choose_fp32(session, "fma")
        found["s, CLGEMM_FP32=fma"] = tuner.tuned_for(session, "s").origin
        choose_fp32(session, "")
    return found


def head_of(bench: Bench, codes: str) -> dict[str, Any]:
    """Say what was measured, where and when, and what the card can do."""
    session = bench.session
    short = {
        f"matmul {name} TFLOP/s": 2 * device_peers.RATE_SIZE**3 / 1e12 / seconds
        for name, seconds in on_device.side_by_side(bench.cublas.short_formats(), 3).items()
    }
    clblast = bench.clblast
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": session.traits.describe(),
        "driver": session.traits.driver_version,
        "versions": versions(),
        "peer": bench.cublas.name,
        "CLBlast": clblast if isinstance(clblast, str) else clblast.name,
        "parameters": parameters_in_use(session, codes),
        "idle": device_limits.smi(),
        "limits": device_limits.limits(session) | short,
    }


def loaded(bench: Bench, n: int = 4096) -> dict[str, Any]:
    """Look at the card while cuBLAS, and then clgemm, keeps it busy."""
    g, session = on_device.problem("s", n, n, n), bench.session
    operands = on_device.Operands(session, *(on_device.normal("s", n * n, i) for i in (1, 2)))
    resident = on_device.Resident(session, g, operands)
    run = resident.launches(tuner.config_for(session, g))
    return {
        CUBLAS: device_limits.under_load(*bench.cublas.product(g, operands)[0]),
        CLGEMM: device_limits.under_load(run, resident.finish),
    }


def forced_config(arguments: argparse.Namespace) -> Callable[[Session, Gemm], Config]:
    """Read --family and --config; without them the tuner decides."""
    if not arguments.family:
        return tuner.config_for
    family = BY_NAME[arguments.family]
    params: dict[str, int] | None = json.loads(arguments.config) if arguments.config else None

    def config(session: Session, g: Gemm) -> Config:
        if params:
            return Config.of(family.name, params)
        return family.default(session.traits, PRECISIONS[g.precision])

    return config


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--sets", default=",".join(SETS), help="of " + ", ".join(SETS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--family", choices=sorted(BY_NAME), help="its default, not the tuner's")
    parser.add_argument("--config", help="parameters as a JSON object; needs --family")
    parser.add_argument("--clblast-tuned", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if set(arguments.sets.split(",")) - set(SETS):
        parser.error(f"--sets takes some of {', '.join(SETS)}")
    if arguments.config and not arguments.family:
        parser.error("--config needs --family")
    return arguments


def main() -> int:
    """Run the cases and print the tables."""
    arguments = parsed()
    start = time.perf_counter()
    cublas, session = device_peers.CuBLAS.find(), sessions.current()
    if session is None or session.traits.compute_capability is None:
        raise SystemExit("the device in use is no NVIDIA GPU; set CLGEMM_DEVICE=nvidia")
    bench = Bench(
        session, cublas, device_peers.CLBlast.find(), forced_config(arguments), arguments.rounds
    )
    head = head_of(bench, arguments.precisions)
    print(device_report.head(head), flush=True)
    tuned = device_peers.tuner_results(arguments.clblast_tuned)
    found = list(
        device_cases.cases(arguments.sets.split(","), arguments.precisions, arguments.sizes)
    )
    rows = run_all(bench, found, tuned)
    head |= {"under load": loaded(bench), "CLBlast parameters": tuned,
             "seconds": round(time.perf_counter() - start)}  # fmt: skip
    print(f"\nunder load: {head['under load']}\n{head['seconds']} s\n")
    print(device_report.markdown(head, rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(head | {"rows": rows}, indent=1), encoding="utf-8")
    return int(any(row["faults"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
