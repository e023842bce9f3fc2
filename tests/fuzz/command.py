"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .running import Finding


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases; the exit status is 1 if there is a difference."""
    options = _parser().parse_args(arguments)
    _set_up(options)
    from . import running  # noqa: PLC0415 - the environment is set up first

    begun, device = time.monotonic(), running.current_device()
    findings: list[Finding] = []

    def heard(finding: Finding) -> None:
        findings.append(finding)
        _say(f"--- {finding.case}\n{finding.reason}\nreplay: {_replay(finding, options)}")

    with running.variant(options.variant) as configs:
        _say(f"{device}: {', '.join(configs)}")
        counted = _run(options, running.is_exact(device), heard)
    seconds = time.monotonic() - begun
    _say(f"{counted} of seed {options.seed} in {seconds:.0f} s: {len(findings)} differences")
    return bool(findings)


def _run(options: argparse.Namespace, exact: bool, heard: Callable[[Finding], None]) -> str:
    """Run what is asked for, and tell how much it was."""
    from . import disturbing, running  # noqa: PLC0415 - see main

    seed, numbers = options.seed, range(options.first, options.first + options.cases)
    if options.replay:
        seed, index = map(int, options.replay.split(":"))
        numbers = range(index, index + 1)
    end = time.monotonic() + (options.seconds or float("inf"))
    cases = itertools.takewhile(
        lambda _: time.monotonic() < end, running.cases(seed, iter(numbers), options.only)
    )
    if options.threads:
        count = disturbing.run_in_threads(cases, options.threads, exact=exact, heard=heard)
        return f"{count} cases in {options.threads} threads"
    if options.forks:
        count, forks = disturbing.run_with_forks(
            cases, exact=exact, every=options.forks, heard=heard
        )
        return f"{count} cases, {forks} of them in a forked child, too,"
    if options.interrupts:
        count, ended = disturbing.run_with_interrupts(cases, seed, exact=exact, heard=heard)
        return f"{count} cases, of which Ctrl-C ended {ended},"
    count = 0
    for case in cases:
        count += 1
        if options.replay:
            _say(str(case))
        finding = running.run(case, exact=exact)
        if finding is not None:
            heard(finding)
    return f"{count} cases"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--device", default="", help="what CLGEMM_DEVICE would be")
    kinds = ["gemm", "matmul", "arrays", "other", "integers", "interposed"]
    parser.add_argument("--only", choices=kinds)
    parser.add_argument("--replay", metavar="SEED:CASE", help="run one case, and show it")
    parser.add_argument("--threads", type=int, default=0, help="that take cases, disturbed")
    parser.add_argument("--forks", type=int, default=0, metavar="N", help="each Nth case")
    parser.add_argument("--interrupts", action="store_true", help="Ctrl-C at any moment")
    parser.add_argument("--variant", type=int, default=0, help="other configurations of kernels")
    return parser


def _set_up(options: argparse.Namespace) -> None:
    """Set the environment as the tests do, before clgemm reads it."""
    if options.device:
        os.environ["CLGEMM_DEVICE"] = options.device
    os.environ.setdefault("CLGEMM_CACHE_DIR", tempfile.mkdtemp(prefix="clgemm-fuzz-"))
    os.environ["CLGEMM_TUNE"] = "off"
    os.environ["CLGEMM_SHIPPED"] = "off"
    os.environ.pop("CLGEMM_ROUTE", None)  # a case says where it runs


def _replay(finding: Finding, options: argparse.Namespace) -> str:
    device = os.environ.get("CLGEMM_DEVICE", "")
    return replay(finding, device, options.variant, options.only)


def replay(finding: Finding, device: str, variant: int = 0, only: str | None = None) -> str:
    """Return the command that runs a case again."""
    case = finding.case
    words = [f"python -m tests.fuzz --replay {case.seed}:{case.index}"]
    words += [f"--device '{device}'"] * bool(device) + [f"--variant {variant}"] * bool(variant)
    return " ".join(words + [f"--only {only}"] * bool(only))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
