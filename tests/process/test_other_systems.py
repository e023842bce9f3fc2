"""What a system has not that is no POSIX one: imported and run with all of it taken away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import PATIENCE, run_python

from clgemm.runtime import interrupt

# A Windows of sorts: what clgemm needs is imported first, as it comes for each system.
WINDOWS = """
import importlib.metadata, os, pathlib, signal, subprocess, sys, tempfile, types, warnings
import numpy as np, platformdirs, pyopencl, pyopencl.array, pyopencl.tools, scipy.linalg
import scipy.linalg.blas
import fcntl
warnings.simplefilter("error")

def locking(handle, mode, count):
    kind = {1: fcntl.LOCK_EX | fcntl.LOCK_NB, 2: fcntl.LOCK_UN}[mode]
    fcntl.flock(handle, kind)

sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=1, LK_UNLCK=2)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in (
    "fork", "forkpty", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "geteuid",
    "getuid", "getgid", "getegid", "fchmod", "fchown", "chown", "mkfifo", "getloadavg", "killpg",
    "O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "statvfs", "sysconf", "nice",
):
    delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGUSR1", "SIGCHLD", "setitimer", "pthread_sigmask", "alarm"):
    delattr(signal, name)
sys.platform = "win32"

read_text = pathlib.Path.read_text
def read_text_but_no_times(path, *arguments, **more):  # those that all processes took
    if path == pathlib.Path("/proc/stat"):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return read_text(path, *arguments, **more)
pathlib.Path.read_text = read_text_but_no_times

def without_folders(call):
    def called(path, *arguments, dir_fd=None, src_dir_fd=None, dst_dir_fd=None, **more):
        given = {"dir_fd": dir_fd, "src_dir_fd": src_dir_fd, "dst_dir_fd": dst_dir_fd}
        given = {key: value for key, value in given.items() if value is not None}
        if os.sep + "clgemm" + os.sep in sys._getframe(1).f_code.co_filename:
            assert not given, "no open folder stands for its path"
            assert not isinstance(path, int), "nor in its place"
        return call(path, *arguments, **given, **more)
    return called

for name in ("open", "stat", "mkdir", "unlink", "rmdir", "replace", "listdir", "utime"):
    setattr(os, name, without_folders(getattr(os, name)))

replace, busy = os.replace, []
def replace_when_nobody_reads(old, new, **more):
    if busy.count(new) < 3:
        busy.append(new)
        raise PermissionError(13, "The process cannot access the file", new)
    replace(old, new, **more)
os.replace = replace_when_nobody_reads
"""

PRODUCTS = """
import clgemm
from clgemm import errors
from clgemm.cli import main
from clgemm.runtime import registry
from clgemm.tuning.search import budget

budget.HANG_SECONDS = budget.START_SECONDS = 300.0  # on a busy machine
x = (np.arange(200 * 200) % 7).reshape(200, 200).astype(np.float32)
for _ in range(2):
    assert (clgemm.matmul(x, x) == x @ x).all()
    assert (clgemm.sgemm(2.0, x, x, 1.0, x) == 2 * x @ x + x).all()
    stack = np.stack([x, x.T])
    assert (clgemm.matmul(stack, x) == stack @ x).all()
there = clgemm.to_device(x)
assert (clgemm.matmul(there, there).get() == x @ x).all()
os.environ["CLGEMM_DEVICE_MEMORY_MB"] = "0.3"
assert (clgemm.matmul(x, x.T) == x @ x.T).all()
del os.environ["CLGEMM_DEVICE_MEMORY_MB"]
assert "device" in str(clgemm.explain(x, x))
folder = os.environ["CLGEMM_CACHE_DIR"]
kept = sorted(name for name in os.listdir(folder))
assert any(name.endswith(".json") and ".state." not in name for name in kept), kept
assert not [name for name in kept if name.endswith((".tmp", ".alive"))], kept
assert len(busy) >= 3, "nothing was replaced while it was read"
for command in ("info", "cache list", "cache clear"):
    assert not main.main(command.split()), command
assert not any(name.endswith(".json") for name in os.listdir(folder)), os.listdir(folder)
assert not registry.current().running
"""


@pytest.mark.process
@pytest.mark.slow
def test_all_works_where_nothing_of_posix_is(device, tmp_path):
    """A search with its worker, files that are replaced while others read them, and commands."""
    run = run_python(
        WINDOWS + PRODUCTS, CLGEMM_DEVICE=device.traits.platform,
        CLGEMM_TUNE="quick", CLGEMM_TUNE_SECONDS=PATIENCE, CLGEMM_CACHE_DIR=tmp_path / "cache",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.process
def test_the_package_imports_and_multiplies_where_nothing_of_posix_is(device):
    program = """
import clgemm
x = (np.arange(200 * 200) % 7).reshape(200, 200).astype(np.float32)
assert (clgemm.matmul(x, x) == x @ x).all()
"""
    run = run_python(WINDOWS + program, CLGEMM_DEVICE=device.traits.platform)
    assert (run.returncode, run.stderr) == (0, "")


def deaf(call):
    """Make a call during which no signal is heard, as locks of Python's are on Windows."""

    def called(*arguments, **more):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return call(*arguments, **more)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return called


class DeafLock:
    """A lock that hears nothing while it is waited for."""

    def __init__(self):
        lock = threading.Lock()
        self.acquire, self.release = deaf(lock.acquire), lock.release


class Event:
    """Lasts until it is cancelled, or counts as hung."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()

    def wait(self):
        self.begun.set()
        self.ended.wait(PATIENCE)


@pytest.fixture
def pressed():
    """Press Ctrl-C soon after an event is waited for, which is given."""
    if not hasattr(signal, "pthread_sigmask"):
        pytest.skip("this system has no such masks")
    event, main = Event(), threading.main_thread()

    def press():
        assert event.begun.wait(PATIENCE)
        while not is_waiting(main):
            time.sleep(0.001)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield event
    thread.join()


def is_waiting(thread):
    """Tell whether a thread is inside a function that hears no signal."""
    frame = sys._current_frames()[thread.ident]
    while frame is not None and frame.f_code.co_name != "called":
        frame = frame.f_back
    return frame is not None


def test_ctrl_c_is_heard_where_locks_hear_nothing(pressed, monkeypatch):
    names = vars(threading) | {"Lock": DeafLock}
    monkeypatch.setattr(interrupt, "threading", SimpleNamespace(**names))
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupt.wait(pressed, pressed.ended.set, np.empty(3))
    assert time.monotonic() - begun < PATIENCE


def test_ctrl_c_that_comes_when_a_wait_has_just_ended_is_heard(monkeypatch):
    """The lock is taken by then: whoever waited for it once more would wait for ever."""

    class LateLock(DeafLock):
        def __init__(self):
            super().__init__()
            acquire, taken = self.acquire, []

            def acquire_and_hear(*arguments, **more):
                if taken:
                    waiting.set()
                got = acquire(*arguments, **more)
                taken.append(got)
                if got and taken.count(True) == 2:  # the first one is its maker's
                    raise KeyboardInterrupt
                return got

            self.acquire = acquire_and_hear

    names = vars(threading) | {"Lock": LateLock}
    monkeypatch.setattr(interrupt, "threading", SimpleNamespace(**names))
    # The wait ends while the lock is waited for, not between two looks at it.
    monkeypatch.setattr(interrupt, "TURN_SECONDS", PATIENCE)
    waiting, heard = threading.Event(), []

    def call():
        try:
            interrupt.wait(SimpleNamespace(wait=lambda: waiting.wait(PATIENCE)), lambda: None, ())
        except KeyboardInterrupt:
            heard.append(True)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the call waits for ever"
    assert heard


def test_ctrl_c_is_heard_while_jobs_are_waited_for(pressed, monkeypatch):
    monkeypatch.setattr(interrupt, "wait_for_jobs", deaf(interrupt.wait_for_jobs))
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(pressed.wait)
        with pytest.raises(KeyboardInterrupt):
            interrupt.until_done([job])
        assert not job.done()
        pressed.ended.set()


def test_a_job_that_fails_ends_the_wait_for_others():
    event = Event()
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(event.wait), pool.submit(lambda: 1 / 0)]
        interrupt.until_done(jobs)
        assert [job.done() for job in jobs] == [False, True]
        event.ended.set()
