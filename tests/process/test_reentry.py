"""Calls from within calls: signal handlers, log handlers and finalizers that multiply."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import PATIENCE, run_python
from pyopencl.array import Array, to_device

import clgemm
from clgemm.dispatch import engines
from clgemm.problem import BY_DTYPE
from clgemm.runtime import devices, ending, reentry, registry
from clgemm.runtime.device import Device
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure.verify import random_matrix

HANDLED = int(os.environ.get("HANDLED", "400"))
"""Signals whose handlers multiply; .ci/full has more."""

# What is interrupted, and what interrupts it: products of the same kinds, so that they would meet
# in the same kernels, buffers and locks.  Run in an interpreter of its own, since it might hang.
PRODUCTS = """
import faulthandler, logging, os, random, signal, sys, threading, time
import numpy as np
import clgemm
from clgemm import settings
from clgemm.runtime import registry

faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
rng = np.random.default_rng(8)
x, y, z = (rng.integers(-4, 5, (90, 90)).astype(np.float32) for _ in "xyz")
stack = np.stack([x, y, z])
want, want_stack = x @ y, stack @ z
other = z @ x

def dense():
    assert (clgemm.matmul(x, y) == want).all(), "matmul"
    assert (clgemm.sgemm(2.0, x, y, 1.0, want) == 3 * want).all(), "sgemm"
    assert (clgemm.matmul(stack, z) == want_stack).all(), "a stack"

def arrays():
    a, b, c = map(clgemm.to_device, (x, y, np.asfortranarray(want)))
    assert (clgemm.matmul(a, b).get() == want).all(), "matmul of Arrays"
    assert (clgemm.sgemm(2.0, a, b, 1.0, c, overwrite_c=1).get() == 3 * want).all(), "of Arrays"

def explained():
    clgemm.explain(x, y)

def copied():
    os.environ["CLGEMM_DEVICE_MEMORY_MB"] = "0.06"
    assert (clgemm.matmul(y, x) == y @ x).all(), "in blocks"
    del os.environ["CLGEMM_DEVICE_MEMORY_MB"]

def inner():
    global count
    count += 1
    assert (clgemm.matmul(z, x) == other).all(), "an inner matmul"
    assert (clgemm.sgemm(2.0, z, x, 1.0, other) == 3 * other).all(), "an inner sgemm"
    if on_device:
        assert (clgemm.matmul(*on_device).get() == other).all(), "inner Arrays"
        got = clgemm.sgemm(2.0, on_device[0], on_device[1], trans_b=1).get()
        assert (got == 2 * z @ x.T).all(), "inner Arrays"

count, on_device = 0, ()
"""

# At each line of clgemm's, in each of its threads, and before a thread of its own has begun.
TRACED = """
package, seen, begun = os.path.dirname(clgemm.__file__), set(), set()

def trace(frame, event, argument):
    place = frame.f_code.co_filename, frame.f_lineno
    if not place[0].startswith(package):
        thread = threading.current_thread()
        if thread.name.startswith("clgemm") and thread not in begun:
            begun.add(thread)
            inner()
        return None
    if event == "line" and place not in seen:
        seen.add(place)
        inner()
    return trace

threading.settrace(trace)
sys.settrace(trace)
"""

EVERYWHERE = """
for work in (dense, arrays, explained, copied):
    work()
on_device = clgemm.to_device(z), clgemm.to_device(x)
for work in (dense, arrays, explained, copied):
    seen.clear()
    work()
"""

UNTRACED = """
sys.settrace(None)
threading.settrace(None)
assert count > 500, count
assert begun, "no thread has begun: the test tests nothing of them"
for work in (dense, arrays, explained, copied):
    work()
assert not registry.current().running
"""

# Before a copy thread has begun, and is known for the package's own.
BEGINS = """
from clgemm.dispatch import engines
begun = set()

def trace(frame, event, argument):
    me = threading.current_thread()
    if me.name == "clgemm copy" and me not in begun:
        begun.add(me)
        inner()

copied()
engines.of(registry.current()).threads.trim()  # the next call starts others
threading.settrace(trace)
copied()
threading.settrace(None)
assert begun, "no thread has begun: the test tests nothing"
copied()
"""

SEARCHED = """
dense()
assert searches, "the first call searched nothing: the test tests nothing"
"""

TOLD = """
from clgemm.tuning.search import budget
budget.HANG_SECONDS = budget.START_SECONDS = 300.0  # on a busy machine a search takes what it takes
class Told(logging.Handler):
    def emit(self, record):
        if "tuning" in record.getMessage():
            searches.append(record)
searches = []
logging.getLogger("clgemm").addHandler(Told())
logging.getLogger("clgemm").setLevel(logging.INFO)
"""

SHARED = """
large = rng.integers(-4, 5, (1100, 1100)).astype(np.float32)
want_large = large @ large
explanation = clgemm.explain(large, large)
assert explanation.shares, explanation
for _ in range(2):
    seen.clear()
    assert (clgemm.matmul(large, large) == want_large).all(), "on several devices"
"""

SIGNALS = """
def press(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    inner()
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))

random.seed(int(sys.argv[2]))
signal.signal(signal.SIGALRM, press)
signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 0.2))
calls = 0
while calls < 5 or count < int(sys.argv[3]):
    for work in (dense, arrays, explained, copied):
        work()
    calls += 1
    if calls == 3:
        on_device = clgemm.to_device(z), clgemm.to_device(x)
signal.setitimer(signal.ITIMER_REAL, 0)
"""

# Each import holds locks of modules, which another thread that imports would wait for.
IMPORTING = """
class Presses:
    def find_spec(self, name, path=None, target=None):
        signal.raise_signal(signal.SIGINT)

def press(*_):
    if not busy:
        busy.append(1)
        inner()
        busy.clear()

busy = []
signal.signal(signal.SIGINT, press)
sys.meta_path.insert(0, Presses())
dense()
import html.parser, scipy.linalg
assert count > 3, count
"""

# The handler's own lock is held while it works, and each thread logs while it holds another.
LOGGED = """
class Multiplies(logging.Handler):
    busy = False
    def emit(self, record):
        text = record.getMessage()
        if not self.busy:
            self.busy = True
            try:
                inner()
            except BaseException as error:
                failures.append(error)
            self.busy = False

failures, handler = [], Multiplies(1)
logging.getLogger().addHandler(handler)
logging.getLogger("clgemm").setLevel(1)
logging.getLogger("app").setLevel(1)
stop = False

def chat():
    while not stop:
        logging.getLogger("app").debug("a word")
        time.sleep(0.001)

def work():
    try:
        for turn in range(15):
            dense(), arrays(), explained()
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=x) for x in (chat, work, work, work)]
[t.start() for t in threads]
[t.join() for t in threads[1:]]
stop = True
threads[0].join()
copied()
assert not failures, failures
assert count > 50, count
"""


def run(program, device, *arguments, seconds=PATIENCE, **environment):
    environment = {"CLGEMM_DEVICE": device.traits.platform} | environment
    done = run_python(PRODUCTS + program, seconds, *arguments, timeout=seconds + 20, **environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_calls_from_within_a_call_at_each_of_its_lines(device):
    """First calls, which open the device and build, and later ones."""
    run(TRACED + EVERYWHERE + UNTRACED, device)


@pytest.mark.process
def test_copy_threads_that_multiply_before_they_copy(device):
    """They wait for the memory of the very call that has them copy."""
    run(BEGINS, device)


@pytest.mark.process
@pytest.mark.slow
def test_calls_from_within_a_search_at_each_of_its_lines(device, tmp_path):
    run(
        TOLD + TRACED + SEARCHED + UNTRACED, device,
        CLGEMM_TUNE="quick", CLGEMM_TUNE_SECONDS=PATIENCE, CLGEMM_CACHE_DIR=tmp_path,
        CLGEMM_ROUTE=None,
    )  # fmt: skip


@pytest.mark.process
@pytest.mark.slow
def test_calls_from_within_a_call_on_several_devices():
    platforms = sorted({f.traits.platform for f in devices.find() if f.traits.kind == "cpu"})
    if len(platforms) < 2:
        pytest.skip(f"CPU devices of one platform: {platforms}")
    run(TRACED + SHARED + UNTRACED, devices.find()[0], CLGEMM_DEVICE=",".join(platforms))


@pytest.mark.process
@pytest.mark.parametrize("route", ["device", None])
def test_signal_handlers_that_multiply_at_any_moment(device, route):
    """From the very first call on, which imports SciPy's BLAS or opens the device."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("this system has no such timer")
    run(SIGNALS, device, 6, HANDLED, seconds=PATIENCE + HANDLED, CLGEMM_ROUTE=route)


@pytest.mark.process
@pytest.mark.parametrize("route", ["device", None])
def test_signal_handlers_that_multiply_within_each_import(device, route):
    run(IMPORTING, device, CLGEMM_ROUTE=route)


@pytest.mark.process
def test_log_handlers_that_multiply(device):
    run(LOGGED, device)


class Calls(logging.Handler):
    """Multiplies when something is logged, while another thread holds what it needs."""

    def __init__(self, multiply):
        super().__init__()
        self.multiply, self.held, self.result = multiply, threading.Event(), None

    def emit(self, _):
        assert self.held.wait(PATIENCE)
        try:
            self.result = self.multiply()
        except BaseException as error:  # noqa: BLE001 - compared by the test
            self.result = error


LOCKS = {
    "to open a device": lambda _: registry._lock,
    "to build": lambda found: found.device.building,
    "to find parameters": lambda found: found.parameters._lock,
    "to measure": lambda found: found._finding_out,
}


@pytest.mark.parametrize("arrays", [False, True], ids=["NumPy", "Arrays"])
@pytest.mark.parametrize("what", LOCKS)
def test_a_log_handler_waits_for_no_thread_that_logs(device, what, arrays, monkeypatch):
    """It has the handler's lock, and that thread another one: both would wait for ever."""
    monkeypatch.setenv("CLGEMM_TUNE", "auto" if what != "to build" else "off")
    monkeypatch.setattr(registry, "in_use", None)
    fresh = Device(devices.Found(device.context.devices[0], device.traits), "a test")
    monkeypatch.setattr(registry, "in_use", None if what == "to open a device" else fresh)
    monkeypatch.setenv("CLGEMM_ROUTE", "auto" if what == "to measure" else "device")
    lock, side = LOCKS[what](engines.of(fresh)), 140
    a = np.arange(side * side, dtype=np.float32).reshape(side, side) % 5
    x = Array(cl.CommandQueue(fresh.context), a.shape, a.dtype) if arrays else a
    if arrays:
        x.set(a)
    handler, begun = Calls(lambda: clgemm.matmul(x, x)), threading.Event()

    def find_out():
        with lock():
            begun.wait(PATIENCE)
            handler.held.set()
            handler.acquire()  # as to log does
            handler.release()

    thread = threading.Thread(target=find_out)
    thread.start()
    record = logging.makeLogRecord({"msg": "a word"})
    caller = threading.Thread(target=lambda: (begun.set(), handler.handle(record)), daemon=True)
    caller.start()
    caller.join(PATIENCE)
    assert not caller.is_alive(), "the log handler waits for ever"
    thread.join(PATIENCE)
    assert isinstance(handler.result, type(x)), handler.result
    np.testing.assert_array_equal(handler.result.get() if arrays else handler.result, a @ a)


def test_nothing_is_logged_under_a_lock_that_calls_take(device, monkeypatch, rng):
    """Whoever waits for it may be a log handler, for whose lock the other thread would wait."""
    fresh = Device(devices.Found(device.context.devices[0], device.traits), "a test")
    used, taken, records = engines.of(fresh), [], []

    class Looks(logging.Handler):
        def emit(self, record):
            records.append(record)
            threads = used.threads
            plain = fresh.scratch, fresh.memory, threads, threads.staging
            held = [type(x).__name__ for x in plain if x._lock.locked()]
            if held or fresh.lock._is_owned():
                taken.append((record.getMessage(), held))

    logger, handler = logging.getLogger("clgemm"), Looks(1)
    before = logger.level
    logger.setLevel(1)
    logger.addHandler(handler)
    try:
        a = rng.random((200, 200), np.float32)
        with registry.using(fresh):
            want = clgemm.matmul(a, a)
            monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", "0.3")
            np.testing.assert_allclose(clgemm.matmul(a, a.T.copy().T), want, rtol=1e-5)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert len(records) > 3
    assert not taken


def test_a_mark_that_was_left_behind_costs_nothing(device):
    """Ctrl-C may have come before it was taken away."""
    a = np.eye(90, dtype=np.float32)
    with registry.using(device):
        ending.inside.add(threading.get_ident())
        assert clgemm.explain(a, a).route == "device"
        assert threading.get_ident() not in ending.inside
        assert (clgemm.matmul(a, a) == a).all()


def test_a_lock_whose_holder_was_interrupted_is_free(device):
    """By its own thread at once, by another one when what is left of the call is gone."""
    del device
    lock = reentry.CheckedLock()
    left = lock()
    left.__enter__()
    with lock():
        assert lock.locked()
    left = lock()
    left.__enter__()
    taken = []

    def take():
        with lock():
            taken.append(True)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(0.1)
    assert not taken
    assert lock.locked()
    del left
    thread.join(PATIENCE)
    assert taken
    assert not lock.locked()


def test_a_lock_is_free_after_its_call_though_somebody_keeps_the_exception(monkeypatch):
    """Its frames have what holds the lock, which Ctrl-C kept from being released."""
    lock, taken = reentry.CheckedLock(), []

    def interrupted(_):
        raise KeyboardInterrupt

    @reentry.entry()
    def call():
        with lock():
            taken.append(True)

    monkeypatch.setattr(lock, "release", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        call()
    monkeypatch.undo()
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    assert len(taken) == 2, "another thread waits for it"
    assert kept


def a_matrix(queue, rng, *shape, dtype=np.complex64, order="C"):
    return to_device(queue, np.asarray(random_matrix(rng, BY_DTYPE[np.dtype(dtype)], *shape),
                                       order=order))  # fmt: skip


class Operands(NamedTuple):
    a: Any
    b: Any
    c: Any


CASES = {
    "matmul": lambda x: clgemm.matmul(x.a, x.b),
    "matmul of views": lambda x: clgemm.matmul(x.a[2:9, 3:17], x.b.T[5:17, 4:19].T[:14, :7].T),
    "of vectors": lambda x: clgemm.matmul(x.a[0], x.a[1]),
    "of a stack": lambda x: clgemm.matmul(x.a.reshape(5, 4, 30), x.b),
    "with out": lambda x: clgemm.matmul(x.a, x.b, out=x.c),
    "gemm": lambda x: clgemm.cgemm(1 - 2j, x.a, x.b),
    "transposed": lambda x: clgemm.cgemm(0.5, x.b, x.a, trans_a=2, trans_b=1),
    "with c": lambda x: clgemm.cgemm(1j, x.a, x.b, 2 + 1j, x.c),
    "into c": lambda x: clgemm.cgemm(1j, x.a, x.b, 2 + 1j, x.c, overwrite_c=1),
    "without alpha": lambda x: clgemm.cgemm(0, x.a, x.b, 2 + 1j, x.c),
    "with beta = NaN": lambda x: clgemm.cgemm(1, x.a, x.b, np.nan),
    "of nothing": lambda x: clgemm.matmul(x.c[:0], x.c.T),
    "to the device": lambda x: clgemm.to_device(x.c.get()),
    "shapes that do not match": lambda x: clgemm.matmul(x.a, x.a),
    "gemm of such shapes": lambda x: clgemm.cgemm(1, x.a, x.a),
    "another type": lambda x: clgemm.dgemm(1, x.a, x.b),
    "an out that is too small": lambda x: clgemm.matmul(x.a, x.b, out=x.c[:5]),
    "an out that is an operand": lambda x: clgemm.matmul(x.c, x.c, out=x.c),
    "one that is on the host": lambda x: clgemm.matmul(x.a, np.ones((30, 20), np.complex64)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_nested_call_on_arrays_is_like_any_other(device, name, rng):
    """Layouts, factors, results and errors: the host computes for the device."""
    queue = cl.CommandQueue(device.context)
    a, b = a_matrix(queue, rng, 20, 30), a_matrix(queue, rng, 30, 20, order="F")
    results, kept = [], random_matrix(rng, BY_DTYPE[np.dtype(np.complex64)], 20, 20)

    def call():
        c = to_device(queue, kept)
        try:
            found = CASES[name](Operands(a, b, c))
        except Exception as error:  # noqa: BLE001 - compared below
            found = error
        results.append((found, c))

    with registry.using(device):
        call()
        reentry.entry()(call)()
    (want, _), (got, c) = results
    assert type(got) is type(want)
    if isinstance(want, Exception):
        assert isinstance(want, (ValueError, TypeError))
        return
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.strides == want.strides or not got.size
    np.testing.assert_allclose(got.get(), want.get(), rtol=1e-4, atol=1e-5)
    assert (got is c) == (want is results[0][1])


def test_a_nested_call_says_so(device, rng):
    a = rng.random((90, 90), np.float32)
    nested = reentry.entry()
    queue = cl.CommandQueue(device.context)
    gaps = to_device(queue, np.ones((9, 9), np.float32))[:5, :5]
    with registry.using(device):
        assert "signal handler" in nested(lambda: clgemm.explain(a, a))().why
        with pytest.raises(clgemm.DeviceError, match="gaps"):
            nested(lambda: clgemm.matmul(gaps, gaps, out=to_device(queue, a)[:5, :5]))()
    with registry.using(None), pytest.raises(clgemm.DeviceError, match="call again later"):
        nested(lambda: clgemm.to_device(a))()
