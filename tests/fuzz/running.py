"""A case: one call in one mode, drawn from a seed and a number; and how cases are run."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import clgemm
from clgemm.dispatch import engines
from clgemm.kernels import FAMILIES
from clgemm.problem import PRECISIONS
from clgemm.runtime import registry
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.store.lookup import Tuned, defaults

from . import (
    compare,
    device_calls,
    gemm_calls,
    integer_calls,
    interposed_calls,
    matmul_calls,
    operands,
    other_calls,
    sizes,
)
from .odd_arguments import Odd
from .operands import Operand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clgemm.runtime.device import Device

KINDS: Mapping[str, Any] = {
    "gemm": gemm_calls, "matmul": matmul_calls, "arrays": device_calls, "other": other_calls,
    "integers": integer_calls, "interposed": interposed_calls,
}  # fmt: skip
SHARES = (0.34, 0.31, 0.15, 0.05, 0.07, 0.08)
MOVED = ("gemm", "matmul", "integers", "arrays")
SHIFTS = (0, 0, 1, 4, 8, 16)  # bytes
ROUTES = ("device", "auto", "host")
MISCOMPILED = frozenset({("Portable Computing Language", "batched")})
"""Families that a platform's compiler gets wrong, and that clgemm does not use there.

PoCL 3.1 has the first columns of a zgemm of 6 x 36 x 6 wrong with some transposes; the kernel is
right on Intel's runtime and on Oclgrind, which reports nothing.  It is for GPUs.
"""


@dataclass(frozen=True)
class Case:
    """One call in one mode."""

    seed: int
    index: int
    kind: str
    route: str
    fp32: str
    call: Any
    before: Case | None = None
    """A call of the same shapes and strides that is made first, if any: see `elsewhere`."""

    def __str__(self) -> str:
        modes = f"route {self.route}, fp32 {self.fp32}"
        after = f", after {self.before}" if self.before is not None else ""
        return f"{self.seed}:{self.index}, {self.kind}, {modes}: {brief(self.call)}{after}"


@dataclass(frozen=True)
class Finding:
    """A case in which the libraries disagree."""

    case: Case
    reason: str


def brief(x: Any) -> str:
    """Write a value without what is as it is by default."""
    if not is_dataclass(x):
        return f"({', '.join(map(brief, x))})" if isinstance(x, tuple) else repr(x)
    if isinstance(x, Odd):
        return x.name
    told = [(f.name, getattr(x, f.name)) for f in fields(x)]
    usual = {f.name: f.default for f in fields(x)}
    words = [f"{name}={brief(value)}" for name, value in told if value != usual[name]]
    return f"{type(x).__name__}({', '.join(words)})"


def draw(
    seed: int, index: int, known: Mapping[str, tuple[int, ...]], only: str | None = None
) -> Case:
    """Draw a case: the same one for the same seed, number and boundaries of kernels."""
    rng = np.random.default_rng([seed, index])
    kind = str(rng.choice(list(KINDS), p=SHARES)) if only is None else only
    modes = draw_modes(rng)
    call = KINDS[kind].draw(rng, known)
    before = None
    if kind in MOVED and rng.random() < 0.3:
        others = modes if rng.random() < 0.7 else draw_modes(rng)
        before = Case(seed, index, kind, *others, elsewhere(rng, call, known))
    return Case(seed, index, kind, *modes, call, before)


def draw_modes(rng: np.random.Generator) -> tuple[str, str]:
    """Draw the route and the way of single precision."""
    route = str(rng.choice(ROUTES, p=[0.6, 0.3, 0.1]))
    return route, "fma" if rng.random() < 0.1 else "auto"


def elsewhere(rng: np.random.Generator, call: Any, known: Mapping[str, tuple[int, ...]]) -> Any:
    """Return a call whose arrays lie alike, but begin elsewhere, and are otherwise not the same.

    What was decided on it is kept, and must not hold for what it does not fit.
    """
    if isinstance(call, device_calls.DeviceCall):
        return device_calls.elsewhere(rng, call)
    changes: dict[str, Any] = {}
    for name, x in ((f.name, getattr(call, f.name)) for f in fields(call)):
        if isinstance(x, Operand):
            layout = replace(x.layout, shift=int(rng.choice(SHIFTS)))
            form = x.form if rng.random() < 0.8 else str(rng.choice(["ndarray", "Sub", "memmap"]))
            changes[name] = replace(
                x, layout=layout, form=form, seed=int(rng.integers(2**31)),
                values=operands.draw_values(rng) if x.values in operands.VALUES else x.values,
                writeable=bool(rng.random() < 0.9),
            )  # fmt: skip
    if isinstance(call, gemm_calls.GemmCall) and rng.random() < 0.5:
        other = gemm_calls.draw(rng, known)
        changes |= {name: getattr(other, name) for name in ("alpha", "beta", "overwrite_c")}
    if rng.random() < 0.5:
        changes["alias"] = ""
    if getattr(call, "out", None) is not None and rng.random() < 0.2:
        changes |= {"out": None, "alias": ""}
    return replace(call, **changes)


def modes_of(case: Case) -> contextlib.AbstractContextManager[Any]:
    """Set a case's modes; those of a user who sets nothing are not set.

    Small products look for that before all else, and are computed on a road of their own then.
    """
    if (case.route, case.fp32) == ("auto", "auto"):
        return contextlib.nullcontext()
    return clgemm.settings.using(route=case.route, fp32=case.fp32)


def run(case: Case, *, exact: bool) -> Finding | None:
    """Run a case; an error of the test's own is a finding, too."""
    if case.before is not None and (found := run(case.before, exact=exact)) is not None:
        return Finding(case, f"before: {found.reason}")
    try:
        with modes_of(case), np.errstate(all="ignore"):
            KINDS[case.kind].check(case.call, exact=exact)
    except compare.DifferenceError as difference:
        cause = difference.__cause__
        more = "".join(traceback.format_exception(cause)) if cause is not None else ""
        return Finding(case, f"{difference}\n{more}".rstrip())
    except Exception:  # noqa: BLE001 - whatever it is, the case has to be looked at
        return Finding(case, traceback.format_exc())
    return None


def call_only(case: Case) -> None:
    """Make a case's call on clgemm alone; what it raises by itself is no matter.

    An operand that a call changed though it was interrupted is a DifferenceError.
    """
    module = KINDS[case.kind]
    if not hasattr(module, "call_only"):
        return
    if case.before is not None:
        call_only(case.before)
    with modes_of(case), np.errstate(all="ignore"):
        module.call_only(case.call)


def is_exact(device: Device) -> bool:
    """Tell whether a device's kernels compute whole numbers exactly: not from halves."""
    return not any(
        family.name in {"nv_fused", "nv_split", "nv_mma"}
        and family.supports(device.traits, PRECISIONS["s"])
        for family in FAMILIES
    )


def cases(
    seed: int, numbers: Iterator[int], only: str | None = None
) -> Iterator[Case]:  # fmt: skip
    """Draw cases for the device and the kernels in use."""
    known = sizes.boundaries()
    return (draw(seed, index, known, only) for index in numbers)


# --------------------------------------------------------------------------- variants


@contextlib.contextmanager
def variant(number: int) -> Iterator[list[str]]:
    """Compute with a configuration of its own for each precision.

    Parameters
    ----------
    number : int
        0 for the families' defaults; others stand for one of each family's configurations, drawn
        from that number, the families in turn.
    """
    used = engines.current()
    if used is None:
        raise RuntimeError("no device is in use here")
    traits, names = used.device.traits, []
    for code, precision in PRECISIONS.items():
        if not traits.has(precision):
            continue
        tuned = defaults(traits, precision, "fuzzing")
        able = [
            f for f in FAMILIES
            if f.supports(traits, precision) and (traits.platform, f.name) not in MISCOMPILED
        ]  # fmt: skip
        if number:
            family = able[number % len(able)]
            found = list(itertools.islice(family.candidates(traits, precision), 5000))
            config = found[int(np.random.default_rng(number).integers(len(found)))]
            model = Model(traits, code, {}, (Variant(config, (), {}),))
            tuned = Tuned(model, f"variant {number}")
        used.parameters.use(code, tuned)
        names.append(str(tuned.configs[0]))
    used.forget()
    try:
        yield names
    finally:
        for code, precision in PRECISIONS.items():
            if traits.has(precision):
                used.parameters.use(code, defaults(traits, precision, "fuzzing"))
        used.forget()


def current_device() -> Device:
    """Return the device in use."""
    device = registry.current()
    if device is None:
        raise RuntimeError("no device is in use here")
    return device
