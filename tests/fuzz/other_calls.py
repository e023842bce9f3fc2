"""What else is public: explain, to_device, get_blas_funcs, and the modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg.blas

import clgemm

from . import compare, odd_arguments, operands, sizes
from .compare import require
from .operands import Operand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .odd_arguments import Odd

FUNCTIONS = ("explain", "to_device", "get_blas_funcs", "using")
NAMES: tuple[Any, ...] = (
    "gemm", "gemv", ("gemm", "axpy"), ["gemm"], [], "nonsense", ("gemm", "nonsense"), 3, None,
)  # fmt: skip
MODES = (
    ("route", "host"), ("route", "device"), ("route", "auto"), ("fp32", "fma"), ("fp32", "auto"),
    ("route", "nowhere"), ("nothing", "auto"), ("fp32", None),
)  # fmt: skip


@dataclass(frozen=True)
class OtherCall:
    """One call of something else."""

    function: str
    x: Operand | Odd
    y: Operand | Odd
    trans: tuple[Odd, Odd]
    name: int
    """Place in `NAMES` or `MODES`."""
    dtype: str | None


def draw(rng: np.random.Generator, known: Mapping[str, tuple[int, ...]]) -> OtherCall:
    """Draw a call."""
    m, n, k = sizes.draw_product(rng, known["d"])
    batch = (int(rng.integers(1, 4)),) if rng.random() < 0.2 else ()
    shapes = [(*batch, m, k), (k, n)]
    if rng.random() < 0.2:
        which, rank = int(rng.integers(0, 2)), int(rng.integers(0, 4))
        shapes[which] = tuple(int(rng.integers(0, 5)) for _ in range(rank))
    x, y = (
        operands.draw(rng, shape, str(rng.choice(operands.PRECISE))) for shape in shapes
    )  # fmt: skip
    function = str(rng.choice(FUNCTIONS, p=[0.4, 0.3, 0.25, 0.05]))
    odd = odd_arguments.draw_odd(rng, "matrix", odd_arguments.MATRICES)
    trans = (odd_arguments.draw_transposition(rng), odd_arguments.draw_transposition(rng))
    dtype = None if rng.random() < 0.5 else str(
        rng.choice([*operands.PRECISE, "f2", "i4", "O", "g", "nonsense"])
    )  # fmt: skip
    place = int(rng.integers(0, len(NAMES if function == "get_blas_funcs" else MODES)))
    return OtherCall(function, odd if rng.random() < 0.03 else x, y, trans, place, dtype)


def check(call: OtherCall, *, exact: bool) -> None:
    """Make the call and compare."""
    del exact
    made = [operands.make(z) for z in (call.x, call.y) if isinstance(z, Operand)]
    for z in made:
        z.remember()
    values = [operands.make(z).value if isinstance(z, Operand) else z.value
              for z in (call.x, call.y)]  # fmt: skip
    {"explain": _explain, "to_device": _to_device, "get_blas_funcs": _get_blas_funcs,
     "using": _using}[call.function](call, values)  # fmt: skip
    for z in made:
        require(not z.changed(), f"the call changed {z.changed()}")


def _explain(call: OtherCall, values: list[Any]) -> None:
    """Require an answer wherever there is a product, and a ValueError or TypeError elsewhere."""
    keywords = {"trans_a": call.trans[0].value, "trans_b": call.trans[1].value}
    told = compare.outcome(clgemm.explain, values, keywords)
    usual = all(x.name in {"0", "1", "2"} for x in call.trans)
    x, y = values
    if usual and all(isinstance(z, np.ndarray) and z.ndim for z in values):
        op_x, op_y = (x.T if call.trans[0].name != "0" else x), (
            y.T if call.trans[1].name != "0" else y
        )  # fmt: skip
        reached = compare.outcome(np.matmul, (op_x, op_y), {}).error is None
        if reached:
            require(told.error is None, f"explain raises {told.error!r} of a product")
    if told.error is None:
        require(told.value.route in {"host", "device"}, told.value.route)
        require(str(told.value), "nothing is told")
    else:
        allowed = (ValueError, TypeError, IndexError, OverflowError)
        require(isinstance(told.error, allowed), repr(told.error))


def _to_device(call: OtherCall, values: list[Any]) -> None:
    """Require that what comes back is what went there."""
    del call
    x = values[0]
    there = compare.outcome(lambda: clgemm.to_device(x).get(), (), {})
    kind = np.asarray(x).dtype.kind if isinstance(x, np.ndarray) else ""
    if kind and kind in "?biufc":
        require(there.error is None, f"to_device raises {there.error!r}")
        host = np.asarray(x)
        require(there.value.dtype == host.dtype, f"dtype {there.value.dtype}")
        require(np.array_equal(there.value, host, equal_nan=True), "other values")


def _get_blas_funcs(call: OtherCall, values: list[Any]) -> None:
    """Require SciPy's functions, but for gemm."""
    names = NAMES[call.name]
    arrays = tuple(v for v in values if isinstance(v, np.ndarray))
    keywords = {} if call.dtype is None else {"dtype": call.dtype}
    arguments = (names, arrays) if call.trans[0].name == "0" else (names,)
    other = compare.outcome(scipy.linalg.blas.get_blas_funcs, arguments, keywords)
    mine = compare.outcome(clgemm.get_blas_funcs, arguments, keywords)
    require(type(mine.error) is type(other.error), f"{mine.error!r} instead of {other.error!r}")
    if other.error is not None:
        return
    single = isinstance(names, str)
    pairs = [(names, mine.value, other.value)] if single else list(
        zip(names, mine.value, other.value, strict=True)
    )  # fmt: skip
    for name, function, reference in pairs:
        wanted = getattr(clgemm, f"{reference.typecode}gemm") if name == "gemm" else reference
        require(function is wanted, f"{function} instead of {wanted}")


def _using(call: OtherCall, values: list[Any]) -> None:
    """Require that modes hold inside the block alone."""
    del values
    name, value = MODES[call.name]
    before = clgemm.settings.modes()
    try:
        with clgemm.settings.using(**{name: value}) as modes:
            require(getattr(modes, name) == value, f"{modes}")
    except ValueError:
        require(call.name >= 5, f"{name}={value!r} is refused")
    require(clgemm.settings.modes() == before, "the modes stay changed")
