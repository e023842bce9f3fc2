"""One large product on one device and on several, from NumPy array to NumPy array.

    python bench/bench_several.py nvidia:0 nvidia:0,nvidia:1 nvidia:all --n 32768 --precision d

Each list of devices, as CLGEMM_DEVICE takes it, is timed in processes of its own, in turn with the
others: the same product on the same device differs by a third from process to process where the
host's memory binds, and more while memory is used for the first time since the machine started.
Some rows of the result are compared with NumPy's before.  Of each process the best time counts, of
several processes the median.  Beside the times stand the least that kernels, buses and the host's
memory need alone, at rates measured in the last process; the largest is what binds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import environment
import numpy as np

import clgemm
from clgemm.problem import PRECISIONS
from clgemm.runtime import processor, registry
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clgemm.problem import Precision
    from clgemm.runtime.device import Device

ROWS = 8  # of the result are compared
COPIED_BYTES = 1 << 26  # by each thread, and over each bus
KERNEL_SIZE = 8192  # of the squares by which a device's rate is measured
REPEATS = 5
DEPTH = 512  # of the parts in which the reference is computed


class Rates(NamedTuple):
    """What the parts of the machine do a second, all devices at work at once."""

    flops: float
    """Of all devices together, operands in their memory."""
    up: float
    """Bytes to each device."""
    down: float
    """Bytes from each device."""
    memory: float
    """Bytes that all cores together copy."""

    def least(
        self, n: int, precision: Precision, devices: int, *, copies: bool
    ) -> dict[str, float]:
        """Give the seconds that each part needs alone for a product of squares.

        With copies each device gets one operand whole and its part of the other one, and C comes
        back once.
        """
        size = precision.itemsize * n**2
        kernels = 2 * n**3 * precision.multiplications / self.flops
        if not copies:
            return {"kernels": kernels}
        return {
            "kernels": kernels,
            "bus": size * max((1 + 1 / devices) / self.up, 1 / devices / self.down),
            "host memory": size * (devices + 2) / self.memory,
        }


def random_matrix(precision: Precision, n: int, seed: int) -> NDArray[Any]:
    """Fill a square with uniform numbers from -1/2 to 1/2, by all cores."""
    x = np.empty((n, n), precision.dtype)
    panels = np.array_split(x.view(f"f{precision.real_bytes}"), processor.usable_cores())
    seeds = np.random.SeedSequence(seed).spawn(len(panels))

    def fill(panel: NDArray[Any], own: np.random.SeedSequence) -> None:
        np.random.default_rng(own).random(out=panel, dtype=panel.dtype)
        panel -= 0.5

    with ThreadPoolExecutor(len(panels)) as pool:
        list(pool.map(fill, panels, seeds))
    return x


def expected(
    precision: Precision, a: NDArray[Any], b: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a @ b in double precision, and twice the a-priori bound on the error of each."""
    wide = PRECISIONS[precision.wide].dtype
    k = len(b)

    def part(start: int) -> tuple[NDArray[Any], NDArray[Any]]:
        x = a[:, start : start + DEPTH].astype(wide)
        y = b[start : start + DEPTH]
        return x @ y, np.abs(x) @ np.abs(y)

    with ThreadPoolExecutor(processor.usable_cores()) as pool:
        products, sizes = zip(*pool.map(part, range(0, k, DEPTH)), strict=True)
    return np.sum(products, axis=0), 2 * k * precision.eps * np.sum(sizes, axis=0)


def bus_rates(devices: list[Device]) -> tuple[float, float]:
    """Measure the bytes a second to and from each device, by pinned memory, all at once."""
    flags: Any = cl.mem_flags
    ends = []
    for device in devices:
        pinned = cl.Buffer(device.context, flags.READ_WRITE | flags.ALLOC_HOST_PTR, COPIED_BYTES)
        both: Any = cl.map_flags.READ | cl.map_flags.WRITE
        memory, _ = cl.enqueue_map_buffer(
            device.queue, pinned, both, 0, (COPIED_BYTES,), np.dtype("u1")
        )
        ends.append((device.queue, cl.Buffer(device.context, flags.READ_WRITE, COPIED_BYTES),
                     memory))  # fmt: skip

    def seconds(*, up: bool) -> float:
        start = time.perf_counter()
        events = []
        for queue, there, here in ends:
            ends_of_copy: Any = (there, here) if up else (here, there)
            events.append(cl.enqueue_copy(queue, *ends_of_copy, is_blocking=False))
            queue.flush()
        for event in events:
            event.wait()
        return time.perf_counter() - start

    up, down = (min(seconds(up=way) for _ in range(REPEATS)) for way in (True, False))
    return COPIED_BYTES / up, COPIED_BYTES / down


def kernel_rate(devices: list[Device], precision: Precision, n: int) -> float:
    """Measure the flops a second of all devices together, operands in their memory."""
    total = 0.0
    x = random_matrix(precision, n, 7)
    for device in devices:
        with registry.using(device):
            there = clgemm.to_device(x)
            times = []
            for _ in range(REPEATS):
                device.queue.finish()
                start = time.perf_counter()
                clgemm.matmul(there, there)
                device.queue.finish()
                times.append(time.perf_counter() - start)
        total += 2 * n**3 * precision.multiplications / min(times)
    return total


def copy_rate() -> float:
    """Return the bytes a second that all cores together copy."""
    threads = processor.usable_cores()
    times = []

    def pair(_: int) -> list[NDArray[Any]]:
        return [np.ones(COPIED_BYTES, np.uint8) for _ in "ab"]

    with ThreadPoolExecutor(threads) as pool:
        pairs = list(pool.map(pair, range(threads)))
        for _ in range(REPEATS):
            start = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), pairs))
            times.append(time.perf_counter() - start)
    return threads * COPIED_BYTES / min(times)


def one(code: str, n: int, rounds: int) -> dict[str, Any]:
    """Time one product on the devices that CLGEMM_DEVICE names."""
    device = environment.device_in_use()
    precision, rng = PRECISIONS[code], np.random.default_rng(1)
    a, b = (random_matrix(precision, n, seed) for seed in (1, 2))
    rows = rng.integers(0, n, ROWS)
    want, bound = expected(precision, a[rows], b)
    c = clgemm.matmul(a, b)
    worst = float(np.max(np.abs(c[rows] - want) / bound))
    if not worst <= 1:
        raise SystemExit(f"{code}gemm {n}: WRONG, {worst:.3g} times the bound")
    explanation = str(clgemm.explain(a, b, c))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        clgemm.matmul(a, b, out=c)
        times.append(time.perf_counter() - start)
    devices = [device, *registry.others()]
    del a, b, c
    flops = kernel_rate(devices, precision, min(n, KERNEL_SIZE))
    rates = Rates(flops, *bus_rates(devices), copy_rate())
    return {
        "devices": [each.traits.describe() for each in devices],
        "drivers": [each.traits.driver_version for each in devices],
        "explanation": explanation,
        "seconds": times,
        "error": worst,
        "rates": rates._asdict(),
        "least_seconds": rates.least(
            n, precision, len(devices), copies=not device.traits.unified_memory
        ),
    }


def in_child(devices: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `one` in a process that uses these devices."""
    words = ["--one", "--n", arguments.n, "--precision", arguments.precision,
             "--rounds", arguments.rounds]  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)],
        env=os.environ | {"CLGEMM_DEVICE": devices},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{devices}: the process ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("devices", nargs="*", help="lists as CLGEMM_DEVICE takes them")
    parser.add_argument("--n", type=int, default=32768)
    parser.add_argument("--precision", choices=PRECISIONS, default="d")
    parser.add_argument("--rounds", type=int, default=3, help="products of each process")
    parser.add_argument("--turns", type=int, default=3, help="processes of each list of devices")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def described(row: dict[str, Any], flops: float, first: float) -> str:
    """Tell what a list of devices took for so many operations, where the first one took `first`."""
    seconds, least = statistics.median(row["bests"]), row["least_seconds"]
    rates = {name: rate / 1e9 for name, rate in row["rates"].items()}
    bests = " ".join(f"{best:.3f}" for best in row["bests"])
    return (
        f"{row['wish']}: {len(row['devices'])} x {row['devices'][0]}, driver {row['drivers'][0]}\n"
        f"  {seconds:.3f} s (of {bests}), {flops / seconds / 1e12:.2f} TFLOP/s, "
        f"{first / seconds:.2f} times the first\n  alone: "
        + ", ".join(f"{name} {x:.3f} s" for name, x in least.items())
        + f"; {max(least, key=lambda x: least[x])} bind\n  GB/s: {rates['up']:.1f} to each, "
        f"{rates['down']:.1f} from each, {rates['memory']:.1f} copied by all cores\n  "
        f"{row['explanation']}"
    )


def main() -> int:
    """Measure what was asked for."""
    arguments = parsed()
    if arguments.one:
        print(json.dumps(one(arguments.precision, arguments.n, arguments.rounds)))
        return 0
    if not arguments.devices:
        raise SystemExit("name at least one device, such as nvidia:0")
    n, precision = arguments.n, PRECISIONS[arguments.precision]
    flops = 2 * n**3 * precision.multiplications
    head = environment.host_facts()
    print(environment.text(head))
    rows: list[dict[str, Any]] = [{"wish": devices, "bests": []} for devices in arguments.devices]
    for _ in range(arguments.turns):
        for row in rows:
            row.update(in_child(row["wish"], arguments))
            row["bests"].append(min(row["seconds"]))
    first = statistics.median(rows[0]["bests"])
    for row in rows:
        print(described(row, flops, first), flush=True)
    head |= {"n": n, "precision": precision.code}
    environment.store(arguments.json, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
