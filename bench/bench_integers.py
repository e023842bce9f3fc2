"""Products of integers and of bool: clgemm beside NumPy, and beside what the processor could do.

    python bench/bench_integers.py                                # n = 32, 256, 1000 of every type
    python bench/bench_integers.py --types int8 bool --sizes 512 --json out.json
    CLGEMM_DEVICE=nvidia python bench/bench_integers.py --arrays --sizes 1024 4096  # float16, too

NumPy multiplies these types in a loop of its own, on one core.  Integers are of all sizes, and so
wrap around; bool is measured at several densities, since NumPy's loop ends a sum at its first true
product.  The limit is that of independent chains of multiply-adds in registers, in the vectors and
lanes that the kernels compute in (8-bit integers in lanes of 16 bits, bool in and and or), on all
compute units: no memory at all.

With --arrays operands lie on the device, and PyTorch multiplies int8 (into int32, by _int_mm) and
float16 beside clgemm, on an NVIDIA GPU: see integer_arrays.py.

Each result is compared with NumPy's, which must be the same, before it is timed.  Times are medians
over alternating blocks of one run; blocks in which other processes ran are measured again.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import environment
import integer_arrays
import numpy as np

import clgemm
from clgemm.kernels import BY_NAME, source
from clgemm.kernels.cpu_integer.family import lane_bytes
from clgemm.kernels.family import KernelSpec
from clgemm.kernels.integers import integer_defines
from clgemm.problem import HALF, INTEGERS
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Precision
    from clgemm.runtime.device import Device

SIZES = (32, 256, 1000)
DENSITIES = (1.0, 0.5, 0.01)  # of bool
BLOCK_SECONDS = 0.05
LONG = 0.5  # seconds of NumPy's, of which a block is one run
CHAINS, REPEATS = 24, 1_000_000
PROBE = """
// Each chain takes the next one's sum, so that nothing can be computed before the loop.
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void probe(__global LANE *out, int repeats)
{
    LANES x[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        x[i] = (LANES)(out[i]);
    const LANES y = (LANES)(out[get_group_id(0)]);
    for (int r = 0; r < repeats; r++)
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            x[i] = MULTIPLY_ADD(x[i], y, x[(i + 1) % CHAINS]);
    UNROLL
    for (int i = 1; i < CHAINS; i++)
        x[0] += x[i];
    *(__global LANES *)(out + (get_group_id(0) + 1) * VW) = x[0];
}
"""


class Case(NamedTuple):
    """Operands to multiply."""

    name: str
    a: NDArray[Any]
    b: NDArray[Any]


def limit(device: Device, precision: Precision) -> float:
    """Measure multiply-adds in registers, in operations a second."""
    family, units = BY_NAME["cpu_integer"], device.traits.compute_units
    width = dict(family.default(device.traits, precision).params)["VW"]
    defines = {"VW": width, "CHAINS": CHAINS} | integer_defines(precision, lane_bytes(precision))
    files = "integers.cl", "cpu_integer/types.cl"
    spec = KernelSpec(files, "probe", tuple(defines.items()), "")
    kernel = opencl.make_kernel(opencl.build(device.context, source.text(spec) + PROBE), "probe")
    memory = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, (units + 1) * 64 * 8)
    noise = np.random.default_rng(1).integers(0, 256, memory.size, np.uint8)
    cl.enqueue_copy(device.queue, memory, noise)
    kernel.set_args(memory, np.int32(REPEATS))

    def run() -> None:
        cl.enqueue_nd_range_kernel(device.queue, kernel, (units,), (1,)).wait()

    return 2 * CHAINS * width * REPEATS * units / timing.quiet_measure(run, seconds=0.1).best


def cases(precision: Precision, n: int) -> list[Case]:
    """Draw operands of n x n."""
    rng = np.random.default_rng(n)
    if precision.code == "b1":
        return [
            Case(f"bool, {share:.0%} true", *(rng.random((n, n)) < share for _ in "ab"))
            for share in DENSITIES
        ]
    limits = np.iinfo(precision.dtype)
    a, b = (
        rng.integers(limits.min, limits.max, (n, n), precision.dtype, endpoint=True) for _ in "ab"
    )
    return [Case(str(precision.dtype), a, b)]


def measured(case: Case, rounds: int) -> dict[str, timing.Timing]:
    """Check a product, and time it on both sides."""
    a, b = case.a, case.b
    started = timing.measure(partial(np.matmul, a, b), seconds=0, least=1)
    if not np.array_equal(clgemm.matmul(a, b), np.matmul(a, b)):
        raise SystemExit(f"{case.name}, n = {a.shape[0]}: WRONG, it is not what NumPy computes")
    ways = {"NumPy": partial(np.matmul, a, b), "clgemm": partial(clgemm.matmul, a, b)}
    if started.best < LONG:
        return timing.side_by_side(ways, rounds=rounds, seconds=BLOCK_SECONDS)
    # A block of one run: a second of NumPy's is not disturbed by much.
    ours = timing.side_by_side({"clgemm": ways["clgemm"]}, rounds=rounds, seconds=BLOCK_SECONDS)
    theirs = timing.quiet_measure(ways["NumPy"], seconds=0, least=1, tries=3)
    return {"NumPy": theirs} | ours


def main() -> int:
    """Print a line for each type and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = {str(precision.dtype): precision for precision in (*INTEGERS.values(), HALF)}
    parser.add_argument("--types", nargs="*", choices=names)
    parser.add_argument("--arrays", action="store_true", help="operands on the device")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    environment.restart_clean()
    device = environment.device_in_use()
    facts, rows = environment.facts(device), []
    print(environment.text(facts))
    if arguments.arrays:
        types = [names[name] for name in arguments.types or names]
        rows = integer_arrays.rows(types, list(arguments.sizes), arguments.rounds)
        environment.store(arguments.json, facts | {"rows": rows})
        return 0
    if device.traits.kind != "cpu":
        raise SystemExit("the device in use is no CPU; set CLGEMM_DEVICE, or give --arrays")
    print(f"{'':20}{'n':>6}{'NumPy':>12}{'clgemm':>12}{'times':>8}{'Gop/s':>9}{'of limit':>10}")
    for name in arguments.types or map(str, [x.dtype for x in INTEGERS.values()]):
        most = limit(device, names[name])
        print(f"{name:20}{'':38}{most / 1e9:9.0f}{'limit':>10}", flush=True)
        for n in arguments.sizes:
            for case in cases(names[name], n):
                found = measured(case, arguments.rounds)
                theirs, ours = (found[x].median for x in ("NumPy", "clgemm"))
                rate = 2 * n**3 / ours
                told = f"{case.name:20}{n:6}{1e6 * theirs:9.0f} us{1e6 * ours:9.1f} us"
                told += f"{theirs / ours:8.2f}{rate / 1e9:9.0f}{rate / most:10.0%}"
                print(told, "(noisy)" * any(t.noisy for t in found.values()), flush=True)
                rows.append({"case": case.name, "n": n, "NumPy": theirs, "clgemm": ours,
                             "limit": most})  # fmt: skip
    environment.store(arguments.json, facts | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
