"""What the subscripts of an einsum say: a label for each axis of each operand and of the result."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_TERM = re.compile(r"([a-zA-Z]*)(?:(\.\.\.)([a-zA-Z]*))?")
_SPLIT_MARK = re.compile(r"\.\s+\.|-\s+>")
_BROADCAST = "".join(map(chr, range(0x100, 0x140)))
"""Labels of the axes that an ellipsis stands for: the last one is of the last axis."""
_NUMBERED = ascii_uppercase + ascii_lowercase
"""Letters for numbered axes, as NumPy takes them: their order is that of the numbers."""


class Sum(NamedTuple):
    """An einsum with a letter for each axis, no ellipsis, and an explicit result."""

    terms: tuple[str, ...]
    result: str
    sizes: dict[str, int]
    squeezed: tuple[tuple[int, ...], ...]
    """Axes of each operand that have the extent 1, are broadcast, and have no letter."""

    @property
    def text(self) -> str:
        """The subscripts as NumPy reads them."""
        return f"{','.join(self.terms)}->{self.result}"


def as_text(operands: Sequence[Any]) -> tuple[str, list[Any]] | None:
    """Return an einsum's subscripts and its arrays, in whichever way they were given.

    None if they were given in none.
    """
    if not operands:
        return None
    if isinstance(operands[0], str):
        return operands[0], list(operands[1:])
    lists = list(operands[1::2])
    result = [operands[-1]] if len(operands) % 2 else []
    try:
        words = ["".join(map(_letter, labels)) for labels in [*lists, *result]]
    except (TypeError, ValueError, IndexError):
        return None
    text = ",".join(words[: len(lists)]) + "".join("->" + word for word in words[len(lists) :])
    return text, list(operands[: 2 * len(lists) : 2])


def _letter(label: Any) -> str:
    if label is Ellipsis:
        return "..."
    if label < 0:
        raise ValueError(label)
    return _NUMBERED[label]


@lru_cache(maxsize=1024)
def read(text: str, shapes: tuple[tuple[int, ...], ...]) -> Sum | None:
    """Read subscripts for operands of some shapes; None if they are wrong, or not understood."""
    found = None if _SPLIT_MARK.search(text) else _labels(text.replace(" ", ""), shapes)
    if found is None:
        return None
    terms, result = found
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            known = sizes.get(label, 1)
            if known != size and 1 not in {known, size}:
                return None
            sizes[label] = size if known == 1 else known
    if len(sizes) > len(ascii_letters) or not set(result) <= sizes.keys():
        return None
    letters = dict(zip(sizes, ascii_letters, strict=False))
    kept, squeezed = [], []
    for term, shape in zip(terms, shapes, strict=True):
        ones = tuple(i for i, x in enumerate(term) if shape[i] == 1 != sizes[x])
        broadcast = {term[i] for i in ones}
        if sum(x in broadcast for x in term) > len(ones):  # no diagonal of different extents
            return None
        kept.append("".join(letters[x] for i, x in enumerate(term) if i not in ones))
        squeezed.append(ones)
    return Sum(
        tuple(kept), "".join(letters[x] for x in result),
        {letters[x]: size for x, size in sizes.items()}, tuple(squeezed),
    )  # fmt: skip


def _labels(text: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str] | None:
    """Give a label to each axis; None if the subscripts are not well formed."""
    inputs, arrow, output = text.partition("->")
    words = inputs.split(",")
    matches = [_TERM.fullmatch(word) for word in words]
    if len(words) != len(shapes):
        return None
    terms, longest = [], 0
    for match, shape in zip(matches, shapes, strict=True):
        if match is None:
            return None
        before, dots, after = match[1], match[2], match[3] or ""
        hidden = len(shape) - len(before) - len(after)
        if hidden < 0 or (hidden and not dots) or hidden > len(_BROADCAST):
            return None
        terms.append(before + _BROADCAST[len(_BROADCAST) - hidden :] + after)
        longest = max(longest, hidden)
    hidden_labels = _BROADCAST[len(_BROADCAST) - longest :]
    if not arrow:
        counts = Counter(x for term in terms for x in term if x in ascii_letters)
        once = sorted(x for x, count in counts.items() if count == 1)
        return terms, hidden_labels + "".join(once)
    match = _TERM.fullmatch(output)
    if match is None or (longest and not match[2]):
        return None
    result = match[1] + (hidden_labels if match[2] else "") + (match[3] or "")
    return (terms, result) if len(set(result)) == len(result) else None
