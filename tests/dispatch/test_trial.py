"""Both sides of a product are tried where predictions are near, once a kind and within a budget."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import clgemm
from clgemm.dispatch import engine, engines, route, trial
from clgemm.dispatch.route import DEVICE, HOST, Route
from clgemm.dispatch.times import BreakEven
from clgemm.errors import DeviceError
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.store import lookup

NEAR = Route(HOST, "predicted", 1e-4, 0.9e-4)


@pytest.fixture
def clock(monkeypatch):
    """Stop time, for trials alone; what they run moves it on."""
    found = SimpleNamespace(now=100.0)
    stopped = SimpleNamespace(
        perf_counter=lambda: found.now, monotonic=lambda: found.now, sleep=lambda _: None
    )
    monkeypatch.setattr(trial, "time", stopped)
    monkeypatch.setattr(trial, "_begun", found.now)
    return found


@pytest.fixture
def trials(monkeypatch):
    monkeypatch.setattr(trial, "FREE", 1e9)
    monkeypatch.setattr(trial, "WARM_SECONDS", 0)
    monkeypatch.setattr(trial, "FIRST_SECONDS", 0)
    monkeypatch.setattr(trial, "WAITS", 1e9)
    return trial.Trials()


def sides(clock, host, device):
    """Make two sides that take so many seconds."""
    calls = []

    def side(name, seconds):
        calls.append(name)
        clock.now += seconds

    def by_device():
        side(DEVICE, device)

    return calls, lambda: trial.Sides(lambda: side(HOST, host), by_device)


@pytest.mark.parametrize(("seconds", "where"), [((0.01, 0.002), DEVICE), ((0.002, 0.01), HOST)])
def test_the_faster_one_is_found_once(trials, clock, seconds, where):
    (host, device), (calls, both) = seconds, sides(clock, *seconds)
    found = trials.settle("kind", NEAR, both)
    assert found.where == where
    assert where in found.why
    assert (found.host_seconds, found.device_seconds) == pytest.approx((host, device))
    count = len(calls)
    assert trials.settle("kind", NEAR, both) is found
    assert len(calls) == count
    trials.settle("another", NEAR, both)
    assert len(calls) > count


@pytest.mark.parametrize(
    "predicted",
    [
        Route(HOST, "a rule"),
        Route(HOST, "far", 1e-4, 1e-3),
        Route(DEVICE, "far", 1e-3, 1e-4),
        Route(DEVICE, "long", 3e-2, 2.9e-2),
    ],
    ids=["rule", "slower device", "faster device", "long"],
)
def test_what_is_sure_is_not_tried(trials, clock, predicted):
    calls, both = sides(clock, 0, 0)
    assert trials.settle("kind", predicted, both) is predicted
    assert not calls


def test_what_nobody_predicted_is_tried_if_it_is_short(trials, clock):
    by_size = Route(DEVICE, "by size")
    calls, both = sides(clock, 1e-3, 2e-3)
    assert trials.settle("long", by_size, both, 2 * route.LONGEST) is by_size
    assert not calls
    assert trials.settle("kind", by_size, both, 1e-3).where == HOST
    assert calls


def test_the_budget_is_kept_and_its_end_changes_nothing(trials, clock, monkeypatch):
    monkeypatch.setattr(trial, "FREE", 0.02)
    monkeypatch.setattr(trial, "SHARE", 0)
    calls, both = sides(clock, 0.01, 0.01)
    trials.settle("first", NEAR, both)
    count = len(calls)
    assert count
    assert trials.settle("second", NEAR, both) is NEAR
    monkeypatch.setattr(trial, "FREE", 1e9)
    assert trials.settle("second", NEAR, both) is NEAR, "equal calls give equal bits"
    monkeypatch.setattr(trial, "MOST_KINDS", 2)
    assert trials.settle("third", NEAR, both) is NEAR
    assert len(calls) == count


def test_beyond_the_budget_what_is_short_and_not_predicted_is_the_hosts(trials, clock, monkeypatch):
    monkeypatch.setattr(trial, "FREE", 0)
    monkeypatch.setattr(trial, "SHARE", 0)
    calls, both = sides(clock, 1e-4, 1e-4)
    by_size = Route(DEVICE, "by size")
    assert trials.settle("short", by_size, both, trial.SHORT / 2).where == HOST
    assert trials.settle("long", by_size, both, trial.SHORT * 2) is by_size
    assert not calls


def test_a_device_is_timed_while_the_host_s_idle_threads_sleep(trials, clock, monkeypatch):
    """As it is in most programs; a host's threads look for work for a while after its block."""
    asleep, seen = [], {HOST: set(), DEVICE: set()}
    monkeypatch.setattr(trial.spinning, "stop", lambda: asleep.append(1) or True)
    monkeypatch.setattr(trial.spinning, "go_on", asleep.clear)
    monkeypatch.setattr(trial, "_is_near_in_turn", lambda *_: True)

    def side(name, seconds):
        seen[name].add(bool(asleep))
        clock.now += seconds

    both = trial.Sides(lambda: side(HOST, 0.002), lambda: side(DEVICE, 0.001))
    assert trials.settle("kind", NEAR, lambda: both).where == DEVICE
    assert seen == {HOST: {False}, DEVICE: {True}}
    assert not asleep


@pytest.mark.parametrize(("more", "where"), [(1e-5, DEVICE), (3e-5, HOST)])
def test_what_a_call_takes_beside_the_device_counts(trials, clock, more, where):
    _, both = sides(clock, 1e-4, 7e-5)
    found = trials.settle("kind", NEAR, lambda: both()._replace(call_seconds=more))
    assert found.where == where


def test_the_first_trial_wakes_the_device_s_threads(trials, clock, monkeypatch):
    """The first runs of a process take much longer than later ones, whatever they compute."""
    monkeypatch.setattr(trial, "FIRST_SECONDS", 1e-2)
    slow = iter([5e-3, 4e-3, 3e-3])

    def by_host():
        clock.now += 1e-3

    def by_device():
        clock.now += 5e-4 + next(slow, 0)

    found = trials.settle("kind", NEAR, lambda: trial.Sides(by_host, by_device))
    assert (found.where, found.device_seconds) == (DEVICE, pytest.approx(5e-4))


def test_kernels_are_built_for_trials_within_a_budget_of_their_own(trials, clock, monkeypatch):
    monkeypatch.setattr(trial, "FREE", 0.1)
    monkeypatch.setattr(trial, "SHARE", 0)
    monkeypatch.setattr(trial, "SHARE_OF_BUILDS", 0)
    calls, sides_of = sides(clock, 2e-3, 1e-3)

    def built():
        clock.now += 0.6 * trial.FREE_BUILDS
        return sides_of()

    assert trials.settle("first", NEAR, built).where == DEVICE, "it takes no time of trials"
    assert trials.settle("second", NEAR, built).where == DEVICE
    count = len(calls)
    assert trials.settle("third", NEAR, built) is NEAR
    assert len(calls) == count


def test_a_long_run_wakes_threads_itself(trials, clock):
    calls, both = sides(clock, 9e-3, 4e-3)
    near = Route(HOST, "near", 8e-3, 7e-3)
    assert trials.settle("kind", near, both).where == DEVICE
    assert calls == [HOST, DEVICE] * 2, "it is clear after two blocks"


def test_threads_find_the_same(trials, clock):
    """One of them tries, and the others wait for it."""
    calls, sides_of = sides(clock, 0.002, 0.001)
    found = []

    def both():
        time.sleep(0.1)  # so that the others come meanwhile
        return sides_of()

    threads = [
        threading.Thread(target=lambda: found.append(trials.settle("kind", NEAR, both)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(x is found[0] for x in found)
    alone = ([HOST] * 2 + [DEVICE] * 2) * trial.BLOCKS  # one each to warm up
    assert calls == alone + [HOST] * trial.TURNS + [DEVICE] * trial.TURNS


@pytest.mark.parametrize(("late", "where"), [(0.0, DEVICE), (5e-4, HOST)])
def test_a_device_has_to_be_fast_directly_after_numpy_too(trials, clock, late, where, monkeypatch):
    """Where a program multiplies in turn with NumPy threads of the device may wake up late."""
    host, device, wait = 1e-3, 8e-4, 0.0

    def numpys(*_):
        nonlocal wait
        wait = late

    def by_device():
        nonlocal wait
        clock.now += device + wait
        wait = 0.0

    def by_host():
        clock.now += host

    monkeypatch.setattr(trial.host_blas, "matmul", numpys)
    found = trials.settle("kind", NEAR, lambda: trial.Sides(by_host, by_device))
    assert found.where == where
    assert found.device_seconds == pytest.approx(device), "alone, as it is predicted"


def test_nobody_rests_before_turns_with_numpy(trials, clock, monkeypatch):
    """A device whose threads must wake up is slow, but not in a program that multiplies often."""
    asleep = False

    def sleep(seconds):
        nonlocal asleep
        asleep = seconds >= 1e-3

    def by_device():
        nonlocal asleep
        clock.now += 8e-4 + 5e-4 * asleep
        asleep = False

    def by_host():
        clock.now += 1e-3

    monkeypatch.setattr(trial.time, "sleep", sleep)
    found = trials.settle("kind", NEAR, lambda: trial.Sides(by_host, by_device))
    assert found.where == DEVICE


def test_runs_that_wait_for_a_core_do_not_decide(trials, clock, monkeypatch):
    """On a busy system NumPy's threads may wait for one, longer than they compute."""
    monkeypatch.setattr(trial, "WAITS", 4.0)
    waits = iter([8e-3] * 7)

    def by_host():
        clock.now += 1e-5 + next(waits, 0)

    def by_device():
        clock.now += 3e-5

    near = Route(DEVICE, "near", 1.5e-5, 2e-5)
    found = trials.settle("kind", near, lambda: trial.Sides(by_host, by_device))
    assert (found.where, found.host_seconds) == (HOST, pytest.approx(1e-5))


@pytest.fixture
def near(device, monkeypatch):
    """Let an engine believe that both sides take about as long."""
    if device.traits.kind != "cpu":
        pytest.skip("only on CPU devices both sides are tried")
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    monkeypatch.setattr(trial, "FREE", 1e9)
    monkeypatch.setattr(trial, "FREE_BUILDS", 1e9)
    monkeypatch.setattr(BreakEven, "host_seconds", lambda *_: 1.0e-3)
    monkeypatch.setattr(BreakEven, "device_seconds", lambda *_: 1.1e-3)
    found = engines.of(device)
    monkeypatch.setattr(found, "_trials", trial.Trials())
    monkeypatch.setattr(found, "_break_even", lambda _problem: BreakEven(None, None))
    found.forget()
    with registry.using(device):
        yield found
    found.forget()


def test_a_stack_is_tried_with_what_its_call_takes(near, monkeypatch, rng):
    seen = []

    def settle(_kind, predicted, sides, _usual):
        seen.append(sides().call_seconds)
        return predicted

    monkeypatch.setattr(near._trials, "settle", settle)
    for shape in ((170, 170), (3, 170, 170)):
        clgemm.matmul(*rng.uniform(-1, 1, (2, *shape)))
    assert seen == [trial.CALL_SECONDS, trial.STACK_SECONDS]


def test_a_product_is_tried_with_its_own_operands(near, rng):
    """And nothing of the caller's is written meanwhile."""
    a, b, c = (rng.uniform(-1, 1, (170, 170)) for _ in "abc")
    c, kept = np.asfortranarray(c), c.copy()
    assert clgemm.explain(a, b, np.empty_like(c)).why.startswith("tried: ")
    got = clgemm.dgemm(1.0, a, b, beta=2.0, c=c)
    np.testing.assert_allclose(got, a @ b + 2 * kept)
    np.testing.assert_array_equal(c, kept)
    clgemm.dgemm(1.0, a, b, beta=2.0, c=c, overwrite_c=1)
    np.testing.assert_allclose(c, a @ b + 2 * kept)
    first = clgemm.matmul(a[:160], b)
    for _ in range(3):
        near.forget()
        assert clgemm.matmul(a[:160], b).tobytes() == first.tobytes()
    stack = clgemm.matmul(np.stack([a, b]), np.stack([b, a]))
    np.testing.assert_allclose(stack, np.stack([a @ b, b @ a]))


def test_what_was_not_measured_is_tried_once_parameters_are_known(near, monkeypatch):
    """But for what is small and was decided on before: equal calls give equal bits."""
    tuned = lookup.defaults(near.device.traits, PRECISIONS["d"], "a test")
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setattr(near, "_break_even", partial(engine.Engine._break_even, near))
    monkeypatch.setattr(near, "_by_size", set())
    monkeypatch.setattr(near.parameters, "_tuned", {})
    monkeypatch.setattr(near.break_evens, "_known", {"gemm.d": None})
    x, y = np.ones((600, 5)), np.ones((5, 600))
    assert not clgemm.explain(x, y).why.startswith("tried"), "this would begin a search"
    near.parameters.use("d", tuned)
    near.forget()
    assert not clgemm.explain(x, y).why.startswith("tried")
    near._by_size.clear()
    near.forget()
    assert clgemm.explain(x, y).why.startswith("tried")
    monkeypatch.setenv("CLGEMM_TUNE", "off")
    near.forget()
    monkeypatch.setattr(near, "_trials", trial.Trials())
    assert not clgemm.explain(x, y).why.startswith("tried")


def test_what_cannot_be_tried_goes_as_predicted(near, monkeypatch):
    def fails(_problem):
        raise DeviceError("out of order")

    monkeypatch.setattr(near, "runner", fails)
    x = np.ones((170, 170))
    assert (clgemm.matmul(x, x) == 170).all()
    assert clgemm.explain(x, x).route == "host"
