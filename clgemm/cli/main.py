"""The command line, ``python -m clgemm``: what is here, a demonstration, and the cache."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import signal
import sys
import warnings
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from clgemm import blas, settings
from clgemm._version import __version__
from clgemm.api.explain import explain, of_shape
from clgemm.cli import cache, run, tune, values
from clgemm.dispatch import engines
from clgemm.dispatch.route import HOST
from clgemm.errors import ClgemmError, ClgemmWarning
from clgemm.host import openblas, scipy_blas, spinning, threads
from clgemm.interpose import stub
from clgemm.kernels import FAMILIES
from clgemm.problem import INTEGERS, PRECISIONS, Precision
from clgemm.runtime import devices, registry
from clgemm.tuning.measure import timing
from clgemm.tuning.measure.verify import random_matrix
from clgemm.tuning.store import lookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clgemm.runtime.device import Device
    from clgemm.tuning.shapes import Shape
    from clgemm.tuning.store.store import Store

DEMO_N = 2048


def versions() -> str:
    """Name the versions that a report needs."""
    packages = " ".join(f"{p} {metadata.version(p)}" for p in ("numpy", "scipy", "pyopencl"))
    return f"clgemm {__version__}  python {platform.python_version()}  {packages}"


def info() -> int:
    """Print devices, the one in use and why, where parameters come from, and versions."""
    print(versions())
    found = devices.find()
    device = registry.current() if found else None
    used = set() if device is None else {s.traits for s in (device, *registry.others())}
    print("\ndevices:" if found else "\ndevices: none")
    for f in found:
        t = f.traits
        mark = "*" if t in used else " "
        print(
            f" {mark} {t.describe()}: {t.kind}, {t.compute_units} compute units, "
            f"{8 * t.simd_bytes}-bit SIMD, {t.global_memory / 2**30:.1f} GiB, "
            f"{'fp64' if t.fp64 else 'no fp64'}, driver {t.driver_version}"
        )
    if device is None:
        print(f"\nno OpenCL device: {devices.INSTALL_HINT}")
        return 1
    print(f"\nin use: {device.traits.describe()} ({device.reason})")
    for other in registry.others():
        print(f"and for large products: {other.traits.describe()}")
    _print_parameters(device)
    print(f"\n{_host()}")
    print(f"\n{cache.cache_directory()}")
    return 0


def _host() -> str:
    """Tell what the host's BLAS is, and how a CPU device shares the cores with it."""
    library = openblas.of_numpy()
    lines = ["NumPy's BLAS: another than OpenBLAS"]
    if library is not None:
        lines = [f"NumPy's BLAS: OpenBLAS, {library.core} kernels, {library.threads()} threads"]
    lines.append(f"its idle threads {spinning.state(library)}")
    lines.append(f"cores that a CPU device may use now: {threads.limit()}")
    why_not = stub.why_not()
    lines.append(f"interposition: {'possible' if why_not is None else f'not possible: {why_not}'}")
    return "\n".join(lines)


def _print_parameters(device: Device) -> None:
    traits = device.traits
    store = lookup.store_for(traits)
    print("parameters:")
    for code, precision in PRECISIONS.items():
        if not traits.has(precision):
            print(f"  {code}: this device has no double precision")
            continue
        if not settings.tuning_enabled():
            tuned = lookup.defaults(traits, precision, "CLGEMM_TUNE=off")
        else:
            tuned_or_none = lookup.find_stored(store, traits, precision)
            if tuned_or_none is None:
                why = _why(store, device, precision)
                print(f"  {code}: not tuned yet; the first call will{why}")
                continue
            tuned = tuned_or_none
        print(f"  {code}: from {tuned.origin}")
        for config in tuned.configs:
            print(f"     {config}")
    able = [x.name for x in FAMILIES if x.supports(traits, INTEGERS["i4"])]
    print(f"  integers and bool: {able[0]}'s defaults, without a search")


def _why(store: Store, device: Device, precision: Precision) -> str:
    """Say, in brackets, why what is stored is not used and what is tried first."""
    why = lookup.why_unused(store, device.traits, precision)
    first = len(lookup.find_starting_points(store, device.traits, precision))
    known = f"known configurations, tried first: {first}" if first else ""
    text = "; ".join(filter(None, (why, known)))
    return f" ({text})" if text else ""


def demo(n: int = DEMO_N, codes: str = "".join(PRECISIONS)) -> int:
    """Multiply matrices with clgemm and with SciPy, compare results and print times.

    Returns
    -------
    int
        0 if every result agreed with SciPy's within the error bound.
    """
    print(versions())
    device = registry.current()
    if device is None:
        print("no device can be used in this process")
        return 1
    print(f"device: {device.traits.describe()} ({device.reason})\n")
    supported = [PRECISIONS[c] for c in codes if device.traits.has(PRECISIONS[c])]
    for precision in supported:
        origin = engines.of(device).parameters.of(precision.code).origin
        print(f"{precision.code}gemm: parameters {origin}", flush=True)
    title = f"n = {n}"
    print(f"\n{title:8} {'SciPy':>20} {'clgemm':>20} {'speed-up':>9}  error / bound")
    good = True
    for precision in supported:
        good &= _demo_line(precision, n)
    print("\nall results agree with SciPy" if good else "\nA RESULT IS WRONG", flush=True)
    return 0 if good else 1


def _demo_line(precision: Precision, n: int) -> bool:
    rng = np.random.default_rng(1)
    a, b = (random_matrix(rng, precision, n, n) for _ in "ab")
    ours = getattr(blas, precision.code + "gemm")
    theirs = scipy_blas.gemm(precision.code)
    bound = 2 * n * precision.eps * (np.abs(a) @ np.abs(b))
    error = float(np.max(np.abs(ours(1.0, a, b) - theirs(1.0, a, b)) / bound))
    times = timing.side_by_side(
        {
            "SciPy": lambda: theirs(1.0, a, b),
            "clgemm": lambda: ours(1.0, a, b),
        }
    )
    flops = 2 * n**3 * (4 if precision.is_complex else 1)
    columns = "".join(
        f"{1e3 * t.median:9.2f} ms{flops / t.median / 1e9:5.0f} GF/s" for t in times.values()
    )
    ratio = times["SciPy"].median / times["clgemm"].median
    noisy = "  (noisy machine)" if any(t.noisy for t in times.values()) else ""
    if explain(a, b, np.empty((n, n), precision.dtype, "F")).route == HOST:
        noisy += "  (left to SciPy, which is as fast here)"
    print(f"{precision.code}gemm    {columns} {ratio:8.2f}x  {error:.1e}{noisy}", flush=True)
    return error <= 1


def print_explanations(codes: Sequence[str], sizes: Sequence[Shape]) -> int:
    """Print where column-major products would run; return the exit status."""
    for size in sizes:
        for code in codes:
            print(of_shape(code, size.m, size.n, size.k), flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="clgemm", description=__doc__)
    top.add_argument("--version", action="version", version=versions())
    top.add_argument("-v", "--verbose", action="store_true", help="log what happens")
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="devices, parameters, versions")
    cache.add_parser(commands)
    tune.add_parser(commands)
    run.add_parser(commands)
    e = commands.add_parser("explain", help="where a product would run, and why")
    e.add_argument("sizes", nargs="+", type=values.size, metavar="MxNxK")
    _add_precision(e, "--precision")
    e.add_argument(
        "--types", nargs="+", type=values.integers, default=(), metavar="TYPE",
        help="in place of precisions: bool, int8, ... uint64",
    )  # fmt: skip
    d = commands.add_parser("demo", help="multiply in four precisions and compare with SciPy")
    d.add_argument("--n", type=values.count, default=DEMO_N, help="size of the square matrices")
    _add_precision(d, "--precision", "--precisions")
    return top


def _add_precision(command: argparse.ArgumentParser, *names: str) -> None:
    command.add_argument(
        *names, default="".join(PRECISIONS), type=values.letters, help="BLAS letters, e.g. sd"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = parser().parse_args(argv)
    if arguments.command == "run":  # what is set up below and caught is the program's own
        return run.run(arguments, parser())
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO, format="%(name)s: %(message)s"
    )
    warnings.simplefilter("always", ClgemmWarning)
    try:
        status = _run(arguments)
        sys.stdout.flush()  # what cannot be written is known here, not after the interpreter's end
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("clgemm: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except (ClgemmError, MemoryError, OSError) as error:
        print(f"clgemm: error: {error}", file=sys.stderr)
        return 1
    return status


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "info":
        return info()
    if arguments.command == "cache":
        return cache.run(arguments)
    if arguments.command == "tune":
        return tune.run(arguments)
    if arguments.command == "explain":
        return print_explanations(arguments.types or arguments.precision, arguments.sizes)
    return demo(arguments.n, arguments.precision)
