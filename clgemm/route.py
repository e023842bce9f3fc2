"""Where a problem runs: on the device, or by the host's own BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from clgemm import settings

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

SMALL_FLOPS = 2 * 64**3
"""Up to a 64-square product a launch costs more than SciPy's whole call, wherever measured."""


def route(traits: DeviceTraits, problem: Gemm, largest_bytes: int) -> Literal["device", "host"]:
    """Choose for one problem.

    Parameters
    ----------
    traits : DeviceTraits
        Of the device in use.
    problem : Gemm
        The problem.
    largest_bytes : int
        Memory of its largest operand.

    Returns
    -------
    {"device", "host"}
        ``CLGEMM_ROUTE`` decides if set; else the host takes what is small, and what the device
        cannot allocate.
    """
    wish = settings.route()
    if wish == "host":
        return "host"
    if largest_bytes > traits.max_allocation and not traits.system_svm:
        return "host"
    return "host" if wish == "auto" and problem.flops <= SMALL_FLOPS else "device"
