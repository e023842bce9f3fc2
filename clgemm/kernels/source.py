"""From a KernelSpec to OpenCL C text: a header of defines, then the family's files spliced."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clgemm.kernels.family import KernelSpec


@cache
def read(name: str) -> str:
    """Read a .cl file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def text(spec: KernelSpec) -> str:
    """Give the whole source of a kernel: defines, common.cl, the family's files."""
    header = "".join(f"#define {name} {value}\n" for name, value in spec.defines)
    return header + "".join(read(name) for name in ("common.cl", *spec.files))


@cache
def package_hash() -> str:
    """Hash everything that decides what a configuration means: all .cl and .py files here."""
    digest = hashlib.sha256()
    files = [f for f in resources.files(__package__).iterdir() if f.name.endswith((".cl", ".py"))]
    for file in sorted(files, key=lambda f: f.name):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
