"""The family of the tests of which five configurations are broken, for bench_tuning.py."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from clgemm import settings
from clgemm.tuning.results import Effort
from clgemm.tuning.store import lookup
from clgemm.tuning.tuner import Parameters
from clgemm.tuning.workers.pool import Worker

if TYPE_CHECKING:
    from clgemm.runtime.device import Device

TESTS = Path(__file__).parents[1] / "tests" / "tuning"


def faults(device: Device, folder: Path) -> dict[str, Any]:
    """Tune a family of which five configurations are broken."""
    sys.path.insert(0, str(TESTS))
    faulty: Any = import_module("faulty")
    os.environ["CLGEMM_CACHE_DIR"] = str(folder / "faults")
    faulty.install(setattr, dict.__setitem__)
    program = str(TESTS / "faulty_worker.py")
    with (
        mock.patch.object(lookup, "FAMILIES", (faulty.FAULTY,)),
        mock.patch.object(Worker, "command", (program,)),
    ):
        result = Parameters(device).tune("s", Effort(seconds=settings.tune_seconds()))
    named = {faulty.NAMES[o.config["KIND"]]: o.status for o in result.outcomes if not o.ok}
    winners = [faulty.NAMES[v.config["KIND"]] for v in result.model.variants]
    print(f"\na family with five faults: {result.seconds:.1f} s, winner: {', '.join(winners)}")
    print("  named: " + ", ".join(f"{name} ({status})" for name, status in named.items()))
    return {"seconds": result.seconds, "winners": winners, "named": named}
