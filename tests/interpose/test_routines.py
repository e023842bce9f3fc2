"""Each function that the device computes beside itself: a stub in front of NumPy's own BLAS."""

from __future__ import annotations

import ctypes
import itertools
import time
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import PATIENCE, pairwise
from layouts import separate

import clgemm
from clgemm.dispatch import engines
from clgemm.dispatch.route import Route
from clgemm.interpose import callbacks, decisions, slots, stub, triangles
from clgemm.interpose.account import Tally
from clgemm.interpose.arguments import Product
from clgemm.interpose.callbacks import Callback, Reasons
from clgemm.interpose.entries import ARGUMENTS, Entry
from clgemm.problem import PRECISIONS, Call
from clgemm.runtime import forks, machine_code, registry
from clgemm.runtime.mappings import Mappings
from clgemm.streaming import direct, runner, stream
from clgemm.streaming.schedule import Blocking, Schedule
from clgemm.tuning.measure.verify import random_matrix

pytestmark = pytest.mark.skipif(
    machine_code.why_not() is not None, reason=str(machine_code.why_not())
)
M, N, K = 41, 23, 67
CHOICES = {"N": 111, "T": 112, "C": 113, "U": 121, "L": 122, "row": 101, "column": 102}
FUNCTIONS = [
    code + routine
    for routine, code in itertools.product(ARGUMENTS, "sdcz")
    if code in "cz" or routine not in {"gemm3m", "herk"}
]


@pytest.fixture(scope="module")
def library():
    """Give the BLAS that NumPy calls, and what its names look like."""
    found, _ = slots.find()
    for slot in found:
        if slot.path.name.startswith("_multiarray_umath") and "cblas_sgemm" in slot.entry.name:
            path = Mappings().at(slot.original, 1).path
            return ctypes.CDLL(path), slot.entry.name.replace("cblas_sgemm", "{}")
    pytest.skip("NumPy calls no BLAS that can be interposed")


class Function:
    """A function of a BLAS, and the same behind a stub."""

    def __init__(self, library, name, form, *, mirrors=False):
        blas, pattern = library
        plain = f"cblas_{name}" if form == "cblas" else f"{name}_"
        self.name = pattern.format(plain)
        self.entry = Entry.of(self.name)
        assert self.entry is not None, self.name
        try:
            self.direct = blas[self.name]
        except AttributeError:
            pytest.skip(f"NumPy's BLAS has no {self.name}")
        self.direct.restype = None
        self.cell, self.tally, self.reasons = stub.cell(), Tally(), Reasons()
        callback = self.callback = Callback(
            self.entry, self.cell, self.tally, self.reasons, lambda: None, calls_alone=True,
            mirrors=mirrors,
        )  # fmt: skip
        forks.keep_for_ever(callback.function)
        original = stub.address_of(self.direct)
        self.cell.fill(original, stub.address_of(callback.function), 1)
        code = stub.code(
            self.cell.address, self.entry.extents, by_value=self.entry.is_cblas,
            wide=self.entry.wide,
        )  # fmt: skip
        (address,) = stub.place([code])
        self.interposed = ctypes.CFUNCTYPE(None)(address)

    def on_device(self):
        return self.tally.row("", "", 0, 0).device_calls

    def arguments(self, given):
        """Give what ctypes passes on, and what has to be kept for that."""
        kept = []
        for name, x in given.items():
            if name == "order" and not self.entry.is_cblas:
                continue
            kept.append(self._one(name, x))
        return kept

    def _one(self, name, x):
        entry = self.entry
        integer = ctypes.c_int64 if entry.wide else ctypes.c_int32
        if isinstance(x, np.ndarray):
            return ctypes.c_void_p(x.ctypes.data)
        if isinstance(x, str):
            letter = ctypes.c_int(CHOICES[x]) if entry.is_cblas else ctypes.c_char(x.encode())
            return letter if entry.is_cblas else ctypes.byref(letter)
        if name in {"alpha", "beta"}:
            is_complex = entry.precision.is_complex and entry.routine != "herk"
            real = ctypes.c_double if entry.precision.is_double else ctypes.c_float
            if entry.is_cblas and not is_complex:
                return real(x)
            number = (real * 2)(np.real(x), np.imag(x)) if is_complex else real(x)
            return ctypes.byref(number)
        return integer(x) if entry.is_cblas else ctypes.byref(integer(x))


def given(rng, function, order, uplo, ta, tb, gap, alpha, beta):
    """Draw a call of a function: arguments by name, in their order."""
    precision, routine = function.entry.precision, function.entry.routine
    names = ARGUMENTS[routine]
    m = M if "m" in names else N
    if function.entry.routine == "herk":
        ta = "C" if ta == "T" else ta
        alpha, beta = np.real(alpha), np.real(beta)
    elif routine == "syrk" and precision.is_complex:
        ta = "T" if ta == "C" else ta

    def laid(rows, columns):
        """Return a matrix with gaps, in the call's order, and its leading dimension."""
        if order == "row":
            memory = np.full((rows, columns + gap), np.nan, precision.dtype)
            memory[:, :columns] = random_matrix(rng, precision, rows, columns)
            return memory, columns + gap
        memory = np.full((columns, rows + gap), np.nan, precision.dtype)
        memory[:, :rows] = random_matrix(rng, precision, columns, rows)
        return memory, rows + gap

    a, lda = laid(*((m, K) if ta == "N" else (K, m)))
    b, ldb = laid(*((K, N) if tb == "N" else (N, K)))
    c, ldc = laid(m, N)
    values = {
        "order": order, "uplo": uplo, "trans_a": ta, "trans_b": tb, "m": m, "n": N, "k": K,
        "alpha": alpha, "a": a, "lda": lda, "b": b, "ldb": ldb, "beta": beta, "c": c, "ldc": ldc,
    }  # fmt: skip
    return {name: values[name] for name in names}


def computed(library, function, form, call):
    """Return C as the BLAS leaves it; gemmt, which crashes in some OpenBLAS, by gemm."""
    found = call["c"].copy()
    if function.entry.routine != "gemmt":
        function.direct(*function.arguments(call | {"c": found}))
        return found
    gemm = Function(library, function.entry.precision.code + "gemm", form)
    values = call | {"m": N, "c": found}
    gemm.direct(*gemm.arguments({name: values[name] for name in ARGUMENTS["gemm"]}))
    rows, columns = np.indices((N, N)) if call["order"] == "row" else np.indices((N, N))[::-1]
    written = rows >= columns if call["uplo"] == "L" else rows <= columns
    found[:, :N] = np.where(written, found[:, :N], call["c"][:, :N])
    return found


@pytest.mark.parametrize(
    ("name", "form", "order", "uplo", "ta", "tb", "gap", "alpha", "beta"),
    pairwise(
        FUNCTIONS, ["cblas", "fortran"], ["row", "column"], "UL", "NTC", "NTC", (0, 3),
        (1.0, -1.5 + 0.5j), (0.0, 1.0, 0.5 - 0.25j),
    ),
)  # fmt: skip
def test_the_device_writes_what_the_blas_writes(
    device, library, rng, monkeypatch, name, form, order, uplo, ta, tb, gap, alpha, beta
):
    """And nothing else: neither the other triangle nor what lies beside C."""
    monkeypatch.setattr(triangles, "PANEL", 8)  # so that there are several
    precision = PRECISIONS[name[0]]
    if not device.traits.has(precision):
        pytest.skip("this device has no double precision")
    function = Function(library, name, form)
    if not precision.is_complex:
        alpha, beta = np.real(alpha), np.real(beta)
    order = order if form == "cblas" else "column"
    call = given(rng, function, order, uplo, ta, tb, gap, alpha, beta)
    want, got = computed(library, function, form, call), call["c"].copy()
    with registry.using(device):
        function.interposed(*function.arguments(call | {"c": got}))
    assert function.on_device() == 1, function.reasons.all()
    assert np.array_equal(np.isnan(got), np.isnan(want))
    untouched = want == call["c"]
    assert np.array_equal(got[untouched], want[untouched])
    assert np.nanmax(np.abs(got - want)) <= 50 * K * precision.eps
    if name.endswith("herk"):
        assert (np.diagonal(got[:N, :N]).imag == 0).all()


@pytest.mark.parametrize("name", ["ssyrk", "cherk", "dgemmt"])
def test_c_is_not_read_if_beta_is_0(device, library, rng, name):
    if not device.traits.has(PRECISIONS[name[0]]):
        pytest.skip("this device has no double precision")
    function = Function(library, name, "fortran")
    call = given(rng, function, "column", "L", "N", "N", 0, 1.0, 0.0)
    call["c"][...] = np.nan
    with registry.using(device):
        function.interposed(*function.arguments(call))
    assert function.on_device() == 1
    assert np.array_equal(np.isnan(call["c"].T), ~np.tri(N, dtype=bool))


@pytest.mark.parametrize("most", [0, 1 << 30])
@pytest.mark.parametrize(("order", "uplo"), list(itertools.product(["row", "column"], "UL")))
@pytest.mark.parametrize("name", ["ssyrk", "cherk", "dgemmt"])
def test_threads_that_copy_write_one_triangle(
    device, library, rng, monkeypatch, name, order, uplo, most
):
    """Where the device has a memory of its own, whatever parts C comes back in."""
    if not device.traits.has(PRECISIONS[name[0]]):
        pytest.skip("this device has no double precision")
    monkeypatch.setattr(direct, "MOST", most)
    monkeypatch.setattr(triangles, "WIDE_PANEL", 8)
    monkeypatch.setattr(triangles, "merge", lambda *_: pytest.fail("it is merged"))
    undivided = runner.plan

    def divided(problem, *arguments, **options):
        half = Blocking(1, -(-problem.m // 2), -(-problem.n // 2), problem.k, is_resident=True)
        return undivided(problem, *arguments, **options) if most else Schedule(problem, half)

    monkeypatch.setattr(runner, "plan", divided)
    for chunk in (100, 1000, 1 << 20):
        monkeypatch.setattr(stream, "SMALL_CHUNK", chunk)
        function = Function(library, name, "cblas")
        call = given(rng, function, order, uplo, "N", "T", 3, 1.0, 0.0)
        want, got = computed(library, function, "cblas", call), call["c"].copy()
        engines.of(separate(device)).forget()
        with registry.using(separate(device)):
            function.interposed(*function.arguments(call | {"c": got}))
        assert function.on_device() == 1, function.reasons.all()
        untouched = (want == call["c"]) | np.isnan(want)
        np.testing.assert_array_equal(got[untouched], call["c"][untouched])
        assert np.nanmax(np.abs(got - want)) <= 50 * K * PRECISIONS[name[0]].eps
        if name == "cherk":
            assert (np.diagonal(got[:N, :N]).imag == 0).all()


def test_a_hermitian_diagonal_that_threads_copy_is_real(device, library, rng, monkeypatch):
    """Whatever a kernel rounds to."""
    write = triangles.Triangle.__call__
    monkeypatch.setattr(triangles.Triangle, "__call__", lambda self, to, x: write(self, to, x + 1j))
    function = Function(library, "cherk", "cblas")
    call = given(rng, function, "column", "L", "N", "N", 0, 1.0, 0.0)
    with registry.using(separate(device)):
        function.interposed(*function.arguments(call))
    assert function.on_device() == 1
    assert (np.diagonal(call["c"]).imag == 0).all()
    assert (call["c"].T[np.tri(N, k=-1, dtype=bool)].imag != 0).any()


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("uplo", "UL")
def test_where_the_caller_mirrors_all_of_c_is_written(
    device, library, rng, monkeypatch, uplo, beta
):
    """As NumPy does, with what it asks syrk for: so nothing is merged."""
    function = Function(library, "ssyrk", "cblas", mirrors=True)
    call = given(rng, function, "row", uplo, "N", "N", 2, 1.0, beta)
    want, got = computed(library, function, "cblas", call), call["c"].copy()
    merge, merged = triangles.merge, []
    monkeypatch.setattr(triangles, "merge", lambda *x: merged.append(merge(*x)))
    with registry.using(device):
        function.interposed(*function.arguments(call | {"c": got}))
    assert function.on_device() == 1
    triangle = np.tri(N, dtype=bool) if uplo == "L" else np.tri(N, dtype=bool).T
    if beta == 0:
        want[:, :N] = np.where(triangle, want[:, :N], want[:, :N].T)
    assert len(merged) == (beta != 0)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.nanmax(np.abs(got - want)) <= 50 * K * PRECISIONS["s"].eps


@pytest.mark.parametrize("alpha", [2.0, 1j])
def test_a_matrix_times_its_conjugate_is_hermitian_for_a_real_alpha_only(
    device, library, rng, alpha
):
    function = Function(library, "cgemmt", "cblas")
    call = given(rng, function, "column", "L", "N", "C", 0, alpha, 0.0)
    call |= {"b": call["a"], "ldb": call["lda"]}
    want, got = computed(library, function, "cblas", call), call["c"].copy()
    with registry.using(device):
        function.interposed(*function.arguments(call | {"c": got}))
    assert function.on_device() == 1
    assert np.nanmax(np.abs(got - want)) <= 50 * K * PRECISIONS["c"].eps


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_imaginary_parts_of_a_hermitian_diagonal_are_not_read(device, library, rng, beta):
    function = Function(library, "cherk", "cblas")
    call = given(rng, function, "row", "L", "N", "N", 0, 1.0, beta)
    np.fill_diagonal(call["c"].imag, np.inf)
    want, got = computed(library, function, "cblas", call), call["c"].copy()
    with registry.using(device):
        function.interposed(*function.arguments(call | {"c": got}))
    assert function.on_device() == 1
    assert (np.diagonal(got).imag == 0).all()
    lower = np.tri(N, dtype=bool)
    assert np.abs(got - want)[lower].max() <= 50 * K * PRECISIONS["c"].eps


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("csyrk", {"trans_a": "C"}), ("cherk", {"trans_a": "T"}), ("ssyrk", {"uplo": "N"}),
     ("ssyrk", {"lda": 3}), ("dgemmt", {"trans_b": "U"}), ("dsyrk", {"alpha": 0.0})],
)  # fmt: skip
def test_what_the_device_does_not_compute_goes_to_the_blas(
    device, library, rng, capfd, name, wrong
):
    function = Function(library, name, "fortran")
    call = given(rng, function, "column", "U", "N", "N", 0, 1.0, 1.0) | wrong
    before = call["c"].copy()
    with registry.using(device):
        function.interposed(*function.arguments(call))
    assert function.tally.row("", "", 0, 0)[4:8] == (0, 0, 0.0, 0.0)
    assert np.array_equal(call["c"], before)
    capfd.readouterr()  # what the BLAS says of it


def test_a_size_that_the_host_computes_again_and_again_is_not_shown(device, library, rng):
    """Until the thresholds are set anew; and never if the device has computed one of it."""
    function, left_after = Function(library, "sgemm", "cblas"), callbacks.LEFT_AFTER
    call = given(rng, function, "row", "L", "N", "N", 0, 1.0, 0.0)

    def times(count, route):
        with registry.using(device), clgemm.settings.using(route=route):
            for _ in range(count):
                function.interposed(*function.arguments(call))
        return function.tally.row("", "", 0, 0).host_calls, function.callback.left()[0]

    assert times(1 + left_after, "host") == (1 + left_after, 0)
    assert times(5, "host") == (1 + left_after, 5)
    assert function.callback.left() == (5, 5 * 2 * M * N * K)
    assert times(1, "device") == (1 + left_after, 6)
    function.callback.set_least(1)
    assert times(1, "device") == (1 + left_after, 6)
    assert function.on_device() == 1
    shown, left = times(3 * left_after, "host")
    assert (shown, left) == (1 + 4 * left_after, 6)
    assert function.callback.left() == (6, 6 * 2 * M * N * K)


def test_what_is_left_stays_so_as_long_as_nothing_it_was_decided_by_changes(device, library, rng):
    function = Function(library, "sgemm", "cblas")
    call = given(rng, function, "row", "L", "N", "N", 0, 1.0, 0.0)

    def times(count):
        with registry.using(device), clgemm.settings.using(route="host"):
            for _ in range(count):
                function.interposed(*function.arguments(call))

    def set_least(least, route):
        with registry.using(device), clgemm.settings.using(route=route):
            function.callback.set_least(least)

    def left():
        before = function.callback.left()[0]
        times(1)
        return function.callback.left()[0] > before

    set_least(1, "host")
    assert not left()
    times(callbacks.LEFT_AFTER)
    for same in (lambda: None, lambda: set_least(1, "host"), lambda: set_least(1, "host")):
        same()
        assert left()

    def decide_anew():
        with registry.using(device):
            engines.of(device).forget()
        set_least(1, "host")

    others = (lambda: set_least(2, "host"), lambda: set_least(2, "auto"), decide_anew)
    for other in others:
        times(1 + callbacks.LEFT_AFTER)
        assert left()
        other()
        assert not left()


class Cell:
    """What a stub would read and count."""

    def __init__(self):
        self.sizes, self.counts = [0] * stub.SIZES, [0] * stub.SIZES

    def leave(self, number, product):
        self.sizes[number] = product

    def left_calls(self, number):
        return self.counts[number]


@pytest.fixture
def calls():
    """Give a cell, and a function that makes calls of a size which the host computes."""
    cell = Cell()
    left = callbacks._Left(cell)

    def make(size, count=1):
        for _ in range(count):
            if size in cell.sizes:
                cell.counts[cell.sizes.index(size)] += 1
            else:
                left.again(SimpleNamespace(m=size, n=1, k=1), 10 * size)

    return SimpleNamespace(cell=cell, left=left, make=make)


def test_a_few_sizes_in_turn_are_left(calls):
    for _ in range(callbacks.LEFT_AFTER):
        for size in range(1, stub.SIZES + 1):
            calls.make(size)
    sizes = list(range(1, stub.SIZES + 1))
    assert calls.cell.sizes == sizes
    for size in sizes:
        calls.make(size, size)
    assert calls.left.sums() == (sum(sizes), 10 * sum(size**2 for size in sizes))


def test_sizes_that_come_again_are_left_again(calls):
    """What was left before keeps its count and its operations."""
    first, others = (list(range(x + 1, x + 1 + stub.SIZES)) for x in (0, stub.SIZES))
    for sizes in (first, others, first):
        for size in sizes:
            calls.make(size, callbacks.LEFT_AFTER + 2)
        assert calls.cell.sizes == sizes
    assert calls.left.sums() == (6 * stub.SIZES, 20 * (2 * sum(first) + sum(others)))


def test_a_size_that_the_device_computes_is_not_left_whatever_else_is(calls):
    calls.left.computed(SimpleNamespace(m=7, n=1, k=1))
    for size in range(100, 102 + callbacks.MOST_COUNTED):
        calls.make(size)
    calls.make(7, 3 * callbacks.LEFT_AFTER)
    calls.make(9, callbacks.LEFT_AFTER)
    assert calls.cell.sizes == [9] + [0] * (stub.SIZES - 1)


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("where", ["computed", "merged"])
def test_the_blas_computes_a_triangle_where_the_device_fails(
    device, library, rng, monkeypatch, where, beta
):
    function = Function(library, "ssyrk", "fortran")
    call = given(rng, function, "column", "U", "N", "N", 2, 1.0, beta)
    want = call["c"].copy()
    function.direct(*function.arguments(call | {"c": want}))
    target = (callbacks.engines.Engine, "run") if where == "computed" else (triangles, "merge")
    if where == "merged" and beta == 0 and not device.traits.unified_memory:
        target = triangles.Triangle, "__call__"
    real = getattr(*target)

    def failing(*arguments):
        real(*arguments)
        raise MemoryError("no more of it")

    monkeypatch.setattr(*target, failing)
    with registry.using(device):
        function.interposed(*function.arguments(call))
    assert any("no more of it" in why for why in function.reasons.all())
    assert np.array_equal(call["c"], want, equal_nan=True)


def test_memory_beside_c_is_used_again_by_one_call_at_a_time():
    c = np.zeros((300, 300), np.float32)
    first, second = triangles.memory(c), triangles.memory(c)
    assert not np.may_share_memory(first, second)
    assert (first.shape, first.dtype, first.flags.f_contiguous) == (c.shape, c.dtype, True)
    triangles.keep(first)
    again = triangles.memory(c[:20, :20].astype(complex))
    assert np.may_share_memory(first, again)
    assert not np.may_share_memory(again, triangles.memory(c))
    triangles.keep(again)
    larger = np.empty((1, triangles.MOST_KEPT + 1), np.uint8)
    triangles.keep(triangles.memory(larger))
    assert triangles.memory(c).base.nbytes == c.nbytes, "too large to be kept"


def test_memory_beside_c_is_given_back_when_no_call_comes(monkeypatch):
    monkeypatch.setattr(triangles._rest, "_seconds", 0.05)
    triangles.keep(triangles.memory(np.empty((50, 50))))
    assert triangles._kept
    until = time.monotonic() + PATIENCE
    while triangles._kept and time.monotonic() < until:
        time.sleep(0.01)
    assert not triangles._kept


def product(part, routine="syrk"):
    """Give a large product of a matrix and itself, or of two."""
    b = 1 if routine != "gemmt" else 2
    conj = routine == "herk"
    return Product(
        1000, 1000, 500, True, conj, False, False, 500, 500, 1000, part, conj, 1.0, 0.0, 1, b, 3
    )


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("part", ["whole", "mirrored", "lower", "upper"])
def test_a_triangle_is_merged_where_no_threads_write_it(device, monkeypatch, part, beta):
    """And that is what a decision counts."""
    x = product(part)._replace(beta=beta)
    counted = []
    monkeypatch.setattr(decisions, "seconds", lambda *given: counted.append(given[2]) or (1.0, 0.5))
    a, c = np.ones((500, 1000), np.float32), np.zeros((1000, 1000), np.float32, order="F")
    for where, by_threads in ((device, not device.traits.unified_memory), (separate(device), True)):
        engine = engines.of(where)
        counted.clear()
        with clgemm.settings.using(route="device"):
            call = Call(1.0, a.T, a, beta, c)
            chosen = decisions.decide(engine, ("a test", part, beta, where), x, call)
        merged = part in ("lower", "upper") and not (by_threads and beta == 0)
        assert triangles.is_merged(chosen.decision, x) == merged
        assert counted == [c.nbytes * merged]


def test_a_triangle_goes_to_the_device_where_that_takes_less_time_with_it():
    """The host's time of a symmetric product is syrk's; it computes half of others, too."""

    def pays(x, host, device, merged=0):
        chosen = Route("device", "", host, device)
        return decisions._pays(x, *decisions.seconds(x, chosen, merged))

    assert pays(product("lower"), 10e-3, 7e-3)
    assert pays(product("whole", "gemm"), 10e-3, 7e-3)
    for routine in ("herk", "gemmt"):
        assert not pays(product("upper", routine), 10e-3, 7e-3)
        assert pays(product("upper", routine), 10e-3, 4e-3)
    assert not pays(product("lower"), 10e-3, 8e-3, merged=16_000_000)  # which takes 1.6 ms
    assert pays(product("lower"), 10e-3, 8e-3)
    assert pays(product("lower"), None, None)  # the device is wanted
    shown = decisions.SHOWN_SECONDS
    assert not pays(product("whole", "gemm"), 1e-3, 1e-3 - 0.9 * shown)
    assert pays(product("whole", "gemm"), 1e-3, 1e-3 - 1.1 * shown)
