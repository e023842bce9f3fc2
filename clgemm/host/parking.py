"""Threads of another library sleep while something computes: a signal's handler holds them.

A thread that is parked gets a signal, and the handler has it wait for a word to change (a futex).
That is a few dozen bytes of machine code, which take no lock and use no memory but that word, so
that a thread may be stopped at any instruction; Go's runtime stops threads by the same signal
(Clements, "Non-cooperative goroutine preemption", Go proposal 24543, 2019).  To stop and to go on
takes some 30 us, where ending threads and starting them anew costs a later product milliseconds.

A thread that sleeps anyway need not be parked, and is not: that would cost each product these 30
us, since a thread that gets a signal has run.

What can go wrong costs time, at most `LIMIT_SECONDS` of it.  Then a thread goes on by itself,
whatever the one that parked it waits for, a lock that the parked one holds included; so does a
thread that gets the signal too late.  The signal is one that is ignored unless it has a handler.
If somebody else has given it one by now, nobody is parked any more.

x86-64, Linux.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import struct
import time
from typing import TYPE_CHECKING

from clgemm.runtime import machine_code

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT_SECONDS = 0.1
"""That a thread sleeps at most; OpenBLAS' have looked for work long enough by then, and sleep."""
LONG_SECONDS = 3e-4
"""Of a core: no signal takes so long.  Who used it, and runs no more, may be waiting for one."""
_SIGNAL = int(getattr(signal, "SIGURG", 0))  # Windows has none
_FUTEX, _TGKILL = 202, 234  # the system's numbers on x86-64
_WAKE, _ALL = 129, 2**31 - 1  # FUTEX_WAKE | FUTEX_PRIVATE_FLAG, and how many
_CPU_TIME = 6  # of one thread: CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED
_HANDLER = (
    "F3 0F 1E FA"  # endbr64             where indirect jumps may end
    "B8 CA 00 00 00"  # mov eax, 202        futex(
    "48 BF {word}"  # mov rdi, word           the word,
    "BE 80 00 00 00"  # mov esi, 128            FUTEX_WAIT | FUTEX_PRIVATE_FLAG,
    "BA 01 00 00 00"  # mov edx, 1              while it is 1,
    "49 BA {limit}"  # mov r10, limit          for so long)
    "0F 05"  # syscall             rcx, r11 and rax are the interrupted code's again
    "C3"  # ret                    after the handler
)


def why_not() -> str | None:
    """Return why no thread can be parked in this process, None if it can."""
    found = machine_code.why_not()
    if found is None and not _place().holds():
        return f"{signal.Signals.SIGURG.name} has another handler"
    return found


def awake(threads: Iterable[int]) -> list[int]:
    """Return those of some threads that compute now, or did for long since this was last asked.

    Parameters
    ----------
    threads : iterable of int
        Threads of this process, by the system's numbers.

    Raises
    ------
    ProcessLookupError
        If one of them has ended.
    """
    return [thread for thread in threads if _runs(thread)]


def park(threads: Iterable[int]) -> bool:
    """Have threads sleep until `unpark` is called; the caller must not wait for them.

    Returns
    -------
    bool
        Whether that is so: not if somebody else has given the signal a handler.
    """
    return _place().park(threads)


def unpark() -> None:
    """Have all threads go on, whoever has parked them."""
    _place().unpark()


@functools.cache
def _place() -> _Place:
    return _Place()


class _Place:
    """The handler, and the word that it waits for."""

    def __init__(self) -> None:
        page = machine_code.memory(64)
        self._word = ctypes.c_int.from_address(page)
        whole, part = divmod(LIMIT_SECONDS, 1)
        limit = struct.pack("<qq", int(whole), int(part * 1e9))
        ctypes.memmove(page + 16, limit, len(limit))
        parts = {"word": page, "limit": page + 16}
        addresses = {name: struct.pack("<Q", at).hex() for name, at in parts.items()}
        self._handler = machine_code.executable(bytes.fromhex(_HANDLER.format(**addresses)))
        # The interpreter's lock is kept: letting it go takes longer than any of these calls.
        libc = ctypes.PyDLL(None, use_errno=True)
        self._system, self._sigaction = libc.syscall, libc.sigaction
        self._found = (ctypes.c_uint64 * 32)()
        if self._handler_of_now() in (signal.SIG_DFL, signal.SIG_IGN):
            libc.signal.restype = ctypes.c_void_p
            libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            libc.signal(_SIGNAL, self._handler)  # calls that it interrupts go on (BSD)

    def _handler_of_now(self) -> int:
        """Return the address of the signal's handler, which `struct sigaction` begins with."""
        self._sigaction(_SIGNAL, None, self._found)
        return int(self._found[0])

    def holds(self) -> bool:
        """Tell whether the signal still has this handler."""
        return self._handler_of_now() == self._handler

    def park(self, threads: Iterable[int]) -> bool:
        if not self.holds():
            return False
        self._word.value = 1
        process = os.getpid()
        for thread in threads:
            self._system(_TGKILL, process, thread, _SIGNAL)
        return True

    def unpark(self) -> None:
        self._word.value = 0
        self._system(_FUTEX, ctypes.byref(self._word), _WAKE, _ALL)


_used: dict[int, float] = {}


def _runs(thread: int) -> bool:
    before, used = _used.get(thread, 0.0), _seconds(thread)
    _used[thread] = used
    if used - before > LONG_SECONDS:
        return True
    return used != before and _seconds(thread) != used  # else it had a signal, or sleeps since


def _seconds(thread: int) -> float:
    """Return how long a thread has used a core, what it does now included."""
    try:
        return time.clock_gettime(~thread << 3 | _CPU_TIME)
    except OSError as error:
        _used.pop(thread, None)
        raise ProcessLookupError(f"thread {thread} of this process has ended") from error
