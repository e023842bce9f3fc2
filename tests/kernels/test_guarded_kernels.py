"""Every family near the extremes of its parameters, between guard zones, on small matrices."""

from __future__ import annotations

import numpy as np
import pytest
from affordable import is_emulated, is_slow_to_build, skip_unsupported
from guarded import GUARD, Guarded, check_config, extremes, guarded_scratch
from test_small_kernels import tiny

from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.problem import INTEGERS, PRECISIONS

UNREACHABLE = {
    "cpu_packed": {("NR", 24)},  # of complex types: more columns than registers
    # Of single precision nothing near the tiny default; of complex double more than local memory.
    "gpu_tiled": {("VW", 8), ("MC", 16), ("MC", 256), ("NC", 256)},
}


def near_extremes(device, family, precision):
    return extremes(family, device.traits, precision, tiny(family, device.traits, precision))


# gpu_tiled takes seconds to build for a CPU.
@pytest.mark.parametrize("code", "sz")
@pytest.mark.parametrize("family", [
    pytest.param(x, id=x.name, marks=[pytest.mark.slow] * (x.name == "gpu_tiled")) for x in FAMILIES
])  # fmt: skip
def test_nothing_is_written_beside_what_is_computed(device, family, code, rng, monkeypatch):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    configs = near_extremes(device, family, precision)
    if is_slow_to_build(device, family):
        configs = configs[:1]
    count = 1 if precision.is_complex or is_emulated(device, family) else 3
    for i in rng.choice(len(configs), min(count, len(configs)), replace=False):
        assert check_config(device, configs[i], precision, rng, monkeypatch) == ""


@pytest.mark.parametrize("code", "sz")
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_parameter_has_its_extremes(device, family, code):
    precision = PRECISIONS[code]
    skip_unsupported(device, family, precision)
    configs = near_extremes(device, family, precision)
    missing = {
        (name, end)
        for name, values in family.space(device.traits, precision).items()
        for end in (min(values), max(values))
        if all(config[name] != end for config in configs)
    }
    assert missing <= UNREACHABLE.get(family.name, set())


@pytest.mark.parametrize("place", [-1, 0])
def test_a_write_beside_is_seen(device, place, monkeypatch):
    held = Guarded(np.ones((3, 2), np.float32), 1)
    assert not held.has_changed()
    held.data[...] = 2
    assert held.has_changed()
    assert not held.has_changed_beside()
    held._memory[GUARD - 1 if place else -GUARD] ^= 1
    assert held.has_changed_beside()
    monkeypatch.setattr("guarded.SENTINEL", 0)
    with guarded_scratch(device, monkeypatch) as overrun:
        scratch = device.scratch.lease(100)
        monkeypatch.setattr("guarded.SENTINEL", 1)
        device.scratch.release(scratch)
    assert [words.split()[0] for words in overrun] == ["before", "after"]


@pytest.mark.parametrize("code", ["b1", "u1", "i2", "i4", "u8"])
@pytest.mark.parametrize("name", ["cpu_integer", "gpu_integer"])
def test_nothing_is_written_beside_a_product_of_integers(device, name, code, rng, monkeypatch):
    family, precision = BY_NAME[name], INTEGERS[code]
    skip_unsupported(device, family, precision)
    configs = list(family.candidates(device.traits, precision))[:2]
    if name == "cpu_integer":
        configs = near_extremes(device, family, precision)
    assert len(configs) > 1
    for config in configs[:1] if is_emulated(device, family) else configs:
        assert check_config(device, config, precision, rng, monkeypatch) == ""
