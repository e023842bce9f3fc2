"""Workers that try candidates side by side, and the time that a search gives them."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import CPU, GPU, PATIENCE

import clgemm
from clgemm.errors import TuningError
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, processor
from clgemm.tuning.outcome import Outcome, Setup, Task
from clgemm.tuning.search import budget
from clgemm.tuning.search.budget import Budget
from clgemm.tuning.store import lookup
from clgemm.tuning.workers import pool
from clgemm.tuning.workers.pool import Worker, WorkerPool

S = PRECISIONS["s"]
CONFIGS = [Config.of("toy", {"X": x}) for x in range(9)]


class Idle:
    """Does nothing, and notes what it is told."""

    def __init__(self, fails=False):
        self.fails, self.dropped, self.learnt = fails, False, None
        self.killed = self.stopped = False

    def start(self):
        if self.fails:
            raise TuningError("no room")

    def kill(self):
        self.killed = True

    def stop(self):
        self.stopped = True

    def learn(self, outcome):
        self.learnt = outcome


def passes(_worker, config):
    return Outcome(config, "ok")


def test_candidates_are_tried_side_by_side():
    together = threading.Barrier(3, timeout=PATIENCE)

    def meets(worker, config):
        together.wait()
        return passes(worker, config)

    with WorkerPool([Idle() for _ in range(3)]) as workers:
        outcomes = workers.each(CONFIGS, meets, lambda _: True)
    assert {o.config for o in outcomes} == set(CONFIGS)
    assert len(outcomes) == len(CONFIGS)


def first_ends_last():
    """Try candidates such that the first one ends when the last one was tried."""
    ended = threading.Event()

    def ask(worker, config):
        if config == CONFIGS[0]:
            assert ended.wait(PATIENCE)
        elif config == CONFIGS[-1]:
            ended.set()
        return passes(worker, config)

    return ask


def test_a_worker_that_hangs_holds_up_no_other():
    with WorkerPool([Idle(), Idle()]) as workers:
        outcomes = workers.each(CONFIGS, first_ends_last(), lambda _: True)
    *before, one, other = (o.config for o in outcomes)
    assert before == CONFIGS[1:-1]
    assert {one, other} == {CONFIGS[0], CONFIGS[-1]}


def test_while_one_is_overdue_the_others_go_on():
    with WorkerPool([Idle(), Idle()]) as workers:
        tried = workers.each(CONFIGS, first_ends_last(), lambda overdue: overdue)
    assert len(tried) == len(CONFIGS)


def test_when_time_is_up_each_worker_has_tried_one():
    with WorkerPool([Idle(), Idle()]) as workers:
        assert len(workers.each(CONFIGS, passes, lambda _: False)) == 2
        left = iter([True, True, False])
        assert len(workers.each(CONFIGS, passes, lambda _: next(left, False))) == 4


def test_a_worker_that_cannot_start_is_done_without_unless_it_measures():
    with WorkerPool([Idle(), Idle(fails=True), Idle()]) as workers:
        workers.start()
        assert len(workers.each(CONFIGS, passes, lambda _: False)) == 2, "one each"
        assert len(workers.each(CONFIGS, passes, lambda _: True)) == len(CONFIGS)
    with (
        WorkerPool([Idle(fails=True), Idle()]) as workers,
        pytest.raises(TuningError, match="no room"),
    ):
        workers.start()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TuningError])
def test_an_error_ends_what_the_other_workers_do(error):
    both = [Idle(), Idle()]

    def ask(worker, config):
        if config == CONFIGS[0]:
            raise error
        while not worker.dropped:
            pass
        return Outcome(config, "late")

    with WorkerPool(both) as workers:
        with pytest.raises(error):
            workers.each(CONFIGS, ask, lambda _: True)
        assert not any(x.dropped for x in both), "they may be asked again"
        assert workers.each(CONFIGS[1:2], passes, lambda _: True)
    assert all(x.stopped and x.dropped for x in both)


def test_what_one_worker_found_all_know():
    both, found = [Idle(), Idle()], Outcome(CONFIGS[0], "ok", "", {}, 512)
    with WorkerPool(both) as workers:
        workers.learn(found)
    assert [x.learnt for x in both] == [found, found]


def test_all_workers_are_killed_before_one_is_waited_for():
    """Each takes a while to give back the context of a GPU."""
    both = [Idle(), Idle()]
    seen = []
    both[0].stop = lambda: seen.append([x.killed for x in both])
    with WorkerPool(both):
        pass
    assert seen == [[True, True]]
    assert both[1].stopped


def test_how_many_workers_there_are_follows_the_cores(monkeypatch):
    for cores, on_cpu, on_gpu in ((1, 1, 1), (2, 2, 1), (3, 3, 1), (16, 4, 4), (64, 4, 4)):
        monkeypatch.setattr(pool, "usable_cores", lambda cores=cores: cores)
        assert pool.size(CPU) == on_cpu
        assert pool.size(replace(GPU)) == on_gpu


@pytest.fixture
def clock(monkeypatch):
    """Set the time: clock[0]."""
    now = [1000.0]
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_as_long_as_a_family_is_unknown_its_builds_may_take_what_is_left(clock):
    found = Budget(50.0, 2)
    assert found.patience(Task.VERIFY, "toy", 0.0) == budget.HANG_SECONDS
    found.note(Task.VERIFY, "other", 0.1)
    clock[0] += 30
    assert found.patience(Task.VERIFY, "toy", 0.0) == pytest.approx(found.for_candidates(0.0))
    found.note(Task.VERIFY, "toy", 0.1)
    assert found.patience(Task.VERIFY, "toy", 0.0) == pytest.approx(
        budget.HANG_SHARE * found.left()
    )
    found.note(Task.VERIFY, "toy", 3.5)
    assert found.patience(Task.VERIFY, "toy", 2.0) == pytest.approx(2 * 3.5 - 2.0)


def test_a_short_search_waits_for_its_first_candidate_and_for_no_other(clock):
    found = Budget(1.0, 2)
    clock[0] += 2.0
    first = pytest.approx(budget.FIRST_SECONDS - 0.5)
    assert found.patience(Task.VERIFY, "toy", 0.5) == first
    found.note(Task.VERIFY, "another", 2.0)
    assert found.patience(Task.VERIFY, "toy", 0.5) == pytest.approx(budget.NEXT_SECONDS - 0.5), (
        "one is ready"
    )
    found.note(Task.VERIFY, "toy", 1.0)
    assert found.patience(Task.VERIFY, "toy", 0.5) == pytest.approx(3.5), (
        "begun when nothing was known"
    )
    clock[0] += 1.0
    assert found.patience(Task.VERIFY, "toy", 0.5) < 0
    assert found.patience(Task.MEASURE, "toy", 0.5) == first, "it is still to be timed"
    found.note(Task.MEASURE, "toy", 0.1)
    assert found.patience(Task.MEASURE, "toy", 0.5) < 0
    assert found.patience(Task.MEASURE_FINALIST, "toy", 0.5) < 0
    assert found.patience(Task.VERIFY_FINALIST, "toy", 0.5) == first, (
        "and to be verified as a finalist"
    )
    found.note(Task.VERIFY_FINALIST, "toy", 0.1)
    assert found.patience(Task.VERIFY_FINALIST, "toy", 0.5) < 0


def test_what_is_in_use_is_waited_for_beyond_a_short_search(clock):
    found = Budget(1.0, 2)
    tasks = [task for task in Task if task is not Task.MEASURE_FINALIST]
    found.note(Task.VERIFY, "toy", 0.1)
    found.note(Task.MEASURE, "toy", 0.1)
    found.note(Task.VERIFY_FINALIST, "another", 0.1)
    clock[0] += 4.0
    assert found.waits_for_needed()
    for task in tasks:
        assert found.patience(task, "toy", 1.0) < 0
        assert found.patience(task, "toy", 1.0, needed=True) >= budget.FIRST_SECONDS - 4.0
    clock[0] += budget.FIRST_SECONDS - 4.0
    assert not found.waits_for_needed()
    for task in tasks:
        more = found.patience(task, "toy", 5.0, needed=True)
        assert more == pytest.approx(7.0 if task in budget.TASKS_OF_FINALISTS else 0.0), (
            "what has passed"
        )
    assert found.is_hang(20.0)
    assert not found.is_hang(20.0, needed=True)
    assert found.is_hang(budget.HANG_SECONDS, needed=True)
    long = Budget(60.0, 2)
    assert long.patience(Task.VERIFY, "toy", 0.0, needed=True) == budget.HANG_SECONDS
    clock[0] += 50
    assert long.waits_for_needed()


def test_what_a_busy_search_gave_up_is_no_hang(clock):
    found = Budget(10.0, 1)
    assert not found.is_hang(budget.LEAST_HANG_SECONDS - 0.1)
    assert found.is_hang(budget.LEAST_HANG_SECONDS)
    clock[0] += 10
    assert not found.is_hang(budget.LEAST_HANG_SECONDS), "the end came, whatever it was doing"
    assert found.is_hang(budget.FIRST_SECONDS), "nobody would wait for it the next time either"


def test_time_is_kept_for_the_finalists(clock):
    found = Budget(10.0, 2)
    assert found.seconds == pytest.approx(budget.SHARE * 10)
    assert found.for_candidates(0.0) == pytest.approx(found.seconds)
    for seconds in (1.0, 3.0, 2.0):
        found.note(Task.VERIFY, "toy", seconds)
    kept = 3.0 + budget.FINAL_SHARE * found.seconds
    assert found.for_candidates(1.0) == pytest.approx(found.seconds - kept)
    for seconds in itertools.repeat(0.5, 3):
        found.note(Task.MEASURE, "toy", seconds)
    assert found.typical() == pytest.approx(2.0 / 2 + 0.5), (
        "builds go side by side, timing does not"
    )
    assert found.fits_finalists()
    assert found.patience(Task.MEASURE_FINALIST, "toy", 0.0) == pytest.approx(found.left())
    clock[0] += 3.0
    assert found.patience(Task.VERIFY, "toy", 0.0) == pytest.approx(found.for_candidates(0.0)), (
        "not for builds"
    )
    clock[0] += 6.0
    assert not found.fits_finalists()


def test_no_start_is_waited_for_far_beyond_the_budget(clock):
    long, short = Budget(600.0, 1), Budget(5.0, 1)
    assert long.patience_to_start(0.0) == budget.START_SECONDS
    most = short.seconds + budget.START_GRACE
    assert short.patience_to_start(0.0) == pytest.approx(most)
    clock[0] += most - 0.1
    assert short.patience_to_start(most - 0.1) == pytest.approx(0.1)
    assert short.patience_to_start(0.0) == budget.START_GRACE, "one that replaces another"


# From here on with real processes.

GOOD = Config.of("ok", {})


def patience(seconds=PATIENCE):
    """Wait for so many seconds."""
    return lambda waited: seconds - waited


def setup_of(device, **changes):
    index = [f.traits for f in devices.find()].index(device.traits)
    return Setup(index, device.traits.fingerprint(), "s")._replace(**changes)


@pytest.mark.process
@pytest.mark.slow
def test_a_worker_that_dies_hangs_or_refuses_costs_one_candidate(device):
    configs = lookup.defaults(device.traits, S, "").configs
    good = next(config for config in configs if "VW" in dict(config.params))
    uncompilable = Config.of(good.family, dict(good.params) | {"VW": 5})
    with Worker(setup_of(device), patience()) as tried:

        def status(config, limit=PATIENCE):
            outcome = tried.ask(Task.VERIFY_FINALIST, config, patience(limit))
            assert outcome.config == config
            return outcome.status, outcome.detail

        crashed, last_words = status(Config.of("unheard_of", {}))
        assert crashed == "crash"
        assert "KeyError" in last_words
        assert status(good) == ("ok", "")
        refused, log = status(uncompilable)
        assert refused == "build"
        assert "Its log:" in log
        process = tried._process
        assert status(good, limit=0)[0] == "hang"
        assert process.poll() is not None, "a hung worker is ended"
        assert status(good) == ("ok", "")
        process = tried._process
    assert process.poll() is not None


@pytest.mark.process
def test_nobody_waits_for_a_worker_that_is_dropped(device):
    with Worker(setup_of(device), patience()) as tried:
        tried.start()
        tried.dropped = True
        outcome = tried.ask(Task.VERIFY, Config.of("unheard_of", {}), patience())
        assert (outcome.status, outcome.detail) == ("late", "the search ended before it answered")
        tried.dropped = False
        good = lookup.defaults(device.traits, S, "").configs[0]
        assert tried.ask(Task.VERIFY, good, patience()).ok, "another process"


@pytest.mark.process
def test_a_worker_that_sees_other_devices_is_no_candidate_s_fault(device):
    setup = setup_of(device, fingerprint="not " + device.traits.fingerprint())
    with Worker(setup, patience()) as tried, pytest.raises(TuningError, match="ended with 3"):
        tried.ask(Task.VERIFY, GOOD, patience())


@pytest.mark.process
def test_a_worker_that_does_not_start_is_waited_for_no_longer_than_said(monkeypatch):
    monkeypatch.setattr(Worker, "command", ("-c", "import sys; sys.stdin.read()"))
    asked = []

    def twice(waited):
        asked.append(waited)
        return 0.1 if len(asked) < 3 else 0

    with Worker(Setup(0, "", "s"), twice) as tried:
        with pytest.raises(TuningError, match="no answer within"):
            tried.start()
        assert asked == sorted(asked)
        assert len(asked) == 3


@pytest.mark.process
def test_a_worker_that_says_no_more_and_does_not_end_is_waited_for_no_longer_than_said(monkeypatch):
    """A driver may hang when its process ends."""
    monkeypatch.setattr(pool, "END_SECONDS", 0.2)
    program = f"import os, time; os.close(1); time.sleep({2 * PATIENCE})"
    monkeypatch.setattr(Worker, "command", ("-c", program))
    with Worker(Setup(0, "", "s"), patience()) as tried:
        begun = time.monotonic()
        with pytest.raises(TuningError, match="hangs"):
            tried.start()
        assert time.monotonic() - begun < PATIENCE


def test_a_worker_that_cannot_be_killed_is_left_behind(monkeypatch):
    """As one that waits in a driver for ever."""
    asked = []

    class Undead:
        stdin = stdout = None

        def kill(self):
            asked.append("kill")

        def wait(self, timeout=None):
            assert timeout is not None, "this waits for ever"
            asked.append("wait")
            raise subprocess.TimeoutExpired("a worker", timeout)

    tried = Worker(Setup(0, "", "s"), patience(1))
    monkeypatch.setattr(tried, "_process", Undead())
    monkeypatch.setattr(tried, "_stderr", None, raising=False)
    tried.stop()
    assert asked == ["kill", "wait"]


ANSWERS = """
import json, os, sys
setup = json.loads(sys.stdin.readline())
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    config = json.loads(line)["config"]
    print(json.dumps({"config": config, "status": config["family"], "detail": str(os.getpid()),
                      "seconds": {}, "side": setup["side"], "clock": setup["clock"]}), flush=True)
"""
"""A worker that answers with the status that it is asked for, and its own process in detail."""


@pytest.fixture
def answering(monkeypatch):
    monkeypatch.setattr(Worker, "command", ("-c", ANSWERS))
    with Worker(Setup(0, "", "s"), patience()) as tried:
        yield lambda status: tried.ask(Task.VERIFY, Config.of(status, {}), patience())


@pytest.mark.process
def test_after_a_failed_launch_the_worker_is_replaced(answering):
    """On some drivers a failed launch spoils the context for every later one."""
    first, again, failed, after = (answering(x) for x in ("ok", "wrong", "run", "ok"))
    assert first.detail == again.detail == failed.detail
    assert failed.status == "run"
    assert after.detail != failed.detail


@pytest.mark.process
def test_a_worker_that_replaces_another_measures_alike(monkeypatch):
    """Times at other sizes, or by another clock, could not be compared."""
    monkeypatch.setattr(Worker, "command", ("-c", ANSWERS))
    with Worker(Setup(0, "", "s"), patience()) as tried:
        tried.learn(Outcome(GOOD, "ok", side=512, clock="the host's clock"))
        found = tried.ask(Task.VERIFY, Config.of("ok", {}), patience())
        assert (found.side, found.clock) == (512, "the host's clock")


@pytest.mark.process
def test_a_folder_named_clgemm_does_not_stand_in_for_the_package(device, tmp_path, monkeypatch):
    for name in ("clgemm", "numpy", "pyopencl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    with Worker(setup_of(device), patience()) as tried:
        tried.start()


@pytest.mark.process
def test_a_worker_runs_this_very_package_and_adds_no_folder_to_its_path(tmp_path):
    """What lies beside the package, as in site-packages, must not hide the standard library."""
    package = Path(clgemm.__file__).parent
    (tmp_path / "clgemm" / "tuning" / "workers").mkdir(parents=True)
    for folder in ("", "tuning", "tuning/workers"):
        (tmp_path / "clgemm" / folder / "__init__.py").touch()
    program = "import json, sys; main = lambda: print(json.dumps([__file__, sys.path]))"
    (tmp_path / "clgemm" / "tuning" / "workers" / "main.py").write_text(program)
    flag, code, root = Worker.command
    assert (flag, Path(root)) == ("-c", package.parent)

    def seen(*arguments):
        run = subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        return json.loads(run.stdout)

    file, path = seen("-c", code, str(tmp_path))
    assert file == str(tmp_path / "clgemm" / "tuning" / "workers" / "main.py")
    bare = seen("-c", "import json, sys; print(json.dumps([0, [x for x in sys.path if x]]))")[1]
    assert path == bare


def test_a_worker_without_a_core_is_no_hang(clock):
    found = Budget(100.0, 1)
    assert found.is_hang(30.0, 14.9)
    assert not found.is_hang(30.0, 15.1), "the machine is to blame"
    clock[0] += 100
    assert not found.is_hang(30.0, 29.0)


def test_how_long_a_process_was_without_a_core():
    before = {"1": (2.0, 1.0), "2": (5.0, 9.0)}
    asleep = {"1": (2.1, 1.1), "2": (5.0, 9.0)}
    assert processor.starved_seconds(before, asleep, 10.0) == pytest.approx(0.1)
    crowded_out = {"1": (2.1, 10.9), "2": (5.0, 9.0), "3": (0.1, 5.0)}
    assert processor.starved_seconds(before, crowded_out, 10.0) == pytest.approx(9.8)
    in_its_own_way = {"1": (7.0, 6.0), "2": (10.0, 14.0)}  # two threads, one core, all theirs
    assert processor.starved_seconds(before, in_its_own_way, 10.0) == 0.0
    assert processor.starved_seconds({}, {}, 10.0) == 0.0, "nothing tells"


@pytest.mark.parametrize("answers", [True, False])
def test_the_time_in_which_a_search_is_stopped_is_not_the_candidate_s(answers, monkeypatch):
    """By Ctrl-Z or a batch system: the clock goes on, and no process runs."""
    clock = itertools.chain([0.0, 0.05, 60.05], itertools.count(60.1, 0.05))
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    waits = itertools.count()

    def get(**_):
        if answers and next(waits) > 3:
            return '{"status": "ok"}'
        raise queue.Empty

    tried = Worker(Setup(0, "", "s"), patience())
    monkeypatch.setattr(tried, "_process", SimpleNamespace(pid=os.getpid()))
    monkeypatch.setattr(tried, "_answers", SimpleNamespace(get=get))
    if answers:
        assert tried._wait(patience(5.0)) == '{"status": "ok"}'
        return
    with pytest.raises(pool.NoAnswerError):
        tried._wait(patience(5.0))
    assert not Budget(5.0, 1).is_hang(65.0, tried.starved)


READY = "import sys, time; sys.stdin.readline(); print('{}', flush=True); sys.stdin.readline()\n"


@pytest.mark.process
@pytest.mark.skipif(
    not processor.thread_times(os.getpid()), reason="this system does not tell who waits for a core"
)
@pytest.mark.parametrize("busy", [False, True])
def test_whether_a_worker_that_gives_no_answer_had_a_core_is_seen(busy, monkeypatch):
    core = {min(os.sched_getaffinity(0))}
    program = "while True: pass" if busy else f"time.sleep({PATIENCE})"
    monkeypatch.setattr(Worker, "command", ("-c", READY + program))
    spins = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core})\nwhile True: pass"]
    others = [subprocess.Popen(spins) for _ in range(5)]
    try:
        with Worker(Setup(0, "", "s"), patience()) as tried:
            tried.start()
            os.sched_setaffinity(tried._process.pid, core)
            outcome = tried.ask(Task.VERIFY, GOOD, patience(2.0))
            assert outcome.status == "hang"
            assert (tried.starved > 1.0) == busy
    finally:
        for other in others:
            other.kill()
            other.wait()
