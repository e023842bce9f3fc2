"""clgemm beside cuBLAS and CLBlast, operands on the device: all tables of an NVIDIA GPU in one run.

    python bench/bench_device.py --json out.json [--clblast-tuned clblast_xgemm_*.json]
    python bench/bench_device.py --sets squares,fma --precisions s --sizes 512 1024
    python bench/bench_device.py --family gpu_tiled [--config '{"MC": 128, ...}']

Needs PyTorch or CuPy.  A case runs as a user's call would: with tuned parameters or, under
``CLGEMM_TUNE=off``, with defaults; the output says which.  Each result is checked before it is
timed, packing and all other passes are part of the time, TF32 is off.  Medians over alternating
blocks of many runs.  CLBlast is found by the linker or by $CLBLAST_LIBRARY; the JSON files that its
``clblast_tuner_xgemm`` writes show it tuned.  The last lines are the tables as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import device_cases
import device_limits
import device_peers
import device_report
import on_device
from device_cases import CLGEMM, CUBLAS, SETS, SIZES
from device_rows import Bench, choose_fp32, run_all

from clgemm.cli.main import versions
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning import tuner

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device


def parameters_in_use(device: Device, codes: str) -> dict[str, str]:
    """Say where parameters come from, by precision; may search for them."""
    found = {code: tuner.tuned_for(device, code).origin for code in codes}
    if "s" in codes:
        choose_fp32(device, "fma")
        found["s, CLGEMM_FP32=fma"] = tuner.tuned_for(device, "s").origin
        choose_fp32(device, "")
    return found


def head_of(bench: Bench, codes: str) -> dict[str, Any]:
    """Say what was measured, where and when, and what the card can do."""
    device = bench.device
    short = {
        f"matmul {name} TFLOP/s": 2 * device_peers.RATE_SIZE**3 / 1e12 / seconds
        for name, seconds in on_device.side_by_side(bench.cublas.short_formats(), 3).items()
    }
    clblast = bench.clblast
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": device.traits.describe(),
        "driver": device.traits.driver_version,
        "versions": versions(),
        "peer": bench.cublas.name,
        "CLBlast": clblast if isinstance(clblast, str) else clblast.name,
        "parameters": parameters_in_use(device, codes),
        "idle": device_limits.smi(),
        "limits": device_limits.limits(device) | short,
    }


def loaded(bench: Bench, n: int = 4096) -> dict[str, Any]:
    """Look at the card while cuBLAS, and then clgemm, keeps it busy."""
    g, device = on_device.problem("s", n, n, n), bench.device
    operands = on_device.Operands(device, *(on_device.normal("s", n * n, i) for i in (1, 2)))
    resident = on_device.Resident(device, g, operands)
    run = resident.launches(tuner.config_for(device, g))
    return {
        CUBLAS: device_limits.under_load(*bench.cublas.product(g, operands)[0]),
        CLGEMM: device_limits.under_load(run, resident.finish),
    }


def forced_config(arguments: argparse.Namespace) -> Callable[[Device, Gemm], Config]:
    """Read --family and --config; without them the tuner decides."""
    if not arguments.family:
        return tuner.config_for
    family = BY_NAME[arguments.family]
    params: dict[str, int] | None = json.loads(arguments.config) if arguments.config else None

    def config(device: Device, g: Gemm) -> Config:
        if params:
            return Config.of(family.name, params)
        return family.default(device.traits, PRECISIONS[g.precision])

    return config


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--sets", default=",".join(SETS), help="of " + ", ".join(SETS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after that")
    parser.add_argument("--family", choices=sorted(BY_NAME), help="its default, not the tuner's")
    parser.add_argument("--config", help="parameters as a JSON object; needs --family")
    parser.add_argument("--clblast-tuned", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if set(arguments.sets.split(",")) - set(SETS):
        parser.error(f"--sets takes some of {', '.join(SETS)}")
    if arguments.config and not arguments.family:
        parser.error("--config needs --family")
    return arguments


def main() -> int:
    """Run the cases and print the tables."""
    arguments = parsed()
    start = time.perf_counter()
    cublas, device = device_peers.CuBLAS.find(), registry.current()
    if device is None or device.traits.compute_capability is None:
        raise SystemExit("the device in use is no NVIDIA GPU; set CLGEMM_DEVICE=nvidia")
    bench = Bench(
        device, cublas, device_peers.CLBlast.find(), forced_config(arguments), arguments.rounds
    )
    head = head_of(bench, arguments.precisions)
    print(device_report.head(head), flush=True)
    tuned = device_peers.tuner_results(arguments.clblast_tuned)
    found = list(
        device_cases.cases(arguments.sets.split(","), arguments.precisions, arguments.sizes)
    )
    rows = run_all(bench, found, tuned, start + arguments.seconds)
    head |= {
        "under load": loaded(bench),
        "CLBlast parameters": tuned,
        "left out": len(found) - len(rows),
        "seconds": round(time.perf_counter() - start),
    }
    print(f"\nunder load: {head['under load']}\n{head['seconds']} s\n")
    if head["left out"]:
        print(f"{head['left out']} cases were left out: --seconds had passed\n")
    print(device_report.markdown(head, rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(head | {"rows": rows}, indent=1), encoding="utf-8")
    return int(any(row["faults"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
