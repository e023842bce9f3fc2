"""How many cores a CPU device may keep busy: what the user allows every BLAS of the process.

A limit reaches a process in several ways: ``OMP_NUM_THREADS`` and its like before it starts,
threadpoolctl while it runs (joblib and dask do one or the other for their workers), the affinity of
the process, a quota of its control group.  NumPy's own library obeys the first two, so it is asked;
a controller of our own makes clgemm seen by threadpoolctl where NumPy has another library.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from clgemm._version import __version__
from clgemm.host import openblas
from clgemm.lazy_imports import lazy_import
from clgemm.runtime import processor

log = logging.getLogger(__name__)

VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")
"""Where NumPy's library cannot be asked, the first one that is set."""
QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"

AFFINITY_SECONDS = 0.01
"""For which the affinity of the process is believed: asking takes longer than all the rest."""


class _Limit(NamedTuple):
    """A limit, and what it was found from."""

    told: int
    """What NumPy's library said."""
    own: int
    until: float
    """When it must be found again."""
    limit: int


_own = sys.maxsize
_last = _Limit(0, 0, 0.0, 1)


def limit() -> int:
    """Return how many threads may compute now, at least 1."""
    global _last  # noqa: PLW0603 - of the process
    library = openblas.of_numpy()
    told = _of_environment() if library is None else library.threads()
    last, now = _last, time.monotonic()
    if last.told == told and last.own == _own and now < last.until:
        return last.limit
    # Its own limit is not the user's.
    allowed = sys.maxsize if library is not None and told >= library.most else told
    found = max(1, min(allowed, _own, _quota(), processor.usable_cores()))
    _last = _Limit(told, _own, now + AFFINITY_SECONDS, found)
    return found


def set_limit(count: int) -> None:
    """Let CPU devices use at most so many threads from now on."""
    global _own  # noqa: PLW0603 - of the process, as threadpoolctl means it
    _own = count


@functools.cache
def _of_environment() -> int:
    """Read the variables, once, as libraries do."""
    for name in VARIABLES:
        with contextlib.suppress(ValueError):
            count = int(os.environ.get(name, ""))
            if count > 0:
                return count
    return sys.maxsize


@functools.cache
def _quota() -> int:
    """Return how many cores the control group of this process may use, rounded up."""
    try:
        text = Path(QUOTAS[0]).read_text(encoding="ascii").split()
    except OSError:
        try:
            text = [Path(p).read_text(encoding="ascii").strip() for p in (QUOTAS[1], PERIOD)]
        except OSError:
            return sys.maxsize  # no control groups
    quota, period = (int(x) if x.isdigit() else 0 for x in text)
    return math.ceil(quota / period) if quota > 0 and period > 0 else sys.maxsize


@functools.cache
def be_seen() -> None:
    """Register with threadpoolctl, if it is installed: `threadpool_limits` then finds clgemm."""
    try:
        threadpoolctl: Any = lazy_import("threadpoolctl")
        if not hasattr(threadpoolctl, "register"):  # releases before 3.4
            return
    except ImportError:
        return

    class Controller(threadpoolctl.LibController):  # type: ignore[misc] # it has no types
        """clgemm's CPU devices, as threadpoolctl sees them: by OpenCL's loader."""

        user_api = "blas"
        internal_api = "clgemm"
        filename_prefixes = ("libopencl", "libOpenCL", "opencl")
        check_symbols = ("clGetPlatformIDs",)

        def get_num_threads(self) -> int:
            return limit()

        def set_num_threads(self, num_threads: int) -> None:
            set_limit(num_threads)

        def get_version(self) -> str:
            return __version__

    try:
        threadpoolctl.register(Controller)
    except ValueError as error:  # its rules for controllers have changed
        log.debug("threadpoolctl does not take clgemm's controller: %s", error)
