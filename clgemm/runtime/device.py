"""One device in use: context, queue, programs, memory.

Threads share a device.  Its queue runs in order, so launches of different threads follow each
other; `Device.lock` covers what must stay together (arguments, then launch).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from clgemm.errors import DeviceError
from clgemm.kernels import LAST_RESORT
from clgemm.runtime import opencl, worker_threads
from clgemm.runtime.memory import DeviceMemory
from clgemm.runtime.opencl import cl
from clgemm.runtime.opencl_errors import translated
from clgemm.runtime.programs import Programs
from clgemm.runtime.reentry import CheckedLock
from clgemm.runtime.scratch import ScratchPool

if TYPE_CHECKING:
    from collections.abc import Hashable

    from clgemm.problem import Precision
    from clgemm.runtime import devices
    from clgemm.runtime.binaries import Binaries


class Device:
    """A device that calls run on.

    Parameters
    ----------
    found : devices.Found
        The device and its traits.
    reason : str
        Why this device was chosen, in words.
    binaries : Binaries, optional
        Where its programs are kept between processes.
    context : cl.Context, optional
        A context of the caller's to work in; one of its own by default.
    """

    def __init__(
        self,
        found: devices.Found,
        reason: str,
        binaries: Binaries | None = None,
        context: cl.Context | None = None,
    ) -> None:
        self.traits = found.traits
        self.reason = reason
        self.cl: Any = opencl.load()
        """pyopencl itself: looked up once, the path of a call is short."""
        self.lock = threading.RLock()
        """Held from setting arguments until the launch."""
        self.building = CheckedLock()
        """Held while kernels are built."""
        try:
            self.context = context or cl.Context([found.device])
            self.queue = cl.CommandQueue(self.context)
        except cl.Error as error:
            raise translated(error, f"opening {self}") from error
        self.worker_threads = worker_threads.of_platform(self.traits.platform)
        """What has a CPU's threads leave the core of whoever computes."""
        self.programs = Programs(self.context, self.traits, binaries)
        self.running: list[None] = []
        """One entry for each call that is on the device now."""
        self.scratch = ScratchPool(self.context, system_svm=self.traits.system_svm)
        self.memory = DeviceMemory(self.context, self.traits.max_allocation)
        """Device memory of calls that copy."""
        self.repeated: dict[Hashable, Any] = {}
        """What computes plain products of a kind again: see `api.repeated`.  It is here to be found
        in few steps: after a pause of the program each takes a microsecond."""

    def __str__(self) -> str:
        return self.traits.describe()

    def require(self, precision: Precision) -> None:
        """Refuse a precision that the device does not have.

        Raises
        ------
        DeviceError
            For double precision on a device without cl_khr_fp64, and for one that no kernel has.
        """
        if not self.traits.has(precision):
            raise DeviceError(
                f"{precision.code}gemm: {self.traits.describe()} has no double precision "
                "(cl_khr_fp64); set CLGEMM_DEVICE to a device that has, or use float32 or complex64"
            )
        if not LAST_RESORT.supports(self.traits, precision):
            raise DeviceError(
                f"{precision.code}gemm: no kernel computes in {precision.real}: convert the "
                "operands, or set CLGEMM_ROUTE=host"
            )
