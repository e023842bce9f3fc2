"""Other packages' own test suites, as they are and under ``clgemm run``: the same for every test.

    pip install pytest hypothesis scikit-learn pandas ndindex pytest-json-report
    python tests/interpose/suites.py
    python tests/interpose/suites.py --only SciPy --json suites.json
    python tests/interpose/suites.py --only scikit --jobs 6 --log logs
    python tests/interpose/suites.py --array-api ../array-api-tests --only none

Each suite runs twice, in processes of its own.  The second time every product goes to the device,
however small, with default parameters.  What differs between the two is named, and makes the
command fail; so does a suite of which the device computed nothing.  Packages that are not installed
are named and left out.  NumPy is one of 2.2 or later, whose tests these are.

Runs that go on side by side have cores of their own: threads of OpenMP and of OpenBLAS wait for
each other by spinning, and scikit-learn's tests, which ask for as many as there are cores whatever
the environment says, take many times as long where two such runs meet.

`--array-api` has a checkout of github.com/data-apis/array-api-tests, submodule included: its tests
of what `contraction/array_namespace.py` has of clgemm's must pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

import clgemm

if TYPE_CHECKING:
    from typing_extensions import Self

TESTS = Path(__file__).parents[1]
CORE = "numpy._core.tests.test_"
SUITES = {
    "NumPy linalg": ["numpy.linalg"],
    "NumPy core": [
        CORE + name
        for name in ("multiarray", "numeric", "einsum", "ufunc", "regression", "mem_overlap",
                     "multithreading")
    ],
    "SciPy linalg": ["scipy.linalg"],
    "scikit-learn decomposition": ["sklearn.decomposition"],
    "scikit-learn cluster": ["sklearn.cluster"],
    "scikit-learn linear_model": ["sklearn.linear_model"],
}  # fmt: skip
"""Modules whose tests call a BLAS, by pytest's names."""
STANDARD = ("matmul", "matrix_transpose", "tensordot", "vecdot")
SHOWN = 20  # tests that differ
SLOW = 60  # seconds after which a test's threads are written to the log


class Run(NamedTuple):
    """One run of a suite."""

    outcomes: Counter[tuple[str, str]]
    """How often a test, by its name, had an outcome."""
    seconds: float
    on_device: int
    """Calls that the device has computed."""


class Places:
    """Runs that may go on side by side, each on cores of its own."""

    def __init__(self, count: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // count)
        self._pool = ThreadPoolExecutor(count)
        self._free: SimpleQueue[list[int]] = SimpleQueue()
        for first in range(0, count * share, share):
            self._free.put([cores[i % len(cores)] for i in range(first, first + share)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def submit(self, modules: list[str], *, under: bool, log: Path | None) -> Future[Run]:
        """Run a suite as soon as there is a place."""
        return self._pool.submit(self._run, modules, under=under, log=log)

    def _run(self, modules: list[str], *, under: bool, log: Path | None) -> Run:
        cores = self._free.get()
        try:
            return run(modules, under=under, cores=cores, log=log)
        finally:
            self._free.put(cores)


def outcomes(report: Path) -> Counter[tuple[str, str]]:
    """Read what became of each test, from a report in JUnit's format."""
    found: Counter[tuple[str, str]] = Counter()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        told = [x.get("type", x.tag) for x in case if x.tag in {"failure", "error", "skipped"}]
        found[f"{case.get('classname')}::{case.get('name')}", told[0] if told else "passed"] += 1
    return found


def _path(*more: str | None) -> str:
    """Return where this very clgemm is found, and more."""
    return os.pathsep.join([str(Path(clgemm.__file__).parents[1]), *filter(None, more)])


def run(modules: list[str], *, under: bool, cores: list[int], log: Path | None = None) -> Run:
    """Run a suite, under clgemm or without; what it prints goes to a log, as it does."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CLGEMM_")}
    if "CLGEMM_DEVICE" in os.environ:
        environment["CLGEMM_DEVICE"] = os.environ["CLGEMM_DEVICE"]
    environment["PYTHONPATH"] = _path(os.environ.get("PYTHONPATH"))
    with tempfile.TemporaryDirectory() as folder:
        environment |= {
            "CLGEMM_CACHE_DIR": folder, "CLGEMM_TUNE": "off", "CLGEMM_ROUTE": "device",
        }  # fmt: skip
        report, account = Path(folder, "report.xml"), Path(folder, "account.json")
        program = ["-m", "clgemm", "run", "--json", str(account)] if under else []
        command = [
            "taskset", "--cpu-list", ",".join(map(str, cores)),
            sys.executable, *program, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--rootdir",
            sys.prefix, "-o", f"faulthandler_timeout={SLOW}", "--junitxml", str(report),
            "--pyargs", *modules,
        ]  # fmt: skip
        log = log or Path(folder, "log")
        begin = time.perf_counter()
        with log.open("w", encoding="utf-8") as printed:
            subprocess.run(
                command, cwd=folder, env=environment, stdout=printed, stderr=printed, check=False
            )
        seconds = time.perf_counter() - begin
        if not report.exists():
            text = log.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"{' '.join(command)} failed:\n{text}")
        rows = json.loads(account.read_text(encoding="utf-8"))["rows"] if under else []
        return Run(outcomes(report), seconds, sum(row["device_calls"] for row in rows))


def differing(plain: Run, under: Run) -> list[str]:
    """Name the tests that had another outcome."""
    changed = (plain.outcomes - under.outcomes) + (under.outcomes - plain.outcomes)
    names = sorted({name for name, _ in changed})
    return [
        f"{name}: {_of(plain, name)} without clgemm, {_of(under, name)} under it" for name in names
    ]


def _of(found: Run, name: str) -> str:
    return ", ".join(outcome for test, outcome in found.outcomes if test == name) or "not run"


def compare(
    name: str, modules: list[str], places: Places, logs: Path | None = None
) -> dict[str, object] | None:
    """Run a suite twice, and print its row; None if its package is not installed."""
    if find_spec(modules[0].split(".")[0]) is None:
        print(f"{name:28} not run: {modules[0].split('.')[0]} is not installed", flush=True)
        return None
    runs = [
        places.submit(modules, under=under, log=logs and logs / f"{name} {way}.txt")
        for under, way in ((True, "under"), (False, "without"))
    ]
    under, plain = (x.result() for x in runs)
    found = differing(plain, under)
    tests, passed = (
        sum(n for (_, outcome), n in plain.outcomes.items() if wanted in {"", outcome})
        for wanted in ("", "passed")
    )
    row = (
        f"{name:28}{tests:7}{passed:8}{len(found):8}{under.on_device:10}{plain.seconds:9.0f}"
        f"{under.seconds:7.0f}"
    )
    print("\n    ".join([row, *found[:SHOWN]]), flush=True)
    return {
        "suite": name, "tests": tests, "passed": passed, "differing": found,
        "on device": under.on_device, "seconds without": plain.seconds,
        "seconds under": under.seconds,
    }  # fmt: skip


def standard(checkout: Path, examples: int) -> int:
    """Run the array-API standard's tests of clgemm's functions; return pytest's status."""
    environment = os.environ | {
        "ARRAY_API_TESTS_MODULE": "contraction.array_namespace", "CLGEMM_ROUTE": "device",
        "CLGEMM_TUNE": "off", "PYTHONPATH": _path(str(TESTS), os.environ.get("PYTHONPATH")),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:warnings",
        "array_api_tests", "-k", " or ".join(STANDARD), "--max-examples", str(examples),
    ]  # fmt: skip
    return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="suites whose names contain this")
    parser.add_argument("--jobs", type=int, default=1, help="runs that go on side by side")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="keep what the runs print there")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--array-api", type=Path, metavar="CHECKOUT", help="of array-api-tests")
    parser.add_argument("--examples", type=int, default=200, help="of each of its tests")
    given = parser.parse_args()
    print(
        f"{'suite':28}{'tests':>7}{'passed':>8}{'differ':>8}{'on device':>10}{'without':>9}"
        f"{'under':>7}",
        flush=True,
    )
    suites = [item for item in SUITES.items() if given.only in item[0]]
    if given.log:
        given.log.mkdir(parents=True, exist_ok=True)
    with Places(given.jobs) as places, ThreadPoolExecutor(len(SUITES)) as waiting:
        found = waiting.map(lambda item: compare(*item, places, given.log), suites)
        rows = [row for row in found if row is not None]
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    status = 0 if given.array_api is None else standard(given.array_api, given.examples)
    return status or int(any(row["differing"] or not row["on device"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
