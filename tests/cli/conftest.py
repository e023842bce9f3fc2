"""What tests of the command line share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clgemm.runtime import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.runtime.device import Device


@pytest.fixture
def device(device: Device) -> Iterator[Device]:
    """Each device present, in use."""
    with registry.using(device):
        yield device
