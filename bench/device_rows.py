"""Rows of bench_device's tables: each case checked, then timed as a user calls it."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import alternating
import device_cases
import device_report
import on_device
from alternating import Way
from device_cases import CLBLAST, CLGEMM, CUBLAS, CUBLAS_FRESH, FRESH, KERNELS, TUNED, Case
from device_peers import CLBlast, CuBLAS
from on_device import Form, Operands, Product

from clgemm import settings
from clgemm.errors import ClgemmError
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

PEER_ROUNDS = 2  # of CLBlast, which is far behind
CALL_SIZES = (8, 16, 64, 512, 1024, 1536)
LONG = 1024  # from this size on a call should return before its kernels have ended
TRIES = 10  # to see whether it does
Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What all cases share."""

    cublas: CuBLAS | str
    """A string says why it is not there."""
    clblast: CLBlast | str
    rounds: int
    """Blocks of each way to run a case."""

    def run(self, case: Case, operands: Operands) -> Row:
        """Check and time one case."""
        row: Row = {"kind": case.kind, "code": case.code, "size": case.size}
        row |= {"errors": {}, "faults": {}, "kernels": {}, "seconds": {}}
        forms = case.forms
        products = {name: Product(form, operands) for name, form in forms.items()}
        first = next(iter(products.values()))
        ways: dict[str, Way] = {}
        for name, product in products.items():
            self._add_ours(row, ways, name, product)
        if case.kind == "gram":
            row["symmetric"] = first.is_symmetric
        elif isinstance(self.cublas, CuBLAS):
            into_out, fresh, fetch = self.cublas.product(first.form, operands)
            _admit(row, ways, CUBLAS, first.error_of(fetch()), into_out)
            if CUBLAS in ways and case.kind != "ops":
                ways[CUBLAS_FRESH] = fresh
        row["seconds"] |= alternating.throughput(ways, self.rounds)
        row["tflops"] = {
            name: forms.get(name, first.form).flops / t / 1e12 for name, t in row["seconds"].items()
        }
        if case.kind == "squares":
            _add_returns(row, ways, case.n)
        if case.kind in {"squares", "skinny"}:
            self.run_clblast(first, row, CLBLAST)
        return row

    @staticmethod
    def _add_ours(row: Row, ways: dict[str, Way], name: str, product: Product) -> None:
        run, fresh = product.into_out(), product.fresh()
        try:
            _admit(row, ways, name, product.error(run), Way(run, product.finish))
            if name == CLGEMM and name in ways:
                _admit(row, ways, FRESH, product.error(fresh), Way(fresh, product.finish))
            row["kernels"][name], seconds = product.kernel_times()
        except ClgemmError as fault:
            row["faults"][name] = str(fault).splitlines()[0]
        else:
            row["seconds"] |= {KERNELS: seconds} if name == CLGEMM else {}

    def run_clblast(self, product: Product, row: Row, name: str) -> None:
        """Check and time CLBlast with the parameters that it has now."""
        if isinstance(self.clblast, str):
            return
        way = self.clblast.product(product)
        ways: dict[str, Way] = {}
        try:
            _admit(row, ways, name, product.error(way.run), way)
        except RuntimeError as fault:
            row["faults"][name] = str(fault)
        for found, t in alternating.throughput(ways, PEER_ROUNDS).items():
            row["seconds"][found], row["tflops"][found] = t, product.form.flops / t / 1e12

    def call(self, code: str, n: int) -> Row:
        """Time the host's side of calls of a square, with `out` and without."""
        form = Form(code, n, n, n)
        operands = Operands(*(on_device.normal(code, n * n, seed) for seed in (1, 2)))
        product = Product(form, operands)
        row: Row = {"code": code, "n": n, "errors": {}, "faults": {}, "kernels": {}, "seconds": {}}
        ways: dict[str, Way] = {}
        self._add_ours(row, ways, CLGEMM, product)
        if isinstance(self.cublas, CuBLAS):
            ways[CUBLAS], ways[CUBLAS_FRESH], _ = self.cublas.product(form, operands)
        row["host"] = alternating.call_times(ways, self.rounds)
        row["seconds"] |= alternating.throughput(ways, self.rounds)
        _add_returns(row, ways, n)
        return row


def _admit(row: Row, ways: dict[str, Way], name: str, error: float, way: Way) -> None:
    """Let a way to run a case be timed if its result was right."""
    row["errors"][name] = error
    if error <= 1:
        ways[name] = way
    else:
        row["faults"][name] = f"WRONG: {error:.3g} times the error bound"


def _add_returns(row: Row, ways: dict[str, Way], n: int) -> None:
    """Count the calls that return before their kernels have ended, where all should."""
    if n >= LONG:
        row["tries"] = TRIES
        row["returned before"] = {
            name: on_device.returned_before(*ways[name], TRIES)
            for name in (CLGEMM, FRESH)
            if name in ways
        }


def run_calls(bench: Bench, codes: str, until: float = math.inf) -> list[Row]:
    """Time calls of all sizes."""
    rows: list[Row] = []
    for code in codes:
        for n in () if PRECISIONS[code].is_complex else CALL_SIZES:
            if time.perf_counter() > until:
                return rows
            rows.append(bench.call(code, n))
            print(device_report.call_line(rows[-1]), flush=True)
    return rows


def run_all(
    bench: Bench, found: Sequence[Case], tuned: dict[str, dict[str, int]], until: float = math.inf
) -> list[Row]:
    """Run the cases that can begin until then, those of a precision on the same operands.

    Then CLBlast's again, tuned.
    """
    rows: list[Row] = []
    for code in dict.fromkeys(case.code for case in found):
        ours = [case for case in found if case.code == code]
        if time.perf_counter() > until:
            break
        count = max(case.elements for case in ours)
        usual = Operands(*(on_device.normal(code, count, seed) for seed in (1, 2)))
        peers: list[tuple[Case, Row]] = []
        for case in ours:
            if time.perf_counter() > until:
                break
            row = run_case(bench, case, usual)
            rows.append(row)
            if case.kind in {"squares", "skinny"}:
                peers.append((case, row))
            print(device_report.line(row), flush=True)
        run_tuned(bench, usual, peers, tuned.get(code))
    return rows


def run_case(bench: Bench, case: Case, usual: Operands) -> Row:
    """Run a case in its mode and on its operands."""
    fallback = case.kind == "fallback"
    operands = device_cases.fallback_operands(case, usual) if fallback else usual
    with settings.using(fp32="fma") if case.kind == "fma" else nullcontext():
        return bench.run(case, operands)


def run_tuned(
    bench: Bench, operands: Operands, peers: list[tuple[Case, Row]],
    parameters: dict[str, int] | None,
) -> None:  # fmt: skip
    """Add to rows what CLBlast does with other parameters."""
    if not peers or not parameters or isinstance(bench.clblast, str):
        return
    try:
        queue = operands.on_device[0].queue
        bench.clblast.override(queue, peers[0][0].code, parameters)
    except RuntimeError as fault:
        peers[0][1]["faults"][TUNED] = str(fault)
        peers.clear()
    for case, row in peers:
        bench.run_clblast(Product(case.forms[CLGEMM], operands), row, TUNED)
        print(device_report.line(row), flush=True)
