"""Which calls a stub shows to Python, and which of those the device computes: decided here alone.

A stub knows the product m * n * k of a call and nothing else.  So it lets through, up to a
threshold, what cannot win on the device in any shape; what it shows is decided on by the engine,
once for each kind of call.  Both go by the same times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clgemm import settings
from clgemm.dispatch import engines
from clgemm.dispatch.route import DEVICE, SMALL_SHARED, TIE, route, small_flops
from clgemm.dispatch.times import HALF, MIRRORED
from clgemm.interpose import stub, triangles
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Hashable

    from clgemm.dispatch.engine import Decision, Engine
    from clgemm.dispatch.route import Route
    from clgemm.interpose.arguments import Product
    from clgemm.problem import Call, Precision

SHOWN_SECONDS = 3e-4
"""That a call on the device takes besides, after some milliseconds in which a program did something
else: threads sleep then, and Python's and the product's data are out of the caches.  On a Zen 5;
among other calls of its kind 60 us, half to show it to Python and half to stop the threads of the
program's own BLAS."""
NEARLY = 1.25  # times as long as the host: predictions err, and a trial may find the device faster
_CUBES = tuple(
    Shape(n, n, n)
    for n in (130, 192, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1536, 2048, 4096)
)
"""Of all shapes of so many multiplications the device gains most with cubes, which have the fewest
elements.  The first one is just larger than what the host computes whatever is known."""
MERGE_RATE = 10e9  # bytes of C a second, at which one of its triangles is written, at least
FRESH_RATE = 3e9  # bytes a second at which a system gives memory that is written first
_INTERPOSED = "interposed"
"""Sets kinds of calls apart from those of the faces, in the engine's table."""


class Chosen(NamedTuple):
    """What the device computes, and how."""

    decision: Decision
    """On the product with all of C."""
    host_seconds: float | None
    """Predicted of the original; None if nothing had to be compared."""


def least_product(precision: Precision) -> int:
    """Return the m * n * k up to which no call of a precision can win on the device.

    What is not known yet has a default, and nothing is measured.
    """
    wanted, operations = settings.modes().route, 2 * precision.multiplications
    if wanted != settings.ROUTES[0]:
        return 1 if wanted == DEVICE else stub.NEVER
    engine = engines.opened()
    if engine is None:
        return SMALL_SHARED // operations
    measured = engine.break_evens.known(precision)
    shapes = _CUBES if measured is None else (*_CUBES, *measured.host.seconds)
    if engine.known_times(_CUBES[0].problem(precision.code)) is None:
        return small_flops(engine.device.traits) // operations
    winning = (
        shape.m * shape.n * shape.k - 1
        for shape in shapes
        if shape.batch == 1 and _may_win(engine, shape, precision)
    )
    largest = _CUBES[-1]
    return min(winning, default=largest.m * largest.n * largest.k)


def _may_win(engine: Engine, shape: Shape, precision: Precision) -> bool:
    """Tell whether the engine may give a product to the device, by what is known now."""
    problem, traits = shape.problem(precision.code), engine.device.traits
    chosen = route(traits, problem, settings.ROUTES[0], engine.known_times(problem))
    host, device = chosen.host_seconds, chosen.device_seconds
    if host is None or device is None:
        return False
    device += SHOWN_SECONDS
    return (chosen.where == DEVICE and device <= host) or (engine.tries and device < NEARLY * host)


def kind(engine: Engine, code: str, x: Product) -> Hashable:
    """Tell what a decision for the host depends on."""
    beta = 0 if x.beta == 0 else 1 if x.beta == 1 else 2
    return _INTERPOSED, code, settings.modes(), engine.units(), x[:12], x.is_gram, beta


def is_left(engine: Engine, kind: Hashable) -> bool:
    """Tell whether calls of a kind were left to the host."""
    return kind in engine.repeated


def decide(engine: Engine, kind: Hashable, x: Product, call: Call) -> Chosen | None:
    """Decide where a call is computed.

    Parameters
    ----------
    engine : Engine
        Of the device.
    kind : hashable
        The call's `kind`, of which a decision for the host is kept; others are the engine's.
    x : Product
        What is asked for.
    call : Call
        The same, with arrays.

    Returns
    -------
    Chosen or None
        None if the original is to compute.
    """
    whole = triangles.whole(call) if x.part in ("lower", "upper") else call
    decision = engine.decide(whole, settings.modes(), engines.partners_of(engine))
    merged = call.c.nbytes if triangles.is_merged(decision, x) else 0
    host, device = seconds(x, decision.route, merged)
    if decision.route.where != DEVICE or not _pays(x, host, device):
        engine.repeat(kind, None)
        return None
    return Chosen(decision, host)


def seconds(x: Product, chosen: Route, merged: int) -> tuple[float | None, float | None]:
    """Predict what a call takes on the host and on the device; None where that is not known.

    Parameters
    ----------
    x : Product
        What is asked for.
    chosen : Route
        Of the product with all of C.
    merged : int
        Bytes of C if a triangle of it is merged, else 0.
    """
    host, device = chosen.host_seconds, chosen.device_seconds
    if x.part == "whole" or host is None or device is None:
        return host, device
    # Of symmetric products the host's time is syrk's already, and that of a copy to the other half.
    is_symmetric = x.is_gram and x.conj_a == x.conj_b
    mirrored = min(MIRRORED * x.n * x.n / 2, host / 2)
    merging = merged / MERGE_RATE + (merged / FRESH_RATE if merged > triangles.MOST_KEPT else 0)
    return host - mirrored if is_symmetric else HALF * host, device + merging


def _pays(x: Product, host: float | None, device: float | None) -> bool:
    """Tell whether the device is still the faster side of a call as it is; unless it is wanted."""
    if host is None or device is None:
        return True
    return device + SHOWN_SECONDS <= (1 if x.part == "whole" else TIE) * host
