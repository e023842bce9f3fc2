"""Calls of matmul, made on clgemm and on NumPy.

Every keyword is drawn, right or wrong.  What clgemm does differently on purpose stands in
`compare`.  Beside that:

* NumPy 2.4 itself computes a product with a vector wrongly, and writes beside it, if out is complex
  and its strides are odd multiples of half an element: no such out is drawn;
* where NaN or infinity is among the numbers, the host's BLAS may raise flags that NumPy's own loop
  does not: a RuntimeWarning more is allowed there;
* integers to which a product is cast are only compared where the product is exact, and text and
  raw bytes never;
* if an operand's class makes NumPy fail after it has written, clgemm may have written, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import clgemm

from . import compare, odd_arguments, operands, sizes
from .compare import Bound, require
from .operands import Made, Operand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .odd_arguments import Odd

DTYPES = ("f4", "f8", "c8", "c16", "f2", "i4", "?", "g", ">f4", "O", "nonsense", "m8", None)
AXES = (
    [(0, 1), (0, 1), (0, 1)], [(1, 0), (0, 1), (0, 1)], [(0, 1), (1, 0), (1, 0)],
    [(-2, -1), (-2, -1), (-1, -2)], [(-1, -2), (-1, -2), (-2, -1)], [(0, 1), (0, 1)],
    [(0, 1), 0, 0], [0, (0, 1), 0], [0, 0], [0, 0, ()], [(1, 2), (0, 2), (2, 0)],
    [(0, 2), (1, 2), (0, 2)], [(0, 1), (0, 1), (0, 0)], [(0, 9), (0, 1), (0, 1)], [], None, "ab",
)  # fmt: skip
REJECTED = (
    ("axis", 0), ("axis", -1), ("keepdims", True), ("where", True), ("foo", 1), ("x1", 2.0),
    ("out", []), ("out", 1.0), ("out", ...), ("out", ()), ("out", (None,)), ("casting", "foo"),
    ("casting", None), ("order", "Z"), ("order", 1), ("subok", None), ("subok", 2), ("extobj", []),
    ("signature", "ff->f"), ("signature", "dd->d"), ("signature", (None, None, "D")),
    ("sig", "dd->d"), ("out", None), ("axes", [(0, 1), (0, 1), (0, 1), (0, 1)]),
)  # fmt: skip


@dataclass(frozen=True)
class MatmulCall:
    """One call of matmul."""

    x1: Operand | Odd
    x2: Operand | Odd
    out: Operand | None
    out_as: str
    """How out is given: "keyword", "positional" or "tuple"."""
    keywords: tuple[tuple[str, Any], ...]
    alias: str
    """Which memory is shared: "", "out is x1", "out in x1", "x2 is x1" or "x2 is x1.T"."""
    alias_offset: int
    operator: bool
    """Whether it is called as `a @ b` would be: without a keyword."""


def draw(rng: np.random.Generator, known: Mapping[str, tuple[int, ...]]) -> MatmulCall:
    """Draw a call."""
    dtype = str(rng.choice([*operands.PRECISE, "f2"], p=[0.27, 0.27, 0.2, 0.2, 0.06]))
    code = {"f4": "s", "f8": "d", "c8": "c", "c16": "z", "f2": "s"}[dtype]
    if rng.random() < 0.08:
        dtype = ">" + dtype
    return draw_of(rng, (dtype, dtype, dtype), known[code], operands.VALUES)


def draw_of(
    rng: np.random.Generator, dtypes: tuple[str, str, str], known: tuple[int, ...],
    kinds_of_values: tuple[str, ...],
) -> MatmulCall:  # fmt: skip
    """Draw a call with operands and an out of these types."""
    m, n, k = sizes.draw_product(rng, known)
    alias = "" if rng.random() < 0.9 else str(
        rng.choice(["out is x1", "out in x1", "x2 is x1", "x2 is x1.T"])
    )  # fmt: skip
    if alias in {"out is x1", "x2 is x1"}:
        m = n = k = min(m, n, k)
    shapes, result = _draw_shapes(rng, m, n, k)
    values = operands.draw_values(rng) if rng.random() < 0.8 else ""
    if kinds_of_values != operands.VALUES:
        values = str(rng.choice(kinds_of_values))
    x1, x2 = (
        _draw_operand(rng, shape, dtype, values)
        for shape, dtype in zip(shapes, dtypes[:2], strict=True)
    )
    out = None
    if alias.startswith("out") or rng.random() < 0.35:
        out = _draw_out(rng, result, dtypes[2], values)
    return MatmulCall(
        x1, x2, out, str(rng.choice(["keyword", "positional", "tuple"], p=[0.7, 0.2, 0.1])),
        _draw_keywords(rng), alias, int(rng.integers(0, 60)), bool(rng.random() < 0.3),
    )  # fmt: skip


def _draw_shapes(
    rng: np.random.Generator, m: int, n: int, k: int
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Draw the shapes of two operands; some do not match."""
    first: tuple[int, ...] = (k,) if rng.random() < 0.12 else (m, k)
    second: tuple[int, ...] = (k,) if rng.random() < 0.12 else (k, n)
    batch: tuple[int, ...] = ()
    if rng.random() < 0.4:
        batch = tuple(int(rng.integers(1, 5)) for _ in range(rng.integers(1, 3)))
        if rng.random() < 0.15:
            batch = (int(rng.integers(0, 40)),)
        while m * n * k * math.prod(batch) > sizes.MOST_WORK:
            batch = batch[1:]
    shapes = []
    for core in (first, second):
        own = batch[int(rng.integers(0, len(batch) + 1)) :] if rng.random() < 0.3 else batch
        if rng.random() < 0.25:
            own = tuple(int(rng.choice([1, n])) for n in own)
        shapes.append((*own, *core) if len(core) > 1 else core)
    if rng.random() < 0.04:
        which = int(rng.integers(0, 2))
        shapes[which] = tuple(max(0, n + int(rng.integers(-1, 2))) for n in shapes[which])
    elif rng.random() < 0.02:
        shapes[int(rng.integers(0, 2))] = ()
    core = first[:-1] + second[1:]
    outer = [s[:-2] for s in shapes if len(s) > 2]
    try:
        return shapes, np.broadcast_shapes(*outer) + core
    except ValueError:
        return shapes, core


def _draw_operand(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, values: str
) -> Operand | Odd:
    if rng.random() < 0.01:
        return odd_arguments.draw_odd(rng, "matrix", odd_arguments.MATRICES)
    return operands.draw(rng, shape, dtype, values=values)


def _draw_out(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, values: str) -> Operand:
    """Draw what a result is stored in; now and then its shape or type is another one."""
    how = rng.random()
    if how < 0.06:
        shape = (int(rng.integers(1, 4)), *shape)
    elif how < 0.1:
        shape = tuple(max(0, n + int(rng.integers(-1, 2))) for n in shape)
    elif how < 0.12:
        shape = shape[1:]
    if rng.random() < 0.12:
        dtype = str(rng.choice([*operands.PRECISE, "f2", "i4", "g", "O"]))
    forms = tuple(f for f in operands.FORMS if f not in operands.NOT_ARRAYS)
    out = operands.draw(rng, shape, dtype, values=values, input_only=False, forms=forms)
    if np.dtype(out.dtype).kind == "c":
        out = replace(out, layout=replace(out.layout, gap=0))
    return out


def _draw_keywords(rng: np.random.Generator) -> tuple[tuple[str, Any], ...]:
    found: dict[str, Any] = {}
    if rng.random() < 0.2:
        found["order"] = str(rng.choice(list("KCFAkf")))
    if rng.random() < 0.1:
        found["dtype"] = DTYPES[int(rng.integers(0, len(DTYPES)))]
    if rng.random() < 0.1:
        found["casting"] = str(rng.choice(["no", "equiv", "safe", "same_kind", "unsafe"]))
    if rng.random() < 0.1:
        found["subok"] = bool(rng.random() < 0.3)
    if rng.random() < 0.08:
        found["axes"] = AXES[int(rng.integers(0, len(AXES)))]
    if rng.random() < 0.03:
        name, value = REJECTED[int(rng.integers(0, len(REJECTED)))]
        found[name] = value
    return tuple(found.items())


# --------------------------------------------------------------------------- making


@dataclass
class Arguments:
    """The arguments of one call, made."""

    positional: list[Any]
    keywords: dict[str, Any]
    made: dict[str, Made]


def make(call: MatmulCall) -> Arguments:
    """Make the arguments, the same each time."""
    made: dict[str, Made] = {}
    values: dict[str, Any] = {}
    for name in ("x1", "x2", "out"):
        given = getattr(call, name)
        if isinstance(given, Operand):
            made[name] = operands.make(given)
            values[name] = made[name].value
        elif given is not None:
            values[name] = given.value
    _share(call, values, made)
    for x in made.values():
        x.remember()
    positional = [values["x1"], values["x2"]]
    keywords = {} if call.operator else dict(call.keywords)
    if "out" in values:
        out = values["out"]
        if call.out_as == "positional":
            positional.append(out)
        else:
            keywords["out"] = (out,) if call.out_as == "tuple" else out
    return Arguments(positional, keywords, made)


def _share(call: MatmulCall, values: dict[str, Any], made: dict[str, Made]) -> None:
    """Let two arguments share memory, where they are arrays."""
    source = made.get("x1")
    target = call.alias.partition(" ")[0]
    if not target or source is None or source.memory is None:
        return
    if not isinstance(source.value, np.ndarray):
        return
    if call.alias.endswith("in x1"):
        if call.out is None or not call.out.in_memory:
            return
        dtype = np.dtype(call.out.dtype)
        offset = operands.GUARD + call.alias_offset * source.array.itemsize
        if offset + int(np.prod(call.out.shape)) * dtype.itemsize > source.memory.size:
            return
        value = np.ndarray(call.out.shape, dtype, source.memory, offset)
    elif call.alias.endswith(".T"):
        value = source.value.T
    else:
        value = source.value
        if target == "out" and _repeats(source):
            return  # what is written twice is not defined
    values[target] = value
    made[target] = Made(value, np.asarray(value), source.memory)


def _repeats(x: Made) -> bool:
    """Tell whether an array has an element twice."""
    return int(operands.elements_of(x.array, x.memory).sum()) < x.array.nbytes


# --------------------------------------------------------------------------- comparing


def check(call: MatmulCall, *, exact: bool) -> None:
    """Make the call on both libraries and compare.

    Parameters
    ----------
    call : MatmulCall
        The call.
    exact : bool
        Whether whole numbers must give exactly the same.
    """
    mine_given, their_given = make(call), make(call)
    with np.errstate(all="warn", under="ignore"):
        other = compare.outcome(np.matmul, their_given.positional, their_given.keywords)
        mine = compare.outcome(clgemm.matmul, mine_given.positional, mine_given.keywords)
    if other.error is not None or mine.error is not None:
        if type(mine.error) is not type(other.error):
            raise compare.DifferenceError(f"NumPy: {other.error!r}, clgemm: {mine.error!r}") from (
                mine.error or other.error
            )
        if not any(x.changed() for x in their_given.made.values()):
            _assert_bytes_kept(mine_given, None)
        return
    if compare.alone():
        flags = {RuntimeWarning}
        require(mine.warned - flags == other.warned - flags, f"{mine.warned}, {other.warned}")
        allowed = other.warned if _all_finite(their_given, other.value) else other.warned | flags
        require(mine.warned <= allowed, f"warned {mine.warned}, NumPy {other.warned}")
    out, their_out = (x.made.get("out") for x in (mine_given, their_given))
    _assert_bytes_kept(mine_given, out)
    if out is not None and their_out is not None:
        is_out, theirs = mine.value is out.value, other.value is their_out.value
        require(is_out == theirs, f"the result is out: {is_out}, in NumPy {theirs}")
    _compare_values(call, mine, other, (mine_given, their_given), exact=exact)


def _all_finite(given: Arguments, result: Any) -> bool:
    """Tell whether neither operands nor the result have NaN or infinity."""
    numbers = [x.array for x in given.made.values()] + [np.asarray(result)]
    return all(np.isfinite(x).all() for x in numbers if x.dtype.kind in "fc")


def call_only(call: MatmulCall) -> None:
    """Call clgemm; whatever comes of it, operands are as before, and so is what is around out."""
    given = make(call)
    try:
        compare.outcome(clgemm.matmul, given.positional, given.keywords)
    finally:
        _assert_bytes_kept(given, given.made.get("out"))


def _assert_bytes_kept(given: Arguments, out: Made | None) -> None:
    for name, x in given.made.items():
        if out is not None and x is not out and x.memory is out.memory is not None:
            continue
        if out is not None and x is out and x.memory is None:
            continue
        changed = x.changed(but_elements=x is out)
        require(not changed, f"the call changed {changed}, of {name}")


def _compare_values(
    call: MatmulCall, mine: compare.Outcome, other: compare.Outcome,
    given: tuple[Arguments, Arguments], *, exact: bool,
) -> None:  # fmt: skip
    """Compare the results, and what out holds."""
    if not isinstance(other.value, np.ndarray | np.generic):
        same = type(mine.value) is type(other.value) and repr(mine.value) == repr(other.value)
        require(same, f"{compare.tell(mine.value)} instead of {compare.tell(other.value)}")
        return
    require(
        isinstance(mine.value, type(other.value)),
        f"{type(mine.value)} instead of {type(other.value)}",
    )
    mine_given = given[0]
    out, their_out = (x.made.get("out") for x in given)
    if isinstance(other.value, np.ndarray):
        compare.assert_same_form(mine.value, other.value)
        if out is None:
            shared = any(np.may_share_memory(mine.value, x.array) for x in mine_given.made.values())
            require(not shared, "a fresh result shares memory with an argument")
    else:
        require(mine.value.dtype == other.value.dtype, f"dtype {mine.value.dtype}")
    bound = bound_of(call, np.asarray(other.value), exact=exact)
    pairs = [(mine.value, other.value)]
    if out is not None and their_out is not None:
        pairs.append((out.array, their_out.array))
    for x, y in pairs if bound is not None else ():
        compare.assert_close(_numbers(x, bound.dtype), _numbers(y, bound.dtype), bound)


def _numbers(x: Any, dtype: np.dtype[Any]) -> Any:
    """Return elements as numbers; objects hold such of a type."""
    x = np.asarray(x)
    return x.astype(dtype) if x.dtype.kind == "O" and dtype.kind in "fc" else x


def bound_of(call: MatmulCall, other: Any, *, exact: bool) -> Bound | None:
    """Return how far the result may be from NumPy's; None if it is not compared."""
    given = make(call)
    x, y = (
        np.asarray(given.made[name].array if name in given.made else given.positional[place])
        for place, name in enumerate(("x1", "x2"))
    )
    loop = _loop(call, x, y, other.dtype)
    if loop.kind not in "fc":
        return Bound(0.0, 0, loop, exact=True)
    inputs = [z for z in (call.x1, call.x2) if isinstance(z, Operand)]
    whole = len(inputs) == 2 and all(z.values == "whole" for z in inputs)
    keywords = {name: value for name, value in given.keywords.items() if name == "axes"}
    with np.errstate(all="ignore"):
        size = np.matmul(*(compare.magnitude(compare.cast(z, loop)) for z in (x, y)), **keywords)
    # Leading axes of size 1 may be missing from out, be it larger or not; a matrix has two axes,
    # whatever comes of it.
    same = size.size == other.size
    size = np.reshape(size, other.shape if same else size.shape[-other.ndim :])
    size = np.broadcast_to(size, other.shape)
    terms = x.shape[-1] if "axes" not in keywords else max(x.shape)
    computed = np.dtype("f4") if loop == np.float16 else loop
    if other.dtype.kind in "USVmM" or (other.dtype.kind in "?biu" and not whole):
        return None
    by_numpy = loop.char in "gG"
    return Bound(
        size, terms, computed, exact=(exact and whole) or by_numpy,
        loose=loop.kind == "c", factor=1.0, rounded=loop,
    )  # fmt: skip


def _loop(call: MatmulCall, x: Any, y: Any, result: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that NumPy computes in."""
    keywords = {} if call.operator else dict(call.keywords)
    signature = keywords.get("signature", keywords.get("sig"))
    if signature is not None:
        return np.dtype(signature[-1])
    if keywords.get("dtype") is not None:
        return np.dtype(keywords["dtype"]).newbyteorder("=")
    found = np.result_type(x.dtype, y.dtype)
    return found if found.kind in "fciub?O" else result
