"""Threads that share a device, children forked from its users, and the end of a program."""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
from helpers import PATIENCE, needs_fork, run_python, run_threads

import clgemm
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, interrupt, registry
from clgemm.tuning.measure.verify import Verifier, random_matrix
from clgemm.tuning.store.lookup import competitors

SHAPES = ((70, 65, 80), (3, 200, 31), (129, 1, 7), (1, 1, 300), (200, 190, 64), (64, 64, 64))


def test_threads_get_their_own_results(device):
    """Launches share kernels, scratch memory and a queue; arguments must not mix."""

    def work(number):
        rng = np.random.default_rng(number)
        for turn in range(12):
            precision = PRECISIONS["sdcz"[(number + turn) % 4]]
            m, n, k = SHAPES[(number * 5 + turn) % len(SHAPES)]
            a, b, c = (random_matrix(rng, precision, *s) for s in ((m, k), (n, k), (m, n)))
            alpha, beta = float(number + 1), float(turn % 3)
            want, size = reference.gemm(alpha, a, b.T, beta, c)
            routine = getattr(clgemm, f"{precision.code}gemm")
            got = routine(alpha, a, b, beta, c, trans_b=1)
            reference.assert_within_bound(got, want, size, k, precision.eps)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with registry.using(device):
            run_threads(work)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.process
def test_threads_that_make_the_first_call_share_one_session(device):
    program = """
import threading, time
import numpy as np
import clgemm
from clgemm.runtime import registry
gate, results, opened = threading.Barrier(8), [], []
real = registry.Device.__init__
def slowly(self, *more):
    opened.append(self)
    time.sleep(0.1)
    real(self, *more)
registry.Device.__init__ = slowly
a = np.eye(90, dtype=np.float32)
def call():
    gate.wait()
    results.append(clgemm.sgemm(3.0, a, a))
threads = [threading.Thread(target=call) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert len(results) == 8 and all((c == 3 * a).all() for c in results)
assert len(opened) == 1, opened
"""
    run = run_python(program, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.process
@pytest.mark.parametrize("slow", ["pyopencl.cltypes", "pyopencl.elementwise"])
def test_threads_that_need_pyopencl_at_once_get_the_whole_of_it(device, slow):
    """While one imports it, another one must not go on with the half that is there."""
    program = f"""
import sys, threading, time
import numpy as np
import clgemm
class SlowFinder:
    def find_spec(self, name, *more):
        if name == {slow!r}:
            begun.set()
            time.sleep(0.5)
begun, failures = threading.Event(), []
sys.meta_path.insert(0, SlowFinder())
a = np.eye(90, dtype=np.float32)
def call():
    try:
        x = clgemm.to_device(a)
        assert (clgemm.matmul(x, x).get() == a).all()
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=call) for _ in range(3)]
threads[0].start()
begun.wait()
[t.start() for t in threads[1:]]
[t.join() for t in threads]
assert not failures, failures
"""
    run = run_python(program, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_check_of_a_configuration_spoils_no_product_of_another_thread(device):
    """The check fills scratch memory with NaN, which no other call may share meanwhile."""
    a = np.random.default_rng(5).random((1200, 1200), np.float32)
    precision, checked = PRECISIONS["s"], 0
    verifier = Verifier(device, precision)
    config = competitors(device.traits, precision)[0].default(device.traits, precision)
    with registry.using(device), ThreadPoolExecutor(1) as pool:
        want = clgemm.matmul(a, a)
        assert verifier.quick_mismatch(config) is None
        end = time.monotonic() + PATIENCE
        while checked < 8:
            assert time.monotonic() < end, "no check runs beside a product: nothing is tested"
            product = pool.submit(clgemm.matmul, a, a)
            while not product.done():
                assert verifier.quick_mismatch(config) is None
                checked += 1
            np.testing.assert_array_equal(product.result(), want)


def test_the_interpreter_runs_on_while_the_device_works(device):
    """The GIL is released: another thread counts during a call, which nobody else lets it do."""
    a = np.ones((700, 700), np.float32)
    counted, done, interval = [0], threading.Event(), sys.getswitchinterval()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)

    thread, during, end = threading.Thread(target=count), 0, time.monotonic() + PATIENCE
    with registry.using(device):
        clgemm.sgemm(1.0, a, a)
        sys.setswitchinterval(2 * PATIENCE)
        try:
            thread.start()
            while during < 100 and time.monotonic() < end:
                before = counted[0]
                clgemm.sgemm(1.0, a, a)
                during += counted[0] - before
        finally:
            sys.setswitchinterval(interval)
            done.set()
            thread.join()
    assert during >= 100


# Run in an interpreter of its own: what hangs here must not hang the tests.
FORK = """
import contextlib, os, signal, sys, threading, time
import numpy as np
import clgemm
from clgemm.runtime import opencl
from clgemm.runtime import registry

a = np.random.default_rng(3).uniform(-1, 1, (90, 90)).astype(np.float32)
want = a @ a
def right():
    return np.allclose(clgemm.sgemm(1.0, a, a), want, atol=1e-3)

def wait(child, seconds=100):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"

def in_child(work, end=os._exit):
    child = os.fork()
    if not child:
        end(0 if work() else 5)
    return wait(child)

def in_child_that_ends_like_any_program(work):
    return in_child(work, sys.exit)
"""

# An import that takes a lock while the process forks, which holds that one meanwhile.
LOCKING_IMPORT = """
import importlib.abc, importlib.util
from clgemm import lazy_imports
begun = threading.Event()
class Locking(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, *more):
        return importlib.util.spec_from_loader(name, self) if name == "locking" else None
    def exec_module(self, module):
        begun.set()
        time.sleep(0.3)
        take_lock()
sys.meta_path.insert(0, Locking())
def importing():
    lazy_imports.lazy_import("locking")
thread = threading.Thread(target=importing)
def fork_meanwhile():
    thread.start()
    begun.wait()
    assert in_child(right) == 0
    thread.join()
"""

FORKS = {
    "after use": """
assert right()
assert in_child(right) == 0
assert right()
""",
    "before use": """
assert in_child(right) == 0
assert right()
""",
    "a grandchild": """
assert right()
assert in_child(lambda: right() and in_child(right) == 0) == 0
""",
    "many times": """
import scipy.linalg.blas  # or each child would
for _ in range(100):
    assert right()
    assert in_child(right) == 0
assert right()
""",
    "in the midst of other threads' calls": """
import scipy.linalg.blas
assert right()
stop = False
def calls():
    while not stop:
        right()
threads = [threading.Thread(target=calls) for _ in range(3)]
[t.start() for t in threads]
try:
    for _ in range(10):
        assert in_child(right) == 0
        assert in_child_that_ends_like_any_program(right) == 0
finally:
    stop = True
    [t.join() for t in threads]
""",
    "while another thread holds every lock": """
assert right()
held, free = threading.Event(), threading.Event()
def hold():
    from clgemm.dispatch import engines
    used = engines.current()
    device = used.device
    parameters, break_evens = used.parameters, used.break_evens
    checked = registry._lock, device.building, parameters._lock, used._finding_out
    locks = (*(lock() for lock in checked), device.lock, device.scratch._lock, break_evens._lock)
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        held.set()
        free.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
try:
    assert in_child(right) == 0
finally:
    free.set()
    thread.join()
""",
    "while another thread makes the first call": """
thread = threading.Thread(target=right)
thread.start()
while not registry._lock.locked() and thread.is_alive():
    time.sleep(0.001)
time.sleep(0.05)
assert in_child(right) == 0
thread.join()
""",
    "in the middle of a long call": """
vector = np.ones(20000)
wide = np.lib.stride_tricks.sliding_window_view(vector, 10000)[:3000]
def call():
    while True:
        clgemm.dgemm(1.0, wide, wide.T)
thread = threading.Thread(target=call, daemon=True)
assert right()
thread.start()
while not registry.current().running and thread.is_alive():
    time.sleep(0.001)
child = os.fork()
if not child:
    os._exit(0 if right() else 5)
assert wait(child) == 0
assert thread.is_alive(), "the call has failed"
""",
    "and ends like any program": """
import scipy.linalg.blas
for _ in range(20):
    assert right()
    assert in_child_that_ends_like_any_program(right) == 0
""",
    "in the middle of a build": """
codes = []
def forking(build):
    def forks(*arguments):
        codes.append(in_child(right))
        return build(*arguments)
    return forks
opencl.build, opencl.from_binary = forking(opencl.build), forking(opencl.from_binary)
assert right()
assert codes and not any(codes), codes
""",
    "in the middle of an import": """
import scipy
class SlowFinder:
    def find_spec(self, name, *more):
        if name == "scipy.linalg":
            begun.set()
            time.sleep(0.2)
begun = threading.Event()
sys.meta_path.insert(0, SlowFinder())
os.environ["CLGEMM_ROUTE"] = "host"
thread = threading.Thread(target=right)
thread.start()
begun.wait()
assert in_child(right) == 0
thread.join()
""",
    "in the middle of an import that logs": LOCKING_IMPORT
    + """
import logging
take_lock = lambda: logging.getLogger("another")
fork_meanwhile()
""",
    "in the middle of an import that waits for a lock of the fork's": LOCKING_IMPORT
    + """
import scipy.linalg.blas
lazy_imports.PATIENCE = 0.5
lock = threading.Lock()
os.register_at_fork(
    before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
)
def take_lock():
    with lock:
        pass
fork_meanwhile()
""",
    "by multiprocessing": """
import multiprocessing
assert right()
def work(number):
    return right()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(work, range(4)).get(100) == [True] * 4
""",
}


@pytest.mark.process
@needs_fork
@pytest.mark.parametrize("how", FORKS)
def test_a_forked_child_computes_and_never_hangs(device, how):
    run = run_python(FORK + FORKS[how], CLGEMM_DEVICE=device.traits.platform)
    assert run.returncode == 0, run.stderr


# Other threads are anywhere in the driver when the children are forked.
STORM_TURNS = int(os.environ.get("STORM_TURNS", "30"))  # of five forks each; .ci/full has more

STORM = """
import scipy.linalg.blas  # or each child would
from clgemm.problem import PRECISIONS
from clgemm.tuning.measure.verify import Verifier
from clgemm.tuning.store.lookup import competitors

assert right()
device, precision = registry.current(), PRECISIONS["s"]
config = competitors(device.traits, precision)[0].default(device.traits, precision)
stop, done = False, dict.fromkeys(("multiply", "build", "verify", "open"), 0)

def multiply():
    assert right()

def build():
    text = f"__kernel void f(__global int *x) {{ x[0] = {done['build']}; }}"
    opencl.build(device.context, text)

def verify():
    assert Verifier(device, precision).quick_mismatch(config) is None

def open():
    context = opencl.cl.Context(device.context.devices)
    opencl.cl.CommandQueue(context)

def go_on(work):
    while not stop:
        work()
        done[work.__name__] += 1

threads = [threading.Thread(target=go_on, args=(x,)) for x in (multiply, build, verify, open)]
[t.start() for t in threads]
try:
    turn = 0
    while turn < int(sys.argv[1]) or not all(done.values()):
        turn += 1
        assert [in_child(right) for _ in range(4)] == [0] * 4, turn
        assert in_child_that_ends_like_any_program(right) == 0
finally:
    stop = True
    [t.join(100) for t in threads]
assert not any(t.is_alive() for t in threads), "a thread hangs"
assert right()
"""


@pytest.mark.process
@needs_fork
def test_children_forked_anywhere_in_the_driver_compute_and_end(device):
    run = run_python(
        FORK + STORM, STORM_TURNS, timeout=30 * STORM_TURNS + PATIENCE,
        CLGEMM_DEVICE=device.traits.platform,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


@pytest.mark.process
@needs_fork
def test_a_forked_child_leaves_the_driver_alone(device):
    """No driver survives a fork; what needs one says so, and the host computes all the rest."""
    program = """
from clgemm.errors import DeviceError
from clgemm.runtime import devices

found = next(f for f in devices.find() if f.matches(os.environ["CLGEMM_DEVICE"]))
x = clgemm.to_device(a)

def is_refused(call):
    try:
        call()
    except DeviceError as error:
        return "fork" in str(error)

def works_on_the_host():
    refused = [
        lambda: clgemm.matmul(x, x), lambda: clgemm.to_device(a),
        lambda: registry.open_device(found),
    ]
    reason = clgemm.explain(a, a).why
    return right() and registry.current() is None and all(map(is_refused, refused)) and (
        "fork" in reason
    )

assert in_child(works_on_the_host) == 0
assert in_child(lambda: in_child(works_on_the_host) == 0) == 0
assert in_child_that_ends_like_any_program(works_on_the_host) == 0
"""
    run = run_python(FORK + program, CLGEMM_DEVICE=device.traits.platform)
    assert run.returncode == 0, run.stderr


@pytest.mark.process
@needs_fork
def test_what_a_forked_child_writes_is_written(device, tmp_path):
    """By Python and by the C library, though the child runs no exit handler of its parent's."""
    program = """
import ctypes
library = ctypes.pythonapi
library.fopen.restype, library.fputs.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p)
assert right()
def write():
    assert library.fputs(b"from C", library.fopen(sys.argv[1].encode(), b"w")) >= 0
    print("from Python", end="")
    return False
assert in_child_that_ends_like_any_program(write) == 5
"""
    written = tmp_path / "written"
    run = run_python(FORK + program, written, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stderr, run.stdout) == (0, "", "from Python")
    assert written.read_text() == "from C"


@pytest.mark.process
@pytest.mark.parametrize(
    "last_words",
    [
        "",
        "sys.exit(0)",
        "import gc; gc.collect(); del clgemm, registry",
        "kept = [clgemm.sgemm(1.0, a, a) for _ in range(3)]; kept.append(kept)",
        "import atexit; atexit.register(lambda: clgemm.sgemm(1.0, a, a))",
        "threading.Thread(target=lambda: [clgemm.sgemm(1.0, a, a) for _ in range(50)]).start()",
    ],
)
def test_a_program_ends_without_a_word(device, last_words):
    program = f"""
import sys, threading
import numpy as np
import clgemm
from clgemm.runtime import registry
a = np.eye(90, dtype=np.float32)
assert (clgemm.sgemm(1.0, a, a) == a).all()
assert (clgemm.zgemm(1.0, a, a) == a).all()
{last_words}
"""
    run = run_python(program, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stderr, run.stdout) == (0, "", "")


# Minutes of work in little memory: the rows of a sliding window overlap.
LONG = """
import os, signal, sys, threading, time
import numpy as np
import clgemm
from clgemm.runtime import ending, processor, registry

vector = np.random.default_rng(3).uniform(-1, 1, 120_000)
wide = np.lib.stride_tricks.sliding_window_view(vector, 100_000)[:4000]
small = np.eye(90)
clgemm.dgemm(1.0, small, small)
ending.PATIENCE_SECONDS = 100  # a busy machine needs longer for what the end waits for
"""

INTERRUPTED = """
def press():
    while os.environ["CLGEMM_ROUTE"] == "device" and not registry.current().running:
        time.sleep(0.001)
    time.sleep(0.5)
    pressed.extend((time.process_time(), time.monotonic()))
    os.kill(os.getpid(), signal.SIGINT)

if os.environ["CLGEMM_ROUTE"] == "host":  # SciPy would copy what overlaps
    wide = np.ones((3000, 50_000))
before = vector.copy()
for out in (None, np.zeros((len(wide), len(wide)), order="F")):
    pressed = []
    try:
        threading.Thread(target=press).start()
        while True:  # where a call is over in less than half a second
            clgemm.dgemm(1.0, wide, wide.T, 1.0, out, overwrite_c=1)
    except KeyboardInterrupt:
        computed, passed = time.process_time() - pressed[0], time.monotonic() - pressed[1]
    # What others take of the cores is no fault of ours.
    late = f"{passed:.2f} s until Ctrl-C was heard, of which {computed:.2f} s of computing"
    assert computed < 3 * processor.usable_cores() and passed < 60, late
    assert (vector == before).all()
    device = registry.opened()
    assert device is None or not device.running
    if out is not None:
        copy = out.copy()
        time.sleep(0.2)
        assert (out == copy).all(), "written after the call has ended"
    assert (clgemm.dgemm(1.0, small, small) == small).all()
a = np.random.default_rng(4).uniform(-1, 1, (1500, 1500)).astype(np.float32)
np.testing.assert_allclose(clgemm.sgemm(1.0, a, a), a @ a, atol=1e-2)
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("route", ["device", "host"])
def test_ctrl_c_is_heard_in_a_long_call(device, route):
    """Within a second, on a machine that does nothing else; nothing runs on behind it.

    Seconds of the process' own computing are counted: a busy machine has more of the others.
    """
    if os.name != "posix":
        pytest.skip("another system's keyboard")
    run = run_python(
        LONG + INTERRUPTED, CLGEMM_DEVICE=device.traits.platform, CLGEMM_ROUTE=route,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.process
def test_ctrl_c_is_heard_while_several_devices_compute():
    """What each of them has under way is cancelled: it would take some seconds more."""
    platforms = sorted({f.traits.platform for f in devices.find() if f.traits.kind == "cpu"})
    if os.name != "posix" or len(platforms) < 2:
        pytest.skip(f"another system's keyboard, or CPU devices of one platform: {platforms}")
    check = "assert clgemm.explain(wide, wide.T).shares\n"
    run = run_python(
        LONG + check + INTERRUPTED,
        CLGEMM_DEVICE=",".join(platforms), CLGEMM_ROUTE="device", CLGEMM_TUNE="off",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.process
@pytest.mark.parametrize("count", [1, 3])
def test_a_program_ends_in_the_middle_of_a_call(device, count):
    """A thread that is inside the driver then would take the interpreter down, or hold it up."""
    program = f"""
over = False
def call():
    while True:
        clgemm.dgemm(1.0, wide, wide.T)
        if over:
            print("a result that was never computed")
for _ in range({count}):
    threading.Thread(target=call, daemon=True).start()
device = registry.current()
while len(device.running) < {count}:
    time.sleep(0.001)
time.sleep(0.1)
over = True
print("end")
"""
    run = run_python(LONG + program, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


@pytest.mark.process
def test_the_end_waits_for_what_is_being_given_back(device):
    """The timer's thread would be ended inside the driver, which takes the program down."""
    program = """
from clgemm.runtime import idle, queues
registry._timer = idle.IdleTimer(0.01, registry.give_back)
began = threading.Event()
def slowly(self):
    began.set()
    time.sleep(0.5)
    print("given back")
queues.QueueState.trim = slowly
x = clgemm.to_device(small)
clgemm.matmul(x, x)
began.wait()
"""
    run = run_python(LONG + program, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stdout, run.stderr) == (0, "given back\n", "")


@pytest.mark.process
def test_daemon_threads_that_go_on_calling_do_not_spoil_the_end(device):
    program = """
def call():
    while True:
        clgemm.dgemm(1.0, small, small)
for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.2)
"""
    for _ in range(3):
        run = run_python(LONG + program, CLGEMM_DEVICE=device.traits.platform)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.process
@pytest.mark.parametrize("where", ["build", "get"])
def test_the_end_waits_for_threads_that_are_inside_a_driver_otherwise(device, where):
    """The interpreter would end them there, which takes the program down."""
    program = """
from clgemm.runtime import programs
import pyopencl
began, said = threading.Event(), threading.Event()
compiled, copy = programs.compiled, pyopencl.enqueue_copy
def slowly(*args):
    began.set()
    said.wait()
    time.sleep(0.3)
    program = compiled(*args)
    sys.stdout.write("built\\n")  # at once: this thread may be ended between two writes
    return program
def copy_slowly(*args, **more):  # called by pyopencl
    began.set()
    said.wait()
    time.sleep(0.3)
    return copy(*args, **more)
def build():
    programs.compiled = slowly
    clgemm.zgemm(1.0, small, small)
    print("a result that nobody waits for")
def get():
    x = clgemm.matmul(*[clgemm.to_device(wide[:300, :300])] * 2)
    pyopencl.enqueue_copy = copy_slowly
    x.get()
    sys.stdout.write("brought\\n")  # at once: this thread may be ended between two writes
    clgemm.to_device(small)
    print("a copy that nobody waits for")
"""
    start = f"""
threading.Thread(target={where}, daemon=True).start()
began.wait()
print("end", flush=True)
said.set()
"""
    run = run_python(LONG + program + start, CLGEMM_DEVICE=device.traits.platform)
    last = {"build": "built\n", "get": "brought\n"}[where]
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n" + last, "")


def test_an_error_reaches_the_thread_that_waits(device):
    """As does the memory of a call that Ctrl-C left behind twice."""

    class Event:
        def wait(self):
            raise RuntimeError("the driver has failed")

    with pytest.raises(RuntimeError, match="driver has failed"):
        interrupt.wait(Event(), lambda: None, ())
    assert not device.running


@pytest.mark.process
def test_spawned_workers_share_nothing_and_need_nothing(device, tmp_path):
    (tmp_path / "program.py").write_text(
        """
import multiprocessing
import numpy as np
import clgemm

def work(number):
    a = np.eye(90, dtype=np.float32)
    return float(clgemm.sgemm(float(number), a, a)[0, 0])

if __name__ == "__main__":
    work(1)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map_async(work, range(4)).get(100) == [0.0, 1.0, 2.0, 3.0]
"""
    )
    program = (
        "import runpy, sys; sys.argv[:] = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    run = run_python(program, tmp_path / "program.py", CLGEMM_DEVICE=device.traits.platform)
    assert run.returncode == 0, run.stderr
