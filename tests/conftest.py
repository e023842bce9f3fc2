"""What all tests share: a cache directory of their own, no tuning, and every device present."""

# ruff: noqa: E402 - what is imported reads the environment, which is cleared first

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING, Any

# Before NumPy, SciPy and clgemm read them: what a test expects must not depend on how the host's
# BLAS or clgemm are set up for other programs.  CLGEMM_DEVICE alone says where the tests run.
SETTINGS = ("CLGEMM_", "OPENBLAS_", "GOTO_", "OMP_", "MKL_", "BLIS_", "VECLIB_")
for _name in [x for x in os.environ if x.startswith(SETTINGS) and x != "CLGEMM_DEVICE"]:
    del os.environ[_name]

import numpy as np
import pytest

# Tests must neither use nor change the user's own cache, must not depend on timings, and must reach
# the device with matrices small enough to check thoroughly.
os.environ["CLGEMM_CACHE_DIR"] = tempfile.mkdtemp(prefix="clgemm-tests-")
os.environ["CLGEMM_TUNE"] = "off"
os.environ["CLGEMM_ROUTE"] = "device"
os.environ["CLGEMM_SHIPPED"] = "off"  # what ships for this machine's device would be found
from interposing import client, originals, paths, restored  # noqa: F401 - fixtures
from present import DEVICES

from clgemm.dispatch import engines
from clgemm.kernels import FAMILIES
from clgemm.problem import ELEMENTS
from clgemm.runtime import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clgemm.kernels.family import KernelFamily
    from clgemm.traits import DeviceTraits


def pytest_configure() -> None:
    """Hear Ctrl-C, which tests press, and their other signals, and let child processes hear them.

    A shell has what it starts in the background ignore Ctrl-C, and some runners block it.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Remove the cache directory of this run."""
    shutil.rmtree(os.environ["CLGEMM_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_computed_before() -> None:
    """Let no product be like one of an earlier test."""
    known = engines.opened()
    if known is not None:
        known.repeated.clear()
    registry.changed()


def runs(family: KernelFamily, traits: DeviceTraits, codes: Iterable[str] = ELEMENTS) -> bool:
    """Tell whether a device can run a family in one of some element types."""
    return any(family.supports(traits, ELEMENTS[code]) for code in codes)


def pytest_report_header() -> list[str]:
    """Name the devices that tests run on, and what no test can run on them."""
    lines = []
    for found in DEVICES:
        missing = [family.name for family in FAMILIES if not runs(family, found.traits)]
        without = f", without {', '.join(missing)}" if missing else ""
        lines.append(f"device: {found.traits.describe()}{without}")
    return lines or ["device: none that works"]


def why_not(item: pytest.Item) -> str | None:
    """Say why the device of a test's row cannot run it; None if it can.

    A row is run by a family: that of its parameter `family`, or one of those that the marker
    `families` names, in the precision of its parameter `code`.
    """
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    if "device" not in params:
        return None
    traits, codes = params["device"].traits, params.get("code", "sdcz")
    codes = [codes] if codes in ELEMENTS else codes
    marker = item.get_closest_marker("families")
    names = marker.args if marker else [params["family"].name] if "family" in params else []
    if not names or any(runs(f, traits, codes) for f in FAMILIES if f.name in names):
        return None
    return f"{' and '.join(names)} cannot run on {traits.describe()}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a device, and leave out the rows that their device cannot run.

    If those are all rows of a test, one stays, and is skipped.
    """
    for item in items:
        if "device" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.device)
    able = {item.nodeid.split("[")[0] for item in items if why_not(item) is None}
    kept, left_out = [], []
    for item in items:
        why, name = why_not(item), item.nodeid.split("[")[0]
        if why is None:
            kept.append(item)
        elif name in able:
            left_out.append(item)
        else:
            able.add(name)
            item.add_marker(pytest.mark.skip(reason=why))
            kept.append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(params=DEVICES, ids=lambda found: found.traits.platform.split()[0])
def device(request: pytest.FixtureRequest) -> registry.Device:
    """Give a device on each device present, in turn."""
    return registry.open_device(request.param)


@pytest.fixture
def in_use(device: registry.Device) -> Iterator[registry.Device]:
    """Give a device on each device present, in turn, which public calls use."""
    with registry.using(device):
        yield device


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(42)
