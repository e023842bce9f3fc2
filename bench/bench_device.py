"""clgemm on arrays of a device, as a user calls it, beside cuBLAS: all tables of a GPU in one run.

    python bench/bench_device.py --json out.json
    python bench/bench_device.py --parts call --precisions s
    python bench/bench_device.py --parts squares,fma --precisions s --sizes 512 1024
    python bench/bench_device.py --parts gram --sizes 1024 2048 4096 8192 16384  # a.T @ a
    python bench/bench_device.py --parts squares --family gpu_tiled [--config '{"MC": 128, ...}']

Operands are pyopencl Arrays; the functions are `clgemm.matmul(x, y, out=z)`, `clgemm.matmul(x, y)`
and, for transposes and factors, `clgemm.sgemm` and its like.  Beside them PyTorch does the same in
the same process with cuBLAS, and "kernels alone" is what the device's clock says of the launches of
the same call.  Where PyTorch or a GPU of NVIDIA's is missing, its columns stay empty.

call: microseconds on the host while the queue is not waited for, and of each of many calls that
follow each other, real types; whether calls from 1024 on return before their kernels have ended.
squares, skinny, ops, gram, fallback, fma: TFLOP/s of calls that follow each other.  limits: what
the device can do at most, and its clocks under load.

Each result is checked before it is timed, packing and all other passes are part of the time, TF32
is off.  Medians over alternating blocks of many runs.  CLBlast is found by the linker or by
$CLBLAST_LIBRARY; the JSON files that its ``clblast_tuner_xgemm`` writes show it tuned.  The last
lines are the tables as Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import alternating
import device_cases
import device_limits
import device_report
import environment
import on_device
from device_cases import CLGEMM, CUBLAS, SETS, SIZES
from device_peers import RATE_SIZE, CLBlast, CuBLAS, tuner_results
from device_rows import Bench, run_all, run_calls

from clgemm import settings
from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.store.lookup import Tuned

if TYPE_CHECKING:
    from clgemm.dispatch.engine import Engine

PARTS = ("call", *SETS, "limits")
DEFAULT_PARTS = ("call", "squares", "skinny", "ops", "limits")
LOADED_SIZE = 4096  # of the product that keeps the device busy


def use_config(engine: Engine, family_name: str, params: dict[str, int] | None, codes: str) -> None:
    """Let all products run with one configuration: a family's default, or the parameters given."""
    family, traits = BY_NAME[family_name], engine.device.traits
    for code in codes:
        config = family.default(traits, PRECISIONS[code])
        if params:
            config = Config.of(family_name, params)
        model = Model(traits, code, {}, (Variant(config, (), {}),))
        engine.parameters.use(code, Tuned(model, f"{config}, asked for"))


def parameters_in_use(engine: Engine, codes: str, parts: list[str]) -> dict[str, str]:
    """Say where parameters come from, by precision; may search for them."""
    found = {code: engine.parameters.of(code).origin for code in codes}
    if "fma" in parts and "s" in codes:
        with settings.using(fp32="fma"):
            found["s, CLGEMM_FP32=fma"] = engine.parameters.of("s").origin
    return found


def limits(engine: Engine, cublas: CuBLAS | str) -> dict[str, float]:
    """Measure what the device can do at most."""
    found = device_limits.limits(engine.device)
    if isinstance(cublas, CuBLAS):
        short = alternating.throughput(cublas.short_formats(), 3)
        found |= {
            f"matmul {name} TFLOP/s": 2 * RATE_SIZE**3 / t / 1e12 for name, t in short.items()
        }
    return found


def loaded(cublas: CuBLAS | str, n: int) -> dict[str, dict[str, str]]:
    """Look at the device while clgemm, and then cuBLAS, keeps it busy."""
    form = on_device.Form("s", n, n, n)
    operands = on_device.Operands(*(on_device.normal("s", n * n, i) for i in (1, 2)))
    product = on_device.Product(form, operands)
    ways = {CLGEMM: alternating.Way(product.into_out(), product.finish)}
    if isinstance(cublas, CuBLAS):
        ways[CUBLAS] = cublas.product(form, operands)[0]
    return {name: device_limits.under_load(way) for name, way in ways.items()}


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--parts", default=",".join(DEFAULT_PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after that")
    parser.add_argument("--family", choices=sorted(BY_NAME), help="its default, not the tuner's")
    parser.add_argument("--config", type=json.loads, help="parameters as JSON; needs --family")
    parser.add_argument("--clblast-tuned", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    if set(arguments.parts) - set(PARTS):
        parser.error(f"--parts takes some of {', '.join(PARTS)}")
    if arguments.config and not arguments.family:
        parser.error("--config needs --family")
    return arguments


def main() -> int:
    """Run the parts and print the tables."""
    arguments = parsed()
    start, codes, parts = time.perf_counter(), arguments.precisions, arguments.parts
    cublas, clblast = CuBLAS.find(), CLBlast.find()
    engine = engines.of(environment.device_in_use())
    codes = "".join(code for code in codes if engine.device.traits.has(PRECISIONS[code]))
    if arguments.family:
        use_config(engine, arguments.family, arguments.config, codes)
    head: dict[str, Any] = environment.facts(engine.device) | {
        "peers": ", ".join(x if isinstance(x, str) else x.name for x in (cublas, clblast)),
        "parameters": parameters_in_use(engine, codes, parts),
        "limits": {},
    }
    print(environment.text(head), flush=True)
    bench, until = Bench(cublas, clblast, arguments.rounds), start + arguments.seconds
    calls = run_calls(bench, codes, until) if "call" in parts else []
    tuned = tuner_results(arguments.clblast_tuned)
    sets = [kind for kind in SETS if kind in parts]
    found = list(device_cases.cases(sets, codes, arguments.sizes))
    rows = run_all(bench, found, tuned, until)
    if "limits" in parts:
        head |= {"idle": device_limits.smi(), "limits": limits(engine, cublas)}
        head["under load"] = loaded(cublas, LOADED_SIZE)
        print(f"\nidle: {head['idle']}\nunder load: {head['under load']}")
    head |= {"CLBlast parameters": tuned, "left out": len(found) - len(rows)}
    head["seconds"] = round(time.perf_counter() - start)
    print(f"\n{head['seconds']} s, {head['left out']} cases left out\n")
    print(device_report.markdown(head, calls, rows))
    environment.store(arguments.json, head | {"calls": calls, "rows": rows})
    return int(any(row["faults"] for row in (*calls, *rows)))


if __name__ == "__main__":
    sys.exit(main())
