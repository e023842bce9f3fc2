"""Compiled modules that are imported later: looked at as soon as they are loaded.

Their loader is the standard library's.  Its `create_module` loads the file, and after that nothing
of the module's has run but what old ones do at once.
"""

from __future__ import annotations

import logging
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_look: Callable[[Path], object] | None = None
_original: Any = ExtensionFileLoader.create_module


def begin(look: Callable[[Path], object]) -> None:
    """Have a function called with the file of each module that is loaded from now on."""
    global _look, _original  # noqa: PLW0603 - of the process, as the loader is
    if ExtensionFileLoader.create_module is not _create_module:
        _original = ExtensionFileLoader.create_module
        ExtensionFileLoader.create_module = _create_module  # type: ignore[method-assign]
    _look = look


def end() -> None:
    """Call it no more."""
    global _look  # noqa: PLW0603 - see above
    _look = None
    if ExtensionFileLoader.create_module is _create_module:  # else somebody has wrapped it
        ExtensionFileLoader.create_module = _original  # type: ignore[method-assign]


def _create_module(self: ExtensionFileLoader, spec: Any) -> Any:
    module = _original(self, spec)
    look = _look
    if look is not None:
        try:
            look(Path(spec.origin))
        except Exception:
            log.exception("%s cannot be looked at: it is not interposed", spec.origin)
    return module


# Python shows no frames of importlib's where an import fails, and knows them by this.
_create_module.__code__ = _create_module.__code__.replace(
    co_filename=ExtensionFileLoader.create_module.__code__.co_filename
)
