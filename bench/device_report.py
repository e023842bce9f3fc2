"""The rows of bench_device as lines while they come, and as Markdown tables at the end."""

from __future__ import annotations

import math
from typing import Any

from device_cases import (
    CLBLAST,
    CLGEMM,
    CUBLAS,
    CUBLAS_FRESH,
    FRESH,
    GENERAL,
    GRAM,
    KERNELS,
    OPS,
    PLAIN,
    TUNED,
)

Row = dict[str, Any]
NAMES = {"squares": "{}gemm", "fallback": "{}gemm, data for the fallback", "fma": "{}gemm, fma"}
OTHERS = {FRESH: CUBLAS_FRESH}  # who does the same as clgemm there; else CUBLAS
PEERS = (CUBLAS, CUBLAS_FRESH, CLBLAST, TUNED)
ALARM = 0.9  # of the rate of NN: what transposes and odd sizes may cost


def line(row: Row) -> str:
    """Give a case's rates, then what failed."""
    cells = [f"{row['kind']:9}{row['code']} {row['size']:15}"]
    cells += [f"{name} {_rate(row, name)}" for name in row["tflops"]]
    cells += ["; ".join(dict.fromkeys(row["kernels"].values()))]
    return "\n".join(["  ".join(cells), *_faults(row)])


def call_line(row: Row) -> str:
    """Give what a call costs, in microseconds, then what failed."""
    cells = [f"call {row['code']} {row['n']:5}"]
    for title, found in (("host", row["host"]), ("each", row["seconds"])):
        cells.append(f"{title}: " + ", ".join(f"{x} {1e6 * t:.1f}" for x, t in found.items()))
    cells += row["kernels"].values()
    return "\n".join(["  ".join(cells), *_faults(row)])


def markdown(facts: dict[str, Any], calls: list[Row], rows: list[Row]) -> str:
    """Give all tables."""
    limits = ", ".join(f"{name} {value:.4g}" for name, value in facts["limits"].items())
    origins = ", ".join(dict.fromkeys(facts["parameters"].values()))
    intro = (
        f"{facts['device']}, driver {facts['driver']}, {facts['date'][:10]}, {facts['versions']}, "
        f"{facts['peers']}. Measured limits: {limits or 'none'}. "
        f"Parameters: {origins}."
    )
    tables = (
        _calls(calls),
        _waiting([*calls, *rows]),
        _by_size([row for row in rows if row["kind"] in NAMES]),
        _skinny([row for row in rows if row["kind"] == "skinny"]),
        _forms([row for row in rows if row["kind"] == "ops"]),
        _gram([row for row in rows if row["kind"] == "gram"]),
    )
    return "\n\n".join([intro, *filter(None, tables)])


def _faults(row: Row) -> list[str]:
    return [f"    {name}: {fault}" for name, fault in row["faults"].items()]


def _rate(row: Row, name: str, base: str = "") -> str:
    """Give a rate, and in brackets how many times that of the peer or of `base` it is."""
    rate, base = row["tflops"].get(name), base or OTHERS.get(name, CUBLAS)
    if rate is None:
        return "failed" if name in row["faults"] else ""
    text, other = (f"{rate:.3g}" if rate < 1 else f"{rate:.1f}"), row["tflops"].get(base)
    return f"{text} ({rate / other:.2f})" if other and name not in {base, *PEERS[:2]} else text


def _table(corner: str, columns: list[str], lines: dict[str, dict[str, str]]) -> str:
    text = [f"| {corner} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in lines.items():
        text.append(f"| {name} | " + " | ".join(cells.get(c, "") for c in columns) + " |")
    return "\n".join(text)


def _calls(rows: list[Row]) -> str:
    """Give what calls cost on the host, and each of many that follow each other."""
    if not rows:
        return ""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = lines.setdefault(f"{row['code']}gemm {row['n']}", {})
        times = {f"{name}: host": t for name, t in row["host"].items()}
        times |= {f"{name}: each": t for name, t in row["seconds"].items()}
        for name in (CLGEMM, FRESH, CUBLAS, CUBLAS_FRESH):
            for title in (f"{name}: host", f"{name}: each"):
                cells[title] = f"{1e6 * times[title]:.1f}" if title in times else ""
        cells[KERNELS] = f"{1e6 * row['seconds'].get(KERNELS, math.nan):.1f}"
        cells["launches"] = row["kernels"].get(CLGEMM, "")
    columns = list(dict.fromkeys(c for cells in lines.values() for c in cells))
    return _table("µs a call", columns, lines)


def _waiting(rows: list[Row]) -> str:
    """Name the calls that did not return before their kernels had ended."""
    looked = [row for row in rows if "returned before" in row]
    waited = [
        f"{row['code']}gemm {row.get('n') or row['size']} {name} ({row['tries'] - early} times)"
        for row in looked
        for name, early in row["returned before"].items()
        if early < row["tries"]
    ]
    verdict = ", ".join(dict.fromkeys(waited)) or "none"
    return f"Large calls that returned after their kernels had ended: {verdict}." if looked else ""


def _columns(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["size"] for row in rows))


def _by_size(rows: list[Row]) -> str:
    """Squares, a column a size; then the peers."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        title = NAMES[row["kind"]].format(row["code"])
        for name, more in ((CLGEMM, ""), (FRESH, ", new result"), (KERNELS, f", {KERNELS}")):
            lines.setdefault(title + more, {})[row["size"]] = _rate(row, name)
    for name in PEERS:
        _add(lines, name, [row for row in rows if row["kind"] == "squares"])
    columns = sorted(_columns(rows), key=int)
    return _table("TFLOP/s (÷ cuBLAS)", columns, lines) if rows else ""


def _skinny(rows: list[Row]) -> str:
    lines: dict[str, dict[str, str]] = {}
    for name in (CLGEMM, FRESH, KERNELS, *PEERS):
        _add(lines, name, rows)
    return _table("TFLOP/s (÷ cuBLAS)", _columns(rows), lines) if rows else ""


def _add(lines: dict[str, dict[str, str]], name: str, rows: list[Row]) -> None:
    for row in rows:
        if name in row["tflops"] | row["faults"]:
            lines.setdefault(f"{name}, {row['code']}", {})[row["size"]] = _rate(row, name)


def _forms(rows: list[Row]) -> str:
    """Transposes, odd sizes, alpha and beta, beside NN of the same run."""
    lines = {
        f"{row['code']}gemm {row['size']}": {name: _rate(row, name, PLAIN) for name in OPS}
        for row in rows
    }
    if not rows:
        return ""
    slow = [
        f"{row['code']}gemm {row['size']} {name}"
        for row in rows
        for name in OPS
        if name not in row["tflops"]
        or row["tflops"][name] < ALARM * row["tflops"].get(PLAIN, float("inf"))
    ]
    verdict = "More than 10 % below NN: " + (", ".join(slow) or "none") + "."
    return _table("TFLOP/s (÷ NN)", list(OPS), lines) + "\n\n" + verdict


def _gram(rows: list[Row]) -> str:
    """Products of a matrix with itself, as if all of C were computed, beside those of two."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        lines.setdefault(f"{row['code']}gemm", {})[row["size"]] = _rate(row, GRAM, GENERAL)
    if not rows:
        return ""
    table = _table(f"TFLOP/s of {GRAM} (÷ {GENERAL})", sorted(_columns(rows), key=int), lines)
    asymmetric = [f"{row['code']}gemm {row['size']}" for row in rows if not row["symmetric"]]
    return table + "\n\nNot exactly symmetric: " + (", ".join(asymmetric) or "none") + "."
