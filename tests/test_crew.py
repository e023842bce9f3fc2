"""Children that try candidates side by side, and the time that a search gives them."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
from helpers import CPU, GPU

from clgemm.errors import TuningError
from clgemm.kernels.family import Config
from clgemm.tuning.outcome import Outcome
from clgemm.tuning.search import budget
from clgemm.tuning.search.budget import Budget
from clgemm.tuning.workers import pool
from clgemm.tuning.workers.pool import Crew

CONFIGS = [Config.of("toy", {"X": x}) for x in range(9)]


class Child:
    """Does nothing, and notes what it is told."""

    def __init__(self, fails=False):
        self.fails, self.dropped, self.learnt, self.stopped = fails, False, None, False

    def start(self):
        if self.fails:
            raise TuningError("no room")

    def stop(self):
        self.stopped = True

    def learn(self, outcome):
        self.learnt = outcome


def passes(_worker, config):
    return Outcome(config, "ok")


def test_candidates_are_tried_side_by_side():
    together = threading.Barrier(3, timeout=30)

    def meets(worker, config):
        together.wait()
        return passes(worker, config)

    with Crew([Child() for _ in range(3)]) as team:
        outcomes = team.each(CONFIGS, meets, lambda _: True)
    assert {o.config for o in outcomes} == set(CONFIGS)
    assert len(outcomes) == len(CONFIGS)


def first_ends_last():
    """Make an attempt of which the first candidate's ends when the last one was tried."""
    ended = threading.Event()

    def attempt(worker, config):
        if config == CONFIGS[0]:
            assert ended.wait(30)
        elif config == CONFIGS[-1]:
            ended.set()
        return passes(worker, config)

    return attempt


def test_a_child_that_hangs_holds_up_no_other():
    with Crew([Child(), Child()]) as team:
        outcomes = team.each(CONFIGS, first_ends_last(), lambda _: True)
    *before, one, other = (o.config for o in outcomes)
    assert before == CONFIGS[1:-1]
    assert {one, other} == {CONFIGS[0], CONFIGS[-1]}


def test_while_one_is_overdue_the_others_go_on():
    with Crew([Child(), Child()]) as team:
        tried = team.each(CONFIGS, first_ends_last(), lambda overdue: overdue)
    assert len(tried) == len(CONFIGS)


def test_when_time_is_up_each_child_has_tried_one():
    with Crew([Child(), Child()]) as team:
        assert len(team.each(CONFIGS, passes, lambda _: False)) == 2
        left = iter([True, True, False])
        assert len(team.each(CONFIGS, passes, lambda _: next(left, False))) == 4


def test_a_child_that_cannot_start_is_done_without_unless_it_leads():
    with Crew([Child(), Child(fails=True), Child()]) as team:
        team.start()
        assert len(team) == 2
        assert len(team.each(CONFIGS, passes, lambda _: True)) == len(CONFIGS)
    with Crew([Child(fails=True), Child()]) as team, pytest.raises(TuningError, match="no room"):
        team.start()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TuningError])
def test_an_error_ends_what_the_other_children_do(error):
    children = [Child(), Child()]

    def attempt(worker, config):
        if config == CONFIGS[0]:
            raise error
        while not worker.dropped:
            pass
        return Outcome(config, "late")

    with Crew(children) as team:
        with pytest.raises(error):
            team.each(CONFIGS, attempt, lambda _: True)
        assert not any(c.dropped for c in children), "they may be asked again"
        assert team.each(CONFIGS[1:2], passes, lambda _: True)
    assert all(c.stopped and c.dropped for c in children)


def test_what_one_child_found_all_know():
    children, found = [Child(), Child()], Outcome(CONFIGS[0], "ok", "", {}, 512)
    with Crew(children) as team:
        team.learn(found)
    assert [c.learnt for c in children] == [found, found]


def test_how_many_children_there_are_follows_the_cores(monkeypatch):
    for cores, on_cpu, on_gpu in ((1, 1, 1), (2, 2, 1), (3, 3, 1), (16, 4, 2), (64, 4, 4)):
        monkeypatch.setattr(pool, "usable_cores", lambda cores=cores: cores)
        assert pool.size(CPU) == on_cpu
        assert pool.size(replace(GPU)) == on_gpu


@pytest.fixture
def clock(monkeypatch):
    """Set the time: clock[0]."""
    now = [1000.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    return now


def test_as_long_as_a_family_is_unknown_its_builds_may_take_what_is_left(clock):
    found = Budget(50.0, 2)
    assert found.patience("toy", 0.0) == budget.HANG_SECONDS
    found.vetted("other", 0.1)
    clock[0] += 30
    assert found.patience("toy", 0.0) == pytest.approx(found.searching(0.0))
    found.vetted("toy", 0.1)
    assert found.patience("toy", 0.0) == pytest.approx(budget.HANG_SHARE * found.left())
    found.vetted("toy", 3.5)
    assert found.patience("toy", 2.0) == pytest.approx(2 * 3.5 - 2.0)


def test_a_short_search_waits_for_its_first_candidate_and_for_no_other(clock):
    found = Budget(1.0, 2)
    clock[0] += 2.0
    first = pytest.approx(budget.FIRST_SECONDS - 0.5)
    assert found.patience("toy", 0.5) == first
    found.vetted("another", 2.0)
    assert found.patience("toy", 0.5) == pytest.approx(budget.NEXT_SECONDS - 0.5), "one is ready"
    found.vetted("toy", 1.0)
    assert found.patience("toy", 0.5) == pytest.approx(3.5), "begun when nothing was known"
    clock[0] += 1.0
    assert found.patience("toy", 0.5) < 0
    assert found.try_patience("toy", 0.5) == first, "it is still to be timed"
    found.timed(0.1)
    assert found.try_patience("toy", 0.5) < 0
    assert found.race_patience("toy", 0.5) < 0
    assert found.last_patience("toy", 0.5) == first, "and to be checked"
    found.has_winner = True
    assert found.last_patience("toy", 0.5) < 0


def test_what_a_busy_search_gave_up_is_no_hang(clock):
    found = Budget(10.0, 1)
    assert not found.is_hang(budget.LEAST_HANG_SECONDS - 0.1)
    assert found.is_hang(budget.LEAST_HANG_SECONDS)
    clock[0] += 10
    assert not found.is_hang(budget.LEAST_HANG_SECONDS), "the end came, whatever it was doing"
    assert found.is_hang(budget.FIRST_SECONDS), "nobody would wait for it the next time either"


def test_time_is_kept_for_races_and_the_last_checks(clock):
    found = Budget(10.0, 2)
    assert found.seconds == pytest.approx(budget.SHARE * 10)
    assert found.searching(0.0) == pytest.approx(found.seconds)
    for seconds in (1.0, 3.0, 2.0):
        found.vetted("toy", seconds)
    kept = 3.0 + budget.RACE_SHARE * found.seconds
    assert found.searching(1.0) == pytest.approx(found.seconds - kept)
    for seconds in itertools.repeat(0.5, 3):
        found.timed(seconds)
    assert found.typical() == pytest.approx(2.0 / 2 + 0.5), (
        "builds go side by side, timing does not"
    )
    assert found.racing()
    assert found.race_patience("toy", 0.0) == pytest.approx(found.left())
    clock[0] += 3.0
    assert found.patience("toy", 0.0) == pytest.approx(found.searching(0.0)), "not for builds"
    clock[0] += 6.0
    assert not found.racing()
