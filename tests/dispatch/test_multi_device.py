"""One product on several devices: how it is divided, and that the parts make the whole."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from typing import NamedTuple

import numpy as np
import pytest
from helpers import PATIENCE
from hypothesis import given
from hypothesis import strategies as st

from clgemm.dispatch.multi_device import (
    GRAIN,
    LEAST_SHARE,
    PIECES,
    Member,
    MultiDeviceRunner,
    cuts,
    shares,
)
from clgemm.problem import Call, Operand, describe
from clgemm.runtime.interrupt import Stop

RNG = np.random.default_rng(5)


def case(m, n, k, batch=0, beta=0.0):
    """Return a problem, its call, and what its C is to be."""
    stack = (batch,) if batch else ()
    a, b = RNG.standard_normal((*stack, m, k)), RNG.standard_normal((*stack, k, n))
    c = np.full((*stack, n, m), 3.0).swapaxes(-1, -2)
    problem = describe(Operand(a), Operand(b), c, reads_c=beta != 0)
    return problem, Call(2.0, a, b, beta, c), 2 * a @ b + beta * c


class Runner(NamedTuple):
    """Computes with NumPy and writes down what it was asked for."""

    problem: object
    log: list

    def run(self, call, _stop=None):
        *stack, m, n = call.c.shape
        want = self.problem
        assert (m, n, call.a.shape[-1], *stack) == (want.m, want.n, want.k, want.batch)[
            : 3 + len(stack)
        ]
        self.log.append((threading.get_ident(), call.c.size))
        call.c[...] = call.alpha * call.a @ call.b + call.beta * call.c


def member(rate=1.0, kind="gpu", *, copies=True, log=None):
    log = [] if log is None else log
    return Member(kind, rate, copies, lambda problem: Runner(problem, log))


def sizes(problem, members):
    return [[tile.size for tile in share.tiles] for share in shares(problem, members)]


@given(
    st.integers(1, 5000), st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    st.sampled_from([1, 16, 256]),
)  # fmt: skip
def test_cuts_cover_an_axis_once_and_in_proportion(size, weights, grain):
    parts = cuts(size, weights, grain)
    assert [p.start for p in parts] == [0, *(p.stop for p in parts[:-1])]
    assert parts[-1].stop == size
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part.size - size * weight / sum(weights)) <= grain + 1e-6


def test_equal_devices_get_equal_parts_of_the_longest_axis():
    wide, *_ = case(16, 4 * GRAIN, 3)
    tall, *_ = case(4 * GRAIN, 16, 3)
    assert sizes(wide, [member()] * 4) == sizes(tall, [member()] * 4) == [[16 * GRAIN] * 4]
    (share,) = shares(tall, [member()] * 2)
    assert [t.columns.size for t in share.tiles] == [16, 16]


def test_a_long_stack_is_divided_between_its_matrices():
    problem, *_ = case(5, 4, 3, batch=7)
    (share,) = shares(problem, [member()] * 3)
    assert sorted(t.batch.size for t in share.tiles) == [2, 2, 3]


def test_different_devices_get_what_their_rates_are_worth():
    problem, *_ = case(2, 8 * GRAIN, 3)
    members = [member(3.0), member(1.0, "other")]
    assert sizes(problem, members) == [[12 * GRAIN], [4 * GRAIN]]


def test_a_device_that_is_too_slow_gets_nothing():
    problem, *_ = case(2, 8 * GRAIN, 3)
    members = [member(1.0), member(LEAST_SHARE / 2, "other")]
    assert sizes(problem, members) == [[16 * GRAIN]]


def test_a_device_without_copies_takes_its_share_in_pieces():
    problem, *_ = case(2, 64 * GRAIN, 3)
    members = [member(1.0, "cpu", copies=False), member(1.0, "cpu", copies=False)]
    assert sizes(problem, members) == [[16 * GRAIN] * 2 * PIECES]


def test_less_than_a_part_for_each():
    problem, *_ = case(3, 5, 2)
    (share,) = shares(problem, [member()] * 4)
    assert [t.size for t in share.tiles] == [15]


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "beta"),
    [
        (700, 1000, 5, 0, 0.0),
        (1001, 70, 5, 0, 0.5),
        (9, 8, 7, 40, 0.5),
        (9, 600, 7, 2, 0.0),
        (2, 3, 4, 0, 0.0),
    ],
)
def test_the_parts_make_the_whole(m, n, k, batch, beta):
    problem, call, want = case(m, n, k, batch, beta)
    log = []
    members = [
        member(2.0, log=log), member(2.0, log=log), member(1.0, "cpu", copies=False, log=log),
    ]  # fmt: skip
    MultiDeviceRunner(problem, members).run(call)
    np.testing.assert_allclose(call.c, want, rtol=1e-13, atol=1e-13)
    assert sum(size for _, size in log) == call.c.size


def test_equal_devices_work_at_the_same_time():
    problem, call, want = case(4 * GRAIN, 1, 2)
    meet = threading.Barrier(2, timeout=PATIENCE)

    class Meeting(Runner):
        def run(self, call, stop=None):
            meet.wait()
            super().run(call, stop)

    both = [Member("gpu", 1.0, copies=True, make=lambda p: Meeting(p, []))] * 2
    MultiDeviceRunner(problem, both).run(call)
    np.testing.assert_allclose(call.c, want, rtol=1e-13, atol=1e-13)


def test_the_caller_waits_where_ctrl_c_leaves_no_lock_held(monkeypatch):
    """Not for the start of a thread: Ctrl-C there kept devices at work, or the call for ever."""
    problem, call, want = case(4 * GRAIN, 1, 2)
    waits, wait = [], threading.Condition.wait

    def note(condition, timeout=None):
        if threading.get_ident() == threading.main_thread().ident:
            waits.append(condition)
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", note)
    MultiDeviceRunner(problem, [member()] * 2).run(call)
    np.testing.assert_allclose(call.c, want, rtol=1e-13, atol=1e-13)
    assert not waits


def test_what_goes_wrong_on_one_device_is_raised_when_all_have_stopped():
    problem, call, _ = case(4 * GRAIN, 1, 2)
    log, meet = [], threading.Barrier(2, timeout=PATIENCE)

    class Slow(Runner):
        def run(self, call, stop=None):
            meet.wait()
            time.sleep(0.05)
            super().run(call, stop)

    class Failing(Runner):
        def run(self, _call, _stop=None):
            meet.wait()
            raise MemoryError("full")

    members = [
        Member(str(kind), 1.0, copies=True, make=lambda p, kind=kind: kind(p, log))
        for kind in (Slow, Failing)
    ]
    with pytest.raises(MemoryError, match="full"):
        MultiDeviceRunner(problem, members).run(call)
    assert len(log) == 1


@pytest.mark.parametrize("order", [1, -1])
def test_when_one_device_fails_the_others_hear_of_it(order):
    problem, call, _ = case(4 * GRAIN, 1, 2)
    heard, begun = [], threading.Event()

    class Failing(Runner):
        def run(self, _call, _stop=None):
            assert begun.wait(PATIENCE)
            raise MemoryError("full")

    class Listening(Runner):
        def run(self, _call, stop=None):
            begun.set()
            heard.append(stop.wait(PATIENCE))
            raise CancelledError

    members = [
        Member("a", 1.0, copies=True, make=lambda p: Failing(p, [])),
        Member("b", 1.0, copies=True, make=lambda p: Listening(p, [])),
    ]
    with pytest.raises(MemoryError, match="full"):
        MultiDeviceRunner(problem, members[::order]).run(call)
    assert heard == [True]


def test_stop_cancels_what_is_under_way_and_nothing_else():
    stop, cancelled = Stop(), []
    with stop.cancels(lambda: cancelled.append("over")):
        pass
    with stop.cancels(lambda: cancelled.append("under way")):
        stop.set()
        assert cancelled == ["under way"]
    with stop.cancels(lambda: cancelled.append("late")):
        assert cancelled == ["under way", "late"]
    assert stop.is_set()
