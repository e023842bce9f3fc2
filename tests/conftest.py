"""What all tests share: a cache directory of their own, no tuning, and every device present."""

from __future__ import annotations

import os
import shutil
import tempfile

import numpy as np
import pytest

# Before clgemm reads them: tests must neither use nor change the user's own cache, must not depend
# on timings, and must reach the device with matrices small enough to check thoroughly.
os.environ["CLGEMM_CACHE_DIR"] = tempfile.mkdtemp(prefix="clgemm-tests-")
os.environ.setdefault("CLGEMM_TUNE", "off")
os.environ.setdefault("CLGEMM_ROUTE", "device")
os.environ["CLGEMM_SHIPPED"] = "off"  # what ships for this machine's device would be found

from clgemm import settings
from clgemm.runtime import device as sessions
from clgemm.runtime import devices
from clgemm.runtime.choice import wanted


def pytest_unconfigure() -> None:
    """Remove the cache directory of this run."""
    shutil.rmtree(os.environ["CLGEMM_CACHE_DIR"], ignore_errors=True)


def working_devices() -> list[devices.Found]:
    """List the devices that tests run on: all that work, or those that CLGEMM_DEVICE names."""
    return [f for f in wanted(devices.find(), settings.device()) if not devices.works(f.device)]


DEVICES = working_devices()


@pytest.fixture(params=DEVICES, ids=lambda found: found.traits.platform.split()[0])
def session(request: pytest.FixtureRequest) -> sessions.Session:
    """Give a session on each device present, in turn."""
    return sessions.open_session(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(42)
