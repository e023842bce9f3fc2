"""What tests share: devices that are not here, rows of cases, warnings, fresh interpreters."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
import reference

from clgemm.dispatch import engines
from clgemm.errors import ClgemmWarning
from clgemm.problem import PRECISIONS, Call, Operand, describe
from clgemm.runtime.opencl import cl
from clgemm.traits import DeviceTraits
from clgemm.tuning.measure.verify import random_matrix

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
THREADS = 8
PRESSES = int(os.environ.get("PRESSES", "100"))  # of Ctrl-C; .ci/full has more
PATIENCE = 300.0
"""Seconds until something counts as hung: far more than it takes on a machine with much else to do.

What is asserted of a time goes by a clock that the test moves, or by this.
"""

_FACTS = {
    "platform": "A platform", "platform_version": "OpenCL 3.0 A", "vendor": "A vendor",
    "name": "A CPU", "driver_version": "1.0", "kind": "cpu", "compute_units": 8,
    "max_work_group_size": 4096, "local_memory": 32 << 10, "global_memory": 16 << 30,
    "max_allocation": 4 << 30, "simd_bytes": 64, "fp64": True, "unified_memory": True,
    "compute_capability": None, "clock_mhz": 0, "processor": "",
}  # fmt: skip

# What is not named above is a flag, and false.
CPU = DeviceTraits(
    **{field.name: _FACTS.get(field.name, False) for field in fields(DeviceTraits)}
    | {"processor": "A maker family 1 model 2"}
)
GPU = replace(
    CPU, name="A GPU", kind="gpu", max_work_group_size=1024, simd_bytes=16, unified_memory=False,
    processor="",
)  # fmt: skip


def pairwise(*parameters):
    """Give rows of one value a parameter, such that any two values of two of them are in a row.

    Most faults show where two parameters meet; all rows of a full product would take too long.
    Values are taken greedily, and the rows are the same each time.
    """
    choices = [list(values) for values in parameters]
    chance, count = random.Random(len(choices)), range(len(choices))
    wanted = {
        ((i, x), (j, y))
        for i, j in itertools.combinations(count, 2)
        for x, y in itertools.product(range(len(choices[i])), range(len(choices[j])))
    }
    rows = []
    while wanted:
        row = dict(min(wanted))  # places of the values chosen so far, by parameter
        for i in chance.sample([i for i in count if i not in row], len(choices) - 2):
            gains = [
                sum(tuple(sorted([(i, x), other])) in wanted for other in row.items())
                for x in range(len(choices[i]))
            ]
            row[i] = chance.choice([x for x, gain in enumerate(gains) if gain == max(gains)])
        wanted -= set(itertools.combinations(sorted(row.items()), 2))
        rows.append(tuple(choices[i][row[i]] for i in count))
    return rows


def as_data(config, **changes):
    """Give a configuration as the store has it."""
    return {"family": config.family, "params": dict(config.params) | changes}


def entry_with(*configs):
    """Give an entry of the store: configurations, or their data, of which no time is known."""
    found = [c if isinstance(c, dict) else as_data(c) for c in configs]
    variants = [data | {"rates": {}, "seconds": {}} for data in found]
    return {"shapes": {}, "variants": variants}


def square(n, code="s"):
    """Describe a product of square column-major matrices."""
    x = np.empty((n, n), PRECISIONS[code].dtype, order="F")
    return describe(Operand(x), Operand(x), x, reads_c=False)


def gemm(alpha, a, b, beta, c, *, conj_a=False, conj_b=False):
    """Compute as the faces do once they have read their arguments."""
    engines.compute(Call.of(alpha, a, b, beta, c, conj_a, conj_b))


def as_given(call):
    """Return what a face passed on, before a row-major C was seen as its transpose."""
    alpha, a, b, beta, c, conj_a, conj_b, transposed = call
    if transposed:
        a, b, c = b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2)
        conj_a, conj_b = conj_b, conj_a
    return alpha, a, b, beta, c, {"conj_a": conj_a, "conj_b": conj_b}


def run_threads(work):
    """Run `work(number)` in threads that start together; raise what the first one raised."""
    gate, failures = threading.Barrier(THREADS), []

    def run(number):
        try:
            gate.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - a thread's error must reach the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def multiply_in_threads(turns):
    """Have each thread multiply matrices of its own, in all precisions, and compare each result."""

    def work(number):
        rng = np.random.default_rng(number)
        for turn in range(turns):
            precision = PRECISIONS["sdcz"[(number + turn) % 4]]
            m, n, k = 90 + number, 110, 70 + 5 * turn
            a, b, c = (random_matrix(rng, precision, *x) for x in ((m, k), (k, n), (m, n)))
            want, size = reference.gemm(1.0 + number, a, b, 0.5, c)
            gemm(1.0 + number, a, b, 0.5, c)
            reference.assert_within_bound(c, want, size, k, precision.eps)

    run_threads(work)


def wait_until(is_true, what="it never came about"):
    """Wait until something is true; a test must fail, not hang."""
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def press_at_any_moment(work, check, rng):
    """Press Ctrl-C at moments drawn over the time that `work` takes, and again soon after.

    Until `PRESSES` fell into it; in between `check` tells whether undisturbed work is right.
    """
    armed = []  # a list, of which nothing is half done; an Event has a lock, which would stay taken

    def press(*_):
        if armed:
            raise KeyboardInterrupt

    def stop():
        while armed:
            with suppress(KeyboardInterrupt):
                armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def hook(raised):
        # A press in a finalizer ends there.  Of that pytest's hook writes a report, and an error if
        # the next press falls into it.
        if not issubclass(raised.exc_type, KeyboardInterrupt):
            report(raised)

    report, sys.unraisablehook = sys.unraisablehook, hook
    whole, end = 1e-3, time.monotonic() + PATIENCE  # seconds of work, as far as is known
    before, presses, turn = signal.signal(signal.SIGALRM, press), 0, 0
    try:
        while presses < PRESSES:
            assert time.monotonic() < end, f"{presses} signals fell into {turn} calls"
            turn += 1
            with suppress(KeyboardInterrupt):
                try:
                    moment = rng.uniform(1e-5, 1.2 * whole)
                    signal.setitimer(signal.ITIMER_REAL, moment, (turn % 3) * 1e-4)
                    armed.append(True)
                    work()
                except KeyboardInterrupt:
                    presses += 1
                    raise
                finally:
                    armed.clear()
            stop()
            if not turn % 10:
                gc.collect()
                begun = time.perf_counter()
                work()
                whole = (whole + time.perf_counter() - begun) / 2
                check()
    finally:
        stop()
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = report


def heard(call):
    """Call and return the texts of all ClgemmWarnings; any other warning is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", ClgemmWarning)
        call()
    return [str(warning.message) for warning in caught]


def quiet(call):
    """Call, fail on any warning, and return the result."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def run_python(program, *arguments, timeout=PATIENCE, **environment):
    """Run a program in a fresh interpreter with more environment variables; None removes one."""
    merged = {k: v for k, v in (os.environ | environment).items() if v is not None}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={name: str(value) for name, value in merged.items()},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def read_scratch(device, nbytes):
    """Return what the first bytes of the scratch memory of a device's last call hold."""
    memory = device.scratch.lease(nbytes)
    host = np.empty(memory.size, np.uint8)
    cl.enqueue_copy(device.queue, host, memory).wait()
    device.scratch.release(memory)
    return host[:nbytes]


def write_scratch(device, values):
    """Put an array's bytes at the start of the scratch memory of a device's next call."""
    memory = device.scratch.lease(values.nbytes)
    host = np.zeros(memory.size, np.uint8)
    host[: values.nbytes] = values.reshape(-1).view(np.uint8)
    cl.enqueue_copy(device.queue, memory, host).wait()
    device.scratch.release(memory)


class Differences:
    """Counts, on the device, the words in which memory differs from what it held once.

    Parameters
    ----------
    device : Device
        The device.
    nbytes : int
        How much is looked at: whole words of four bytes.
    """

    SOURCE = """
    __kernel void differences(__global const uint *x, __global const uint *y, __global uint *count)
    {
        if (x[get_global_id(0)] != y[get_global_id(0)])
            atomic_inc(count);
    }"""

    def __init__(self, device, nbytes):
        flags = cl.mem_flags.READ_WRITE
        self._queue, self._words = device.queue, (nbytes // 4,)
        self._kept = cl.Buffer(device.context, flags, nbytes)
        self._count = cl.Buffer(device.context, flags, 4)
        self._kernel = cl.Program(device.context, self.SOURCE).build().differences

    def remember(self, memory):
        """Keep what the memory holds now, and return it."""
        host = np.empty(self._words, np.uint32)
        cl.enqueue_copy(self._queue, self._kept, memory, byte_count=host.nbytes)
        cl.enqueue_copy(self._queue, host, self._kept)
        cl.enqueue_copy(self._queue, self._count, np.zeros(1, np.uint32))
        return host

    def compare(self, memory):
        """Enqueue one comparison."""
        self._kernel.set_args(memory, self._kept, self._count)
        cl.enqueue_nd_range_kernel(self._queue, self._kernel, self._words, None)

    def count(self):
        """Wait, and return the sum over all comparisons."""
        host = np.empty(1, np.uint32)
        cl.enqueue_copy(self._queue, host, self._count)
        return int(host[0])
