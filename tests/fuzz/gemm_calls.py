"""Calls of sgemm, dgemm, cgemm and zgemm, made on clgemm and on SciPy.

What clgemm does differently on purpose, beside what `compare` has:

* a read-only `c`, or one that shares memory with `a` or `b`, is never written: SciPy would write
  it, and may crash, so it gets overwrite_c=0 there;
* alpha = 0 means that `a` and `b` are not read, as BLAS says; some of OpenBLAS' kernels multiply
  all the same, so SciPy gets zeros there;
* an empty `c` of an empty result's shape is taken, which SciPy refuses; one of another shape is
  refused, of which SciPy takes some;
* a refusal that is a ValueError or SciPy's own error is a GemmArgumentError, which is both.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg.blas

import clgemm
from clgemm.errors import GemmArgumentError, scipy_error
from clgemm.problem import PRECISIONS

from . import compare, odd_arguments, operands, sizes
from .compare import Bound, require
from .odd_arguments import Odd
from .operands import Made, Operand

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("alpha", "a", "b", "beta", "c", "trans_a", "trans_b", "overwrite_c")
CODES = "sdcz"
MISTAKES = ("unknown", "twice", "missing", "too many")
WHOLE = 16  # alpha and beta up to this keep sums of whole numbers exact


@dataclass(frozen=True)
class GemmCall:
    """One call of a routine."""

    code: str
    alpha: Odd
    a: Operand | Odd
    b: Operand | Odd
    beta: Odd | None
    c: Operand | Odd | None
    trans_a: Odd | None
    trans_b: Odd | None
    overwrite_c: Odd | None
    alias: str
    """Which memory is shared: "", "c is a", "c is b", "c in a", "b is a" or "b is a.T"."""
    alias_offset: int
    positional: int
    mistake: str
    """In how the call is written: "", "unknown", "twice", "missing" or "too many"."""


def draw(rng: np.random.Generator, known: Mapping[str, tuple[int, ...]]) -> GemmCall:
    """Draw a call."""
    code = str(rng.choice(list(CODES)))
    m, n, k = sizes.draw_product(rng, known[code])
    alias = "" if rng.random() < 0.9 else str(
        rng.choice(["c is a", "c is b", "c in a", "b is a", "b is a.T"])
    )  # fmt: skip
    if alias in {"c is a", "c is b"} or (alias == "b is a" and rng.random() < 0.5):
        m = n = k = min(m, n, k)
    trans = [odd_arguments.draw_transposition(rng) for _ in "ab"]
    dtype = PRECISIONS[code].dtype.str[1:]
    values = operands.draw_values(rng) if rng.random() < 0.8 else ""
    turned = [x.name in {"1", "2"} for x in trans]
    shapes = [(k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n), (m, n)]
    a, b = (_draw_matrix(rng, shape, dtype, values) for shape in shapes[:2])
    c: Any = None
    if rng.random() < 0.65 or alias.startswith("c"):
        c_values = "special" if rng.random() < 0.1 else values
        c = _draw_matrix(rng, shapes[2], dtype, c_values)
    return GemmCall(
        code, odd_arguments.draw_factor(rng), a, b,
        odd_arguments.draw_factor(rng) if rng.random() < 0.7 else None, c,
        *(None if t.name == "0" and rng.random() < 0.5 else t for t in trans),
        odd_arguments.draw_flag(rng) if rng.random() < 0.7 else None,
        alias, int(rng.integers(0, 60)), int(rng.integers(0, 9)),
        "" if rng.random() < 0.995 else str(rng.choice(MISTAKES)),
    )  # fmt: skip


def _draw_matrix(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, values: str
) -> Operand | Odd:
    """Draw a matrix; now and then something of another rank or shape, or no matrix at all."""
    how = rng.random()
    if how < 0.015:
        return odd_arguments.draw_odd(rng, "matrix", odd_arguments.MATRICES)
    if how < 0.06:
        shape = _odd_shape(rng, shape)
    return operands.draw(rng, shape, dtype, values=values)


def _odd_shape(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw another rank, or another extent."""
    rank = int(rng.integers(0, 5))
    if rank == 2:
        return tuple(max(0, n + int(rng.integers(-1, 2))) for n in shape)
    if rank < 2 or rng.random() < 0.3:
        return shape[:rank] if rank < 2 else tuple(int(rng.integers(0, 4)) for _ in range(rank))
    places = sorted(rng.choice(rank, 2, replace=False))
    longer = [1] * rank
    longer[places[0]], longer[places[1]] = shape
    if rng.random() < 0.3 and shape[1] % 2 == 0:
        longer = [shape[0], 2, shape[1] // 2] + [1] * (rank - 3)
    return tuple(longer)


# --------------------------------------------------------------------------- making


@dataclass
class Arguments:
    """The arguments of one call, made."""

    by_name: dict[str, Any]
    made: dict[str, Made]
    """Those that are arrays of ours."""

    def bytes_kept(self, *, but: Made | None) -> None:
        """Require that nothing has changed, but the elements of one array."""
        for name, x in self.made.items():
            shared = but is not None and x is not but and x.memory is but.memory
            if not shared:
                changed = x.changed(but_elements=x is but)
                require(not changed, f"the call changed {changed}, of {name}")


def make(call: GemmCall) -> Arguments:
    """Make the arguments, the same each time."""
    by_name: dict[str, Any] = {}
    made: dict[str, Made] = {}
    for name in NAMES:
        given = getattr(call, name)
        if isinstance(given, Operand):
            made[name] = operands.make(given)
            by_name[name] = made[name].value
        elif given is not None:
            by_name[name] = given.value
    _share(call, by_name, made)
    for x in made.values():
        x.remember()
    return Arguments(by_name, made)


def _share(call: GemmCall, by_name: dict[str, Any], made: dict[str, Made]) -> None:
    """Let two arguments share memory, where they are arrays."""
    first, _, second = call.alias.partition(" ")
    word, _, source = second.partition(" ")
    transposed = source.endswith(".T")
    there = made.get(source[:1])
    if there is None or there.memory is None or not isinstance(there.value, np.ndarray):
        return
    if word == "is":
        value = there.value.T if transposed else there.value
    else:
        given: Any = getattr(call, first)
        if not isinstance(given, Operand) or there.array.dtype != PRECISIONS[call.code].dtype:
            return
        dtype, offset = there.array.dtype, operands.GUARD + call.alias_offset * there.array.itemsize
        size = int(np.prod(given.shape)) * dtype.itemsize
        if offset + size > there.memory.size:
            return
        value = np.ndarray(given.shape, dtype, there.memory, offset, order="F")
    by_name[first] = value
    made[first] = Made(value, np.asarray(value), there.memory)


def written(call: GemmCall, by_name: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Write the call: what is positional, what is a keyword, and what is wrong with it."""
    keywords = dict(by_name)
    positional = []
    for name in NAMES[: call.positional]:
        if name not in keywords:
            break
        positional.append(keywords.pop(name))
    if call.mistake == "unknown":
        # Alone: SciPy's wrappers convert overwrite_c before they look for names they do not know.
        positional = positional[: NAMES.index("overwrite_c")]
        keywords.pop("overwrite_c", None)
        keywords["transa"] = 1
    elif call.mistake == "twice" and positional:
        keywords["alpha"] = 1.0
    elif call.mistake == "missing":
        positional, keywords = positional[:2], {}
    elif call.mistake == "too many":
        positional = [*by_name.values(), *([0] * 9)][:9]
    return tuple(positional), keywords


# --------------------------------------------------------------------------- comparing


def check(call: GemmCall, *, exact: bool) -> None:
    """Make the call on both libraries and compare.

    Parameters
    ----------
    call : GemmCall
        The call.
    exact : bool
        Whether whole numbers must give exactly the same.
    """
    mine_given, their_given = make(call), make(call)
    protected = protect(call, their_given)
    name = f"{call.code}gemm"
    other = compare.outcome(getattr(scipy.linalg.blas, name), *written(call, their_given.by_name))
    mine = compare.outcome(getattr(clgemm, name), *written(call, mine_given.by_name))
    if other.error is not None:
        mine_given.bytes_kept(but=None)
        if not takes_empty_c(call, mine):
            _assert_refusal(name, mine, other.error)
        return
    c = mine_given.by_name.get("c")
    is_empty = not other.value.size and c is not None and not np.size(c)
    if is_empty and isinstance(mine.error, GemmArgumentError):
        return
    if mine.error is not None:
        raise compare.DifferenceError(
            f"SciPy returns, {name} raises {mine.error!r}"
        ) from mine.error
    if compare.alone():
        require(mine.warned == other.warned, f"warned {mine.warned}, SciPy {other.warned}")
    _compare_results(call, mine.value, other.value, (mine_given, their_given), protected)
    made_c = mine_given.made.get("c")
    is_c = mine.value is mine_given.by_name.get("c")
    mine_given.bytes_kept(but=made_c if is_c else None)
    compare_values(call, mine.value, other.value, exact=exact)


def call_only(call: GemmCall) -> None:
    """Call clgemm; whatever comes of it, operands are as before, and so is what is around c."""
    given = make(call)
    positional, keywords = written(call, given.by_name)
    try:
        compare.outcome(getattr(clgemm, f"{call.code}gemm"), positional, keywords)
    finally:
        given.bytes_kept(but=given.made.get("c"))


def takes_empty_c(call: GemmCall, mine: compare.Outcome) -> bool:
    """Tell whether SciPy refuses nothing but a `c` that is as empty as the result."""
    given = make(call)
    c = given.by_name.get("c")
    if mine.error is not None or c is None or np.size(c):
        return False
    del given.by_name["c"]
    positional = min(call.positional, NAMES.index("c"))
    written_so = written(replace(call, positional=positional), given.by_name)
    other = compare.outcome(getattr(scipy.linalg.blas, f"{call.code}gemm"), *written_so)
    return other.error is None and other.value.size == mine.value.size == 0


def _assert_refusal(name: str, mine: compare.Outcome, other: Exception) -> None:
    require(mine.error is not None, f"SciPy raises {other!r}, clgemm returns")
    require(isinstance(mine.error, type(other)), f"{mine.error!r} is no {type(other)}: {other}")
    require(name in str(mine.error), f"the message does not name the routine: {mine.error}")
    if isinstance(other, (ValueError, scipy_error())):
        require(isinstance(mine.error, GemmArgumentError), f"{mine.error!r} for {other!r}")


def protect(call: GemmCall, given: Arguments) -> str:
    """Keep SciPy from what clgemm does differently on purpose.

    Returns
    -------
    str
        "" if `c` may be overwritten as SciPy does it, "never" if it must not be, "either" if
        that depends on how well overlaps are told.
    """
    alpha = factor(call.code, call.alpha)
    if alpha == 0:
        for name in "ab":
            if name in given.made and given.made[name].array.dtype.kind in "fc":
                zeros = np.zeros_like(given.made[name].array)
                is_list = not hasattr(given.by_name[name], "__array__")
                given.by_name[name] = zeros.tolist() if is_list else zeros
            elif name not in given.made:
                given.by_name[name] = _without_nan(given.by_name[name])
    c = given.by_name.get("c")
    flag = given.by_name.get("overwrite_c", 0)
    if not (isinstance(c, np.ndarray) and _is_set(flag)):
        return ""
    others = [given.made[x].array for x in "ab" if x in given.made]
    if not c.flags.writeable or any(np.shares_memory(c, x) for x in others):
        given.by_name["overwrite_c"] = 0
        return "never"
    if any(np.may_share_memory(c, x) for x in others):
        return "either"
    return ""


def _without_nan(value: Any) -> Any:
    """Return 0 in place of a number that is none; SciPy reads None as one."""
    is_nan = value is None or (isinstance(value, float) and not math.isfinite(value))
    return 0.0 if is_nan else value


def _is_set(flag: Any) -> bool:
    """Tell whether a flag is one, and set."""
    try:
        return 0 != operator.index(flag) in range(-(2**31), 2**31)
    except TypeError:
        return False


def _compare_results(
    call: GemmCall, mine: Any, other: Any, given: tuple[Arguments, Arguments], protected: str
) -> None:
    """Compare the form of two results, and whether they are `c` itself."""
    mine_given, their_given = given
    require(type(mine) is type(other), f"{type(mine)} instead of {type(other)}")
    require(mine.dtype == other.dtype == PRECISIONS[call.code].dtype, f"dtype {mine.dtype}")
    require(mine.shape == other.shape, f"shape {mine.shape} instead of {other.shape}")
    require(mine.flags.f_contiguous and mine.flags.writeable, "no writeable Fortran array")
    c = mine_given.by_name.get("c")
    is_c = c is not None and mine is c
    theirs_is_c = c is not None and other is their_given.by_name.get("c")
    if protected == "never":
        require(not is_c, "c is read-only or overlaps an operand, and was written")
    elif not protected:
        require(is_c == theirs_is_c, f"the result is c: {is_c}, in SciPy {theirs_is_c}")
    if not is_c:
        shared = any(np.may_share_memory(mine, x.array) for x in mine_given.made.values())
        require(not shared, "a fresh result shares memory with an argument")


def factor(code: str, given: Odd | None) -> complex:
    """Return alpha or beta as SciPy reads it, rounded to the precision; NaN if it is refused."""
    if given is None:
        return 0.0
    one = np.ones((1, 1))
    routine = getattr(scipy.linalg.blas, f"{code}gemm")
    read = compare.outcome(routine, (given.value, one, one), {})
    return complex("nan") if read.error is not None else read.value[0, 0].item()


def compare_values(call: GemmCall, mine: Any, other: Any, *, exact: bool) -> None:
    """Compare elements, by the error bound of a product."""
    precision = PRECISIONS[call.code]
    matrices = [call.a, call.b, *([] if call.c is None else [call.c])]
    alpha, beta = factor(call.code, call.alpha), factor(call.code, call.beta)
    if any(isinstance(x, Odd) for x in matrices):
        # Those are few small numbers.
        size = np.max(compare.magnitude(np.asarray(other)), initial=1.0)
        compare.assert_close(mine, other, Bound(size, 64, precision.dtype, loose=True))
        return
    given = make(call)
    whole = (
        call.alias != "c in a"
        and all(x.values == "whole" or not _is_float(x) for x in matrices)
        and all(
            abs(x) <= WHOLE and x.real.is_integer() and x.imag.is_integer()
            for x in map(complex, (alpha, beta))
        )
    )
    size = _reference(call, "d", given, abs(alpha), abs(beta), of=compare.magnitude)
    wide = None
    if not precision.is_double and not (exact and whole):
        code = precision.wide
        wide = _reference(call, code, given, alpha, beta, of=lambda x: x)
    terms = given.made["a"].array.size // max(1, mine.shape[0] if mine.ndim else 1)
    compare.assert_close(
        mine, other if wide is None else wide,
        Bound(
            size, terms, precision.dtype, exact=exact and whole,
            loose=not np.isfinite(alpha), factor=abs(alpha) if np.isfinite(alpha) else 1.0,
            twice=wide is None,
        ),
    )  # fmt: skip


def _is_float(x: Operand) -> bool:
    return np.dtype(x.dtype).kind in "fc"


def _reference(
    call: GemmCall, code: str, given: Arguments, alpha: complex, beta: complex, of: Any
) -> Any:
    """Compute in a wider precision, with operands rounded to the call's and changed by `of`."""
    dtype = PRECISIONS[call.code].dtype
    keywords: dict[str, Any] = {"alpha": alpha}
    for name in "abc":
        if name in given.made:
            rounded = compare.cast(given.made[name].array, dtype)
            if alpha == 0 and name in "ab":
                rounded = np.nan_to_num(rounded, posinf=0, neginf=0)
            keywords[name] = of(rounded)
    for name in ("trans_a", "trans_b"):
        if name in given.by_name:
            keywords[name] = given.by_name[name]
    read = compare.outcome(
        getattr(scipy.linalg.blas, f"{code}gemm"), (), {**keywords, "beta": beta}
    )
    if read.error is not None:
        raise read.error
    return read.value
