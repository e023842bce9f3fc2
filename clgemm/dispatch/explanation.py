"""What is decided about a kind of call, and how to tell it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from clgemm.dispatch.multi_device import Several
from clgemm.dispatch.route import HOST
from clgemm.problem import PRECISIONS
from clgemm.streaming.runner import Pipeline, room_of
from clgemm.streaming.schedule import OPERANDS
from clgemm.tuning import tuner

if TYPE_CHECKING:
    from clgemm.dispatch.route import Decision
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Session
    from clgemm.runtime.kernel_runner import Ready


class Known(NamedTuple):
    """What was decided for all calls whose arrays have the same shapes and strides."""

    ready: Ready | Pipeline | Several | None
    """None: the host computes."""
    problem: Gemm
    decision: Decision
    turned: bool
    """C is row-major: op(B).T is the first operand and op(A).T the second."""
    pairs: bool
    """Elements are complex, which NumPy may place between two multiples of their size."""

    def name(self, session: Session) -> str:
        """Name the call as messages do."""
        return f"{self.problem.precision}gemm on {session}"


@dataclass(frozen=True)
class Explanation:
    """What a call does, and why; ``str()`` of it reads as a sentence or two."""

    product: str
    """Precision and sizes."""
    route: Literal["device", "host"]
    """Where it is computed."""
    why: str
    host_seconds: float | None = None
    """Predicted; None if nothing had to be compared."""
    device_seconds: float | None = None
    """Predicted, transfers included."""
    device: str = ""
    """Empty if no device was asked for."""
    config: str = ""
    """Kernel family and its parameters, empty on the host."""
    origin: str = ""
    """Where these parameters come from."""
    bytes_up: int = 0
    """What is copied to the device before, 0 where memory is shared."""
    bytes_down: int = 0
    """What is copied back."""
    blocks: int = 1
    """Products that it is cut into, so that they fit the device and copies overlap with kernels."""
    copied: tuple[str, ...] = ()
    """Operands that no BLAS can express where they lie, copied on the host first."""
    calls: int = 1
    """Products that a stack is computed in."""
    shares: tuple[tuple[str, float], ...] = ()
    """Devices and what part of C each kind computes, if several take part."""

    def __str__(self) -> str:
        lines = [f"{self.product}: on the {self.route}, because {self.why}"]
        if self.host_seconds is not None and self.device_seconds is not None:
            host, device = (_milliseconds(x) for x in (self.host_seconds, self.device_seconds))
            lines.append(f"predicted: host {host}, device {device}")
        if self.config:
            lines += [f"device: {self.device}", f"kernel: {self.config}, {self.origin}"]
            moved = f"{_megabytes(self.bytes_up)} to the device, {_megabytes(self.bytes_down)} back"
            shared = not (self.bytes_up or self.bytes_down)
            lines.append(f"transfers: {'none, memory is shared' if shared else moved}")
        if self.blocks > 1:
            lines.append(f"in {self.blocks} blocks")
        if self.copied:
            lines.append(f"copied first, for want of a unit stride: {', '.join(self.copied)}")
        if self.shares:
            parts = ", ".join(f"{part:.0%} on {names}" for names, part in self.shares)
            lines.append(f"shared among devices: {parts}")
        if self.calls > 1:
            lines.append(f"and so {self.calls} times")
        return "; ".join(lines)


def _milliseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} us" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def _product(precision: Precision, batch: int, m: int, n: int, k: int) -> str:
    stack = f"{batch} x " if batch > 1 else ""
    return f"{precision.code}gemm {stack}({m} x {n} x {k})"


def explained(session: Session, known: Known, copied: tuple[str, ...] = ()) -> Explanation:
    """Tell what calls of a known kind do."""
    g, decision, traits = known.problem, known.decision, session.traits
    m, n = (g.n, g.m) if known.turned else (g.m, g.n)
    precision = PRECISIONS[g.precision]
    found = Explanation(
        _product(precision, g.batch, m, n, g.k), decision.where, decision.why,
        decision.host_seconds, decision.device_seconds, traits.describe(), copied=copied,
    )  # fmt: skip
    if known.ready is None:
        return found
    if isinstance(known.ready, Several):
        return replace(found, shares=_shares(known.ready))
    tuned = session.tuned.get(g.precision)
    origin = tuned.origin if tuned else "the family's default"
    if not isinstance(known.ready, Pipeline):
        return replace(found, config=str(tuner.config_for(session, g)), origin=origin)
    schedule = known.ready.schedule(g, room_of(session))
    if schedule is None:
        return replace(found, route=HOST, why="the device's memory is too small")
    moved = {x: schedule.visits[x] * schedule.sizes[x] * precision.itemsize for x in OPERANDS}
    return replace(
        found,
        config=str(tuner.config_for(session, schedule.gemms[0])),
        origin=origin,
        bytes_up=moved["a"] + moved["b"] + moved["c"] * g.reads_c,
        bytes_down=moved["c"],
        blocks=len(schedule.steps),
    )


def _shares(several: Several) -> tuple[tuple[str, float], ...]:
    sizes = [sum(tile.size for tile in share.tiles) for share in several.shares]
    names = [" and ".join(m.name for m in share.members) for share in several.shares]
    return tuple((name, size / sum(sizes)) for name, size in zip(names, sizes, strict=True))


def unmeasured(
    precision: Precision, a_shape: tuple[int, ...], c_shape: tuple[int, ...], why: str
) -> Explanation:
    """Tell of a call that asks no device."""
    batch = c_shape[0] if len(c_shape) > 2 else 1
    return Explanation(_product(precision, batch, c_shape[-2], c_shape[-1], a_shape[-1]), HOST, why)
