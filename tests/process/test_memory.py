"""Memory stays where it is, however many calls are made: the process' own and the device's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import run_python

import clgemm
from clgemm.dispatch import engine, engines
from clgemm.runtime import registry

# A call that kept its result would keep 0.3 MB; one that kept its operands, twice that.  A leak
# shows in every part of the calls: what threads take when they begin to work shows in one.
MIXED = """
import os
from pathlib import Path
import numpy as np
import clgemm
from clgemm.runtime import registry

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")

rng = np.random.default_rng(7)
shapes = [tuple(map(int, rng.integers(1, 300, 3))) for _ in range(15)]
marks = []
for call in range(1600):
    m, n, k = shapes[call % 15]
    dtype = "fdFD"[call % 4]
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    c = clgemm.matmul(a, b)
    assert c[-1, -1] == k
    if call % 500 == 99:
        memory = registry.current().memory
        marks.append(resident())
        assert memory.used == 0 and memory.peak <= 2**19, (memory.used, memory.peak)
growth = min(after - before for before, after in zip(marks, marks[1:]))
assert len(marks) == 4 and growth < 5e6, f"{growth / 1e6:.1f} MB more in 500 calls, or {marks}"
"""


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, "0.5"])
def test_calls_of_mixed_sizes_keep_nothing(device, limit):
    """In place, and with copies."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell a process' memory in /proc")
    run = run_python(
        MIXED, CLGEMM_DEVICE=device.traits.platform, CLGEMM_DEVICE_MEMORY_MB=limit,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


def test_what_is_known_of_calls_does_not_grow_for_ever(device, monkeypatch):
    """Neither decisions nor shapes that the host computes."""
    monkeypatch.setattr(engine, "MOST_DECISIONS", 5)
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    fresh = engines.of(registry.Device(found, "a test"))
    with registry.using(fresh.device):
        for n in range(1, 20):
            fresh.repeat(("f", n, n, n), None)
            clgemm.sgemm(1.0, np.ones((n, 2)), np.ones((2, n)))
            assert len(fresh.decisions) <= 5
            assert len(fresh.repeated) <= 5
