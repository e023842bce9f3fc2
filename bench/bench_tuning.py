"""What tuning costs, how good a choice it makes in its default budget, and what faults it survives.

    python bench/bench_tuning.py [--precisions sdcz] [--parts starts cold repeat full choice faults]
                                 [--seconds 60] [--json out.json]

starts: the first call with an empty cache, with the same parameters shipped, and in later
processes; each in a process of its own, timed from before the import of clgemm to the result.  Also
with NVIDIA's driver when it has compiled nothing, by the parameters that ship and by a search.
cold: these alone.
repeat: two searches with the default budget, one after the other, and how far their choices differ.
full: the default budget against a full search, of at most --seconds, on twelve products that
neither of them timed.  choice: the same products with each of the variants that the default budget
found, in the predicted order and in the measured one, and how long deciding takes.
faults: a family of which five configurations are broken, in the default budget.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environment
import numpy as np
from tuning_faults import faults
from tuning_starts import cold_starts, starts

from clgemm import settings
from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.tuning.measure import timing
from clgemm.tuning.results import Effort
from clgemm.tuning.shapes import Shape, standard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.tuning.cost_model import Model

# Odd, skinny, small k, long k, and stacks; none is a shape that is tuned with.
SHAPES = (
    Shape(769, 1031, 515), Shape(1537, 1201, 901), Shape(2047, 513, 1023), Shape(333, 333, 333),
    Shape(129, 700, 255), Shape(1500, 23, 1100), Shape(17, 2011, 800), Shape(1900, 1700, 31),
    Shape(901, 903, 64), Shape(200, 190, 6001), Shape(181, 177, 190, 12), Shape(70, 68, 75, 40),
)  # fmt: skip
PARTS = ("starts", "cold", "repeat", "full", "choice", "faults")
DECIDED = 200  # times that deciding is timed


def search(device: Device, code: str, mode: str, seconds: float, cache: Path) -> Model:
    """Search in a cache directory of its own."""
    os.environ |= {"CLGEMM_CACHE_DIR": str(cache), "CLGEMM_SHIPPED": "off"}
    result = engines.of(device).parameters.tune(code, Effort(mode, seconds))
    failed = sum(not o.ok for o in result.outcomes)
    print(f"{mode}: {len(result.outcomes)} trials in {result.seconds:.1f} s, {failed} ruled out")
    for variant in result.model.variants:
        print(f"  {variant.config}", flush=True)
    return result.model


def operands(device: Device, code: str, shape: Shape) -> tuple[Gemm, tuple[Any, Any, Any]]:
    """Make arrays for a shape, and describe their product as a call would."""
    m, n, k, batch = shape[:4]
    rng = np.random.default_rng(4)

    def some(rows: int, columns: int) -> Any:
        x = rng.uniform(-1, 1, (batch, columns, rows)).astype(PRECISIONS[code].dtype).swapaxes(1, 2)
        return x if batch > 1 else x[0]

    a, b, c = some(m, k), some(k, n), some(m, n)
    problem = describe(Operand(a), Operand(b), c, reads_c=False)
    return (problem if device.traits.unified_memory else problem.dense()), (a, b, c)


def product(device: Device, code: str, shape: Shape, config: Config) -> Callable[[], None]:
    """Return what computes one product, of arrays that stay where they are."""
    problem, arrays = operands(device, code, shape)
    plan = BY_NAME[config.family].plan(device.traits, problem, config)
    runner = KernelRunner(device, problem, plan)
    a, b, c = (host_memory.place(device, x) for x in arrays)
    values = (1.0, 0.0, a, b, c, NO_OFFSETS)

    def run() -> None:
        assert arrays  # the device may share their memory
        runner.execute(values)

    return run


def chosen(device: Device, model: Model, shape: Shape) -> Config:
    """Return what a model chooses for a shape."""
    direct = BY_NAME["direct"].default(device.traits, PRECISIONS[model.code])
    return model.choose(operands(device, model.code, shape)[0]) or direct


def against(
    device: Device, code: str, shapes: Sequence[Shape], one: Model, other: Model
) -> list[float]:
    """Time two models' choices side by side; return the rates of one as parts of the other's."""
    ratios = []
    for shape in shapes:
        configs = chosen(device, one, shape), chosen(device, other, shape)
        runs = {str(c): product(device, code, shape, c) for c in configs}
        times = timing.side_by_side(runs, rounds=3)
        first, second = (times[str(c)].quartile for c in configs)  # others only add time
        ratios.append(second / first)
        noisy = "  (noisy machine)" if any(t.noisy for t in times.values()) else ""
        print(
            f"  {shape!s:24}{shape.rate(code, first):9.1f}{shape.rate(code, second):9.1f} GFLOP/s"
            f"{100 * ratios[-1]:8.1f} %{noisy}",
            flush=True,
        )
    print(f"  {_summary(ratios)}", flush=True)
    return ratios


def _summary(ratios: Sequence[float]) -> str:
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    return f"geometric mean {100 * mean:.1f} %, worst {100 * min(ratios):.1f} %"


def choice(device: Device, model: Model) -> dict[str, Any]:
    """Time every variant at shapes that were not timed: what the model's choice loses."""
    code, found, ratios = model.code, {}, []
    print(f"\n{code}gemm, variants in the order predicted: ms predicted / measured")
    for shape in SHAPES:
        problem = operands(device, code, shape)[0]
        config = chosen(device, model, shape)
        places = [i for i, v in enumerate(model.variants)
                  if BY_NAME[v.config.family].accepts(problem)]  # fmt: skip
        guess = model.predict(problem, places)
        runs = {str(i): product(device, code, shape, model.variants[i].config) for i in guess}
        if not runs:
            continue
        times = {int(i): t.quartile for i, t in timing.side_by_side(runs, rounds=2).items()}
        taken = next(i for i in guess if model.variants[i].config == config)
        ratios.append(min(times.values()) / times[taken])
        order = sorted(guess, key=guess.__getitem__)
        texts = [f"{i + 1}: {1e3 * guess[i]:.3f} / {1e3 * times[i]:.3f}" for i in order]
        print(f"  {shape!s:24}{', '.join(texts)}; {taken + 1} is {100 * ratios[-1]:.0f} %")
        found[str(shape)] = {"predicted": guess, "measured": times, "taken": taken}
    problems = [shape.problem(code)._replace(k=shape.k + i) for i in range(20) for shape in SHAPES]
    decided = []
    for problem in problems[:DECIDED]:
        start = time.perf_counter()
        model.choose(problem)
        decided.append(time.perf_counter() - start)
    micro = 1e6 * statistics.median(decided)
    print(f"  {_summary(ratios)} of the best variant; deciding takes {micro:.1f} µs", flush=True)
    return {"shapes": found, "of the best variant": ratios, "deciding, µs": micro}


def parts_of(device: Device, code: str, arguments: Any, folder: Path) -> dict[str, Any]:
    """Run what was asked for in one precision, in the device's process."""
    found: dict[str, Any] = {}
    parts, budget = arguments.parts, settings.tune_seconds()
    if not {"repeat", "full", "choice"} & set(parts):
        return found
    print(f"\n{code}gemm: the default budget")
    default = search(device, code, "auto", budget, folder / f"{code} one")
    if "repeat" in parts:
        print("the default budget again: the first one's rate as a part of the second's")
        other = search(device, code, "auto", budget, folder / f"{code} two")
        found["repeat"] = against(device, code, tuple(standard(1024).values()), default, other)
    if "full" in parts:
        print("full: rates, and the default's as a part of the full search's")
        full = search(device, code, "full", arguments.seconds, folder / f"{code} full")
        found["full"] = against(device, code, SHAPES, default, full)
    if "choice" in parts:
        found["choice"] = choice(device, default)
    return found


def main() -> int:
    """Print and store what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--precisions", default="s", help="letters of sdcz")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=["starts"], choices=PARTS)
    parser.add_argument("--seconds", type=float, help="of a full search at most",
                        default=settings.FULL_FACTOR * settings.tune_seconds())  # fmt: skip
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = environment.device_in_use()
    found = environment.facts(device)
    print(environment.text(found))
    found["traits"] = device.traits.as_json()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for code in arguments.precisions:
            found[code] = {}
            if "starts" in arguments.parts:
                found[code]["starts"] = starts(arguments.n, code, arguments.repeats, here)
            if "cold" in arguments.parts:
                found[code]["cold"] = cold_starts(arguments.n, code, arguments.repeats, here)
            found[code] |= parts_of(device, code, arguments, here)
        if "faults" in arguments.parts:
            found["faults"] = faults(device, here)
    environment.store(arguments.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
