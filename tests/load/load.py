"""Load: many threads and processes, very many calls, and programs that end at any moment.

Run one kind by hand, for as long as a release wants it:

    python tests/load/load.py mixed --seconds 120 --threads 16 --processes 4
    python tests/load/load.py tiny --calls 100000
    python tests/load/load.py ends --programs 200

Each is seeded, checks every result, and exits with 1 at the first difference.  `CLGEMM_DEVICE`
names the device.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import clgemm
from clgemm import settings
from clgemm.errors import DeviceError
from clgemm.runtime import forks, registry

GROWTH = 48 << 20
"""Bytes that a process may grow by once it has made each kind of call: pools, not leaks."""
PROGRAM = 48 << 20
"""Bytes that a CPU device's compiler keeps of each program, at most: 10 to 42 MB on Intel's."""
LEAST_CALLS = 1000
"""Of which the first half builds kernels and fills pools, however slow the machine is."""
PATIENCE = 60.0  # seconds beyond its own that a process may take
MOST_SIDE = 160
KINDS = ("matmul", "stack", "blas", "arrays", "host", "vector")


def resident():
    """Return this process' bytes in memory, 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def programs_built():
    """Return how many programs the device of this process has built."""
    device = registry.opened()
    return 0 if device is None else len(device.programs._programs)


def integers(rng, dtype, *shape):
    """Draw small integers: sums of their products are exact in every type and order."""
    x = rng.integers(-4, 5, shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.integers(-4, 5, shape)
    return x.astype(dtype)


def one_call(kind, rng):
    """Make one call of a kind, and compare its result."""
    m, n, k = (int(x) for x in rng.integers(1, MOST_SIDE, 3))
    dtype = "fdFD"[rng.integers(4)]
    if kind == "vector":
        n = 1
    batch = (3,) if kind == "stack" else ()
    a, b = integers(rng, dtype, *batch, m, k), integers(rng, dtype, *batch, k, n)
    want = np.matmul(a.astype("D"), b.astype("D"))
    if kind == "blas":
        c = integers(rng, dtype, m, n)
        routine = getattr(clgemm, {"f": "s", "d": "d", "F": "c", "D": "z"}[dtype] + "gemm")
        got, want = routine(2.0, a, b, -1.0, c), 2 * want - c
    elif kind == "arrays":
        try:
            got = clgemm.matmul(clgemm.to_device(a), clgemm.to_device(b)).get()
        except DeviceError:
            if not forks.inherited_a_driver():
                raise
            return
    elif kind == "host":
        with settings.using(route="host"):
            got = clgemm.matmul(a, b)
    else:
        got = clgemm.matmul(a, b)
    if not np.array_equal(got, want):
        raise AssertionError(f"{kind} {dtype} {a.shape} @ {b.shape} differs")


def mixed(seconds, threads, seed):
    """Make mixed calls in threads for some seconds; return how many, and the bytes more at last.

    Those of the first half of the calls are not counted: pools are filled and kernels built.  Nor
    is what goes away by itself, nor what is kept of a program that a later shape asks for.
    """
    begun, counts, failures = time.monotonic(), [0] * threads, []
    marks = []

    def goes_on():
        passed = time.monotonic() - begun
        enough = passed >= seconds and sum(counts) >= LEAST_CALLS
        return not (failures or enough or passed > seconds + PATIENCE)

    def work(number):
        rng = np.random.default_rng((seed, number))
        try:
            while goes_on():
                one_call(KINDS[int(rng.integers(len(KINDS)))], rng)
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    while goes_on():
        time.sleep(min(1.0, seconds / 10))
        marks.append((sum(counts), resident() - PROGRAM * programs_built()))
    for worker in workers:
        worker.join(PATIENCE)
        if worker.is_alive():
            raise AssertionError("a thread hangs")
    if failures:
        raise failures[0]
    half = sum(counts) / 2
    before = [size for calls, size in marks if calls <= half] or [0]
    late = [size for calls, size in marks if calls > 1.5 * half] or marks[-1][1:]
    return sum(counts), min(late) - before[-1]


def processes(count, *arguments, seconds):
    """Run this program several times side by side; return what each one said."""
    command = [sys.executable, __file__, *map(str, arguments)]
    running = [
        subprocess.Popen(
            [*command, "--seed", str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(count)
    ]
    said = []
    for process in running:
        out, err = process.communicate(timeout=seconds + 3 * PATIENCE)
        if process.returncode or err:
            raise AssertionError(f"a process ended with {process.returncode}: {out}{err}")
        said.append(out.strip())
    return said


def tiny(calls):
    """Make so many tiny calls on host and device; return the growth after the first tenth."""
    a, b = np.eye(4, dtype="f"), np.arange(16, dtype="f").reshape(4, 4)
    device = registry.current()
    x, y = clgemm.to_device(a), clgemm.to_device(b)
    before = 0
    for call in range(calls):
        if call == calls // 10:
            gc.collect()
            before = resident()
        if call % 20 == 0:
            with settings.using(route="device"):
                got = clgemm.matmul(a, b)
        elif call % 20 == 1:
            got = clgemm.matmul(x, y).get()
        elif call % 2:
            got = clgemm.sgemm(1.0, a, b)
        else:
            got = clgemm.matmul(a, b)
        if not np.array_equal(got, b):
            raise AssertionError(f"call {call} differs")
    if device.running or device.memory.used:
        raise AssertionError("a call is still counted")
    gc.collect()
    return resident() - before


ENDING = """
import sys, threading, time
import numpy as np
end = time.monotonic() + float(sys.argv[1])
how = sys.argv[2]
def work():
    import clgemm
    a = np.eye(150, dtype="f")
    b = np.ones((700, 700), "d")
    x = None
    while True:
        clgemm.sgemm(1.0, a, a)
        clgemm.dgemm(1.0, b, b)
        x = x if x is not None else clgemm.to_device(a)
        clgemm.matmul(x, x).get()
if how != "main":
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
else:
    import signal
    def stop(*_):
        raise SystemExit
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
    work()
time.sleep(max(0.0, end - time.monotonic()))
if how == "exit":
    sys.exit(0)
"""
HOWS = ("falls off its end", "exit", "main")


def ends(programs, seed, longest=3.0):
    """Run programs that end at a random moment of their first seconds; return how many.

    Every other one of a kind begins with an empty cache, and may tune.
    """
    chance = random.Random(seed)
    for number in range(programs):
        after, how = chance.uniform(0.0, longest), HOWS[number % len(HOWS)]
        with tempfile.TemporaryDirectory() as empty:
            cold = {"CLGEMM_CACHE_DIR": empty, "CLGEMM_TUNE": "auto"}
            run = subprocess.run(
                [sys.executable, "-c", ENDING, f"{after:.4f}", how],
                env=os.environ | (cold if number // len(HOWS) % 2 == 0 else {}),
                capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
        if (run.returncode, run.stdout, run.stderr) != (0, "", ""):
            raise AssertionError(
                f"program {number} ({how}, after {after:.4f} s) ended with {run.returncode}: "
                f"{run.stderr}"
            )
    return programs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("mixed", "tiny", "ends"))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.kind == "tiny":
        growth = tiny(given.calls)
        print(f"{given.calls} calls, {growth / 1e6:.1f} MB more")
    elif given.kind == "ends":
        print(f"{ends(given.programs, given.seed)} programs have ended as they should")
        return 0
    elif given.processes > 1:
        arguments = ("mixed", "--seconds", given.seconds, "--threads", given.threads)
        print("\n".join(processes(given.processes, *arguments, seconds=given.seconds)))
        return 0
    else:
        count, growth = mixed(given.seconds, given.threads, given.seed)
        print(f"{count} calls, {growth / 1e6:.1f} MB more")
    return 0 if growth < GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
