"""Every environment variable of clgemm, read and checked in one place, at each use.

A value that cannot be read is reported once as a warning and the default is taken: a typing error
in a variable must not break a program that only multiplies matrices.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import platformdirs

from clgemm.errors import ClgemmWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_TUNE_SECONDS = 5.0
FULL_FACTOR = 20.0  # times the budget that a search with CLGEMM_TUNE=full may take
TUNE_MODES = ("auto", "off", "quick", "full")
ROUTES = ("auto", "device", "host")
FP32_WAYS = ("auto", "fma")
HOST_SPINS = ("stop", "keep")
DEFAULT_STAGING_MB = 224.0


VARIABLES: Any = getattr(os.environ, "_data", os.environ)
"""The environment.  `os.environ` takes .7 us to say what a variable is, as much as a small product
takes; the dictionary within it, where there is one, .05 us."""
_key: Any = str if VARIABLES is os.environ else os.environ.encodekey
ROUTE, _FP32 = _key("CLGEMM_ROUTE"), _key("CLGEMM_FP32")
_HOST_SPIN = _key("CLGEMM_HOST_SPIN")
_MEGABYTES = {name: _key(name) for name in ("CLGEMM_STAGING_MB", "CLGEMM_DEVICE_MEMORY_MB")}


@lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    warnings.warn(message, ClgemmWarning, stacklevel=4)


def device() -> str:
    """``CLGEMM_DEVICE``: "nvidia", "pocl:0", any part of a platform's or device's name, or ""."""
    return os.environ.get("CLGEMM_DEVICE", "").strip()


def tune_seconds() -> float:
    """``CLGEMM_TUNE_SECONDS``: wall-clock budget of tuning one precision, first call included."""
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


def staging_bytes() -> int:
    """``CLGEMM_STAGING_MB``: pinned memory that copies to and from a device may go through."""
    megabytes = _megabytes("CLGEMM_STAGING_MB", f"{DEFAULT_STAGING_MB:g} is used")
    return int((DEFAULT_STAGING_MB if megabytes is None else megabytes) * 2**20)


def device_memory_bytes() -> int | None:
    """``CLGEMM_DEVICE_MEMORY_MB``: device memory that copied operands and scratch may take.

    Returns
    -------
    int or None
        None if it is not set: as much as the device has.
    """
    megabytes = _megabytes("CLGEMM_DEVICE_MEMORY_MB", "it is ignored")
    return None if megabytes is None else int(megabytes * 2**20)


def _megabytes(name: str, otherwise: str) -> float | None:
    if _MEGABYTES[name] not in VARIABLES:
        return None  # as nearly always, and in the path of calls: see `modes`
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = -1.0
    if not 0 <= megabytes < float("inf"):
        _warn_once(f"{name}={text!r} is no number of megabytes; {otherwise}")
        return None
    return megabytes


def _choice(name: str, allowed: tuple[str, ...]) -> str:
    text = os.environ.get(name, allowed[0])
    if text in allowed:  # as nearly always, and in the path of every call
        return text
    text = text.strip().lower() or allowed[0]
    if text not in allowed:
        _warn_once(f"{name}={text!r} is none of {', '.join(allowed)}; {allowed[0]!r} is used")
        return allowed[0]
    return text


def tune_mode() -> str:
    """``CLGEMM_TUNE``: how the first call on a device and precision finds its parameters.

    Returns
    -------
    str
        "auto": a stored or shipped result, else a search of `tune_seconds`.
        "quick": the same, but the search tries only what is known of near devices and each
        family's default: a second or two.
        "full": the same, but the search goes on until nothing is left to try, for at most
        `FULL_FACTOR` times `tune_seconds`.
        "off": each family's default; neither searches nor reads the store.
    """
    text = os.environ.get("CLGEMM_TUNE", "").strip().lower()
    return "off" if text in {"0", "no", "false"} else _choice("CLGEMM_TUNE", TUNE_MODES)


def search_seconds() -> float:
    """Return the wall-clock budget of one search in the mode that is set."""
    return tune_seconds() * (FULL_FACTOR if tune_mode() == "full" else 1)


def tuning_enabled() -> bool:
    """Tell whether ``CLGEMM_TUNE`` is anything but "off"."""
    return tune_mode() != "off"


class Modes(NamedTuple):
    """What a user may ask of all products, and what decides how each is computed."""

    route: str = ROUTES[0]
    """``CLGEMM_ROUTE``: "device" or "host" sends every call there; "auto" chooses."""
    fp32: str = FP32_WAYS[0]
    """``CLGEMM_FP32``: "fma" computes fp32 with fp32 instructions only, never from halves."""


_KNOWN_MODES: dict[tuple[Any, Any], Modes] = {}
OVERRIDDEN: ContextVar[Modes | None] = ContextVar("clgemm modes", default=None)
WAS_OVERRIDDEN = bytearray(1)
"""Not 0 if it was ever anything else than None, in whatever thread: for `api.shortcut`."""


def modes() -> Modes:
    """Return the modes in force: of a `using` block of this thread, else of the environment."""
    overridden = OVERRIDDEN.get()
    if overridden is not None:
        return overridden
    values = VARIABLES.get(ROUTE), VARIABLES.get(_FP32)
    known = _KNOWN_MODES.get(values)
    if known is None:
        known = _KNOWN_MODES[values] = _modes_of_environment()
    return known


def chooses_route() -> bool:
    """Tell whether the route is "auto"."""
    return modes().route == ROUTES[0]


def allows_host() -> bool:
    """Tell whether the route is not "device", in a third of the time that `modes` takes."""
    if OVERRIDDEN.get() is None and ROUTE not in VARIABLES:
        return True
    return modes().route != "device"


def _modes_of_environment() -> Modes:
    return Modes(_choice("CLGEMM_ROUTE", ROUTES), _choice("CLGEMM_FP32", FP32_WAYS))


@contextmanager
def using(**changes: str) -> Iterator[Modes]:
    """Change modes inside a with block, in this thread (or asyncio task) alone.

    Parameters
    ----------
    **changes : str
        Fields of `Modes` by name.

    Raises
    ------
    ValueError
        If a mode has no such value.
    """
    allowed = {"route": ROUTES, "fp32": FP32_WAYS}
    for name, value in changes.items():
        if value not in allowed.get(name, ()):
            known = "; ".join(f"{mode}: {', '.join(values)}" for mode, values in allowed.items())
            raise ValueError(f"using: {name}={value!r} is no mode; there are {known}")
    WAS_OVERRIDDEN[0] = 1
    token = OVERRIDDEN.set(modes()._replace(**changes))
    try:
        yield modes()
    finally:
        OVERRIDDEN.reset(token)


def splits_fp32() -> bool:
    """Tell whether fp32 products may be computed from halves: see `Modes.fp32`."""
    return modes().fp32 != "fma"


def stops_spinning() -> bool:
    """``CLGEMM_HOST_SPIN``: "keep" leaves idle threads of NumPy's OpenBLAS spinning as they do."""
    return _HOST_SPIN not in VARIABLES or _choice("CLGEMM_HOST_SPIN", HOST_SPINS) == "stop"


def cache_dir() -> Path:
    """``CLGEMM_CACHE_DIR``, by default the user's cache directory: where tuned parameters live."""
    text = os.environ.get("CLGEMM_CACHE_DIR", "")
    return Path(text) if text else _user_cache_dir()


def _user_cache_dir() -> Path:
    """Return the system's place for a user's caches; without a home, one for temporary files."""
    try:
        found = Path(platformdirs.user_cache_dir("clgemm", appauthor=False))
        homeless = found.parts[0] == "~"  # as old releases of platformdirs leave it
    except RuntimeError:  # no HOME is set, and the system has no such user: common in containers
        homeless = True
    if not homeless:
        return found
    try:
        around = tempfile.gettempdir()
    except FileNotFoundError:
        around = os.devnull  # no place at all: nothing is found there, and nothing can be written
    user = getattr(os, "geteuid", str)()
    return Path(around) / f"clgemm-{user}"


def shipped_dir() -> Path | None:
    """``CLGEMM_SHIPPED``: a folder of exported parameters in place of those that come with clgemm.

    Returns
    -------
    Path or None
        None for those that come with clgemm; a folder that is not there, such as "off", has none.
    """
    text = os.environ.get("CLGEMM_SHIPPED", "")
    return Path(text) if text else None
