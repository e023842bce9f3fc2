"""Kernel families.  This package is text and integers: it imports no OpenCL.

``family`` says what a family is, ``costs`` what its problems cost, ``mirror`` has the last launch
of Gram products, which families share, ``integers`` the types of those of integers, and ``half``
makes a plan for float16 of one for float32.
``source`` makes the text of a kernel, and ``ptx`` changes what a compiler made of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clgemm.kernels.batched.family import Batched
from clgemm.kernels.cpu_integer.family import CpuInteger
from clgemm.kernels.cpu_packed.family import CpuPacked
from clgemm.kernels.direct.family import Direct
from clgemm.kernels.gemv.family import Gemv
from clgemm.kernels.gpu_integer.family import GpuInteger
from clgemm.kernels.gpu_tiled.family import GpuTiled
from clgemm.kernels.nv_dmma.family import NvDmma
from clgemm.kernels.nv_fused.family import NvFused
from clgemm.kernels.nv_mma.family import NvMma
from clgemm.kernels.nv_split.family import NvSplit
from clgemm.kernels.nv_wgmma.family import NvWgmma

if TYPE_CHECKING:
    from clgemm.kernels.family import KernelFamily

FAMILIES: tuple[KernelFamily, ...] = (
    Gemv(), Batched(), CpuPacked(), CpuInteger(), NvDmma(), NvFused(), NvSplit(), NvMma(),
    GpuTiled(), NvWgmma(), GpuInteger(), Direct(),
)  # fmt: skip
"""The only list of families, most special first."""

BY_NAME: dict[str, KernelFamily] = {family.name: family for family in FAMILIES}

LAST_RESORT: KernelFamily = FAMILIES[-1]
"""The family that takes anything and needs nothing."""
