"""Device memory of calls that copy: kept between calls, counted, and never more than allowed."""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard
from weakref import ref

from clgemm.runtime import opencl
from clgemm.runtime.ending import Stay
from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Sequence

OUT_OF_MEMORY = frozenset({
    "MEM_OBJECT_ALLOCATION_FAILURE", "INVALID_BUFFER_SIZE", "OUT_OF_RESOURCES",
    "OUT_OF_HOST_MEMORY",
})  # fmt: skip
SMALLEST = 4096  # bytes
IDLE_SHARE = 4  # one part in so many of what is allowed may lie idle
MOST_RESTING = 8  # leases that keep their buffers; those of `streaming.direct` have 48 MB at most
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


class Lease:
    """What one call uses, in a with block, and then perhaps a later one, in another.

    Counted for as long as this object is there and the with block lasts.
    """

    def __init__(
        self, memory: DeviceMemory, wanted: tuple[int, ...], limit: int, *, rests: bool
    ) -> None:
        self.wanted, self.limit, self.rests = wanted, limit, rests
        self.total = sum(wanted)
        self.taken: list[tuple[cl.Buffer, int]] = []
        self.buffers: list[cl.Buffer] = []
        """What is taken: the same list while nobody else had any of it."""
        self.is_idle = True
        """Whether no command can use the buffers.  Where that is not proved at the end, they are
        left to the driver, which releases them after its last command."""
        self.itself = ref(self)
        self.stay = Stay()
        self._memory = memory

    def __enter__(self) -> list[cl.Buffer]:
        try:
            self._memory.begin(self)
        except BaseException:
            self._memory.end(self)
            raise
        return self.buffers

    def __exit__(self, *_: object) -> None:
        self._memory.end(self)


class DeviceMemory:
    """Buffers of one context, leased or idle; the largest that the device allows is known."""

    def __init__(self, context: cl.Context, largest: int) -> None:
        self._context = context
        self._largest = largest
        # No Condition: its methods are Python's, and Ctrl-C may leave it held.
        self._lock = threading.Lock()
        self._idle: dict[cl.Buffer, int] = {}
        """Bytes of each buffer, the longest idle first; to ask the driver takes a microsecond."""
        self._resting: dict[Lease, int] = {}
        """Bytes of leases that keep their idle buffers together, the longest idle first."""
        self._leases: list[ref[Lease]] = []
        """Weak, and with the stay of its thread: however often Ctrl-C comes, a lease ends with its
        call."""
        self.peak = 0
        """The most bytes that were leased and idle together."""

    @property
    def used(self) -> int:
        """Bytes of leased buffers."""
        leases = [itself() for itself in self._leases]
        return sum(lease.total for lease in leases if self._is_there(lease))

    def _is_there(self, lease: Lease | None) -> TypeGuard[Lease]:
        """Tell whether a lease has buffers that others cannot have."""
        # Ctrl-C may have come between two steps of its end.
        return lease is not None and lease not in self._resting

    @property
    def idle(self) -> int:
        """Bytes of buffers that wait for their next use."""
        return sum(self._idle.values()) + sum(self._resting.values())

    def _is_held(self, lease: Lease | None) -> bool:
        return self._is_there(lease) and not lease.stay.is_over()

    def lease(self, sizes: Sequence[int], limit: int, *, rests: bool = False) -> Lease:
        """Give buffers of at least these sizes, and take them back.

        Waits while other calls use so much that the limit would be passed.  A call gets all of its
        buffers at once, so no two wait for each other.

        Parameters
        ----------
        sizes : sequence of int
            Bytes of each buffer; together at most `limit`.
        limit : int
            Bytes that may be in use and idle together.
        rests : bool
            Whether the lease is for several calls, one after the other, and keeps its buffers
            between them until others need the memory.

        Raises
        ------
        cl.Error
            If the device has no memory for them.
        """
        return Lease(self, _rounded_within(tuple(sizes), limit, self._largest), limit, rests=rests)

    def begin(self, lease: Lease) -> None:
        """Find or make the buffers of a lease, when it fits beside the others."""
        lease.stay, lease.is_idle = Stay(), True
        while True:
            with self._lock:
                if self._leases:
                    self._leases = [x for x in self._leases if self._is_held(x())]
                used = self.used if self._leases else 0
                if not used or used + lease.total <= lease.limit:
                    self._leases.append(lease.itself)
                    if self._resting.pop(lease, None) is None:
                        self._lend(lease, used + lease.total)
                    return
            time.sleep(LOOK_SECONDS)

    def _lend(self, lease: Lease, used: int) -> None:
        """Give a lease its buffers; hold the lock since `used` bytes were counted."""
        room = lease.limit - used
        while self._resting and self.idle > room:
            self._break_up(next(iter(self._resting)))
        found = [self._find(size) for size in lease.wanted]
        idle = self._evict(room)
        for size, buffer in zip(lease.wanted, found, strict=True):
            lease.taken.append((buffer or self._allocate(size), size))
        lease.buffers = [buffer for buffer, _ in lease.taken]
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

    def end(self, lease: Lease) -> None:
        """End a lease; buffers that Ctrl-C keeps from being put back are dropped."""
        with self._lock:
            if lease.is_idle:
                self._rest(lease)
            else:
                lease.taken, lease.buffers = [], []
            if lease.itself in self._leases:
                self._leases.remove(lease.itself)
            self._evict(lease.limit // IDLE_SHARE)

    def _rest(self, lease: Lease) -> None:
        """Keep the buffers of a lease together for its next call, if it has them all."""
        self._resting[lease] = lease.total
        if not (lease.rests and lease.buffers):
            self._break_up(lease)
        elif len(self._resting) > MOST_RESTING:
            self._break_up(next(iter(self._resting)))

    def _break_up(self, lease: Lease) -> None:
        """Let others have the buffers of a lease that rests."""
        # First of all it has none: Ctrl-C may come at any step, and its call asks for it again.
        taken, lease.taken, lease.buffers = lease.taken, [], []
        del self._resting[lease]
        while taken:
            buffer, size = taken.pop()
            self._idle[buffer] = size

    def _evict(self, allowed: int) -> int:
        """Release idle buffers, the longest idle first, until at most so many bytes are idle.

        Returns
        -------
        int
            The bytes that are.
        """
        idle = self.idle
        while idle > allowed and (self._idle or self._resting):
            if not self._idle:
                self._break_up(next(iter(self._resting)))
            buffer = next(iter(self._idle))
            idle -= self._idle.pop(buffer)
            buffer.release()
        return idle

    def trim(self) -> None:
        """Release what is idle."""
        with self._lock:
            self._evict(0)
