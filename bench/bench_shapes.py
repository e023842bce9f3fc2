"""clgemm beside its peers on shapes that nobody tuned for: drawn at random, judged as a whole.

    python bench/bench_shapes.py --precisions s --json out.json --picture out.png
    python bench/bench_shapes.py --face gemm --both        # SciPy's functions; both sides timed
    python bench/bench_shapes.py --thin                    # vectors and narrow matrices
    python bench/bench_shapes.py --stacks                  # many small matrices
    python bench/bench_shapes.py --gram                    # a.T @ a and a @ a.T
    python bench/bench_shapes.py --mixed                   # in turn with products of NumPy's
    python bench/bench_shapes.py --control                 # NumPy beside itself: noise alone
    python bench/bench_shapes.py --arrays --range 32 12000 --flops 1e9 8e11  # on a GPU

Extents are drawn log-uniformly and taken if the operations lie within --flops; memory orders and
transposed views are drawn, too.  The same --seed gives the same shapes.  The peer of matmul is
NumPy, that of gemm SciPy, each as it runs without variables such as OPENBLAS_CORETYPE.  With
--mixed a NumPy product of 200 x 200 precedes each call of either side and is not timed.  With
--arrays operands are on the device, and the peer is cuBLAS by PyTorch, in rows of calls.

Each result is checked before it is timed.  Blocks alternate, each begun when no thread of this
process computes any more; blocks in which other processes ran are measured again.  A virtual
machine may run at half its speed for seconds, so what counts is the ratio of neighbouring blocks:
given are the medians of the round with the median ratio.  Where the ratios of rounds differ by more
than 5 %, in either direction, there are up to three times as many.  Ratios are the peer's time over
clgemm's.  A call that is slower by at most 2 us counts as equally fast in shares and in the worst
ratio, not in means.  Parameters and break-evens are those that a user's process finds: see
``python -m clgemm tune``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import alternating
import environment
import numpy as np
import random_shapes
import shapes_report as report
from array_products import ArrayProduct
from random_shapes import Bounds, Drawn
from shape_products import FACES, PEERS, Product, uniform
from shapes_report import CLGEMM, ON_DEVICE, ON_HOST, PEER, Row

import clgemm
from clgemm import settings
from clgemm.dispatch import engines
from clgemm.problem import PRECISIONS
from clgemm.tuning.measure import timing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clgemm.dispatch.engine import Engine

BLOCK_SECONDS = 0.02  # a shorter one does not see ticks of 10 ms that others take
PAUSE = 0.02  # seconds between an idle process and a block
MOST_RUNS = 100_000  # of a block, which small products fill, too
FIRST = 300  # rows and columns of a first product
NEIGHBOUR = 200  # rows and columns of the product in between
SPREAD = 1.05  # of the ratios of rounds, beyond which there are more of these, ...
STRETCH = 3  # ... times as many at most


class Way(NamedTuple):
    """One way to compute a product."""

    run: Callable[[], object]
    route: str = ""
    """Where it is made to run; "" leaves that to clgemm."""
    before: Callable[[], object] | None = None
    """What precedes each call and is not timed."""


def measure(way: Way) -> timing.Timing:
    """Time one block, begun on an idle process."""
    timing.settle()
    time.sleep(PAUSE)
    took, clock = 0.0, time.perf_counter

    def in_turn() -> None:
        nonlocal took
        assert way.before is not None
        way.before()
        start = clock()
        way.run()
        took = clock() - start

    with settings.using(route=way.route) if way.route else nullcontext():
        if way.before is None:
            return timing.quiet_measure(way.run, seconds=BLOCK_SECONDS, most=MOST_RUNS)
        return timing.quiet_measure(
            in_turn, seconds=2 * BLOCK_SECONDS, most=MOST_RUNS, clock=lambda: took
        )


def measured(ways: Mapping[str, Way], rounds: int) -> dict[str, list[timing.Timing]]:
    """Time ways in alternating blocks, in more rounds where these do not agree."""
    blocks: dict[str, list[timing.Timing]] = {name: [] for name in ways}
    order = list(ways)
    for done in range(STRETCH * rounds):
        if done >= rounds and max(ratios(blocks)) <= SPREAD * min(ratios(blocks)):
            break
        for name in order:
            blocks[name].append(measure(ways[name]))
        order.reverse()
    return blocks


def ratios(blocks: Mapping[str, list[timing.Timing]]) -> list[float]:
    """Return the peer's time over clgemm's in each round."""
    return [y.median / x.median for x, y in zip(blocks[CLGEMM], blocks[PEER], strict=True)]


def typical(blocks: Mapping[str, list[timing.Timing]]) -> dict[str, float]:
    """Return the seconds of the round in which the peer's over clgemm's are the median."""
    found = ratios(blocks)
    place = found.index(statistics.median_low(found))
    return {name: ts[place].median for name, ts in blocks.items()}


def ways_of(product: Product, arguments: argparse.Namespace) -> dict[str, Way]:
    """List what is timed of a product of NumPy arrays."""
    ours = product.theirs if arguments.control else product.ours
    ways = {CLGEMM: Way(ours), PEER: Way(product.theirs)}
    if arguments.mixed:
        x = uniform(np.random.default_rng(3), (NEIGHBOUR, NEIGHBOUR), product.drawn.code)
        between = partial(np.matmul, x, x)
        alone = {report.alone(name): way for name, way in ways.items()}
        after = {report.after(name): Way(between, before=way.run) for name, way in ways.items()}
        ways = {name: way._replace(before=between) for name, way in ways.items()} | alone | after
    if arguments.both:
        ways |= {side: Way(product.ours, side) for side in (ON_DEVICE, ON_HOST)}
    return ways


def run_arrays(drawn: Drawn, arguments: argparse.Namespace) -> Row:
    """Check and time one shape on the device."""
    product = ArrayProduct(drawn)
    error = product.error()
    if not error <= 1:
        raise SystemExit(f"{drawn.label}: WRONG, {error:.3g} times the error bound")
    ways = {CLGEMM: product.ours, PEER: product.theirs}
    seconds = alternating.throughput(ways, arguments.rounds)
    return Row(drawn, ON_DEVICE, product.kernels(), "operands are there", {}, seconds, error)


def run_shape(drawn: Drawn, arguments: argparse.Namespace) -> Row:
    """Check and time one shape."""
    if arguments.arrays:
        return run_arrays(drawn, arguments)
    product = Product(drawn, arguments.face)
    error = product.error()
    if not error <= 1:
        raise SystemExit(f"{drawn.label}: WRONG, {error:.3g} times the error bound")
    told = product.explained()
    blocks = measured(ways_of(product, arguments), arguments.rounds)
    return Row(
        drawn,
        told.route,
        told.config,
        told.why,
        {ON_HOST: told.host_seconds, ON_DEVICE: told.device_seconds},
        typical(blocks),
        error,
        sum(t.rejected for ts in blocks.values() for t in ts),
        any(t.noisy for ts in blocks.values() for t in ts),
    )


def print_row(row: Row) -> None:
    """Print one line of the table."""
    micro = "".join(f"{1e6 * row.seconds[name]:12.1f}" for name in (CLGEMM, PEER))
    noise = f"  {row.rejected} rejected" if row.rejected else ""
    noise += " NOISY" if row.noisy else ""
    print(f"{row.label:40}{micro}{row.ratio:8.2f}  {row.route}{noise}", flush=True)


def print_summary(rows: list[Row], title: str) -> dict[str, Any]:
    """Print what rows come to; return the figures."""
    figures = report.summary(rows)
    print(f"\n{title}\n{report.summary_text(figures)}\n\n{report.worst_text(rows)}\n")
    print(report.text_picture(rows), end="\n\n", flush=True)
    return figures


def head_of(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    """Say what is compared, where, and with which options, after a first product of each type.

    As in a user's process that one may search for parameters, and measure break-evens.
    """
    for code in arguments.precisions:
        x = uniform(np.random.default_rng(2), (FIRST, FIRST), code)
        clgemm.matmul(x, x)
    origins = {code: engine.parameters.of(code).origin for code in arguments.precisions}
    known = (c for c in arguments.precisions if engine.break_evens.known(PRECISIONS[c]))
    options = {
        name: str(x) for name, x in vars(arguments).items() if x is not None and x is not False
    }
    return environment.facts(engine.device) | {
        "peer": "cuBLAS" if arguments.arrays else PEERS[arguments.face],
        "parameters": origins,
        "break-evens known": "".join(known) or "none: the size alone decides",
        "options": options,
    }


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="shapes of each precision")
    parser.add_argument("--precisions", default="sdcz")
    parser.add_argument("--range", type=int, nargs=2, metavar=("LO", "HI"), help="of m, n and k")
    parser.add_argument("--flops", type=float, nargs=2, metavar=("LO", "HI"),
                        default=random_shapes.FLOPS)  # fmt: skip
    parser.add_argument("--face", choices=FACES, default=FACES[0])
    for kind in random_shapes.KINDS[1:]:
        parser.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind,
                            default=random_shapes.KINDS[0])  # fmt: skip
    parser.add_argument("--both", action="store_true", help="also time each side alone")
    parser.add_argument("--mixed", action="store_true", help="each call after one of NumPy's")
    parser.add_argument("--control", action="store_true", help="the peer in clgemm's place, too")
    parser.add_argument("--arrays", action="store_true", help="operands on the device")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    if arguments.kind == "stacks" and arguments.face == "gemm":
        parser.error("--stacks needs --face matmul: a gemm takes no stacks")
    others = arguments.mixed or arguments.both or arguments.control or arguments.kind == "gram"
    if arguments.arrays and (others or arguments.face == "gemm"):
        parser.error("--arrays goes with matmul of plain shapes, --thin and --stacks alone")
    arguments.range = tuple(arguments.range or random_shapes.EXTENTS[arguments.kind])
    arguments.flops = tuple(arguments.flops)
    return arguments


def main() -> int:
    """Draw, check and time the shapes, and print what they come to."""
    arguments = parsed()
    environment.restart_clean()
    head = head_of(engines.of(environment.device_in_use()), arguments)
    print(environment.text(head))
    bounds = Bounds(arguments.range, arguments.flops)
    rows: list[Row] = []
    summaries = {}
    for code in arguments.precisions:
        print(f"{'us, ratio':40}{CLGEMM:>12}{head['peer']:>12}")
        found = []
        for drawn in random_shapes.draw(
            arguments.kind, arguments.face, code, arguments.count, arguments.seed, bounds
        ):
            found.append(run_shape(drawn, arguments))
            print_row(found[-1])
        title = f"{code}{arguments.face}, {arguments.kind}, beside {head['peer']}"
        summaries[code] = print_summary(found, title)
        if arguments.mixed:
            print(report.mixed_text(found), flush=True)
        rows += found
    if arguments.picture:
        title = f"{arguments.face}, {arguments.kind}, beside {head['peer']}, seed {arguments.seed}"
        print(report.picture(arguments.picture, rows, title))
    stored = [asdict(row) for row in rows]
    environment.store(arguments.json, head | {"summaries": summaries, "rows": stored})
    return 0


if __name__ == "__main__":
    sys.exit(main())
