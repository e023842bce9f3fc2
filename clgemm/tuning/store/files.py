"""Files of tuned parameters: in the cache directory, those that ship, those to exchange.

The version of their form is in the name of a file in the cache directory, so that older and newer
releases of clgemm keep their own.  What an older one left there is read and left alone.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.kernels import source
from clgemm.runtime import private_files
from clgemm.tuning.store.entries import ENTRY, NOT_READABLE, SOURCE, TRIAL, keep, keep_readable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable
    from pathlib import Path

SCHEMA = 4
"""1 named the kernel source once a file, not once an entry; 2 had one choice for each of three
classes of sizes, 3 has variants with a model of their times, 4 names routines and sources."""
SCHEMA_3_KERNELS = "b79b2b88d9200d7f"
"""The kernels of the last release with schema 3, by its hash: they are those of this release.
To be taken out with the next change of kernels; then what was found with them is outdated."""
MOST_BYTES = 16 << 20
_FILE = re.compile(rf"([0-9a-f]{{16}})(\.v{SCHEMA})?\.json")
_ENTRY_NAME = re.compile(r"\w{1,32}\.[\w-]{1,32}")


class Contents(NamedTuple):
    """What a file of parameters holds."""

    head: Mapping[str, Mapping[str, str | int]]
    """The device's identity and architecture, in clear; nothing if there is no file."""
    entries: Mapping[str, Mapping[str, Any]]
    """By name, as far as they are of their form; whatever sources they were found with."""
    why: str = ""
    """Why it is not used, if it is not."""
    bad: Mapping[str, str] = {}
    """What is wrong with entries that are not of their form."""


def read_file(path: Path | Traversable) -> Contents:
    """Read a file of parameters that is not in the cache directory: shipped, or to import."""
    try:
        return _parsed(path.read_bytes())
    except OSError as error:
        return Contents({}, {}, f"unreadable: {error}")


def read_cached(path: Path) -> Contents:
    """Read a file of parameters in the cache directory."""
    data, why_not = private_files.read(path, MOST_BYTES)
    if data is None:
        return Contents({}, {}, f"unreadable: {why_not}" if why_not else "")
    return _parsed(data)


def _parsed(text: bytes) -> Contents:
    data = read_json(text)
    if not isinstance(data, dict):
        return Contents({}, {}, data if isinstance(data, str) else "damaged: it is no object")
    facts = {name: _facts(data.get(name)) for name in ("identity", "architecture")}
    if data.get("schema") == 3:
        data = {"schema": SCHEMA, "entries": _converted(data.get("precisions"))}
    if data.get("schema") != SCHEMA or not isinstance(data.get("entries"), dict):
        return Contents(facts, {}, "schema changed")
    entries, bad = {}, {}
    for name, entry in data["entries"].items():
        try:
            entries[name] = keep(entry, ENTRY) | {"trials": entry.get("trials", [])}
        except NOT_READABLE as error:  # noqa: PERF203 - there are six entries
            bad[name] = f"it has no variants with parameters, shapes and times ({error!r})"
    return Contents(facts, {n: e for n, e in entries.items() if _ENTRY_NAME.fullmatch(n)}, "", bad)


def read_json(text: bytes) -> Any:
    """Return what JSON stands for, or say in a text that it is damaged."""
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        return f"damaged: {error}"
    return None if isinstance(data, str) else data


def _facts(data: Any) -> dict[str, str | int]:
    facts = data if isinstance(data, dict) else {}
    return {name: x for name, x in facts.items() if isinstance(x, str | int)}


def _converted(entries: Any) -> dict[str, Any]:
    """Turn entries of schema 3, for which all kernels were one source, into those of this one."""
    found = {}
    for code, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            known, kernels = keep(entry, ENTRY), keep(entry["kernels"], SOURCE)
        except NOT_READABLE:
            continue
        trials, same = keep_readable(entry.get("trials"), TRIAL), kernels == SCHEMA_3_KERNELS
        names = sorted({x["family"] for x in (*known["variants"], *(t["config"] for t in trials))})
        sources = {x: source.family_hash(x) if same else kernels for x in names}
        found[f"gemm.{code}"] = known | {"sources": sources, "trials": trials}
    return found


def list_files(folder: Path) -> list[Path]:
    """List the files of parameters in a cache directory, one a device and driver."""
    found: dict[str, Path] = {}
    for name in private_files.names(folder):
        match = _FILE.fullmatch(name)
        if match and (match[2] or match[1] not in found):
            found[match[1]] = folder / name
    return list(found.values())


def fingerprint_in(path: Path) -> str:
    """Return the fingerprint in the name of a file of the cache directory."""
    return path.name.partition(".")[0]


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the new one, whole."""
    private_files.write(path, json.dumps(data, indent=1).encode())
