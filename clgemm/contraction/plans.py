"""An einsum as a plan: which operands are contracted next, and how two of them are matrices.

The labels of a product of two are of four kinds.  Those of both operands and of the result are a
*batch*; those of both alone are summed over, the *depth*; the others are *rows* of the first
operand and *columns* of the second.  What only one operand has and nobody asks for is summed over
before, and so are repeated labels resolved into diagonals.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Hashable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.contraction import numpys, subscripts
from clgemm.lazy_imports import lazy_import

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clgemm.contraction.subscripts import Sum

PAIR = 2  # operands


class Matrix(NamedTuple):
    """An operand of a product of two, seen as a stack of matrices."""

    term: str
    """Labels of its axes, as it is given."""
    reduced: str
    """Of the axes that are left, without repeated ones and those summed over alone."""
    axes: tuple[int, ...]
    """Order of those axes: batch, rows, depth; of the second operand batch, depth, columns."""
    shape: tuple[int, ...]
    """Extents of the batch, each for itself, and of the two axes of the matrices."""


class Product(NamedTuple):
    """A sum of products of two operands."""

    swapped: bool
    """The second operand is on the left: the result then has the wanted order."""
    left: Matrix
    right: Matrix
    batch: int
    """Labels in it."""
    shape: tuple[int, ...]
    """Of the result: batch, rows, columns, an axis for each label."""
    axes: tuple[int, ...]
    """How they are permuted into the result that is wanted."""
    m: int
    n: int
    depth: int
    depths: int
    """Labels summed over; none of them has to have more than one element."""
    stack: int
    """Matrices in the batch."""

    @property
    def multiplications(self) -> int:
        """How many there are."""
        return self.m * self.n * self.depth * self.stack


class Step(NamedTuple):
    """One contraction."""

    places: tuple[int, ...]
    """Of the operands in what is left, from the last one; the result is put at the end."""
    text: str
    """Its subscripts."""
    product: Product | None
    """None if there are not two operands."""


class Plan(NamedTuple):
    """All contractions of an einsum."""

    squeezed: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]


def of(
    text: str, shapes: tuple[tuple[int, ...], ...], optimize: Any, *, by_twos: bool = False
) -> Plan | None:
    """Plan an einsum for operands of some shapes; None if NumPy has to look at it.

    Parameters
    ----------
    text : str
        Subscripts.
    shapes : tuple of tuple of int
        Of the operands.
    optimize : object
        As for `numpy.einsum`; "auto" and True for the order that opt_einsum finds, or NumPy.
    by_twos : bool
        Whether no more than two operands are contracted at once, though the order says so.
    """
    optimize = tuple(optimize) if isinstance(optimize, list) else optimize
    return _of(text, shapes, optimize, by_twos) if isinstance(optimize, Hashable) else None


@lru_cache(maxsize=1024)
def _of(
    text: str, shapes: tuple[tuple[int, ...], ...], optimize: Any, by_twos: bool
) -> Plan | None:
    found = subscripts.read(text, shapes)
    if found is None:
        return None
    left: list[str] = list(found.terms)
    steps: list[Step] = []
    path = [sorted(places, reverse=True) for places in _path(found, optimize)]
    while path:
        places = tuple(path[0][:PAIR] if by_twos else path[0])
        if len(places) < len(path[0]):  # the others come before these, and the result behind all
            path[0] = [len(left) - PAIR, *path[0][PAIR:]]
        else:
            del path[0]
        terms = [left.pop(place) for place in places]
        wanted = set(found.result).union(*left)
        product = None
        if not left:
            result = found.result
        elif len(terms) == PAIR:
            result = _canonical(terms, wanted)
        else:
            result = "".join(dict.fromkeys(x for term in terms for x in term if x in wanted))
        if len(terms) == PAIR:
            product = _product(terms, result, found.sizes)
        steps.append(Step(places, f"{','.join(terms)}->{result}", product))
        left.append(result)
    return Plan(found.squeezed, tuple(steps))


def _path(found: Sum, optimize: Any) -> Sequence[Sequence[int]]:
    """Find the order in which operands are contracted."""
    count = len(found.terms)
    if count <= PAIR or optimize is False or optimize is None:
        return [range(count)]
    shapes = [tuple(found.sizes[x] for x in term) for term in found.terms]
    automatic = optimize is True or optimize == "auto"
    module = _opt_einsum()
    if module is not None and (automatic or isinstance(optimize, str)):
        how = "auto" if automatic else optimize
        path, _ = module.contract_path(found.text, *shapes, shapes=True, optimize=how)
        return list(path)
    nothing = [np.broadcast_to(np.zeros(()), shape) for shape in shapes]
    how = "greedy" if automatic else list(optimize) if _is_path(optimize) else optimize
    return numpys.einsum_path(found.text, *nothing, optimize=how)[0][1:]


def _is_path(optimize: Any) -> bool:
    return isinstance(optimize, tuple) and bool(optimize) and optimize[0] == "einsum_path"


@cache
def _opt_einsum() -> Any:
    """Import opt_einsum, if it is installed."""
    if importlib.util.find_spec("opt_einsum") is None:
        return None
    return lazy_import("opt_einsum")


def _canonical(terms: Sequence[str], wanted: set[str]) -> str:
    """Order the labels of an intermediate result as its product leaves them."""
    first, second = terms
    both = set(first) & set(second) & wanted
    groups = (
        (x for x in first if x in both),
        (x for x in first if x in wanted and x not in both),
        (x for x in second if x in wanted and x not in both),
    )
    return "".join(dict.fromkeys(x for group in groups for x in group))


def _product(terms: Sequence[str], result: str, sizes: dict[str, int]) -> Product:
    """Sort the labels of a product of two."""
    first, second = terms
    both = set(first) & set(second)
    lead = [x for x in result if x not in both]
    swapped = bool(lead) and lead[0] in second
    if swapped:
        first, second = second, first
    # A depth in the order of the operand with more elements: that one needs no copy.
    larger = max(first, second, key=lambda term: math.prod(sizes[x] for x in term))
    batch = [x for x in result if x in both]
    depth = [x for x in dict.fromkeys(larger) if x in both and x not in result]
    rows = [x for x in result if x in first and x not in both]
    columns = [x for x in result if x in second and x not in both]
    m, n, k = (math.prod(sizes[x] for x in group) for group in (rows, columns, depth))
    extents = tuple(sizes[x] for x in batch)
    made = [*batch, *rows, *columns]
    return Product(
        swapped,
        _matrix(first, [*batch, *rows, *depth], (*extents, m, k)),
        _matrix(second, [*batch, *depth, *columns], (*extents, k, n)),
        len(batch), tuple(sizes[x] for x in made), tuple(made.index(x) for x in result),
        m, n, k, len(depth), math.prod(extents),
    )  # fmt: skip


def _matrix(term: str, order: list[str], shape: tuple[int, ...]) -> Matrix:
    reduced = "".join(x for x in dict.fromkeys(term) if x in order)
    return Matrix(term, reduced, tuple(reduced.index(x) for x in order), shape)
