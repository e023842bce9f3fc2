"""``clgemm tune``: search now, show what it brought, and draw it."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm import blas, settings
from clgemm.cli import values
from clgemm.dispatch import engines
from clgemm.errors import ClgemmError
from clgemm.problem import PRECISIONS, Precision
from clgemm.runtime import devices, registry
from clgemm.runtime.choice import wanted
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.verify import random_matrix
from clgemm.tuning.results import Effort, Result
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from clgemm.kernels.family import Config
    from clgemm.runtime.device import Device

PLOT_SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
PLOT_HINT = "--plot needs matplotlib; install it with: pip install 'clgemm[bench]'"


def add_parser(commands: Any) -> None:
    """Add ``tune`` to the command line's subcommands."""
    p = commands.add_parser("tune", help="search for parameters now and store them")
    p.add_argument("--device", help="as CLGEMM_DEVICE: any part of a platform's or device's name")
    p.add_argument(
        "--precision", default="".join(PRECISIONS), type=values.letters,
        help="BLAS letters, e.g. sd (default: all four)",
    )  # fmt: skip
    p.add_argument(
        "--sizes", nargs="+", type=values.size, default=[], metavar="MxNxK",
        help="what to search for, e.g. 1000 or 3000x40x500; the finalists are timed with the "
        "usual shapes as well",
    )  # fmt: skip
    p.add_argument(
        "--full", action="store_true",
        help=f"go on until nothing is left to try, for at most {settings.FULL_FACTOR:g} times the "
        "usual budget",
    )  # fmt: skip
    p.add_argument("--seconds", type=values.seconds, help="budget of each precision")
    p.add_argument(
        "--plot", type=values.new_file, metavar="FILE", help="draw rates and all candidates"
    )


def run(arguments: argparse.Namespace) -> int:
    """Tune what the arguments ask for; print a table of it and return the exit status."""
    if arguments.plot is not None:
        pyplot()  # better missed now than after a minute
    device = _device(arguments.device)
    mode = "full" if arguments.full else "auto"
    factor = settings.FULL_FACTOR if arguments.full else 1
    seconds = arguments.seconds or settings.tune_seconds() * factor
    asked = {str(shape): shape for shape in arguments.sizes}
    effort = Effort(mode, seconds, asked, keeps_on_interrupt=True)
    print(f"device: {device.traits.describe()} ({device.reason})", flush=True)
    results: dict[str, Result] = {}
    for code in arguments.precision:
        if not device.traits.has(PRECISIONS[code]):
            print(f"\n{code}gemm: this device has no double precision")
            continue
        results[code] = engines.of(device).tune(code, effort)
        _print_result(device, PRECISIONS[code], results[code])
        if results[code].interrupted:
            break
    stored = all(result.stored for result in results.values())
    print(f"\n{'stored in' if stored else 'not stored:'} {lookup.store_for(device.traits).path}")
    if arguments.plot is not None:
        _plot(device, results, arguments.plot)
        print(f"drawn in {arguments.plot}")
    return 0 if stored else 1


def _device(wish: str | None) -> Device:
    if wish is None:
        device = registry.current()
        if device is None:
            raise ClgemmError("no device can be used in this process")
        return device
    found = [f for f in wanted(devices.find(), wish) if not devices.works(f.device)]
    if not found:
        names = "; ".join(f.traits.describe() for f in devices.find())
        raise ClgemmError(f"--device {wish!r} names no device that works; here are: {names}")
    return registry.open_device(found[0], f"--device {wish}")


def _print_result(device: Device, precision: Precision, result: Result) -> None:
    ended = ", stopped by the keyboard" if result.interrupted else ""
    failed = [o for o in result.outcomes if not o.ok]
    print(
        f"\n{precision.code}gemm: {len(result.outcomes)} candidates in {result.seconds:.1f} s"
        f"{ended}, {len(failed)} ruled out"
    )
    for outcome in failed:
        words = outcome.detail.splitlines()
        print(f"  {outcome.config}: {outcome.status}: {words[0] if words else ''}")
    families = lookup.competitors(device.traits, precision)
    defaults = [family.default(device.traits, precision) for family in families]
    print(f"  {'':8}{'m x n x k':22}{'GFLOP/s':>9}   by variant; against the default of its family")
    model = result.model
    for name, shape in model.shapes.items():
        config = model.choose(shape.problem(precision.code))
        number = 1 + [v.config for v in model.variants].index(config) if config else 0
        seconds = model.variants[number - 1].seconds.get(name) if number else None
        if seconds:
            own = shape.rate(precision.code, seconds)
            beside = _beside(result, defaults, name, shape, own)
            label = "" if name == str(shape) else name
            print(f"  {label:8}{shape!s:22}{own:9.0f}   {number}; {beside or 'not timed'}")
    for number, variant in enumerate(model.variants, 1):
        print(f"  {number}: {variant.config}")
    sys.stdout.flush()


def _beside(result: Result, defaults: Sequence[Config], name: str, shape: Shape, own: float) -> str:
    """Give what the defaults reached, as far as they were timed, beside a rate."""
    timed = {o.config: o.seconds[name] for o in result.outcomes if name in o.seconds}
    rates = {
        config.family: shape.rate(result.model.code, timed[config])
        for config in defaults
        if config in timed
    }
    return ", ".join(f"{family} {rate:.0f} ({own / rate:.2f}x)" for family, rate in rates.items())


def pyplot() -> Any:
    """Import matplotlib with a back end that needs no display; raise ClgemmError without it."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise ClgemmError(PLOT_HINT) from error


@contextmanager
def _every_call_to_the_device() -> Iterator[None]:
    before = os.environ.get("CLGEMM_ROUTE", "")
    os.environ["CLGEMM_ROUTE"] = "device"
    try:
        yield
    finally:
        os.environ["CLGEMM_ROUTE"] = before


def _rates(device: Device, precision: Precision) -> list[float]:
    """Time squares with the parameters in use, NumPy arrays in and out."""
    rng, found = np.random.default_rng(3), []
    gemm = getattr(blas, f"{precision.code}gemm")
    with registry.using(device), _every_call_to_the_device():
        for n in PLOT_SIZES:
            a, b = (random_matrix(rng, precision, n, n) for _ in "ab")
            timed = timing.measure(partial(gemm, 1.0, a, b), stretch=timing.STRETCH)
            found.append(Shape(n, n, n).rate(precision.code, timed.quartile))
    return found


def _plot(device: Device, results: Mapping[str, Result], file: Path) -> None:
    """Draw rate against n, tuned and by default, and the rates of all candidates."""
    plots = pyplot()
    rows = max(1, len(results))
    figure, axes = plots.subplots(rows, 2, figsize=(11, 3.6 * rows), squeeze=False)
    for (left, right), (code, result) in zip(axes, results.items(), strict=False):
        precision, engine = PRECISIONS[code], engines.of(device)
        tuned = engine.parameters.of(code)
        left.plot(PLOT_SIZES, _rates(device, precision), "o-", label="tuned")
        engine.parameters.use(code, lookup.defaults(device.traits, precision, "for comparison"))
        engine.forget()
        left.plot(PLOT_SIZES, _rates(device, precision), "s--", label="default")
        engine.parameters.use(code, tuned)
        engine.forget()
        left.set(title=f"{code}gemm, squares", xlabel="n", ylabel="GFLOP/s", ylim=(0, None))
        left.legend()
        for name, shape in result.model.shapes.items():
            rates = [
                shape.rate(code, o.seconds[name]) for o in result.outcomes if name in o.seconds
            ]
            right.plot(sorted(rates, reverse=True), ".", label=name)
        right.set(title="all candidates", xlabel="rank", ylabel="GFLOP/s", ylim=(0, None))
        right.legend()
    figure.suptitle(device.traits.describe())
    figure.tight_layout()
    figure.savefig(file)
    plots.close(figure)
