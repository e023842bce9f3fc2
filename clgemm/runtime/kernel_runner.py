"""Runs one plan on one device.  It decides nothing."""

from __future__ import annotations

import ctypes
import math
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

from clgemm.kernels.family import GEMM_STRUCT, OFFSETS, SLOTS
from clgemm.problem import ELEMENTS
from clgemm.runtime import ending, host_memory, interrupt, opencl
from clgemm.runtime.runner import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from clgemm.kernels.family import Config, Plan, Step
    from clgemm.problem import Call, Gemm
    from clgemm.runtime.device import Device
    from clgemm.runtime.interrupt import Stop
    from clgemm.runtime.opencl import cl
    from clgemm.runtime.queues import LaunchState

INT = struct.Struct("i")
INTEGERS = {"i": INT, "l": struct.Struct("q"), "p": struct.Struct("P")}
LAST_OPERAND = 5  # place of C among a kernel's arguments; beyond, operands stand for scratch
NO_OFFSETS = (0, 0, 0)
Bound = tuple[tuple[int, ...], bytes, bytes]
"""Offsets of the operands, alpha and beta, as a kernel's arguments have them."""
UNBOUND: Bound = ((), b"", b"")
OPERANDS = (3, 4, 5)  # places of A, B and C among the arguments of a kernel that takes them
Memory = tuple[Any, Any, Any]
"""Scratch memory, counters and tickets, None where a plan needs none."""
NOTHING: Memory = (None, None, None)
Values = tuple[complex, complex, Any, Any, Any, tuple[int, int, int]]
"""What one call brings: alpha, beta, the memory of a, b and c, elements before their first ones.

alpha and beta are within the precision's range; the imaginary parts are dropped in s and d.  The
memory is Buffers or SVM.  The caller keeps it alive: OpenCL does not.
"""


class _Launch:
    """One step: its kernel, and its arguments as far as they are known before a call.

    A kernel's object is shared by all plans that use it.  What never changes is set again only if
    another step used the kernel since.
    """

    def __init__(self, device: Device, step: Step, origin: tuple[int, ...]) -> None:
        self.kernel = device.programs.kernel(step.kernel)
        self.global_size, self.local_size = step.global_size, step.local_size
        sizes = ctypes.c_size_t * len(step.global_size)
        self.bare = (
            ctypes.c_void_p(self.kernel.handle.int_ptr), len(step.global_size), None,
            sizes(*step.global_size), sizes(*step.local_size), 0, None, None,
        )  # fmt: skip
        """What a launch without an event takes after the queue."""
        constants: list[Any] = []
        places: dict[str, int] = {}
        for i, (arg, letter) in enumerate(zip(step.args, step.kernel.signature, strict=True)):
            if isinstance(arg, int):
                constants += i, INTEGERS[letter].pack(arg)
            elif isinstance(arg, bytes):
                constants += (i, arg) if i else ()
            else:
                places[f"{arg} {i}" if arg in places else arg] = i
        self._constants = tuple(constants)
        self._alpha, self._beta = places["alpha"], places["beta"]
        self.operands = tuple(places.get(x, 0) for x in "abc")
        """Where the caller's memory goes: nowhere if all three operands lie in scratch memory."""
        self._in_scratch = not any(self.operands)
        self._cell = places.get("cell", 0)
        self._more = tuple(
            (i, SLOTS.index(name.split()[0]))
            for name, i in places.items()
            if name not in SLOTS[:5] and name != "cell"
        )
        self.is_plain = self.operands == OPERANDS and not self._more and not self._cell
        """Whether the operands are all the memory that it takes."""
        first = step.args[0]
        assert isinstance(first, bytes)  # noqa: S101 - GEMM_SIGNATURE begins with the problem
        # The plan was made for offsets of the same alignment; a call brings its own.
        self._fields = list(GEMM_STRUCT.unpack(first))
        for place, offset in zip(OFFSETS, origin, strict=True):
            self._fields[place] -= 0 if self._in_scratch else offset
        self.bound = UNBOUND
        """What is set, if this step was the last to use the kernel."""

    def bind(self, bound: Bound, values: Values, more: Memory, cell: int | None) -> None:
        """Set the arguments; hold the device's lock from here until the launch."""
        kernel = self.kernel
        kernel.repeats = None
        if kernel.owner is not self or self.bound != bound:
            self.bind_numbers(bound)
        if self._cell:
            kernel.set_numbers((self._cell, INT.pack(cell or 0)))
        kernel.set_memory(self.memory(values, more))

    def memory(self, values: Values, more: Memory) -> tuple[Any, ...]:
        """List the arguments that are memory: places and values in turn."""
        if self.is_plain:
            return 3, values[2], 4, values[3], 5, values[4]
        memory: tuple[Any, ...] = ()
        if not self._in_scratch:
            a, b, c = self.operands
            memory = a, values[2], b, values[3], c, values[4]
        for i, slot in self._more:
            memory += i, values[slot] if slot < LAST_OPERAND else more[slot - LAST_OPERAND]
        return memory

    def bind_numbers(self, bound: Bound) -> None:
        """Set the arguments that are no memory."""
        kernel, (offsets, alpha, beta) = self.kernel, bound
        if kernel.owner is not self:
            kernel.owner = None  # in case Ctrl-C comes between
            kernel.set_numbers(self._constants)
            self.bound = UNBOUND
            kernel.owner = self
        numbers: tuple[Any, ...] = self._alpha, alpha, self._beta, beta
        if offsets != self.bound[0]:
            fields = self._fields.copy()
            for place, offset in zip(OFFSETS, offsets, strict=True):
                fields[place] += 0 if self._in_scratch else offset
            numbers += 0, GEMM_STRUCT.pack(*fields)
        self.bound = UNBOUND
        kernel.set_numbers(numbers)
        self.bound = bound


class KernelRunner:
    """A plan whose kernels are built and whose arguments wait for their values.

    Parameters
    ----------
    device : Device
        Where it will run.
    problem : Gemm
        What the plan computes.
    plan : Plan
        What will run.
    config : Config, optional
        What the plan was made with, for people.
    long : bool
        Whether it may run for so long that Ctrl-C must end it.
    """

    def __init__(
        self, device: Device, problem: Gemm, plan: Plan, *, config: Config | None = None,
        long: bool = False,
    ) -> None:  # fmt: skip
        self._device = device
        self._config = config
        self._long = long
        self._enqueue = opencl.load().enqueue_nd_range_kernel
        self._bare = opencl.bare_launch()
        precision = ELEMENTS[problem.precision]
        self._is_complex = precision.is_complex
        self._pack = struct.Struct(precision.struct_format).pack
        self._packed: tuple[complex, complex, tuple[bytes, bytes]] = (
            math.nan,
            math.nan,
            (b"", b""),
        )
        self.scratch_bytes = plan.scratch_bytes
        """Scratch memory that it needs."""
        self._counts, self._takes_tickets = plan.counts, plan.takes_tickets
        self._is_alone = not (plan.scratch_bytes or plan.counts or plan.takes_tickets)
        """Whether its launches use nothing but the operands."""
        origin = problem.offset_a, problem.offset_b, problem.offset_c
        self._launches = [_Launch(device, step, origin) for step in plan.steps]

    def work(self) -> Work:
        """Say what a call does, for people."""
        return Work(str(self._config) if self._config else "")

    def run(self, call: Call, stop: Stop | None = None) -> None:
        """Compute where the operands lie, and wait; see `Runner.run`."""
        device, share = self._device, host_memory.share
        a, b, c = share(device, call.a), share(device, call.b), share(device, call.c)
        self.execute((call.alpha, call.beta, a, b, c, NO_OFFSETS), stop)

    def _factors(self, values: Values) -> tuple[bytes, bytes]:
        """Return alpha and beta as the kernels take them."""
        alpha, beta, known = values[0], values[1], self._packed
        if alpha == known[0] and beta == known[1]:
            return known[2]
        if self._is_complex:
            packed = self._pack(alpha.real, alpha.imag), self._pack(beta.real, beta.imag)
        else:
            packed = self._pack(alpha.real), self._pack(beta.real)
        self._packed = alpha, beta, packed
        return packed

    def enqueue(
        self, values: Values, state: LaunchState, wait_for: list[cl.Event], *,
        in_order: bool = False,
    ) -> cl.Event | None:  # fmt: skip
        """Launch every step on a queue, and wait for none.

        Parameters
        ----------
        values : Values
            Of Buffers.
        state : LaunchState
            The queue, in the device's context, and what calls on it share.
        wait_for : list of cl.Event
            What must have ended before the first step.
        in_order : bool
            Whether the order of the queue is all that the caller needs.

        Returns
        -------
        cl.Event or None
            The last step's; not to be used if `in_order`, unless the queue has events.
        """
        bound = values[5], *self._factors(values)
        device = self._device
        bare = None if state.has_events else self._bare
        last = None if in_order else self._launches[-1]
        event: cl.Event | None = None
        device.running.append(None)
        try:
            ending.leave()
            with device.lock:
                try:
                    if self._is_alone and state.in_order:
                        state.used, waits, more = True, wait_for or None, NOTHING
                    else:
                        waits, more = state.begin(
                            wait_for, self.scratch_bytes, counts=self._counts,
                            takes_tickets=self._takes_tickets,
                        )  # fmt: skip
                    for launch in self._launches:
                        launch.bind(bound, values, more, 0)
                        # What the driver refuses pyopencl tries again, or says what is wrong.
                        if (
                            bare is None or waits is not None or launch is last
                            or bare(state.handle, *launch.bare)
                        ):  # fmt: skip
                            event = self._enqueue(
                                state.queue, launch.kernel.handle, launch.global_size,
                                launch.local_size, None, waits, False, False,
                            )  # fmt: skip
                            waits = None if state.in_order else [event]
                    if not state.in_order:
                        state.last = event
                except BaseException:
                    state.trim()  # what was launched may use its memory still
                    raise
        finally:
            device.running.pop()
        return event

    def repeated(self, values: Values, state: LaunchState) -> Callable[[Any], None]:
        """Return what does the same again, into memory that it takes; see `enqueue`.

        Parameters
        ----------
        values : Values
            Of Buffers.
        state : LaunchState
            A queue that runs in order and makes no events.
        """
        first, bare = self._launches[0], self._bare
        alpha, beta, left, right, _, offsets = values

        def enqueue(c: Any) -> None:
            self.enqueue((alpha, beta, left, right, c, offsets), state, [], in_order=True)

        if bare is None or len(self._launches) > 1 or self._counts:
            return enqueue
        device, kernel, handle, arguments = self._device, first.kernel, state.handle, first.bare
        bound, place = (offsets, *self._factors(values)), first.operands[-1]
        is_alone, takes_tickets = self._is_alone, self._takes_tickets
        me, known = object(), -1

        def launch(c: Any) -> None:
            nonlocal known
            device.running.append(None)
            try:
                with device.lock:
                    if kernel.repeats is me and (is_alone or state.version == known):
                        state.used = True
                        kernel.set_memory((place, c))
                    else:
                        more = state.memory(self.scratch_bytes, takes_tickets=takes_tickets)
                        first.bind(bound, (alpha, beta, left, right, c, offsets), more, None)
                        known, kernel.repeats = state.version, me
                    if not bare(handle, *arguments):
                        return
            finally:
                device.running.pop()
            enqueue(c)  # pyopencl says what is wrong

        return launch

    def execute(
        self, values: Values, stop: Stop | None = None, *, poisoned: bool = False,
        events: list[cl.Event] | None = None,
    ) -> None:  # fmt: skip
        """Launch every step on the device's own queue and wait; the GIL is released meanwhile.

        Parameters
        ----------
        values : Values
            What the kernels work on.
        stop : Stop, optional
            Set if the result, void then, is not wanted any more.
        poisoned : bool
            Fill the scratch memory with NaN before.
        events : list, optional
            Gets the event of each launch.
        """
        device = self._device
        device.running.append(None)
        try:
            ending.leave()
            if device.worker_threads is not None:
                device.worker_threads.leave_core()
            # This call's alone until its last launch has ended.
            scratch = device.scratch.lease(self.scratch_bytes) if self.scratch_bytes else None
            self._execute(values, scratch, stop, poisoned, events)
            device.scratch.release(scratch)  # not if Ctrl-C ended the wait for that end
            ending.leave()  # what was computed may be void
        finally:
            device.running.pop()

    def _execute(
        self, values: Values, scratch: Any, stop: Stop | None, poisoned: bool,
        events: list[cl.Event] | None,
    ) -> None:  # fmt: skip
        device, pool = self._device, self._device.scratch
        cell: int | None = None
        bound = values[5], *self._factors(values)
        try:
            with device.lock:
                if poisoned and scratch is not None:
                    pool.poison(device.queue, scratch)
                counters, cell = pool.counter() if self._counts else (None, None)
                tickets = pool.tickets(device.queue) if self._takes_tickets else None
                more = (scratch, counters, tickets)
                for launch in self._launches:
                    launch.bind(bound, values, more, cell)
                    event: cl.Event = self._enqueue(
                        device.queue, launch.kernel.handle, launch.global_size, launch.local_size,
                        None, None, False, False,
                    )  # fmt: skip
                    if events is not None:
                        events.append(event)
            self._wait(event, cell, values, stop)
        except BaseException:
            # Launches may still write what the caller is about to free.
            self._cancel(cell)
            pool.drop_tickets()
            interrupt.drain(device.queue, (values, scratch))
            raise

    def _cancel(self, cell: int | None) -> None:
        """Let the launch with these counters end early; without any there is nothing to do."""
        if cell is not None:
            self._device.scratch.cancel(cell)

    def _wait(self, event: cl.Event, cell: int | None, values: Values, stop: Stop | None) -> None:
        """Wait for the last launch, which ends early where it can if it is cancelled."""
        if stop is not None:
            with stop.cancels(partial(self._cancel, cell)):
                event.wait()
        elif (self._long or len(self._device.running) > 1) and interrupt.is_heard():
            workers = self._device.worker_threads
            holder = None if workers is None else workers.holder()
            interrupt.wait(event, partial(self._cancel, cell), values, holder)
        else:
            event.wait()
