"""The floor of a CPU device, and how close the micro-kernel of cpu_packed comes to it.

    python bench/bench_micro.py [--precisions sdcz]

The probe keeps independent vector FMAs in registers: no memory at all.  The micro-kernel runs on
panels that stay in cache, all compute units at once, as it does inside a product.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import environment
import numpy as np

from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME, source
from clgemm.kernels.cpu_packed.family import PLANNED
from clgemm.kernels.family import GEMM_SIGNATURE, Config
from clgemm.problem import PRECISIONS, Precision
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from clgemm.runtime.device import Device

PROBE = """
#define CHAINS 24  // more than latency times throughput of any FMA unit, fewer than the registers
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
KP, PANELS = 384, 8


def rates(device: Device, precision: Precision, config: Config) -> tuple[float, float]:
    """Measure both, in GFLOP/s."""
    family, units = BY_NAME["cpu_packed"], device.traits.compute_units
    defines = {k: v for k, v in config.params if k not in PLANNED} | {"PACK_B": 1}
    spec = family.spec("", precision, Config.of(family.name, defines), GEMM_SIGNATURE)
    program = opencl.build(device.context, source.text(spec) + PROBE)
    ce = 2 if precision.is_complex else 1
    mr, nr, vw = config["MR"], config["NR"], config["VW"]
    stride = ce * (nr * KP + PANELS * mr * KP + mr * nr) + 64
    memory = cl.Buffer(
        device.context, cl.mem_flags.READ_WRITE, units * stride * precision.real_bytes + 65536
    )
    cl.enqueue_fill_buffer(device.queue, memory, np.zeros(1, np.float32), 0, memory.size // 4 * 4)
    probe = opencl.make_kernel(program, "fma_probe")
    micro = opencl.make_kernel(program, "micro_only")
    chains = 24
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
    return (
        flops_probe / times["probe"].best / 1e9,
        flops_micro * repeats / times["micro"].median / 1e9,
    )


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
    print(f"{'':6}{'FMA probe':>12}{'micro-kernel':>14}{'share':>8}")
    for code in arguments.precisions:
        precision = PRECISIONS[code]
        config = parameters.of(code).configs[0]
        peak, rate = rates(device, precision, config)
        print(f"{code:6}{peak:12.1f}{rate:14.1f}{100 * rate / peak:7.1f}%  {config}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
