"""What a call asks for: the arguments of a BLAS function, from where its caller has put them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import c_int32, c_int64, string_at
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from clgemm.interpose.entries import Entry

_IN_REGISTERS = 6
"""Arguments that are no floating-point numbers; what is more lies on the stack."""
_ROW_MAJOR, _COLUMN_MAJOR = 101, 102
_CHOICES: dict[int, str] = {111: "N", 112: "T", 113: "C", 114: "R", 121: "U", 122: "L"}
"""CBLAS' numbers for Fortran's letters."""
_OPERATIONS = {"N": (False, False), "T": (True, False), "C": (True, True), "R": (False, True)}
"""Transposed, conjugated.  The last is OpenBLAS' own."""
_POINTERS = frozenset("abc")
_NUMBERS = frozenset({"alpha", "beta"})
_OPTIONS = frozenset({"order", "uplo", "trans_a", "trans_b"})

Part = Literal["whole", "lower", "upper", "mirrored"]
"""What is written of C.  If its caller mirrors a triangle, that is all of C, or that triangle."""
_PARTS: dict[str | None, Part] = {"": "whole", "L": "lower", "U": "upper"}
_OTHER: dict[Part, Part] = {"whole": "whole", "lower": "upper", "upper": "lower"}
_PARAMETERS = "order uplo trans_a trans_b m n k alpha a lda b ldb beta c ldc".split()  # noqa: SIM905
_DEFAULTS = {"order": _COLUMN_MAJOR, "uplo": ""}
_INSTEAD = {"m": "n", "trans_b": "trans_a", "b": "a", "ldb": "lda"}
"""What stands for arguments that a function does not have."""
_Operation = tuple[bool, bool]
_Read = Callable[[int], Any]
"""Makes a value of the word that stands for an argument."""


class Product(NamedTuple):
    """What a call asks for, C := alpha op(A) op(B) + beta C, column-major."""

    m: int
    n: int
    k: int
    trans_a: bool
    conj_a: bool
    trans_b: bool
    conj_b: bool
    lda: int
    ldb: int
    ldc: int
    part: Part
    """What is written of C: all of it, or a triangle with its diagonal."""
    is_hermitian: bool
    """Whether C's diagonal is real, whatever its memory holds."""
    alpha: complex
    beta: complex
    a: int
    """Addresses."""
    b: int
    c: int

    @property
    def is_gram(self) -> bool:
        """Whether A and B are the same memory, of which one is read transposed."""
        return self.a == self.b and self.lda == self.ldb and self.trans_a != self.trans_b

    def flops(self, multiplications: int) -> int:
        """Count operations, with so many real multiplications for that of two elements."""
        elements = 2 * self.m * self.n if self.part == "whole" else self.n * (self.n + 1)
        return elements * self.k * multiplications


class Reader:
    """Reads the arguments of a function's calls.

    Parameters
    ----------
    entry : Entry
        A function that the device can compute.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._is_hermitian = entry.routine == "herk"
        self._is_of_two = "b" in entry.arguments
        self._has_complex_numbers = entry.precision.is_complex and not self._is_hermitian
        numbers = [x for x in entry.arguments if x in _NUMBERS and self._is_by_value(x)]
        words = [x for x in entry.arguments if x not in numbers]
        first, behind = words[:_IN_REGISTERS], words[_IN_REGISTERS:]
        # On the stack, too, each has eight bytes.  Numbers have registers of their own.
        format_of = "d" if entry.precision.is_double else "f4x"
        self._first = struct.Struct(
            "<" + "".join(map(self._format, first)) + f"{8 * (_IN_REGISTERS - len(first))}x"
            + format_of * len(numbers)
        )  # fmt: skip
        self._behind = struct.Struct("<" + "".join(map(self._format, behind)))
        names = first + numbers + behind
        reads = enumerate(map(self._read_of, names))
        self._reads = [(place, read) for place, read in reads if read is not None]
        missing = [x for x in _DEFAULTS if x not in names]
        places = {name: place for place, name in enumerate(names + missing)}
        self._missing = [_DEFAULTS[x] for x in missing]
        self._in_order = itemgetter(
            *(places[x if x in places else _INSTEAD[x]] for x in _PARAMETERS)
        )

    def read(self, registers: int, stack: int) -> Product | None:
        """Read the arguments of a call; None if they ask for nothing that a gemm can do.

        Parameters
        ----------
        registers : int
            Address of what the registers of the arguments held: rdi, rsi, rdx, rcx, r8, r9, xmm0
            and xmm1, eight bytes each (System V ABI of x86-64).
        stack : int
            Address of the arguments behind those.
        """
        values: list[Any] = [
            *self._first.unpack(string_at(registers, self._first.size)),
            *self._behind.unpack(string_at(stack, self._behind.size)),
            *self._missing,
        ]
        for place, read in self._reads:
            values[place] = read(values[place])
        found = self._product(*self._in_order(values))
        return found if found is not None and _is_sound(found) else None

    def _product(
        self, order: int, uplo: str, trans_a: str, trans_b: str, m: int, n: int, k: int,
        alpha: complex, a: int, lda: int, b: int, ldb: int, beta: complex, c: int, ldc: int,
    ) -> Product | None:  # fmt: skip
        """Translate arguments; None if one is not valid."""
        if self._is_of_two:
            p, q = _OPERATIONS.get(trans_a), _OPERATIONS.get(trans_b)
        else:
            p, q = self._operations(trans_a)
        part = _PARTS.get(uplo)
        if p is None or q is None or part is None:
            return None
        if order == _ROW_MAJOR:  # the same memory as C.T = op(B).T op(A).T, column-major
            m, n, p, q, a, b, lda, ldb = n, m, q, p, b, a, ldb, lda
            part = _OTHER[part]
        elif order != _COLUMN_MAJOR:
            return None
        return Product(
            m, n, k, *p, *q, lda, ldb, ldc, part, self._is_hermitian, alpha, beta, a, b, c
        )

    def _operations(self, how: str) -> tuple[_Operation, _Operation] | tuple[None, None]:
        """Tell how A takes part on either side of a product of itself."""
        conj = self._is_hermitian
        if how == "N":
            return (False, False), (True, conj)
        turned = "C" if conj else "T" if self._entry.precision.is_complex else "TC"
        return ((True, conj), (False, False)) if how and how in turned else (None, None)

    def _is_by_value(self, name: str) -> bool:
        if not self._entry.is_cblas or name in _POINTERS:
            return False
        return name not in _NUMBERS or not self._has_complex_numbers

    def _format(self, name: str) -> str:
        """Return how `struct` reads the word that stands for an argument."""
        if not self._is_by_value(name):
            return "Q"
        return "q" if self._entry.wide and name not in _OPTIONS else "i4x"

    def _read_of(self, name: str) -> _Read | None:
        """Return what reads an argument, None if its word is the value."""
        if name in _OPTIONS - {"order"}:
            return _CHOICES.get if self._entry.is_cblas else _letter
        if self._is_by_value(name) or name in _POINTERS:
            return None
        if name in _NUMBERS:
            return self._number
        return _wide_integer if self._entry.wide else _narrow_integer

    def _number(self, address: int) -> Any:
        real, size = ("d", 8) if self._entry.precision.is_double else ("f", 4)
        if not self._has_complex_numbers:
            return struct.unpack(real, string_at(address, size))[0]
        return complex(*struct.unpack(2 * real, string_at(address, 2 * size)))


def _letter(address: int) -> str:
    return string_at(address, 1).decode("latin-1").upper()


def _wide_integer(address: int) -> int:
    return c_int64.from_address(address).value


def _narrow_integer(address: int) -> int:
    return c_int32.from_address(address).value


def _is_sound(x: Product) -> bool:
    """Tell whether sizes are such that the original computes: else it reports an error."""
    rows_a, rows_b = (x.k if x.trans_a else x.m), (x.n if x.trans_b else x.k)
    fits = x.lda >= rows_a and x.ldb >= rows_b and x.ldc >= x.m
    return fits and x.m > 0 and x.n > 0 and x.k > 0 and bool(x.a and x.b and x.c)
