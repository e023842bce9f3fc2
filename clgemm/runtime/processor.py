"""Which processor this is, exactly: OpenCL names a CPU device as sellers do ("AMD EPYC")."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    ThreadTimes = Mapping[str, tuple[float, float]]
    """Seconds that each thread ran, and waited for a core."""

CPU_INFO = Path("/proc/cpuinfo")
WINDOWS = re.compile(r"Family (\d+) Model (\d+) Stepping \d+, (\w+)")


def usable_cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_more_cores(units: int) -> bool:
    """Tell whether the machine has more cores than `units`, whatever this process may use."""
    return (os.cpu_count() or 1) > units


def thread_times(pid: int) -> ThreadTimes:
    """Return how long each thread of a process ran, and waited for a core.

    Empty where the system does not tell: only Linux does.
    """
    found = {}
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):  # it has just ended
                ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
                found[thread.name] = int(ran) / 1e9, int(waited) / 1e9
    return found


def starved_seconds(before: ThreadTimes, after: ThreadTimes, passed: float) -> float:
    """Return for how long at most a process that wanted a core had none, by its threads' times."""
    never = 0.0, 0.0
    since = [(after[x][0] - before.get(x, never)[0], after[x][1] - before.get(x, never)[1])
             for x in after]  # fmt: skip
    longest = max((waited for _, waited in since), default=0.0)
    return max(0.0, min(longest, passed - sum(ran for ran, _ in since)))


@cache
def identity() -> str:
    """Name the vendor, family and model of this machine's CPU, the same in each virtual machine.

    Returns
    -------
    str
        Such as "AuthenticAMD family 25 model 17"; "" where nothing tells.
    """
    try:
        return of_linux(CPU_INFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # another system
        return of_windows(platform.processor())


def of_linux(text: str) -> str:
    """Read /proc/cpuinfo: x86 has a vendor, family and model, Arm an implementer and a part."""
    pairs = (line.split(":", 1) for line in reversed(text.splitlines()) if ":" in line)
    facts = {key.strip(): value.strip() for key, value in pairs}  # the first processor counts
    if {"vendor_id", "cpu family", "model"} <= set(facts):
        return f"{facts['vendor_id']} family {facts['cpu family']} model {facts['model']}"
    if {"CPU implementer", "CPU part"} <= set(facts):
        return f"implementer {facts['CPU implementer']} part {facts['CPU part']}"
    return ""


def of_windows(text: str) -> str:
    """Read what Windows says: AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD."""
    found = WINDOWS.search(text)
    return f"{found[3]} family {found[1]} model {found[2]}" if found else ""
