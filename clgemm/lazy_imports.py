"""Imports that wait for the first call which needs them, and for which a fork waits in turn.

A module's import lock that another thread holds at the fork is held for ever in the child: its own
first call would wait for it.

Of the functions that `os.fork` calls before it forks, the last one registered comes first.  Modules
take locks of others while they are imported, logging's above all, for which a fork waits, too: that
one must come after the lock here, so `logging` is imported first.  Another library's lock may still
be in the way; hence a fork waits for `PATIENCE` at most.
"""

from __future__ import annotations

import _thread
import importlib
import logging  # noqa: F401 - registers what waits for its own lock, before it is done here
import os
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

PATIENCE = 10.0
"""Seconds that a fork waits at most: no import takes so long."""

importing = threading.RLock()
"""Held during such an import."""
_fork = threading.local()
_IMPORT_SYSTEM = vars(importlib._bootstrap)  # noqa: SLF001 - its frames hold modules' locks


def lazy_import(name: str) -> ModuleType:
    """Import a module and return it; no thread forks meanwhile.

    A call from within an import, of a signal handler perhaps, does not wait for other threads that
    import: they may wait for the module that is imported here.
    """
    taken = importing.acquire(blocking=not _is_importing())
    try:
        return importlib.import_module(name)
    finally:
        if taken:
            importing.release()


def lazy_import_apart(name: str) -> ModuleType:
    """Import a module as a whole, for signal handlers too, and return it.

    A handler that needs the module as well, in the midst of the import, would get half of it.
    Handlers run in the main thread, so another one imports, for which the handler can wait.  It is
    none of `threading`: a trace function that multiplies there would wait for the main thread.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if name in sys.modules or not in_main or _is_importing():
        return lazy_import(name)
    found: Future[ModuleType] = Future()
    try:
        _thread.start_new_thread(_import_into, (found, name))
    except RuntimeError:  # there are too many, or the program ends
        return lazy_import(name)
    return found.result()


def _is_importing() -> bool:
    """Tell whether this thread holds what others that import wait for."""
    if importing._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - as `threading` asks it
        return True
    frame = sys._getframe().f_back  # noqa: SLF001 - the one of `inspect` has to be imported
    while frame is not None and frame.f_globals is not _IMPORT_SYSTEM:
        frame = frame.f_back
    return frame is not None


def _import_into(found: Future[ModuleType], name: str) -> None:
    try:
        found.set_result(lazy_import(name))
    except BaseException as error:  # noqa: BLE001 - it is raised where the module was asked for
        found.set_exception(error)


def _before_fork() -> None:
    # Whatever is raised here, Python forks: Ctrl-C ends nothing but the wait.
    _fork.is_importing = importing._is_owned()  # type: ignore[attr-defined]  # noqa: SLF001 - as `threading` asks it
    if not _fork.is_importing:
        importing.acquire(timeout=PATIENCE)


def _after_fork_in_parent() -> None:
    if importing._is_owned() and not _fork.is_importing:  # type: ignore[attr-defined]  # noqa: SLF001 - likewise
        importing.release()


def _after_fork_in_child() -> None:
    if not importing._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - likewise
        # The thread that holds it, if one does, is not in the child.
        importing._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as the standard library does
    elif not _fork.is_importing:
        importing.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
