"""How long launches took by the device's own clock."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clgemm.runtime.device import Device

log = logging.getLogger(__name__)

NANOSECOND = 1e-9


def enable(device: Device) -> bool:
    """Give a device a queue whose launches are timed; False where the driver refuses one.

    Only for devices that nothing else uses yet: what other threads enqueued stays on the old one.
    """
    try:
        device.queue = cl.CommandQueue(
            device.context, properties=cl.command_queue_properties.PROFILING_ENABLE
        )
    except cl.Error as error:
        log.info("%s times no launches: %s", device, error)
        return False
    return True


def seconds(events: Sequence[cl.Event]) -> float:
    """Return the seconds from the start of the first launch to the end of the last one.

    NaN where the driver has no times for them.
    """
    try:
        ticks = events[-1].profile.end - events[0].profile.start
    except (cl.Error, IndexError) as error:
        log.info("no times of launches: %s", error)
        return float("nan")
    return float(ticks * NANOSECOND)
