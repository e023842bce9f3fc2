"""Raw calls of BLAS functions, by C's and Fortran's conventions, as compiled modules make them.

Each is made on the function of NumPy's or SciPy's BLAS, and on the stub that stands in front of it
once it is interposed, with copies of the same memory.  C's elements must agree, every other byte of
memory must be as before, and what is wrong must be said in the same words.

What is done differently on purpose, beside what `compare` has:

* gemmt, which crashes in some OpenBLAS, is drawn such that the device computes it, and compared
  with gemm;
* a beta that is NaN or infinite is left out of syrk and herk: OpenBLAS' do not multiply all of C
  by it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import clgemm
from clgemm.dispatch import engines
from clgemm.interpose import slots, stub
from clgemm.interpose.account import Tally
from clgemm.interpose.callbacks import Callback, Reasons
from clgemm.interpose.entries import ARGUMENTS, Entry
from clgemm.problem import PRECISIONS
from clgemm.runtime import forks, machine_code
from clgemm.runtime.mappings import Mappings

from . import compare, operands, sizes
from .compare import Bound, DifferenceError, require
from .operands import Layout, Made, Operand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

NAMES = [
    code + routine
    for routine in ARGUMENTS
    for code in "sdcz"
    if code in "cz" or routine not in {"gemm3m", "herk"}
]
NUMBERS = {
    "row": 101, "column": 102, "N": 111, "T": 112, "C": 113, "R": 114, "U": 121, "L": 122,
    "X": 199,
}  # fmt: skip
"""CBLAS' for Fortran's letters; the last one is wrong."""
OPTIONS = ("order", "uplo", "trans_a", "trans_b")
LARGEST = 2**62  # of a threshold: nothing is shown to Python
NAN, INF = float("nan"), float("inf")
FACTORS = (1.0, 1.0, 0.0, 0.0, -1.0, 2.0, 0.5, -1.25, 2 - 1j, 1j, 0.5 + 3j)
ODD_FACTORS = (NAN, INF, -INF, complex(NAN, 1), complex(0, INF), -0.0, 1e-30, 1e30)
LIBRARIES = {"numpy": "_multiarray_umath", "scipy": "_fblas"}
"""The modules that call them."""


@dataclass(frozen=True)
class BlasCall:
    """One call of a function."""

    library: str
    form: str
    """cblas or fortran."""
    name: str
    order: str
    uplo: str
    trans_a: str
    trans_b: str
    m: int
    n: int
    k: int
    alpha: complex
    a: Operand
    b: Operand
    beta: complex
    c: Operand
    is_gram: bool = False
    """Whether B is A's memory."""
    has_nan: bool = False
    """Whether C holds nothing else."""
    least: int = 1
    """The product m * n * k up to which the stub shows Python nothing."""
    has_high_bits: bool = False
    """Whether the upper halves of 32-bit integers hold something: the ABI leaves them open."""
    mistake: str = ""
    """The argument that is wrong."""

    @property
    def routine(self) -> str:
        """The function without its precision."""
        return self.name[1:]


# --------------------------------------------------------------------------- drawing


def draw(rng: np.random.Generator, known: Mapping[str, tuple[int, ...]]) -> BlasCall:
    """Draw a call."""
    library, form = str(rng.choice(list(LIBRARIES))), str(rng.choice(["cblas", "fortran"]))
    weights = np.array([3.0 if x.endswith("gemm") else 1.0 for x in NAMES])
    name = str(rng.choice(NAMES, p=weights / weights.sum()))
    code, routine = name[0], name[1:]
    m, n, k = sizes.draw_product(rng, known[code])
    m = m if "m" in ARGUMENTS[routine] else n
    order = "column" if form == "fortran" else str(rng.choice(["row", "column"]))
    is_gram = "b" in ARGUMENTS[routine] and rng.random() < 0.15
    ta, tb = _draw_operations(rng, name, form, is_gram=is_gram)
    n = m if is_gram else n
    values = operands.draw_values(rng)
    shapes = (k, m) if ta in "TCtc" else (m, k), (n, k) if tb in "TCtc" else (k, n), (m, n)
    a, b, c = (_draw_matrix(rng, shape, code, order, values) for shape in shapes)
    alpha, beta = (_draw_factor(rng, name) for _ in range(2))
    if routine in {"syrk", "herk"} and not np.isfinite(beta):
        beta = 1.0
    call = BlasCall(
        library, form, name, order, str(rng.choice(["U", "L"])), ta, tb, m, n, k, alpha, a, b,
        beta, c, is_gram, has_nan=bool(beta == 0 and rng.random() < 0.5),
        least=int(rng.choice([0, 1, 1, 1, m * n * k - 1, m * n * k, LARGEST])),
        has_high_bits=bool(rng.random() < 0.5),
    )  # fmt: skip
    if routine == "gemmt":
        return replace(call, alpha=call.alpha or 1.0, least=1)
    wrong = [x for x in ARGUMENTS[routine] if x not in {"alpha", "a", "b", "beta", "c"}]
    wrong = wrong[form == "fortran" :]  # which has no order
    # Without elements OpenBLAS takes leading dimensions of 0.
    if m * n * k and rng.random() < 0.06:
        return replace(call, mistake=str(rng.choice(wrong)))
    return call


def _draw_operations(
    rng: np.random.Generator, name: str, form: str, *, is_gram: bool
) -> tuple[str, str]:
    """Draw how A and B take part; Fortran's letters may be small."""
    code, routine = name[0], name[1:]
    letters = {"syrk": "NT" if code in "cz" else "NTC", "herk": "NC"}.get(routine, "NNTTCCR")
    ta, tb = (str(rng.choice(list(letters))) for _ in range(2))
    if is_gram:
        ta, tb = rng.permutation(["N", str(rng.choice(["T", "C"]))])
    if form == "fortran" and rng.random() < 0.2:
        ta, tb = ta.lower(), tb.lower()
    return str(ta), str(tb)


def _draw_matrix(
    rng: np.random.Generator, shape: tuple[int, int], code: str, order: str, values: str
) -> Operand:
    """Draw a matrix that lies as the call says, with gaps; complex ones begin anywhere."""
    dtype = np.dtype(PRECISIONS[code].dtype)
    part = PRECISIONS[code].real_bytes
    layout = Layout(
        "C" if order == "row" else "F", pad=int(rng.choice([0, 0, 1, 3, 16])),
        shift=part * int(rng.choice([0, 0, 0, 1, 2, 5])),
    )  # fmt: skip
    return Operand(shape, dtype.str[1:], values, int(rng.integers(2**31)), layout)


def _draw_factor(rng: np.random.Generator, name: str) -> complex:
    """Draw alpha or beta, a real number where the function takes one."""
    found = complex(rng.choice(ODD_FACTORS if rng.random() < 0.08 else FACTORS))
    return found.real if name[0] in "sd" or name.endswith("herk") else found


# --------------------------------------------------------------------------- functions


class Function(NamedTuple):
    """A function of a BLAS, and the stub in front of it."""

    entry: Entry
    direct: Any
    interposed: Any
    cell: stub.Cell
    tally: Tally
    reasons: Reasons


@functools.cache
def why_not() -> str | None:
    """Return why no function can be interposed here."""
    found = machine_code.why_not()
    return found or (None if _libraries() else "no module calls a BLAS that can be interposed")


@functools.cache
def _libraries() -> dict[str, tuple[ctypes.CDLL, str]]:
    """Give each BLAS, and what its functions' names look like."""
    found = {}
    for slot in slots.find()[0]:
        plain = "cblas_sgemm" if "cblas_sgemm" in slot.entry.name else "sgemm_"
        for library, module in LIBRARIES.items():
            if slot.path.name.startswith(module) and plain in slot.entry.name:
                home = Mappings().at(slot.original, 1)
                pattern = slot.entry.name.replace(plain, "{}")
                found[library] = ctypes.CDLL(home.path), pattern
    return found


@functools.cache
def function(library: str, form: str, name: str) -> Function | None:
    """Make a stub in front of a function, once; None if a library does not have it."""
    if why_not() is not None or library not in _libraries():
        return None
    blas, pattern = _libraries()[library]
    plain = f"cblas_{name}" if form == "cblas" else f"{name}_"
    entry = Entry.of(pattern.format(plain))
    if entry is None or not hasattr(blas, entry.name):
        return None
    direct = blas[entry.name]
    direct.restype = None
    cell, tally, reasons = stub.cell(), Tally(), Reasons()
    callback = Callback(entry, cell, tally, reasons, lambda: None, calls_alone=True)
    forks.keep_for_ever(callback.function)
    cell.fill(stub.address_of(direct), stub.address_of(callback.function), stub.NEVER)
    code = stub.code(cell.address, entry.extents, by_value=entry.is_cblas, wide=entry.wide)
    (address,) = stub.place([code])
    return Function(entry, direct, ctypes.CFUNCTYPE(None)(address), cell, tally, reasons)


# --------------------------------------------------------------------------- making


def make(call: BlasCall) -> dict[str, Made]:
    """Make the operands, the same each time."""
    made = {name: operands.make(getattr(call, name)) for name in "abc"}
    if call.is_gram:
        made["b"] = made["a"]
    if call.has_nan:
        made["c"].array[...] = np.nan
    for x in made.values():
        x.remember()
    return made


def passed(call: BlasCall, entry: Entry, made: Mapping[str, Made]) -> list[Any]:
    """Give what ctypes passes on: values, and addresses of what is kept in them."""
    return [_one(call, entry, name, value) for name, value in _values(call, entry, made)]


def _values(
    call: BlasCall, entry: Entry, made: Mapping[str, Made]
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """Yield each argument by its name, of which one may be wrong."""
    for name in entry.arguments:
        value = _leading(call, name[2]) if name.startswith("ld") else getattr(call, name)
        if name in made:
            value = made[name].array.__array_interface__["data"][0]
        elif name == call.mistake:
            value = "X" if name in OPTIONS else -1 if name in "mnk" else _least_leading(call, name)
        yield name, value


def _operand(call: BlasCall, name: str) -> Operand:
    return call.a if name == "b" and call.is_gram else getattr(call, name)


def _line(call: BlasCall, name: str) -> int:
    """Count the elements of an operand that lie side by side."""
    return max(1, _operand(call, name).shape[1 if call.order == "row" else 0])


def _leading(call: BlasCall, name: str) -> int:
    return _line(call, name) + _operand(call, name).layout.pad


def _least_leading(call: BlasCall, name: str) -> int:
    """Return a leading dimension that is too short by one."""
    return _line(call, name[2]) - 1


def _one(call: BlasCall, entry: Entry, name: str, value: Any) -> Any:
    """Give one argument as C or Fortran passes it."""
    if name in "abc":
        return ctypes.c_void_p(value)
    if name in OPTIONS:
        letter = ctypes.c_char(value[:1].encode())
        return ctypes.c_int(NUMBERS[value]) if entry.is_cblas else ctypes.byref(letter)
    if name in {"alpha", "beta"}:
        return _number(entry, value)
    if not entry.is_cblas:
        return ctypes.byref((ctypes.c_int64 if entry.wide else ctypes.c_int32)(value))
    if not entry.wide and call.has_high_bits:
        return ctypes.c_int64(value & 0xFFFFFFFF | 0x5A5A5A5A << 32)
    return ctypes.c_int64(value) if entry.wide else ctypes.c_int32(value)


def _number(entry: Entry, value: complex) -> Any:
    """Give alpha or beta: complex ones lie in memory for C, too."""
    real = ctypes.c_double if entry.precision.is_double else ctypes.c_float
    if entry.precision.is_complex and entry.routine != "herk":
        return ctypes.byref((real * 2)(value.real, value.imag))
    return real(value) if entry.is_cblas else ctypes.byref(real(value))


# --------------------------------------------------------------------------- comparing


def check(call: BlasCall, *, exact: bool) -> None:
    """Make the call on the function and on its stub, and compare.

    Parameters
    ----------
    call : BlasCall
        The call.
    exact : bool
        Whether whole numbers must give exactly the same.
    """
    found = function(call.library, call.form, call.name)
    if found is None or (call.routine == "gemmt" and not _is_computed(call, found.entry)):
        return
    mine, other = make(call), make(call)
    found.cell.set_least(call.least)
    before, reasons = on_device(found), found.reasons.all()
    wanted = {"route": "device"} if call.routine == "gemmt" else {}
    with clgemm.settings.using(**wanted):
        said = _heard(call, found.interposed, passed(call, found.entry, mine))
        route = clgemm.settings.modes().route
    _check_place(call, found, route, on_device(found) - before, reasons)
    want = _heard(call, *_original(call, found, other))
    require(said == want, f"said {said!r}, and the original {want!r}")
    allowed = _written(call)
    for name in "ab":
        require(not mine[name].changed(), f"the call changed the memory of {name}")
    _require_untouched(mine["c"], allowed)
    if not call.mistake:
        with np.errstate(all="ignore"):
            _compare(call, mine["c"].array, other["c"].array, allowed, exact=exact)


def _original(
    call: BlasCall, found: Function, made: Mapping[str, Made]
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Give the original function and its arguments; gemm in place of gemmt."""
    if call.routine != "gemmt":
        return found.direct, passed(call, found.entry, made)
    gemm = function(call.library, call.form, call.name[0] + "gemm")
    require(gemm is not None, "there is a gemmt, and no gemm")
    return gemm.direct, passed(call, gemm.entry, made)


def _heard(call: BlasCall, called: Any, arguments: list[Any]) -> bytes:
    """Call, and return what the library says if something is wrong, to wherever it does."""
    if not (call.mistake and compare.alone()):
        called(*arguments)
        return b""
    flush = ctypes.CDLL(None).fflush
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        flush(None)
        kept = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in kept:
                os.dup2(file.fileno(), number)
            called(*arguments)
            flush(None)
        finally:
            for number, copy in kept:
                os.dup2(copy, number)
                os.close(copy)
        file.seek(0)
        return file.read()


def on_device(found: Function) -> int:
    """Count the calls of a function that the device has computed."""
    return found.tally.row("", "", 0, 0).device_calls


def _is_computed(call: BlasCall, entry: Entry) -> bool:
    """Tell whether the device must compute a call that is shown to it, if it is wanted."""
    engine = engines.current()
    if engine is None or not engine.device.traits.has(entry.precision):
        return False
    larger = min(call.m, call.n) > 1 and call.k > 0 and call.m * call.n * call.k > call.least
    return larger and call.alpha != 0 and not call.mistake


def _check_place(
    call: BlasCall, found: Function, route: str, computed: int, reasons: tuple[str, ...]
) -> None:
    """Require that the device has computed what it had to, and that nothing has failed."""
    new = [why for why in found.reasons.all() if why not in reasons]
    lacks = ("no double precision", "a forked child")
    require(all(any(x in why for x in lacks) for why in new), f"it failed: {new}")
    if not compare.alone() or route == "auto":  # threads add to the same account
        return
    wanted = route == "device" and _is_computed(call, found.entry)
    require(computed == wanted, f"the device computed {computed} calls instead of {int(wanted)}")


def _written(call: BlasCall) -> NDArray[np.bool_]:
    """Tell which elements of C may be written."""
    shape = call.c.shape
    if call.mistake:
        return np.zeros(shape, bool)
    if "uplo" not in ARGUMENTS[call.routine]:
        return np.ones(shape, bool)
    lower = np.tri(*shape, dtype=bool)
    return lower if call.uplo == "L" else lower.T


def _require_untouched(made: Made, allowed: NDArray[np.bool_]) -> None:
    """Require that every byte is as before but those of some elements."""
    mask = np.zeros(made.memory.size, bool)
    offset = made.array.__array_interface__["data"][0] - made.memory.__array_interface__["data"][0]
    if made.array.size:
        shape = *made.array.shape, made.array.itemsize
        np.ndarray(shape, bool, mask, offset, (*made.array.strides, 1))[allowed] = True
    wrong = (made.memory != made.before) & ~mask
    require(not wrong.any(), "the call changed memory beside what it had to write of c")


def _compare(
    call: BlasCall, mine: NDArray[Any], other: NDArray[Any], allowed: NDArray[np.bool_], *,
    exact: bool,
) -> None:  # fmt: skip
    """Compare elements, by the error bound of a product."""
    precision, given = PRECISIONS[call.name[0]], make(call)
    a, b = (compare.magnitude(given[name].array) for name in "ab")
    op_a = a.T if call.trans_a in "TCtc" else a
    op_b = b.T if call.trans_b in "TCtc" else b
    if call.routine in {"syrk", "herk"}:
        op_b = op_a.T
    alpha, beta = (float(compare.magnitude(np.array([x]))[0]) for x in (call.alpha, call.beta))
    sums = op_a @ op_b
    size = alpha * sums
    size[sums > np.finfo(precision.dtype).max / compare.HEADROOM] = np.inf  # before alpha, perhaps
    if call.beta != 0:
        size += beta * compare.magnitude(given["c"].array)
    whole = all(x.values == "whole" for x in (call.a, call.b, call.c)) and all(
        x.real.is_integer() and x.imag.is_integer() and abs(x) < 16
        for x in map(complex, (call.alpha, call.beta))
    )
    bound = Bound(
        size[allowed], max(1, call.k), precision.dtype, exact=exact and whole,
        loose=not np.isfinite(call.alpha), factor=max(1.0, alpha),
    )  # fmt: skip
    try:
        compare.assert_close(mine[allowed], other[allowed], bound)
    except DifferenceError as error:
        raise DifferenceError(f"{error}, of {allowed.sum()} elements that are written") from None
