"""Files of tuned parameters as they lie on disk: the user's, those that ship, those to exchange."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.runtime import private_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable
    from pathlib import Path

SCHEMA = 3
"""1 named the kernel source once a file, not once an entry; 2 had one choice for each of three
classes of sizes, 3 has variants with a model of their times."""
MOST_BYTES = 16 << 20
_FILE_NAME = re.compile(r"[0-9a-f]{16}\.json")


class Contents(NamedTuple):
    """What a file of parameters holds."""

    head: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]
    """By precision, whatever kernel source they were found with."""
    why: str = ""
    """Why it is not used, if it is not."""
    damaged: bool = False


def contents(path: Path | Traversable) -> Contents:
    """Read a file of parameters that is not in the cache directory: shipped, or to import."""
    try:
        return _parsed(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return Contents({}, {})
    except OSError as error:
        return Contents({}, {}, f"unreadable: {error}")


def cached_contents(path: Path) -> Contents:
    """Read a file of parameters in the cache directory."""
    data, why_not = private_files.read(path, MOST_BYTES)
    if data is None:
        return Contents({}, {}, f"unreadable: {why_not}" if why_not else "")
    return _parsed(data)


def cached_json(path: Path) -> Any:
    """Return what a file in the cache directory holds, None if it cannot be read."""
    try:
        return json.loads((private_files.read(path, MOST_BYTES).data or b"").decode())
    except (ValueError, RecursionError):
        return None


def _parsed(text: bytes) -> Contents:
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        return Contents({}, {}, f"damaged: {error}", damaged=True)
    return checked(data)


def checked(data: Any) -> Contents:
    """Tell what a file's JSON holds, and what is wrong with it."""
    if not isinstance(data, dict):
        return Contents({}, {}, "not a file of clgemm")
    if data.get("schema") != SCHEMA:
        return Contents(data, {}, "schema changed")
    entries = data.get("precisions")
    if not isinstance(entries, dict):
        return Contents(data, {}, "no entries")
    return Contents(data, {name: e for name, e in entries.items() if isinstance(e, dict)})


def files(folder: Path) -> list[Path]:
    """List the files of parameters in a cache directory, one a device and driver."""
    return [folder / name for name in private_files.names(folder) if _FILE_NAME.fullmatch(name)]


def replace(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the new one, whole."""
    private_files.write(path, json.dumps(data, indent=1).encode())
