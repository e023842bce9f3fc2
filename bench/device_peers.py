"""Who clgemm is compared with on the same operands: cuBLAS by PyTorch or CuPy, and CLBlast."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import suppress
from ctypes.util import find_library
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray
    from on_device import Operands, Resident

    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device

Run = tuple["Callable[[], None]", "Callable[[], None]"]
"""What enqueues, and what waits."""
RATE_SIZE = 8192  # of the products that show what tensor cores do in short formats
COLUMN_MAJOR, NORMAL, TRANSPOSED = 102, 111, 112  # CLBlast's names for them
CODES = {"s": 32, "d": 64, "c": 3232, "z": 6464}  # CLBlast's names for precisions


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
        self._uploaded: tuple[Operands | None, Any, Any] = (None, None, None)
        cuda = module.cuda
        self.finish: Callable[[], None] = (
            cuda.synchronize if self._torch else cuda.Device().synchronize
        )

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

    def product(self, g: Gemm, operands: Operands) -> tuple[Run, Callable[[], NDArray[Any]]]:
        """Give what enqueues, what waits, and what returns the flat column-major result.

        Row-major matrices here: C.T = op(B).T @ op(A).T in the same memory.
        """
        if self._uploaded[0] is not operands:
            self._uploaded = (None, None, None)  # frees what is there before more is taken
            self._uploaded = (operands, self._upload(operands.a), self._upload(operands.b))
        _, a, b = self._uploaded
        left = b[: g.k * g.n].reshape((g.k, g.n) if g.trans_b else (g.n, g.k))
        right = a[: g.m * g.k].reshape((g.m, g.k) if g.trans_a else (g.k, g.m))
        left, right = (left.T if g.trans_b else left), (right.T if g.trans_a else right)
        matmul = self._module.matmul
        out = matmul(left, right)

        def fetch() -> NDArray[Any]:
            matmul(left, right, out=out)
            host = out.cpu().numpy() if self._torch else out.get()
            return np.asarray(host).ravel()

        return ((lambda: matmul(left, right, out=out)), self.finish), fetch

    def short_formats(self) -> dict[str, Run]:
        """Give products in fp16, and in TF32 where it can be switched on for one product."""
        module = self._module
        runs: dict[str, Run] = {}
        half = self._upload(
            np.random.default_rng(3).standard_normal((RATE_SIZE,) * 2, np.float32).astype("half")
        )
        half_out = module.matmul(half, half)
        runs["fp16"] = (lambda: module.matmul(half, half, out=half_out)), self.finish
        if self._torch:
            single = half.float()
            single_out = module.empty_like(single)

            def tf32() -> None:
                module.backends.cuda.matmul.allow_tf32 = True
                module.matmul(single, single, out=single_out)
                module.backends.cuda.matmul.allow_tf32 = False

            runs["TF32"] = tf32, self.finish
        return runs


class _Complex64(ctypes.Structure):
    _fields_ = (("re", ctypes.c_float), ("im", ctypes.c_float))


class _Complex128(ctypes.Structure):
    _fields_ = (("re", ctypes.c_double), ("im", ctypes.c_double))


SCALARS: dict[str, Any] = {
    "s": ctypes.c_float, "d": ctypes.c_double, "c": _Complex64, "z": _Complex128,
}  # fmt: skip


class CLBlast:
    """CLBlast's C library on the OpenCL buffers and the queue that clgemm uses.

    Parameters
    ----------
    library : ctypes.CDLL
        The library, loaded.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        mapped = Path("/proc/self/maps")
        lines = mapped.read_text().splitlines() if mapped.exists() else []
        paths = {line.split()[-1] for line in lines if "clblast" in line.lower()}
        self.name = "CLBlast " + ", ".join(Path(p).name for p in sorted(paths))

    @classmethod
    def find(cls) -> CLBlast | str:
        """Load $CLBLAST_LIBRARY or what the linker finds; else say that it is absent."""
        names = (os.environ.get("CLBLAST_LIBRARY"), find_library("clblast"), "libclblast.so.1")
        for name in filter(None, names):
            with suppress(OSError):
                return cls(ctypes.CDLL(name))
        return "CLBlast: absent; install libclblast1, or let CLBLAST_LIBRARY name the library"

    def product(self, device: Device, resident: Resident) -> Run:
        """Give what runs a problem on its buffers, and what waits."""
        g, scalar = resident.g, SCALARS[resident.g.precision]
        routine = self._library[f"CLBlast{g.precision.upper()}gemm"]
        size, handle = ctypes.c_size_t, ctypes.c_void_p
        a, b, c = (handle(x.int_ptr) for x in resident.buffers)
        queue = handle(device.queue.int_ptr)
        arguments = (
            COLUMN_MAJOR, TRANSPOSED if g.trans_a else NORMAL, TRANSPOSED if g.trans_b else NORMAL,
            size(g.m), size(g.n), size(g.k),
            scalar(1), a, size(0), size(g.lda), b, size(0), size(g.ldb),
            scalar(0), c, size(0), size(g.ldc), ctypes.byref(queue), None,
        )  # fmt: skip

        def run() -> None:
            status = routine(*arguments)
            if status:
                raise RuntimeError(f"CLBlast's {g.precision}gemm failed with status {status}")

        return run, device.queue.finish

    def override(self, device: Device, code: str, parameters: dict[str, int]) -> None:
        """Let the Xgemm kernel of a precision use other parameters from now on."""
        names = (ctypes.c_char_p * len(parameters))(*(name.encode() for name in parameters))
        values = (ctypes.c_size_t * len(parameters))(*parameters.values())
        status = self._library.CLBlastOverrideParameters(
            ctypes.c_void_p(device.queue.device.int_ptr), b"Xgemm", CODES[code],
            ctypes.c_size_t(len(parameters)), names, values,
        )  # fmt: skip
        if status:
            raise RuntimeError(f"CLBlast refused parameters of {code}gemm with status {status}")


def tuner_results(files: Iterable[Path]) -> dict[str, dict[str, int]]:
    """Read what clblast_tuner_xgemm wrote: the fastest parameters of each precision."""
    best: dict[str, tuple[float, dict[str, int]]] = {}
    for path in files:
        found = json.loads(path.read_text(encoding="utf-8"))
        code = {str(number): letter for letter, number in CODES.items()}[found["precision"]]
        pairs = (pair.split("=") for pair in found["best_parameters"].split())
        parameters = {name: int(value) for name, value in pairs if name != "PRECISION"}
        size = float(found["arg_m"]) * float(found["arg_n"]) * float(found["arg_k"])
        rate = size / float(found["best_time"])
        if code not in best or rate > best[code][0]:
            best[code] = rate, parameters
    return {code: parameters for code, (_, parameters) in best.items()}
