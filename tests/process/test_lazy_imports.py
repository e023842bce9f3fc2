"""Imports that wait for the first call that needs them."""

from __future__ import annotations

import signal
import sys
import threading
from importlib import import_module

import pytest
from helpers import PATIENCE, run_python

from clgemm import lazy_imports
from clgemm.lazy_imports import lazy_import_apart

SLOW = """
import time
begun = time.monotonic()
while time.monotonic() < begun + 0.5:
    time.sleep(0.001)
whole = True
"""
FINDS_HALF = """
import signal, sys
from clgemm.lazy_imports import lazy_import_apart
seen = []
def handler(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    seen.append(lazy_import_apart("slow.part").whole)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
assert lazy_import_apart("slow.part").whole
assert seen == [True]
"""
CALLER = """
from clgemm.lazy_imports import lazy_import_apart
part = lazy_import_apart("slow.part")
"""
CALLED_BY_ITS_OWN_IMPORT = """
import slow.caller
assert slow.caller.part.whole
"""


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """Make up a package: a part that takes half a second, one that imports it lazily."""
    package = tmp_path / "slow"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(SLOW)
    (package / "caller.py").write_text(CALLER)
    (package / "broken.py").write_text("raise ArithmeticError('on purpose')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.process
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers on Windows")
@pytest.mark.parametrize("program", [FINDS_HALF, CALLED_BY_ITS_OWN_IMPORT], ids=["handler", "own"])
def test_nobody_gets_half_a_module_and_nobody_waits_for_itself(slow, program):
    path = f"import sys; sys.path.insert(0, {str(slow)!r})\n"
    done = run_python(path + program, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("slow")
def test_its_errors_are_raised():
    with pytest.raises(ArithmeticError, match="on purpose"):
        lazy_import_apart("slow.broken")


@pytest.mark.usefixtures("slow")
def test_it_needs_no_thread(monkeypatch):
    def fails(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(lazy_imports._thread, "start_new_thread", fails)
    assert threading.current_thread() is threading.main_thread()
    assert "slow.part" not in sys.modules
    assert lazy_import_apart("slow.part") is import_module("slow.part")
    monkeypatch.delitem(sys.modules, "slow.part")
