"""Calls that a stub shows to Python: on the device, or back to the stub, which calls the original.

Nothing here calls the original, and C is as it was unless the device has computed it.
"""

from __future__ import annotations

import logging
import time
from ctypes import c_int64
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from clgemm import settings
from clgemm.dispatch import engines
from clgemm.errors import ClgemmError
from clgemm.host import spinning
from clgemm.interpose import decisions, later, stub, triangles
from clgemm.interpose.arguments import Reader
from clgemm.problem import Call
from clgemm.runtime import reentry

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from numpy.typing import NDArray

    from clgemm.dispatch.engine import Decision, Engine
    from clgemm.interpose.account import Tally
    from clgemm.interpose.arguments import Product
    from clgemm.interpose.entries import Entry

log = logging.getLogger(__name__)

MOST_REASONS = 100
LEFT_AFTER = 8  # calls of one size that the host had to compute, no more of it are shown
MOST_COUNTED = 64  # sizes of which calls are counted; with one more all are counted anew


class Reasons:
    """Why calls were left to the host: each is logged once."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def add(self, why: str) -> None:
        """Keep a reason."""
        if why not in self._known and len(self._known) < MOST_REASONS:
            self._known[why] = None
            log.warning("the original BLAS computes: %s", why)

    def all(self) -> tuple[str, ...]:
        """Return them in their order."""
        return tuple(self._known)


class _Left:
    """The sizes of calls that a stub leaves to the original without showing them.

    Of each the host had to compute `LEFT_AFTER` calls, and the device none, of another shape
    perhaps.  Where there are more such sizes than a stub has place for, the last ones are left, and
    those before are counted anew.
    """

    def __init__(self, cell: stub.Cell) -> None:
        self._cell = cell
        self._counts: dict[int, int] = {}
        """Calls that the host has computed, by size."""
        self._on_device: set[int] = set()
        """Sizes of which the device has computed a call."""
        self._sizes, self._flops = [0] * stub.SIZES, [0] * stub.SIZES
        """Those that are left now, and the operations of one call of each."""
        self._calls = [0] * stub.SIZES
        """Of sizes that were left before, ..."""
        self._flops_before = 0
        """... and their operations."""
        self._next = 0

    def again(self, x: Product, flops: int) -> None:
        """Take note of one more call that is left to the host as others of its kind were."""
        size = x.m * x.n * x.k
        if size in self._on_device:
            return
        if size not in self._counts and len(self._counts) >= MOST_COUNTED:
            self._counts.clear()
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count == LEFT_AFTER:
            self._leave(self._next, size, flops)
            self._next = (self._next + 1) % stub.SIZES

    def _leave(self, number: int, size: int, flops: int) -> None:
        """Have calls of a size not shown, instead of those before with the same number."""
        _, self._flops_before = self.sums()
        self._calls = [self._cell.left_calls(x) for x in range(stub.SIZES)]
        self._counts.pop(self._sizes[number], None)
        self._sizes[number], self._flops[number] = size, flops
        self._cell.leave(number, size)

    def computed(self, x: Product) -> None:
        """Take note of a call that the device has computed."""
        self._on_device.add(x.m * x.n * x.k)

    def forget(self) -> None:
        """Have calls of all sizes shown."""
        for number in range(stub.SIZES):
            self._leave(number, 0, 0)
        self._counts.clear()
        self._on_device.clear()

    def sums(self) -> tuple[int, int]:
        """Return how many calls were left, and their operations."""
        now = [self._cell.left_calls(number) for number in range(stub.SIZES)]
        since = zip(now, self._calls, self._flops, strict=True)
        return sum(now), self._flops_before + sum((x - y) * flops for x, y, flops in since)


class Callback:
    """What a stub shows its large calls to.

    Parameters
    ----------
    entry : Entry
        The function that is called.
    cell : Cell
        What its stub reads.
    tally : Tally
        Where calls are added up.
    reasons : Reasons
        Where to say why a call is left to the host.
    opened : callable
        Called when the device was opened: thresholds depend on it.
    calls_alone : bool
        Whether its callers are known to have no threads of their own inside a BLAS meanwhile.
    mirrors : bool
        Whether its callers are known to copy a triangle that is asked for to the other one.
    """

    def __init__(
        self, entry: Entry, cell: stub.Cell, tally: Tally, reasons: Reasons,
        opened: Callable[[], object], *, calls_alone: bool, mirrors: bool = False,
    ) -> None:  # fmt: skip
        self._has_opened = opened
        self._tally = tally
        self._cell = cell
        self._entry = entry
        self._reader = Reader(entry)
        self._reasons = reasons
        self._calls_alone = calls_alone
        self._mirrors = mirrors
        self._multiplications = entry.precision.multiplications
        self._unknown: set[int] = set()
        self._left = _Left(cell)
        self._decided_by: Hashable = None

        def shown(block: int) -> None:
            try:
                self._compute(block)
            except BaseException as error:  # noqa: BLE001 - the stub calls the original
                self._failed(error, block)

        self.function = stub.Shown(shown)
        later.callback(shown)

    def set_least(self, product: int) -> None:
        """Change the m * n * k up to which calls are small.

        Larger ones are looked at anew if that, the modes or the engine's decisions are others now.
        """
        engine = engines.opened()
        decided = None if engine is None else (ref(engine), engine.forgotten)
        decided_by = product, settings.modes(), decided
        if decided_by != self._decided_by:
            self._decided_by = decided_by
            self._left.forget()
        self._cell.set_least(product)

    def left(self) -> tuple[int, int]:
        """Count the calls that were not shown though they are larger, and their operations."""
        return self._left.sums()

    def _failed(self, error: BaseException, block: int) -> None:
        if later.is_the_programs(error):
            later.keep(error, block)
        else:
            self._reasons.add(f"{self._entry.name}: {type(error).__name__}: {error}")

    def _compute(self, block: int) -> None:
        """Compute a call, if the device is to, and say so in the block."""
        stack = c_int64.from_address(block + stub.STACK).value
        product = self._reader.read(block + stub.REGISTERS, stack)
        if product is None or product.alpha == 0:
            return
        if self._mirrors and product.part != "whole" and product.beta == 0:
            product = product._replace(part="mirrored")
        done = c_int64.from_address(block)
        seconds, instead = self._on_device(product, done) or (None, None)
        flops = product.flops(self._multiplications)
        if seconds is None:
            self._tally.on_host(flops)
        else:
            self._left.computed(product)
            self._tally.on_device(flops, seconds, instead)

    @reentry.entry(nested=lambda *_: None)  # clgemm's own call, or a signal handler's within one
    def _on_device(self, product: Product, done: c_int64) -> tuple[float, float | None] | None:
        """Compute on the device, unless the host is faster.

        Returns
        -------
        tuple of float, or None
            The seconds it took, and those predicted of the host.
        """
        engine = self._engine()
        if engine is None:
            return None
        kind = decisions.kind(engine, self._entry.precision.code, product)
        if decisions.is_left(engine, kind):
            self._left.again(product, product.flops(self._multiplications))
            return None
        call = self._call(product)
        if call is None:
            return None
        with spinning.kept(not self._calls_alone):
            chosen = decisions.decide(engine, kind, product, call)
            if chosen is None:
                return None
            start = time.perf_counter()
            _run(engine, chosen.decision, product, call, done)
        return time.perf_counter() - start, chosen.host_seconds

    def _engine(self) -> Engine | None:
        """Return the engine if it has parameters without a search; None if the host must do."""
        engine = engines.opened() or self._opened()
        if engine is None:
            return None
        precision = self._entry.precision
        if not engine.device.traits.has(precision):
            self._cell.set_least(stub.NEVER)
            self._reasons.add(f"{engine} has no double precision")
            return None
        if engine.parameters.known(precision.code) or not settings.tuning_enabled():
            return engine
        if id(engine) in self._unknown:
            return None
        if engine.parameters.stored(precision.code) is None:
            self._unknown.add(id(engine))
            self._reasons.add(
                f"no parameters of {precision.code}gemm are known for {engine}: "
                "`python -m clgemm tune` finds them"
            )
            return None
        return engine

    def _opened(self) -> Engine | None:
        """Open the device for the first large call; not again if that failed."""
        try:
            engine = engines.current()
        except reentry.WouldDeadlockError:
            raise
        except ClgemmError:
            self._cell.set_least(stub.NEVER)
            raise
        if engine is None:
            self._cell.set_least(stub.NEVER)
            self._reasons.add("a forked child of a process that used a device uses none")
        else:
            self._has_opened()
        return engine

    def _call(self, x: Product) -> Call | None:
        """Return the call with arrays that are the caller's memory.

        None where C may overlap an operand, or elements are not aligned.
        """
        dtype = self._entry.precision.dtype
        a = _matrix(dtype, x.a, x.m, x.k, x.lda, x.trans_a)
        if x.is_gram and x.m == x.n:
            a, b = a.view(), a.T  # the engine knows them by their base
        else:
            b = _matrix(dtype, x.b, x.k, x.n, x.ldb, x.trans_b)
        c = _matrix(dtype, x.c, x.m, x.n, x.ldc, transposed=False)
        if np.may_share_memory(c, a) or np.may_share_memory(c, b):
            return None
        if not (a.flags.aligned and b.flags.aligned and c.flags.aligned):
            return None
        return Call(x.alpha, a, b, x.beta, c, x.conj_a, x.conj_b)


class _Memory:
    """Memory of a caller's, as NumPy reads it."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def _matrix(
    dtype: np.dtype[Any], address: int, rows: int, columns: int, ld: int, transposed: bool
) -> NDArray[Any]:
    """Return an array of the elements at an address; nothing is copied."""
    size = dtype.itemsize
    strides = (ld * size, size) if transposed else (size, ld * size)
    interface = {
        "shape": (rows, columns), "typestr": dtype.str, "strides": strides,
        "data": (address, False), "version": 3,
    }  # fmt: skip
    return np.asarray(_Memory(interface))


def _run(engine: Engine, decision: Decision, x: Product, call: Call, done: c_int64) -> None:
    """Compute, and say that it is done; whatever is raised before leaves C as good as unwritten.

    The original, which computes then, does not read C if beta is 0; else C has its values again.
    """
    saved = call.c.copy(order="F") if x.beta != 0 else None
    try:
        if x.part in ("whole", "mirrored"):
            engine.run(decision, call)
        else:
            triangles.multiply(engine, decision, x, call)
        done.value = stub.COMPUTED
    except BaseException:
        if saved is not None and not done.value:
            np.copyto(call.c, saved, where=triangles.written(x))
        raise
