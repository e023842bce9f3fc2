"""What a device can run of a family, and in a time that a test may take."""

from __future__ import annotations

import pytest

from clgemm.kernels import FAMILIES
from clgemm.kernels.family import Config

# A complex kernel of these takes half a second to build for a CPU, for each pair of operations; one
# of batched in any precision, and it computes there at a fraction of a GPU's rate.
FAMILIES_AND_CODES = pytest.mark.parametrize(("family", "code"), [
    pytest.param(family, code, id=f"{family.name}-{code}", marks=[pytest.mark.slow] * is_long)
    for family in FAMILIES
    for code in "sdcz"
    for is_long in [
        family.name == "batched" or (family.name in {"gpu_tiled", "gemv"} and code in "cz")
    ]
])  # fmt: skip


def skip_unsupported(device, family, precision):
    if not family.supports(device.traits, precision):
        pytest.skip(
            f"{family.name} does not support {precision.code} on {device.traits.describe()}"
        )


def is_slow_to_build(device, family):
    """Tell whether large micro-tiles take seconds to build on a device that nobody uses them on."""
    return family.name == "gpu_tiled" and device.traits.kind == "cpu"


def is_emulated(device, family):
    """Tell whether kernels that work-groups of a GPU share run on a CPU, at a fraction of it."""
    return device.traits.kind == "cpu" and family.name in {"gpu_tiled", "batched"}


def affordable(device, family, precision):
    """Give the default, or small tiles that build in a tenth of the time."""
    config = family.default(device.traits, precision)
    if not is_slow_to_build(device, family):
        return config
    tile = {"MC": 32, "NC": 32, "KC": 8, "MR": 4, "NR": 4}
    return Config.of(family.name, dict(config.params) | tile)
