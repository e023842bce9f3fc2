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


@pytest.mark.parametrize(
    ("scenario", "name", "turn"),  # the first build is the probe's
    [(scenarios.first, "_Program._build", 2), (scenarios.verified, "Event.wait", 1)],
    ids=["first", "verified"],
)
def test_nothing_is_given_up_for_a_device_that_was_lost_for_a_moment(
    found, scenario, name, turn, monkeypatch
):
    """Neither a family nor a stored configuration: no kernel was to blame."""
    faults = Faults(monkeypatch.setattr)
    product = scenario(World(found, monkeypatch))
    product.check(product.compute())
    config = clgemm.explain(*product.operands).config
    product = scenario(World(found, monkeypatch))
    lost = partial(border.opencl_error, border.LOST, "")
    faults.arm(name, turn, lost, for_ever=name == "_Program._build")
    with suppress(ClgemmError):
        product.check(product.compute())
    faults.disarm()
    assert faults.fired
    product.check(product.compute())
    assert clgemm.explain(*product.operands).config == config


def test_devices_share_a_product_where_no_thread_can_be_started(found):
    ran, problems = attack(found, scenarios.several, every=False, only=("start",))
    # A pool starts no second thread if the first one has ended its job by then.
    assert (ran in {1, 2}, problems) == (True, [])


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
