"""Arrays on a device, and their product as a user asks for it: what benches of devices share."""

from __future__ import annotations

import statistics
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

import clgemm
from clgemm.dispatch import engines
from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SAMPLED = 48  # rows and columns of a result that are checked
KERNEL_SECONDS = 0.03  # of kernels whose times are read from the device
LEAST_CALLS, MOST_CALLS = 4, 100  # whose kernels are timed
BEFORE = 1.0  # what the result holds before a product that reads it


class Form(NamedTuple):
    """A product, and how it is asked for."""

    code: str
    m: int
    n: int
    k: int
    ops: str = "NN"
    alpha: float = 1.0
    beta: float = 0.0
    is_gram: bool = False
    """Whether both operands are the first one."""

    @property
    def is_plain(self) -> bool:
        """Whether `clgemm.matmul` can compute it."""
        return self.ops == "NN" and self.alpha == 1 and self.beta == 0

    @property
    def flops(self) -> int:
        """Operations of one run, as if all of C were computed."""
        return 2 * self.m * self.n * self.k * PRECISIONS[self.code].multiplications

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of the two operands as they lie in memory."""
        a, b = (self.m, self.k), (self.k, self.n)
        return (a if self.ops[0] == "N" else a[::-1]), (b if self.ops[1] == "N" else b[::-1])


def normal(code: str, count: int, seed: int) -> NDArray[Any]:
    """Return `count` normally distributed elements."""
    p, rng = PRECISIONS[code], np.random.default_rng(seed)
    real_type: Any = np.dtype(f"f{p.real_bytes}").type
    return rng.standard_normal(count * p.parts, dtype=real_type).view(p.dtype)


class Operands:
    """Elements on the host and on the device, of which many products take the first ones.

    Parameters
    ----------
    a, b : ndarray
        Flat.
    """

    def __init__(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        self.a, self.b = a, b
        self.on_device = clgemm.to_device(a), clgemm.to_device(b)


class Product:
    """A product of C-ordered Arrays through the public functions.

    Parameters
    ----------
    form : Form
        The product.
    operands : Operands
        At least as many elements as it takes.
    """

    def __init__(self, form: Form, operands: Operands) -> None:
        self.form = form
        sides = [
            (flat[: rows * columns], there[: rows * columns].reshape(rows, columns))
            for flat, there, (rows, columns) in zip(
                (operands.a, operands.b), operands.on_device, form.shapes, strict=True
            )
        ]
        if form.is_gram:
            sides[1] = sides[0]
        (self._a, self.x), (self._b, self.y) = sides
        dtype = PRECISIONS[form.code].dtype
        self.out = opencl.arrays().empty(
            self.x.queue, (form.m, form.n), dtype, allocator=self.x.allocator
        )
        self.finish: Callable[[], object] = self.out.queue.finish
        self.is_symmetric = False
        """Whether the Gram product that was checked last is exactly symmetric."""

    def into_out(self) -> Callable[[], Any]:
        """Return what computes it into `out`: a call and nothing around it."""
        return self._call(self.x, self.y, self.out)

    def fresh(self) -> Callable[[], Any]:
        """Return what computes a plain product into a new Array."""
        return partial(clgemm.matmul, self.x, self.y)

    def _call(self, x: Any, y: Any, out: Any) -> Callable[[], Any]:
        form = self.form
        if form.is_plain:
            return partial(clgemm.matmul, x, y, out=out)
        trans_a, trans_b = (int(op != "N") for op in form.ops)
        routine = getattr(clgemm, f"{form.code}gemm")
        return partial(routine, form.alpha, x, y, form.beta, out, trans_a, trans_b, 1)

    def kernel_times(self) -> tuple[str, float]:
        """Return the kernels of a call, and the seconds that they take by the device's clock.

        The same call as `into_out`, on a queue of the same context that times its launches.
        Launches go through pyopencl's function: it is watched for the runner that is made here,
        and that runner is forgotten after.
        """
        pyopencl = opencl.load()
        launches: list[tuple[str, Any]] = []
        launch = pyopencl.enqueue_nd_range_kernel

        def watched(queue: Any, kernel: Any, *arguments: Any) -> Any:
            event = launch(queue, kernel, *arguments)
            launches.append((kernel.function_name, event))
            return event

        timed: Any = pyopencl.command_queue_properties.PROFILING_ENABLE
        queue = pyopencl.CommandQueue(self.out.context, properties=timed)
        run = self._call(*(z.with_queue(queue) for z in (self.x, self.y, self.out)))
        engine, _ = engines.of_queue(queue)
        engine.forget()
        try:
            with mock.patch.object(pyopencl, "enqueue_nd_range_kernel", watched):
                calls, took = _watched_calls(run, queue, launches)
        finally:
            engine.forget()
        names = Counter(name for name, _ in launches)
        text = ", ".join(f"{n // calls} {name}" for name, n in names.items())
        return text, took

    def error(self, run: Callable[[], Any]) -> float:
        """Run once over a result of NaN, or of ones if it is read; see `error_of`."""
        before = BEFORE if self.form.beta else np.nan
        fill, out = np.array(before, self.out.dtype), self.out
        opencl.load().enqueue_fill_buffer(out.queue, out.base_data, fill, out.offset, out.nbytes)
        result: NDArray[Any] = run().get()
        return self.error_of(result)

    def error_of(self, c: NDArray[Any]) -> float:
        """Return the largest sampled error over its bound; NaN anywhere counts as infinite.

        What it says of a Gram product's symmetry is in `is_symmetric`.

        The bound is the a-priori one of a sum of k products, (k + 8) eps |A||B|.
        """
        form = self.form
        self.is_symmetric = bool(form.is_gram and np.array_equal(c, c.T))
        if np.isnan(c).any():
            return float("inf")
        rng = np.random.default_rng(5)
        rows = np.unique(np.append(rng.integers(0, form.m, SAMPLED), (0, form.m - 1)))
        columns = np.unique(np.append(rng.integers(0, form.n, SAMPLED), (0, form.n - 1)))
        a, b = (x.reshape(s) for x, s in zip((self._a, self._b), form.shapes, strict=True))
        wide = PRECISIONS[PRECISIONS[form.code].wide].dtype
        left = (a[rows] if form.ops[0] == "N" else a[:, rows].T).astype(wide)
        right = (b[:, columns] if form.ops[1] == "N" else b[columns].T).astype(wide)
        want = form.alpha * (left @ right) + form.beta * BEFORE
        size = abs(form.alpha) * (np.abs(left) @ np.abs(right)) + abs(form.beta * BEFORE)
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.abs(c[np.ix_(rows, columns)] - want)
            return float(np.max(errors / ((form.k + 8) * PRECISIONS[form.code].eps * size)))


def _watched_calls(
    run: Callable[[], Any], queue: Any, launches: list[tuple[str, Any]]
) -> tuple[int, float]:
    """Fill `launches` with those of some calls; return how many calls, and the seconds of one."""
    run()  # builds, and loads
    run()
    queue.finish()
    if not launches:
        raise SystemExit("no launch was seen: they do not go through pyopencl's function any more")
    steps = len(launches) // 2
    once = sum(timing.seconds_of([event]) for _, event in launches[steps:])
    calls = max(LEAST_CALLS, min(MOST_CALLS, round(KERNEL_SECONDS / max(once, 1e-7))))
    launches.clear()
    for _ in range(calls):
        run()
    queue.finish()
    each = [timing.seconds_of([event]) for _, event in launches]
    of_calls = [sum(each[i : i + steps]) for i in range(0, len(each), steps)]
    return calls, statistics.median(of_calls[calls // 2 :])


def returned_before(run: Callable[[], Any], finish: Callable[[], object], tries: int) -> int:
    """Count the calls that returned before their kernels had ended, of so many on an idle queue."""
    complete: Any = opencl.load().command_execution_status.COMPLETE
    early = 0
    for _ in range(tries):
        finish()
        early += run().events[-1].command_execution_status != complete
    finish()
    return early
