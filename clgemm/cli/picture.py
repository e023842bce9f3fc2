"""A picture of the account, drawn by a process of its own.

The program that `run` runs shall find nothing imported that it has not imported itself, and an
interpreter that ends may not import what starts threads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clgemm
from clgemm.cli.tune import PLOT_HINT, pyplot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_BARS = 24


def why_not() -> str | None:
    """Say why nothing can be drawn; None if it can."""
    return None if importlib.util.find_spec("matplotlib") else PLOT_HINT


def draw_apart(account: Mapping[str, Any], file: Path) -> str | None:
    """Draw an account, as JSON has it, to a file; tell why if that fails."""
    package = str(Path(clgemm.__file__).parents[1])
    found = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    run = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-m", __name__, str(file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        cwd=file.parent, input=json.dumps(account), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not run.returncode:
        return None
    return (run.stderr.strip().splitlines() or [""])[-1]


def draw(account: Mapping[str, Any], file: Path) -> None:
    """Draw calls, and seconds of those on the device, by function and module."""
    plots = pyplot()
    rows = sorted((row for row in account["rows"] if row["calls"]), key=lambda row: -row["calls"])
    rows = rows[:MOST_BARS][::-1]
    figure, (left, right) = plots.subplots(
        1, 2, figsize=(13, 1.6 + 0.36 * max(1, len(rows))), sharey=True
    )
    places = range(len(rows))
    left.set_yticks(places, [f"{row['entry']}\n{row['module']}" for row in rows], fontsize=7)
    _bars(left, rows)
    left.set(title="calls", xscale="symlog", xlabel="calls", xlim=(0, None))
    beside = [row["device_instead"] or 0.0 for row in rows]
    right.barh([y + 0.2 for y in places], [row["device_seconds"] for row in rows], 0.4,
               label="on the device")  # fmt: skip
    right.barh([y - 0.2 for y in places], beside, 0.4, label="predicted for the host")
    right.set(title="seconds of calls on the device", xlabel="s")
    for axes in (left, right):
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file)
    plots.close(figure)


def _bars(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw a bar for each function: calls on the device, larger and smaller ones on the host."""
    places, start = range(len(rows)), [0] * len(rows)
    parts = {
        "on the device": [row["device_calls"] for row in rows],
        "on the host": [row["host_calls"] for row in rows],
    }
    parts["small, or counted only"] = [
        max(0, row["calls"] - device - host)
        for row, device, host in zip(rows, *parts.values(), strict=True)
    ]
    for label, widths in parts.items():
        axes.barh(places, widths, 0.8, left=start, label=label)
        start = [x + width for x, width in zip(start, widths, strict=True)]


if __name__ == "__main__":
    draw(json.load(sys.stdin), Path(sys.argv[1]))
