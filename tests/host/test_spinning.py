"""OpenBLAS' idle threads sleep while a CPU device computes, where it is known to be safe."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from helpers import PATIENCE, run_python

from clgemm.host import openblas, parking, spinning
from clgemm.runtime.worker_threads import WorkerThreads

HAS_OPENBLAS = openblas.of_numpy() is not None
pytestmark = pytest.mark.skipif(not HAS_OPENBLAS, reason="NumPy has another BLAS than OpenBLAS")
START = f"""
PATIENCE = {PATIENCE}
import os, signal, sys, threading, time, warnings
import numpy as np
import clgemm
from clgemm.host import openblas, parking, spinning
library = openblas.of_numpy()
a = np.ones((600, 600), np.float32)
def threads():
    return set(os.listdir("/proc/self/task"))
def used():
    return [time.clock_gettime(~thread << 3 | 6) for thread in workers()]
def workers():
    return spinning._workers._found[library.library].threads
def run_on(seconds=0.02):
    # Which of NumPy's threads use a core in the time to come.
    before = used()
    time.sleep(seconds)
    return [x > y + seconds / 10 for x, y in zip(used(), before)]
def park():
    # NumPy's threads, which have run just now and are known.
    a @ a
    wait_until(spinning.stop)
def wait_until(is_true):
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.001)
clgemm.matmul(a, a)
"""


def run(program, device, **variables):
    settings = {"CLGEMM_ROUTE": "device", "CLGEMM_TUNE": "off"} | variables
    found = run_python(START + program, CLGEMM_DEVICE=device.traits.platform.split()[0], **settings)
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.fixture
def cpu(device):
    """Give a CPU device, where idle threads are ended at all."""
    if device.traits.kind != "cpu":
        pytest.skip("idle threads of the host do not disturb a device with cores of its own")
    if spinning.why_not(openblas.of_numpy()) is not None:
        pytest.skip(f"NumPy's idle threads {spinning.state(openblas.of_numpy())}")
    if openblas.of_numpy().threads() < 2:
        pytest.skip("NumPy uses one thread, which never idles")
    return device


@pytest.fixture
def ends(cpu):
    """Give a CPU device where threads can be ended: not those of NumPy from 2.5 on."""
    if not hasattr(openblas.of_numpy().library, spinning.END):
        pytest.skip("NumPy's OpenBLAS does not export the function that ends its threads")
    return cpu


@pytest.fixture
def parks(cpu):
    """Give a CPU device where threads can be parked."""
    if parking.why_not() is not None:
        pytest.skip(f"no thread can be parked: {parking.why_not()}")
    return cpu


@pytest.mark.process
def test_they_sleep_until_the_product_has_ended(parks):
    run("""
for _ in range(3):
    park()
    assert len(workers()) >= library.threads() - 1
    assert not any(run_on())
    spinning.go_on()
    assert any(run_on())
    assert (a @ a == 600).all()
""", parks)  # fmt: skip


@pytest.mark.process
def test_a_product_on_a_cpu_device_has_them_sleep_and_go_on(parks):
    run("""
seen = []
park, go_on = parking.park, parking.unpark
parking.park = lambda threads: (park(threads), seen.append(run_on()))[0]
parking.unpark = lambda: (go_on(), seen.append("on"))
wait_until(lambda: (a @ a, clgemm.matmul(a, a), seen)[2])
assert seen == [[False] * len(workers()), "on"], seen
seen.clear()
time.sleep(0.3)  # they have slept since, for good
parking.awake(workers())
assert (clgemm.matmul(a, a) == 600).all() and not seen
""", parks)  # fmt: skip


SEPARATE = """
# A device of the same kernels that is none of the host's cores, and threads that copy to it.
from dataclasses import replace
from clgemm.dispatch import engines
from clgemm.runtime import devices, ending, registry
from clgemm.runtime.device import Device
from clgemm.streaming import direct
real = registry.current()
found = next(f for f in devices.find() if f.traits == real.traits)
traits = replace(real.traits, kind="gpu", unified_memory=False, system_svm=False)
direct.SENT = 1 << 20
seen = []
park, go_on = parking.park, parking.unpark
parking.park = lambda threads: (park(threads), seen.append(run_on()))[0]
parking.unpark = lambda: (go_on(), seen.append("on"))
def product():
    a @ a
    return clgemm.matmul(a, a)
"""


@pytest.mark.process
def test_they_sleep_while_threads_copy_to_a_device_of_other_cores(parks):
    """Idle ones that copy are in nobody's way, and all may stay on the caller's core."""
    run(SEPARATE + """
cores = os.sched_getaffinity(0)
with registry.using(Device(found._replace(traits=traits), "a test")):
    for _ in range(3):
        wait_until(lambda: (product(), seen)[1])
        assert seen == [[False] * len(workers()), "on"], seen
        seen.clear()
    assert ending.background & {thread.ident for thread in threading.enumerate()}
    assert all(os.sched_getaffinity(x) == cores for x in workers())
""", parks)  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    "change", ["direct.SENT = 1 << 30", "parking.why_not = lambda: 'as on another processor'"]
)
def test_nothing_is_stopped_for_a_device_that_does_not_need_the_cores(parks, change):
    """Copies of little, by the driver; ended threads would cost NumPy more than a copy takes."""
    run(SEPARATE + f"""
{change}
asked = []
spinning.stop = lambda **_: asked.append(1)
with registry.using(Device(found._replace(traits=traits), "a test")):
    assert (product() == 600).all() and not asked
""", parks)  # fmt: skip


@pytest.mark.process
def test_threads_that_sleep_are_left_alone_though_a_signal_has_woken_them(parks):
    run("""
park()
spinning.go_on()
time.sleep(2 * spinning.SPIN_SECONDS)
parking.awake(workers())
def are_left_alone():
    before = used()
    parking.park(workers())
    time.sleep(0.01)
    spinning.go_on()
    wait_until(lambda: all(now != then for now, then in zip(used(), before)))
    time.sleep(0.01)
    return not parking.awake(workers())
for _ in range(3):
    wait_until(are_left_alone)  # what a busy machine takes from a thread counts as the thread's
a @ a
wait_until(spinning.stop)
""", parks)  # fmt: skip


@pytest.mark.process
def test_the_first_product_waits_until_threads_sleep_and_are_known(parks):
    run("""
spinning._workers.__init__()
a @ a
before = threads()
spinning.stop()
spinning.go_on()
assert set(map(str, workers())) <= before, "OpenBLAS has these already"
assert len(workers()) == library.threads() - 1, "not those of others, which sleep, too"
a @ a
assert spinning.stop()
""", parks)  # fmt: skip


@pytest.mark.process
def test_where_the_system_does_not_tell_whose_threads_they_are_none_is_parked(parks):
    run("""
spinning._workers.__init__()
def gone():
    raise FileNotFoundError("/proc/self/maps")
spinning.Mappings = gone
assert not spinning.stop()
assert (clgemm.matmul(a, a) == 600).all()
""", parks)  # fmt: skip


@pytest.mark.process
def test_threads_that_cannot_be_known_yet_are_not_waited_for_again(parks):
    run("""
spinning._workers.__init__()
looks = []
spinning.waiting_in = lambda memory: looks.append(memory) or ()
start = time.monotonic()
spinning.stop()
first, waited = len(looks), time.monotonic() - start
assert first > 1 and waited >= spinning.SPIN_SECONDS and all(len(x) > 10**6 for x in looks)
spinning.stop()
assert len(looks) == first
time.sleep(2 * spinning.SPIN_SECONDS)
spinning.stop()
assert len(looks) == first + 1
""", parks)  # fmt: skip


@pytest.mark.process
def test_whoever_parks_them_and_never_comes_back_holds_them_for_a_moment(parks):
    run("""
park()
assert (a @ a == 600).all()  # waits for them
park()
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of each fork beside threads
assert os.waitpid(os.fork() or os._exit(0), 0)[1] == 0  # OpenBLAS waits for their end
park()
""", parks)  # fmt: skip


@pytest.mark.process
def test_threads_that_were_started_anew_are_found(parks, ends):
    del ends
    run("""
park()
spinning.go_on()
before = workers()
wait_until(lambda: spinning._end_if_alone(library))
assert not spinning.stop()
park()
assert not any(run_on()) and not set(workers()) & set(before)
""", parks)  # fmt: skip


@pytest.mark.process
def test_a_signal_that_has_another_handler_is_not_sent(parks, ends):
    del ends
    run("""
import signal
park()
spinning.go_on()
a @ a  # each of them runs, and with that takes the signal that had it sleep
heard = []
signal.signal(signal.SIGURG, lambda *_: heard.append(1))
assert not parking.park(workers())
wait_until(lambda: (a @ a, any(run_on()))[1])
assert not heard
assert "SIGURG" in parking.why_not()
wait_until(lambda: (a @ a, spinning.stop(), not library.started.value)[2])  # ended instead
""", parks)  # fmt: skip


@pytest.mark.process
def test_one_that_had_a_handler_before_keeps_it(parks):
    run("""
import signal
signal.signal(signal.SIGURG, print)
parking._place.cache_clear()
assert "SIGURG" in parking.why_not() and signal.getsignal(signal.SIGURG) is print
""", parks)  # fmt: skip


@pytest.mark.process
def test_they_leave_the_caller_s_core_and_use_all_cores_when_no_product_comes(parks):
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("there is a single core")
    run("""
cores = os.sched_getaffinity(0)
spinning._rest._seconds = 0.2
park()
assert all(len(os.sched_getaffinity(x)) == len(cores) - 1 for x in workers())
wait_until(lambda: all(os.sched_getaffinity(x) == cores for x in workers()))
park()
assert all(len(os.sched_getaffinity(x)) == len(cores) - 1 for x in workers())
""", parks)  # fmt: skip


@pytest.mark.process
def test_products_are_right_while_threads_are_parked_at_any_moment(parks):
    """By several threads, of which each may begin to multiply while another one parks."""
    run(
        """
sys.setswitchinterval(1e-5)
stop, failed, done = threading.Event(), [], [0, 0]
def compute():
    b = np.arange(90000, dtype=np.float32).reshape(300, 300) % 7
    want = b @ b
    while not stop.is_set():
        if not ((b @ b) == want).all():
            failed.append(1)
        done[0] += 1
def disturb():
    while not stop.is_set():
        parking.park(workers())
        done[1] += 1
        time.sleep(1e-4)
        spinning.go_on()
park()
spinning.go_on()
crowd = [threading.Thread(target=x, daemon=True) for x in (compute, compute, disturb, disturb)]
[thread.start() for thread in crowd]
wait_until(lambda: min(done) > 300)
stop.set()
[thread.join(PATIENCE) for thread in crowd]
assert not failed and not [thread for thread in crowd if thread.is_alive()]
""",
        parks,
    )


@pytest.mark.process
def test_where_none_can_be_parked_they_are_ended_and_the_host_s_next_product_starts_them(ends):
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not list a process' threads in /proc")
    run(
        """
parking.why_not = lambda: "as on another processor"
ended, end = [], getattr(library.library, spinning.END)
setattr(library.library, spinning.END, lambda: (ended.append(None), end()))
def are_ended():
    # Not while the thread that waited for the product before is about to end.
    before = len(ended)
    assert (clgemm.matmul(a, a) == 600).all()
    return len(ended) > before
wait_until(are_ended)
others = library.threads() - 1
for _ in range(3):
    before = threads()
    assert (a @ a == 600).all()
    idle = threads() - before
    assert len(idle) >= others, (idle, others)
    wait_until(are_ended)
    wait_until(lambda: len(idle & threads()) <= len(idle) - others)
assert "are ended" in spinning.state(library)
""",
        ends,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "variables", [{"CLGEMM_HOST_SPIN": "keep"}, {"CLGEMM_ROUTE": "host"}], ids=str
)
def test_they_are_left_alone(cpu, variables):
    run("""
asked = []
spinning._alone = lambda: asked.append(1)
spinning._end_if_alone = asked.append
a @ a
clgemm.matmul(a, a)
assert not asked
handlers = [x for x in open("/proc/self/status") if x.startswith("SigCgt")]
caught = int(handlers[0].split()[1], 16)
assert not caught >> signal.SIGURG - 1 & 1, "the signal has a handler"
""", cpu, **variables)  # fmt: skip


@pytest.mark.process
def test_short_products_do_not_ask(cpu):
    run("""
a @ a  # which starts them
asked = []
spinning._alone = lambda: asked.append(1)
clgemm.matmul(a[:30], a[:, :30])
assert not asked
clgemm.matmul(a, a)
assert asked == [1]
""", cpu)  # fmt: skip


@pytest.mark.parametrize(
    ("why_not", "flops", "seconds", "lasts"),
    [
        (None, 1e9, 4e-5, False), (None, 1e6, 6e-5, True),
        (None, 6e6, None, True), (None, 4e6, None, False),
        ("no", 1e9, 2e-4, False), ("no", 1e6, 4e-4, True),
        ("no", 6e7, None, True), ("no", 4e7, None, False),
    ],
)  # fmt: skip
def test_a_product_lasts_by_its_predicted_time_or_else_by_its_size(
    why_not, flops, seconds, lasts, monkeypatch
):
    """To end threads takes longer than to park them."""
    monkeypatch.setattr(parking, "why_not", lambda: why_not)
    assert spinning.lasts(flops, seconds) == lasts


def test_it_does_nothing_while_another_thread_may_be_inside(ends):
    run(
        """
stop = threading.Event()
def compute():
    while not stop.is_set():
        a @ a
thread = threading.Thread(target=compute)
thread.start()
assert not spinning._end_if_alone(library) and not spinning._alone()
stop.set()
thread.join()
waiting = threading.Event()
idle = threading.Thread(target=waiting.wait, daemon=True)
idle.start()
wait_until(lambda: spinning._end_if_alone(library))  # a thread that waits is not in the way
wait_until(spinning._alone)
waiting.set()
idle.join()
""",
        ends,
    )


@pytest.mark.process
def test_nobody_enters_between_the_look_and_the_end(ends):
    """Threads that are woken all the time, and an interpreter that changes hands at once.

    A product whose threads are ended under it waits for ever.
    """
    run(
        """
sys.setswitchinterval(1e-6)
b = a[:300, :300].copy()
turn, stop, done, ends = threading.Condition(), threading.Event(), [0], 0
def compute():
    while not stop.is_set():
        with turn:
            turn.wait(2e-5)
        b @ b
        done[0] += 1
crowd = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
[thread.start() for thread in crowd]
def goes_on():
    global ends
    ends += spinning._end_if_alone(library)
    return ends >= 30 and done[0] >= 100
wait_until(goes_on)
stop.set()
[thread.join(PATIENCE) for thread in crowd]
assert not [thread for thread in crowd if thread.is_alive()], "one waits for ever"
""",
        ends,
    )


def test_with_fewer_cores_than_threads_none_is_touched(cpu, monkeypatch):
    """Threads that start then would share these cores for ever."""
    del cpu
    library = openblas.of_numpy()._replace(started=ctypes.c_int(1))
    touched = []
    for name in ("_end_if_alone", "_alone"):
        monkeypatch.setattr(spinning, name, lambda *x: touched.append(x))
    monkeypatch.setattr(parking, "awake", list)
    monkeypatch.setattr(spinning, "why_not", lambda _: None)
    monkeypatch.setattr(spinning._workers, "of", lambda _: WorkerThreads((1,)))
    monkeypatch.setattr(openblas, "of_scipy", lambda: None)
    for why_not in (None, "as on another processor"):
        monkeypatch.setattr(parking, "why_not", lambda why_not=why_not: why_not)
        for count, expected in ((10**6, 0), (1, 1)):
            found = library._replace(threads=lambda count=count: count)
            monkeypatch.setattr(openblas, "of_numpy", lambda found=found: found)
            touched.clear()
            assert not spinning.stop()
            assert len(touched) == expected


def test_the_reasons_are_told(monkeypatch):
    library = openblas.of_numpy()
    assert "left alone" in spinning.state(None)
    assert "OpenMP" in spinning.state(library._replace(parallel=2))
    monkeypatch.setattr(parking, "why_not", lambda: "as on another processor")
    assert spinning.VARIABLE in spinning.state(library._replace(library=None))
    monkeypatch.setenv("CLGEMM_HOST_SPIN", "keep")
    assert "CLGEMM_HOST_SPIN" in spinning.state(library)


def test_threads_are_kept_inside_a_block(monkeypatch):
    asked = []
    monkeypatch.setattr(spinning.openblas, "of_numpy", lambda: asked.append(1))
    with spinning.kept(True), spinning.kept(False):
        spinning.stop()
    assert asked == []
    with spinning.kept(False):
        spinning.stop()
    assert asked == [1]


@pytest.mark.process
def test_nothing_is_kept_of_a_product_that_has_ended(parks):
    run("""
import gc, weakref
gc.disable()
for _ in range(3):
    park()  # which looks at all frames
    spinning.go_on()
    x = a + 0
    product = clgemm.matmul(x, x)
    ends = weakref.ref(x), weakref.ref(product)
    del x, product
    assert [end() for end in ends] == [None, None]
""", parks)  # fmt: skip
