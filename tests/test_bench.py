"""The benches of devices: what they would run, and that they notice a wrong result."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import GPU

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry

BENCH = Path(__file__).parents[1] / "bench"
if not BENCH.is_dir():
    pytest.skip("an installed clgemm has no benches beside it", allow_module_level=True)
sys.path.insert(0, str(BENCH))

bench_host, bench_ladder, bench_overhead, bench_several = map(
    import_module, ("bench_host", "bench_ladder", "bench_overhead", "bench_several")
)
device_cases, device_peers, device_report, device_rows, on_device = map(
    import_module,
    ("device_cases", "device_peers", "device_report", "device_rows", "on_device"),
)

LARGE = replace(GPU, compute_units=132, local_memory=48 << 10, compute_capability=(9, 0))
SMALL = replace(GPU, max_work_group_size=256, local_memory=32 << 10)


@pytest.mark.parametrize("traits", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("code", "sdcz")
def test_every_rung_is_a_point_of_the_space(traits, code):
    family, precision = BY_NAME["gpu_tiled"], PRECISIONS[code]
    space, params = family.space(traits, precision), dict(bench_ladder.PLAIN)
    for step in bench_ladder.LADDER:
        params |= step.changes
        config = bench_ladder.tiled_config(SimpleNamespace(traits=traits), precision, step, params)
        assert isinstance(config, Config), f"{step.name}: {config}"
        assert family.is_valid(traits, precision, config)
        strange = {n: v for n, v in config.params if v not in space[n] and n not in {"MC", "NC"}}
        assert strange == {}, step.name


def test_cases_cover_what_was_asked_for():
    found = list(device_cases.cases(list(device_cases.SETS), "sdcz", [512, 2048, 8192]))
    assert len(set(found)) == len(found)
    names = {f"{case.kind} {case.code} {case.size}" for case in found}
    assert {"squares z 2048", "fma s 512", "skinny d 256x256x65536", "fallback s 8192"} <= names
    assert {"ops s 2048", "ops d 8192", "ops z 2048"} <= names
    assert not names & {"squares c 8192", "ops s 512", "fallback s 512", "skinny c 64x8192x8192"}


def test_forms_are_all_transposes_and_an_odd_size():
    forms = device_cases.Case("ops", "d", 2048, 2048, 2048).forms
    assert {(g.trans_a, g.trans_b) for g in forms.values()} == {
        (x, y) for x in (0, 1) for y in (0, 1)
    }
    assert (forms["n+1"].m, forms["n+1"].lda) == (2049, 2049)


def test_fallback_operands_hide_small_entries_behind_large_ones(device):
    case = device_cases.Case("fallback", "s", 7, 7, 6)
    usual = on_device.Operands(device, *(on_device.normal("s", 64, seed) for seed in (1, 2)))
    before = usual.a.copy()
    found = device_cases.fallback_operands(device, case, usual)
    a, b = (x[:42].reshape(-1, ld) for x, ld in ((found.a, 7), (found.b, 6)))
    assert np.all(a[0] == 1)
    assert np.all(b[:, 0] == 0)
    assert np.max(np.abs(a[1:])) < 2**-26
    assert np.array_equal(usual.a, before), "other cases use them"


class Peer:
    """In place of cuBLAS: NumPy, which can be told to be wrong."""

    def __init__(self, wrong=0.0):
        self.wrong = wrong

    def product(self, g, operands):
        left = operands.b[: g.k * g.n].reshape((g.k, g.n) if g.trans_b else (g.n, g.k))
        right = operands.a[: g.m * g.k].reshape((g.m, g.k) if g.trans_a else (g.k, g.m))
        c = (left.T if g.trans_b else left) @ (right.T if g.trans_a else right)
        return (lambda: None, lambda: None), lambda: c.ravel() + np.float32(self.wrong)


def rows_of(device, monkeypatch, peer, config=None):
    monkeypatch.setattr(device_cases, "SKINNY", ((8, 24, 40),))
    monkeypatch.setattr(device_cases, "LEAST", {})
    monkeypatch.setenv("CLGEMM_FP32", "auto")
    monkeypatch.setattr(on_device, "BLOCK_SECONDS", 1e-6)
    direct = BY_NAME["direct"].default(device.traits, PRECISIONS["s"])
    bench = device_rows.Bench(device, peer, "CLBlast: absent", lambda *_: config or direct, 1)
    return device_rows.run_all(bench, list(device_cases.cases(device_cases.SETS, "s", [20])), {})


def test_every_row_is_checked_timed_and_shown(device, monkeypatch):
    rows = rows_of(device, monkeypatch, Peer())
    assert [row["kind"] for row in rows] == list(device_cases.SETS)
    assert not any(row["faults"] for row in rows)
    for row in rows:
        ours = set(device_cases.OPS) if row["kind"] == "ops" else {"clgemm"}
        assert set(row["tflops"]) == set(row["errors"]) == ours | {"cuBLAS"}
        assert all(0 <= error <= 1 for error in row["errors"].values())
    facts = dict.fromkeys(("device", "driver", "date", "versions", "peer", "CLBlast"), "x")
    facts |= {"limits": {"copy GB/s": 1.0}, "parameters": {"s": "defaults"}}
    text = device_report.markdown(facts, rows)
    assert "Parameters: defaults." in text
    assert "| TFLOP/s (÷ cuBLAS) | 20 |" in text
    for name in ("sgemm, data for the fallback", "sgemm, fma", "cuBLAS, s", "sgemm 20"):
        assert f"| {name} | " in text
    assert "8x24x40" in text
    assert "More than 10 % below NN" in text


def test_a_wrong_peer_is_not_timed(device, monkeypatch):
    for row in rows_of(device, monkeypatch, Peer(wrong=1.0)):
        assert "WRONG" in row["faults"]["cuBLAS"]
        assert "cuBLAS" not in row["tflops"]


def test_no_case_begins_after_the_given_time(device):
    bench = device_rows.Bench(device, Peer(), "CLBlast: absent", None, 1)
    assert device_rows.run_all(bench, list(device_cases.cases(["squares"], "s", [20])), {}, 0) == []


def test_a_slow_form_is_named():
    rates = dict(zip(device_cases.OPS, (10.0, 9.1, 8.9, 10.0, 9.9), strict=True))
    row = {"kind": "ops", "code": "s", "size": "2048", "configs": rates, "faults": {}}
    row["tflops"] = rates
    facts = dict.fromkeys(("device", "driver", "date", "versions", "peer", "CLBlast"), "x")
    text = device_report.markdown(facts | {"limits": {}, "parameters": {}}, [row])
    assert text.endswith("More than 10 % below NN: sgemm 2048 NT.")


def test_the_fastest_of_clblasts_tuner_is_taken(tmp_path):
    for name, ms, mwg in (("a", "2.0", 64), ("b", "1.0", 128)):
        found = {"precision": "32", "best_time": ms, "best_parameters": f"MWG={mwg} PRECISION=32",
                 "arg_m": "1024", "arg_n": "1024", "arg_k": "1024"}  # fmt: skip
        (tmp_path / name).write_text(json.dumps(found), encoding="utf-8")
    assert device_peers.tuner_results(tmp_path.iterdir()) == {"s": {"MWG": 128}}


@pytest.mark.parametrize("ops", ["NN", "TN", "NT", "TT"])
def test_a_wrong_result_is_noticed(device, ops):
    g = on_device.problem("s", 33, 21, 17, ops)
    a, b = (on_device.normal("s", 33 * 33, seed) for seed in (1, 2))
    resident = on_device.Resident(device, g, on_device.Operands(device, a, b))
    config = BY_NAME["direct"].default(device.traits, PRECISIONS["s"])
    assert resident.error(resident.launches(config)) <= 1
    assert resident.error(lambda: None) == np.inf, "NaN was left where no result was written"
    left = a[: 33 * 17].reshape((33, 17) if g.trans_a else (17, 33))
    right = b[: 17 * 21].reshape((17, 21) if g.trans_b else (21, 17))
    c = (left if g.trans_a else left.T) @ (right if g.trans_b else right.T)
    assert resident.error_of(np.ravel(c.T)) <= 1
    c[0, 0] += 1e-3
    assert resident.error_of(np.ravel(c.T)) > 1


def test_a_wrong_result_stops_the_bench_of_the_host(monkeypatch):
    monkeypatch.setattr(bench_host.Work, "scipy", lambda work: work.clgemm() + 1)
    with pytest.raises(SystemExit, match="WRONG"):
        bench_host.beside_scipy("s", [5], 1)


def test_a_slow_call_breaks_the_rule(device, monkeypatch, capsys):
    times = {"SciPy": 10e-6, "clgemm": 12.6e-6}
    monkeypatch.setattr(bench_host, "alternating", lambda *_: times)
    with registry.using(device):
        (row,) = bench_host.beside_scipy("d", [8], 1)
        assert not row["holds"]
        times["clgemm"] = 12.4e-6
        (row,) = bench_host.beside_scipy("d", [8], 1)
    assert row["holds"]
    assert "1 of 1 within" in capsys.readouterr().out


def test_the_bench_of_memory_counts_from_the_hundredth_call(device):
    with registry.using(device):
        found = bench_host.memory_kept(device, 300, 25)
    assert [mark["calls"] for mark in found["marks"]] == [100, 150, 300]
    assert all(mark["resident"] > 1e6 for mark in found["marks"])


def test_ways_that_are_timed_together_are_called_equally_often(monkeypatch):
    monkeypatch.setattr(bench_host.timing, "settle", lambda: None)
    monkeypatch.setattr(bench_host.timing, "FOREIGN_SHARE", float("inf"))
    calls = {"slow": 0, "fast": 0}

    def way(name, seconds):
        def run():
            calls[name] += 1
            time.sleep(seconds)

        return run

    runs = {"slow": way("slow", 0.01), "fast": way("fast", 0.002)}
    found = bench_host.alternating(runs, 2, together=0.02)
    assert calls["slow"] == calls["fast"] > 2 + 2
    assert found["slow"] > 2 * found["fast"]


def test_the_bench_of_several_devices_times_what_is_right(device, monkeypatch, capsys):
    monkeypatch.setattr(registry, "_current", device)
    monkeypatch.setattr(
        sys, "argv", ["bench_several.py", "--one", "--n", "70", "--precision", "s", "--rounds", "2"]
    )
    assert bench_several.main() == 0
    row = json.loads(capsys.readouterr().out)
    assert row["devices"] == [device.traits.describe()]
    assert len(row["seconds"]) == 2
    assert 0 < row["error"] <= 1
    monkeypatch.setattr(bench_several.clgemm, "matmul", lambda a, b: 1.001 * (a @ b))
    with pytest.raises(SystemExit, match="WRONG"):
        bench_several.main()


def test_every_stage_of_a_call_is_run(device, monkeypatch):
    if not device.traits.unified_memory:
        pytest.skip("calls with copies have other stages")
    runs = []
    monkeypatch.setattr(bench_overhead, "microseconds", lambda run: runs.append(run()) or 1.0)
    with registry.using(device):
        found = bench_overhead.stages(device, "s", 8)
    assert len(runs) == len(found) == 6
    assert found["rest of driver"] == 1 - 3
