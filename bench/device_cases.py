"""What bench_device times: which products, by which names, on which operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import on_device

if TYPE_CHECKING:
    from collections.abc import Iterator

    from on_device import Operands

    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device

SIZES = (512, 1024, 2048, 4096, 8192)
LARGEST = {"s": 8192, "d": 8192, "c": 4096, "z": 4096}
LEAST = {"fallback": 2048, "ops": 2048}
SKINNY = ((64, 8192, 8192), (8192, 64, 8192), (8192, 8192, 64), (256, 256, 65536))
SETS = ("squares", "fallback", "fma", "ops", "skinny")
PLAIN, ODD = "NN", "n+1"
OPS = (PLAIN, "TN", "NT", "TT", ODD)
CUBLAS, CLGEMM, CLBLAST, TUNED = "cuBLAS", "clgemm", "CLBlast", "CLBlast tuned"


@dataclass(frozen=True)
class Case:
    """What is timed together: one product by several, or clgemm's product in several forms."""

    kind: str
    code: str
    m: int
    n: int
    k: int

    @property
    def size(self) -> str:
        """Name n of a square, else all extents."""
        square = self.m == self.n == self.k
        return str(self.n) if square else f"{self.m}x{self.n}x{self.k}"

    @property
    def forms(self) -> dict[str, Gemm]:
        """The products of clgemm by the name of their column."""
        shape = (self.m, self.n, self.k)
        if self.kind != "ops":
            return {CLGEMM: on_device.problem(self.code, *shape)}
        odd = on_device.problem(self.code, self.m + 1, self.n + 1, self.k + 1)
        return {ops: on_device.problem(self.code, *shape, ops) for ops in OPS[:-1]} | {ODD: odd}

    @property
    def elements(self) -> int:
        """Elements that each operand has to have."""
        return max(max(g.m * g.k, g.k * g.n) for g in self.forms.values())


def cases(sets: list[str], codes: str, sizes: list[int]) -> Iterator[Case]:
    """List the cases, those that share operands after each other."""
    for code in codes:
        for kind in sets:
            only = {"fallback": "s", "fma": "s", "skinny": "sd"}.get(kind, "sdcz")
            if code not in only:
                continue
            if kind == "skinny":
                yield from (Case(kind, code, *shape) for shape in SKINNY)
            else:
                for n in sizes:
                    if LEAST.get(kind, 0) <= n <= LARGEST[code]:
                        yield Case(kind, code, n, n, n)


def fallback_operands(device: Device, case: Case, usual: Operands) -> Operands:
    """Make large entries that meet zeros, with the rest at 2^-30.

    A row of such an A cannot be scaled so that halves hold it.
    """
    a, b = usual.a[: case.elements] * np.float32(2.0**-30), usual.b[: case.elements].copy()
    a[: case.m] = 1  # the first column of A ...
    b[:: case.k] = 0  # ... meets the first row of B
    return on_device.Operands(device, a, b)
