"""From a KernelSpec to OpenCL C text: a header of defines, then the family's files spliced."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clgemm.kernels.family import KernelSpec

_IMPORTED = re.compile(r"\bclgemm\.kernels\.(\w+(?:\.\w+)*)")
_SPLICED = re.compile(r'"(\w+(?:/\w+)*\.cl)"')


@cache
def read(name: str) -> str:
    """Read a file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def text(spec: KernelSpec) -> str:
    """Give the whole source of a kernel: defines, common.cl, the family's files."""
    header = "".join(f"#define {name} {value}\n" for name, value in spec.defines)
    return header + "".join(read(name) for name in ("common.cl", *spec.files))


@cache
def family_files(name: str) -> tuple[str, ...]:
    """List the files that decide what a family's configurations mean and how fast they are.

    These are common.cl, the family's folder, and what files of it name in turn: modules and
    packages of this package that they import, and .cl files that they splice.
    """
    found: set[str] = set()
    named = ["common.cl", name]
    while named:
        for file in _files(named.pop()):
            if file not in found:
                found.add(file)
                named += [m.replace(".", "/") for m in _IMPORTED.findall(read(file))]
                named += _SPLICED.findall(read(file))
    return tuple(sorted(found))


def _files(name: str) -> Iterator[str]:
    """Yield the source files of a folder, of a module, or the .cl file itself."""
    place = resources.files(__package__).joinpath(name)
    if place.is_dir():
        yield from (f"{name}/{x.name}" for x in place.iterdir() if x.name.endswith((".cl", ".py")))
    elif name.endswith(".cl"):
        yield name
    elif resources.files(__package__).joinpath(f"{name}.py").is_file():
        yield f"{name}.py"


@cache
def family_hash(name: str) -> str:
    """Hash the `family_files` of a family: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in family_files(name):
        digest.update(f"{file}\n{read(file)}\n".encode())
    return digest.hexdigest()[:16]
