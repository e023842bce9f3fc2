"""Load, in short: see load.py for how to have more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("load.py")
KINDS = {
    "threads and processes": "mixed --seconds 6 --threads 16 --processes 2",
    "tiny calls": "tiny --calls 10000",
    "ends": "ends --programs 4",
}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_right_and_memory_flat_under_load(device, kind, monkeypatch):
    monkeypatch.setenv("CLGEMM_DEVICE", device.traits.platform)
    command = [sys.executable, str(PROGRAM), *KINDS[kind].split()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
