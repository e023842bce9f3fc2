"""Compiled programs on disk, for drivers that keep none themselves.

A file is the SHA-256 of the binary, then the binary: a torn or damaged one is noticed here and
never reaches a driver, nor does one that somebody else may have written.  Its name hashes the
source, the device and the driver, so a new one of any makes a new file.  Whatever goes wrong costs
a compilation and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.runtime import private_files

if TYPE_CHECKING:
    from pathlib import Path

    from clgemm.traits import DeviceTraits

log = logging.getLogger(__name__)

DIGEST_BYTES = 32
MOST_BYTES = 64 << 20


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
        data = private_files.read(self._path(text), MOST_BYTES).data or b""
        digest, binary = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        return binary if hashlib.sha256(binary).digest() == digest else None

    def save(self, text: str, binary: bytes) -> None:
        """Keep a binary; a folder that cannot be written is the same as no folder."""
        path = self._path(text)
        try:
            private_files.make(path.parent)
            private_files.write(path, hashlib.sha256(binary).digest() + binary)
        except OSError as error:
            log.debug("the program cannot be kept in %s: %s", path, error)


def kept_for(traits: DeviceTraits) -> Binaries | None:
    """Return where a device's programs are kept, None if its driver keeps them itself."""
    if traits.caches_programs:
        return None
    return Binaries(settings.cache_dir() / "programs", traits.fingerprint())
