"""What is measured, what is predicted from it, when a call measures, and that bits stay equal."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter

import numpy as np
import pytest
from helpers import PATIENCE, run_threads

import clgemm
from clgemm import settings
from clgemm.api.repeated import multiplications
from clgemm.dispatch import break_even, building, engines, times
from clgemm.dispatch.break_even import Limits
from clgemm.dispatch.route import SMALL_SHALLOW, SMALL_SHARED, is_small
from clgemm.dispatch.times import OUTLIER, BreakEven, Curve, counts
from clgemm.problem import HERMITIAN, PRECISIONS, SYMMETRIC, Call, describe
from clgemm.runtime import registry
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.verify import random_matrix
from clgemm.tuning.results import Effort, Result
from clgemm.tuning.search import search
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup

SHAPES = break_even.SHAPES
DRAWN = tuple(shape for shape in SHAPES if shape not in break_even.LARGE)
UNSEEN = tuple(s for s in break_even.drawn(160, 40) if s not in SHAPES)
S = PRECISIONS["s"]


# --- the shapes -----------------------------------------------------------------------------------


def test_operands_of_drawn_shapes_lie_in_all_ways_about_equally_often():
    for shapes in (DRAWN, [s for s in DRAWN if s.batch > 1]):
        ways = Counter((s.trans_a, s.trans_b) for s in shapes)
        assert len(ways) == 4
        assert min(ways.values()) > len(shapes) / 8


@pytest.mark.parametrize("extent", ["m", "n", "k"])
def test_both_halves_of_each_extent_are_drawn(extent):
    """By logarithms, up to the largest matrix: no side of the plane is without support."""
    for stacked, most in ((False, break_even.EXTENT), (True, 96)):
        drawn = [getattr(s, extent) for s in DRAWN if (s.batch > 1) == stacked]
        above = sum(x * x > most for x in drawn)
        assert len(drawn) / 4 < above < len(drawn) * 0.95
        assert min(drawn) < most**0.5
        assert max(drawn) > most**0.8


def test_stacks_of_few_and_of_many_matrices_are_drawn():
    stacks = [s.batch for s in DRAWN if s.batch > 1]
    assert len(stacks) == break_even.STACKS
    assert len(DRAWN) == break_even.PLAIN + break_even.STACKS
    middle = break_even.BATCH**0.5
    assert min(sum(x < middle for x in stacks), sum(x > middle for x in stacks)) > len(stacks) / 5


def test_no_vectors_are_drawn_nor_what_goes_to_the_host_anyway():
    for shape in SHAPES:
        assert min(shape.m, shape.n) > 1
        assert 2 * math.prod(shape[:4]) >= break_even.LEAST_FLOPS
        m, n, k, batch = shape[:4]
        assert batch * max(m * k, k * n, m * n) <= break_even.ELEMENTS


def test_every_process_draws_the_same_shapes_once():
    assert break_even.drawn() == SHAPES
    assert len(set(SHAPES)) == len(SHAPES)
    sizes = [math.prod(shape[:4]) for shape in DRAWN]
    assert sizes == sorted(sizes), "what takes too long is left out, with all that is larger"
    assert SHAPES[-1] == max(SHAPES, key=lambda s: math.prod(s[:4]))


@pytest.mark.parametrize("shape", [Shape(5, 6, 7, 1, *x) for x in itertools.product((0, 1), (0, 1))]
                         + [Shape(5, 6, 7, 3, trans_b=True)], ids=str)  # fmt: skip
def test_what_is_timed_is_the_shape(shape, monkeypatch):
    """As the route describes a call: sizes, and how the operands lie."""
    seen = []
    monkeypatch.setattr(break_even, "SHAPES", (shape,))
    monkeypatch.setattr(break_even.timing, "settle", lambda _seconds: None)
    break_even.measured(S, seen.append)
    m, n, k, batch = shape[:4]
    assert seen
    for call in seen:
        a, b, c = ((x if batch > 1 else x[None])[-1] for x in (call.a, call.b, call.c))
        assert (a.shape, b.shape, c.shape) == ((m, k), (k, n), (m, n))
        assert (call.c.ndim == 3) == (batch > 1)
        for x, trans in ((a, shape.trans_a), (b, shape.trans_b), (c, False)):
            assert x.flags.c_contiguous if trans else x.flags.f_contiguous


def test_what_takes_longer_than_it_may_is_left_out(monkeypatch):
    """Builds of kernels included; each side is measured a little in any case."""
    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:9])
    monkeypatch.setattr(break_even.timing, "settle", lambda _seconds: None)

    def builds(_call):
        time.sleep(0.05)

    found = break_even.measured(S, builds, Limits(time.monotonic() + break_even.MOST_SECONDS / 2))
    assert 1 <= len(found.device.seconds) < 9
    assert len(found.host.seconds) == 9
    found = break_even.measured(S, builds, Limits(time.monotonic()))
    assert (len(found.device.seconds), len(found.host.seconds)) == (1, 1)


def test_one_long_build_leaves_the_host_its_time(monkeypatch):
    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:9])
    monkeypatch.setattr(break_even.timing, "settle", lambda _seconds: None)
    found = break_even.measured(S, lambda _call: time.sleep(0.3), Limits(time.monotonic() + 0.2))
    assert (len(found.device.seconds), len(found.host.seconds)) == (1, 9)


def test_shapes_that_are_not_ready_are_left_out_on_the_device_but_the_first(monkeypatch):
    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:9])
    monkeypatch.setattr(break_even.timing, "settle", lambda _seconds: None)
    asked, wide = [], SHAPES[5].m

    def is_ready(call):
        asked.append(call.c.shape[-2])
        return call.c.shape[-2] == wide

    found = break_even.measured(S, lambda _call: None, Limits(is_ready=is_ready))
    assert list(found.host.seconds) == list(SHAPES[:9])
    assert list(found.device.seconds) == [SHAPES[0], *(s for s in SHAPES[1:9] if s.m == wide)]
    assert asked == [s.m for s in SHAPES[1:9]]


@pytest.mark.parametrize("short", ["host", "device"])
def test_a_side_timed_at_a_few_shapes_predicts_nothing(short, cold, monkeypatch):
    """By the smallest shapes alone the host took 10 us for whatever was asked."""
    cold.parameters.use("s", lookup.defaults(cold.device.traits, S, "a test"))
    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:20])
    for count, enough in ((9, False), (10, True)):
        found = always("device")
        few = dict(list(getattr(found, short).seconds.items())[:count])
        found = found._replace(**{short: Curve.fitted(few)})
        monkeypatch.setattr(break_even, "measured", lambda *_, found=found: found)
        cold.measure_break_evens(S)
        cold.break_evens.forget(S)
        assert (cold.break_evens.known(S) is not None) == enough
        monkeypatch.setattr(break_even._Measured, "settled", False)


def test_what_was_cut_short_is_measured_again(cold, monkeypatch):
    cold.parameters.use("s", lookup.defaults(cold.device.traits, S, "a test"))
    monkeypatch.setattr(break_even, "measured", lambda *_: always("device"))
    cold.measure_break_evens(S, Limits(time.monotonic() - 1))
    assert cold.break_evens.known(S) is not None
    assert cold.break_evens.is_missing(S)
    cold.measure_break_evens(S)
    assert not cold.break_evens.is_missing(S)


def test_break_evens_take_no_longer_than_the_search_before_them_may(cold, monkeypatch):
    """On an H100 whose driver had compiled nothing they took half a minute."""
    cold.parameters.use("s", lookup.defaults(cold.device.traits, S, "a test"))
    monkeypatch.setattr(cold.parameters, "tune", lambda code, effort: (code, effort))
    limits = []
    monkeypatch.setattr(
        break_even, "measured", lambda *given: limits.append(given[2]) or always("device")
    )
    before, effort = time.monotonic(), Effort(seconds=7.0)
    assert cold.tune("s", effort) == ("s", effort)
    assert before + 7 <= limits[0].until <= time.monotonic() + 7


@pytest.mark.parametrize("built", [True, False])
def test_without_builds_only_kernels_that_are_built_are_timed(built, cold, monkeypatch):
    """The first shape aside; what is left out is measured again."""
    cold.parameters.use("s", lookup.defaults(cold.device.traits, S, "a test"))
    monkeypatch.setattr(cold.device.programs, "is_built", lambda _spec: built)
    measured, real = [], break_even.measured
    monkeypatch.setattr(
        break_even, "measured", lambda *given: measured.append(real(*given)) or measured[-1]
    )
    cold.try_to_measure(S, builds=False)
    assert len(measured[0].device.seconds) == (len(break_even.SHAPES) if built else 1)
    assert cold.break_evens.is_missing(S) != built
    if not built:
        cold.try_to_measure(S)
        assert len(measured[1].device.seconds) == len(break_even.SHAPES)
        assert not cold.break_evens.is_missing(S)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_call_is_ready_if_all_of_its_kernels_are_built(missing, cold, monkeypatch):
    cold.parameters.use("s", lookup.defaults(cold.device.traits, S, "a test"))
    x = np.ones((50, 50), np.float32)
    call = Call.of(1.0, x, x, 0.0, x.copy())
    g = describe(*call.operands, call.c, reads_c=False)
    config, plan = building._plan(cold.device.traits, cold.parameters, g)
    specs = [plan.steps[0].kernel, plan.steps[0].kernel._replace(name="another")]
    steps = tuple(plan.steps[0]._replace(kernel=spec) for spec in specs)
    monkeypatch.setattr(building, "_plan", lambda *_: (config, plan._replace(steps=steps)))
    monkeypatch.setattr(cold.device.programs, "is_built", lambda spec: spec != specs[missing])
    assert not cold._is_ready(call)
    monkeypatch.setattr(cold.device.programs, "is_built", specs.__contains__)
    assert cold._is_ready(call)


@pytest.mark.usefixtures("efforts")
def test_a_first_call_builds_nothing_for_break_evens(on_cores, monkeypatch):
    given = []
    monkeypatch.setattr(on_cores, "try_to_measure", lambda *_, **more: given.append(more))
    multiply(200)
    assert given == [{"builds": False}]


# --- predictions ----------------------------------------------------------------------------------


def with_a_step(shape):
    """Give seconds that jump by a factor of two, where a library begins to do otherwise."""
    rates = 2e-6, 1e-7, 1.2e-11, 8e-11, 2e-10
    seconds = sum(rate * count for rate, count in zip(rates, counts(shape), strict=True))
    return seconds * (2 if shape.m * shape.n * shape.k > 1e6 else 1)


def misses(curve, truth, shapes):
    return [abs(math.log(curve.one(shape) / truth(shape))) for shape in shapes]


def test_a_library_with_a_step_is_predicted_at_shapes_not_seen():
    found = Curve.fitted({shape: with_a_step(shape) for shape in SHAPES})
    assert len(UNSEEN) > 50
    assert np.median(misses(found, with_a_step, UNSEEN)) < math.log(1.25)


def test_what_the_sum_misses_around_is_added():
    """No sum of counts knows how operands lie: a plane through the misses does."""

    def truth(shape):
        return with_a_step(shape) * (2.5 if shape.trans_a else 1)

    found = Curve.fitted({shape: truth(shape) for shape in SHAPES})
    alone = [abs(math.log(np.dot(found.rates, counts(s)) / truth(s))) for s in UNSEEN]
    assert np.median(misses(found, truth, UNSEEN)) < np.median(alone) / 1.5


@pytest.mark.parametrize("factor", [100.0, 0.01])
@pytest.mark.parametrize("place", [20, 50, 80])
def test_an_outlier_moves_predictions_nearby_a_little(place, factor):
    """A burst of foreign load in every run of a shape, or a clock that jumped."""
    times = {shape: with_a_step(shape) for shape in SHAPES}
    plain = Curve.fitted(times)
    spoilt = Curve(plain.rates, times | {SHAPES[place]: times[SHAPES[place]] * factor})
    m, n, k, *more = SHAPES[place]
    for shape in (SHAPES[place], Shape(m + 1, n, k, *more), Shape(m, n * 2, k, *more)):
        assert abs(math.log(spoilt.one(shape) / plain.one(shape))) < OUTLIER
    far = Shape(3, 3000, 300) if m > 100 else Shape(3000, 300, 3)
    assert spoilt.one(far) == pytest.approx(plain.one(far), rel=0.2)


@pytest.mark.parametrize(
    "shape", [Shape(*[4096] * 3), Shape(*[30000] * 3), Shape(20000, 4, 20000), Shape(2, 2, 60000)],
    ids=str,
)  # fmt: skip
def test_far_from_all_measured_shapes_the_sum_decides(shape):
    """The plane does not go on and on, not even where misses slope."""
    for slope in (0, 0.4):
        found = Curve.fitted({s: with_a_step(s) * (s.m / 64) ** slope for s in SHAPES})
        total = np.dot(found.rates, counts(shape))
        assert 0.5 < found.one(shape) / total < 2


# --- when a call measures -------------------------------------------------------------------------


@pytest.fixture
def cold(device, monkeypatch, tmp_path):
    """Give an engine that knows nothing, on an empty cache; a search takes no time."""
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    monkeypatch.setattr(break_even, "SHAPES", SHAPES[:4])
    monkeypatch.setattr(timing.Neighbours, "share", lambda _self: 0.0)
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    cold = engines.of(registry.Device(found, "a test"))
    with registry.using(cold.device):
        yield cold


@pytest.fixture
def on_cores(cold):
    """Leave out devices whose first call measures nothing."""
    if cold.device.traits.kind != "cpu":
        pytest.skip("only CPU devices are measured in a call")
    return cold


@pytest.fixture
def efforts(monkeypatch):
    """Record what searches were asked for; each finds the defaults at once."""
    seen = []

    class Instant:
        def __init__(self, traits, precision, _store, effort, _first, _in_use):
            seen.append(effort)
            self._model = lookup.defaults(traits, precision, "a test").model

        def run(self):
            return Result(self._model, [], 0.0)

    monkeypatch.setattr(search, "Search", Instant)
    return seen


def multiply(n, code="s", k=None):
    """Compute, and tell how it was decided."""
    x, y = (np.ones((n, k or n), PRECISIONS[code].dtype, "F") for _ in "xy")
    product = getattr(clgemm, f"{code}gemm")(1.0, x, y, trans_b=1)
    np.testing.assert_array_equal(product, np.full((n, n), k or n))
    return clgemm.explain(x, y, trans_b=1)


def test_a_search_in_a_call_leaves_time_to_measure(on_cores, efforts, measurements):
    found = multiply(200)
    assert on_cores.parameters.reserved == break_even.MOST_SECONDS
    assert [e.seconds for e in efforts] == [settings.search_seconds() - break_even.MOST_SECONDS]
    assert measurements == ["s"]
    assert found.host_seconds is not None, "the first call goes by it, and so do later ones"
    assert multiply(210).host_seconds is not None
    on_cores.forget()
    assert multiply(200) == found
    assert (len(efforts), measurements) == (1, ["s"])


@pytest.mark.usefixtures("on_cores", "measurements")
def test_of_a_short_budget_the_search_has_half(efforts, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "1")
    multiply(200)
    assert [e.seconds for e in efforts] == [0.5]


@pytest.mark.usefixtures("on_cores", "efforts")
def test_parameters_that_are_stored_are_not_measured_in_a_call(on_cores, efforts, measurements):
    on_cores.parameters.tune("s", Effort())
    on_cores.__init__(on_cores.device)
    multiply(200)
    assert on_cores.break_evens.known(S) is None
    assert (len(efforts), measurements) == (1, [])


@pytest.mark.usefixtures("efforts")
def test_neither_small_products_nor_vectors_search_or_measure(on_cores, efforts, measurements):
    x, y = np.ones((300, 400), np.float32), np.ones((400, 1), np.float32)
    for _ in range(2):
        multiply(100)
        np.testing.assert_array_equal(clgemm.sgemm(1.0, x, y), x @ y)
        np.testing.assert_array_equal(clgemm.matmul(x, y[:, 0]), x @ y[:, 0])
    assert on_cores.parameters.known("s") is None
    assert (efforts, measurements) == ([], [])


@pytest.mark.usefixtures("efforts")
def test_what_was_small_before_a_search_stays_on_the_host(on_cores, monkeypatch):
    """Whatever is found out then: equal calls give equal bits."""
    monkeypatch.setattr(break_even, "measured", lambda *_: always("device"))
    assert SMALL_SHARED > 2 * 620 * 620 * 5 > SMALL_SHALLOW
    before = multiply(620, k=5)
    assert (before.route, before.host_seconds) == ("host", None)
    assert multiply(200).host_seconds is not None
    assert multiply(620, k=5) == before
    on_cores.forget()
    assert multiply(620, k=5) == before
    assert multiply(619, k=5).route == "host"
    assert multiply(200).route == "device"


@pytest.mark.usefixtures("efforts")
def test_what_is_small_goes_by_what_a_search_before_it_measured(on_cores, monkeypatch):
    """Neither what is tiny before nor what is measured makes the size decide."""
    x = np.ones((5, 5), np.float32, "F")
    clgemm.sgemm(1.0, x, x, 1.0, x)
    clgemm.sgemm(1.0, np.ones((300, 400)), np.ones((400, 1)))
    with monkeypatch.context() as patch:
        patch.setattr(
            break_even, "measured", lambda _precision, on_device, _until: timed(on_device)
        )
        multiply(200)
    assert multiply(620, k=5).route == "device"
    assert multiply(620, k=5).host_seconds is not None
    on_cores.forget()
    assert multiply(619, k=5).host_seconds is not None


def timed(on_device):
    """Compute a small product as a measurement does, and give the device the better times."""
    a, c = np.ones((90, 90), np.float32), np.empty((90, 90), np.float32)
    on_device(Call.of(1.0, a, a, 0.0, c))
    np.testing.assert_array_equal(c, a @ a)
    return always("device")


def always(where):
    """Make break-evens by which one side is faster at all sizes."""
    fast = Curve.fitted({shape: 1e-9 * math.prod(shape[:4]) ** 0.5 for shape in SHAPES[:20]})
    slow = Curve.fitted({shape: 9 * t for shape, t in fast.seconds.items()})
    return BreakEven(slow, fast) if where == "device" else BreakEven(fast, slow)


@pytest.mark.usefixtures("efforts")
def test_a_search_for_one_precision_changes_nothing_of_another(on_cores, monkeypatch):
    monkeypatch.setattr(break_even, "measured", lambda *_: always("device"))
    double = PRECISIONS["d"]
    on_cores.parameters.use("d", lookup.defaults(on_cores.device.traits, double, "a test"))
    before = multiply(200, "d")
    on_cores.measure_break_evens(double)
    assert multiply(200, "s").host_seconds is not None
    assert on_cores.break_evens.known(double) is None
    on_cores.forget()
    assert multiply(200, "d") == before


@pytest.mark.usefixtures("on_cores")
def test_threads_wait_for_what_the_first_one_measures(efforts, measurements, monkeypatch):
    """Else they would be decided on without it, and be measured too."""
    found, real = {}, break_even.measured
    late = threading.Thread(target=lambda: found.update(late=multiply(230)))

    def measured(precision, on_device, limits):
        late.start()
        time.sleep(0.3)
        return real(precision, on_device, limits)

    def work(number):
        found[number] = multiply(200 + number)

    monkeypatch.setattr(break_even, "measured", measured)
    run_threads(work)
    late.join(PATIENCE)
    assert "late" in found
    assert all(x.host_seconds is not None for x in found.values())
    assert (len(efforts), measurements) == (1, ["s"])


def test_measuring_keeps_no_decision_and_loses_none(cold, monkeypatch):
    """Those of a hundred shapes are of no use later; other threads' are."""
    x, modes = np.ones((200, 200)), settings.modes()
    for code, precision in PRECISIONS.items():
        cold.parameters.use(code, lookup.defaults(cold.device.traits, precision, "a test"))
    meanwhile, real = [], break_even.measured

    def measured(precision, on_device, limits):
        meanwhile.append(cold.decide(Call.of(1.0, x, x, 0.0, x.copy()), modes))
        return real(precision, on_device, limits)

    monkeypatch.setattr(break_even, "measured", measured)
    multiply(201)
    before = len(cold.decisions)
    cold.measure_break_evens(S)
    assert len(cold.decisions) == before + 1
    assert cold.decide(Call.of(1.0, x, x, 0.0, x.copy()), modes) is meanwhile[0]


# --- the host's bits ------------------------------------------------------------------------------


@pytest.fixture
def hosted(cold, monkeypatch):
    """Give an engine whose device is never faster, and count the calls that ask it."""
    for code, precision in PRECISIONS.items():
        cold.parameters.use(code, lookup.defaults(cold.device.traits, precision, "a test"))
    monkeypatch.setattr(break_even, "measured", lambda *_: always("host"))
    for precision in PRECISIONS.values():
        cold.measure_break_evens(precision)
    asked, real = [], engines.compute

    def compute(call, by_host=None):
        asked.append(call)
        return real(call, by_host)

    monkeypatch.setattr(engines, "compute", compute)
    return asked


OPERANDS = {
    "stacks": ((20, 70, 60), (20, 60, 50)),
    "stacks of stacks": ((3, 5, 70, 60), (3, 5, 60, 50)),
    "matrices": ((140, 150), (150, 120)),
    "a matrix and a vector": ((600, 700), (700,)),
    "a vector and a matrix": ((700,), (700, 600)),
    "vectors": ((300_000,), (300_000,)),
    "one row": ((1, 1700), (1700, 1300)),
    "one column": ((1300, 1700), (1700, 1)),
    "stacks of rows": ((50, 1, 300), (50, 300, 40)),
}
LIE = {
    "C": np.ascontiguousarray,
    "transposed": lambda x: x.T.copy().T,
    "with gaps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
}


@pytest.mark.parametrize("lie", LIE)
@pytest.mark.parametrize("kind", OPERANDS)
@pytest.mark.parametrize("code", "sdcz")
def test_what_the_host_multiplies_is_numpys_bit_by_bit(code, kind, lie, hosted, rng):
    """On the first call and on later ones, which do not ask again."""
    a, b = (LIE[lie](random_array(rng, PRECISIONS[code], shape)) for shape in OPERANDS[kind])
    want = np.matmul(a, b)
    batch = 1 if a.ndim == 2 == b.ndim else 2
    assert not is_small(2 * multiplications(a, b), batch, a.shape[-1])
    for _ in range(10):
        got = clgemm.matmul(a, b)
        assert got.tobytes() == want.tobytes()
        assert (type(got), got.shape) == (type(want), want.shape)
    assert len(hosted) <= 1, "vectors and stacks of NumPy's own are asked for once"


def random_array(rng, precision, shape):
    return random_matrix(rng, precision, math.prod(shape[:-1]), shape[-1]).reshape(shape)


def test_a_matrix_and_its_transpose_are_numpys_bit_by_bit(hosted, rng):
    """NumPy computes half of them."""
    a = random_array(rng, S, (140, 150))
    for _ in range(3):
        np.testing.assert_array_equal(clgemm.matmul(a, a.T), np.matmul(a, a.T))
    assert len(hosted) == 1


@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize(("trans_a", "trans_b"), [*itertools.product(range(3), range(3))])
def test_gemm_on_the_host_gives_the_same_bits_each_time(code, trans_a, trans_b, hosted, rng):
    """Small enough for the kernels that OpenBLAS has for each way operands lie."""
    for m, n in ((70, 65), (600, 1), (1, 600)):
        for order_a, order_b in itertools.product("CF", "CF"):
            hosted.clear()
            a = random_array(rng, PRECISIONS[code], (m, 4000) if not trans_a else (4000, m))
            b = random_array(rng, PRECISIONS[code], (4000, n) if not trans_b else (n, 4000))
            a, b = np.array(a, order=order_a), np.array(b, order=order_b)
            gemm = getattr(clgemm, f"{code}gemm")
            first = gemm(1.5, a, b, trans_a=trans_a, trans_b=trans_b)
            for _ in range(4):
                again = gemm(1.5, a, b, trans_a=trans_a, trans_b=trans_b)
                assert again.tobytes() == first.tobytes()
            assert len(hosted) == 1


def test_stacks_to_be_broadcast_repeat_bit_by_bit(hosted, rng):
    """As one tall matrix, which is faster than NumPy's many."""
    a, b = random_array(rng, S, (30, 70, 60)), random_array(rng, S, (60, 50))
    first = clgemm.matmul(a, b)
    np.testing.assert_allclose(first, a @ b, rtol=1e-4, atol=1e-4)
    for _ in range(9):
        assert clgemm.matmul(a, b).tobytes() == first.tobytes()
    assert [call.c.ndim for call in hosted] == [2] * 10


def test_lists_of_numbers_may_go_to_the_host(hosted, rng):
    a = np.ascontiguousarray(random_array(rng, S, (140, 140)), np.float64)
    np.testing.assert_array_equal(clgemm.matmul(a.tolist(), a.tolist()), np.matmul(a, a))
    assert len(hosted) == 1


SQUARES = np.ones((140, 140), np.float32), np.ones((140, 140), np.float32)
OTHERS = {
    "another type": lambda a, b: clgemm.matmul(a, b.astype(np.float64)),
    "dtype": lambda a, b: clgemm.matmul(a, b, dtype=np.float64),
    "axes": lambda a, b: clgemm.matmul(a, b, axes=[(1, 0), (0, 1), (0, 1)]),
    "order": lambda a, b: clgemm.matmul(a, b, order="F"),
    "another out": lambda a, b: clgemm.matmul(a, b, out=np.empty((140, 140), np.float32, "F")),
    "a transposed": lambda a, b: clgemm.matmul(np.asfortranarray(a), b),
    "b transposed": lambda a, b: clgemm.matmul(a, np.asfortranarray(b)),
    "gaps": lambda a, b: clgemm.matmul(np.repeat(a, 2, axis=1)[:, ::2], b),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_known_of_a_call_is_not_taken_for_another(other, hosted):
    """The device may be faster for operands that lie otherwise: each kind is decided on."""
    a, b = SQUARES
    OTHERS[other](a, b)
    asked = len(hosted)
    clgemm.matmul(a, b)
    assert len(hosted) == asked + 1
    clgemm.matmul(a, b)
    assert len(hosted) == asked + 1


@pytest.mark.parametrize("more", [{"beta": 1, "c": np.ones((140, 140), np.float32, "F")},
                                  {"beta": 2.0, "c": np.ones((140, 140), np.float32, "F")},
                                  {"trans_a": 1}, {"trans_b": 1}])  # fmt: skip
def test_what_is_known_of_a_gemm_is_not_taken_for_another(more, hosted):
    a, b = SQUARES
    clgemm.sgemm(1.0, a, b, **more)
    clgemm.sgemm(1.0, a, b)
    clgemm.sgemm(1.0, a, b)
    assert len(hosted) == 2


def test_half_of_a_gram_product_is_predicted_where_half_is_computed():
    """NumPy halves a matrix times its transpose, and no product with a conjugate."""
    known = {Shape(n, n, n): n**3 * 1e-9 for n in (64, 128, 256, 512)}
    both = BreakEven(Curve.fitted(known), Curve.fitted(known))
    general = Shape(200, 200, 200).problem("z")
    whole = both.host_seconds(general), both.device_seconds(general)
    halved = times.HALF * whole[0] + times.MIRRORED * 200 * 200 / 2  # and mirrored, by a loop
    for triangle, host in ((SYMMETRIC, halved), (HERMITIAN, whole[0])):
        half = general._replace(triangle=triangle)
        found = both.host_seconds(half), both.copied_seconds(half)
        assert found == pytest.approx((host, times.HALF * whole[1]))
        mirrored = both.device_seconds(half) - both.copied_seconds(half)
        assert mirrored == pytest.approx(times.MIRRORED_BESIDE * 16 * 200 * 200)
    assert both.device_seconds(general) == both.copied_seconds(general)
