"""OpenBLAS' idle threads are ended before long products, where it is known to be safe."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import PATIENCE, run_python

from clgemm.host import openblas, spinning

HAS_OPENBLAS = openblas.of_numpy() is not None
pytestmark = pytest.mark.skipif(not HAS_OPENBLAS, reason="NumPy has another BLAS than OpenBLAS")
START = f"""
PATIENCE = {PATIENCE}
import os, sys, threading, time
import numpy as np
import clgemm
from clgemm.host import openblas, spinning
library = openblas.of_numpy()
a = np.ones((600, 600), np.float32)
def threads():
    return set(os.listdir("/proc/self/task"))
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


@pytest.mark.process
def test_a_long_product_on_a_cpu_device_ends_them_and_the_host_s_next_one_starts_them(cpu):
    if not Path("/proc/self/task").exists():
        pytest.skip("this system does not list a process' threads in /proc")
    run(
        """
others = library.threads() - 1
for _ in range(3):
    before = threads()
    assert (a @ a == 600).all()
    idle = threads() - before
    assert len(idle) >= others, (idle, others)  # the first product on the device ended them
    assert (clgemm.matmul(a, a) == 600).all()
    wait_until(lambda: len(idle & threads()) <= len(idle) - others)
""",
        cpu,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "variables", [{"CLGEMM_HOST_SPIN": "keep"}, {"CLGEMM_ROUTE": "host"}], ids=str
)
def test_they_are_left_alone(cpu, variables):
    run("""
ended = []
spinning._end_if_alone = ended.append
clgemm.matmul(a, a)
assert not ended
""", cpu, **variables)  # fmt: skip


@pytest.mark.process
def test_short_products_do_not_ask(cpu):
    run("""
a @ a  # which starts them
ended = []
spinning._end_if_alone = ended.append
clgemm.matmul(a[:100], a[:, :100])
assert not ended
clgemm.matmul(a, a)
assert ended == [library]
""", cpu)  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize(
    ("flops", "seconds", "lasts"),
    [(1e9, 2e-4, False), (1e6, 4e-4, True), (6e7, None, True), (4e7, None, False)],
)
def test_a_product_lasts_by_its_predicted_time_or_else_by_its_size(flops, seconds, lasts):
    assert spinning.lasts(flops, seconds) == lasts


def test_it_does_nothing_while_another_thread_may_be_inside(cpu):
    run(
        """
stop = threading.Event()
def compute():
    while not stop.is_set():
        a @ a
thread = threading.Thread(target=compute)
thread.start()
assert not spinning._end_if_alone(library)
stop.set()
thread.join()
waiting = threading.Event()
idle = threading.Thread(target=waiting.wait, daemon=True)
idle.start()
wait_until(lambda: spinning._end_if_alone(library))  # a thread that waits is not in the way
waiting.set()
idle.join()
""",
        cpu,
    )


@pytest.mark.process
def test_nobody_enters_between_the_look_and_the_end(cpu):
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
    return ends >= 100 and done[0] >= 100
wait_until(goes_on)
stop.set()
[thread.join(PATIENCE) for thread in crowd]
assert not [thread for thread in crowd if thread.is_alive()], "one waits for ever"
""",
        cpu,
    )


@pytest.mark.process
def test_it_tells_whether_there_were_any(cpu):
    """Only then the device's threads make room for new ones."""
    run("""
a @ a
wait_until(spinning.end)  # no other thread may be inside the library
assert not spinning.end()
a @ a
wait_until(spinning.end)
""", cpu)  # fmt: skip


def test_with_fewer_cores_than_threads_none_is_ended(cpu, monkeypatch):
    """Threads that start then would share these cores for ever."""
    del cpu
    library = openblas.of_numpy()
    monkeypatch.setattr(openblas, "of_numpy", lambda: library._replace(threads=lambda: 10**6))
    monkeypatch.setattr(openblas, "of_scipy", lambda: None)
    ended = []
    monkeypatch.setattr(spinning, "_end_if_alone", ended.append)
    spinning.end()
    assert not ended
    monkeypatch.setattr(openblas, "of_numpy", lambda: library._replace(threads=lambda: 1))
    spinning.end()
    assert len(ended) == 1


def test_the_reasons_are_told(monkeypatch):
    library = openblas.of_numpy()
    assert "left alone" in spinning.state(None)
    assert "OpenMP" in spinning.state(library._replace(parallel=2))
    assert spinning.VARIABLE in spinning.state(library._replace(library=None))
    monkeypatch.setenv("CLGEMM_HOST_SPIN", "keep")
    assert "CLGEMM_HOST_SPIN" in spinning.state(library)


def test_threads_are_kept_inside_a_block(monkeypatch):
    asked = []
    monkeypatch.setattr(spinning.openblas, "of_numpy", lambda: asked.append(1))
    with spinning.kept(True), spinning.kept(False):
        spinning.end()
    assert asked == []
    with spinning.kept(False):
        spinning.end()
    assert asked == [1]
