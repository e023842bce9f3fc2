"""Products like an earlier one: what computes them, found by one look into a table.

What the faces and the engine make of a call follows from types, shapes, strides and flags, and of
values from alpha and beta alone.  So the way that was found for one call is kept, and later ones
take it without asking for all of it again, which takes longer than many a product.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import settings
from clgemm.api import shortcut, stacks
from clgemm.dispatch import engines
from clgemm.errors import DeviceError
from clgemm.host import blas as host_blas
from clgemm.host import scipy_blas
from clgemm.layouts import is_aligned, is_same_memory
from clgemm.problem import AS_GIVEN, BY_DTYPE, INTEGER_DTYPES, Call, dtype_of_product
from clgemm.runtime import reentry, registry

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray
    from typing_extensions import Self

    from clgemm.dispatch.engine import Engine

Arguments = tuple[Any, Any, Any, Any, Any, Any, Any, Any]
"""Of SciPy's gemm, in its order: alpha, a, b, beta, c, trans_a, trans_b, overwrite_c."""

log = logging.getLogger(__name__)
LOGGERS = logging.getLogger("clgemm"), logging.getLogger()
"""Of which the first one with a level says whether a line is wanted of each call."""
_all, _root = LOGGERS

_CONJUGATE = 2
_MATRIX = 2  # axes


def matmul(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None = None) -> Any:
    """Return a @ b if such arrays, all three of no subclass, were multiplied before, else None."""
    device = registry.in_use
    if device is None:
        return None
    return by(device.repeated.get(_kind(a, b, out)), a, b, out)


def by(
    compute: Any, a: NDArray[Any], b: NDArray[Any], out: NDArray[Any] | None, auto: bool = False
) -> Any:
    """Return a @ b by what was found in the table, None if that may not compute it.

    `auto` tells that the route is known to be "auto".
    """
    if compute.__class__ is _ByOperands:
        compute = compute.get(is_same_memory(a, b))
    if compute is None or _is_logged():
        return None
    if a.ndim == _MATRIX == b.ndim and a.shape[1] != len(b):
        return None  # which the kind does not tell
    if not (auto or isinstance(compute, _ByDevice) or settings.allows_host()):
        return None
    return compute(a, b) if out is None else compute(a, b, out)


def _is_logged() -> bool:
    """Tell whether a line is wanted of each call, with less to look at than a logger has."""
    return (_all.level or _root.level) <= logging.DEBUG


def remember(a: Any, b: Any, out: Any, computed: NDArray[Any] | None) -> None:
    """Keep how a product of such arrays was computed: by the host as NumPy does, or by the device.

    `computed` is what the device has computed.  That `out` overlaps neither operand where it does
    is looked at in each call.
    """
    known = engines.opened()
    arrays = (a, b) if out is None else (a, b, out)
    if known is None or any(type(x) is not np.ndarray for x in arrays):
        return
    if not (a.ndim and b.ndim and a.dtype == b.dtype and a.dtype in AS_GIVEN):
        return
    kind = _kind(a, b, out)
    if computed is None:
        compute = _by_host(a, b, out)
    elif not a.ndim == b.ndim == _MATRIX or _still_holds(known, kind, is_same_memory(a, b)):
        return  # it holds, but not for operands at this place
    else:
        compute = _ByDevice.of(known, Call.of(1.0, a, b, 0.0, computed))
    _keep(known, kind, compute, (a, b), is_gram=is_same_memory(a, b))
    if compute is host_blas.matmul and a.dtype in BY_DTYPE and known.device is registry.in_use:
        shortcut.leave_to_numpy(a, b, out)


def remember_stack(a: Any, b: Any, out: Any, result: NDArray[Any]) -> None:
    """Keep how the device computed a stack of matrices, if it was all at once, and in its place.

    A `result` that is `out` has the shape of a fresh one.
    """
    known = engines.opened()
    if known is None or any(type(x) is not np.ndarray for x in (a, b, result)):
        return
    if not (a.ndim >= _MATRIX <= b.ndim and a.dtype == b.dtype == result.dtype in BY_DTYPE):
        return
    kind, problems = _kind(a, b, out), stacks.fold(a, b, result)
    is_gram = is_same_memory(a, b)
    if len(problems) == 1 and not _still_holds(known, kind, is_gram):
        left, right, product = problems[0]
        if not (result.flags.c_contiguous if out is None else stacks.is_direct(product)):
            return
        compute = _StackByDevice.of(known, Call.of(1.0, left, right, 0.0, product))
        if compute is not None:
            compute.result = result.shape
        _keep(known, kind, compute, (a, b), is_gram=is_gram)


def _kind(a: Any, b: Any, out: Any) -> Hashable:
    """Tell what a decision depends on: operands that lie otherwise have one of their own.

    `api.matmul` makes it itself, without a call.
    """
    kind: Any
    if a.ndim == _MATRIX == b.ndim:
        # In numbers that `api.matmul` has at hand; of two that fit: see `by`.
        kind = len(a), len(b), b.size, a.dtype, b.dtype, a.strides, b.strides
    else:
        kind = a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides
    return kind if out is None else into(kind, out)


def into(kind: tuple[Any, ...], out: NDArray[Any]) -> Hashable:
    """Tell what it depends on if the result is stored in `out`."""
    return *kind, out.dtype, out.shape, out.strides


class _ByOperands(dict[bool, Any]):
    """What computes products of a kind, by whether both operands are one matrix.

    Of such a product half may be computed, by either side.
    """


def _keep(known: Engine, kind: Hashable, compute: Any, factors: Any, *, is_gram: bool) -> None:
    """Keep what computes a kind of products, if anything does, and of which operands."""
    if compute is None:
        return
    a, b = factors
    turned = b.swapaxes(-1, -2) if b.ndim >= _MATRIX else b
    if a.shape == turned.shape and a.strides == turned.strides:
        found = known.repeated.get(kind)
        by_operands = found if found.__class__ is _ByOperands else _ByOperands()
        by_operands[is_gram] = compute
        compute = by_operands
    known.repeat(kind, compute)


def _by_host(a: NDArray[Any], b: NDArray[Any], out: Any) -> Any:
    """Return what computes a product on the host, None if it is too long for a single call."""
    if multiplications(a, b) > host_blas.LONG:
        return None
    if host_blas.is_outer(a, b):
        return host_blas.outer
    return host_blas.tall if out is None and host_blas.is_tall(a, b) else host_blas.matmul


def gemm(arguments: Arguments) -> NDArray[Any] | None:
    """Return what SciPy's gemm does if a product of such arrays was computed before, else None."""
    device = registry.in_use
    if device is None:
        return None
    compute = device.repeated.get(_gemm_kind(arguments))
    if compute.__class__ is _ByOperands:
        compute = compute.get(_is_gram(arguments))
    if compute is None or _is_logged():
        return None
    if not (isinstance(compute, _ByDevice) or settings.allows_host()):
        return None
    found: NDArray[Any] | None = compute.gemm(arguments)
    return found


def remember_gemm(arguments: Arguments, computed: NDArray[Any] | None) -> None:
    """Keep how a BLAS product was computed whose result is of its own or as `c` lies.

    `computed` is what the device has computed, None if the host has.
    """
    known = engines.opened()
    _, a, b, _, _, _, trans_b, _ = arguments
    n = b.shape[0 if trans_b else 1]
    if known is None or not 0 < n * a.size <= host_blas.LONG:
        return
    kind, is_gram = _gemm_kind(arguments), _is_gram(arguments)
    compute: Any
    if computed is None:
        by_host = _LineByHost if 1 in (n, a.size * n // b.size) else _GemmByHost
        compute = by_host(arguments)
    elif _still_holds(known, kind, is_gram):
        return
    else:
        compute = _ByDevice.of_gemm(known, arguments, computed)
    factors = a.T if arguments[5] else a, b.T if trans_b else b
    _keep(known, kind, compute, factors, is_gram=is_gram)


def _is_gram(arguments: Arguments) -> bool:
    """Tell what `Call.is_gram` says of the call."""
    alpha, a, b, _, _, trans_a, trans_b, _ = arguments
    alike = a.dtype.kind != "c" or (trans_a == _CONJUGATE) == (trans_b == _CONJUGATE)
    return is_same_memory(a, b) and (alike or alpha.imag == 0)


def _gemm_kind(arguments: Arguments) -> Hashable:
    _, a, b, beta, c, trans_a, trans_b, _ = arguments
    reads_c = 0 if c is None or beta == 0 else 1 if beta == 1 else 2
    return a.dtype, a.shape, a.strides, trans_a, b.dtype, b.shape, b.strides, trans_b, reads_c


def _still_holds(known: Engine, kind: Hashable, is_gram: bool) -> bool:
    """Tell whether a decision of the device is kept that is the one of now."""
    compute = known.repeated.get(kind)
    if compute.__class__ is _ByOperands:
        compute = compute.get(is_gram)
    return isinstance(compute, _ByDevice) and compute.holds()


class _GemmByHost:
    """SciPy's own gemm, which would copy row-major operands: it gets them turned."""

    def __init__(self, arguments: Arguments) -> None:
        _, a, b, _, _, trans_a, trans_b, _ = arguments
        self._routine = scipy_blas.gemm(BY_DTYPE[a.dtype].code)
        self._a, self._b = _Passed.of(a, trans_a), _Passed.of(b, trans_b)
        self._as_given = self._a == self._b == _Passed(turned=False, trans=0, conj=False)
        self._shape = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
        self._is_large = math.prod(self._shape) * a.itemsize >= host_blas.ZEROED

    def gemm(self, arguments: Arguments) -> NDArray[Any]:
        alpha, a, b, beta, c, _, _, overwrite_c = arguments
        if self._is_large:
            (c, beta), overwrite_c = _result(arguments, self._shape), True
        elif self._as_given and c is None and beta == 0:
            # To read the defaults takes SciPy some tenths of a microsecond.
            plain: NDArray[Any] = self._routine(alpha, a, b)
            return plain
        (turned_a, trans_a, conj_a), (turned_b, trans_b, conj_b) = self._a, self._b
        if turned_a:
            a = np.conj(a.T) if conj_a else a.T
        if turned_b:
            b = np.conj(b.T) if conj_b else b.T
        product: NDArray[Any] = self._routine(
            alpha, a, b, beta, c, trans_a, trans_b, overwrite_c
        )  # fmt: skip
        return product


class _LineByHost:
    """One row or column, which lies in both orders, and is computed as `Call.of` sees it."""

    def __init__(self, arguments: Arguments) -> None:
        _, a, _, _, _, trans_a, trans_b, _ = arguments
        is_complex = a.dtype.kind == "c"
        self._conj = tuple(is_complex and x == _CONJUGATE for x in (trans_a, trans_b))

    def gemm(self, arguments: Arguments) -> NDArray[Any]:
        alpha, a, b, _, _, trans_a, trans_b, _ = arguments
        op_a, op_b = a.T if trans_a else a, b.T if trans_b else b
        result, beta = _result(arguments, (op_a.shape[0], op_b.shape[1]))
        host_blas.gemm(Call.of(alpha, op_a, op_b, beta, result, *self._conj))
        return result


def _result(arguments: Arguments, shape: tuple[int, ...]) -> tuple[NDArray[Any], complex]:
    """Return where the result goes, and what it is multiplied by before."""
    _, a, _, beta, c, _, _, overwrite_c = arguments
    if c is not None and overwrite_c and c.flags.f_contiguous:
        return c, beta
    if c is None or beta == 0:
        return np.empty(shape, a.dtype, "F"), 0.0
    return c.copy("F"), beta


class _Passed(NamedTuple):
    """How SciPy gets an operand: as `host.blas.gemm` passes it, so that bits are equal."""

    turned: bool
    trans: int
    conj: bool

    @classmethod
    def of(cls, x: NDArray[Any], trans: int) -> _Passed:
        if not trans:
            row_major = x.flags.c_contiguous
            return cls(row_major, int(row_major), conj=False)
        conj = x.dtype.kind == "c" and trans == _CONJUGATE
        if x.flags.f_contiguous:
            return cls(turned=False, trans=_CONJUGATE if conj else 1, conj=False)
        return cls(turned=True, trans=0, conj=conj)  # BLAS cannot conjugate alone


class _ByDevice:
    """Multiplies on the device as was decided; returns None if that decision may not hold now."""

    def __init__(self, known: Engine, call: Call) -> None:
        self._engine = known
        self._modes = settings.modes()
        self._units = known.units()
        self._decision = known.decide(call, self._modes)
        self._shape = call.c.shape[::-1] if call.transposed else call.c.shape
        self._conj = call.conj_a, call.conj_b
        self._turned = call.transposed

    @classmethod
    def of_gemm(cls, known: Engine, arguments: Arguments, result: NDArray[Any]) -> _ByDevice | None:
        """Make what multiplies two matrices, perhaps conjugated, into a column-major result."""
        alpha, a, b, beta, c, trans_a, trans_b, _ = arguments
        op_a, op_b = a.T if trans_a else a, b.T if trans_b else b
        if result.strides != (a.itemsize, a.itemsize * op_a.shape[0]):
            return None  # of one row or column, and not as a fresh one lies
        conj = (a.dtype.kind == "c" and x == _CONJUGATE for x in (trans_a, trans_b))
        return cls.of(known, Call.of(alpha, op_a, op_b, 0.0 if c is None else beta, result, *conj))

    @classmethod
    @reentry.entry(nested=lambda *_: None)
    def of(cls, known: Engine, call: Call) -> Self | None:
        """Make it unless something else than the arrays' shapes may decide on calls of the kind."""
        if call.c.dtype != call.a.dtype or engines.partners_of(known):
            return None
        try:
            found = cls(known, call)
        except (DeviceError, MemoryError) as error:  # the product itself has been computed
            log.debug("how a product was computed is not kept: %s", error)
            return None
        decision = found._decision
        return found if not decision.copied and decision.route.where == "device" else None

    def holds(self) -> bool:
        """Tell whether calls of the kind would be decided on in the same way now."""
        return self._engine.units() == self._units and settings.modes() == self._modes

    def __call__(self, a: NDArray[Any], b: NDArray[Any], out: Any = None) -> NDArray[Any] | None:
        """Multiply as `numpy.matmul` does."""
        if out is None:
            return self._run(1.0, a, b, np.empty(self._shape, dtype_of_product(a.dtype, b.dtype)))
        return self._run(1.0, a, b, out) if _is_free(out, a, b) else None

    def gemm(self, arguments: Arguments) -> NDArray[Any] | None:
        """Multiply as BLAS does."""
        alpha, a, b, _, _, trans_a, trans_b, _ = arguments
        result, beta = _result(arguments, self._shape)
        return self._run(
            alpha, a.T if trans_a else a, b.T if trans_b else b, result, beta
        )  # fmt: skip

    @reentry.entry(nested=lambda *_: None)
    def _run(
        self, alpha: complex, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], beta: complex = 0.0
    ) -> NDArray[Any] | None:
        known, conj = self._engine, self._conj
        if not type(a) is type(b) is type(c) is np.ndarray:
            return None  # it only says that it is one
        if not (self.holds() and is_aligned(a) and is_aligned(b) and is_aligned(c)):
            return None
        if not self._turned:
            call = Call(alpha, a, b, beta, c, conj[0], conj[1])
        elif c.ndim == _MATRIX:
            call = Call(alpha, b.T, a.T, beta, c.T, conj[0], conj[1], transposed=True)
        else:
            call = Call.of(alpha, a, b, beta, c)
        try:
            known.run(self._decision, call)
        except (DeviceError, MemoryError):
            if c.dtype not in INTEGER_DTYPES:
                raise
            return None  # the long way has NumPy compute what a device fails to
        return c


class _StackByDevice(_ByDevice):
    """Multiplies stacks of matrices, which are folded each time."""

    result: tuple[int, ...]
    """The shape of what is returned."""

    def __call__(self, a: NDArray[Any], b: NDArray[Any], out: Any = None) -> NDArray[Any] | None:
        """Multiply as `numpy.matmul` does."""
        if out is not None and not _is_free(out, a, b):
            return None
        c: NDArray[Any] = np.empty(self.result, a.dtype) if out is None else out
        ((left, right, product),) = stacks.fold(a, b, c)
        return None if self._run(1.0, left, right, product) is None else c


def _is_free(out: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Tell whether a product can be computed where it is to be stored."""
    return out.flags.behaved and not (np.may_share_memory(out, a) or np.may_share_memory(out, b))


def multiplications(a: Any, b: Any) -> int:
    """Count those of vectors and stacks; 0 for what is none, and for stacks to be broadcast."""
    p, q = a.ndim, b.ndim
    if p >= q and (q <= _MATRIX or a.shape[:-2] == b.shape[:-2]):
        return int(a.size * (b.shape[-1] if q > 1 else q))
    if p <= _MATRIX:
        return int(b.size * (a.shape[-2] if p > 1 else p))
    return 0
