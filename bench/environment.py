"""Where a bench runs: peers as users see them, and what must be known of a machine beside a figure.

OPENBLAS_CORETYPE and its like, set on many machines for other reasons, make the BLAS of NumPy and
SciPy up to twice as slow as users see it.  A library reads them once, when it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clgemm.cli.info import versions
from clgemm.host import openblas
from clgemm.runtime import processor, registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clgemm.runtime.device import Device

PREFIXES = ("OPENBLAS_", "GOTO_", "OMP_", "MKL_", "BLIS_", "VECLIB_", "NVPL_BLAS_")
"""Of variables that change which kernels and threads a BLAS uses."""
WIDEST = {"SkylakeX", "Cooperlake", "Sapphirerapids", "Zen5"}
"""OpenBLAS' names for AVX-512 kernels."""


def restart_clean() -> None:
    """Run this script again without variables that change the peers, if any is set, and end.

    NumPy is loaded by now.  The other process loads it anew.
    """
    clean = without_blas_variables(os.environ)
    gone = sorted(set(os.environ) - set(clean))
    if gone:
        print(f"starting again without {', '.join(gone)}", file=sys.stderr, flush=True)
        sys.exit(subprocess.call([sys.executable, *sys.orig_argv[1:]], env=clean))


def without_blas_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a BLAS chooses its kernels and threads by itself."""
    return {name: x for name, x in environment.items() if not name.startswith(PREFIXES)}


def device_in_use() -> Device:
    """Return the device that calls use, or end."""
    device = registry.current()
    if device is None:
        raise SystemExit("no OpenCL device can be used here")
    return device


def peer_kernels() -> str:
    """Ask NumPy's BLAS which kernels and how many threads it uses."""
    running = openblas.of_numpy()
    if running is None:
        return "its BLAS does not tell its kernels"
    widest = ": already the widest there are, FMA by FMA" if running.core in WIDEST else ""
    return f"{running.core} kernels, {running.threads()} threads{widest}"


def facts(device: Device) -> dict[str, Any]:
    """Say where, when and with what something is measured."""
    traits = device.traits
    return {"device": traits.describe(), "driver": traits.driver_version} | host_facts()


def host_facts() -> dict[str, Any]:
    """Say the same of the host alone."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": f"{processor.identity()}, {processor.usable_cores()} cores",
        "SciPy runs": peer_kernels(),
        "versions": versions(),
    }


def text(found: Mapping[str, Any]) -> str:
    """Give facts, one a line."""
    return "\n".join(f"{name}: {fact}" for name, fact in found.items()) + "\n"


def store(path: Path | None, found: Mapping[str, Any]) -> None:
    """Write what was found as JSON, if a file is asked for."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
