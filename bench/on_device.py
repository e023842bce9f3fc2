"""What the benches of devices share: operands that stay on a device, checked and timed there.

clgemm has no interface for device arrays yet, so this goes below its faces: a problem, a
configuration, a plan, its launches.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import SLOTS
from clgemm.problem import PRECISIONS, Gemm
from clgemm.runtime.kernel_runner import slots
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config
    from clgemm.runtime.device import Device

BLOCK_SECONDS = 0.02  # of runs between two looks at the clock: launching is hidden behind running
SAMPLED = 48  # rows and columns of a result that are checked
ALPHA, BETA = 1.0, 0.0


def problem(code: str, m: int, n: int, k: int, ops: str = "NN") -> Gemm:
    """Describe a product of dense column-major matrices in device memory."""
    heights = m if ops[0] == "N" else k, k if ops[1] == "N" else n
    return Gemm(
        code, m, n, k, 1,
        ops[0] != "N", False, heights[0], 0,
        ops[1] != "N", False, heights[1], 0,
        m, 0, False, aligned=True,
    )  # fmt: skip


def normal(precision: str, count: int, seed: int) -> NDArray[Any]:
    """Return `count` normally distributed elements."""
    p, rng = PRECISIONS[precision], np.random.default_rng(seed)
    reals = count * (2 if p.is_complex else 1)
    real_type: Any = np.float32 if p.real == "float" else np.float64
    return rng.standard_normal(reals, dtype=real_type).view(p.dtype)


class Operands:
    """Elements on the host and on the device, of which many problems take the first ones.

    Parameters
    ----------
    device : Device
        The device.
    a, b : ndarray
        Flat; what op(A) and op(B) are made of, in column-major order.
    """

    def __init__(self, device: Device, a: NDArray[Any], b: NDArray[Any]) -> None:
        self.a, self.b = a, b
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        self.buffers = [cl.Buffer(device.context, flags, hostbuf=x) for x in (a, b)]


class Resident:
    """Both operands and the result of one problem on a device.

    Parameters
    ----------
    device : Device
        The device.
    g : Gemm
        A dense problem.
    operands : Operands
        At least as many elements as the problem takes.
    """

    def __init__(self, device: Device, g: Gemm, operands: Operands) -> None:
        self.g = g
        self._device = device
        self._a, self._b = operands.a[: g.m * g.k], operands.b[: g.k * g.n]
        self._scratch: Any = None
        self._kept: list[dict[str, Any]] = []
        self._c = np.empty(g.m * g.n, operands.a.dtype)
        c = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, self._c.nbytes)
        self.buffers = [*operands.buffers, c]

    def launches(self, config: Config, *, whole: bool = False) -> Callable[[], None]:
        """Build a configuration's kernels and return what enqueues them.

        `whole` plans as if the device had one compute unit, so that nothing is cut finer.
        """
        device, traits = self._device, self._device.traits
        if whole:
            traits = replace(traits, compute_units=1)
        plan = BY_NAME[config.family].plan(traits, self.g, config)
        values: dict[str, Any] = dict(
            zip(SLOTS, slots(self.g, ALPHA, BETA, *self.buffers), strict=False)
        )
        if plan.scratch_bytes:
            if self._scratch is None or self._scratch.size < plan.scratch_bytes:
                flags = cl.mem_flags.READ_WRITE
                self._scratch = cl.Buffer(device.context, flags, plan.scratch_bytes)
            values["scratch"] = self._scratch
        if plan.counts:  # such a plan needs a fresh counter a run
            return lambda: self._run_counting(plan, values)
        ready = []
        for step in plan.steps:
            # A kernel object of its own keeps its arguments; two steps may share a kernel.
            kernel = device.programs.another_kernel(step.kernel)
            kernel.set_args(*(values[x] if isinstance(x, str) else x for x in step.args))
            ready.append((kernel, step.global_size, step.local_size))

        def enqueue() -> None:
            for launch in ready:
                cl.enqueue_nd_range_kernel(device.queue, *launch)

        self._kept.append(values)  # OpenCL does not keep what kernels have as arguments
        return enqueue

    def _run_counting(self, plan: Any, values: dict[str, Any]) -> None:
        values["counters"], values["cell"] = self._device.workspace.counter()
        for step in plan.steps:
            kernel = self._device.programs.kernel(step.kernel)
            kernel.set_args(*(values[x] if isinstance(x, str) else x for x in step.args))
            cl.enqueue_nd_range_kernel(
                self._device.queue, kernel, step.global_size, step.local_size
            )

    def finish(self) -> None:
        """Wait for what was enqueued."""
        self._device.queue.finish()

    def error(self, enqueue: Callable[[], None], before: float = np.nan) -> float:
        """Run once over a result full of NaN; return the largest sampled error over its bound.

        The bound is the a-priori one of a sum of k products, (k + 8) eps |A||B|.
        """
        queue = self._device.queue
        cl.enqueue_fill_buffer(
            queue, self.buffers[2], np.array(before, self._c.dtype), 0, self._c.nbytes
        )
        enqueue()
        cl.enqueue_copy(queue, self._c, self.buffers[2])
        queue.finish()
        return self.error_of(self._c)

    def error_of(self, flat: NDArray[Any]) -> float:
        """Compare a column-major result; NaN anywhere counts as infinite."""
        g = self.g
        if np.isnan(flat).any():
            return float("inf")
        rng = np.random.default_rng(5)
        rows = np.unique(np.append(rng.integers(0, g.m, SAMPLED), (0, g.m - 1)))
        columns = np.unique(np.append(rng.integers(0, g.n, SAMPLED), (0, g.n - 1)))
        a = self._a.reshape((g.m, g.k) if g.trans_a else (g.k, g.m))
        b = self._b.reshape((g.k, g.n) if g.trans_b else (g.n, g.k))
        wide = np.complex128 if np.iscomplexobj(a) else np.float64
        left = (a[rows] if g.trans_a else a[:, rows].T).astype(wide)
        right = (b[:, columns] if g.trans_b else b[columns].T).astype(wide)
        got = flat.reshape(g.n, g.m)[np.ix_(columns, rows)].T
        bound = (g.k + 8) * PRECISIONS[g.precision].eps * (np.abs(left) @ np.abs(right))
        with np.errstate(invalid="ignore", divide="ignore"):
            worst = np.max(np.abs(got - left @ right) / bound)
        return float(worst)


def repeats(run: Callable[[], None], finish: Callable[[], None]) -> int:
    """Count the runs that fill a block."""
    run()
    finish()
    start = time.perf_counter()
    run()
    finish()
    return max(1, min(400, round(BLOCK_SECONDS / (time.perf_counter() - start))))


def block(run: Callable[[], None], finish: Callable[[], None], times: int) -> float:
    """Time a block of runs that follow each other on the device; give the seconds of one.

    Runs before it take what the device needs to turn from another program's work, clocks included.
    """
    for _ in range(max(1, times // 4)):
        run()
    finish()
    start = time.perf_counter()
    for _ in range(times):
        run()
    finish()
    return (time.perf_counter() - start) / times


def side_by_side(
    runs: dict[str, tuple[Callable[[], None], Callable[[], None]]], rounds: int
) -> dict[str, float]:
    """Time several ways to do the same in alternating blocks; give the median of each, in seconds.

    Parameters
    ----------
    runs : dict
        What enqueues a run and what waits for all of them, by name.
    rounds : int
        Blocks of each.
    """
    times = {name: repeats(*run) for name, run in runs.items()}
    blocks: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for _ in range(rounds):
        for name in order:
            blocks[name].append(block(*runs[name], times[name]))
        order.reverse()  # so that nobody always follows the one that heats the device most
    return {name: statistics.median(seconds) for name, seconds in blocks.items()}
