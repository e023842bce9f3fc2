"""The slots of a shared object: the places where it keeps addresses of functions it imports.

Read from the file by its dynamic section, which is what the loader goes by (System V ABI, generic
ELF and the supplements of x86-64 and AArch64).  Nothing in a file is trusted: each place is looked
for in the segments, and a file that does not hold together gives a sentence instead of slots.
"""

from __future__ import annotations

import platform
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import re
    from pathlib import Path
    from typing import BinaryIO

    from numpy.typing import NDArray

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_LOAD, _DYNAMIC = 1, 2
_SHARED_OBJECT = 3
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183}
_KINDS = {62: {7: "JUMP_SLOT", 6: "GLOB_DAT"}, 183: {1026: "JUMP_SLOT", 1025: "GLOB_DAT"}}
"""Relocations that put a function's address into a slot, by machine."""
_MOST_HEADERS, _MOST_DYNAMIC = 1 << 10, 1 << 16
_NEEDED_TAGS = {"STRTAB": 5, "SYMTAB": 6, "STRSZ": 10, "SYMENT": 11}
_TABLES = ((23, 2), (7, 8))  # JMPREL and PLTRELSZ, RELA and RELASZ
_PLTREL, _RELA = 20, 7
_SYMBOL = np.dtype(
    [
        ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"),
        ("value", "<u8"), ("size", "<u8"),
    ]
)  # fmt: skip
_RELOCATION = np.dtype([("where", "<u8"), ("info", "<u8"), ("addend", "<i8")])


class Import(NamedTuple):
    """A slot, as the file describes it."""

    name: str
    """Of the function whose address it holds."""
    where: int
    """Its address, counted from where the object is loaded."""
    kind: str
    """JUMP_SLOT or GLOB_DAT."""


class Imports(NamedTuple):
    """What a shared object imports of some functions."""

    slots: tuple[Import, ...]
    base: int
    """What the first loaded page of the file has for an address: 0 nearly always."""
    offset: int
    """Where in the file that page begins."""
    names: frozenset[str]
    """Those of the `others` asked for that it names."""


class _MalformedError(ValueError):
    """What a file says of itself does not hold together."""


def imports(path: Path, wanted: re.Pattern[str], others: tuple[str, ...] = ()) -> Imports | str:
    """Find the slots of functions that a shared object imports.

    Parameters
    ----------
    path : Path
        The file.
    wanted : pattern
        The whole of a function's name.
    others : tuple of str
        Names that are looked for, without slots.

    Returns
    -------
    Imports or str
        Why the file cannot be read, if it cannot.
    """
    try:
        with path.open("rb") as file:
            return _Object(file).imports(wanted, others)
    except (_MalformedError, OSError) as error:
        return str(error)


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int  # in the file


class _Object:
    """A shared object that is open for reading."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        head = _HEADER.unpack(self._read(0, _HEADER.size, "header"))
        identity, kind, machine, start = head[0], head[1], head[2], head[5]
        if identity[:6] != b"\x7fELF\x02\x01":
            raise _MalformedError("no little-endian ELF file of 64 bits")
        if kind != _SHARED_OBJECT or machine != _MACHINES.get(platform.machine()):
            raise _MalformedError("no shared object of this machine")
        self._kinds = _KINDS[machine]
        size, count = head[9], head[10]
        if size != _PROGRAM_HEADER.size or not 0 < count < _MOST_HEADERS:
            raise _MalformedError("program headers of another size or number")
        data = self._read(start, size * count, "program headers")
        found = _PROGRAM_HEADER.iter_unpack(data)
        self._segments = [_Segment(h[0], h[2], h[3], h[5]) for h in found]

    def imports(self, wanted: re.Pattern[str], others: tuple[str, ...]) -> Imports:
        """Return the slots of functions with a wanted name."""
        loaded = [s for s in self._segments if s.kind == _LOAD]
        if not loaded:
            raise _MalformedError("nothing to load")
        first = min(loaded, key=lambda s: s.address)
        tags = self._tags()
        strings = self._at(tags["STRTAB"], tags["STRSZ"], "names")
        named = frozenset(x for x in others if b"\0" + x.encode() + b"\0" in strings)
        slots: list[Import] = []
        if b"gemm" in strings:  # else there is no need to walk through thousands of them
            for table in tags["relocations"]:
                slots += self._slots(table, tags["SYMTAB"], strings, wanted)
        return Imports(tuple(slots), first.address, first.offset, named)

    def _tags(self) -> dict[str, Any]:
        """Read the dynamic section: where names, symbols and relocations are."""
        dynamic = [s for s in self._segments if s.kind == _DYNAMIC]
        if len(dynamic) != 1 or not 0 < dynamic[0].size < _MOST_DYNAMIC:
            raise _MalformedError("no dynamic section, or too long a one")
        length = dynamic[0].size // 16
        data = self._read(dynamic[0].offset, 16 * length, "dynamic section")
        found: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<qQ", data):
            if tag == 0:
                break
            found[tag] = value
        missing = [name for name, tag in _NEEDED_TAGS.items() if tag not in found]
        if missing or found[_NEEDED_TAGS["SYMENT"]] != _SYMBOL.itemsize:
            raise _MalformedError("a dynamic section without names or symbols")
        tags: dict[str, Any] = {name: found[tag] for name, tag in _NEEDED_TAGS.items()}
        tables = _TABLES if found.get(_PLTREL, _RELA) == _RELA else _TABLES[1:]
        tags["relocations"] = [
            self._at(found[table], found[size], "relocations")
            for table, size in tables
            if found.get(table) and found.get(size)
        ]
        return tags

    def _slots(
        self, table: bytes, symbols: int, strings: bytes, wanted: re.Pattern[str]
    ) -> list[Import]:
        """Find the wanted names among the relocations of a table."""
        if len(table) % _RELOCATION.itemsize:
            raise _MalformedError("relocations of another size")
        relocations: NDArray[Any] = np.frombuffer(table, _RELOCATION)
        kinds = relocations["info"] & 0xFFFFFFFF
        relocations = relocations[np.isin(kinds, list(self._kinds))]
        if not len(relocations):
            return []
        numbers = (relocations["info"] >> 32).astype(np.int64)
        size = _SYMBOL.itemsize
        data = self._at(symbols, (int(numbers.max()) + 1) * size, "symbols")
        chosen = np.frombuffer(data, _SYMBOL)[numbers]
        slots = []
        for relocation, symbol in zip(relocations, chosen, strict=True):
            if symbol["section"]:  # its own function
                continue
            name = _name(strings, int(symbol["name"]))
            if wanted.fullmatch(name):
                kind = self._kinds[int(relocation["info"]) & 0xFFFFFFFF]
                slots.append(Import(name, int(relocation["where"]), kind))
        return slots

    def _at(self, address: int, size: int, what: str) -> bytes:
        """Read what is loaded at an address."""
        for s in self._segments:
            if s.kind == _LOAD and s.address <= address and address + size <= s.address + s.size:
                return self._read(s.offset + address - s.address, size, what)
        raise _MalformedError(f"{what} lie outside of what is loaded")

    def _read(self, offset: int, size: int, what: str) -> bytes:
        try:
            self._file.seek(offset)
            data = self._file.read(size)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            raise _MalformedError(f"{what} cannot be read: {error}") from None
        if len(data) != size:
            raise _MalformedError(f"the file ends within its {what}")
        return data


def _name(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if start >= len(strings) or end < 0:
        raise _MalformedError("a name lies outside of the names")
    return strings[start:end].decode("ascii", "replace")
