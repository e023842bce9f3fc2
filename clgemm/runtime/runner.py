"""What computes calls of one kind: one interface, whatever is behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from clgemm.problem import Call
    from clgemm.runtime.interrupt import Stop


class Work(NamedTuple):
    """What a runner does in a call, for people."""

    config: str = ""
    """Kernel family and its parameters; empty if no kernel computes, or several devices do."""
    bytes_up: int = 0
    """What is copied to the device before, 0 where memory is shared."""
    bytes_down: int = 0
    """What is copied back."""
    blocks: int = 1
    """Products that it is cut into, so that they fit the device and copies overlap with kernels."""
    shares: tuple[tuple[str, float], ...] = ()
    """Devices and what part of C each kind computes, if several take part."""
    why_host: str = ""
    """Why the host computes after all, if it does."""


class Runner(Protocol):
    """Computes calls of one kind: equal shapes, strides and flags."""

    def run(self, call: Call, stop: Stop | None = None) -> None:
        """Compute and wait; C is written where it lies, and read only if beta is not 0.

        Parameters
        ----------
        call : Call
            Arrays of NumPy's.
        stop : Stop, optional
            Set by another thread when nobody wants the result any more; it is void then.
        """
        ...

    def work(self) -> Work:
        """Say what a call does."""
        ...
