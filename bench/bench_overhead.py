"""What a small call costs beside SciPy's, in microseconds, and where the time goes.

    python bench/bench_overhead.py [--n 8] [--precisions sdcz]

The stages are the functions that a call of a known kind goes through, each timed alone with the
arguments it has there, so their sum is about the call's own time.  "launch" is the device's part:
an empty problem's launch and the wait for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import timeit
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg.blas

import clgemm
from clgemm import settings
from clgemm.api.arguments import as_factor, as_flag, as_matrix, as_transposition
from clgemm.cli.main import versions
from clgemm.dispatch import engine
from clgemm.problem import PRECISIONS
from clgemm.runtime import host_memory, registry
from clgemm.runtime.kernel_runner import Ready, slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clgemm.runtime.device import Device

REPEATS = 7


def microseconds(run: Callable[[], object]) -> float:
    """Time one run: the best of some blocks, since noise only adds."""
    timer = timeit.Timer(run)
    number, _ = timer.autorange()
    number = max(1, number // 4)
    return min(timer.repeat(REPEATS, number)) / number * 1e6


def operands(code: str, n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Make two column-major matrices."""
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(-1, 1, (n, n)).astype(PRECISIONS[code].dtype, order="F") for _ in "ab")
    return a, b


def stages(device: Device, code: str, n: int) -> dict[str, float]:
    """Time the parts of a call that goes to the device."""
    precision = PRECISIONS[code]
    a, b = operands(code, n)
    c = np.zeros((n, n), precision.dtype, order="F")
    engine.gemm(1.0, a, b, 0.0, c)
    known = next(
        known
        for known in device.known.values()
        if known.problem[:4] == (code, n, n, n) and known.ready is not None
    )
    ready = known.ready
    if not isinstance(ready, Ready):
        raise SystemExit(f"{device} gets copies: its calls have other parts than are timed here")
    places = [host_memory.place(device, x) for x in (a, b, c)]
    values = slots(known.problem, 1.0, 0.0, *places)

    def arguments() -> None:
        as_flag("", "", 0)
        as_transposition("", "", 0)
        as_transposition("", "", 0)
        as_factor("", "", 1.0, precision)
        as_factor("", "", 0.0, precision)
        as_matrix("", "", a, precision.dtype)
        as_matrix("", "", b, precision.dtype)

    def place() -> None:
        for x in (a, b, c):
            host_memory.place(device, x)

    found = {
        "arguments": microseconds(arguments),
        "allocate": microseconds(lambda: np.empty((n, n), precision.dtype, "F")),
        "settings": microseconds(settings.route),
        "place": microseconds(place),
        "set, launch, wait": microseconds(lambda: ready.run(values)),
    }
    whole = microseconds(lambda: engine.gemm(1.0, a, b, 0.0, c))
    found["rest of driver"] = whole - sum(list(found.values())[2:])
    return found


def rows(device: Device, code: str, n: int) -> dict[str, float]:
    """Time whole calls, then the stages of one."""
    a, b = operands(code, n)
    ours, theirs = getattr(clgemm, code + "gemm"), getattr(scipy.linalg.blas, code + "gemm")
    found = {f"scipy.linalg.blas.{code}gemm": microseconds(lambda: theirs(1.0, a, b))}
    for wish in ("", "host", "device"):
        os.environ["CLGEMM_ROUTE"] = wish
        if not wish:
            del os.environ["CLGEMM_ROUTE"]
        found[f"clgemm.{code}gemm, CLGEMM_ROUTE={wish or 'unset'}"] = microseconds(
            lambda: ours(1.0, a, b)
        )
    return found | {f"    {name}": t for name, t in stages(device, code, n).items()}


def main() -> int:
    """Print a table a precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--precisions", default="sdcz")
    arguments = parser.parse_args()
    device = registry.current()
    if device is None:
        raise SystemExit("no OpenCL device can be used here")
    print(f"{versions()}\n{device}, n = {arguments.n}, microseconds a call\n")
    for code in arguments.precisions:
        for name, t in rows(device, code, arguments.n).items():
            print(f"{name:40}{t:9.2f}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
