"""What is decided about a kind of call, and how to tell it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from clgemm.dispatch.route import HOST
from clgemm.problem import ELEMENTS, INTEGERS

if TYPE_CHECKING:
    from clgemm.dispatch.route import Route
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.runner import Work


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
    name = str(precision.dtype) if precision.code in INTEGERS else f"{precision.code}gemm"
    return f"{name} {stack}({m} x {n} x {k})"


def explained(
    g: Gemm, route: Route, work: Work, device: str, origin: str, copied: tuple[str, ...]
) -> Explanation:
    """Tell what calls of a kind do."""
    found = Explanation(
        _product(ELEMENTS[g.precision], g.batch, g.m, g.n, g.k), route.where, route.why,
        route.host_seconds, route.device_seconds, device, copied=copied,
    )  # fmt: skip
    if work.why_host:
        return replace(found, route=HOST, why=work.why_host)
    return replace(
        found,
        config=work.config,
        origin=origin if work.config else "",
        bytes_up=work.bytes_up,
        bytes_down=work.bytes_down,
        blocks=work.blocks,
        shares=work.shares,
    )


def unmeasured(precision: Precision, k: int, shape: tuple[int, ...], why: str) -> Explanation:
    """Tell of a call that asks no device, by the shape of its result."""
    batch = shape[0] if len(shape) > 2 else 1
    return Explanation(_product(precision, batch, shape[-2], shape[-1], k), HOST, why)
