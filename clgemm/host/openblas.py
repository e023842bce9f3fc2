"""OpenBLAS as it runs in this process: NumPy's and SciPy's, each with threads of its own.

Nothing here is linked or loaded: the functions are looked up in what the extension modules brought.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# How builds name OpenBLAS' functions: SciPy's and NumPy's wheels, and everybody else.
AFFIXES = (("scipy_", ""), ("scipy_", "64_"), ("", ""), ("", "64_"))
PTHREADS = 1  # what `openblas_get_parallel` says of a build with threads of its own
_NUMPY = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
_SCIPY = ("scipy.linalg._fblas",)
_MOST = re.compile(r"MAX_THREADS=(\d+)")

STARTED = "blas_server_avail"


class OpenBlas(NamedTuple):
    """An OpenBLAS that some extension module is linked with."""

    library: ctypes.PyDLL
    """Its functions, called while the interpreter's lock is held."""
    core: str
    """Whose kernels it chose, such as Haswell (AVX2) or SkylakeX (AVX-512)."""
    config: str
    """Its version and how it was built."""
    parallel: int
    """`PTHREADS` if its threads are its own."""
    threads: Callable[[], int]
    """How many threads it uses now, the caller's among them."""
    use_threads: Callable[[int], object]
    """Changes that."""
    started: ctypes.c_int
    """0 while it has no threads: none has started yet, or all were ended.  Else, or if it does not
    tell, another number."""
    address: int = 0
    """Of one of its functions."""

    @property
    def most(self) -> int:
        """Threads that it never exceeds, however many cores there are."""
        found = _MOST.search(self.config)
        return int(found[1]) if found else sys.maxsize


def behind(extension: Any) -> OpenBlas | None:
    """Return the OpenBLAS behind an extension module; None if it uses another BLAS."""
    try:
        library = ctypes.PyDLL(extension.__file__)
    except (AttributeError, TypeError, OSError):  # no file, or one that cannot be opened again
        return None
    wanted = ("get_corename", "get_config", "get_parallel", "get_num_threads", "set_num_threads")
    for prefix, suffix in AFFIXES:
        try:
            core, config, parallel, threads, use_threads = (
                getattr(library, f"{prefix}openblas_{what}{suffix}") for what in wanted
            )
        except AttributeError:
            continue
        core.restype = config.restype = ctypes.c_char_p
        use_threads.restype = None
        return OpenBlas(
            library, core().decode(), config().decode(), int(parallel()), threads, use_threads,
            _started(library), ctypes.cast(threads, ctypes.c_void_p).value or 0,
        )  # fmt: skip
    return None


def _started(library: ctypes.PyDLL) -> ctypes.c_int:
    try:
        return ctypes.c_int.in_dll(library, STARTED)
    except ValueError:  # it does not tell
        return ctypes.c_int(1)


def of_numpy() -> OpenBlas | None:
    """Return the OpenBLAS that NumPy computes with, None if it is another library."""
    return _of(_NUMPY)


def of_scipy() -> OpenBlas | None:
    """Return the OpenBLAS that SciPy computes with, None if it is not loaded or another library."""
    return _of(_SCIPY)


def _of(names: tuple[str, ...]) -> OpenBlas | None:
    for name in names:
        if name in sys.modules:
            return _behind(name)
    return None


@functools.cache
def _behind(name: str) -> OpenBlas | None:
    return behind(sys.modules[name])


_following = False


def follow() -> None:
    """Let SciPy's library use as many threads as NumPy's does, if it was loaded under a limit.

    What limits the libraries of a process while it runs knows those that are loaded by then.
    """
    global _following  # noqa: PLW0603 - of the process, as the number of threads is
    numpy, scipy = of_numpy(), of_scipy()
    if numpy is None or scipy is None:
        return
    count = numpy.threads()
    if count < scipy.threads() or _following:
        scipy.use_threads(count)
        _following = True
