"""Compiled programs on disk, for drivers that keep none themselves.

A file is the SHA-256 of the binary, then the binary: a torn or damaged one is noticed here and
never reaches a driver, nor does one that somebody else may have written.  Its name hashes the
source, the device and the driver, so a new one of any makes a new file; those that nobody reads any
more are removed.  Whatever goes wrong costs a compilation and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.runtime import private_files

if TYPE_CHECKING:
    from pathlib import Path

    from clgemm.traits import DeviceTraits

log = logging.getLogger(__name__)

DIGEST_BYTES = 32
MOST_BYTES = 64 << 20
FOLDER = "programs"
DAY = 86400.0  # seconds
UNREAD_DAYS = 90  # after which a program is removed
MOST_TOTAL_BYTES = 1 << 30  # of all programs


class Binaries:
    """A folder of compiled programs for one device.

    Parameters
    ----------
    folder : Path
        Made at the first write.
    fingerprint : str
        Of the device and driver.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint

    def _path(self, text: str) -> Path:
        key = hashlib.sha256(f"{self._fingerprint}\n{text}".encode()).hexdigest()[:32]
        return self._folder / f"{key}.bin"

    def load(self, text: str) -> bytes | None:
        """Return the binary of a source text, None if there is none or it is damaged."""
        path = self._path(text)
        data = private_files.read(path, MOST_BYTES).data or b""
        digest, binary = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        if hashlib.sha256(binary).digest() != digest:
            return None
        private_files.note_use(path, DAY)
        return binary

    def has(self, text: str) -> bool:
        """Tell whether there is a binary of a source text; it may be damaged."""
        return private_files.status(self._path(text)) is not None

    def save(self, text: str, binary: bytes) -> None:
        """Keep a binary; a folder that cannot be written is the same as no folder."""
        path = self._path(text)
        try:
            private_files.make(path.parent)
            private_files.write(path, hashlib.sha256(binary).digest() + binary)
        except OSError as error:
            log.debug("the program cannot be kept in %s: %s", path, error)
            return
        self._remove_unread()

    def _remove_unread(self) -> None:
        """Remove programs that were not read for long, and the oldest of too many."""
        names = private_files.names(self._folder)
        paths = [self._folder / name for name in names if name.endswith((".bin", ".tmp"))]
        found = [(path, status) for path in paths if (status := private_files.status(path))]
        now, total = time.time(), 0
        for path, status in sorted(found, key=lambda x: -x[1].st_mtime):
            total += status.st_size
            age = DAY if path.suffix == ".tmp" else UNREAD_DAYS * DAY
            if now - status.st_mtime > age or total > MOST_TOTAL_BYTES:
                with suppress(OSError):  # it is tried again at the next write
                    private_files.remove(path)


def kept_for(traits: DeviceTraits) -> Binaries | None:
    """Return where a device's programs are kept, None if its driver keeps them itself."""
    if traits.caches_programs:
        return None
    return Binaries(settings.cache_dir() / FOLDER, traits.fingerprint())
