"""What waits for the elements of Arrays, as far as the order of a queue does not do so already.

An event costs two microseconds of an NVIDIA device's time, between its launch and the next, and
commands on a queue that runs in order need none.  So launches there make no event.  An Array that
such a queue computes gets a list that makes one when somebody looks into it: pyopencl's own
operations do, and programs that use several queues.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from clgemm.runtime.opencl import cl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clgemm.runtime.queues import LaunchState

_UNSHARED = 2  # references to a list that only its Array has, as sys.getrefcount counts


class InOrder(list[Any]):
    """The `events` of an Array that was computed in the order of a queue.

    Whatever reads or changes the list first puts a marker into it, an event that all commands
    before it on the queue precede.

    Parameters
    ----------
    queue : cl.CommandQueue
        A queue that runs in order.
    """

    __slots__ = ("queue",)

    def __init__(self, queue: cl.CommandQueue) -> None:
        super().__init__()
        self.queue: cl.CommandQueue | None = queue
        """None once the list holds what it says."""

    def mark(self) -> None:
        """Put the marker into the list if it is not there."""
        queue = self.queue
        if queue is not None:
            list.append(self, cl.enqueue_marker(queue))
            queue.flush()  # other queues may wait for it
            self.queue = None  # now: another thread that looks meanwhile gets a marker of its own

    def renew(self, queue: cl.CommandQueue) -> None:
        """Say that the elements are computed anew, in the order of a queue."""
        self.queue = queue  # first: after Ctrl-C in between, the list says too much, not too little
        list.clear(self)


def _marked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of a list one that puts the marker into it first."""

    def read(self: InOrder, *arguments: Any, **more: Any) -> Any:
        self.mark()
        return method(self, *arguments, **more)

    return read


_PLAIN = {"__class_getitem__", "__getattribute__", "__init__", "__new__", "__sizeof__"}
for _name, _method in vars(list).items():
    if callable(_method) and _name not in _PLAIN:
        setattr(InOrder, _name, _marked(_method))


def _plus(self: InOrder, other: list[Any]) -> list[Any]:
    """Return self + other; list's own addition would look past the methods above."""
    return [*self, *other]


def _added_to(self: InOrder, other: list[Any]) -> list[Any]:
    """Return other + self."""
    return [*other, *self]


InOrder.__add__ = _plus  # type: ignore[assignment,method-assign] # list's has an overload more
InOrder.__radd__ = _added_to  # type: ignore[attr-defined] # a list has none


def to_wait_for(state: LaunchState, arrays: Iterable[Any]) -> list[cl.Event]:
    """List the events of Arrays that a command on a queue has to wait for.

    On a queue that runs in order, what has ended is dropped from the Arrays' lists, as
    `Array.finish` does: each call would ask for it again.
    """
    if not state.in_order:
        return [event for x in arrays for event in x.events]
    waits: list[cl.Event] = []
    for x in arrays:
        events = x.events
        if type(events) is InOrder and events.queue is state.queue:
            continue
        if events:
            complete, seen = cl.command_execution_status.COMPLETE, list(events)
            pending = [e for e in seen if e.command_execution_status != complete]
            waits += pending
            if not pending:
                del events[: len(seen)]  # and none that another thread has added meanwhile
    return waits


def can_follow(array: Any) -> bool:
    """Tell whether `follow` may note what is computed into an Array.

    It may not if others have its list of events, and that is a plain one: views that were made
    before would not learn of it.
    """
    return type(array.events) is InOrder or sys.getrefcount(array.events) <= _UNSHARED


def follow(array: Any, queue: cl.CommandQueue) -> None:
    """Note that an Array was computed in the order of a queue."""
    events = array.events
    if type(events) is not InOrder:
        array.events = InOrder(queue)
    elif events.queue is not queue:
        events.renew(queue)
