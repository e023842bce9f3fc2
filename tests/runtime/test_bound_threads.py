"""Threads that a CPU's runtime binds to cores leave the core of whoever computes."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import clgemm
from clgemm.runtime import bound_threads
from clgemm.runtime.bound_threads import BoundThreads

if sys.platform != "linux":
    pytest.skip("only Linux tells of threads and moves them", allow_module_level=True)

FREE, FIRST, SECOND, LATER = 11, 12, 13, 14
"""Threads: one that may run anywhere, two that bound themselves, one that has not yet."""


@pytest.fixture
def system(monkeypatch):
    """Make up four cores, the one that the caller is on, and threads with their cores."""
    everywhere = {0, 1, 2, 3}
    cores = {FREE: everywhere, FIRST: {1}, SECOND: {2}, LATER: everywhere}
    made_up = SimpleNamespace(core=0, allowed=everywhere, cores=cores)

    def move(thread, cores):
        made_up.cores[thread] = cores
        return True

    monkeypatch.setattr(bound_threads, "of_process", lambda: frozenset(made_up.cores))
    monkeypatch.setattr(bound_threads, "_cores", lambda thread: made_up.cores.get(thread, set()))
    monkeypatch.setattr(bound_threads, "_move", move)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: made_up.allowed)
    return made_up


def threads_of(system):
    found = BoundThreads(frozenset({1}))
    found._core = lambda: system.core
    return found


def test_what_is_bound_leaves_the_caller_s_core_whenever_that_changes(system):
    found = threads_of(system)
    for core in (0, 0, 1, 3):
        system.core = core
        found.leave_core()
        assert system.cores[FIRST] == system.cores[SECOND] == {0, 1, 2, 3} - {core}
        assert system.cores[FREE] == {0, 1, 2, 3}


def test_threads_that_bind_themselves_late_are_found(system):
    system.cores = {LATER: {0, 1, 2, 3}}
    found = threads_of(system)
    found.leave_core()
    system.cores[LATER] = {0}
    found.leave_core()
    assert system.cores[LATER] == {1, 2, 3}


def test_nobody_looks_for_them_for_ever(system):
    system.cores = {FREE: {0, 1, 2, 3}}
    found = threads_of(system)
    for _ in range(bound_threads.LOOKS):
        found.leave_core()
    system.cores = None
    found.leave_core()


def test_a_caller_with_one_core_moves_nothing(system):
    found = threads_of(system)
    found.leave_core()
    system.allowed, system.core = {2}, 2
    found.leave_core()
    assert system.cores[FIRST] == {1, 2, 3}


def test_a_thread_that_has_ended_is_forgotten(system, monkeypatch):
    found = threads_of(system)
    found.leave_core()
    monkeypatch.setattr(bound_threads, "_move", lambda thread, _: thread != FIRST)
    system.core = 3
    found.leave_core()
    assert found._threads == (SECOND,)


@pytest.mark.parametrize("name", bound_threads.VARIABLES)
def test_what_a_user_told_the_runtime_holds(monkeypatch, name):
    monkeypatch.setattr(bound_threads, "_before", frozenset({1}))
    assert bound_threads.of_drivers() is not None
    monkeypatch.setenv(name, "close")
    assert bound_threads.of_drivers() is None


def test_ended_threads_and_other_processes_have_no_cores_here():
    assert bound_threads._cores(2**22 + 1) == set()
    assert not bound_threads._move(2**22 + 1, os.sched_getaffinity(0))
    assert not bound_threads._move(1, os.sched_getaffinity(0)), "a thread of another process"


def test_no_thread_of_the_runtime_is_bound_to_the_core_of_the_caller(device, rng):
    if device.traits.kind != "cpu" or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("no threads share the caller's cores, or there is a single one")
    x, found = rng.random((200, 200)), device.bound_threads
    with clgemm.settings.using(route="device"):
        for _ in range(bound_threads.LOOKS):
            np.testing.assert_allclose(clgemm.matmul(x, x), x @ x)
    if not found._threads:
        pytest.skip(f"{device.traits.platform} binds no thread")
    others = os.sched_getaffinity(0) - {found._left}
    assert all(os.sched_getaffinity(thread) == others for thread in found._threads)
