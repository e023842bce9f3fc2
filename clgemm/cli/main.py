"""The command line, ``python -m clgemm``: its parser, and what comes of a command."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import warnings
from typing import TYPE_CHECKING

from clgemm.cli import cache, demo, explain, info, run, tune
from clgemm.errors import ClgemmError, ClgemmWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {"info": info, "cache": cache, "tune": tune, "explain": explain, "demo": demo}
"""Their modules; `run`, which does as a program does, is apart."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="clgemm", description="SciPy's gemm and NumPy's matmul on OpenCL devices."
    )
    top.add_argument("--version", action="version", version=info.versions())
    top.add_argument("-v", "--verbose", action="store_true", help="log what happens")
    commands = top.add_subparsers(dest="command", required=True)
    for command in (info, cache, tune, run, explain, demo):
        command.add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    arguments = parser().parse_args(argv)
    if arguments.command == "run":  # what is set up below and caught is the program's own
        return run.run(arguments, parser())
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO, format="%(name)s: %(message)s"
    )
    warnings.simplefilter("always", ClgemmWarning)
    try:
        status: int = COMMANDS[arguments.command].run(arguments)
        if sys.stdout is not None:  # as where it was closed before
            sys.stdout.flush()  # what cannot be written is known now, not after the end
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("clgemm: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except (ClgemmError, MemoryError, OSError) as error:
        print(f"clgemm: error: {error}", file=sys.stderr)
        return 1
    return status
