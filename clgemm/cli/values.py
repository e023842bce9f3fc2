"""What the values of the command line's arguments may be."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from clgemm.problem import INTEGERS, PRECISIONS
from clgemm.tuning import shapes

if TYPE_CHECKING:
    from clgemm.tuning.shapes import Shape


def size(text: str) -> Shape:
    """Read a size, as 1000 or 3000x40x500."""
    try:
        return shapes.parse(text)
    except ValueError:
        message = f"{text!r} is neither a size, as 1000, nor m x n x k"
        raise argparse.ArgumentTypeError(message) from None


def letters(text: str) -> str:
    """Read the letters of precisions; each counts once."""
    if not text or not set(text) <= set(PRECISIONS):
        raise argparse.ArgumentTypeError(f"{text!r}: give letters of {''.join(PRECISIONS)}")
    return "".join(dict.fromkeys(text))


def integers(text: str) -> str:
    """Read NumPy's name of an integer type or bool, as int32; return its code."""
    codes = {str(precision.dtype): code for code, precision in INTEGERS.items()}
    if text not in codes:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(codes)}")
    return codes[text]


def count(text: str) -> int:
    """Read a number of at least 1."""
    number = int(text) if text.isdecimal() else 0
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return number


def seconds(text: str) -> float:
    """Read how long something may take."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of seconds")
    return number


def new_file(text: str) -> Path:
    """Read the path of a file to be written at the end; its folder is looked for now.

    The path is absolute, since a program that is run may change the working directory.
    """
    try:
        path = Path(text).absolute()
    except FileNotFoundError:  # the working directory itself is gone
        raise argparse.ArgumentTypeError(f"{text!r}: there is no working directory") from None
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r}: no file can be written in {path.parent}")
    return path


def add_precision(command: argparse.ArgumentParser, *names: str) -> None:
    """Add an argument for the letters of precisions, by default all, to a command's parser."""
    command.add_argument(
        *names, default="".join(PRECISIONS), type=letters, help="BLAS letters, e.g. sd"
    )
