"""Parts of a call in threads of their own: all are waited for, and none waits for ever."""

from __future__ import annotations

import _thread
import threading
from queue import SimpleQueue

import pytest
from helpers import PATIENCE
from helpers import wait_until as until

from clgemm.runtime.parts import Parts


def test_the_caller_takes_no_lock_that_ctrl_c_may_leave_held(monkeypatch):
    """Those of `threading` are Python's own; a thread would wait for them, and a program's end."""
    taken, enter, done = [], threading.Condition.__enter__, SimpleQueue()

    def note(condition):
        if threading.get_ident() == threading.main_thread().ident:
            taken.append(condition)
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", note)
    with Parts("a test") as parts:
        for number in range(3):
            parts.start(lambda number=number: done.put(number))
        parts.wait()
    assert sorted(done.get(timeout=PATIENCE) for _ in range(3)) == [0, 1, 2]
    assert not taken


def test_after_ctrl_c_what_has_begun_is_waited_for_and_nothing_begins():
    begun, gate, ended = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        gate.wait(PATIENCE)
        ended.append(True)

    def press():
        with Parts("a test") as parts:
            parts.start(work)
            assert begun.wait(PATIENCE)
            threading.Timer(0.1, gate.set).start()
            parts.start(lambda: until(lambda: parts.is_over))
            late.extend([parts, parts._parts[0]])
            raise KeyboardInterrupt

    late = []
    with pytest.raises(KeyboardInterrupt):
        press()
    assert ended == [True]
    late[1]()
    assert ended == [True]


@pytest.mark.parametrize("place", [(_thread, "start_new_thread"), (threading.Thread, "start")])
def test_parts_are_done_where_no_thread_can_be_started(place, monkeypatch):
    def fails(*_):
        raise RuntimeError("can't start new thread")

    done = []
    with Parts("a test") as parts:
        monkeypatch.setattr(*place, fails)
        for number in range(2):
            parts.start(lambda number=number: done.append(number))
        parts.wait()
    assert sorted(done) == [0, 1]


def test_what_fails_first_ends_the_wait():
    gate = threading.Event()

    def fails():
        raise ArithmeticError("on purpose")

    with Parts("a test") as parts:
        parts.start(lambda: gate.wait(PATIENCE))
        parts.start(fails)
        parts.wait()
        assert not gate.is_set()
        gate.set()
    assert [str(error) for error in parts.errors()] == ["on purpose"]
