"""Files of tuned parameters as they lie on disk: the user's, those that ship, those to exchange."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

SCHEMA = 3
"""1 named the kernel source once a file, not once an entry; 2 had one choice for each of three
classes of sizes, 3 has variants with a model of their times."""
LEFT_BEHIND_SECONDS = 60.0
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
    """Read a file of parameters, the user's or a shipped one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Contents({}, {})
    except OSError as error:
        return Contents({}, {}, f"unreadable: {error}")
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
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))
    return []


def replace(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that a reader sees the old file or the new one, whole."""
    handle, name = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def clear_left_behind(path: Path) -> None:
    """Remove what processes that were killed while they replaced `path` left beside it."""
    for left in path.parent.glob(f"{path.stem}.*.tmp"):
        with suppress(OSError):  # another process was quicker
            if time.time() - left.stat().st_mtime > LEFT_BEHIND_SECONDS:
                left.unlink()
