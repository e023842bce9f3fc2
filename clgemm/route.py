"""Where a problem runs: on the device, or by the host's own BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

SMALL_FLOPS = 2 * 64**3
"""Up to a 64-square product a launch costs more than SciPy's whole call, wherever measured."""


def route(traits: DeviceTraits, problem: Gemm, wish: str) -> Literal["device", "host"]:
    """Choose for one problem.

    Parameters
    ----------
    traits : DeviceTraits
        Of the device in use.
    problem : Gemm
        The problem, with the layouts it will have on the device.
    wish : str
        `settings.route()`: "device" or "host" decides.

    Returns
    -------
    {"device", "host"}
        If the wish is "auto", the host takes what is small; in any case what the device cannot
        allocate.
    """
    if wish == "host":
        return "host"
    if problem.largest_bytes > traits.max_allocation and not traits.system_svm:
        return "host"
    return "host" if wish == "auto" and problem.flops <= SMALL_FLOPS else "device"
