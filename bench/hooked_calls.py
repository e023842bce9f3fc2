"""Which calls of a program can be interposed, and what they take: what it could gain at most.

If calls take a share s of a program's time, and the device took no time for them, the program would
be 1 / (1 - s) times as fast (Amdahl, "Validity of the single processor approach to achieving large
scale computing capabilities", AFIPS 1967).
"""

from __future__ import annotations

import time
from collections import Counter
from ctypes import c_int64
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np

import clgemm
from clgemm import settings
from clgemm.interpose import callbacks, stub
from clgemm.problem import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SECONDS = 0.02  # for which calls of a kind are repeated
LEAST_CALLS = 3


class Kind(NamedTuple):
    """What a call takes its time for."""

    code: str
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    is_gram: bool


def recorded(work: Callable[[], object]) -> Counter[Kind]:
    """Run a program, and count its calls of each kind; the original computes all of them."""
    found: Counter[Kind] = Counter()

    def note(self: Any, block: int) -> None:
        stack = c_int64.from_address(block + stub.STACK).value
        x = self._reader.read(block + stub.REGISTERS, stack)
        if x is not None:
            is_gram = x.part != "whole" or x.is_gram
            code = self._entry.precision.code
            found[Kind(code, x.m, x.n, x.k, x.trans_a, x.trans_b, is_gram)] += 1

    shows_all = settings.using(route="device")
    with mock.patch.object(callbacks.Callback, "_compute", note), shows_all, clgemm.interposed():
        work()
    return found


def seconds(calls: Counter[Kind]) -> float:
    """Return what calls take on the host, measured now, one kind after the other."""
    return sum(count * _seconds(kind) for kind, count in calls.items())


def _seconds(kind: Kind) -> float:
    a = _operand(kind.code, kind.m, kind.k, kind.trans_a)
    b = a.T if kind.is_gram else _operand(kind.code, kind.k, kind.n, kind.trans_b)
    out = np.empty((kind.m, b.shape[1]), a.dtype)
    times: list[float] = []
    while len(times) < LEAST_CALLS or sum(times) < SECONDS:
        begin = time.perf_counter()
        np.matmul(a, b, out=out)
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def _operand(code: str, rows: int, columns: int, transposed: bool) -> NDArray[Any]:
    x = np.ones((columns, rows) if transposed else (rows, columns), PRECISIONS[code].dtype, "F")
    return x.T if transposed else x
