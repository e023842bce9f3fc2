"""Locks that a fork waits for are taken in one order, or it would wait for its own."""

from __future__ import annotations

import pytest
from helpers import needs_fork, run_python

PROGRAM = """
import importlib.abc, importlib.util, os, sys, threading, time
import clgemm
from clgemm import lazy_imports
import logging

begun, done = threading.Event(), []
class Logging(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, *more):
        return importlib.util.spec_from_loader(name, self) if name == "logs" else None
    def exec_module(self, module):
        begun.set()
        time.sleep(0.3)
        logging.getLogger("another")
        done.append(module)
sys.meta_path.insert(0, Logging())
lazy_imports.PATIENCE = 5.0
thread = threading.Thread(target=lazy_imports.lazy_import, args=("logs",))
thread.start()
begun.wait()
child = os.fork()
if not child:
    os._exit(0 if done else 1)
assert os.waitpid(child, 0)[1] == 0, "the import waited for the fork, and the fork for the import"
thread.join()
"""
INTERRUPTED = """
import os, signal, sys, threading
from clgemm import lazy_imports

taken, free = threading.Event(), threading.Event()
def importer():
    with lazy_imports.importing:
        taken.set()
        free.wait()
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
sys.unraisablehook = lambda raised: free.set()  # Python says what ended the wait, and forks
thread = threading.Thread(target=importer)
thread.start()
taken.wait()
threading.Timer(0.2, interrupt).start()
child = os.fork()
if not child:
    signal.alarm(20)
    lazy_imports.lazy_import("colorsys")
    os._exit(0)
free.set()
assert os.waitpid(child, 0)[1] == 0, "the child waits for a thread that it does not have"
thread.join()
thread = threading.Thread(target=lazy_imports.lazy_import, args=("colorsys",), daemon=True)
thread.start()
thread.join(20)
assert not thread.is_alive()
"""


@pytest.mark.process
@needs_fork
@pytest.mark.parametrize("program", [PROGRAM, INTERRUPTED], ids=["logs", "interrupted"])
def test_a_fork_waits_for_an_import(program):
    """Unless Ctrl-C ends that wait; then the child has no lock that somebody else held."""
    # Python 3.12 and later warn of any fork beside threads.
    run = run_python(program, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert (run.returncode, run.stderr) == (0, "")
