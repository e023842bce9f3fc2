"""The floor of a CPU device, and how close the micro-kernel of cpu_packed comes to it.

    python bench/bench_micro.py [--precisions sdcz]

The probe keeps independent vector FMAs in registers: no memory at all.  The micro-kernel runs on
panels that stay in cache, all compute units at once, as it does inside a product.  A processor that
multiplies for long slows down, so the probe also runs directly after products, and the rate of the
last of these is compared with that.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import environment
import numpy as np

import clgemm
from clgemm import settings
from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME, source
from clgemm.kernels.cpu_packed.family import PLANNED, WIDE_BYTES
from clgemm.kernels.family import GEMM_SIGNATURE, Config
from clgemm.problem import PRECISIONS, Precision
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.runtime.device import Device

PROBE = """
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void fma_probe(__global REAL *out, int repeats)
{
    REALV x[CHAINS];
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        x[i] = (REALV)(out[i]);
    const REALV a = (REALV)(out[0]), b = (REALV)(out[1]);
    for (int r = 0; r < repeats; r++)
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            x[i] = fma(x[i], a, b);
    REALV sum = (REALV)(0);
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum += x[i];
    VSTORE(sum, out + 64 + get_group_id(0) * 64);
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void micro_only(__global REAL *scratch, long stride, int kp, int panels, int repeats)
{
    __global REAL *bp = scratch + get_group_id(0) * stride;
    __global REAL *ap = bp + (long)NR * kp * CE;
    __global ELEM *c = (__global ELEM *)(ap + (long)panels * MR * kp * CE);
    for (int r = 0; r < repeats; r++)
        for (int i = 0; i < panels; i++)
            micro_kernel(kp, ap + (long)i * MR * kp * CE, MR * CE, bp, NR * CE, CE, c, MR, MR, NR,
                         (ELEM)(ONE), 0, 0, (ELEM)(ONE), BETA_ONE);
}
"""
CHAINS, WIDE_CHAINS = 12, 24
"""Of FMAs, more than latency times throughput of the units, fewer than the registers: AVX2 has 16,
AVX-512 32."""
KP, PANELS = 384, 8
SIDE, PRODUCTS, ROUNDS = 2048, 10, 5  # of products before the probe, which take long enough


class Rates(NamedTuple):
    """What was measured, in GFLOP/s."""

    probe: float
    micro: float
    product: float
    """The last of some products."""
    probe_after: float
    """The probe directly after them."""


def rates(device: Device, precision: Precision, config: Config) -> Rates:
    """Measure all of them."""
    family, units = BY_NAME["cpu_packed"], device.traits.compute_units
    defines = {k: v for k, v in config.params if k not in PLANNED} | {"PACK_B": 1}
    spec = family.spec("", precision, Config.of(family.name, defines), GEMM_SIGNATURE)
    chains = WIDE_CHAINS if device.traits.simd_bytes >= WIDE_BYTES else CHAINS
    text = f"{source.text(spec)}\n#define CHAINS {chains}\n{PROBE}"
    program = opencl.build(device.context, text)
    ce = 2 if precision.is_complex else 1
    mr, nr, vw = config["MR"], config["NR"], config["VW"]
    stride = ce * (nr * KP + PANELS * mr * KP + mr * nr) + 64
    memory = cl.Buffer(
        device.context, cl.mem_flags.READ_WRITE, units * stride * precision.real_bytes + 65536
    )
    cl.enqueue_fill_buffer(device.queue, memory, np.zeros(1, np.float32), 0, memory.size // 4 * 4)
    probe = opencl.make_kernel(program, "fma_probe")
    micro = opencl.make_kernel(program, "micro_only")
    probe_repeats = 2_000_000
    flops_probe = 2.0 * chains * vw * probe_repeats * units
    flops_micro = 2.0 * (4 if ce == 2 else 1) * mr * nr * KP * PANELS * units
    repeats = max(1, int(5e9 / flops_micro))
    probe.set_args(memory, np.int32(probe_repeats))
    counts = (np.int32(x) for x in (KP, PANELS, repeats))
    micro.set_args(memory, np.int64(stride), *counts)

    def run(kernel: cl.Kernel) -> None:
        cl.enqueue_nd_range_kernel(device.queue, kernel, (units,), (1,)).wait()

    times = timing.side_by_side({"probe": lambda: run(probe), "micro": lambda: run(micro)})
    product, after = loaded(precision, lambda: run(probe))
    return Rates(
        flops_probe / times["probe"].best / 1e9,
        flops_micro * repeats / times["micro"].median / 1e9,
        2.0 * precision.multiplications * SIDE**3 / product / 1e9,
        flops_probe / after / 1e9,
    )


def loaded(precision: Precision, probe: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of a product after others, and of the probe directly after it."""
    random = np.random.default_rng(SIDE)
    a, b = (random.standard_normal((SIDE, SIDE)).astype(precision.dtype) for _ in range(2))
    found = []
    with settings.using(route="device"):
        for _ in range(ROUNDS):
            for _ in range(PRODUCTS):
                clgemm.matmul(a, b)
            begun = time.perf_counter()
            clgemm.matmul(a, b)
            ended = time.perf_counter()
            probe()
            found.append((ended - begun, time.perf_counter() - ended))
    product, after = np.median(found, axis=0)
    return float(product), float(after)


def main() -> int:
    """Print a line for each precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precisions", default="sdcz")
    arguments = parser.parse_args()
    device = environment.device_in_use()
    if device.traits.kind != "cpu":
        raise SystemExit("the device in use is no CPU; set CLGEMM_DEVICE")
    parameters = engines.of(device).parameters
    print(environment.text(environment.facts(device)))
    print("GFLOP/s")
    heads = "FMA probe", "micro-kernel", "share", f"{SIDE}^3", "FMA probe after it", "share"
    print(f"{heads[0]:>11}{heads[1]:>14}{heads[2]:>7}{heads[3]:>8}{heads[4]:>20}{heads[5]:>7}")
    for code in arguments.precisions:
        precision = PRECISIONS[code]
        config = parameters.of(code).configs[0]
        found = rates(device, precision, config)
        print(
            f"{code:2}{found.probe:9.1f}{found.micro:14.1f}{found.micro / found.probe:7.1%}"
            f"{found.product:8.1f}{found.probe_after:20.1f}{found.product / found.probe_after:7.1%}"
            f"  {config}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
