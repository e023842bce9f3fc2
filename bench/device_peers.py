"""The vendor's library on the same operands, and the physical limits of the card."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import on_device

from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clgemm.problem import Gemm
    from clgemm.runtime.session import Session

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
PROBE_REPEATS, PROBE_ITEMS = 4096, 256
COPY_BYTES = 1 << 30
SMI = "clocks.sm,power.draw,power.limit,temperature.gpu"


class CuBLAS:
    """NVIDIA's library by way of PyTorch, or of CuPy; TF32 is off.

    Parameters
    ----------
    module : module
        torch or cupy.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._torch = module, module.__name__ == "torch"
        if self._torch:
            module.backends.cuda.matmul.allow_tf32 = False
        self.name = f"cuBLAS by {module.__name__} {module.__version__}"

    @classmethod
    def find(cls) -> CuBLAS:
        """Take the first module that is there and sees a GPU."""
        for name in ("torch", "cupy"):
            try:
                module: Any = import_module(name)
            except ImportError:
                continue
            if module.cuda.is_available():
                return cls(module)
        raise SystemExit("neither PyTorch nor CuPy with a GPU is here: there is no one to compare")

    def _upload(self, x: NDArray[Any]) -> Any:
        return self._module.from_numpy(x).cuda() if self._torch else self._module.asarray(x)

    def product(
        self, g: Gemm, a: NDArray[Any], b: NDArray[Any]
    ) -> tuple[Callable[[], None], Callable[[], None], Callable[[], NDArray[Any]]]:
        """Give what enqueues, what waits, and what returns the flat column-major result.

        Row-major matrices here: C.T = op(B).T @ op(A).T in the same memory.
        """
        left = self._upload(b[: g.k * g.n].reshape((g.k, g.n) if g.trans_b else (g.n, g.k)))
        right = self._upload(a[: g.m * g.k].reshape((g.m, g.k) if g.trans_a else (g.k, g.m)))
        left, right = (left.T if g.trans_b else left), (right.T if g.trans_a else right)
        matmul = self._module.matmul
        out = matmul(left, right)

        def fetch() -> NDArray[Any]:
            matmul(left, right, out=out)
            host = out.cpu().numpy() if self._torch else out.get()
            return np.asarray(host).ravel()

        cuda = self._module.cuda
        finish = cuda.synchronize if self._torch else cuda.Device().synchronize
        return (lambda: matmul(left, right, out=out)), finish, fetch


def clblast() -> str:
    """Tell whether CLBlast can be compared with."""
    try:
        return f"CLBlast by pyclblast {metadata.version('pyclblast')}: not timed here"
    except metadata.PackageNotFoundError:
        return "CLBlast: absent (pyclblast is not installed)"


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


def limits(session: Session) -> dict[str, Any]:
    """Measure the card's own limits: multiply-adds, copies, and the clock it keeps under load."""
    found: dict[str, Any] = {"idle": smi()}
    memory = [cl.Buffer(session.context, cl.mem_flags.READ_WRITE, COPY_BYTES) for _ in range(2)]
    for x in memory:
        cl.enqueue_fill_buffer(session.queue, x, np.array(0.5, np.float32), 0, COPY_BYTES)
    for code in "sd":
        double = PRECISIONS[code].real == "double"
        if double and not session.traits.fp64:
            continue
        text = f"#define IS_DOUBLE {int(double)}\n{PROBE}"
        program = opencl.build(session.context, text)
        probe = opencl.make_kernel(program, "fma_probe", [None, np.int32])
        probe.set_args(memory[0], PROBE_REPEATS)
        size = session.traits.compute_units * 32 * PROBE_ITEMS
        seconds = _timed(session, probe, size)
        found[f"{code} FMA TFLOP/s"] = 2 * 16 * PROBE_REPEATS * size / seconds / 1e12
        copy = opencl.make_kernel(program, "copy", [None, None])
        copy.set_args(*memory)
    found["copy GB/s"] = 2 * COPY_BYTES / _timed(session, copy, COPY_BYTES // 16) / 1e9
    return found


def under_load(run: Callable[[], None], finish: Callable[[], None]) -> dict[str, str]:
    """Ask nvidia-smi while the card works for a second."""
    answers: list[dict[str, str]] = []

    def ask() -> None:
        time.sleep(0.7)
        answers.append(smi())

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        for _ in range(4):
            run()
        finish()
    return answers[0]


def _timed(session: Session, kernel: cl.Kernel, size: int) -> float:
    def run() -> None:
        cl.enqueue_nd_range_kernel(session.queue, kernel, (size,), (PROBE_ITEMS,))

    return on_device.side_by_side({"": (run, session.queue.finish)}, 5)[""]
