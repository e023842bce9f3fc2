"""The benches of drawn shapes and of limits: what is drawn, what it comes to, that they run."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import PATIENCE

from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME
from clgemm.runtime import registry
from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.tuning.measure import timing

BENCH = Path(__file__).parents[1] / "bench"
if not BENCH.is_dir():
    pytest.skip("an installed clgemm has no benches beside it", allow_module_level=True)
sys.path.insert(0, str(BENCH))

random_shapes, shape_products, report, environment, bench_shapes, array_products = map(
    import_module,
    (
        "random_shapes", "shape_products", "shapes_report", "environment", "bench_shapes",
        "array_products",
    ),
)  # fmt: skip
Bounds, Drawn = random_shapes.Bounds, random_shapes.Drawn


@pytest.mark.parametrize("kind", random_shapes.KINDS)
@pytest.mark.parametrize("code", "sdcz")
def test_what_is_drawn_keeps_its_bounds_and_comes_again(kind, code):
    extents, flops = random_shapes.EXTENTS[kind], (1e5, 1e8)
    found = random_shapes.draw(kind, "matmul", code, 40, 7, Bounds(extents, flops))
    assert found == random_shapes.draw(kind, "matmul", code, 40, 7, Bounds(extents, flops))
    assert found != random_shapes.draw(kind, "matmul", code, 40, 8, Bounds(extents, flops))
    for x in found:
        assert flops[0] <= x.flops <= flops[1]
        assert all(1 <= extent <= extents[1] for extent in (x.m, x.n, x.k))
    if kind == "gram":
        assert all(x.gram and x.m == x.n and x.ops[0] != x.ops[1] for x in found)
    elif kind == "stacks":
        assert {x.shared for x in found} == {"", "a", "b"}
    else:
        assert {x.ops for x in found} == {"NN", "NT", "TN", "TT"}
        assert {x.orders for x in found} == {"CC", "CF", "FC", "FF"}


def test_thin_shapes_have_vectors_among_them():
    found = random_shapes.draw("thin", "matmul", "s", 200, 1, Bounds((1, 4096), (1e4, 8e9)))
    assert all(x.smallest <= random_shapes.THIN[1] for x in found)
    assert {x.vectors for x in found} >= {"", "a", "b"}
    assert not any(
        x.vectors for x in random_shapes.draw("thin", "gemm", "s", 50, 1, Bounds((1, 999)))
    )


def test_what_no_shape_keeps_is_refused():
    with pytest.raises(ValueError, match="no plain shape"):
        random_shapes.draw("plain", "matmul", "s", 1, 1, Bounds((1, 2), (1e9, 2e9)))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("face", shape_products.FACES)
@pytest.mark.parametrize(
    "more",
    [{}, {"ops": "TN", "orders": "FC"}, {"m": 1, "vectors": "a"}, {"batch": 5},
     {"batch": 5, "shared": "b"}, {"ops": "TN", "n": 9, "gram": True}, {"ops": "CN", "code": "z"}],
    ids=str,
)  # fmt: skip
def test_both_sides_compute_the_same(face, more):
    drawn = Drawn(**{"code": "s", "m": 9, "n": 8, "k": 7} | more)
    if face == "gemm" and (drawn.batch > 1 or drawn.vectors):
        with pytest.raises(Exception, match=r"."):
            shape_products.Product(drawn, face).error()
        return
    product = shape_products.Product(drawn, face)
    assert product.error() <= 1
    product.ours = lambda: 2 * product.theirs()
    assert product.error() > 1


def row(ratio, flops=1e6, route="host", **more):
    side = round((flops / 2) ** (1 / 3))
    seconds = {report.CLGEMM: 1e-3, report.PEER: ratio * 1e-3} | more
    predicted = {report.ON_HOST: 2e-3, report.ON_DEVICE: 1e-3}
    return report.Row(Drawn("s", side, side, side), route, "", "", predicted, seconds, 0.1)


def test_the_summary_is_of_what_was_measured():
    rows = [row(1.0), row(4.0), row(0.5), row(1.0, 1e4)]
    found = report.summary(rows)
    assert found["geometric mean"] == pytest.approx(2 ** (1 / 4))
    assert found["geometric mean above 64^3"] == pytest.approx(2 ** (1 / 3))
    assert found[f"share >= {report.GOOD}"] == 0.75
    assert found["worst"] == 0.5
    assert found["prediction, host"]["median"] == pytest.approx(1.0)
    assert "0.500" in report.summary_text(found)
    text = report.worst_text(rows, 1)
    assert "0.50" in text
    assert "4.00" not in text
    assert "0.75 (4)" not in report.text_picture(rows)
    assert "1.00 (4)" in report.text_picture(rows)


def test_neighbouring_blocks_are_compared():
    """A machine at half its speed for a while changes no ratio."""

    def blocks(*seconds):
        return [timing.Timing(t, t, 1) for t in seconds]

    found = {report.CLGEMM: blocks(1.0, 2.0, 1.0), report.PEER: blocks(1.1, 2.4, 1.6)}
    assert bench_shapes.typical(found) == {report.CLGEMM: 2.0, report.PEER: 2.4}


@pytest.mark.parametrize(
    ("ours", "rounds"),
    [
        ([1.0] * 9, 3),
        ([1.0, 1.04, 1.0, 1.0], 3),
        ([1.0, 1.2, 1.0] + [1.0] * 6, 9),
        ([0.8, 1.0, 1.0] + [1.0] * 6, 9),
    ],
    ids=["alike", "nearly alike", "slower", "faster"],
)
def test_there_are_more_rounds_where_they_do_not_agree(monkeypatch, ours, rounds):
    """Whichever side is the faster one."""
    times = iter(ours)

    def measure(way):
        seconds = next(times) if way.run is ours else 1.0
        return timing.Timing(seconds, seconds, 1)

    monkeypatch.setattr(bench_shapes, "measure", measure)
    ways = {report.CLGEMM: bench_shapes.Way(ours), report.PEER: bench_shapes.Way(None)}
    found = bench_shapes.measured(ways, 3)
    assert [len(x) for x in found.values()] == [rounds, rounds]
    assert bench_shapes.typical(found)[report.CLGEMM] == 1.0


def test_two_microseconds_are_granted():
    seconds = {report.CLGEMM: 4e-6, report.PEER: 2.5e-6}
    found = report.Row(Drawn("s", 2, 2, 2), "host", "", "", {}, seconds, 0.0)
    assert (found.ratio, found.granted) == (pytest.approx(0.625), 1.0)
    late = report.Row(Drawn("s", 2, 2, 2), "host", "", "", {}, seconds | {report.CLGEMM: 5e-6}, 0.0)
    assert late.granted == late.ratio == 0.5


def test_the_slower_side_is_noticed():
    sides = {report.ON_DEVICE: 2e-3, report.ON_HOST: 1e-3}
    assert report.summary([row(1.0, **sides)])["routed to the slower side"] == 0
    wrong = row(1.0, route=report.ON_DEVICE, **sides)
    assert report.summary([wrong])["routed to the slower side"] == 1


def test_long_products_in_turn_are_compared_with_themselves_alone():
    alone = {report.alone(report.CLGEMM): 5e-4, report.alone(report.PEER): 4e-3}
    after = {report.after(report.CLGEMM): 3e-4, report.after(report.PEER): 1e-4}
    *long, neighbour = report.mixed_text([row(2.0, **alone, **after)]).splitlines()
    assert len(long) == 1, "a product of half a millisecond is not long"
    assert "peer" in long[0]
    assert "0.500" in long[0]
    assert "median 3.00, most 3.00" in neighbour


def command(device, *options, script="bench_shapes.py"):
    """Run a bench as a user does."""
    clean = environment.without_blas_variables(os.environ)
    more = {"CLGEMM_TUNE": "off", "CLGEMM_DEVICE": device.traits.platform.split()[0]}
    return subprocess.run(
        [sys.executable, str(BENCH / script), *options],
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=clean | more,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("options", [["--both"], ["--mixed"], ["--stacks"], ["--gram"]], ids=str)
def test_the_command_draws_times_and_sums_up(device, options, tmp_path):
    path = tmp_path / "out.json"
    run = command(
        device, "--count", "2", "--precisions", "s", "--rounds", "1", "--flops", "1e4", "1e6",
        "--json", str(path), *options,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    stored = json.loads(path.read_text())
    assert len(stored["rows"]) == stored["summaries"]["s"]["shapes"] == 2
    assert math.isfinite(stored["summaries"]["s"]["geometric mean"])
    assert "geometric mean" in run.stdout
    for found in stored["rows"]:
        assert found["error"] <= 1
        assert np.all(np.array(list(found["seconds"].values())) > 0)


@pytest.mark.process
@pytest.mark.slow
def test_limits_are_compared_in_processes_of_their_own(device, tmp_path):
    path = tmp_path / "out.json"
    options = ("--precisions", "s", "--sizes", "64", "--rounds", "1", "--json", str(path))
    run = command(device, *options, script="bench_limits.py")
    assert run.returncode == 0, run.stderr
    limits = json.loads(path.read_text())["limits"]
    for name in ("none", "OMP_NUM_THREADS=1"):
        (found,) = limits[name]
        assert found["ratio"] > 0
        assert found["allowed"] == (1 if "=1" in name else found["allowed"])


class Tensor(np.ndarray):
    """An array with the methods of PyTorch's that the bench asks for."""

    def cuda(self):
        return self

    cpu = cuda

    def numpy(self):
        return self.view(np.ndarray)


class Torch:
    """As much of PyTorch as the bench asks for, on the host."""

    matmul = staticmethod(np.matmul)
    cuda = SimpleNamespace(synchronize=lambda: None)

    @staticmethod
    def from_numpy(x):
        return x.view(Tensor)


@pytest.mark.parametrize("drawn", [Drawn("s", 300, 200, 150, "NT"), Drawn("s", 8, 8, 8, batch=90)])
def test_products_of_arrays_name_the_kernels_that_run(device, drawn, monkeypatch):
    monkeypatch.setattr(array_products.CuBLAS, "find", lambda: SimpleNamespace(torch=Torch))
    ran = []

    def enqueue(runner, *args, **more):
        ran.append(runner)
        return bound(runner, *args, **more)

    bound = KernelRunner.enqueue
    monkeypatch.setattr(KernelRunner, "enqueue", enqueue)
    with registry.using(device):
        product = array_products.ArrayProduct(drawn)
        assert product.error() < 1
        assert product.kernels() == ran[-1].work().config
        assert product.kernels().partition("(")[0] in BY_NAME
    engines.of(device).forget()
