"""What interposed calls have come to: how many and how large, where they ran, what was missed."""

from __future__ import annotations

import re
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


_PACKAGES = re.compile(r".*/(?:site|dist)-packages/([^.]*)\.[^/]*$")


class Row(NamedTuple):
    """Calls of one function by one module."""

    entry: str
    """The function's name as the module calls it."""
    module: str
    """Who calls it: the module by its name, or its file where that does not tell the name."""
    calls: int
    """All of them, those of clgemm's own among them."""
    least: int
    """The product m * n * k of a call up to which it is small and no more is known of it."""
    device_calls: int
    device_flops: int
    device_seconds: float
    """Of calls on the device, transfers included."""
    device_instead: float | None
    """Predicted seconds of those calls on the host; None where that was not measured."""
    host_calls: int
    """Calls that were not small, and that the host has computed nevertheless."""
    host_flops: int
    only_counted: bool = False
    """Whether it is a function that clgemm does not compute, such as gemv."""


class Missed(NamedTuple):
    """A function that a module calls past clgemm."""

    module: str
    entry: str
    why: str


class Usage(NamedTuple):
    """The account of a process since `install` was first called in it."""

    interposed: bool
    """Whether calls are interposed now."""
    why_not: str | None
    """Why nothing can be interposed in this process, if that is so."""
    rows: tuple[Row, ...]
    missed: tuple[Missed, ...]
    reasons: tuple[str, ...]
    """Why calls were left to the host that are large enough for the device."""

    def as_json(self) -> dict[str, Any]:
        """Return the same as JSON can hold it."""
        data = self._asdict()
        data["rows"] = [row._asdict() for row in self.rows]
        data["missed"] = [missed._asdict() for missed in self.missed]
        return data

    def __str__(self) -> str:
        """Return a table, and a line for each thing that was missed."""
        if self.why_not is not None:
            return f"nothing is interposed: {self.why_not}"
        called = sorted((row for row in self.rows if row.calls), key=lambda row: -row.calls)
        computed = [row for row in called if not row.only_counted]
        lines = [_HEAD, *map(_line, computed)]
        if not computed:
            lines = ["no gemm or syrk was called through a module that is interposed"]
        lines += [
            f"only counted: {row.entry} of {row.module}: {row.calls} calls"
            for row in called
            if row.only_counted
        ]
        lines += [f"left to the host: {why}" for why in self.reasons]
        for missed in self.missed:
            lines.append(
                f"not interposed: {missed.entry or 'all'} of {missed.module}: {missed.why}"
            )
        return "\n".join(lines)


_HEAD = (
    f"{'function':24} {'calls':>9} {'device':>8} {'GFLOP':>9} {'seconds':>8} {'on host':>8} "
    f"{'host':>8}  module"
)


def _line(row: Row) -> str:
    instead = "" if row.device_instead is None else f"{row.device_instead:.3f}"
    return (
        f"{row.entry:24} {row.calls:9} {row.device_calls:8} {row.device_flops / 1e9:9.2f} "
        f"{row.device_seconds:8.3f} {instead:>8} {row.host_calls:8}  {row.module}"
    )


def module_name(path: str) -> str:
    """Return the name of a compiled module that lies in a folder for packages, else its path.

    Examples
    --------
    >>> module_name("/usr/lib/python3/dist-packages/numpy/_core/_umath.cpython-313.so")
    'numpy._core._umath'
    >>> module_name("/home/me/lib.so")
    '/home/me/lib.so'
    """
    found = _PACKAGES.match(path)
    return found[1].replace("/", ".") if found else path


class _Sums:
    def __init__(self) -> None:
        self.device_calls = self.device_flops = self.host_calls = self.host_flops = 0
        self.device_seconds = self.instead = 0.0
        self.predicted = True


class Tally:
    """Adds up the calls of one slot that were shown to Python.

    Each thread has sums of its own, so that there is no lock: a signal handler may call in between.
    """

    def __init__(self) -> None:
        self._sums: dict[int, _Sums] = {}

    def on_device(self, flops: int, seconds: float, instead: float | None) -> None:
        """Add a call that the device has computed."""
        sums = self._mine()
        sums.device_calls += 1
        sums.device_flops += flops
        sums.device_seconds += seconds
        if instead is None:
            sums.predicted = False
        else:
            sums.instead += instead

    def on_host(self, flops: int) -> None:
        """Add one that was left to the host."""
        sums = self._mine()
        sums.host_calls += 1
        sums.host_flops += flops

    def _mine(self) -> _Sums:
        me = get_ident()
        return self._sums.get(me) or self._sums.setdefault(me, _Sums())

    def row(self, entry: str, module: str, calls: int, least: int) -> Row:
        """Return the sums of all threads."""
        sums = list(self._sums.values())
        instead = sum(s.instead for s in sums) if all(s.predicted for s in sums) else None
        return Row(
            entry, module, calls, least,
            sum(s.device_calls for s in sums), sum(s.device_flops for s in sums),
            sum(s.device_seconds for s in sums), instead,
            sum(s.host_calls for s in sums), sum(s.host_flops for s in sums),
        )  # fmt: skip


def merged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows in the order of their modules and functions."""
    return tuple(sorted(rows, key=_place))


def _place(row: Row) -> tuple[str, str]:
    return row.module, row.entry
