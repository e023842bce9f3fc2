"""``clgemm info``: what is here, and what is used of it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

from clgemm import settings
from clgemm._version import __version__
from clgemm.api import shortcut
from clgemm.cli import cache
from clgemm.host import openblas, spinning, threads
from clgemm.kernels import FAMILIES
from clgemm.problem import INTEGERS, PRECISIONS
from clgemm.runtime import devices, machine_code, registry
from clgemm.tuning.store import lookup

if TYPE_CHECKING:
    import argparse

    from clgemm.problem import Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.store.store import Store


def add_parser(commands: Any) -> None:
    """Add ``info`` to the command line's subcommands."""
    commands.add_parser("info", help="devices, parameters, versions")


def versions() -> str:
    """Name the versions that a report needs."""
    packages = " ".join(f"{p} {metadata.version(p)}" for p in ("numpy", "scipy", "pyopencl"))
    return f"clgemm {__version__}  python {platform.python_version()}  {packages}"


def run(_: argparse.Namespace) -> int:
    """Print devices, the one in use and why, where parameters come from, and versions."""
    print(versions())
    found = devices.find()
    device = registry.current() if found else None
    # Not by their traits: a machine may have several that are alike.
    used = [] if device is None else [s.context.devices[0] for s in (device, *registry.others())]
    print("\ndevices:" if found else "\ndevices: none")
    for f in found:
        t = f.traits
        mark = "*" if f.device in used else " "
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
    language = "Python: no C was compiled" if shortcut.MODULE is None else "C"
    lines.append(f"which small products are NumPy's is told in {language}")
    why_not = machine_code.why_not()
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
        print(f"  {code}: {tuned.origin}")
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
