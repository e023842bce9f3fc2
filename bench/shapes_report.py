"""What the times of many drawn shapes come to: figures, the worst of them, and pictures."""

from __future__ import annotations

import bisect
import math
import statistics
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from random_shapes import Drawn

GRANTED = 2e-6  # seconds that a call may take longer and count as equally fast
SMALL_FLOPS = 2 * 64**3
GOOD, FAIR = 0.95, 0.9  # ratios whose shares are counted
SLOWER = 1.05  # times as long: the other side should have been taken
LONG = 1e-3  # seconds: products for which threads that spin meanwhile are looked at
WORST = 10
SMALLEST = (1, 2, 8, 32, 128, 512)  # where columns of the picture begin
CLGEMM, PEER = "clgemm", "peer"
ON_DEVICE, ON_HOST = "device", "host"


@dataclass(frozen=True)
class Row:
    """What was found of one shape."""

    drawn: Drawn
    route: str
    kernel: str
    why: str
    predicted: dict[str, float | None]
    """Seconds by side."""
    seconds: dict[str, float]
    """Measured, by way: `CLGEMM`, `PEER`, and what options add."""
    error: float
    """Over its bound."""
    rejected: int = 0
    noisy: bool = False
    label: str = field(init=False)
    ratio: float = field(init=False)
    """The peer's time over clgemm's: above 1, clgemm is faster."""
    granted: float = field(init=False)
    """The same, 1 for what is slower by no more than `GRANTED`."""

    def __post_init__(self) -> None:
        ours, peer = self.seconds[CLGEMM], self.seconds[PEER]
        ratio = peer / ours
        object.__setattr__(self, "label", self.drawn.label)
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "granted", max(ratio, 1.0 if ours <= peer + GRANTED else 0.0))

    @property
    def is_misrouted(self) -> bool | None:
        """Whether the other side is faster; None if the sides were not timed."""
        if ON_DEVICE not in self.seconds:
            return None
        other = ON_HOST if self.route == ON_DEVICE else ON_DEVICE
        return self.seconds[self.route] > SLOWER * self.seconds[other]


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, NaN of nothing."""
    return statistics.geometric_mean(values) if values else math.nan


def share(rows: Sequence[Row], least: float) -> float:
    """Return the share of shapes that reach a ratio, `GRANTED` granted."""
    return sum(row.granted >= least for row in rows) / len(rows)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of some rows, at least one."""
    sides = [row.is_misrouted for row in rows]
    ran = [(row.predicted.get(row.route), row.seconds[CLGEMM]) for row in rows]
    host = [(row.predicted.get(ON_HOST), row.seconds[PEER]) for row in rows]
    return {
        "shapes": len(rows),
        "geometric mean": geometric_mean([row.ratio for row in rows]),
        "geometric mean above 64^3": geometric_mean(
            [row.ratio for row in rows if row.drawn.flops > SMALL_FLOPS]
        ),
        f"share >= {GOOD}": share(rows, GOOD),
        f"share >= {FAIR}": share(rows, FAIR),
        "worst": min(row.granted for row in rows),
        "prediction, side that ran": off_by(ran),
        "prediction, host": off_by(host),
        "routed to the slower side": None if None in sides else sum(map(bool, sides)),
        "noisy": sum(row.noisy for row in rows),
    }


def off_by(pairs: Sequence[tuple[float | None, float]]) -> dict[str, float] | None:
    """Return median and 90th percentile of |log2(predicted/measured)|, None without predictions."""
    errors = [abs(math.log2(told / found)) for told, found in pairs if told]
    if not errors:
        return None
    median, p90 = np.percentile(errors, (50, 90)).tolist()
    return {"count": len(errors), "median": median, "90 %": p90}


def summary_text(figures: dict[str, Any]) -> str:
    """Give figures, one a line."""
    lines = [f"shapes: {figures['shapes']}, of which noisy: {figures['noisy']}"]
    means = ("geometric mean", "geometric mean above 64^3")
    lines += [f"{name} of peer/clgemm: {figures[name]:.3f}" for name in means]
    shares = [f"{name}: {figures[name]:.0%}" for name in figures if name.startswith("share")]
    lines.append(f"{', '.join(shares)}, worst: {figures['worst']:.3f} (2 us granted)")
    for name in ("prediction, side that ran", "prediction, host"):
        off = figures[name]
        told = "none" if off is None else f"median {off['median']:.2f}, 90 % {off['90 %']:.2f}"
        count = "" if off is None else f" of {off['count']} shapes"
        lines.append(f"{name}, |log2(predicted/measured)|{count}: {told}")
    if figures["routed to the slower side"] is not None:
        lines.append(f"routed to the slower side: {figures['routed to the slower side']}")
    return "\n".join(lines)


def worst_text(rows: Sequence[Row], count: int = WORST) -> str:
    """Give the worst shapes with what was expected of them."""
    titles = ("clgemm", "told", "peer", "told")
    lines = [f"{'us':40}" + "".join(f"{title:>12}" for title in titles) + "   ratio"]
    for row in sorted(rows, key=lambda row: row.granted)[:count]:
        times = (
            row.seconds[CLGEMM], row.predicted.get(row.route),
            row.seconds[PEER], row.predicted.get(ON_HOST),
        )  # fmt: skip
        figures = "".join(f"{_micro(x):>12}" for x in times)
        where = f"{row.route}, {row.why}" + (f": {row.kernel}" if row.kernel else "")
        lines.append(f"{row.label:40}{figures}{row.ratio:8.2f}  {where}")
    return "\n".join(lines)


def _micro(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e6 * seconds:.1f}"


def mixed_text(rows: Sequence[Row]) -> str:
    """Tell how much longer products take in turn with the peer's than alone, on both sides."""
    lines = []
    for way in (CLGEMM, PEER):
        found = [
            row.seconds[way] / row.seconds[alone(way)]
            for row in rows
            if row.seconds[alone(way)] >= LONG
        ]
        if found:
            most = max(found)
            lines.append(
                f"{way} in turn with NumPy, times as long as alone, {len(found)} products of 1 ms "
                f"and more: geometric mean {geometric_mean(found):.3f}, most {most:.3f}"
            )
    after_ours, after_theirs = after(CLGEMM), after(PEER)
    found = sorted(row.seconds[after_ours] / row.seconds[after_theirs] for row in rows)
    lines.append(
        f"NumPy's product between them after one of {CLGEMM}, times as long as after the same of "
        f"the {PEER}: median {found[len(found) // 2]:.2f}, most {found[-1]:.2f}"
    )
    return "\n".join(lines)


def after(way: str) -> str:
    """Name the time of NumPy's product that follows one of a way."""
    return f"NumPy after {way}"


def alone(way: str) -> str:
    """Name the time of a way without products of the peer in between."""
    return f"{way}, alone"


def text_picture(rows: Sequence[Row]) -> str:
    """Draw median ratios by decade of operations and by smallest extent, and how many they are."""
    places = [*range(len(SMALLEST)), None]
    names = ["all" if place is None else _column_name(place) for place in places]
    lines = [f"{'operations':12}" + "".join(f"{name:>13}" for name in names)]
    for decade in (*sorted({_decade(row) for row in rows}), None):
        line = [row for row in rows if decade in {None, _decade(row)}]
        cells = [
            _cell([row.ratio for row in line if place in {None, _column(row)}]) for place in places
        ]
        name = "all" if decade is None else f"1e{decade}-1e{decade + 1}"
        lines.append(f"{name:12}" + "".join(f"{cell:>13}" for cell in cells))
    return "median ratio (shapes) by operations and smallest extent\n" + "\n".join(lines)


def _column(row: Row) -> int:
    return bisect.bisect_right(SMALLEST, row.drawn.smallest) - 1


def _column_name(place: int) -> str:
    least, above = (*SMALLEST, 0)[place : place + 2]
    if not above:
        return f"{least}-"
    return f"{least}-{above - 1}" if above > least + 1 else str(least)


def _decade(row: Row) -> int:
    return math.floor(math.log10(row.drawn.flops))


def _cell(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({len(ratios)})" if ratios else ""


def picture(path: Path, rows: Sequence[Row], title: str) -> str:
    """Draw ratios over operations, one panel a precision; say where, or why not."""
    try:
        pyplot: Any = import_module("matplotlib.pyplot")
    except ImportError:
        return f"{path} is not drawn: install matplotlib"
    codes = list(dict.fromkeys(row.drawn.code for row in rows))
    pyplot.switch_backend("agg")
    figure, axes = pyplot.subplots(
        len(codes), 1, figsize=(9, 3.2 * len(codes)), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for panel, code in zip(axes[:, 0], codes, strict=True):
        for route, marker in ((ON_DEVICE, "o"), (ON_HOST, "x")):
            some = [row for row in rows if row.drawn.code == code and row.route == route]
            dots = panel.scatter(
                [row.drawn.flops for row in some], [row.ratio for row in some], marker=marker,
                c=[math.log2(row.drawn.smallest) for row in some], vmin=0, vmax=12, label=route,
            )  # fmt: skip
        panel.axhline(1, color="grey", linewidth=1)
        panel.axhline(GOOD, color="grey", linewidth=1, linestyle=":")
        panel.set(xscale="log", yscale="log", ylabel=f"{code}: peer / clgemm")
        panel.legend(loc="upper left")
    axes[-1, 0].set_xlabel("operations")
    figure.colorbar(dots, ax=axes, label="log2 of the smallest extent")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return f"{path} is drawn"
