"""From the naive kernel to the best one, one idea a step, as in Nugteren's OpenCL SGEMM tutorial.

    python bench/bench_ladder.py [--device nvidia] [--n 4096] [--precision s] [--json out.json]

All steps but the last are points of gpu_tiled's space, so the ladder can be climbed on any device;
each result is checked before it is timed.  A step that a device cannot run (a work-group or a tile
too large for it) is taken with the next smaller tile of its list, or left out with the reason.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alternating
import environment
from alternating import Way
from on_device import Form, Operands, Product, normal

from clgemm.dispatch import engines
from clgemm.errors import ClgemmError
from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS, Gemm
from clgemm.runtime import registry
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.kernels.gpu_tiled.family import GpuTiled
    from clgemm.problem import Precision
    from clgemm.runtime.device import Device

ROUNDS = 5


@dataclass(frozen=True)
class Step:
    """One rung: a name, tiles that fit large and small devices, and what differs from the last."""

    name: str
    tiles: tuple[tuple[int, ...], ...]
    """MC, NC, KC, MR, NR, LANES_M."""
    changes: dict[str, int]
    grows: int = 0
    """Elements that the matrix is larger: 1 makes every tile at the edge incomplete."""


PLAIN = {
    "VG": 1, "VW": 1, "PAD": 0, "ZORDER": 0, "GROUP_M": 1, "LOCAL_A": 0, "LOCAL_B": 0,
    "TURN_A": 0, "TURN_B": 0, "STAGES": 1, "AHEAD": 0, "KU": 1, "PACK": 0, "SPLIT": 1,
    "SLICED_K": 1, "AUTO": 0,
}  # fmt: skip
BLOCKED = (
    (128, 128, 16, 8, 8, 16),
    (64, 64, 16, 4, 4, 16),
    (32, 32, 16, 4, 4, 8),
    (32, 32, 8, 4, 4, 8),
)
LADDER = (
    Step("1 naive: one element a work-item", ((16, 16, 16, 1, 1, 16), (8, 8, 16, 1, 1, 8)), {}),
    Step(
        "2 tiles in local memory",
        ((32, 32, 32, 1, 1, 32), (16, 16, 16, 1, 1, 16), (8, 8, 8, 1, 1, 8)),
        {"LOCAL_A": 1, "LOCAL_B": 1},
    ),
    Step(
        "3 more work per work-item: 8 columns",
        ((32, 32, 32, 1, 8, 32), (32, 32, 8, 1, 8, 32)),
        {"KU": 0},
    ),
    Step(
        "4 wider data types: 4 elements a load",
        ((32, 32, 32, 8, 1, 4), (32, 32, 8, 8, 1, 4)),
        {"VG": 4},
    ),
    Step(
        "5 transposed, rectangular tiles",
        ((64, 64, 16, 1, 16, 32), (64, 32, 16, 1, 16, 32)),
        {"VG": 1, "TURN_B": 1, "PAD": 2},
    ),
    Step("6 2D register blocking", BLOCKED, {}),
    Step(
        "7 wider loads with register blocking", BLOCKED, {"VG": 4, "VW": 4, "TURN_B": 0, "PAD": 4}
    ),
    Step("8 prefetch: the next tile into registers", BLOCKED, {"STAGES": 2}),
    Step(
        "9 macro-tiles in bands, work-items in z-order",
        (
            (128, 128, 16, 8, 8, 8),
            (64, 64, 16, 4, 4, 8),
            (32, 32, 16, 4, 4, 8),
            (32, 32, 8, 4, 4, 8),
        ),
        {"GROUP_M": 8, "ZORDER": 1},
    ),
    Step(
        "10 local memory read a step ahead, tile chosen anew",
        ((128, 64, 16, 8, 8, 8), (128, 64, 8, 8, 8, 8), (64, 64, 8, 4, 4, 8), (32, 32, 8, 4, 4, 8)),
        {"AHEAD": 1},
    ),
    Step(
        "11 operands packed and padded with zeros",
        ((64, 64, 16, 8, 8, 8), (64, 64, 16, 4, 4, 8), (64, 64, 8, 4, 4, 8), (32, 32, 8, 4, 4, 8)),
        {"PACK": 1},
    ),
    Step(
        "12 the same with incomplete tiles: n + 1",
        ((64, 64, 16, 8, 8, 8), (64, 64, 16, 4, 4, 8), (64, 64, 8, 4, 4, 8), (32, 32, 8, 4, 4, 8)),
        {},
        1,
    ),
)


def tiled_config(
    device: Device, precision: Precision, step: Step, params: dict[str, int]
) -> Config | str:
    """Take a step's first tile that the device can run, or give the reason why it runs none."""
    family: GpuTiled = BY_NAME["gpu_tiled"]  # type: ignore[assignment]
    reason = ""
    for tile in step.tiles:
        fitting = dict(zip(("MC", "NC", "KC", "MR", "NR", "LANES_M"), tile, strict=True))
        for name, sides in (("VG", "MC NC KC"), ("VW", "MR NR")):
            width = params[name]
            while width > 1 and (
                any(fitting[side] % width for side in sides.split())
                or width * precision.itemsize > 16
            ):
                width //= 2
            fitting[name] = width
        config = Config.of("gpu_tiled", params | fitting)
        broken = list(family.broken_rules(device.traits, precision, config))
        if not broken:
            return config
        reason = broken[0]
    return f"left out, this is not so: {reason}"


def square(code: str, n: int) -> Gemm:
    """Describe a product of squares in device memory."""
    return Gemm(code, n, n, n, 1, False, False, n, 0, False, False, n, 0, n, 0, False, aligned=True)


def launches(device: Device, product: Product, config: Config, *, whole: bool) -> Callable[[], Any]:
    """Return what enqueues a square product as one configuration plans it, and gives its result.

    No call would take most of these.  `whole` plans as if the device had one compute unit, so that
    nothing is cut finer.
    """
    traits = replace(device.traits, compute_units=1) if whole else device.traits
    g = square(product.form.code, product.form.n)
    runner = KernelRunner(device, g, BY_NAME[config.family].plan(traits, g, config))
    _, state = registry.of_queue(device.queue)
    # C.T = B.T @ A.T in column-major terms, in the same memory.
    a, b, c = (z.base_data for z in (product.y, product.x, product.out))
    values = (1.0, 0.0, a, b, c, NO_OFFSETS)

    def run() -> Any:
        runner.enqueue(values, state, [])
        return product.out

    return run


def rungs(device: Device, g: Gemm) -> list[tuple[str, int, Config | str, bool]]:
    """List name, growth, configuration and whether it is taken as it stands, from the bottom up."""
    precision, params = PRECISIONS[g.precision], dict(PLAIN)
    found: list[tuple[str, int, Config | str, bool]] = []
    for step in LADDER:
        params |= step.changes
        found.append((step.name, step.grows, tiled_config(device, precision, step, params), True))
    for family in FAMILIES:
        if family.supports(device.traits, precision) and family.name != "direct":
            config = family.default(device.traits, precision)
            found.append((f"default of {family.name}", 0, config, False))
    config = engines.of(device).parameters.config_for(g)
    found.append(("what the tuner takes", 0, config, False))
    return found


def climb(device: Device, code: str, n: int) -> list[dict[str, Any]]:
    """Check and time every rung."""
    operands = Operands(*(normal(code, (n + 1) * (n + 1), seed) for seed in (1, 2)))
    rows: list[dict[str, Any]] = []
    for name, grows, config, whole in rungs(device, square(code, n)):
        row: dict[str, Any] = {"step": name, "config": str(config)}
        rows.append(row)
        if isinstance(config, str):
            print(f"{name:52}{config}", flush=True)
            continue
        product = Product(Form(code, *(n + grows,) * 3), operands)
        try:
            run = launches(device, product, config, whole=whole)
            row["error_over_bound"] = error = product.error(run)
        except ClgemmError as fault:
            print(f"{name:52}{str(fault).splitlines()[0][:80]}", flush=True)
            continue
        if not error <= 1:
            raise SystemExit(f"{name}: WRONG, {error:.3g} times the error bound, {config}")
        seconds = alternating.throughput({"": Way(run, product.finish)}, ROUNDS)[""]
        row["gflops"] = product.form.flops / seconds / 1e9
        print(f"{name:52}{row['gflops']:12.1f} GFLOP/s", flush=True)
    return rows


def main() -> int:
    """Print the ladder of one precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", help="as CLGEMM_DEVICE")
    parser.add_argument("--n", type=int, help="default: 4096, on CPUs 1536")
    parser.add_argument("--precision", default="s", choices=list("sdcz"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device:
        os.environ["CLGEMM_DEVICE"] = arguments.device
    device = environment.device_in_use()
    n = arguments.n or (1536 if device.traits.kind == "cpu" else 4096)
    head = environment.facts(device) | {"precision": arguments.precision, "n": n}
    print(environment.text(head))
    rows = climb(device, arguments.precision, n)
    environment.store(arguments.json, head | {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
