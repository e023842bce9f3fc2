"""Rows of bench_device's tables: each case checked, then timed beside the peers."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

import device_cases
import device_report
import on_device
from device_cases import CLBLAST, CUBLAS, TUNED, Case

from clgemm.errors import ClgemmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_peers import CLBlast, CuBLAS, Run
    from on_device import Operands

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device

PEER_ROUNDS = 2  # of CLBlast, which is far behind
FP32 = "CLGEMM_FP32"
_FP32_BEFORE = os.environ.get(FP32, "auto")


class Bench:
    """What all cases share.

    Parameters
    ----------
    device : Device
        The device.
    cublas, clblast : CuBLAS, CLBlast or str
        The peers; a string says why CLBlast is not there.
    forced : Callable
        The configuration of a problem.
    rounds : int
        Blocks of each way to run a case.
    """

    def __init__(
        self, device: Device, cublas: CuBLAS, clblast: CLBlast | str,
        forced: Callable[[Device, Gemm], Config], rounds: int,
    ) -> None:  # fmt: skip
        self.device, self.cublas, self.clblast = device, cublas, clblast
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
            resident = on_device.Resident(self.device, g, operands)
            config = self._config(self.device, g)
            row["configs"][name] = str(config)
            try:
                run = resident.launches(config)
                self._admit(row, runs, name, resident.error(run), (run, resident.finish))
            except ClgemmError as fault:
                row["faults"][name] = str(fault).splitlines()[0]
        first = next(iter(forms.values()))
        runs_cublas, fetch = self.cublas.product(first, operands)
        resident = on_device.Resident(self.device, first, operands)
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
        resident = on_device.Resident(self.device, g, operands)
        run, finish = self.clblast.product(self.device, resident)
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
    bench: Bench, found: list[Case], tuned: dict[str, dict[str, int]], until: float = math.inf
) -> list[dict[str, Any]]:
    """Run the cases that can begin until then, those of a precision on the same operands.

    Then CLBlast's again, tuned.
    """
    device, rows = bench.device, []
    for code in dict.fromkeys(case.code for case in found):
        ours = [case for case in found if case.code == code]
        if time.perf_counter() > until:
            break
        count = max(case.elements for case in ours)
        flat = (on_device.normal(code, count, seed) for seed in (1, 2))
        usual = on_device.Operands(device, *flat)
        peers: list[tuple[Case, dict[str, Any]]] = []
        for case in ours:
            if time.perf_counter() > until:
                break
            choose_fp32(device, "fma" if case.kind == "fma" else "")
            fallback = case.kind == "fallback"
            row = bench.run(
                case, device_cases.fallback_operands(device, case, usual) if fallback else usual
            )
            rows.append(row)
            if case.kind in {"squares", "skinny"}:
                peers.append((case, row))
            print(device_report.line(row), flush=True)
        choose_fp32(device, "")
        run_tuned(bench, usual, peers, tuned.get(code))
    return rows


def run_tuned(
    bench: Bench, operands: Operands, peers: list[tuple[Case, dict[str, Any]]],
    parameters: dict[str, int] | None,
) -> None:  # fmt: skip
    """Add to rows what CLBlast does with other parameters."""
    if not peers or not parameters or isinstance(bench.clblast, str):
        return
    try:
        bench.clblast.override(bench.device, peers[0][0].code, parameters)
    except RuntimeError as fault:
        peers[0][1]["faults"][TUNED] = str(fault)
        peers.clear()
    for case, row in peers:
        bench.run_clblast(case, operands, row, TUNED)
        print(device_report.line(row), flush=True)


def choose_fp32(device: Device, way: str) -> None:
    """Set CLGEMM_FP32; "": as it was when the bench began."""
    way = way or _FP32_BEFORE
    if os.environ.get(FP32, "auto") != way:
        os.environ[FP32] = way
        device.tuned.clear()  # it decides what may compete
