"""Whatever fails at the border, a product is right or says what happened; the next one is right."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import border
import pytest
import scenarios
from attack import attack
from border import Faults
from helpers import square
from scenarios import FRESH, KEPT, World

import clgemm
from clgemm.errors import ClgemmError
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.runtime.device import Device
from clgemm.tuning.store import lookup


@pytest.fixture
def found(device):
    return next(f for f in registry.devices.find() if f.traits == device.traits)


@pytest.mark.parametrize("scenario", FRESH + KEPT, ids=lambda x: x.__name__)
def test_a_fault_spoils_no_product_and_no_later_one(found, scenario):
    ran, problems = attack(found, scenario, every=False)
    assert ran, "nothing was attacked"
    assert not problems, f"{len(problems)} of {ran}:\n\n" + "\n\n".join(problems)


@pytest.mark.process
@pytest.mark.slow
def test_a_fault_of_the_system_spoils_no_search(found, monkeypatch, tmp_path):
    """No thread, or no process."""
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    ran, problems = attack(found, scenarios.searched, every=False, only=("start", "Popen"))
    assert ran
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("call", ["build", "__init__"])
def test_a_family_is_not_given_up_for_a_moment_without_memory(found, call, monkeypatch):
    """Nor a stored configuration: no kernel was to blame."""
    faults = Faults(monkeypatch.setattr)
    product = scenarios.verified(World(found, monkeypatch))
    product.check(product.compute())
    config = clgemm.explain(*product.operands).config
    product = scenarios.verified(World(found, monkeypatch))
    name = "Program.build" if call == "build" else "Buffer.__init__"
    error = partial(border.opencl_error, "OUT_OF_HOST_MEMORY", "clBuildProgram")
    for turn in (2, 3):  # the first one is the probe's, and another says no more
        faults.arm(name, turn, error)
        with suppress(ClgemmError, MemoryError):
            product.check(product.compute())
        faults.disarm()
    product.check(product.compute())
    assert clgemm.explain(*product.operands).config == config


def test_kernels_are_built_where_no_thread_can_be_started(found, monkeypatch):
    device, problem = Device(found, "a test"), square(70)
    family = lookup.competitors(found.traits, PRECISIONS["s"])[0]
    config = family.default(found.traits, PRECISIONS["s"])
    specs = [step.kernel for step in family.plan(found.traits, problem, config).steps]
    faults = Faults(monkeypatch.setattr)
    faults.arm("start", 1, partial(RuntimeError, "can't start new thread"))
    device.programs.build_ahead(specs)
    assert faults.fired, "no thread was asked for: the test tests nothing"
    assert all(device.programs.kernel(spec) for spec in specs)
