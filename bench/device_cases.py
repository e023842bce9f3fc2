"""What bench_device times: which products, by which names, on which operands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from on_device import Form, Operands

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIZES = (512, 1024, 1536, 2048, 4096, 8192)
LARGEST = {"s": 8192, "d": 8192, "c": 4096, "z": 4096}
SKINNY = ((64, 8192, 8192), (8192, 64, 8192), (8192, 8192, 64), (256, 256, 65536))
SETS = ("squares", "skinny", "ops", "gram", "fallback", "fma")
LEAST = {"fallback": 2048, "ops": 2048}
MOST = {"ops": 4096, "gram": 16384}
PRECISIONS_OF = {"fallback": "s", "fma": "s", "skinny": "sd"}
PLAIN, ODD, BETA = "NN", "n+1", "beta"
OPS = (PLAIN, "TN", "NT", "TT", ODD, BETA)
CUBLAS, CLGEMM, CLBLAST, TUNED = "cuBLAS", "clgemm", "CLBlast", "CLBlast tuned"
FRESH, CUBLAS_FRESH = "clgemm, new result", "cuBLAS, new result"
KERNELS = "kernels alone"
GRAM, GENERAL = "a.T @ a", "a.T @ b"


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
    def forms(self) -> dict[str, Form]:
        """The products of clgemm by the name of their column."""
        shape = (self.m, self.n, self.k)
        if self.kind == "gram":
            general = Form(self.code, *shape, "TN")
            return {GRAM: general._replace(is_gram=True), GENERAL: general}
        if self.kind != "ops":
            return {CLGEMM: Form(self.code, *shape)}
        forms = {ops: Form(self.code, *shape, ops) for ops in OPS[:4]}
        forms[ODD] = Form(self.code, self.m + 1, self.n + 1, self.k + 1)
        forms[BETA] = Form(self.code, *shape, alpha=2.0, beta=0.5)
        return forms

    @property
    def elements(self) -> int:
        """Elements that each operand has to have."""
        return max(max(form.m * form.k, form.k * form.n) for form in self.forms.values())


def cases(sets: Sequence[str], codes: str, sizes: Sequence[int]) -> Iterator[Case]:
    """List the cases, those that share operands after each other."""
    for code in codes:
        for kind in sets:
            if code not in PRECISIONS_OF.get(kind, "sdcz"):
                continue
            if kind == "skinny":
                yield from (Case(kind, code, *shape) for shape in SKINNY)
            else:
                most = MOST.get(kind, LARGEST[code])
                for n in sizes:
                    if LEAST.get(kind, 0) <= n <= most:
                        yield Case(kind, code, n, n, n)


def fallback_operands(case: Case, usual: Operands) -> Operands:
    """Make large entries that meet zeros, with the rest at 2^-30.

    A row of such an A cannot be scaled so that halves hold it.
    """
    a, b = usual.a[: case.elements] * np.float32(2.0**-30), usual.b[: case.elements].copy()
    a[:: case.k] = 1  # the first column of A ...
    b[: case.n] = 0  # ... meets the first row of B
    return Operands(a, b)
