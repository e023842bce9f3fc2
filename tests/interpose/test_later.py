"""What is raised while an interposed call computes: raised after it, and the product is right."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading

import numpy as np
import pytest
from clients import needs_compiler
from helpers import PATIENCE, run_python

import clgemm
from clgemm.interpose import callbacks, later
from clgemm.runtime import machine_code, registry

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("restored"),
    pytest.mark.skipif(machine_code.why_not() is not None, reason=str(machine_code.why_not())),
]

# A signal comes where the engine runs: before it computes, after it, or at any time.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import scipy.linalg.blas as blas
import clgemm
from clgemm.dispatch.engine import Engine

where, kind = sys.argv[1:3]
a = np.arange(40000, dtype=np.float32).reshape(200, 200) % 3
c = np.asfortranarray(a)
want = blas.sgemm(1.0, a, a, 2.0, c)
clgemm.install(least=1000)
blas.sgemm(1.0, a, a, 2.0, c)  # kernels are built

class TimeIsUp(Exception):
    pass

def late(number, frame):
    raise TimeIsUp

class Handler:
    def __call__(self, number, frame):
        raise TimeIsUp

handlers = {"ctrl-c": signal.default_int_handler, "function": late, "object": Handler()}
signal.signal(signal.SIGINT, handlers[kind])
expected = KeyboardInterrupt if kind == "ctrl-c" else TimeIsUp
run = Engine.run
def disturbed(self, decision, call):
    if where == "before":
        signal.raise_signal(signal.SIGINT)
    run(self, decision, call)
    if where == "after":
        signal.raise_signal(signal.SIGINT)
Engine.run = disturbed

for overwrite in (0, 1):
    given = c.copy(order="F")
    try:
        result = blas.sgemm(1.0, a, a, 2.0, given, overwrite_c=overwrite)
        for _ in range(100):
            pass
    except expected:
        pass
    else:
        sys.exit("nothing was raised")
    if overwrite:
        assert (given == want).all(), "the product is wrong"
Engine.run = run
assert (blas.sgemm(1.0, a, a, 2.0, c) == want).all()
print("good")
"""


@pytest.mark.parametrize(
    ("where", "kind"),
    [("before", "ctrl-c"), ("after", "ctrl-c"), ("after", "function"), ("before", "object")],
)
def test_what_a_signal_handler_raises_is_raised_after_the_call(device, where, kind):
    run = run_python(PROGRAM, where, kind, CLGEMM_DEVICE=device.traits.platform)
    assert (run.stdout, run.returncode) == ("good\n", 0), run.stderr
    assert "Exception ignored" not in run.stderr


# Signals at any time, the first instruction of a callback included: each raises once, and whatever
# it interrupts, the product is right.
STORM = """
import signal, sys, time
import numpy as np
import clgemm
a = np.arange(8 * 900, dtype=np.float32).reshape(8, 30, 30) % 3
want = a @ a
clgemm.install(least=1000)
a @ a
raised = handled = good = 0
class TimeIsUp(Exception):
    pass
def late(number, frame):
    global handled
    handled += 1
    raise TimeIsUp
out = np.empty_like(want)
rng, whole, turns = np.random.default_rng(5), 1e-3, int(sys.argv[1])
signal.signal(signal.SIGALRM, late)
while handled < turns or good < turns // 4:
    out[...] = -1
    begun = time.perf_counter()
    try:
        # Over twice the time that a product takes, as far as is known.
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + 2 * whole * rng.random())
        np.matmul(a, a, out=out)
        whole = 0.9 * whole + 0.1 * (time.perf_counter() - begun)
        while True:
            pass
    except TimeIsUp:
        raised += 1
    # NumPy has begun and ended, or did neither.
    assert (out == want).all() or (out == -1).all(), "a product is wrong"
    good += (out == want).all()
assert raised == handled, (raised, handled)
"""
TURNS = int(os.environ.get("HANDLED", "400"))
"""Signals; .ci/full has more."""


def test_signals_at_any_time_lose_no_product_and_no_exception(device):
    run = run_python(STORM, TURNS, timeout=PATIENCE + TURNS, CLGEMM_DEVICE=device.traits.platform)
    assert run.returncode == 0, run.stderr
    assert "Exception ignored" not in run.stderr


# Ctrl-C while C is being computed: a long product ends, and the program with it.
LONG = """
import os, signal, threading
import numpy as np
import clgemm
a = np.ones((1500, 1500), np.float32)
clgemm.install(least=1000)
a @ a
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    for _ in range(10000):
        assert (a @ a == 1500).all()
except KeyboardInterrupt:
    print("heard")
"""


def test_ctrl_c_during_long_products_is_heard(device):
    run = run_python(LONG, CLGEMM_DEVICE=device.traits.platform)
    assert (run.stdout, run.returncode) == ("heard\n", 0), run.stderr


@needs_compiler
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("after", [False, True])
def test_the_original_computes_where_the_device_fails(
    device, client, originals, rng, monkeypatch, caplog, beta, after
):
    """Even where C is written already."""
    n = 50
    a = rng.integers(-4, 5, (n, n)).astype(np.float32)
    c = np.full((n, n), np.nan if beta == 0 else 3.0, np.float32)
    want = a @ a + (0 if beta == 0 else beta * c)
    run = callbacks.engines.Engine.run

    def failing(self, decision, call):
        if after:
            run(self, decision, call)
        raise MemoryError("no more of it")

    monkeypatch.setattr(callbacks.engines.Engine, "run", failing)
    with registry.using(device), clgemm.interposed(least=1000):
        before = originals()
        for _ in range(2):
            given = c.copy()
            client.gemm("cblas_sgemm", 1, a, a, beta, given, m=n, n=n, k=n, ld=(n, n, n))
            assert np.array_equal(given, want)
        assert originals() == before + 2
    assert any("no more of it" in why for why in clgemm.usage().reasons)
    assert len(re.findall("no more of it", caplog.text)) <= 1


DEEP = """
import logging, sys
import numpy as np
import clgemm
a = np.ones((100, 100), np.float32)
clgemm.install(least=1000)
a @ a

def multiply(depth):
    if depth:
        return multiply(depth - 1)
    product = a @ a
    return product[0, 0], product[-1, -1]

logging.disable()
for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit()):
    try:
        assert multiply(depth) == (100, 100)
    except RecursionError:
        depths = depth
        break
clgemm.uninstall()
try:
    multiply(depths - 1)
    multiply(depths)
except RecursionError:
    print("good")
"""


def test_a_program_may_multiply_as_deep_as_ever(device):
    """What fails for want of depth in a callback is no error of the program's."""
    run = run_python(DEEP, CLGEMM_DEVICE=device.traits.platform)
    assert (run.stdout, run.returncode) == ("good\n", 0), run.stderr


def test_a_handler_is_known_by_what_it_raises():
    def handler(number, frame):
        raise ValueError(number, frame)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(ValueError, match="15") as found:
            signal.raise_signal(signal.SIGTERM)
        assert later.is_the_programs(found.value)
        with pytest.raises(ValueError, match="x") as found:
            int("x")
        assert not later.is_the_programs(found.value)
        assert later.is_the_programs(KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_thread_that_is_to_end_ends_after_its_call(device, rng):
    """Python has no signal handlers there, but a way to raise something in another thread."""

    class Stop(BaseException):
        pass

    a = rng.integers(-3, 4, (300, 300)).astype(np.float32)
    want, heard, wrong, begun = a @ a, [], [], threading.Event()

    def work():
        try:
            while True:
                if not np.array_equal(a @ a, want):
                    wrong.append(1)
                begun.set()
        except Stop:
            heard.append(1)

    with registry.using(device), clgemm.interposed(least=1000):
        a @ a
        for _ in range(2):
            begun.clear()
            thread = threading.Thread(target=work)
            thread.start()
            assert begun.wait(PATIENCE)
            number = ctypes.c_ulong(thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(Stop))
            thread.join(PATIENCE)
            assert not thread.is_alive()
    assert (len(heard), wrong) == (2, [])
