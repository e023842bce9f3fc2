"""What is mapped where in this process: ``/proc/self/maps``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_MAPS = Path("/proc/self/maps")


class Mapping(NamedTuple):
    """A range of addresses with one kind of access."""

    start: int
    end: int
    access: str
    """As rwxp, with a hyphen for each that is not there."""
    offset: int
    """In the file."""
    file: tuple[int, int, int]
    """Major and minor number of the device, and inode; the last is 0 if there is no file."""
    path: str


class Mappings:
    """All of them, as they were at one time."""

    def __init__(self) -> None:
        text = _MAPS.read_bytes().decode("utf-8", "surrogateescape")
        self._lines = text.splitlines()
        self._parsed: list[Mapping] | None = None

    @property
    def _all(self) -> list[Mapping]:
        # No cached_property: before Python 3.12 all of its objects share a lock, which a forked
        # child may find held by a thread that it does not have.
        if self._parsed is None:
            self._parsed = [_read(line) for line in self._lines]
        return self._parsed

    def objects(self) -> list[Path]:
        """List the files that have machine code mapped."""
        found = (line.split(maxsplit=5) for line in self._lines)
        paths = (x[5] for x in found if len(x) > 5 and "x" in x[1] and x[5].startswith("/"))
        return [Path(path) for path in dict.fromkeys(paths)]

    def at(self, address: int, size: int = 8) -> Mapping | None:
        """Return the range in which so many bytes lie, None if they lie in none or in two."""
        for m in self._all:
            if m.start <= address and address + size <= m.end:
                return m
        return None

    def library_around(self, address: int) -> range:
        """Return the addresses from a library's first to its last, of which one is given.

        What lies behind its last part of the file is memory of its own, too: zeros at first.
        """
        home = self.at(address, 1)
        if home is None or not home.path:
            return range(0)
        parts = [m for m in self._all if m.path == home.path]
        start, end = min(m.start for m in parts), max(m.end for m in parts)
        zeros = (m.end for m in self._all if m.start == end and not m.path)
        return range(start, next(zeros, end))

    def first_pages(self, path: Path, offset: int) -> list[Mapping]:
        """List where the part of a file is mapped that begins at an offset."""
        return [m for m in self._all if m.path == str(path) and m.offset == offset]


def _read(line: str) -> Mapping:
    addresses, access, offset, device, inode, *path = line.split(maxsplit=5)
    start, end = (int(x, 16) for x in addresses.split("-"))
    major, minor = (int(x, 16) for x in device.split(":"))
    file = (major, minor, int(inode))
    return Mapping(start, end, access, int(offset, 16), file, path[0] if path else "")


def is_same_file(mapping: Mapping, path: Path) -> bool:
    """Tell whether what is mapped is still what lies under a path.

    By the inode alone: some file systems give another number of a device here than there.
    """
    try:
        return path.stat().st_ino == mapping.file[2] != 0
    except OSError:
        return False
