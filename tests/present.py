"""The devices that tests run on: `conftest` imports this once the environment is cleared."""

from __future__ import annotations

from clgemm import settings
from clgemm.runtime import devices
from clgemm.runtime.choice import wanted


def working_devices() -> list[devices.Found]:
    """List all devices that work, or those that CLGEMM_DEVICE names.

    A platform of that name comes first: "intel" is Intel's runtime, not every one of an Intel CPU.
    """
    wish = settings.device()
    named = [f for f in wanted(devices.find(), wish) if not devices.works(f.device)]
    platforms = [f for f in named if wish.lower() in f.traits.platform.lower()]
    return platforms or named


DEVICES = working_devices()
