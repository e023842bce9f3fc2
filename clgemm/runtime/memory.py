"""Device memory of calls that copy: kept between calls, counted, and never more than allowed."""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import ref

from clgemm.runtime import opencl
from clgemm.runtime.ending import Stay
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUT_OF_MEMORY = frozenset({
    "MEM_OBJECT_ALLOCATION_FAILURE", "INVALID_BUFFER_SIZE", "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
})  # fmt: skip
SMALLEST = 4096  # bytes
IDLE_SHARE = 4  # one part in so many of what is allowed may lie idle
LOOK_SECONDS = 1e-3  # until a call that waits for memory looks again


def is_short_of_memory(error: BaseException | None) -> bool:
    """Tell whether an OpenCL call failed for want of memory."""
    return isinstance(error, cl.Error) and opencl.error_name(error) in OUT_OF_MEMORY


def rounded(size: int) -> int:
    """Round a buffer's size up by at most an eighth: calls of near sizes share buffers."""
    grain = 1 << max(size.bit_length() - 4, 0)
    return max(SMALLEST, -(-size // grain) * grain)


@lru_cache(maxsize=1024)
def _rounded_within(sizes: tuple[int, ...], limit: int, largest: int) -> tuple[int, ...]:
    """Round sizes up if they keep to what is allowed together and each."""
    wanted = tuple(rounded(size) for size in sizes)
    fits = sum(wanted) <= limit and max(wanted, default=0) <= largest
    return wanted if fits else sizes


class _Lease:
    """What one call uses, in a with block: as long as this object is there."""

    def __init__(
        self, memory: DeviceMemory, wanted: tuple[int, ...], limit: int, is_idle: Callable[[], bool]
    ) -> None:
        self.wanted, self.limit, self.is_idle = wanted, limit, is_idle
        self.total = sum(wanted)
        self.taken: list[tuple[cl.Buffer, int]] = []
        self.itself = ref(self)
        self.stay = Stay()
        self._memory = memory

    def __enter__(self) -> list[cl.Buffer]:
        try:
            self._memory.begin(self)
        except BaseException:
            self._memory.end(self)
            raise
        return [buffer for buffer, _ in self.taken]

    def __exit__(self, *_: object) -> None:
        self._memory.end(self)


def _is_held(lease: _Lease | None) -> bool:
    return lease is not None and not lease.stay.is_over()


class DeviceMemory:
    """Buffers of one context, leased or idle; the largest that the device allows is known."""

    def __init__(self, context: cl.Context, largest: int) -> None:
        self._context = context
        self._largest = largest
        # No Condition: its methods are Python's, and Ctrl-C may leave it held.
        self._lock = threading.Lock()
        self._idle: dict[cl.Buffer, int] = {}
        """Bytes of each buffer, the longest idle first; to ask the driver takes a microsecond."""
        self._leases: list[ref[_Lease]] = []
        """Weak, and with the stay of its thread: however often Ctrl-C comes, a lease ends with its
        call."""
        self.peak = 0
        """The most bytes that were leased and idle together."""

    @property
    def used(self) -> int:
        """Bytes of leased buffers."""
        leases = [itself() for itself in self._leases]
        return sum(lease.total for lease in leases if lease is not None)

    @property
    def idle(self) -> int:
        """Bytes of buffers that wait for their next use."""
        return sum(self._idle.values())

    def lease(self, sizes: Sequence[int], limit: int, is_idle: Callable[[], bool]) -> _Lease:
        """Give buffers of at least these sizes, and take them back.

        Waits while other calls use so much that the limit would be passed.  A call gets all of its
        buffers at once, so no two wait for each other.

        Parameters
        ----------
        sizes : sequence of int
            Bytes of each buffer; together at most `limit`.
        limit : int
            Bytes that may be in use and idle together.
        is_idle : callable
            Tells at the end whether no command can use the buffers any more.  If that was not
            proved, they are left to the driver, which releases them after its last command.

        Raises
        ------
        cl.Error
            If the device has no memory for them.
        """
        return _Lease(self, _rounded_within(tuple(sizes), limit, self._largest), limit, is_idle)

    def begin(self, lease: _Lease) -> None:
        """Find or make the buffers of a lease, when it fits beside the others."""
        while True:
            with self._lock:
                if self._leases:
                    self._leases = [x for x in self._leases if _is_held(x())]
                used = self.used if self._leases else 0
                if not used or used + lease.total <= lease.limit:
                    self._leases.append(lease.itself)
                    self._lend(lease, used + lease.total)
                    return
            time.sleep(LOOK_SECONDS)

    def _lend(self, lease: _Lease, used: int) -> None:
        """Give a lease its buffers; hold the lock since `used` bytes were counted."""
        found = [self._find(size) for size in lease.wanted]
        idle = self._evict(lease.limit - used)
        for size, buffer in zip(lease.wanted, found, strict=True):
            lease.taken.append((buffer or self._allocate(size), size))
        self.peak = max(self.peak, used + idle)

    def _find(self, size: int) -> cl.Buffer | None:
        """Take a buffer of exactly this size out of the idle ones."""
        for buffer, nbytes in self._idle.items():
            if nbytes == size:
                del self._idle[buffer]
                return buffer
        return None

    def _allocate(self, size: int) -> cl.Buffer:
        try:
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
        except cl.Error as error:
            if not (self._idle and is_short_of_memory(error)):
                raise
        self._evict(0)
        return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)

    def end(self, lease: _Lease) -> None:
        """End a lease; buffers that Ctrl-C keeps from being put back are dropped."""
        taken = lease.taken
        with self._lock:
            is_idle = bool(taken) and lease.is_idle()
            while taken and is_idle:
                buffer, size = taken.pop()
                self._idle[buffer] = size
            if lease.itself in self._leases:
                self._leases.remove(lease.itself)
            self._evict(lease.limit // IDLE_SHARE)

    def _evict(self, allowed: int) -> int:
        """Release idle buffers, the longest idle first, until at most so many bytes are idle.

        Returns
        -------
        int
            The bytes that are.
        """
        idle = self.idle
        while self._idle and idle > allowed:
            buffer = next(iter(self._idle))
            idle -= self._idle.pop(buffer)
            buffer.release()
        return idle

    def trim(self) -> None:
        """Release what is idle."""
        with self._lock:
            self._evict(0)
