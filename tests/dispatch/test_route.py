"""Where calls run: rules, predictions, what is measured and kept, and how it is told."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg.blas
from helpers import CPU, GPU, gemm, run_python, square

import clgemm
from clgemm.api import explain, repeated
from clgemm.cli import main
from clgemm.dispatch import break_even, engines, trial
from clgemm.dispatch.break_even import BreakEvens
from clgemm.dispatch.route import SHORT, SMALL_FLOPS, SMALL_WITH_COPIES, TIE, WORTH, route
from clgemm.dispatch.times import BreakEven, CopiedTimes, Curve, copied_seconds, counts
from clgemm.host import blas as host_blas
from clgemm.host import identity, openblas, scipy_blas
from clgemm.problem import PRECISIONS
from clgemm.runtime import processor, registry
from clgemm.tuning.measure import timing
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup

SHAPES = break_even.SHAPES
HOST_RATES = (1e-7, 9e-7, 2e-11, 1e-10, 3e-10)
DEVICE_RATES = (2e-5, 1e-9, 1e-11, 1e-10, 3e-10)


def curve(rates, shapes=SHAPES):
    """Make a curve of times that follow from rates exactly."""
    return Curve.fitted({shape: exactly(rates, shape) for shape in shapes})


def exactly(rates, shape):
    """Give the seconds that follow from rates."""
    return sum(rate * count for rate, count in zip(rates, counts(shape), strict=True))


def ideal():
    """Give the device half the time of a large product, and 20 us for a launch."""
    return BreakEven(curve(HOST_RATES), curve(DEVICE_RATES))


def where(traits, problem, wish, measured=None):
    return route(traits, problem, wish, measured).where


@pytest.mark.parametrize("traits", [CPU, GPU], ids=["CPU", "GPU"])
def test_by_size_where_nothing_is_measured(traits):
    assert where(traits, square(2), "auto") == "host"
    assert square(128).flops == SMALL_FLOPS
    assert square(896).flops == SMALL_WITH_COPIES
    assert route(traits, square(100), "auto", None).where == "host"
    limit = 128 if traits.unified_memory else 896
    assert where(traits, square(limit), "auto") == "host"
    assert where(traits, square(limit + 1), "auto") == "device"
    assert where(traits, square(limit, "c"), "auto") == "device", "four times the work"


H200 = replace(
    GPU, platform="NVIDIA CUDA", vendor="NVIDIA Corporation", name="NVIDIA H200", fp64=True,
    compute_units=132, compute_capability=(9, 0), max_work_group_size=1024,
    local_memory=48 << 10,
)  # fmt: skip
SEEN = {
    "s": {512: 0.379, 704: 0.80, 768: 0.86, 900: 1.1, 1000: 1.19, 1024: 1.19, 1500: 1.95, 2048: 2.8,
          4096: 6.8, 8192: 19.2, 16384: 83.5, 32768: 365},
    "d": {256: 0.245, 512: 0.56, 640: 0.97, 768: 1.27, 1000: 1.82, 1024: 1.91, 1500: 3.34,
          2048: 4.3, 4096: 10.7, 16384: 187, 32768: 1400},
}  # fmt: skip
"""Milliseconds of squares from host to host beside 16 cores, on an H200; from 640 to 1500 on
H100s."""


@pytest.mark.parametrize("code", "sd")
def test_what_is_copied_is_predicted_within_a_fourth(code, tmp_path, monkeypatch):
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CLGEMM_SHIPPED", raising=False)
    store = lookup.store_for(H200)
    model = lookup.find_stored(store, H200, PRECISIONS[code]).model
    for n, seen in SEEN[code].items():
        times = CopiedTimes(model.least_seconds(square(n, code)), 16)
        assert times.device_seconds(square(n, code)) == pytest.approx(1e-3 * seen, rel=0.25), n


def test_where_nothing_is_measured_a_copy_and_the_host_s_cores_decide():
    def sides(n, code, cores, kernels=2e-5):
        found = route(H200, square(n, code), "auto", CopiedTimes(kernels, cores))
        assert found.host_seconds > 0 < found.device_seconds
        return found.where

    assert sides(512, "s", 16) == sides(512, "d", 16) == "host"
    assert sides(640, "s", 16) == "host", "where both take as long"
    assert sides(704, "s", 16) == sides(576, "d", 16) == "device"
    assert sides(768, "d", 16) == sides(1000, "s", 16) == sides(512, "c", 16) == "device"
    assert sides(512, "s", 4) == "device", "of fewer cores a copy takes as long"
    assert sides(768, "s", 32) == "host", "of more it takes longer"
    assert sides(1000, "d", 32) == sides(1024, "s", 32) == sides(800, "s", 16) == "device"
    assert sides(1000, "s", 16, kernels=1.0) == "host", "slow kernels"


def test_beyond_what_was_measured_a_copy_is_estimated():
    measured = ideal()
    times, largest = CopiedTimes(0.5, 4, measured), max(SHAPES, key=lambda s: counts(s)[2])
    g = largest.problem("s")
    assert times.device_seconds(g) == measured.device_seconds(g)
    assert times.host_seconds(g) == measured.host_seconds(g)
    larger = square(16384)
    assert times.device_seconds(larger) == copied_seconds(larger.operand_bytes, 0.5)
    assert times.host_seconds(larger) == measured.host_seconds(larger)


def test_by_wish():
    assert route(CPU, square(2), "device", None).where == "device"
    assert route(CPU, square(512), "host", None).where == "host"


@pytest.mark.parametrize(
    ("traits", "share"),
    [(CPU, WORTH), (GPU, TIE), (replace(GPU, unified_memory=True), TIE)],
    ids=["CPU", "GPU", "GPU in the host's memory"],
)
def test_the_faster_one_is_taken(traits, share):
    """A CPU device for short products only if it is clearly faster, since it shares the cores."""
    found = ideal()
    for n in range(130, 600, 5):
        g = square(n)
        decision = route(traits, g, "auto", found)
        host, device = decision.host_seconds, decision.device_seconds
        limit = share if host < SHORT else TIE
        assert decision.where == ("device" if device <= limit * host else "host")
        exact = [exactly(rates, Shape(n, n, n)) for rates in (HOST_RATES, DEVICE_RATES)]
        np.testing.assert_allclose((host, device), exact, rtol=1e-6)
    assert where(traits, square(130), "auto", found) == "host"
    assert where(traits, square(300), "auto", found) == "device"


@pytest.mark.parametrize(
    ("gain", "middle", "long"),
    [(0.9, "device", "device"), (0.99, "host", "device"), (1.02, "host", "host")],
)
def test_a_cpu_device_takes_what_it_is_predicted_to_gain_from(gain, middle, long):
    """And of what is short only what it gains much from: predictions err."""
    shapes = [Shape(n, n, n) for n in (64, 128, 256, 512, 1024)]
    host = {shape: 1e-5 + shape.m**3 / 1e11 for shape in shapes}
    found = BreakEven(
        Curve.fitted(host), Curve.fitted({shape: gain * t for shape, t in host.items()})
    )
    assert where(CPU, square(200), "auto", found) == "host"
    assert where(CPU, square(1000), "auto", found) == middle
    assert where(CPU, square(3000), "auto", found) == long


def test_a_stack_is_launched_once():
    found, one = ideal(), square(110)
    stack = one._replace(batch=50, stride_a=6400, stride_b=6400, stride_c=6400)
    assert where(CPU, one, "auto", found) == "host"
    assert where(CPU, stack, "auto", found) == "device"


def test_gaps_cost_the_host_a_copy():
    """SciPy copies an operand whose columns are apart; a device reads it where it lies."""
    found, g = ideal(), square(90)
    gaps = g._replace(lda=100, ldb=100)
    assert found.host_seconds(gaps) > found.host_seconds(g)
    assert found.device_seconds(gaps) == found.device_seconds(g)


def test_predictions_are_near_where_measured_and_between():
    """Threads that start at some size make a step that no sum of counts follows."""

    def seconds(shape):
        size = math.prod(shape[:4])
        return 1e-6 + 2e-11 * size + (4e-5 if size > 110**3 else 0)

    found = Curve.fitted({shape: seconds(shape) for shape in SHAPES})
    errors = [abs(math.log(found.one(shape) / seconds(shape))) for shape in SHAPES]
    assert np.median(errors) < 0.1
    for n in (150, 230, 320, 700, 2000, 8000):
        shape = Shape(n, n, n)
        assert found.one(shape) == pytest.approx(seconds(shape), rel=0.25)


def test_rates_are_never_negative_and_few_times_suffice(rng):
    for count in (1, 2, 3, 5, len(SHAPES)):
        noisy = {s: 1e-5 * rng.uniform(0.2, 5) for s in SHAPES[:count]}
        found = Curve.fitted(noisy)
        assert min(found.rates) >= 0
        assert 0 < found.one(Shape(3000, 3000, 3000)) < np.inf


def test_curves_survive_json():
    found = curve(HOST_RATES)
    again = Curve.from_json(json.loads(json.dumps(found.as_json())))
    assert again == found
    row = [3, 2, 3, 1, 0, 1]
    assert Curve.from_json([[*row, 1.0]]).seconds == {Shape(3, 2, 3, 1, False, True): 1.0}
    bad_rows = [row], [[*row, -1.0]], [[0, *row[1:], 1.0]], [[*row, "x"]], [[1, 2, 3, 1.0]]
    for bad in ([], None, *bad_rows):
        with pytest.raises((TypeError, ValueError)):
            Curve.from_json(bad)


def test_two_measurements_merge_to_the_least_times():
    fast, slow = curve(HOST_RATES), curve([3 * r for r in HOST_RATES], SHAPES[:5])
    merged = BreakEven(fast, slow).least(BreakEven(slow, fast))
    assert merged.host == fast
    assert dict(merged.device.seconds) == dict(fast.seconds)


def found_of(device):
    """Return the device of a device."""
    return next(f for f in registry.devices.find() if f.traits == device.traits)


@pytest.fixture
def fresh(device, monkeypatch, tmp_path):
    """Give an engine that has measured nothing, tuning on and an empty cache directory."""
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:4])
    monkeypatch.setattr(trial, "NEAR", 0)  # nothing is tried
    fresh = engines.of(registry.Device(found_of(device), "a test"))
    for code, precision in PRECISIONS.items():
        fresh.parameters.use(code, lookup.defaults(device.traits, precision, "a test"))
    with registry.using(fresh.device):
        yield fresh


def again(fresh):
    """Forget what is in memory but the parameters, as another process would not know it."""
    parameters = fresh.parameters
    fresh.__init__(fresh.device)
    fresh.parameters, fresh.break_evens = parameters, BreakEvens(fresh.device, parameters)


def decide(n=200, code="s"):
    a = np.ones((n, n), PRECISIONS[code].dtype, "F")
    np.testing.assert_allclose(getattr(clgemm, f"{code}gemm")(1.0, a, a), a @ a)
    return clgemm.explain(a, a)


def measure(fresh, code="s"):
    """Measure as `clgemm tune` does, and begin anew."""
    fresh.measure_break_evens(PRECISIONS[code])
    again(fresh)


def test_no_call_measures(fresh, measurements):
    """What is not known has a default, in this process and until its end."""
    found = decide()
    assert (found.host_seconds, found.route) == (None, "device")
    assert decide(100).route == "host"
    fresh.measure_break_evens(PRECISIONS["s"])
    assert measurements == ["s"]
    assert decide(90).host_seconds is None
    assert decide() == found


def test_break_evens_are_measured_once_and_kept(fresh, measurements):
    measure(fresh)
    first = decide()
    assert first.host_seconds is not None
    assert fresh.break_evens.known(PRECISIONS["s"]).host.seconds.keys() == set(SHAPES[:4])
    measure(fresh)
    assert decide() == first
    assert measurements == ["s"]
    assert fresh.break_evens.is_missing(PRECISIONS["d"])
    measure(fresh, "d")
    assert not fresh.break_evens.is_missing(PRECISIONS["d"])
    assert measurements == ["s", "d"]


def test_what_is_only_measured_leaves_no_line_about_a_call(fresh, caplog):
    """There are thousands; writing them takes longer than the products."""
    with caplog.at_level(logging.DEBUG, logger="clgemm"):
        measure(fresh)
        clgemm.sgemm(1.0, np.ones((200, 200)), np.ones((200, 200)))
    said = [r.getMessage() for r in caplog.records if r.name == "clgemm.dispatch.engine"]
    assert len(said) == 1
    assert "200 x 200 x 200" in said[0]


@pytest.mark.parametrize("change", ["host", "parameters", "damage", "schema"])
def test_a_change_measures_again(change, fresh, measurements, monkeypatch, tmp_path):
    measure(fresh)
    if change == "host":
        monkeypatch.setattr(break_even.identity, "identity", lambda: {"threads": 99})
    elif change == "parameters":
        tuned = fresh.parameters.of("s")
        model = replace(tuned.model, variants=tuned.model.variants * 2)
        fresh.parameters.use("s", replace(tuned, model=model))
    else:
        (path,) = tmp_path.glob("*.state.v4.json")
        text = path.read_text()
        broken = {"damage": text[:-9], "schema": text.replace('schema": 4', 'schema": 0')}
        path.write_text(broken[change])
    assert fresh.break_evens.is_missing(PRECISIONS["s"])
    again(fresh)
    assert decide().host_seconds is None
    measure(fresh)
    assert measurements == ["s", "s"]
    assert decide().host_seconds is not None


def test_a_busy_machine_is_measured_again_but_not_for_ever(fresh, measurements, monkeypatch):
    monkeypatch.setattr(timing.Neighbours, "share", lambda _self: 1.0)
    for _ in range(break_even.ENOUGH + 3):
        measure(fresh)
    assert len(measurements) == break_even.ENOUGH


def test_what_a_busy_machine_measured_ends_with_a_quiet_moment(fresh, measurements, monkeypatch):
    monkeypatch.setattr(timing.Neighbours, "share", lambda _self: 1.0)
    measure(fresh)
    assert fresh.break_evens.is_missing(PRECISIONS["s"])
    monkeypatch.setattr(timing.Neighbours, "share", lambda _self: 0.0)
    for _ in range(3):
        measure(fresh)
    assert len(measurements) == 2


def test_nothing_is_measured_or_read_with_tuning_off(fresh, measurements, monkeypatch, tmp_path):
    monkeypatch.setenv("CLGEMM_TUNE", "off")
    measure(fresh)
    assert decide().host_seconds is None
    assert not measurements
    assert not list(tmp_path.glob("*.state.v4.json"))


def test_a_directory_that_cannot_be_written_fails_no_call(fresh, measurements, monkeypatch):
    monkeypatch.setenv("CLGEMM_CACHE_DIR", "/proc/nowhere")
    measure(fresh)
    decide()
    assert measurements == ["s"]


def test_a_product_that_the_host_computes_is_found_again(fresh, monkeypatch):
    """From the second call on, without the driver."""
    launch = BreakEven(curve(HOST_RATES), curve([1.0, *DEVICE_RATES[1:]]))
    monkeypatch.setattr(break_even, "measured", lambda *_: launch)
    measure(fresh)
    a, b = np.ones((140, 150), np.float32), np.ones((150, 120), np.float32, "F")
    kinds = {
        "gemm": lambda x, y: clgemm.sgemm(2.0, x, y),
        "matmul": clgemm.matmul,
    }
    for name, call in kinds.items():
        fresh.forget()
        first = call(a, b)
        assert len(fresh.repeated) == 1
        with monkeypatch.context() as patch:
            patch.setattr(engines, "compute", None)
            np.testing.assert_array_equal(call(a, b), first)
            with pytest.raises(TypeError):  # copied by SciPy: the route knows what that costs
                call(np.ones((140, 300), np.float32)[:, ::2], b)
            with pytest.raises(TypeError):  # no such shape was decided on
                call(a[:130], b)
            patch.setenv("CLGEMM_ROUTE", "device")
            with pytest.raises(TypeError):
                call(a, b)
        assert name in kinds


def test_what_was_found_is_forgotten_when_parameters_change(fresh):
    x = np.ones((100, 100), np.float32)
    repeated.remember(x, x, None, None)
    assert repeated.matmul(x, x) is not None
    fresh.forget()
    assert repeated.matmul(x, x) is None


@pytest.mark.parametrize("order", "FC")
def test_the_host_writes_either_order_in_place(order, rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    a, b = rng.uniform(-1, 1, (30, 20)) + 1j, rng.uniform(-1, 1, (20, 10)) - 2j
    c = np.zeros((30, 10), complex, order)
    used, real = [], scipy.linalg.blas.zgemm

    def zgemm(*arguments, **more):
        used.append(more)
        return real(*arguments, **more)

    monkeypatch.setattr(scipy_blas, "gemm", lambda _: zgemm)
    gemm(1.0, a, b, 0.0, c, conj_a=True)
    np.testing.assert_allclose(c, a.conj() @ b)
    assert np.shares_memory(used[0]["c"], c)


def test_the_host_multiplies_stacks_by_numpy(rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    monkeypatch.setattr(scipy_blas, "gemm", lambda _: None)
    a, b = rng.uniform(-1, 1, (40, 5, 6)), rng.uniform(-1, 1, (40, 6, 7))
    np.testing.assert_allclose(clgemm.matmul(a, b), np.matmul(a, b))


def test_explain_tells_what_happens(fresh, monkeypatch):
    monkeypatch.setattr(break_even, "measured", lambda *_: ideal())
    measure(fresh)
    x = np.ones((300, 300), np.float32)
    found = clgemm.explain(x, x)
    assert isinstance(found, clgemm.Explanation)
    assert (found.route, found.product) == ("device", "sgemm (300 x 300 x 300)")
    assert found.device == fresh.device.traits.describe()
    assert found.config.startswith(fresh.parameters.of("s").configs[0].family)
    assert found.origin == fresh.parameters.of("s").origin
    assert found.device_seconds < found.host_seconds < 1e-2
    for word in ("300", "device", found.config, "predicted", "transfers"):
        assert word in str(found)
    shared = fresh.device.traits.unified_memory
    assert (found.bytes_up, found.bytes_down) == ((0, 0) if shared else (720000, 360000))
    with pytest.raises(FrozenInstanceError):
        found.route = "host"
    y = np.ones((130, 130), np.float32)
    host = clgemm.explain(y, y.copy(), trans_b=1)
    assert (host.route, host.config) == ("host", "")
    assert "the device is hardly faster" in str(host)
    assert clgemm.explain(x[:2], x[:, :2]).host_seconds is None
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    assert clgemm.explain(x, x).why == "CLGEMM_ROUTE=host"


def test_explain_looks_at_every_kind_of_operand(device):
    with registry.using(device):
        z = np.empty((4, 80, 80), complex)
        stack = clgemm.explain(z, z)
        assert stack.product == "zgemm 4 x (80 x 80 x 80)"
        assert clgemm.explain(z[0, ::2, ::2], z[0, :40]).copied == ("a",)
        assert "copied first" in str(clgemm.explain(z[0, ::2, ::2], z[0, :40]))
        assert clgemm.explain(z[0], z[0], z[1], beta=2, trans_a=2).route == "device"
        on_cpu = device.traits.kind == "cpu"
        integers = clgemm.explain(np.empty((3, 4), int), np.empty((4, 2), int))
        assert integers.route == ("device" if on_cpu else "host")
        assert integers.product == "int64 (3 x 2 x 4)"
        assert clgemm.explain(np.empty((3, 4), object), np.empty((4, 2), object)).route == "host"
        assert clgemm.explain(np.empty((3, 4), np.float16), np.empty(4, np.float16)).route
        assert (
            clgemm.explain(np.empty((3, 0)), np.empty((0, 2))).why == "there is nothing to multiply"
        )
        with pytest.raises(ValueError, match="inner dimensions"):
            clgemm.explain(z[0], z[0, :3])
        with pytest.raises(ValueError, match="one axis at least"):
            clgemm.explain(z[0], 3.0)
        with pytest.raises(ValueError, match="c is"):
            clgemm.explain(z[0], z[0], z)
        with pytest.raises(TypeError, match="on a device"):
            clgemm.explain(clgemm.to_device(z[0]), z[0])
        assert "sgemm (50 x 40 x 30)" in str(explain.of_shape("s", 50, 40, 30))


@pytest.mark.parametrize("wish", ["auto", "device", "host"])
def test_each_call_says_what_it_does(device, wish, caplog, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", wish)
    # Of what is small there is no line: asking for the level takes too long.
    a, tiny = np.ones((190, 190), np.float32), np.ones((3, 3), np.float32)
    with registry.using(device), caplog.at_level(logging.DEBUG, logger="clgemm"):
        for x in (a, tiny):
            for call in (lambda x=x: clgemm.sgemm(1.0, x, x), lambda x=x: clgemm.matmul(x, x)):
                caplog.clear()
                call()
                if wish != "device" and x is tiny:
                    assert not caplog.records
                    continue
                lines = [r.getMessage() for r in caplog.records if "sgemm" in r.getMessage()]
                assert len(lines) == 1
                assert f"on the {'host' if wish == 'host' else 'device'}" in lines[0]
                assert f"{len(x)} x {len(x)} x {len(x)}" in lines[0]


@pytest.mark.process
def test_the_host_s_blas_is_named():
    found = identity.identity()
    assert all(isinstance(value, str | int) for value in found.values())
    assert processor.usable_cores() >= 1
    running = openblas.of_numpy()
    if running is None:
        pytest.skip("NumPy's BLAS is no OpenBLAS, or its library cannot be asked")
    assert identity.library() == {"kernels": running.core, "threads": running.threads()}
    program = """
from clgemm.host import identity
print(identity.library()["threads"], *identity.identity().values())
"""
    run = run_python(program, OPENBLAS_NUM_THREADS=1)
    assert run.stdout.startswith("1 ")
    assert run.stdout.endswith("OPENBLAS_NUM_THREADS=1\n")
    assert run.stderr == ""


def test_the_command_line_explains(capsys):
    assert main.main(["explain", "90", "3x50x40", "--precision", "sz"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "sgemm (90 x 90 x 90)", "zgemm (90 x 90 x 90)",
        "sgemm (3 x 50 x 40)", "zgemm (3 x 50 x 40)",
    ]  # fmt: skip


def test_explain_counts_blocks_and_bytes(device, monkeypatch):
    """Where operands are copied, as they are for a limit that they do not fit in."""
    monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", "1")
    x = np.empty((600, 600), np.float32)
    with registry.using(registry.Device(found_of(device), "a test")):
        found = clgemm.explain(x, x)
    assert found.route == "device"
    assert found.blocks > 1
    assert found.bytes_up >= 2 * x.nbytes
    assert found.bytes_down == pytest.approx(x.nbytes, rel=0.2)
    assert f"in {found.blocks} blocks" in str(found)


@pytest.mark.parametrize(("order_a", "order_b", "order_c"), ["FFF", "CCC", "FCC", "CFF"])
def test_long_products_of_the_host_go_in_panels(order_a, order_b, order_c, rng, monkeypatch):
    """So that Ctrl-C is heard between them."""
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    monkeypatch.setattr(host_blas, "PANEL_FLOPS", 1e5)
    monkeypatch.setattr(host_blas, "NARROWEST", 2)
    a = np.array(rng.uniform(-1, 1, (50, 60)) + 1j, order=order_a)
    b = np.array(rng.uniform(-1, 1, (60, 40)) - 2j, order=order_b)
    calls, real = [], scipy.linalg.blas.zgemm

    def zgemm(*arguments, **more):
        calls.append(arguments)
        return real(*arguments, **more)

    monkeypatch.setattr(scipy_blas, "gemm", lambda _: zgemm)
    for conj in (False, True):
        for beta in (0.0, 0.5):
            c = np.full((50, 40), 1 + 1j, order=order_c)
            want = 2 * a @ (b.conj() if conj else b) + beta * c
            gemm(2.0, a, b, beta, c, conj_b=conj)
            np.testing.assert_allclose(c, want)
    assert len(calls) > 4 * 8


@pytest.mark.parametrize(("m", "n", "k"), [(3000, 3000, 3000), (500, 70, 9_000_000), (9, 5000, 0)])
def test_panels_of_the_host_are_alike(m, n, k):
    """A narrow last one would pack all of A for a few columns."""
    panels = host_blas._panels(np.broadcast_to(np.complex64(0), (m, n)), k)
    widths = [len(range(n)[panel]) for panel in panels]
    assert sum(widths) == n
    assert len({*widths[:-1]}) <= 1
    assert all(width % host_blas.NARROWEST == 0 for width in widths[:-1])
    assert widths[-1] > widths[0] - len(widths) * host_blas.NARROWEST
    narrow = widths[0] <= host_blas.NARROWEST
    rounded = 1 + host_blas.NARROWEST / widths[0]
    assert narrow or 8 * m * widths[0] * k <= rounded * host_blas.PANEL_FLOPS


@pytest.fixture
def clock(monkeypatch):
    """Stop time, for the measurement alone: its products move it on, and the host's take 20 us."""
    found = SimpleNamespace(now=100.0)

    def host(*_arguments, **_more):
        found.now += 2e-5

    stopped = SimpleNamespace(perf_counter=lambda: found.now, monotonic=lambda: found.now)
    monkeypatch.setattr(break_even, "time", stopped)
    monkeypatch.setattr(break_even.timing, "settle", lambda _seconds: None)
    monkeypatch.setattr(break_even.host_blas, "multiply", host)
    return found


def test_a_moment_of_noise_does_not_end_the_measurement(clock, monkeypatch):
    """A thread that has to wait for its turn takes 10 ms for a product of 1 us."""
    calls = []

    def on_device(call):
        calls.append(call)
        clock.now += 0.03 if len(calls) < 4 else 1e-6

    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:6])
    found = break_even.measured(PRECISIONS["s"], on_device)
    assert found.device.seconds.keys() == set(SHAPES[:6])
    assert max(found.device.seconds.values()) < 0.01


def test_a_slow_device_is_not_measured_for_long(clock):
    def on_device(call):
        clock.now += 1e-8 * call.a.size * call.c.shape[-1]

    start = clock.now
    found = break_even.measured(PRECISIONS["s"], on_device)
    longest = break_even.MOST * break_even.LONGEST  # the last ones may begin just before the end
    assert clock.now - start < break_even.MOST_SECONDS + 2 * longest
    assert SHAPES[0] in found.device.seconds
    assert Shape(1024, 1024, 1024) not in found.device.seconds


def test_noise_in_the_first_pass_is_measured_again(clock, monkeypatch):
    """However long it made a small product: larger ones were faster."""
    calls, spoilt = [], SHAPES[3]

    def on_device(call):
        shapes = call.a.shape, call.b.shape
        calls.append(shapes)
        noisy = shapes == (spoilt[::2], spoilt[2:0:-1]) and calls.count(shapes) <= break_even.LEAST
        clock.now += 0.004 if noisy else 1e-6

    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:6])
    found = break_even.measured(PRECISIONS["s"], on_device)
    assert found.device.seconds[spoilt] < 0.003


def test_noise_does_not_make_the_measurement_long(clock, monkeypatch):
    """One product in two waits for its turn."""
    calls = []

    def slow(*_arguments, **_more):
        calls.append(0.5 if not calls else 0.03 if len(calls) % 2 else 2e-5)  # builds at first
        clock.now += calls[-1]

    monkeypatch.setattr(break_even.host_blas, "multiply", slow)
    found = break_even.measured(PRECISIONS["s"], slow)
    assert sum(calls[1:]) < break_even.MOST_SECONDS + 2 * break_even.LEAST * 0.03
    for side in found:
        assert len(side.seconds) >= 4
        assert max(side.seconds.values()) < 1e-3
