"""A queue that does not say that it has ended proves nothing: what it may use is not used again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import gemm

from clgemm.dispatch import engines
from clgemm.runtime import registry
from clgemm.runtime.opencl import cl, load
from clgemm.streaming import copies, direct


class Queue:
    """Counts how often it was waited for; may fail."""

    def __init__(self, *, fails=False):
        self.fails, self.waits = fails, 0

    def finish(self):
        self.waits += 1
        if self.fails:
            code = cl.status_code.DEVICE_NOT_AVAILABLE
            raise load().RuntimeError(load()._cl._ErrorRecord("clFinish", code, ""))


@pytest.mark.parametrize("which", [None, 0, 1, 2])
def test_all_queues_are_waited_for_and_each_must_have_ended(which):
    queues = [Queue(fails=i == which) for i in range(3)]
    call = copies.Copies(None, *queues[:2])
    assert call.abandon(queues[2]) is (which is None)
    assert [queue.waits for queue in queues] == [1] * 3


def test_what_a_lost_device_may_use_is_not_used_again(device, rng, monkeypatch):
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    traits = replace(found.traits, unified_memory=False, system_svm=False)
    apart = registry.Device(found._replace(traits=traits), "a test")
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    a, b = rng.standard_normal((70, 80)), rng.standard_normal((80, 90))
    c = np.zeros((70, 90))
    leased, real = [], copies.Copies._send

    def lost(self, staging, copy, chunk):
        real(self, staging, copy, chunk)
        leased.extend([staging, copy.buffer])
        Queue(fails=True).finish()

    with monkeypatch.context() as patch, registry.using(apart):
        patch.setattr(copies.Copies, "_send", lost)
        patch.setattr(direct, "MOST", 0)
        patch.setattr(copies, "finish", lambda _queue: False)
        with pytest.raises(RuntimeError, match="DEVICE_NOT_AVAILABLE"):
            gemm(1.0, a, b, 0.0, c)
    staging = engines.of(apart).threads.staging
    assert leased
    assert not [x for x in (*apart.memory._idle, *staging._spare) if x in leased]
    assert apart.memory.used == 0
    with registry.using(apart):
        gemm(1.0, a, b, 0.0, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-9, atol=1e-9)
