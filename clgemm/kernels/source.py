"""From a KernelSpec to OpenCL C text: a header of defines, then the family's files spliced."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from clgemm.kernels.family import KernelSpec


@cache
def read(name: str) -> str:
    """Read a .cl file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def text(spec: KernelSpec) -> str:
    """Give the whole source of a kernel: defines, common.cl, the family's files."""
    header = "".join(f"#define {name} {value}\n" for name, value in spec.defines)
    return header + "".join(read(name) for name in ("common.cl", *spec.files))


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """Yield the .cl and .py files of a folder and of those in it, with their paths."""
    for file in folder.iterdir():
        if file.is_dir():
            yield from _files(file, f"{prefix}{file.name}/")
        elif file.name.endswith((".cl", ".py")):
            yield prefix + file.name, file


@cache
def package_hash() -> str:
    """Hash everything that decides what a configuration means: all .cl and .py files here."""
    digest = hashlib.sha256()
    for name, file in sorted(_files(resources.files(__package__))):
        digest.update(name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
