"""Parameters that leave the cache and come back: files to ship with clgemm or to hand to others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from clgemm import settings
from clgemm.errors import TuningError
from clgemm.kernels import source
from clgemm.problem import PRECISIONS
from clgemm.traits import fingerprint_of
from clgemm.tuning.store.entries import NOT_READABLE, variants_from_json
from clgemm.tuning.store.files import SCHEMA, Contents, cached_contents, contents
from clgemm.tuning.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAMES = (*PRECISIONS, *(f"{code}-fma" for code in "sc"))
"""Of entries; see `lookup.entry_name`."""
EXPORTED = ("tuned", "clgemm", "kernels", "search_seconds", "shapes", "variants")
FACTS = frozenset({
    "platform", "platform_version", "vendor", "name", "driver_version", "compute_units",
    "simd_bytes", "processor",
})  # fmt: skip


def file_name(head: Mapping[str, Any]) -> str:
    """Name a file after its device: letters, digits and hyphens."""
    identity = head["identity"]
    facts = (str(identity[name]) for name in ("platform", "name", "processor"))
    words = re.findall(r"[a-z0-9]+", " ".join(facts).lower())
    return "-".join(words) + ".json"


def export(path: Path, to: Path) -> tuple[Path, list[str]]:
    """Write what was found with this version's kernels, without the trials.

    Parameters
    ----------
    path : Path
        A file of the cache directory.
    to : Path
        The file to write, or the folder to write one in that is named after the device.

    Returns
    -------
    Path, list of str
        The file written, and the names of its entries.

    Raises
    ------
    TuningError
        If nothing in `path` was found with this version's kernels.
    OSError
        If the file cannot be written.
    """
    found = _accepted(path, cached_contents(path))
    kernels = source.package_hash()
    entries = {
        name: {key: entry[key] for key in EXPORTED if key in entry}
        for name, entry in found.entries.items()
        if entry.get("kernels") == kernels
    }
    if not entries:
        raise TuningError(
            f"{path} has nothing that was found with the kernels of this version; "
            "`python -m clgemm tune` searches anew"
        )
    if to.is_dir():
        to /= file_name(found.head)
    text = json.dumps(dict(found.head) | {"precisions": entries}, indent=1)
    to.write_text(f"{text}\n", encoding="utf-8")
    return to, list(entries)


def loaded(path: Path) -> Contents:
    """Read a file that somebody made, and check it.

    Raises
    ------
    TuningError
        Says what is wrong with the file, where in it, and what to do.
    """
    return _accepted(path, contents(path))


def _accepted(path: Path, found: Contents) -> Contents:
    """Return what a file holds if it can be used."""
    if not found.head and not found.why:
        raise TuningError(f"there is no file {path}")
    if found.why == "schema changed":
        theirs = found.head.get("schema")
        raise TuningError(
            f"{path} has schema {theirs}, this version of clgemm reads {SCHEMA}; "
            "export it again with this version"
        )
    wrong = found.why or _wrong(found)
    if wrong:
        raise TuningError(f"{path}: {wrong}; take a file that `clgemm cache export` wrote")
    return found


def _wrong(found: Contents) -> str:
    """Say what about a file's content is not as `export` writes it."""
    identity = found.head.get("identity")
    if not isinstance(identity, dict) or set(identity) != FACTS:
        return f"its identity does not name a device by {', '.join(sorted(FACTS))}"
    if not all(isinstance(value, str | int) for value in identity.values()):
        return "its identity holds what is neither text nor number"
    if not isinstance(found.head.get("architecture"), dict):
        return "it names no architecture"
    if not found.entries:
        return "it has no entries"
    return next(filter(None, (_wrong_entry(name, e) for name, e in found.entries.items())), "")


def _wrong_entry(name: str, entry: Mapping[str, Any]) -> str:
    if name not in NAMES:
        return f"{name!r} is none of {', '.join(NAMES)}"
    try:
        _, variants = variants_from_json(entry)
    except NOT_READABLE as error:
        return f"{name} has no variants with parameters, shapes and times ({error!r})"
    return "" if variants else f"{name} has no variants"


def take_up(found: Contents) -> tuple[Path, list[str]]:
    """Merge a file's entries into the cache directory; an entry replaces one of the same name.

    Returns
    -------
    Path, list of str
        The user's file of that device and driver, and the names of those entries that are there.
    """
    identity = found.head["identity"]
    store = Store(
        settings.cache_dir(),
        fingerprint_of(identity),
        identity,
        source.package_hash(),
        found.head["architecture"],
    )
    return store.path, [name for name, entry in found.entries.items() if store.write(name, entry)]
