"""A Python function in the place of a compiled one.

What SciPy and NumPy export are compiled objects, and programs see that in two ways: as an attribute
of a class they do not become methods, so that ``class Case: gemm = sgemm`` may call
``self.gemm(1.0, a, b)``; and they have attributes of their own, such as ``matmul.nin``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from clgemm.api import shortcut

if TYPE_CHECKING:
    from collections.abc import Callable

    _Called = staticmethod[..., Any]
else:
    _Called = shortcut.Called

_ANYTHING = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})
_Function = TypeVar("_Function", bound="Callable[..., Any]")


def stands_in_for(original: Callable[[], Any]) -> Callable[[_Function], _Function]:
    """Decorate a function so that programs may use it as they use what `original` returns.

    Examples
    --------
    >>> import math
    >>> @stands_in_for(lambda: math.hypot)
    ... def hypot(x, y):
    ...     return (x * x + y * y) ** 0.5
    >>> class Triangle:
    ...     third = hypot
    >>> Triangle().third(3, 4)
    5.0
    """
    return lambda function: cast("Any", _StandIn(function, original))


class _StandIn(_Called):
    """A static method wherever it is put; signature and further attributes are the original's.

    Python calls one, and what is compiled, almost as fast as the function in it, unlike an object
    with a `__call__`.
    """

    def __init__(self, function: Callable[..., Any], original: Callable[[], Any]) -> None:
        super().__init__(function)
        if not isinstance(self, staticmethod):  # which does the same by itself
            functools.update_wrapper(self, function)
        self._original = original

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        # The interpreter, pickle and the like ask for other special names; nobody means those.
        if not name.startswith("__"):
            return getattr(self._original(), name)
        if name == "__signature__":
            with contextlib.suppress(ValueError):  # the original's is not known
                found = inspect.signature(self._original())
                # Python 3.13 says of any compiled object at least that it can be called.
                if any(x.kind not in _ANYTHING for x in found.parameters.values()):
                    return found
        raise AttributeError(f"{self!r} has no attribute {name}")

    def __reduce__(self) -> str:
        return self.__name__  # pickled and copied as functions are: by name

    def __repr__(self) -> str:
        return f"<function {self.__module__}.{self.__name__}>"
