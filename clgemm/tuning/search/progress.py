"""One line on a terminal while a search runs; nothing where standard error is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Progress:
    """Shows how a search of `budget` seconds goes."""

    def __init__(self, code: str, device: str, budget: float) -> None:
        self._title = f"clgemm: tuning {code}gemm on {device}"
        self._end = time.monotonic() + budget
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def __enter__(self) -> Self:
        self._write(f"{self._title} ...")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._write("")

    def show(self, tried: int, rate: float) -> None:
        """Say how many were tried, the best GFLOP/s if there is one, and the time left."""
        best = f", best {rate:.0f} GFLOP/s" if rate else ""
        left = max(0.0, self._end - time.monotonic())
        self._write(f"{self._title}: {tried} tried{best}, {left:.0f} s left")

    def _write(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
