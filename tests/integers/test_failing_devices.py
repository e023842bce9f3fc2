"""What a device fails to do with integers NumPy does, and nothing is given up for it."""

from __future__ import annotations

import numpy as np
import pytest

import clgemm
from clgemm.api import integers
from clgemm.dispatch import engines
from clgemm.dispatch.engine import Engine
from clgemm.errors import ClgemmWarning, DeviceError
from clgemm.runtime import registry
from clgemm.runtime.opencl import cl, load

FAULTS = {
    "OpenCL": lambda: load().RuntimeError(
        load()._cl._ErrorRecord("clCreateBuffer", cl.status_code.OUT_OF_RESOURCES, "")
    ),
    "memory": lambda: MemoryError("none is left"),
    "device": lambda: DeviceError("it was lost"),
}


@pytest.mark.families("cpu_packed")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_while_a_product_is_decided_on_is_that_call_s_alone(
    device, fault, rng, monkeypatch
):
    def build(*_):
        error = FAULTS[fault]()
        raise error

    engines.of(device).forget()
    integers._warn_once.cache_clear()
    a, b = rng.integers(-99, 99, (60, 70)), rng.integers(-99, 99, (70, 80))
    stack = np.stack([a, a])
    with registry.using(device):
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "build", build)
            with pytest.warns(ClgemmWarning, match="NumPy multiplies integers"):
                product = clgemm.matmul(a, b)
            np.testing.assert_array_equal(product, a @ b, strict=True)
            np.testing.assert_array_equal(clgemm.matmul(stack, b), stack @ b, strict=True)
        for x in (a, stack):
            np.testing.assert_array_equal(clgemm.matmul(x, b), x @ b, strict=True)
            assert clgemm.explain(x, b).device, "the next one is computed there"
    engines.of(device).forget()


@pytest.mark.families("cpu_packed")
def test_a_stack_that_a_device_fails_on_once_is_not_numpys_for_good(device, rng, monkeypatch):
    """What was remembered as the host's would never come to the device again."""

    def build(*_):
        raise DeviceError("it was lost")

    used = engines.of(device)
    used.forget()
    stack, b = rng.integers(-99, 99, (2, 150, 160)), rng.integers(-99, 99, (160, 170))
    with registry.using(device), clgemm.settings.using(route="auto"):
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "build", build)
            np.testing.assert_array_equal(clgemm.matmul(stack, b), stack @ b, strict=True)
        assert not used.repeated
    used.forget()
