"""What a card can do at most, measured: multiply-adds, tensor cores, copies, clocks under load."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import alternating
import numpy as np

from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from clgemm.runtime.device import Device

PROBE = """
#if IS_DOUBLE
typedef double REAL;
#else
typedef float REAL;
#endif
__kernel void fma_probe(__global REAL *x, int repeats)
{
    REAL r[16];
    const REAL a = x[0], b = x[1];
    for (int i = 0; i < 16; i++)
        r[i] = x[i] + get_global_id(0);
    for (int t = 0; t < repeats; t++)
        for (int i = 0; i < 16; i++)
            r[i] = fma(r[i], a, b);
    REAL sum = 0;
    for (int i = 0; i < 16; i++)
        sum += r[i];
    if (sum == (REAL)(-1))
        x[2] = sum;
}
__kernel void copy(__global const float4 *x, __global float4 *y)
{
    y[get_global_id(0)] = x[get_global_id(0)];
}
"""
# Products of 16 x 8 x 4 (compute capability 9.0) or 8 x 8 x 4 (8.0) doubles, eight at a time.
TENSOR_PROBE = """
__kernel void tensor_probe(__global double *x, int repeats)
{
    double c[8][4];
    const double a = x[0], b = x[1];
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++)
            c[i][j] = x[i] + j;
    for (int t = 0; t < repeats; t++)
#pragma unroll
        for (int i = 0; i < 8; i++)
#if WIDE
            asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},"
                         "{%4,%5},{%6},{%0,%1,%2,%3};"
                         : "+d"(c[i][0]), "+d"(c[i][1]), "+d"(c[i][2]), "+d"(c[i][3])
                         : "d"(a), "d"(b), "d"(a));
#else
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},"
                         "{%2},{%3},{%0,%1};"
                         : "+d"(c[i][0]), "+d"(c[i][1]) : "d"(a), "d"(b));
#endif
    double sum = 0;
    for (int i = 0; i < 8; i++)
        sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    if (sum == -1)
        x[2] = sum;
}
"""
REPEATS, ITEMS, GROUPS = 2048, 256, 16  # of a probe: repeats, work-items a group, groups a unit
COPY_BYTES = 1 << 30
SMI = "clocks.sm,power.draw,power.limit,temperature.gpu"


def smi() -> dict[str, str]:
    """Ask nvidia-smi for clocks, power and its cap, temperature; empty where it is absent."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return {}
    answer = subprocess.run(
        [path, f"--query-gpu={SMI}", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    values = answer.stdout.splitlines()[0].split(", ") if answer.stdout else []
    return dict(zip(SMI.split(","), values, strict=False))


def limits(device: Device) -> dict[str, float]:
    """Measure the rates of FMA units, of fp64 tensor cores and of copies, by OpenCL."""
    found: dict[str, float] = {}
    nbytes = min(COPY_BYTES, device.traits.max_allocation // 4 // 4096 * 4096)
    memory = [cl.Buffer(device.context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2)]
    for x in memory:
        cl.enqueue_fill_buffer(device.queue, x, np.array(0.5, np.float32), 0, nbytes)
    size = device.traits.compute_units * GROUPS * ITEMS
    for code in "sd":
        double = PRECISIONS[code].is_double
        if not device.traits.has(PRECISIONS[code]):
            continue
        text = f"#define IS_DOUBLE {int(double)}\n{PROBE}"
        seconds = _probe(device, text, "fma_probe", memory[0], size)
        found[f"FMA fp{64 if double else 32} TFLOP/s"] = 2 * 16 * REPEATS * size / seconds / 1e12
    capability = device.traits.compute_capability
    if capability in {(8, 0), (9, 0)}:
        wide = int(capability == (9, 0))
        text = f"#define WIDE {wide}\n{TENSOR_PROBE}"
        seconds = _probe(device, text, "tensor_probe", memory[0], size)
        flops = 8 * REPEATS * (size // 32) * 2 * (16 if wide else 8) * 8 * 4
        found["tensor fp64 TFLOP/s"] = flops / seconds / 1e12
    text = f"#define IS_DOUBLE 0\n{PROBE}"
    copy = opencl.make_kernel(opencl.build(device.context, text), "copy")
    copy.set_args(*memory)
    found["copy GB/s"] = 2 * nbytes / _timed(device, copy, nbytes // 16) / 1e9
    return found


def under_load(way: alternating.Way) -> dict[str, str]:
    """Ask nvidia-smi while the card works for a second."""
    answers: list[dict[str, str]] = []

    def ask() -> None:
        time.sleep(0.7)
        answers.append(smi())

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        for _ in range(4):
            way.run()
        way.finish()
    return answers[0]


def _probe(device: Device, text: str, name: str, memory: cl.Buffer, size: int) -> float:
    probe = opencl.make_kernel(opencl.build(device.context, text), name)
    probe.set_args(memory, np.int32(REPEATS))
    return _timed(device, probe, size)


def _timed(device: Device, kernel: cl.Kernel, size: int) -> float:
    def run() -> None:
        cl.enqueue_nd_range_kernel(device.queue, kernel, (size,), (ITEMS,))

    way = alternating.Way(run, device.queue.finish)
    return alternating.throughput({"": way}, 5)[""]
