"""Slots of this process: found, checked, written and restored.

A slot is written only if all of this holds; else it is left alone, and a sentence says why:

- the file is still the one that is mapped, once, and its pages are where it says;
- the slot is aligned and lies in memory of that file which may be written already;
- it holds the address that the loader found for that very name, in another file;
- the module is one whose callers do not rely on the interpreter's lock being kept: it can release
  that lock itself, or is SciPy's own.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from clgemm.interpose import elf, entries
from clgemm.runtime.mappings import Mappings, is_same_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from clgemm.interpose.entries import Entry
    from clgemm.runtime.mappings import Mapping

RELEASES_LOCK = "PyEval_SaveThread"
"""What a module calls to let other threads run: who does has not made the lock its own."""
_SCIPYS = re.compile(r".*/scipy/linalg/[^/]*\.so")
"""They call a BLAS with the lock or without, as their callers have it, and keep nothing of their
own that it would guard."""


class Slot(NamedTuple):
    """A place in memory that holds a function's address and may be written."""

    path: Path
    """Of the module that calls through it."""
    entry: Entry
    address: int
    original: int
    """What it held when it was found."""

    @property
    def key(self) -> tuple[str, int]:
        """What is the same as long as the module is loaded."""
        return str(self.path), self.address

    def is_writable(self, mappings: Mappings) -> bool:
        """Tell whether its memory may still be written."""
        home = mappings.at(self.address)
        return home is not None and home.access.startswith("rw")

    def get(self) -> int:
        """Return what it holds now."""
        return ctypes.c_void_p.from_address(self.address).value or 0

    def set(self, pointer: int) -> None:
        """Write it, in one store."""
        ctypes.c_void_p.from_address(self.address).value = pointer


class Missed(NamedTuple):
    """A slot, or a file, that is left alone."""

    path: Path
    name: str
    """Of the function; "" for all of a file."""
    why: str


def find(paths: Iterable[Path] | None = None) -> tuple[list[Slot], list[Missed]]:
    """Find the slots of BLAS functions in modules that are loaded.

    Parameters
    ----------
    paths : iterable of Path, optional
        Of the modules; by default all that are mapped.

    Returns
    -------
    list of Slot, list of Missed
        What may be written, and which gemms may not.
    """
    found: list[Slot] = []
    missed: list[Missed] = []
    files = Mappings().objects() if paths is None else list(paths)
    wanted = [(path, _imports(path)) for path in files]
    modules = [(path, x) for path, x in wanted if isinstance(x, elf.Imports) and x.slots]
    if not modules:
        return found, missed
    mappings = Mappings()
    for path, imports in modules:
        loaded = _base(mappings, path, imports)
        if isinstance(loaded, str):
            if any(_is_computed(x) for x in imports.slots):
                missed.append(Missed(path, "", loaded))
            continue
        for x in imports.slots:
            slot = _checked(mappings, path, x, loaded)
            if isinstance(slot, Slot):
                found.append(slot)
            elif _is_computed(x):
                missed.append(Missed(path, x.name, slot))
    return found, missed


def _is_computed(imported: elf.Import) -> bool:
    """Tell whether it is worth a word that a function is missed."""
    entry = entries.Entry.of(imported.name)
    return entry is None or entry.is_computed


def _imports(path: Path) -> elf.Imports | str:
    """Read a file, or remember what it had if it is the same."""
    try:
        now = path.stat()
    except OSError as error:
        return str(error)
    return _read(path, now.st_ino, now.st_size, now.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, *_: int) -> elf.Imports | str:
    return elf.imports(path, entries.NAME, (RELEASES_LOCK,))


def _base(mappings: Mappings, path: Path, imports: elf.Imports) -> int | str:
    """Return where a module is loaded, or why none of its slots is written."""
    if RELEASES_LOCK not in imports.names and not _SCIPYS.fullmatch(str(path)):
        return "it never releases the interpreter's lock, so it may rely on nobody else having it"
    page = -mmap.PAGESIZE
    first = mappings.first_pages(path, imports.offset & page)
    if len(first) != 1:
        return "it is not mapped once"
    if not is_same_file(first[0], path):
        return "another file lies under its path by now"
    if not _is_kept(path):
        return "the loader does not know it under its path"
    return first[0].start - (imports.base & page)


def _is_kept(path: Path) -> bool:
    """Have a module stay loaded to the end of the process, and tell whether that was possible."""
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)  # one more who uses it
    except OSError:
        return False
    return True


def _checked(mappings: Mappings, path: Path, imported: elf.Import, base: int) -> Slot | str:
    """Return a slot that may be written, or why it may not."""
    entry, address = entries.Entry.of(imported.name), base + imported.where
    if entry is None:
        return "its name is not understood"
    home = mappings.at(address)
    if home is None or home.path != str(path) or address % 8 or "r" not in home.access:
        return "its slot is not where the file says"
    if "w" not in home.access:
        return "its slot is read-only: the module was linked with -z now"
    slot = Slot(path, entry, address, ctypes.c_void_p.from_address(address).value or 0)
    why = _why_not_bound(mappings, slot)
    return slot if why is None else why


def _why_not_bound(mappings: Mappings, slot: Slot) -> str | None:
    """Tell why what a slot holds is not the function of its name; None if it is."""
    library = mappings.at(slot.original, 1)
    if library is None or not library.path.startswith("/") or "x" not in library.access:
        return "it points to no library: something else has replaced it"
    if library.path == str(slot.path):
        return "the loader has not found its function yet: that comes with the first call"
    if _exported(library, slot.entry.name) != slot.original:
        return f"it points to another function, in {library.path}"
    if "64" in _stem(library.path) and not slot.entry.wide:
        return "its integers may have 64 bits, of which its name says nothing"
    return None


def _exported(library: Mapping, name: str) -> int:
    """Return the address of a function that a loaded library exports, 0 if it does not."""
    try:
        function = ctypes.CDLL(library.path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)[name]
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _stem(path: str) -> str:
    """Return a library's name without version, hash and folder."""
    return re.split(r"[-.]", os.path.basename(path))[0]  # noqa: PTH119 - a path of text, from maps
