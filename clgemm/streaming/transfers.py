"""A tile on its way to a device or home, in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from clgemm.runtime.opencl import cl

Part = tuple[int, "NDArray[Any]"]
"""Bytes from the start of a device buffer, and the elements that lie there, in C order."""


class Move:
    """One tile on its way to the device or home.

    Parameters
    ----------
    buffer : cl.Buffer
        Its device memory.
    parts : sequence of Part
        None longer than a piece of staging.
    home : bool
        Whether it comes home.
    """

    def __init__(self, buffer: cl.Buffer, parts: Sequence[Part], *, home: bool) -> None:
        self.buffer = buffer
        self.parts = parts
        self.home = home
        self.to_enqueue = len(parts)
        """Parts whose command is not in the queue yet."""
        self.to_land = len(parts) * home
        """Parts that are still in device memory only."""
        self.to_copy = len(parts) * home
        """Parts that are not yet where they belong."""
        self.event: cl.Event | None = None
        """The last command: their queue runs in order."""


def is_over(event: cl.Event) -> bool:
    """Tell whether a command has ended, without waiting.

    Raises
    ------
    cl.Error
        If it has failed.
    """
    status: int = event.command_execution_status
    if status < 0:
        event.wait()  # raises
    return status == 0


def parts(x: NDArray[Any], most: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Cut a stack into parts that lie one after the other in device memory without gaps.

    Parameters
    ----------
    x : ndarray of shape (batch, rows, columns)
        In the order in which its elements are to lie: the last axis varies fastest.
    most : int
        Bytes of the largest part.

    Yields
    ------
    tuple of int and ndarray
        The bytes before a part, and the view of it.
    """
    if x.nbytes <= most:
        yield 0, x
        return
    offset = 0
    for axis in range(x.ndim):
        unit = x[(0,) * (axis + 1)].nbytes  # bytes of what one index of this axis holds
        if unit <= most:
            break
    for index in np.ndindex(x.shape[:axis]):
        line = x[index]
        count = -(-line.nbytes // (most // unit * unit))
        step = -(-len(line) // count)
        for start in range(0, len(line), step):
            part = line[start : start + step]
            yield offset, part
            offset += part.nbytes
