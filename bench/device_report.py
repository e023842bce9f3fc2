"""The rows of bench_device as lines while they come, and as Markdown tables at the end."""

from __future__ import annotations

from typing import Any

from device_cases import CLBLAST, CLGEMM, CUBLAS, PLAIN, TUNED

Row = dict[str, Any]
NAMES = {"squares": "{}gemm", "fallback": "{}gemm, data for the fallback", "fma": "{}gemm, fma"}
ALARM = 0.9  # of the rate of NN: what transposes and odd sizes may cost


def head(facts: dict[str, Any]) -> str:
    """Say what is measured, a fact a line."""
    lines = {k: v for k, v in facts.items() if k not in {"limits", "parameters"}}
    lines |= {f"parameters of {k}": v for k, v in facts["parameters"].items()}
    lines |= {k: f"{v:.1f}" for k, v in facts["limits"].items()}
    return "\n".join(f"{name}: {value}" for name, value in lines.items()) + "\n"


def line(row: Row) -> str:
    """Give a case's rates, then what failed."""
    tflops = row["tflops"]
    base = tflops.get(CUBLAS)
    cells = [f"{row['kind']:9}{row['code']} {row['size']:15}"]
    for name, rate in tflops.items():
        ratio = f" ({rate / base:.2f})" if base and name != CUBLAS else ""
        cells.append(f"{name} {rate:.1f}{ratio}")
    text = "  ".join(cells)
    families = {config.split("(")[0] for config in row["configs"].values()}
    text += "  " + ", ".join(sorted(families))
    return "\n".join([text, *(f"    {name}: {fault}" for name, fault in row["faults"].items())])


def markdown(facts: dict[str, Any], rows: list[Row]) -> str:
    """Give all tables."""
    limits = ", ".join(f"{name} {value:.1f}" for name, value in facts["limits"].items())
    origins = ", ".join(dict.fromkeys(facts["parameters"].values()))
    intro = (
        f"{facts['device']}, driver {facts['driver']}, {facts['date'][:10]}, {facts['versions']}, "
        f"{facts['peer']}, {facts['CLBlast']}. Measured limits: {limits}. Parameters: {origins}."
    )
    tables = (
        _by_size([row for row in rows if row["kind"] in NAMES]),
        _skinny([row for row in rows if row["kind"] == "skinny"]),
        _forms([row for row in rows if row["kind"] == "ops"]),
    )
    return "\n\n".join([intro, *filter(None, tables)])


def _rate(row: Row, name: str, base: str = CUBLAS) -> str:
    rate, other = row["tflops"].get(name), row["tflops"].get(base)
    if rate is None:
        return "failed" if name in row["faults"] else ""
    return f"{rate:.1f} ({rate / other:.2f})" if other and name != base else f"{rate:.1f}"


def _table(corner: str, columns: list[str], lines: dict[str, dict[str, str]]) -> str:
    text = [f"| {corner} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in lines.items():
        text.append(f"| {name} | " + " | ".join(cells.get(c, "") for c in columns) + " |")
    return "\n".join(text)


def _columns(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["size"] for row in rows))


def _by_size(rows: list[Row]) -> str:
    """Squares, a column a size; then the peers."""
    if not rows:
        return ""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = lines.setdefault(NAMES[row["kind"]].format(row["code"]), {})
        cells[row["size"]] = _rate(row, CLGEMM)
    for name in (CUBLAS, CLBLAST, TUNED):
        for row in rows:
            if row["kind"] == "squares" and name in row["tflops"] | row["faults"]:
                cells = lines.setdefault(f"{name}, {row['code']}", {})
                cells[row["size"]] = _rate(row, name)
    columns = sorted(_columns(rows), key=int)
    return _table("TFLOP/s (÷ cuBLAS)", columns, lines)


def _skinny(rows: list[Row]) -> str:
    lines: dict[str, dict[str, str]] = {}
    for name in (CLGEMM, CUBLAS, CLBLAST, TUNED):
        for row in rows:
            if name in row["tflops"] | row["faults"]:
                cells = lines.setdefault(f"{name}, {row['code']}", {})
                cells[row["size"]] = _rate(row, name)
    return _table("TFLOP/s (÷ cuBLAS)", _columns(rows), lines) if rows else ""


def _forms(rows: list[Row]) -> str:
    """Transposes and odd sizes, beside NN of the same run."""
    lines = {
        f"{row['code']}gemm {row['size']}": {
            name: _rate(row, name, PLAIN) for name in row["configs"]
        }
        for row in rows
    }
    if not rows:
        return ""
    slow = [
        f"{row['code']}gemm {row['size']} {name}"
        for row in rows
        for name in row["configs"]
        if name not in row["tflops"]
        or row["tflops"][name] < ALARM * row["tflops"].get(PLAIN, float("inf"))
    ]
    verdict = "More than 10 % below NN: " + (", ".join(slow) or "none") + "."
    return _table("TFLOP/s (÷ NN)", list(rows[0]["configs"]), lines) + "\n\n" + verdict
