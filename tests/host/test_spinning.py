"""Idle threads of OpenBLAS sleep soon, where it is known to be safe to make them."""

from __future__ import annotations

import pytest
from helpers import run_python

from clgemm.host import openblas, spinning

HAS_OPENBLAS = openblas.of_numpy() is not None
pytestmark = pytest.mark.skipif(not HAS_OPENBLAS, reason="NumPy has another BLAS than OpenBLAS")
START = """
import os, sys, threading
import numpy as np
import clgemm
from clgemm.host import openblas, spinning
library = openblas.of_numpy()
def ticks(): return library.library.openblas_thread_timeout()
assert ticks() == 0 and spinning.VARIABLE not in os.environ
a = np.ones((300, 300), np.float32)
"""
AFTER = """
assert (a @ a == 300).all() and spinning.VARIABLE not in os.environ
"""


def run(program, device, **variables):
    found = run_python(
        START + program + AFTER, CLGEMM_ROUTE="device", CLGEMM_TUNE="off",
        CLGEMM_DEVICE=device.traits.platform.split()[0], **variables,
    )  # fmt: skip
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.fixture
def cpu(device):
    """Give a CPU device, where libraries are shortened at all."""
    if device.traits.kind != "cpu":
        pytest.skip("idle threads of the host do not disturb a device with cores of its own")
    if spinning._why_not(openblas.of_numpy()) is not None:
        pytest.skip(f"NumPy's idle threads {spinning.state(openblas.of_numpy())}")
    return device


@pytest.mark.process
def test_the_first_product_on_a_cpu_device_shortens_it_for_both_libraries(cpu):
    run(
        """
import scipy.linalg
assert "spin on for" in spinning.state(library)
assert (clgemm.matmul(a, a) == 300).all()
assert ticks() == openblas.of_scipy().library.openblas_thread_timeout() == spinning.EXPONENT
assert "sleep" in spinning.state(library)
""",
        cpu,
    )


@pytest.mark.process
def test_a_library_that_clgemm_loads_is_short_from_the_start(cpu):
    run(
        """
from clgemm.host import scipy_blas
scipy_blas.module()
assert openblas.of_scipy().library.openblas_thread_timeout() == spinning.EXPONENT
assert ticks() == 0
""",
        cpu,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "variables", [{"CLGEMM_HOST_SPIN": "keep"}, {"CLGEMM_ROUTE": "host"}], ids=str
)
def test_it_is_left_alone(cpu, variables):
    found = run_python(
        START + "clgemm.matmul(a, a)\nassert ticks() == 0\n" + AFTER,
        **({"CLGEMM_ROUTE": "device", "CLGEMM_TUNE": "off"} | variables),
        CLGEMM_DEVICE=cpu.traits.platform.split()[0],
    )  # fmt: skip
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.mark.process
def test_what_the_user_has_set_stays(cpu):
    program = (START + AFTER).replace("ticks() == 0 and spinning.VARIABLE not in", "True or")
    program = program.replace("and spinning.VARIABLE not in os.environ", "")
    found = run_python(
        program + "clgemm.matmul(a, a)\nassert ticks() == 26\n",
        CLGEMM_ROUTE="device", CLGEMM_TUNE="off", OPENBLAS_THREAD_TIMEOUT="26",
        CLGEMM_DEVICE=cpu.traits.platform.split()[0],
    )  # fmt: skip
    assert (found.stderr, found.returncode) == ("", 0)


@pytest.mark.process
def test_it_waits_while_another_thread_may_be_inside(cpu):
    run(
        """
stop = threading.Event()
def compute():
    while not stop.is_set():
        a @ a
thread = threading.Thread(target=compute)
thread.start()
clgemm.matmul(a, a)
assert ticks() == 0
stop.set()
thread.join()
waiting = threading.Event()
idle = threading.Thread(target=waiting.wait, daemon=True)
idle.start()
clgemm.matmul(a[:299], a)
assert ticks() == spinning.EXPONENT, "a thread that waits is not in the way"
waiting.set()
idle.join()
""",
        cpu,
    )


@pytest.mark.process
def test_nobody_enters_between_the_look_and_the_restart(cpu):
    """Threads that are woken all the time, and an interpreter that changes hands at once.

    A product whose threads are ended under it waits for ever.
    """
    run(
        """
import time
sys.setswitchinterval(1e-6)
turn, stop, done, restarts = threading.Condition(), threading.Event(), [0], 0
def compute():
    while not stop.is_set():
        with turn:
            turn.wait(2e-5)
        a @ a
        done[0] += 1
threads = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
[thread.start() for thread in threads]
until = time.monotonic() + 3
with spinning._variable():
    while time.monotonic() < until:
        restarts += spinning._restart_if_alone(library)
stop.set()
[thread.join(5) for thread in threads]
assert not [thread for thread in threads if thread.is_alive()], "one waits for ever"
assert restarts and done[0], (restarts, done)
""",
        cpu,
    )


def test_with_fewer_cores_than_threads_nothing_is_started_anew(cpu, monkeypatch):
    """Threads that start now would share these cores for ever."""
    del cpu
    library = openblas.of_numpy()
    monkeypatch.setattr(openblas, "of_numpy", lambda: library._replace(threads=lambda: 10**6))
    monkeypatch.setattr(openblas, "of_scipy", lambda: None)
    monkeypatch.setattr(spinning, "_is_default", lambda _library: True)
    restarted = []
    monkeypatch.setattr(spinning, "_restart_if_alone", restarted.append)
    spinning.shorten()
    assert not restarted
    monkeypatch.setattr(openblas, "of_numpy", lambda: library._replace(threads=lambda: 1))
    spinning.shorten()
    assert len(restarted) == 1


def test_the_reasons_are_told(monkeypatch):
    library = openblas.of_numpy()
    assert "another" in spinning.state(None) or "left alone" in spinning.state(None)
    monkeypatch.setattr(spinning.platform, "machine", lambda: "aarch64")
    assert spinning.VARIABLE in spinning.state(library)
    assert "OpenMP" in spinning.state(library._replace(parallel=2))
    monkeypatch.setenv("CLGEMM_HOST_SPIN", "keep")
    assert "CLGEMM_HOST_SPIN" in spinning.state(library)
