"""`nv_split` and `nv_mma` keep the error bound of an FMA product for every input, and repeat.

Each case prints its largest error in units of 2^-24 (|A||B|), beside the portable kernel's and
SciPy's (``pytest -s``).  They need an NVIDIA GPU, nv_split's a Hopper one, and say so elsewhere.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import pyopencl as cl
import pytest
from helpers import pairwise
from scipy.linalg import blas

from clgemm.kernels import BY_NAME
from clgemm.kernels.nv_split import family as nv_split
from clgemm.kernels.nv_split import layout
from clgemm.kernels.nv_split.layout import TIMES, Tile
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import host_memory, opencl
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.runtime.queues import QueueState
from clgemm.tuning.measure.verify import run_once

pytestmark = pytest.mark.device

U = 2.0**-24
LEAST = 2.0**-149  # the smallest float: what one rounding may lose to underflow
MAX = float(np.finfo(np.float32).max)
M, N, K = 300, 265, 512


class Way(NamedTuple):
    """A family's tile, and whether rows are long or short to its survey and pack."""

    family: str
    tile: Tile
    packs: str

    def __str__(self):
        return f"{self.family}-{self.tile.bx}x{self.tile.by}-{self.packs}"


WAYS = [
    Way(name, tile, packs)
    for name in ("nv_split", "nv_mma")
    for tile in TIMES
    if name == "nv_split" or tile.mi == 1
    for packs in ("long", "short")
]
LONG_WAYS = [way for way in WAYS if way.packs == "long"]
RACE_WAYS = [*LONG_WAYS, WAYS[-1]]


def ways(names, *parameters, of=WAYS):
    """Parametrize a test by its config and more, each pair of values in some row."""
    rows = [
        pytest.param(
            *row, marks=pytest.mark.families(row[0].family), id="-".join(map(str, row))
        )
        for row in pairwise(of, *parameters)
    ]  # fmt: skip
    return pytest.mark.parametrize(("config", *names.split()), rows, indirect=["config"])


@pytest.fixture
def config(request, device, monkeypatch):
    """Give a configuration whose tile is taken as it is, and a way to survey and pack.

    Two kernels ("long"), or one if there is little to pack ("short").
    """
    name, tile, packs = request.param
    family, precision = BY_NAME[name], PRECISIONS["s"]
    shape = {"MI": tile.mi, "BY": tile.by, "GROUP": 8}
    configs = family.candidates(device.traits, precision)
    fitting = [c for c in configs if shape.items() <= dict(c.params).items()]
    if not fitting:
        pytest.skip(f"{name} has no tile of {tile.bx} x {tile.by} on {device}")
    monkeypatch.setattr(nv_split, "best_tile", lambda _problem, largest, _workers: largest)
    if packs == "long":
        monkeypatch.setattr(layout, "is_short", lambda _problem: False)
    return fitting[0]


def powers(rng, shape, low, high):
    return np.exp2(rng.integers(low, high + 1, shape).astype(np.float64))


def meet_zeros(rng, a, b, power):
    """Large entries of A meet zeros of B; the others are small."""
    del rng
    a[:, 1::2] *= 2.0**power
    b[0::2] = 0


def one_huge(rng, a, b, power):
    del rng, b
    a[7, 11] = 2.0**power


def inverse(rng, a, b, power):
    e = powers(rng, a.shape[1], -power, power)
    a *= e
    b /= e[:, None]


def rows(rng, a, b, power):
    a *= powers(rng, (a.shape[0], 1), -power, power)
    b *= powers(rng, (1, b.shape[1]), -power, power)


def some_rows(rng, a, b, power):
    """Scaled rows, but such that no product overflows."""
    a *= powers(rng, (a.shape[0], 1), -power, power)
    b *= powers(rng, (1, b.shape[1]), -power, 10)


def elements(rng, a, b, power):
    a *= powers(rng, a.shape, -power, power)
    b *= powers(rng, b.shape, -power, power)


def scaled(rng, a, b, powers_of):
    del rng
    a *= 2.0 ** powers_of[0]
    b *= 2.0 ** powers_of[1]


def positive(rng, a, b, _):
    del rng
    np.abs(a.view(np.float64), out=a.view(np.float64))
    np.abs(b.view(np.float64), out=b.view(np.float64))


def constant(rng, a, b, _):
    del rng
    a[...] = 1 / 3
    b[...] = 1 / 3


def zero_rows(rng, a, b, _):
    del rng
    a[::3] = 0
    b[:, ::5] = 0


def largest(rng, a, b, _):
    """Put in the largest floats, but no sum of products that overflows."""
    del rng
    a[3, ::7] = MAX
    a[5] = -MAX
    b *= 2.0**-20


CASES = {
    "normal": (lambda *_: None, 0),
    "positive": (positive, 0),
    "constant": (constant, 0),
    "zero rows": (zero_rows, 0),
    "rows 2^+-20": (rows, 20),
    "rows 2^+-50": (rows, 50),
    "rows 2^+-100": (some_rows, 100),
    "elements 2^+-20": (elements, 20),
    "elements 2^+-60": (elements, 58),
    "meet zeros 2^-20": (meet_zeros, -20),
    "meet zeros 2^-30": (meet_zeros, -30),
    "meet zeros 2^-38": (meet_zeros, -38),
    "meet zeros 2^-100": (meet_zeros, -100),
    "inverse 2^+-20": (inverse, 20),
    "inverse 2^+-60": (inverse, 60),
    "one 2^30": (one_huge, 30),
    "one 2^100": (one_huge, 100),
    "subnormal A": (scaled, (-140, 0)),
    "subnormal A, large B": (scaled, (-140, 110)),
    "subnormal A and B": (scaled, (-130, -130)),
    "subnormal results": (scaled, (-70, -70)),
    "large A, small B": (scaled, (120, -120)),
    "largest floats": (largest, 0),
}


@lru_cache(maxsize=16)
def operands(code, m, n, k, case):
    """Make A and B of a case, rounded to the precision; nobody writes to them."""
    rng = np.random.default_rng(42)

    def make(*shape):
        x = rng.standard_normal(shape)
        return x + 1j * rng.standard_normal(shape) if code == "c" else x

    a, b = make(m, k), make(k, n)
    change, argument = CASES[case]
    change(rng, a, b, argument)
    made = tuple(np.asfortranarray(x.astype(PRECISIONS[code].dtype)) for x in (a, b))
    for x in made:
        x.flags.writeable = False
    return made


def multiply(device, config, a, b):
    c = np.full((b.shape[1], a.shape[0]), np.nan, a.dtype).T
    run_once(device, config, Operand(a), Operand(b), c, poison=True)
    return c


def wide(x):
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def errors(got, exact, size):
    """Return the largest error in units of u |A||B| (underflow taken off), and as a share of k."""
    excess = np.maximum(np.abs(wide(got) - exact) - LEAST, 0)
    return float(np.max(np.divide(excess, U * size, out=np.zeros_like(size), where=size > 0)))


@cache
def reference(device, *which):
    """Compute a case in double precision, |A||B|, and the errors of others: once for all families.

    Returns
    -------
    tuple
        The product, |A||B|, and the errors of the portable kernel and of SciPy.
    """
    a, b = operands(*which)
    portable = BY_NAME["gpu_tiled"]
    fma = portable.default(device.traits, PRECISIONS[which[0]])
    gemm = blas.sgemm if which[0] == "s" else blas.cgemm
    with np.errstate(all="ignore"):
        exact, size = wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b))
        others = multiply(device, fma, a, b), gemm(1, a, b)
        return exact, size, *(errors(c, exact, size) for c in others)


def compare(device, config, *which):
    """Multiply, print the errors beside those of others, and check the bound of the first."""
    code, _, _, k, case = which
    a, b = operands(*which)
    exact, size, fma, scipy = reference(device, *which)
    got = multiply(device, config, a, b)
    with np.errstate(all="ignore"):
        print(
            f"{code} k={k} {case}: {config.family} {errors(got, exact, size):.3g}, "
            f"fma {fma:.3g}, SciPy {scipy:.3g}"
        )
        # The real and imaginary parts of a complex product are real ones of 2 k terms each: an FMA
        # product promises 2 k u of |A||B| for each of them.  Here k u has to do for both together.
        limit = k * U * size + 2 * (2 * k + 1) * LEAST
        assert np.all(np.abs(wide(got) - exact) <= limit)


@ways("code case", "sc", CASES)
def test_error_is_within_the_bound_of_fma(device, config, code, case):
    compare(device, config, code, M, N, K, case)


DEPTH_CASES = ["normal", "positive", "meet zeros 2^-30", "elements 2^+-20"]


@ways("depth case", [("s", 64), ("s", 65), ("s", 100), ("s", 255), ("c", 64)], DEPTH_CASES)
def test_error_is_within_the_bound_at_small_depths(device, config, depth, case):
    code, k = depth
    compare(device, config, code, 131, 140, k, case)


@ways("depth case", [("s", 4096), ("s", 65536), ("c", 3000)], DEPTH_CASES, of=LONG_WAYS)
def test_error_is_within_the_bound_at_large_depths(device, config, depth, case):
    code, k = depth
    compare(device, config, code, 131, 140, k, case)


@ways("code case", "sc", CASES)
def test_rows_that_are_in_no_tile_are_as_accurate(device, config, code, case):
    compare(device, config, code, 257, 257, K, case)


def same_kinds(got, want):
    """Compare where NaN, infinities of each sign and finite numbers are."""
    for x, y in ((got.real, want.real), (got.imag, want.imag)):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
        np.testing.assert_array_equal(np.isposinf(x), np.isposinf(y))
        np.testing.assert_array_equal(np.isneginf(x), np.isneginf(y))


def special(a, b, kind):
    """Put what is not finite, or makes what is not, into A and B."""
    if kind == "nan":
        a[3, 5] = np.nan
    elif kind == "inf":
        a[3, 5] = np.inf
    elif kind == "inf meets zero":
        a[-10, 5], b[5, ::3] = -np.inf, 0
    elif kind == "last row and column":
        a[-1, 5], b[7, -1] = np.inf, np.nan
    elif kind == "inf meets a zero column":
        a[3, 5], b[:, 17] = np.inf, 0
    elif kind == "inf in both":
        a[3, 5], b[9, 200], b[5, 100] = np.inf, -np.inf, np.nan
    elif kind == "overflow":
        a[3, 5], b[5, 7] = MAX, 4
    elif kind == "overflow of a row":
        a[3], b[:, 7] = 2.0**100, 2.0**30
    else:
        a[...] = np.inf


KINDS = [
    "nan", "inf", "inf meets zero", "inf meets a zero column", "last row and column", "inf in both",
    "overflow", "overflow of a row", "all inf",
]  # fmt: skip


# The second shape has rows in no tile.
@ways("code shape kind", "sc", [(M, N), (257, 257)], KINDS)
def test_what_is_not_finite_is_where_scipy_has_it(device, config, code, shape, kind):
    a, b = (x.copy(order="F") for x in operands(code, *shape, 130, "normal"))
    special(a, b, kind)
    got = multiply(device, config, a, b)
    with np.errstate(all="ignore"):
        want = (blas.sgemm if code == "s" else blas.cgemm)(1, a, b)
        size = np.abs(np.nan_to_num(wide(a))) @ np.abs(np.nan_to_num(wide(b)))
        ok = np.isfinite(want) & (np.abs(want) < MAX / 4)
    same_kinds(got, want)
    assert np.all(np.abs(wide(got[ok]) - wide(want[ok])) <= 4 * 130 * U * size[ok])


# Counts what differs from the first result, bit by bit.
DIFFER = """
__kernel void differ(__global const uint *c, __global const uint *first, __global uint *count)
{
    const size_t i = get_global_id(0);
    if (c[i] != first[i])
        atomic_inc(count);
}
"""
RUNS = 700  # of each shape
NAN = np.uint32(0x7FC0_0000)


def assert_runs_repeat(device, config, code, case):
    """Run products thousands of times in memory that holds NaN: no bit differs."""
    differ = cl.Kernel(opencl.build(device.context, DIFFER), "differ")
    for shape in ((300, 265, 700), (1024, 1024, 320), (129, 400, 2000)):
        a, b = operands(code, *shape, case)
        c = np.zeros((shape[1], shape[0]), a.dtype).T
        problem = describe(Operand(a), Operand(b), c, reads_c=False).dense()
        plan = BY_NAME[config.family].plan(device.traits, problem, config)
        flags = cl.mem_flags.READ_WRITE
        scratch = cl.Buffer(device.context, flags, max(4, plan.scratch_bytes))
        runner = KernelRunner(device, problem, plan)
        state = QueueState(device.context, device.queue, scratch)
        places = [host_memory.place(device, x) for x in (a, b, c)]
        values = (1.0, 0.0, *places, NO_OFFSETS)
        first = cl.Buffer(device.context, flags, c.nbytes)
        count = np.zeros(1, np.uint32)
        counter = cl.Buffer(device.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=count)
        for i in range(RUNS):  # one after the other, and the host waits for none
            if i % 100 == 0:
                cl.enqueue_fill_buffer(device.queue, scratch, NAN, 0, scratch.size)
            runner.enqueue(values, state, [])
            if i == 0:
                cl.enqueue_copy(device.queue, first, places[2], byte_count=c.nbytes)
            differ.set_args(places[2], first, counter)
            cl.enqueue_nd_range_kernel(device.queue, differ, (c.nbytes // 4,), None)
            cl.enqueue_fill_buffer(device.queue, places[2], NAN, 0, c.nbytes)
        cl.enqueue_copy(device.queue, count, counter)
        assert count[0] == 0, f"{shape}: {count[0]} numbers differed in {RUNS} runs"
        host_memory.fetch(device, first, c)
        assert np.all(np.isfinite(c))


@pytest.mark.slow
@ways("code case", "sc", ["normal", "elements 2^+-20", "one 2^100"], of=RACE_WAYS)
def test_two_thousand_runs_give_the_same_bits(device, config, code, case):
    assert_runs_repeat(device, config, code, case)
