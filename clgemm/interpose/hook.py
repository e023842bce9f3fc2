"""Interposition, switched on and off: `install`, `uninstall`, `interposed` and `usage`."""

from __future__ import annotations

import atexit
import logging
import operator
import os
import threading
import warnings
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clgemm.errors import ClgemmWarning
from clgemm.interpose import account, imports, later, slots, stub
from clgemm.interpose.account import Tally
from clgemm.interpose.callbacks import Callback, Reasons
from clgemm.interpose.decisions import least_product
from clgemm.runtime import forks, machine_code
from clgemm.runtime.mappings import Mappings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from clgemm.interpose.account import Usage
    from clgemm.interpose.slots import Missed, Slot

log = logging.getLogger(__name__)

_NUMPY = "_multiarray_umath"
"""NumPy's products; of a matrix with its transpose, it asks for a triangle and mirrors it."""
_OF_PYTHON = (_NUMPY, "_fblas")
"""Modules that only Python calls; others may be called by threads of compiled code."""
PATIENCE = 10.0  # seconds that a fork waits for another thread that installs


class _Interposed:
    """A slot with the stub that is written into it; both are kept for ever."""

    def __init__(self, slot: Slot, reasons: Reasons, opened: Callable[[], object]) -> None:
        self.slot = slot
        self.cell = stub.cell()
        self.tally = Tally()
        self.stub = 0
        self.callback: Callback | None = None
        if slot.entry.is_computed:
            self.callback = Callback(
                slot.entry, self.cell, self.tally, reasons, opened,
                calls_alone=slot.path.name.startswith(_OF_PYTHON),
                mirrors=slot.path.name.startswith(_NUMPY),
            )  # fmt: skip
            forks.keep_for_ever(self.callback.function)

    def code(self) -> bytes:
        """Return the machine code of its stub, which goes to the original for the time being."""
        entry, cell = self.slot.entry, self.cell
        if self.callback is None:
            cell.fill(self.slot.original, 0, stub.NEVER)
            return stub.counting_code(cell.address)
        cell.fill(self.slot.original, stub.address_of(self.callback.function), stub.NEVER)
        return stub.code(cell.address, entry.extents, by_value=entry.is_cblas, wide=entry.wide)

    def row(self) -> account.Row:
        """Return its line of the account."""
        entry, module = self.slot.entry, account.module_name(str(self.slot.path))
        found = self.tally.row(entry.name, module, self.cell.calls, self.cell.least)
        if self.callback is None:
            return found._replace(only_counted=True)
        calls, flops = self.callback.left()
        return found._replace(
            host_calls=found.host_calls + calls, host_flops=found.host_flops + flops
        )


class _Block:
    """A with block of `interposed`."""


class _Hook:
    """All that is interposed in this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.installed = False
        self.blocks: weakref.WeakSet[_Block] = weakref.WeakSet()
        """With blocks of `interposed` that are open, in all threads.  One that was interrupted
        before it could end goes with its frame."""
        self.least: int | None = None
        self.known: dict[tuple[str, int], _Interposed] = {}
        self.missed: dict[tuple[str, str], Missed] = {}
        self.reasons = Reasons()
        self.is_on = False
        self.is_done = True
        """Whether all slots are as that says: Ctrl-C may end a switch before."""

    def switch(self) -> None:
        """Write all slots, or restore them, as is asked for now; hold the lock."""
        wanted = self.installed or len(self.blocks) > 0
        if wanted == self.is_on and self.is_done:
            return
        self.is_done = False
        self.is_on = wanted
        if wanted:
            later.begin()
            imports.begin(self.look)
            mappings = Mappings()
            self._set_least(self.known.values())
            for known in self.known.values():  # modules stay loaded once they were interposed
                self._write(mappings, known)
            self._take(self._unknown())
        else:
            imports.end()
            self._restore()
            later.end()
        self.is_done = True

    def look(self, path: Path) -> None:
        """Interpose a module that was just loaded."""
        if not self.lock.acquire(timeout=PATIENCE):  # who has it may wait for this import
            log.warning("%s is not interposed: another thread installs", path)
            return
        try:
            if self.is_on:
                self._take([path])
        finally:
            self.lock.release()

    def set_thresholds(self) -> None:
        """Find out anew which calls are small."""
        if self.is_on:
            self._set_least(list(self.known.values()))

    def _take(self, paths: list[Path]) -> None:
        """Find new slots and write those that may be written."""
        found, missed = slots.find(paths)
        self.missed.update({(str(x.path), x.name): x for x in missed if not self._is_ours(x)})
        new = [
            _Interposed(slot, self.reasons, self.set_thresholds)
            for slot in found
            if slot.key not in self.known
        ]
        if new:
            addresses = stub.place([x.code() for x in new])
            self._set_least(new)
            for x, address in zip(new, addresses, strict=True):
                x.stub = address
                self.known[x.slot.key] = x
                self.missed.pop((str(x.slot.path), x.slot.entry.name), None)
                x.slot.set(x.stub)

    def _unknown(self) -> list[Path]:
        """List what is loaded and was not interposed as a whole."""
        missed = {x.path for x in self.missed.values()}
        whole = {x.slot.path for x in self.known.values()} - missed
        return [path for path in Mappings().objects() if path not in whole]

    def _is_ours(self, missed: Missed) -> bool:
        """Tell whether a slot looks odd because a stub is in it."""
        return any(
            x.slot.path == missed.path
            and x.slot.entry.name == missed.name
            and x.slot.get() == x.stub
            for x in self.known.values()
        )

    def _write(self, mappings: Mappings, x: _Interposed) -> None:
        """Write a slot that was written before, if it is as it was."""
        if not x.slot.is_writable(mappings):
            return
        held = x.slot.get()
        if held not in (x.stub, x.slot.original):
            why = "something else has replaced it"
            key = str(x.slot.path), x.slot.entry.name
            self.missed[key] = slots.Missed(x.slot.path, x.slot.entry.name, why)
            return
        x.slot.set(x.stub)

    def _set_least(self, found: Iterable[_Interposed]) -> None:
        """Set which calls are small; what is only counted shows none."""
        least: dict[str, int] = {}
        for x in found:
            if x.callback is None:
                continue
            precision = x.slot.entry.precision
            if precision.code not in least:
                by_hand = self.least
                least[precision.code] = least_product(precision) if by_hand is None else by_hand
            x.callback.set_least(least[precision.code])

    def _restore(self) -> None:
        mappings = Mappings()
        for x in self.known.values():
            x.cell.set_least(stub.NEVER)  # for who has read the slot before
            if x.slot.is_writable(mappings) and x.slot.get() in (x.stub, x.slot.original):
                x.slot.set(x.slot.original)
            else:
                log.warning("%s of %s was changed meanwhile", x.slot.entry.name, x.slot.path)

    def usage(self) -> Usage:
        """Return the account."""
        with self.lock:
            rows = [x.row() for x in self.known.values()]
            missed = tuple(
                account.Missed(account.module_name(str(x.path)), x.name, x.why)
                for x in self.missed.values()
            )
            return account.Usage(
                self.is_on, machine_code.why_not(), account.merged(rows), missed, self.reasons.all()
            )


_hook = _Hook()


def install(*, least: int | None = None) -> None:
    """Have the gemm and syrk that NumPy, SciPy and other compiled modules call computed by clgemm.

    Their slots, the places in memory where they keep the addresses of BLAS functions, are pointed
    at clgemm; also those of modules that are imported later.  Large products go to the device where
    that is faster, all others to the original function; so do gemm3m, herk and gemmt.  Calls of
    gemv, symm and the like are counted.

    Parameters
    ----------
    least : int, optional
        The product m * n * k up to which calls go to the original without a look; by default where
        the device may begin to win.

    Raises
    ------
    TypeError
        If `least` is no whole number: nothing is interposed then.

    Warns
    -----
    ClgemmWarning
        If no machine code can be placed in this process: nothing is interposed then.

    See Also
    --------
    uninstall, interposed, usage

    Examples
    --------
    >>> import numpy as np
    >>> install()
    >>> a = np.ones((300, 300), np.float32)
    >>> bool((a @ a == 300).all())
    True
    >>> uninstall()
    """
    least = _threshold("install", least)
    if _is_possible():
        with _hook.lock:
            _hook.installed = True
            _begin(least)


def uninstall() -> None:
    """Undo `install`: every slot holds what it held.

    Blocks of `interposed` that are open keep what they have to their ends.
    """
    with _hook.lock:
        _hook.installed = False
        _hook.switch()


@contextmanager
def interposed(*, least: int | None = None) -> Iterator[None]:
    """Interpose as `install` does, inside a with block, in all threads.

    Parameters
    ----------
    least : int, optional
        As of `install`.

    Raises
    ------
    TypeError
        As `install` does.

    Warns
    -----
    ClgemmWarning
        As `install` does.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.ones((300, 300), np.float32)
    >>> with interposed():
    ...     bool((a @ a == 300).all())
    True
    """
    least = _threshold("interposed", least)
    if not _is_possible():
        yield
        return
    before, block = _hook.least, _Block()
    try:
        with _hook.lock:
            _hook.blocks.add(block)
            _begin(least)
        yield
    finally:
        with _hook.lock:
            _hook.blocks.discard(block)
            _begin(before)


def usage() -> Usage:
    """Return the account of interposed calls: how many, how large, where, and what was missed.

    Returns
    -------
    Usage
        Its text is a table.
    """
    return _hook.usage()


def _threshold(where: str, least: Any) -> int | None:
    """Read a threshold, before anything is changed."""
    try:
        return None if least is None else operator.index(least)
    except TypeError:
        raise TypeError(
            f"{where}: least is {least!r}: pass a whole number, the product m * n * k up to which "
            "calls go to the original, or leave it out"
        ) from None


def _is_possible() -> bool:
    why = machine_code.why_not()
    if why is not None:
        warnings.warn(f"nothing is interposed: {why}", ClgemmWarning, stacklevel=4)
    return why is None


def _begin(least: int | None) -> None:
    """Write or restore the slots as is asked for now, with another threshold perhaps."""
    _hook.least = least
    _hook.switch()
    _hook.set_thresholds()


@atexit.register
def _at_exit() -> None:
    """Send all calls to the originals: no thread may come to Python any more."""
    with _hook.lock:
        _hook.installed = False
        _hook.blocks.clear()
        _hook.switch()


_fork = threading.local()


def _before_fork() -> None:
    _fork.waited = _hook.lock.acquire(timeout=PATIENCE)


def _after_fork_in_parent() -> None:
    if _fork.waited:
        _hook.lock.release()


def _after_fork_in_child() -> None:
    if _fork.waited:
        _hook.lock.release()
    else:  # the thread that holds it is not in the child
        _hook.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
