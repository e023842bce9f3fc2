"""Imports that wait for the first call which needs them, and for which a fork waits in turn.

A module's import lock that another thread holds at the fork is held for ever in the child: its own
first call would wait for it.
"""

from __future__ import annotations

import importlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

importing = threading.RLock()
"""Held during such an import."""


def lazy_import(name: str) -> ModuleType:
    """Import a module and return it; no thread forks meanwhile."""
    with importing:
        return importlib.import_module(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=importing.acquire,
        after_in_parent=importing.release,
        after_in_child=importing.release,
    )
