"""What is kept for contexts and queues goes with them, and plans keep to the memory allowed."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import gemm, square

import clgemm
from clgemm.dispatch import engine, engines
from clgemm.kernels import BY_NAME
from clgemm.runtime import opencl, registry
from clgemm.runtime.opencl import cl

pytestmark = pytest.mark.process


def test_tables_forget_contexts_that_the_caller_dropped(device, rng, monkeypatch):
    """When others come: some drivers hold a queue as long as what lies idle for it is kept."""
    for name in ("states", "_foreign"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(engines, "_engines", {})
    host = rng.standard_normal((20, 20)).astype(np.float32)
    for _ in range(6):
        context = cl.Context(device.context.devices)
        queue = cl.CommandQueue(context)
        x = opencl.arrays().to_device(queue, host)
        np.testing.assert_allclose(clgemm.matmul(x, x).get(), host @ host, atol=1e-4)
        tables = registry._foreign, registry.states, engines._engines
        assert max(map(len, tables)) <= 3
        del context, queue, x
        gc.collect()


def test_a_plan_knows_how_much_memory_is_allowed(device, monkeypatch):
    """Its scratch is part of what CLGEMM_DEVICE_MEMORY_MB limits."""
    used, seen = engines.of(device), []
    config = used.parameters.config_for(square(300))
    family = BY_NAME[config.family]
    real = family.plan

    def plan(traits, problem, config):
        seen.append((traits.max_allocation, traits.global_memory))
        return real(traits, problem, config)

    monkeypatch.setattr(family, "plan", plan, raising=False)
    used.build(square(300))
    monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", "3")
    used.build(square(300))
    free = device.traits.max_allocation, device.traits.global_memory
    assert seen == [free, (3 << 20, 3 << 20)]


def test_decisions_that_no_short_cut_knows_are_not_kept_without_end(device, monkeypatch):
    monkeypatch.setattr(engine, "MOST_DECISIONS", 5)
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    fresh = engines.of(registry.Device(found, "a test"))
    with registry.using(fresh.device):
        for n in range(1, 20):
            gemm(1.0, np.ones((n, 2)), np.ones((2, n)), 1.0, np.ones((n, n)))
            assert 0 < len(fresh.decisions) <= 5
