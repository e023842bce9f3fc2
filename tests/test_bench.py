"""The benches: what they would run, what they time, and that they notice a wrong result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import GPU

import clgemm
from clgemm import settings
from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import ELEMENTS, PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.measure.timing import Timing
from clgemm.tuning.shapes import Shape
from clgemm.tuning.tuner import Parameters

BENCH = Path(__file__).parents[1] / "bench"
if not BENCH.is_dir():
    pytest.skip("an installed clgemm has no benches beside it", allow_module_level=True)
sys.path.insert(0, str(BENCH))

alternating, environment, on_device = map(
    import_module, ("alternating", "environment", "on_device")
)
bench_device, bench_gemm, bench_host, bench_ladder = map(
    import_module, ("bench_device", "bench_gemm", "bench_host", "bench_ladder")
)
bench_overhead, bench_several, bench_tuning = map(
    import_module, ("bench_overhead", "bench_several", "bench_tuning")
)
device_cases, device_peers, device_report, device_rows = map(
    import_module, ("device_cases", "device_peers", "device_report", "device_rows")
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


@pytest.fixture
def in_use(in_use, monkeypatch):
    """Let calls use a device, and lose no time on exact figures."""
    monkeypatch.setattr(alternating, "BLOCK_SECONDS", 1e-6)
    monkeypatch.setattr(alternating, "BURST", 1)
    monkeypatch.setattr(alternating, "LEAST_BURST", 1)
    monkeypatch.setattr(alternating.timing, "settle", lambda: None)
    monkeypatch.setattr(on_device, "KERNEL_SECONDS", 1e-6)
    return in_use


def operands_of(code, count):
    return on_device.Operands(*(on_device.normal(code, count, seed) for seed in (1, 2)))


def test_cases_cover_what_was_asked_for():
    found = list(device_cases.cases(device_cases.SETS, "sdcz", [512, 2048, 8192]))
    assert len(set(found)) == len(found)
    names = {f"{case.kind} {case.code} {case.size}" for case in found}
    assert {"squares z 2048", "fma s 512", "skinny d 256x256x65536", "fallback s 8192"} <= names
    assert {"ops s 2048", "ops d 2048", "ops z 2048"} <= names
    assert not names & {"squares c 8192", "ops s 512", "fallback s 512", "skinny c 64x8192x8192"}


def test_forms_are_all_transposes_an_odd_size_and_factors():
    forms = device_cases.Case("ops", "d", 2048, 2048, 2048).forms
    assert {form.ops for form in forms.values()} == {"NN", "TN", "NT", "TT"}
    assert (forms["n+1"].m, forms["n+1"].n, forms["n+1"].k) == (2049, 2049, 2049)
    assert forms["beta"].beta not in {0, 1}
    assert [name for name, form in forms.items() if form.is_plain] == ["NN", "n+1"]


@pytest.mark.usefixtures("in_use")
def test_fallback_operands_hide_small_entries_behind_large_ones():
    case = device_cases.Case("fallback", "s", 7, 5, 6)
    usual = operands_of("s", 64)
    before = usual.a.copy()
    found = device_cases.fallback_operands(case, usual)
    a, b = found.a.reshape(7, 6), found.b[:30].reshape(6, 5)
    assert np.all(a[:, 0] == 1)
    assert np.all(b[0] == 0)
    assert np.max(np.abs(a[:, 1:])) < 2**-26
    assert np.array_equal(usual.a, before), "other cases use them"


class Tensor(np.ndarray):
    """What PyTorch's tensors do here, by NumPy."""

    def cuda(self):
        return self.copy()

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)

    def zero_(self):
        self[...] = 0


def torch(wrong=0.0):
    """In place of PyTorch: NumPy, which can be told to be wrong."""

    def matmul(x, y, out=None):
        return np.add(np.matmul(x, y), x.dtype.type(wrong), out=out)

    return SimpleNamespace(
        __version__="0", matmul=matmul, from_numpy=lambda x: x.view(Tensor),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True))),
        cuda=SimpleNamespace(is_available=lambda: True, synchronize=lambda: None),
    )  # fmt: skip


def rows_of(monkeypatch, wrong=0.0):
    monkeypatch.setattr(device_cases, "SKINNY", ((8, 24, 40),))
    monkeypatch.setattr(device_cases, "LEAST", {})
    monkeypatch.setattr(device_rows, "LONG", 20)
    bench = device_rows.Bench(device_peers.CuBLAS(torch(wrong)), "CLBlast: absent", 1)
    return device_rows.run_all(bench, list(device_cases.cases(device_cases.SETS, "s", [20])), {})


FACTS = dict.fromkeys(("device", "driver", "date", "versions", "peers"), "x")
FACTS |= {"limits": {"copy GB/s": 1.0}, "parameters": {"s": "defaults"}}


@pytest.mark.usefixtures("in_use")
def test_every_row_is_checked_timed_and_shown(monkeypatch):
    rows = rows_of(monkeypatch)
    assert [row["kind"] for row in rows] == list(device_cases.SETS)
    assert not any(row["faults"] for row in rows)
    for row in rows:
        ours = {"clgemm", device_cases.FRESH}
        theirs = {"cuBLAS", device_cases.CUBLAS_FRESH}
        if row["kind"] == "ops":
            ours, theirs = set(device_cases.OPS), {"cuBLAS"}
        if row["kind"] == "gram":  # which clgemm's product of two matrices stands beside
            ours, theirs = {device_cases.GRAM, device_cases.GENERAL}, set()
        assert set(row["errors"]) == ours | theirs - {device_cases.CUBLAS_FRESH}
        assert set(row["tflops"]) - {device_cases.KERNELS} == ours | theirs
        assert all(0 <= error <= 1 for error in row["errors"].values())
        assert all(t > 0 for t in row["seconds"].values())
        assert all(kernels[0].isdigit() for kernels in row["kernels"].values())
    text = device_report.markdown(FACTS, [], rows)
    assert "Parameters: defaults." in text
    assert "| TFLOP/s (÷ cuBLAS) | 20 |" in text
    for name in ("sgemm", "sgemm, data for the fallback", "sgemm, fma", "cuBLAS, s", "sgemm 20"):
        assert f"| {name} | " in text
    assert "| sgemm, kernels alone | " in text
    assert "8x24x40" in text
    assert "More than 10 % below NN" in text
    assert text.endswith("Not exactly symmetric: none.")
    assert "returned after their kernels had ended" in text


def test_a_case_runs_in_its_mode(monkeypatch):
    modes = []
    monkeypatch.setattr(device_rows.Bench, "run", lambda *_: modes.append(settings.modes().fp32))
    monkeypatch.setenv("CLGEMM_FP32", "auto")
    bench = device_rows.Bench("cuBLAS: absent", "CLBlast: absent", 1)
    for kind in ("squares", "fma", "ops"):
        device_rows.run_case(bench, device_cases.Case(kind, "s", 20, 20, 20), None)
    assert modes == ["auto", "fma", "auto"]


@pytest.mark.usefixtures("in_use")
def test_a_wrong_peer_is_not_timed(monkeypatch):
    for row in rows_of(monkeypatch, wrong=1.0):
        assert row["kind"] == "gram" or "WRONG" in row["faults"]["cuBLAS"]
        assert not {"cuBLAS", device_cases.CUBLAS_FRESH} & set(row["tflops"])


def test_no_case_begins_after_the_given_time():
    bench = device_rows.Bench("cuBLAS: absent", "CLBlast: absent", 1)
    assert device_rows.run_all(bench, list(device_cases.cases(["squares"], "s", [20])), {}, 0) == []
    assert device_rows.run_calls(bench, "s", 0) == []


def test_a_slow_form_is_named():
    rates = dict(zip(device_cases.OPS, (10.0, 9.1, 8.9, 10.0, 9.9, 9.5), strict=True))
    row = {"kind": "ops", "code": "s", "size": "2048", "kernels": {}, "faults": {}}
    text = device_report.markdown(FACTS, [], [row | {"tflops": rates}])
    assert text.endswith("More than 10 % below NN: sgemm 2048 NT.")


def test_a_gram_product_that_is_not_symmetric_is_named():
    row = {"kind": "gram", "code": "s", "kernels": {}, "faults": {}, "tflops": {"a.T @ a": 3.0}}
    rows = [row | {"size": "8", "symmetric": True}, row | {"size": "16", "symmetric": False}]
    assert device_report.markdown(FACTS, [], rows).endswith("symmetric: sgemm 16.")


def test_calls_that_wait_are_named():
    call = {"code": "s", "n": 1024, "tries": 10, "host": {}, "seconds": {}, "kernels": {}}
    call |= {"returned before": {"clgemm": 10, "clgemm, new result": 7}}
    text = device_report.markdown(FACTS, [call], [])
    assert text.endswith("ended: sgemm 1024 clgemm, new result (3 times).")


def test_a_call_that_returns_early_is_told_by_its_event():
    states = iter([0, 1, 3, 0])  # CL_COMPLETE is 0

    def run():
        return SimpleNamespace(events=[SimpleNamespace(command_execution_status=next(states))])

    assert on_device.returned_before(run, lambda: None, 4) == 2


def test_the_bench_of_devices_makes_tables_without_peers(in_use, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device_rows, "CALL_SIZES", (8,))
    monkeypatch.setattr(device_peers.CuBLAS, "find", lambda: "cuBLAS: absent")
    engine = engines.of(in_use)
    monkeypatch.setattr(engine, "parameters", Parameters(in_use))
    words = "--parts call,squares,gram --sizes 20 --precisions sc --rounds 1 --family direct --json"
    monkeypatch.setattr(sys, "argv", ["bench_device.py", *words.split(), str(tmp_path / "x")])
    assert bench_device.main() == 0
    found = json.loads((tmp_path / "x").read_text(encoding="utf-8"))
    assert [(row["code"], row["n"]) for row in found["calls"]] == [("s", 8)]
    assert set(found["calls"][0]["host"]) == {"clgemm", device_cases.FRESH}
    kinds = [(row["code"], row["kind"]) for row in found["rows"]]
    assert kinds == [("s", "squares"), ("s", "gram"), ("c", "squares"), ("c", "gram")]
    assert all("1 direct" in next(iter(row["kernels"].values())) for row in found["rows"])
    assert all(not row["faults"] for row in found["rows"])
    assert "asked for" in found["parameters"]["s"]
    said = capsys.readouterr().out
    assert "| sgemm 8 | " in said
    assert "| TFLOP/s of a.T @ a (÷ a.T @ b) | 20 |" in said
    engine.forget()


def test_the_fastest_of_clblasts_tuner_is_taken(tmp_path):
    for name, ms, mwg in (("a", "2.0", 64), ("b", "1.0", 128)):
        found = {"precision": "32", "best_time": ms, "best_parameters": f"MWG={mwg} PRECISION=32",
                 "arg_m": "1024", "arg_n": "1024", "arg_k": "1024"}  # fmt: skip
        (tmp_path / name).write_text(json.dumps(found), encoding="utf-8")
    assert device_peers.tuner_results(tmp_path.iterdir()) == {"s": {"MWG": 128}}


@pytest.mark.usefixtures("in_use")
def test_a_gram_product_that_is_not_symmetric_is_told():
    form = on_device.Form("s", 33, 33, 17, "TN", is_gram=True)
    product = on_device.Product(form, operands_of("s", 33 * 33))
    assert product.error(product.into_out()) <= 1
    assert product.is_symmetric
    c = product.out.get()
    c[3, 2] = np.nextafter(c[3, 2], np.float32(np.inf))
    product.error_of(c)
    assert not product.is_symmetric


@pytest.mark.parametrize("form", ["NN", "TN", "NT", "TT", "beta"])
@pytest.mark.parametrize("code", "sz")
def test_a_wrong_result_is_noticed(in_use, code, form):
    if not in_use.traits.has(PRECISIONS[code]):
        pytest.skip("the device has no double precision")
    ops, factors = ("NN", (2.0, 0.5)) if form == "beta" else (form, ())
    product = on_device.Product(
        on_device.Form(code, 33, 21, 17, ops, *factors), operands_of(code, 33 * 33)
    )
    run = product.into_out()
    assert product.error(run) <= 1
    c = product.out.get()
    assert product.error_of(c) <= 1
    if form == "NN":
        assert product.error(product.fresh()) <= 1
        a, b = product.x.get(), product.y.get()
        assert np.allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    if form != "beta":
        assert product.error(lambda: product.out) == np.inf, (
            "NaN was left where nothing was written"
        )
    c[0, 0] += 1e-3
    assert product.error_of(c) > 1


def test_kernels_are_timed_by_the_device_and_forgotten(in_use):
    product = on_device.Product(on_device.Form("s", 20, 20, 20), operands_of("s", 400))
    kernels, seconds = product.kernel_times()
    assert kernels[0].isdigit()
    assert 0 < seconds < 10
    assert not engines.of(in_use).decisions, "a runner that is watched may be left"
    assert product.error(product.into_out()) <= 1


@pytest.mark.usefixtures("in_use")
def test_launches_that_cannot_be_watched_end_the_bench(monkeypatch):
    product = on_device.Product(on_device.Form("s", 20, 20, 20), operands_of("s", 400))
    monkeypatch.setattr(product, "_call", lambda *_: lambda: None)
    with pytest.raises(SystemExit, match="no launch was seen"):
        product.kernel_times()


def test_the_ladder_computes_what_it_times(in_use):
    product = on_device.Product(on_device.Form("s", 20, 20, 20), operands_of("s", 400))
    config = BY_NAME["direct"].default(in_use.traits, PRECISIONS["s"])
    for whole in (False, True):
        assert product.error(bench_ladder.launches(in_use, product, config, whole=whole)) <= 1


def test_a_bench_of_tuning_computes_what_it_times(device, monkeypatch):
    if not device.traits.unified_memory:
        pytest.skip("the result stays in the device's memory")
    config = BY_NAME["direct"].default(device.traits, PRECISIONS["s"])
    arrays = []
    describe = bench_tuning.operands

    def watched(*arguments):
        problem, found = describe(*arguments)
        arrays.extend(found)
        return problem, found

    monkeypatch.setattr(bench_tuning, "operands", watched)
    bench_tuning.product(device, "s", Shape(9, 7, 5, 2), config)()
    a, b, c = arrays
    assert np.allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_a_wrong_result_stops_the_bench_of_gemm(monkeypatch):
    monkeypatch.setattr(bench_gemm.Work, "scipy", lambda work: work.clgemm() + 1)
    with pytest.raises(SystemExit, match="WRONG"):
        bench_gemm.run_case(bench_gemm.Case("s", 5, 5, 5), [], 1)


@pytest.mark.parametrize(("seconds", "holds"), [(12.6e-6, False), (12.4e-6, True)])
def test_a_slow_call_breaks_the_rule(device, monkeypatch, capsys, seconds, holds):
    times = iter([seconds, 10e-6])  # clgemm's, SciPy's
    monkeypatch.setattr(bench_gemm, "measure", lambda _: Timing(next(times), 0.0, 1))
    monkeypatch.setattr(bench_gemm.timing, "settle", lambda: None)
    with registry.using(device):
        row = bench_gemm.run_case(bench_gemm.Case("d", 8, 8, 8), [], 1)
    assert row["holds"] is holds
    assert row["route"] == "device"
    bench_gemm.print_row(row)
    assert ("SLOW" in capsys.readouterr().out) is not holds


def test_the_bench_of_memory_counts_from_the_hundredth_call(device):
    with registry.using(device):
        found = bench_host.memory_kept(device, 300, 25)
    assert [mark["calls"] for mark in found["marks"]] == [100, 150, 300]
    assert all(mark["resident"] > 1e6 for mark in found["marks"])
    with registry.using(device):
        found = bench_host.memory_kept(device, 3, 25)
    assert [mark["calls"] for mark in found["marks"]] == [1, 3]


@pytest.fixture
def clock(monkeypatch):
    """Stop time, for what is timed in turn alone; what runs moves it on."""
    now = [100.0]
    stopped = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(alternating, "time", stopped)
    monkeypatch.setattr(alternating.timing, "settle", lambda: None)
    return now


def test_ways_that_are_timed_together_are_called_equally_often(clock, monkeypatch):
    monkeypatch.setattr(alternating.timing, "FOREIGN_SHARE", float("inf"))
    calls = {"slow": 0, "fast": 0}

    def way(name, seconds):
        def run():
            calls[name] += 1
            clock[0] += seconds

        return alternating.Way(run)

    ways = {"slow": way("slow", 0.01), "fast": way("fast", 0.002)}
    found = alternating.throughput(ways, 2, quiet=True, together=0.02)
    assert calls["slow"] == calls["fast"] > 2 + 2
    assert found == pytest.approx({"slow": 0.01, "fast": 0.002})


def test_waiting_is_part_of_a_block_and_no_part_of_a_call(clock):
    def lasts(seconds):
        clock[0] += seconds

    way = alternating.Way(lambda: lasts(0.002), lambda: lasts(0.1))
    assert alternating.call_times({"": way}, 1, bursts=1)[""] == pytest.approx(0.002)
    assert alternating.throughput({"": way}, 1)[""] == pytest.approx(0.102)


def test_queues_are_waited_for_between_bursts():
    steps = []
    way = alternating.Way(lambda: steps.append("call"), lambda: steps.append("wait"))
    alternating.call_times({"": way}, 2, bursts=1)
    runs = "".join(step[0] for step in steps).split("w")
    assert runs[-1] == "", "nothing is left running for who comes next"
    assert max(map(len, runs)) == alternating.BURST


def test_the_bench_of_several_devices_times_what_is_right(device, monkeypatch, capsys):
    monkeypatch.setattr(registry, "in_use", device)
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


@pytest.mark.usefixtures("in_use")
def test_every_small_call_is_checked_and_timed(monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    routes = []
    matmul = clgemm.matmul

    def watched(*arrays, **more):
        routes.append(os.environ.get("CLGEMM_ROUTE"))
        return matmul(*arrays, **more)

    monkeypatch.setattr(clgemm, "matmul", watched)
    groups = dict(bench_overhead.timed("s", 5, 1))
    assert set(routes) == {None, "device"}
    assert os.environ["CLGEMM_ROUTE"] == "host", "it was left as it was"
    sizes = [len(times) for times in groups.values()]
    assert sizes == [6, 7, 3, 5]
    monkeypatch.setattr(clgemm, "matmul", lambda a, b, out=None: matmul(a, b, out=out) + 1)
    with pytest.raises(SystemExit, match="WRONG"):
        dict(bench_overhead.timed("s", 5, 1))


@pytest.mark.process
def test_peers_are_loaded_without_variables_that_slow_them():
    program = (
        f"import sys; sys.path.insert(0, {str(BENCH)!r}); import os, environment;"
        "environment.restart_clean(); print(sorted(os.environ), sys.argv[1:])"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, "--n", "8"],
        env=os.environ | {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1", "KEPT": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "OPENBLAS_CORETYPE" not in child.stdout
    assert "OMP_NUM_THREADS" not in child.stdout
    assert "'KEPT'" in child.stdout
    assert "['--n', '8']" in child.stdout
    assert "without" in child.stderr
    assert "OPENBLAS_CORETYPE" in child.stderr


def test_a_clean_environment_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(os, "environ", {"HOME": "/", "CLGEMM_ROUTE": "host"})
    monkeypatch.setattr(subprocess, "call", lambda *_, **__: pytest.fail("it started again"))
    environment.restart_clean()


def test_figures_come_with_the_kernels_of_the_peer(device):
    facts = environment.facts(device)
    assert facts["device"] == device.traits.describe()
    assert "kernels" in facts["SciPy runs"]
    assert "scipy" in facts["versions"]


@pytest.mark.parametrize("code", ["b1", "i2", "u8", "f2"])
def test_a_wrong_product_of_arrays_is_not_timed(device, code, monkeypatch, rng):
    integer_arrays = import_module("integer_arrays")
    a, b = (integer_arrays.drawn(rng, ELEMENTS[code], 50) for _ in "ab")
    with registry.using(device):
        ways = integer_arrays.ways(a, b)
        assert integer_arrays.is_right(ways["clgemm"].run().get(), a, b)
        monkeypatch.setattr(clgemm, "matmul", lambda *_, out: out)
        with pytest.raises(SystemExit, match="WRONG"):
            integer_arrays.ways(a, b)
