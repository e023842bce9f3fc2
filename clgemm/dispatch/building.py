"""The kernels of a problem: a configuration, the plan under it, and what the driver makes of it.

A family whose kernels a driver refuses is used no more on that device, and the next one is asked.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.errors import BuildError
from clgemm.kernels import BY_NAME, LAST_RESORT
from clgemm.kernels.half import in_single, with_copies
from clgemm.kernels.mirror import where_it_pays
from clgemm.problem import HALF
from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.runtime.opencl_errors import is_transient

if TYPE_CHECKING:
    from clgemm.kernels.family import Config, Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.tuner import Parameters

log = logging.getLogger(__name__)

LONG_FLOPS = 4e9  # a second on a slow CPU; a tenth of a millisecond more does not matter here


def build(device: Device, parameters: Parameters, problem: Gemm, units: int) -> KernelRunner:
    """Build the plan of a problem, with the next family if a driver refuses the first one's.

    Parameters
    ----------
    device : Device
        Where it is to run.
    parameters : Parameters
        Of that device; a family that is refused is noted there.
    problem : Gemm
        The problem, with operands as they lie on the device.
    units : int
        How many compute units a call may use.

    Raises
    ------
    BuildError
        If the driver refuses the last family, too, or fails for a reason that may pass.
    NoKernelError
        If no family computes in the problem's type.
    """
    traits = within_limits(device.traits, units)
    while True:
        config, plan = _plan(traits, parameters, problem)
        try:
            with device.building():
                long = problem.flops >= LONG_FLOPS
                return KernelRunner(device, problem, plan, config=config, long=long)
        except BuildError as error:
            if config.family == LAST_RESORT.name or is_transient(error.__cause__):
                raise
            parameters.refused.add(config.family)
            log.warning("%s is not used on %s from here on: %s", config.family, device, error)


def is_built(device: Device, parameters: Parameters, problem: Gemm, units: int) -> bool:
    """Tell whether all kernels of a problem are built; see `build` for the parameters."""
    plan = _plan(within_limits(device.traits, units), parameters, problem)[1]
    return all(device.programs.is_built(step.kernel) for step in plan.steps)


def _plan(traits: DeviceTraits, parameters: Parameters, problem: Gemm) -> tuple[Config, Plan]:
    """Choose a configuration, and lay out the launches."""
    if problem.precision == HALF.code and parameters.claimed(problem) is None:
        config, plan = _plan(traits, parameters, in_single(problem))
        return config, with_copies(traits, problem, plan)
    problem = where_it_pays(traits, problem)
    config = parameters.config_for(problem)
    return config, BY_NAME[config.family].plan(traits, problem, config)


def within_limits(traits: DeviceTraits, units: int) -> DeviceTraits:
    """Return a device's facts with no more memory and compute units than the user allows it."""
    allowed = settings.device_memory_bytes()
    if allowed is None and units == traits.compute_units:
        return traits
    allowed = sys.maxsize if allowed is None else allowed
    return replace(
        traits,
        compute_units=units,
        global_memory=min(traits.global_memory, allowed),
        max_allocation=min(traits.max_allocation, allowed),
    )
