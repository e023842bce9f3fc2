"""Threads of a CPU's runtime leave the core of whoever computes."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import clgemm
from clgemm.runtime import interrupt, worker_threads
from clgemm.runtime.worker_threads import Holder, WorkerThreads

if sys.platform != "linux":
    pytest.skip("only Linux tells of threads and moves them", allow_module_level=True)

FIRST, SECOND = 12, 13
INTELS = "Intel(R) OpenCL"


@pytest.fixture
def system(monkeypatch):
    """Make up four cores, the one that the caller is on, and two threads with their cores."""
    everywhere = {0, 1, 2, 3}
    cores = {FIRST: {1}, SECOND: everywhere}  # as the runtime does it or not
    made_up = SimpleNamespace(core=0, allowed=everywhere, cores=cores, moved=0)

    def move(thread, cores):
        made_up.cores[thread] = cores
        made_up.moved += 1
        return True

    monkeypatch.setattr(worker_threads, "_move", move)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: made_up.allowed)
    return made_up


def threads_of(system):
    found = WorkerThreads((FIRST, SECOND))
    found._core = lambda: system.core
    return found


def test_they_leave_the_caller_s_core_whenever_that_changes(system):
    found = threads_of(system)
    for core in (0, 0, 1, 3):
        system.core = core
        found.leave_core()
        assert system.cores[FIRST] == system.cores[SECOND] == {0, 1, 2, 3} - {core}
    assert system.moved == 6


def test_they_use_all_cores_and_leave_the_caller_s_again(system):
    found = threads_of(system)
    found.leave_core()
    found.use_all_cores()
    assert system.cores[FIRST] == system.cores[SECOND] == {0, 1, 2, 3}
    found.leave_core()
    assert system.cores[FIRST] == system.cores[SECOND] == {1, 2, 3}


def test_threads_that_another_context_moved_leave_again(system):
    first, second = threads_of(system), threads_of(system)
    first.leave_core()
    system.core = 3
    second.leave_core()
    system.core = 0
    first.leave_core()
    assert system.cores[FIRST] == system.cores[SECOND] == {1, 2, 3}
    first.leave_core()
    assert system.moved == 6, "not at each call"


def test_a_caller_with_one_core_moves_nothing(system):
    found = threads_of(system)
    system.allowed, system.core = {2}, 2
    found.leave_core()
    assert not system.moved


def test_a_thread_that_has_ended_is_forgotten(system, monkeypatch):
    found = threads_of(system)
    found.leave_core()
    monkeypatch.setattr(worker_threads, "_move", lambda thread, _: thread != FIRST)
    system.core = 3
    found.leave_core()
    assert found.threads == (SECOND,)


@pytest.fixture
def started(monkeypatch):
    """Make up that a driver started one thread, and Python another one."""
    python = {thread.native_id for thread in threading.enumerate()}
    monkeypatch.setattr(worker_threads, "_before", frozenset({FIRST}))
    monkeypatch.setattr(worker_threads, "of_process", lambda: frozenset({FIRST, SECOND, *python}))


@pytest.mark.usefixtures("started")
def test_they_are_what_started_after_the_driver_was_asked():
    found = worker_threads.of_platform(INTELS)
    assert found is not None
    assert found.threads == (SECOND,)


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("name", worker_threads.VARIABLES)
def test_what_a_user_told_the_runtime_holds(monkeypatch, name):
    monkeypatch.setenv(name, "close")
    assert worker_threads.of_platform(INTELS) is None


@pytest.mark.usefixtures("started")
def test_other_runtimes_keep_the_caller_s_core():
    """Their thread that waits sleeps."""
    assert worker_threads.of_platform("Portable Computing Language") is None


def test_ended_threads_and_other_processes_are_not_moved():
    assert not worker_threads._move(2**22 + 1, os.sched_getaffinity(0))
    assert not worker_threads._move(1, os.sched_getaffinity(0)), "a thread of another process"


def test_no_thread_of_the_runtime_may_use_the_core_of_the_caller(device, rng):
    if device.traits.platform not in worker_threads.PLATFORMS:
        pytest.skip(f"threads of {device.traits.platform} need not leave")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("the caller may use a single core")
    x, found = rng.random((200, 200)), device.worker_threads
    if found is None:
        pytest.skip("the context was made by somebody else, earlier")

    def leave():
        with clgemm.settings.using(route="device"):
            np.testing.assert_allclose(clgemm.matmul(x, x), x @ x)
        others = os.sched_getaffinity(0) - {found.left}
        return found.left >= 0 and all(os.sched_getaffinity(t) == others for t in found.threads)

    assert found.threads
    assert any(leave() for _ in range(5)), "threads of NumPy's among them are given all in between"


@pytest.fixture
def cores():
    """Return the cores that the caller may use, several, which it still may in the end."""
    found = os.sched_getaffinity(0)
    if len(found) < 2:
        pytest.skip("the caller may use a single core")
    yield found
    left, held = os.sched_getaffinity(0), dict(worker_threads._held)
    os.sched_setaffinity(0, found)
    worker_threads._held.clear()
    assert left == found
    assert not held


class Waits:
    """Stands for an event, and notes the cores of the thread that waits for it."""

    cores: set[int] | None = None

    def wait(self):
        self.cores = os.sched_getaffinity(0)


@pytest.mark.parametrize("place", [0, -1])
def test_a_thread_that_waits_begins_on_the_caller_s_core(monkeypatch, cores, place):
    core, at_first, event = sorted(cores)[place], [], Waits()
    release = Holder.release

    def noting(self):
        at_first.append((threading.current_thread().name, os.sched_getaffinity(0)))
        release(self)

    monkeypatch.setattr(Holder, "release", noting)
    workers = WorkerThreads(())
    workers._core = lambda: core
    interrupt.wait(event, lambda: None, (), workers.holder())
    assert at_first == [("clgemm wait", {core})]
    assert event.cores == cores


@pytest.mark.parametrize("core", [-1, 10**6])
def test_nobody_is_held_on_a_core_that_is_not_known_or_allowed(cores, core):
    holder = Holder(core)
    holder.hold()
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_caller_that_starts_no_thread_is_held_no_longer(monkeypatch, cores, error):
    held, event = [], Waits()

    def start(_):
        held.append(os.sched_getaffinity(0))
        raise error

    monkeypatch.setattr(threading.Thread, "start", start)
    holder, core = Holder(min(cores)), {min(cores)}
    if error is KeyboardInterrupt:
        with pytest.raises(error):
            interrupt.wait(event, lambda: None, (), holder)
        assert event.cores is None
    else:
        interrupt.wait(event, lambda: None, (), holder)
        assert event.cores == cores, "the caller waits itself"
    assert held == [core]


def test_threads_use_all_cores_while_the_caller_is_held(monkeypatch, cores):
    moved = {}
    holder, workers = Holder(min(cores)), WorkerThreads((FIRST,))
    holder.hold()
    with monkeypatch.context() as patch:
        patch.setattr(worker_threads, "_move", lambda thread, to: bool(moved.update({thread: to})))
        workers.use_all_cores()
    holder.release()
    assert moved == {FIRST: cores}
