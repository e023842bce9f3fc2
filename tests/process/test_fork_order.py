"""Locks that a fork waits for are taken in one order, or it would wait for its own."""

from __future__ import annotations

import pytest
from helpers import needs_fork, run_python

PROGRAM = """
import importlib.abc, importlib.util, os, sys, threading, time
import clgemm
from clgemm import lazy_imports
import logging

begun = threading.Event()
class Logging(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, *more):
        return importlib.util.spec_from_loader(name, self) if name == "logs" else None
    def exec_module(self, module):
        begun.set()
        time.sleep(0.3)
        logging.getLogger("another")
sys.meta_path.insert(0, Logging())
lazy_imports.PATIENCE = 5.0
thread = threading.Thread(target=lazy_imports.lazy_import, args=("logs",))
thread.start()
begun.wait()
child = os.fork()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert lazy_imports._fork.waited, "the import waited for the fork, and the fork for the import"
thread.join()
"""


@pytest.mark.process
@needs_fork
def test_a_fork_waits_for_an_import_that_logs():
    run = run_python(PROGRAM)
    assert (run.returncode, run.stderr) == (0, "")
