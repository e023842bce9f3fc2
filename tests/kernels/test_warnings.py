"""Kernels compile without warnings: NVIDIA's driver writes to the terminal how many there are."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from helpers import CPU, GPU

from clgemm.kernels import FAMILIES, source
from clgemm.problem import ELEMENTS, Gemm

CLANG = shutil.which("clang-15")  # NVIDIA's and PoCL's compilers are clang
pytestmark = pytest.mark.skipif(
    CLANG is None, reason="no clang 15, which Debian 12 brings with PoCL"
)
HOPPER = replace(
    GPU, vendor="NVIDIA Corporation", platform="NVIDIA CUDA", compute_capability=(9, 0),
    compute_units=132, max_work_group_size=1024, fp64=True,
)  # fmt: skip
AMPERE = replace(HOPPER, compute_capability=(8, 0))
PROBLEMS = [
    (900, 900, 900, 1, False, False, 1),
    (500, 500, 500, 1, True, True, 0),
    (90, 70, 16, 1, False, True, 1),
    (20, 30, 40, 500, True, False, 1),
    (20, 30, 40, 500, False, False, 0),
    (1, 300, 2000, 1, False, True, 0),
    (300, 4, 1, 1, False, False, 1),
]
"""m, n, k, how many, whether A and B are transposed, and the gap between columns."""
ASM = re.compile(r"\basm( volatile)?\(")


def without_asm(text):
    """Leave out instructions of a GPU, which no other compiler takes."""
    return "#define LEFT_OUT(...)\n" + ASM.sub("LEFT_OUT(", text)


def problem(code, m, n, k, batch, trans_a, trans_b, gap):
    """Give products of which rows begin anywhere, or at the places of vectors."""
    lda, ldb, ldc = (k if trans_a else m) + gap, (n if trans_b else k) + gap, m + gap
    far = batch > 1
    return Gemm(
        code, m, n, k, batch, trans_a, False, lda, lda * (m if trans_a else k) * far,
        trans_b, False, ldb, ldb * (k if trans_b else n) * far, ldc, ldc * n * far,
        bool(gap), not gap,
    )  # fmt: skip


def texts_of(family, traits):
    """Give what is compiled of a family for such a device."""
    codes = [code for code, element in ELEMENTS.items() if family.supports(traits, element)]
    for code, numbers in itertools.product(codes, PROBLEMS):
        g = problem(code, *numbers)
        if family.accepts(g):
            plan = family.plan(traits, g, family.default(traits, ELEMENTS[code]))
            yield from (without_asm(source.text(step.kernel)) for step in plan.steps)


def warnings_of(text):
    """List what clang warns of; to include the declarations of built-in functions takes longer."""
    target = ["-target", "nvptx64-nvidia-nvcl", "-Xclang", "-fdeclare-opencl-builtins"]
    command = [CLANG, "-x", "cl", "-cl-std=CL1.2", *target, "-fsyntax-only", "-"]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return [line for line in said.stderr.splitlines() if "warning:" in line or "error:" in line]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_kernel_is_warned_of(family):
    texts = {text for traits in (HOPPER, AMPERE, CPU) for text in texts_of(family, traits)}
    assert texts
    assert [line for text in texts for line in warnings_of(text)] == []


@pytest.mark.parametrize("condition", ["x[0] && 3", "x[0] && 1 < 2"])
def test_warnings_are_seen(condition):
    kernel = "__kernel void k(__global int *x) { if (%s) x[1] = get_global_id(0); }"
    assert warnings_of(kernel % "x[0] && x[1]") == []
    assert len(warnings_of(kernel % condition)) == 1
