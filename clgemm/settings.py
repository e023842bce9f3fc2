"""Every environment variable of clgemm, read and checked in one place, at each use.

A value that cannot be read is reported once as a warning and the default is taken: a typing error
in a variable must not break a program that only multiplies matrices.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from pathlib import Path

import platformdirs

from clgemm.errors import ClgemmWarning

DEFAULT_TUNE_SECONDS = 5.0
TUNE_MODES = ("auto", "off")
ROUTES = ("auto", "device", "host")
FP32_WAYS = ("auto", "fma")


@lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    warnings.warn(message, ClgemmWarning, stacklevel=4)


def device() -> str:
    """``CLGEMM_DEVICE``: "nvidia", "pocl:0", any part of a platform's or device's name, or ""."""
    return os.environ.get("CLGEMM_DEVICE", "").strip()


def tune_seconds() -> float:
    """``CLGEMM_TUNE_SECONDS``: wall-clock budget of one tuning run, in seconds."""
    text = os.environ.get("CLGEMM_TUNE_SECONDS", "")
    if not text:
        return DEFAULT_TUNE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        _warn_once(
            f"CLGEMM_TUNE_SECONDS={text!r} is no positive number of seconds; "
            f"{DEFAULT_TUNE_SECONDS:g} is used"
        )
        return DEFAULT_TUNE_SECONDS
    return seconds


def _choice(name: str, allowed: tuple[str, ...]) -> str:
    text = os.environ.get(name, allowed[0]).strip().lower() or allowed[0]
    if text not in allowed:
        _warn_once(f"{name}={text!r} is none of {', '.join(allowed)}; {allowed[0]!r} is used")
        return allowed[0]
    return text


def tuning_enabled() -> bool:
    """``CLGEMM_TUNE``: "off" takes a family's defaults and neither searches nor reads the store."""
    text = os.environ.get("CLGEMM_TUNE", "").strip().lower()
    if text in {"0", "no", "false"}:
        return False
    return _choice("CLGEMM_TUNE", TUNE_MODES) != "off"


def route() -> str:
    """``CLGEMM_ROUTE``: "device" or "host" sends every call there; "auto" chooses."""
    return _choice("CLGEMM_ROUTE", ROUTES)


def splits_fp32() -> bool:
    """``CLGEMM_FP32``: "fma" computes fp32 with fp32 instructions only, never from halves."""
    return _choice("CLGEMM_FP32", FP32_WAYS) != "fma"


def cache_dir() -> Path:
    """``CLGEMM_CACHE_DIR``, by default the user's cache directory: where tuned parameters live."""
    text = os.environ.get("CLGEMM_CACHE_DIR", "")
    return Path(text) if text else Path(platformdirs.user_cache_dir("clgemm", appauthor=False))
