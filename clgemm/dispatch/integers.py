"""Where products of integers and of bool run: NumPy has a loop for them, and no BLAS.

NumPy's loop does one multiply-add after the other, on one core, so that little has to be known of
either side: what a launch costs, and how much of the kernels' vectors and micro-tiles a product
fills.  Where both sides come near each other, `trial` settles it.

The loop for bool ends each sum at its first true product, and the kernels end at a slice of them.
The device is believed to be faster only if it is where all are true; trials do not tell, since the
next call's values may be others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgemm.dispatch.route import DEVICE, HOST, Route
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import round_up
from clgemm.problem import INTEGERS

if TYPE_CHECKING:
    from clgemm.problem import Gemm
    from clgemm.traits import DeviceTraits

MOST_SMALL = 36**3
"""Multiply-adds of NumPy's up to which a launch takes as long, wherever measured."""
HOST_SECONDS = 0.42e-9  # a multiply-add of NumPy's with operands in the cache, on a Zen 5
HOST_TRUE_SECONDS = 0.5e-9  # a sum of bool that ends at once
LAUNCH_SECONDS = 25e-6  # a call on the device, up to 40 on PoCL
VECTOR_SECONDS = 0.3e-9  # a vector's multiply-add on one core, twice what is measured
VECTOR_TRUE_SECONDS = 0.15e-9  # of bool
PACK_SECONDS = 0.4e-9  # an element that is packed by one core
GAIN = 0.8  # of the host's time, that the device may take: both predictions err

COPYING_SECONDS = 100e-6  # a call with copies, all but what the bytes take: an H200
BUS_RATE = 9e9  # bytes a second, copied by the driver from where they lie: the same
UNIT_RATE = 20e9  # multiply-adds a second of a compute unit, by plain integer instructions


def route_integers(traits: DeviceTraits, g: Gemm, wanted: str) -> Route:
    """Choose for one problem of integers or bool; see `route.route`.

    `wanted` other than "auto" decides, but what no kernel computes is NumPy's.
    """
    if traits.kind not in {"cpu", "gpu"}:
        return Route(HOST, "integers are computed on CPUs and GPUs, and by NumPy")
    if wanted in {HOST, DEVICE}:
        return Route(HOST if wanted == HOST else DEVICE, f"CLGEMM_ROUTE={wanted}")
    predict = _seconds_of_cpu if traits.kind == "cpu" else _seconds_of_gpu
    host, device = _host_seconds(g), predict(traits, g)
    if device <= GAIN * host:
        return Route(DEVICE, "the device is faster than NumPy's loop", host, device)
    return Route(HOST, "NumPy's loop takes less time than a launch", host, device)


def _host_seconds(g: Gemm) -> float:
    """Predict the least time of NumPy's loop."""
    elements = g.m * g.n * g.batch
    if INTEGERS[g.precision].dtype == bool:
        return elements * HOST_TRUE_SECONDS
    return elements * g.k * HOST_SECONDS


def _seconds_of_gpu(traits: DeviceTraits, g: Gemm) -> float:
    """Predict the device: mostly the bus."""
    copied = 0.0 if traits.unified_memory else g.operand_bytes / BUS_RATE
    return COPYING_SECONDS + copied + g.m * g.n * g.k * g.batch / (UNIT_RATE * traits.compute_units)


def _seconds_of_cpu(traits: DeviceTraits, g: Gemm) -> float:
    """Predict the device: vectors and micro-tiles are computed whole, and each matrix is packed."""
    precision, k, each = INTEGERS[g.precision], g.k, VECTOR_SECONDS
    config = BY_NAME["cpu_integer"].default(traits, precision)
    if precision.dtype == bool:
        k, each = min(k, config["KC"]), VECTOR_TRUE_SECONDS
    vectors = -(-g.m // config["VW"]) * round_up(g.n, config["NR"]) * k * g.batch
    packed = (g.m + g.n) * k * g.batch
    units = min(traits.compute_units, g.batch * -(-g.m * g.n // (config["VW"] * config["NR"])))
    return LAUNCH_SECONDS + (vectors * each + packed * PACK_SECONDS) / units
