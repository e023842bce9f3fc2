"""Who clgemm is compared with on the same operands: cuBLAS by PyTorch, and CLBlast."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import suppress
from ctypes.util import find_library
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alternating import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from on_device import Form, Operands, Product

    from clgemm.runtime.opencl import cl

RATE_SIZE = 8192  # of the products that show what tensor cores do in short formats
COLUMN_MAJOR, NORMAL = 102, 111  # CLBlast's names for them
CODES = {"s": 32, "d": 64, "c": 3232, "z": 6464}  # CLBlast's names for precisions


class CuBLAS:
    """NVIDIA's library by way of PyTorch; TF32 is off.

    Parameters
    ----------
    torch : module
        PyTorch.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = False
        self.name = f"cuBLAS by torch {torch.__version__}"
        self._uploaded: tuple[Operands | None, Any, Any] = (None, None, None)
        self._finish: Callable[[], object] = torch.cuda.synchronize

    @classmethod
    def find(cls) -> CuBLAS | str:
        """Take PyTorch if it is there and sees a GPU; else say why it is not."""
        try:
            torch: Any = import_module("torch")
        except ImportError:
            return "cuBLAS: absent; install PyTorch"
        return cls(torch) if torch.cuda.is_available() else "cuBLAS: PyTorch sees no GPU"

    def product(self, form: Form, operands: Operands) -> tuple[Way, Way, Callable[[], Any]]:
        """Give a plain product into a tensor, into a new one, and what returns the result."""
        torch = self.torch
        if self._uploaded[0] is not operands:
            self._uploaded = (None, None, None)  # frees what is there before more is taken
            on_gpu = (torch.from_numpy(flat).cuda() for flat in (operands.a, operands.b))
            self._uploaded = (operands, *on_gpu)
        _, a, b = self._uploaded
        x = a[: form.m * form.k].reshape(form.m, form.k)
        y = b[: form.k * form.n].reshape(form.k, form.n)
        out = torch.matmul(x, y)

        def fetch() -> Any:
            out.zero_()
            return torch.matmul(x, y, out=out).cpu().numpy()

        into_out, fresh = partial(torch.matmul, x, y, out=out), partial(torch.matmul, x, y)
        return Way(into_out, self._finish), Way(fresh, self._finish), fetch

    def short_formats(self) -> dict[str, Way]:
        """Give products in fp16 and in TF32."""
        torch = self.torch
        half = torch.randn(RATE_SIZE, RATE_SIZE, device="cuda").half()
        single = half.float()
        half_out, single_out = torch.empty_like(half), torch.empty_like(single)

        def tf32() -> None:
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.matmul(single, single, out=single_out)
            torch.backends.cuda.matmul.allow_tf32 = False

        return {
            "fp16": Way(partial(torch.matmul, half, half, out=half_out), self._finish),
            "TF32": Way(tf32, self._finish),
        }


class _Complex64(ctypes.Structure):
    _fields_ = (("re", ctypes.c_float), ("im", ctypes.c_float))


class _Complex128(ctypes.Structure):
    _fields_ = (("re", ctypes.c_double), ("im", ctypes.c_double))


SCALARS: dict[str, Any] = {
    "s": ctypes.c_float, "d": ctypes.c_double, "c": _Complex64, "z": _Complex128,
}  # fmt: skip


class CLBlast:
    """CLBlast's C library on the Arrays, and on the queue, that clgemm uses.

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

    def product(self, product: Product) -> Way:
        """Give a plain product of the same Arrays, into their result.

        C.T = B.T @ A.T in column-major terms, in the same memory.
        """
        form, out = product.form, product.out
        scalar, size, handle = SCALARS[form.code], ctypes.c_size_t, ctypes.c_void_p
        routine = self._library[f"CLBlast{form.code.upper()}gemm"]
        a, b, c = (handle(z.base_data.int_ptr) for z in (product.x, product.y, out))
        queue = handle(out.queue.int_ptr)
        arguments = (
            COLUMN_MAJOR, NORMAL, NORMAL, size(form.n), size(form.m), size(form.k),
            scalar(1), b, size(0), size(form.n), a, size(0), size(form.k),
            scalar(0), c, size(0), size(form.n), ctypes.byref(queue), None,
        )  # fmt: skip

        def run() -> Any:
            status = routine(*arguments)
            if status:
                raise RuntimeError(f"CLBlast's {form.code}gemm failed with status {status}")
            return out

        return Way(run, product.finish)

    def override(self, queue: cl.CommandQueue, code: str, parameters: dict[str, int]) -> None:
        """Let the Xgemm kernel of a precision use other parameters from now on."""
        names = (ctypes.c_char_p * len(parameters))(*(name.encode() for name in parameters))
        values = (ctypes.c_size_t * len(parameters))(*parameters.values())
        status = self._library.CLBlastOverrideParameters(
            ctypes.c_void_p(queue.device.int_ptr), b"Xgemm", CODES[code],
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
