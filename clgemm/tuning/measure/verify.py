"""Verifies configurations: odd shapes, all transposes, beta zero and not, poisoned memory, often.

Finalists compute Gram products, too.

The reference is NumPy's product in double precision, made once for all candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm.kernels import BY_NAME
from clgemm.layouts import address_of
from clgemm.problem import ALIGNMENT, ELEMENT_OF, PRECISIONS, Call, Operand, Precision, describe
from clgemm.runtime import host_memory
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from clgemm.kernels.family import Config, KernelSpec, Plan
    from clgemm.problem import Gemm
    from clgemm.runtime.device import Device
    from clgemm.traits import DeviceTraits

SHAPES = ((261, 133, 401), (5, 3, 2))
OFTEN_SHAPE = (131, 133, 97)  # several work-groups of any family, soon done; kernels of SHAPES
QUICK_SHAPE = (67, 45, 129)
PADDING = 3  # rows of NaN below C that must stay as they are
REPEATS = 3  # of each case before a candidate is timed: a race need not show in the first run
FINALIST_REPEATS = 120  # of one case for a finalist: one wrong in 20 runs passes once in 470
MOST_ELEMENTS = 1 << 25  # of a product with the kernels of a larger one
LEAST_EXTENT = 16
FACTORS = ((1.0, 0.0), (-1.25, 0.5))  # alpha and beta
VERIFIED_ROWS = 64  # of such a product, the first and the last ones


def random_matrix(
    rng: np.random.Generator, precision: Precision, rows: int, columns: int
) -> NDArray[Any]:
    """Return an F-ordered matrix with elements uniform in (-1, 1)."""
    x = rng.uniform(-1, 1, (columns, rows))
    if precision.is_complex:
        x = x + 1j * rng.uniform(-1, 1, (columns, rows))
    return x.astype(precision.dtype).T


def operands(
    rng: np.random.Generator, precision: Precision, m: int, n: int, k: int, *, every: bool
) -> Iterator[tuple[Operand, Operand]]:
    """Yield operands for op(A) @ op(B): N with N, or (`every`) N, T and C with N, T and C.

    With `every` also those of Gram products of m x k matrices.
    """
    ops = "NTC" if every and precision.is_complex else "NT" if every else "N"

    def operand(op: str, rows: int, columns: int) -> Operand:
        if op == "N":
            return Operand(random_matrix(rng, precision, rows, columns))
        return Operand(random_matrix(rng, precision, columns, rows).T, conj=op == "C")

    for op_a in ops:
        for op_b in ops:
            yield operand(op_a, m, k), operand(op_b, k, n)
    if every:
        x = random_matrix(rng, precision, m, k)
        for conj in (False, True)[: precision.parts]:
            yield Operand(x), Operand(x.T, conj)


def reference(a: Operand, b: Operand, precision: Precision) -> NDArray[Any]:
    """Return a @ b, computed by NumPy in a precision that is wide enough."""
    wide = (x.data.astype(precision.dtype) for x in (a, b))
    left, right = (np.conj(x) if o.conj else x for x, o in zip(wide, (a, b), strict=True))
    product: NDArray[Any] = left @ right
    return product


def planned(
    device: Device, config: Config, a: Operand, b: Operand, c: NDArray[Any],
    alpha: complex, beta: complex,
) -> tuple[Gemm, Plan]:  # fmt: skip
    """Describe a product and plan it as a call would."""
    call = Call(alpha, a.data, b.data, beta, c, a.conj, b.conj)
    problem = describe(a, b, c, reads_c=beta != 0, is_gram=call.is_gram)
    if device.traits.unified_memory:
        # Where operands are copied they always are aligned: let kernels rely on it here, too.
        aligned = not (address_of(a.data) | address_of(b.data)) % ALIGNMENT
        problem = problem._replace(aligned=aligned)
    else:
        problem = problem.dense()
    return problem, BY_NAME[config.family].plan(device.traits, problem, config)


def run_once(
    device: Device, config: Config, a: Operand, b: Operand, c: NDArray[Any],
    alpha: complex = 1.0, beta: complex = 0.0, *, poison: bool = False,
) -> None:  # fmt: skip
    """Compute ``c[...] = alpha*a@b + beta*c`` with one configuration.

    `poison` fills the scratch memory with NaN before.
    """
    problem, plan = planned(device, config, a, b, c, alpha, beta)
    runner = KernelRunner(device, problem, plan)
    places = [host_memory.place(device, x) for x in (a.data, b.data, c)]
    runner.execute((alpha, beta, *places, NO_OFFSETS), poisoned=poison)
    host_memory.fetch(device, places[2], c)


def alike(traits: DeviceTraits, problem: Gemm, config: Config) -> Gemm | None:
    """Describe the smallest product that takes kernels of a problem, and no others.

    Extents are halved, so that kernels for odd ones and for edges stay what they are.

    Returns
    -------
    Gemm or None
        Of one matrix without gaps; None if none is small enough.
    """
    family = BY_NAME[config.family]

    def kernels(g: Gemm) -> set[KernelSpec]:
        return {step.kernel for step in family.plan(traits, g, config).steps}

    own = kernels(problem)

    def fits(g: Gemm) -> bool:
        return family.accepts(g) and kernels(g) <= own

    g = problem._replace(batch=1, stride_a=0, stride_b=0, reads_c=False).dense()
    g = g._replace(offset_a=0, offset_b=0, offset_c=0)
    if not fits(g):
        return None
    for names in ("k",), *((("m", "n"),) if g.triangle else (("m",), ("n",))):
        while getattr(g, names[0]) > LEAST_EXTENT:
            half = {name: -(-getattr(g, name) // 2) for name in names}
            smaller = g._replace(**half).dense()
            if not fits(smaller):
                break
            g = smaller
    return g if g.m * g.k + g.k * g.n + g.m * g.n <= MOST_ELEMENTS else None


def operands_of(rng: np.random.Generator, precision: Precision, g: Gemm) -> tuple[Operand, Operand]:
    """Return operands of a product as it is described; those of a Gram product share memory."""
    a = random_matrix(rng, precision, *((g.k, g.m) if g.trans_a else (g.m, g.k)))
    a = a.T if g.trans_a else a
    if g.triangle:
        return Operand(a, g.conj_a), Operand(a.T, g.conj_b)
    b = random_matrix(rng, precision, *((g.n, g.k) if g.trans_b else (g.k, g.n)))
    return Operand(a, g.conj_a), Operand(b.T if g.trans_b else b, g.conj_b)


class Case(NamedTuple):
    """One product and what it must come to."""

    a: Operand
    b: Operand
    alpha: float
    beta: float
    before: NDArray[Any]
    """C with rows of NaN below it, all NaN if beta is zero."""
    want: NDArray[Any]
    limit: NDArray[Any]
    """The a-priori bound on each element's error, doubled."""
    rows: slice | NDArray[Any] = slice(None)
    """Those that `want` and `limit` have."""
    repeats: int = REPEATS
    """How often it is computed for a candidate."""

    def mismatch(self, device: Device, config: Config) -> str | None:
        """Run once and return what is wrong, with its numbers."""
        room = self.before.copy(order="K")
        m = self.a.data.shape[0]
        run_once(device, config, self.a, self.b, room[:m], self.alpha, self.beta, poison=True)
        worst = np.max(np.abs(room[:m][self.rows] - self.want) / self.limit)
        if worst <= 1 and np.all(np.isnan(room[m:])):
            return None
        (m, k), n = self.a.data.shape, self.b.data.shape[1]
        what = f"error {worst:.3g} times the bound" if not worst <= 1 else "wrote beyond C"
        return f"{m} x {n} x {k}, beta {self.beta}: {what}"


def _case(
    rng: np.random.Generator, operands: tuple[Operand, Operand], factors: tuple[float, float],
    want: tuple[NDArray[Any], NDArray[Any]], rows: slice | NDArray[Any] = slice(None),
) -> Case:  # fmt: skip
    """Make a case of op(A) and op(B), of alpha and beta, and of some rows of A B and |A||B|."""
    (a, b), (alpha, beta), (exact, bound) = operands, factors, want
    (m, k), n = a.data.shape, b.data.shape[1]
    precision = ELEMENT_OF[a.data.dtype]
    before = np.full((n, m + PADDING), np.nan, precision.dtype).T
    if beta:
        before[:m] = random_matrix(rng, precision, m, n)
    wanted = alpha * exact + (beta * before[:m][rows] if beta else 0.0)
    slack = 2 * (k + 8) * precision.eps
    limit = slack * (abs(alpha) * bound + np.abs(wanted) + abs(beta))
    return Case(a, b, alpha, beta, before, wanted, limit, rows)


class Verifier:
    """Compares configurations of one precision with a reference."""

    def __init__(self, device: Device, precision: Precision) -> None:
        self._device = device
        self._precision = precision
        self._cases: dict[bool, list[Case]] = {}

    def mismatch(self, config: Config, *, finalist: bool) -> str | None:
        """Compare a configuration with the reference on odd shapes, several times.

        A finalist is compared in all transposes, and in one case `FINALIST_REPEATS` times.  What is
        returned is the first mismatch with its numbers.
        """
        for case in self._made(finalist=finalist):
            for count in range(case.repeats):
                mismatch = case.mismatch(self._device, config)
                if mismatch:
                    return f"{mismatch}, in run {count + 1} of {case.repeats}"
        return None

    def kernels(self, config: Config, *, finalist: bool) -> set[KernelSpec]:
        """Name the kernels that `mismatch` takes."""
        return {
            step.kernel
            for x in self._made(finalist=finalist)
            for step in planned(
                self._device, config, x.a, x.b, x.before[:-PADDING], x.alpha, x.beta
            )[1].steps
        }

    def quick_mismatch(self, config: Config, problem: Gemm | None = None) -> str | None:
        """Run one small product; return the mismatch with its numbers.

        If a call waits to compute a `problem`, it is one that takes the same kernels: so none is
        built for this alone.  Else it is an odd one.
        """
        device = self._device
        g = None if problem is None else alike(device.traits, problem, config)
        if g is None:
            cases = self._make([QUICK_SHAPE], every=False)
        else:
            steps = BY_NAME[config.family].plan(device.traits, g, config).steps
            with device.programs.building(step.kernel for step in steps):
                cases = iter(list(self._made_alike(g)))
        return next(filter(None, (case.mismatch(device, config) for case in cases)), None)

    def _made_alike(self, g: Gemm) -> Iterator[Case]:
        """Make a product as it is described, of which some rows are compared."""
        precision, rng = self._precision, np.random.default_rng(23)
        a, b = operands_of(rng, precision, g)
        rows = np.unique(np.linspace(0, g.m - 1, VERIFIED_ROWS).astype(int))
        some = Operand(a.data[rows], a.conj)
        exact = reference(some, b, PRECISIONS[precision.wide])
        bound = np.abs(some.data) @ np.abs(b.data)
        for factors in FACTORS:
            yield _case(rng, (a, b), factors, (exact, bound), rows)

    def _made(self, *, finalist: bool) -> list[Case]:
        if finalist not in self._cases:
            cases = self._cases[finalist] = list(self._make(SHAPES, every=finalist))
            if finalist:
                often = next(self._make([OFTEN_SHAPE], every=False))
                cases.append(often._replace(repeats=FINALIST_REPEATS))
        return self._cases[finalist]

    def _make(self, shapes: Iterable[tuple[int, int, int]], *, every: bool) -> Iterator[Case]:
        precision, rng = self._precision, np.random.default_rng(20)
        for m, n, k in shapes:
            for a, b in operands(rng, precision, m, n, k, every=every):
                bound = np.abs(a.data) @ np.abs(b.data)
                exact = reference(a, b, PRECISIONS[precision.wide])
                for factors in FACTORS:
                    yield _case(rng, (a, b), factors, (exact, bound))
