"""The stopwatch: warm-up, how long, when to give up, noise, and whose clock."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import devices, host_memory, registry
from clgemm.runtime.kernel_runner import NO_OFFSETS
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.measure import Measurements
from clgemm.tuning.measure.verify import random_matrix
from clgemm.tuning.outcome import Setup
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup


@pytest.fixture
def clock(monkeypatch):
    """Stop time, for the stopwatch alone; what runs moves it on."""
    now = [100.0]
    stopped = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(timing, "time", stopped)
    return now


def taking(clock, *seconds):
    """Make a function that takes so long, over and over; count its runs."""
    left = itertools.cycle(seconds)

    def run():
        run.count += 1
        clock[0] += next(left)

    run.count = 0
    return run


def test_the_first_run_warms_up(clock):
    run = taking(clock, 9.0, 1.0, 1.0, 1.0)
    timed = timing.measure(run, seconds=0, least=3)
    assert (timed.median, timed.best, timed.runs) == (1.0, 1.0, 3)
    assert run.count == 4


@pytest.mark.parametrize(
    ("seconds", "least", "most", "runs"),
    [(0, 3, 50, 3), (1, 3, 50, 11), (1, 3, 5, 5), (0, 7, 9, 7)],
)
def test_how_many_runs(clock, seconds, least, most, runs):
    timed = timing.measure(taking(clock, 0.0999), seconds=seconds, least=least, most=most)
    assert timed.runs == runs


def test_after_two_slow_runs_no_more_follow(clock):
    assert timing.measure(taking(clock, 2.0), give_up=1.9).runs == timing.HOPELESS == 2
    assert timing.measure(taking(clock, 2.0), give_up=2.1).runs > 2
    for place in range(3):
        times = [1.0, 1.0, 1.0]
        times[place] = 5.0
        late = taking(clock, 0.0, *times)
        assert timing.measure(late, seconds=0, give_up=2.0).runs == 3, "a single one is noise"


def test_a_quiet_machine_is_not_measured_for_longer(clock):
    assert timing.measure(taking(clock, 0.0099), seconds=0.1, stretch=5).runs == 11


def test_a_noisy_machine_is_measured_for_longer(clock):
    def noisy():
        return taking(clock, 0.010, 0.013, 0.011, 0.015, 0.010, 0.014)

    short = timing.measure(noisy(), seconds=0.1)
    long = timing.measure(noisy(), seconds=0.1, stretch=5)
    assert short.spread > timing.STEADY
    assert 4 * short.runs <= long.runs <= 6 * short.runs


def test_measuring_ends_when_the_noise_does(clock):
    run = taking(clock, *[0.010, 0.015] * 4, *[0.010] * 500)
    timed = timing.measure(run, seconds=0.05, stretch=100)
    assert timed.spread <= timing.STEADY
    assert timed.runs < 30


def test_the_quartile_is_neither_delayed_nor_lucky():
    times = [0.9] + [1.0] * 4 + [1.5, 2.0, 7.0]
    assert timing.of_times(times).quartile == 1.0
    assert timing.of_times([3.0]) == timing.Timing(3.0, 3.0, 1, quartile=3.0)
    assert timing.of_times([2.0, 1.0]).quartile == 1.0
    assert timing.of_times(times).spread == pytest.approx(1 / 0.9 - 1)


def test_another_clock_may_count(clock):
    ticks = itertools.cycle([0.002, 0.003])
    timed = timing.measure(taking(clock, 1.0), seconds=0, least=4, clock=lambda: next(ticks))
    assert (timed.best, timed.median, timed.runs) == (0.002, 0.0025, 4)


MS = 0.001


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(10 * MS, 9.9 * MS), (10.3 * MS, 9.8 * MS), (30 * MS, 9.9 * MS)], ""),
        ([(0.1 * MS, 0.02 * MS), (0.1 * MS, 0.03 * MS)], ""),
        ([(10 * MS, math.nan)], "no times"),
        ([(10 * MS, 9 * MS), (10 * MS, 0.0)], "took no time"),
        ([(10 * MS, -9 * MS)], "took no time"),
        ([(10 * MS, 9 * MS), (10 * MS, 15 * MS)], "more time than has passed"),
        ([(10 * MS, 1 * MS), (11 * MS, 1.1 * MS)], "less time than its work took"),
        ([(10 * MS, 10 * MS), (10.2 * MS, 10 * MS), (10.1 * MS, 10 * MS)], "too coarse"),
    ],
)
def test_which_clocks_are_trusted(pairs, words):
    reason = timing.why_not_trusted(pairs)
    assert (reason is None) == (not words)
    assert words in (reason or "")


@pytest.fixture
def product(device, rng):
    """Plan a product on each device, opened for this test; give the device and the arguments."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    own, precision = registry.Device(found, "a test"), PRECISIONS["s"]
    a, b, c = (random_matrix(rng, precision, 300, 300) for _ in "abc")
    problem = describe(Operand(a), Operand(b), c, reads_c=False)
    config = lookup.defaults(own.traits, precision, "").configs[0]
    plan = BY_NAME[config.family].plan(own.traits, problem, config)
    places = [host_memory.place(own, x) for x in (a, b, c)]
    yield own, (problem, plan, (1.0, 0.0, *places, NO_OFFSETS))
    del a, b, c  # kept until here: a device may share their memory


def test_a_device_times_its_launches(product):
    device, what = product
    watch = timing.Stopwatch(device)
    plan = timing.TracedPlan(device, *what)
    timed = watch.time(plan, seconds=0.01)
    assert timed.best > 0
    assert timed.runs >= 2
    if watch.clock == timing.DEVICE_CLOCK:
        assert plan.seconds() > 0
    else:
        assert watch.clock.startswith("the host's clock: ")


def test_a_driver_that_times_no_launches_leaves_it_to_the_host(product, monkeypatch):
    device, what = product

    def refuse(*_arguments, **_more):
        raise cl.Error("no such queue")

    with monkeypatch.context() as patch:
        patch.setattr(cl, "CommandQueue", refuse)
        watch = timing.Stopwatch(device)
    plan = timing.TracedPlan(device, *what)
    plan.run()
    assert math.isnan(plan.seconds()), "the queue keeps no times"
    assert watch.time(plan, seconds=0.01).best > 0
    assert watch.clock == "the host's clock: the driver times no launches"


def test_a_clock_that_tells_nonsense_is_found_out(product, monkeypatch):
    device, what = product
    watch = timing.Stopwatch(device)
    plan = timing.TracedPlan(device, *what)
    monkeypatch.setattr(plan, "seconds", lambda: 1e-12)
    timed = watch.time(plan, seconds=0.01)
    assert watch.clock.startswith("the host's clock: ")
    assert timed.best > 1e-9


def test_what_is_timed_is_what_calls_run(device):
    """Copies to a memory of the device's own are dense and aligned; kernels load wider for it."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    apart = found._replace(traits=replace(found.traits, unified_memory=False, system_svm=False))
    precision = PRECISIONS["s"]
    family = BY_NAME["direct"]
    measurements = Measurements(registry.Device(apart, "a test"), Setup(0, "", "s"))
    seen = []

    class Spy:
        accepts = family.accepts

        def plan(self, traits, problem, config):
            seen.append(problem)
            return family.plan(traits, problem, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BY_NAME, "direct", Spy())
        config = family.default(apart.traits, precision)
        measurements.time_shape(config, Shape(40, 30, 20), seconds=0.0)
    assert seen
    assert all(problem.aligned for problem in seen)


@pytest.mark.parametrize(
    ("spins", "share", "most", "passes"),
    [
        (0.1, 1.0, 5.0, 0.11), (0.1, 0.3, 5.0, 0.11), (0.1, 0.2, 5.0, 0.01), (0.0, 1.0, 5.0, 0.01),
        (9.0, 1.0, 0.4, 0.40), (9.0, 1.0, 0.0, 0.00),
    ],
)  # fmt: skip
def test_settling_waits_for_threads_that_spin(clock, monkeypatch, spins, share, most, passes):
    """As OpenBLAS' do for a while after a call, with so much of a core as others leave them."""
    begun = clock[0]

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(timing.time, "sleep", sleep)
    timing.time.process_time = lambda: share * min(clock[0] - begun, spins)
    timing.settle(most=most)
    assert clock[0] - begun == pytest.approx(passes, abs=timing.SETTLE_STEP / 2)
