"""``clgemm explain``: where products would run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clgemm.api.explain import of_shape
from clgemm.cli import values

if TYPE_CHECKING:
    import argparse


def add_parser(commands: Any) -> None:
    """Add ``explain`` to the command line's subcommands."""
    p = commands.add_parser("explain", help="where a product would run, and why")
    p.add_argument("sizes", nargs="+", type=values.size, metavar="MxNxK")
    values.add_precision(p, "--precision")
    p.add_argument(
        "--types", nargs="+", type=values.integers, default=(), metavar="TYPE",
        help="in place of precisions: bool, int8, ... uint64",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print where column-major products would run; return the exit status."""
    for size in arguments.sizes:
        for code in arguments.types or arguments.precision:
            print(of_shape(code, size.m, size.n, size.k), flush=True)
    return 0
