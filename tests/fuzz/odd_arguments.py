"""What else callers pass, right or wrong: factors, transpositions, flags, and what is no array."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

NAN, INF = float("nan"), float("inf")

COMMON_FACTORS: Mapping[str, Any] = {
    "1.0": 1.0, "0.0": 0.0, "-0.0": -0.0, "-1.0": -1.0, "2.0": 2.0, "0.5": 0.5, "int": 3,
    "0": 0, "True": True, "np.float32": np.float32(-2), "np.float64": np.float64(3),
    "0-d": np.array(2.0), "complex": 2 - 1j, "imaginary": 1j, "real complex": 2 + 0j,
}  # fmt: skip
ODD_FACTORS: Mapping[str, Any] = {
    "nan": NAN, "inf": INF, "-inf": -INF, "nan complex": complex(NAN, 1),
    "inf complex": complex(0, INF), "1e-50": 1e-50, "1e-320": 1e-320, "1e30": 1e30, "1e300": 1e300,
    "tiny complex": 1e-50 + 1j, "np.int8": np.int8(-3), "np.uint64": np.uint64(2),
    "np.float16": np.float16(0.5), "np.longdouble": np.longdouble(2), "np.bool": np.True_,
    "np.complex64": np.complex64(1 + 2j), "np.complex128": np.complex128(2),
    "np.clongdouble": np.clongdouble(1 - 1j),
    "0-d int": np.array(3), "0-d object": np.array(2, "O"),
    "0-d complex": np.array(1 + 1j), "0-d text": np.array("3"), "swapped 0-d": np.array(2.0, ">f8"),
    "1-d": np.array([2.0, 5.0]), "2-d": np.array([[2, 3], [4, 5]]), "empty array": np.array([]),
    "list": [2, 3], "nested list": [[3.0]], "tuple": (2.0,), "empty list": [], "[None]": [None],
    "[complex]": [1 + 2j], "['4']": ["4"], "range": range(2, 4), "'2'": "2", "b'2'": b"2",
    "'x'": "x", "''": "", "'1j'": "1j", "'nan'": "nan", "np.str_": np.str_("2"),
    "bytearray": bytearray(b"2"),
    "Fraction": Fraction(1, 2), "Decimal": Decimal("2.5"), "10**400": 10**400, "2**70": 2**70,
    "None": None, "object": object(), "dict": {1: 2}, "set": {1}, "function": len, "type": float,
    "datetime": np.datetime64("2000-01-01"), "timedelta": np.timedelta64(3, "s"),
    "memoryview": memoryview(b"2"), "array": array("d", [2.0]), "Ellipsis": ...,
}  # fmt: skip
TRANSPOSITIONS: Mapping[str, Any] = {
    "3": 3, "-1": -1, "True": True, "False": False, "np.True_": np.True_, "np.int8": np.int8(2),
    "np.uint64": np.uint64(1), "1.7": 1.7, "-0.5": -0.5, "2.9": 2.9, "np.float32": np.float32(1.2),
    "Fraction": Fraction(3, 2), "Decimal": Decimal("1.5"), "[1]": [1], "(2,)": (2,), "[[1]]": [[1]],
    "['1']": ["1"], "[None]": [None], "0-d": np.array(1), "1-d": np.array([2]),
    "2-d": np.array([[1, 0]]), "'1'": "1", "b'1'": b"1", "np.str_": np.str_("2"), "'N'": "N",
    "'T'": "T", "b'T'": b"T", "'C'": "C", "'1.5'": "1.5", "nan": NAN, "inf": INF, "1e10": 1e10,
    "2**31": 2**31, "2**63": 2**63, "-2**31-1": -(2**31) - 1, "1j": 1j, "1+2j": 1 + 2j,
    "np.complex64": np.complex64(1), "0-d complex": np.array(1 + 0j), "[]": [],
    "empty array": np.array([]), "None": None, "object": object(), "dict": {}, "set": set(),
    "datetime": np.datetime64("2000"), "Ellipsis": ...,
}  # fmt: skip
FLAGS: Mapping[str, Any] = {
    "5": 5, "-1": -1, "True": True, "False": False, "np.int64": np.int64(1), "0-d": np.array(1),
    "1-d": np.array([1]), "np.True_": np.True_, "2.5": 2.5, "1.0": 1.0, "'x'": "x", "None": None,
    "[1]": [1], "2**31": 2**31, "-2**31": -(2**31), "2**63": 2**63, "1j": 1j, "object": object(),
}  # fmt: skip
MATRICES: Mapping[str, Any] = {
    "3": 3, "2.5": 2.5, "1+1j": 3 + 1j, "np.complex64": np.complex64(3 + 1j), "True": True,
    "np.float16": np.float16(3), "10**400": 10**400, "None": None, "'2'": "2", "'x'": "x",
    "b'2'": b"2", "''": "", "Fraction": Fraction(1, 2), "Decimal": Decimal("2.5"),
    "object": object(), "dict": {}, "set": {1}, "[]": [], "[[]]": [[]], "[[[]]]": [[[]]],
    "ragged": [[1], [1, 2]], "deeply ragged": [[[1, 2]], [[1], [2]]], "['1', '2']": ["1", "2"],
    "['x']": ["x"], "[None]": [None, 1], "[Fraction]": [[Fraction(1, 2), 1]],
    "[10**400]": [10**400],
    "[1e300]": [[1e300, 1]], "[complex]": [[1 + 2j, 1]], "range": range(1, 4), "()": (),
    "(1, 2)": (1, 2),
    "memoryview": memoryview(b"abc"), "array": array("d", [1, 2, 3]), "bytearray": bytearray(b"12"),
    "record": np.zeros((2, 2), "i4,i4"), "function": len, "Ellipsis": ..., "type": float,
    "generator": (x for x in ()), "np.nan": NAN, "inf": INF,
}  # fmt: skip
TABLES: Mapping[str, Mapping[str, Any]] = {
    "factor": {**COMMON_FACTORS, **ODD_FACTORS}, "trans": {"0": 0, "1": 1, "2": 2} | TRANSPOSITIONS,
    "flag": {"0": 0, "1": 1} | FLAGS, "matrix": MATRICES,
}  # fmt: skip


@dataclass(frozen=True)
class Odd:
    """A value of one of the tables, by its name there."""

    table: str
    name: str

    @property
    def value(self) -> Any:
        """What the name stands for; nobody changes it."""
        return TABLES[self.table][self.name]


def draw_odd(rng: np.random.Generator, table: str, values: Mapping[str, Any]) -> Odd:
    """Draw one of some values."""
    return Odd(table, str(rng.choice(list(values))))


def draw_factor(rng: np.random.Generator) -> Odd:
    """Draw alpha or beta."""
    odd = rng.random() < 0.12
    return draw_odd(rng, "factor", ODD_FACTORS if odd else COMMON_FACTORS)


def draw_transposition(rng: np.random.Generator) -> Odd:
    """Draw trans_a or trans_b."""
    if rng.random() < 0.04:
        return draw_odd(rng, "trans", TRANSPOSITIONS)
    return Odd("trans", str(rng.integers(0, 3)))


def draw_flag(rng: np.random.Generator) -> Odd:
    """Draw overwrite_c."""
    if rng.random() < 0.04:
        return draw_odd(rng, "flag", FLAGS)
    return Odd("flag", str(rng.integers(0, 2)))
