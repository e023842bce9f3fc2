"""Where a problem runs: on the device, or by the host's own BLAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from clgemm.problem import Gemm

SMALL_FLOPS = 2 * 64**3
"""Up to a 64-square product a launch costs more than SciPy's whole call, wherever measured."""


def route(problem: Gemm, wish: str) -> Literal["device", "host"]:
    """Choose for one problem.

    Parameters
    ----------
    problem : Gemm
        The problem.
    wish : str
        `settings.route()`: "device" or "host" decides.

    Returns
    -------
    {"device", "host"}
        If the wish is "auto", the host takes what is small.
    """
    if wish == "host":
        return "host"
    return "host" if wish == "auto" and problem.flops <= SMALL_FLOPS else "device"
