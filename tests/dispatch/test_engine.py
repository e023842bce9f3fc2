"""From arrays to arrays: every layout, scalar and size; where it runs; what happens on failure."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import reference
import scipy.linalg.blas
from helpers import gemm, square
from hypothesis import HealthCheck, example, given
from hypothesis import settings as profile
from hypothesis import strategies as st

import clgemm
from clgemm import blas
from clgemm.api import small
from clgemm.dispatch import engine, engines
from clgemm.errors import BuildError, DeviceError
from clgemm.host import blas as host_blas
from clgemm.layouts import expressible
from clgemm.problem import PRECISIONS
from clgemm.runtime import host_memory, registry
from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.runtime.opencl import cl
from clgemm.streaming.runner import StreamingRunner
from clgemm.tuning.measure.verify import random_matrix
from clgemm.tuning.tuner import Parameters

SIZES = (0, 1, 2, 3, 5, 7, 13, 31, 64, 97, 130)
VIEWS = ("F", "C", "padded", "offset", "backwards", "upside down", "steps", "read-only")
REALS = (0.0, 1.0, -1.0, 0.5, -2.75, 1e-3)
COMPLEX = (*REALS, 1j, 0.5 - 2j)
CHECKED = profile(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a device is not changed
)


@pytest.fixture
def device(device):
    """Each device present, in use by public calls."""
    with registry.using(device):
        yield device


def view(rng, precision, rows, columns, how):
    """Make a random matrix that lies in memory as a user's may."""
    memory = random_matrix(rng, precision, 2 * rows + 3, 2 * columns + 2)
    x = {
        "F": lambda: np.array(memory[:rows, :columns], order="F"),
        "C": lambda: np.array(memory[:rows, :columns], order="C"),
        "padded": lambda: memory[:rows, :columns],
        "offset": lambda: np.ascontiguousarray(memory)[1 : rows + 1, 2 : columns + 2],
        "backwards": lambda: memory[:rows, :columns][:, ::-1],
        "upside down": lambda: memory[:rows, :columns][::-1],
        "steps": lambda: memory[: 2 * rows : 2, : 2 * columns : 2],
        "read-only": lambda: np.array(memory[:rows, :columns], order="F"),
    }[how]()
    assert x.shape == (rows, columns)
    x.flags.writeable = how != "read-only"
    return x


@st.composite
def calls(draw):
    code = draw(st.sampled_from("sdcz"))
    is_complex = code in "cz"
    scalars = st.sampled_from(COMPLEX if is_complex else REALS)
    return {
        "code": code,
        "m": draw(st.sampled_from(SIZES)),
        "n": draw(st.sampled_from(SIZES)),
        "k": draw(st.sampled_from(SIZES)),
        "trans_a": draw(st.sampled_from((0, 1, 2))),
        "trans_b": draw(st.sampled_from((0, 1, 2))),
        "alpha": draw(scalars),
        "beta": draw(scalars),
        "how_a": draw(st.sampled_from(VIEWS)),
        "how_b": draw(st.sampled_from(VIEWS)),
        "how_c": draw(st.sampled_from((None, *VIEWS))),
        "overwrite_c": draw(st.sampled_from((0, 1))),
        "seed": draw(st.integers(0, 1000)),
    }


def op(x, trans):
    return (x, x.T, x.conj().T)[trans]


@pytest.mark.usefixtures("device")
@CHECKED
@given(call=calls())
@example(call={"code": "z", "m": 130, "n": 97, "k": 130, "trans_a": 2, "trans_b": 1,
               "alpha": 0.5 - 2j, "beta": 1j, "how_a": "offset", "how_b": "backwards",
               "how_c": "F", "overwrite_c": 1, "seed": 0})  # fmt: skip
def test_any_call_is_within_the_bound(call):
    precision, rng = PRECISIONS[call["code"]], np.random.default_rng(call["seed"])
    m, n, k, alpha, beta = (call[name] for name in ("m", "n", "k", "alpha", "beta"))
    trans_a, trans_b = call["trans_a"], call["trans_b"]
    a = view(rng, precision, *((k, m) if trans_a else (m, k)), call["how_a"])
    b = view(rng, precision, *((n, k) if trans_b else (k, n)), call["how_b"])
    c = None if call["how_c"] is None else view(rng, precision, m, n, call["how_c"])
    if c is not None and beta == 0 and c.flags.writeable:
        c[...] = np.nan
    if alpha == 0:
        for x in (a, b):
            if x.flags.writeable:
                x[...] = np.nan
    before = [None if x is None else x.copy() for x in (a, b, c)]
    added = np.zeros((m, n), precision.dtype) if c is None else before[2]
    if alpha == 0:
        want = reference.wide(beta * added if beta != 0 else np.zeros((m, n), precision.dtype))
        size = np.abs(want)
    else:
        want, size = reference.gemm(alpha, op(a, trans_a), op(b, trans_b), beta, added)
    more = {name: call[name] for name in ("beta", "trans_a", "trans_b", "overwrite_c")}
    got = getattr(blas, precision.code + "gemm")(alpha, a, b, c=c, **more)
    assert got.shape == (m, n)
    assert got.dtype == precision.dtype
    reference.assert_within_bound(got, want, size, k, precision.eps)
    for x, old in zip((a, b), before, strict=False):
        np.testing.assert_array_equal(x, old)
    if got is not c and c is not None:
        np.testing.assert_array_equal(c, before[2])
        assert not np.shares_memory(got, c)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("code", "sdcz")
@pytest.mark.parametrize("conj_b", [False, True])
@pytest.mark.parametrize("conj_a", [False, True])
def test_conjugation_without_transposition(code, conj_a, conj_b, rng):
    """What BLAS has no letter for, but a row-major C makes of C."""
    precision = PRECISIONS[code]
    for turned in (False, True):
        a, b = (random_matrix(rng, precision, *shape) for shape in ((37, 20), (20, 41)))
        c = np.full((41, 37), np.nan, precision.dtype).T if turned else np.empty_like(a @ b)
        gemm(1.5, a, b, 0.0, c, conj_a=conj_a, conj_b=conj_b)
        left, right = (x.conj() if conj else x for x, conj in ((a, conj_a), (b, conj_b)))
        want, size = reference.gemm(1.5, left, right, 0.0, c)
        reference.assert_within_bound(c, want, size, 20, precision.eps)


C_LAYOUTS = {
    "F": lambda x: x[:30, :20],
    "C": lambda x: x.T[:30, :20],
    "every other column": lambda x: x[:30, :40:2],
    "two steps": lambda x: x[:60:2, :40:2],
    "upside down": lambda x: x[:30, :20][::-1],
    "backwards, row-major": lambda x: x.T[:30, 19::-1],
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("how", C_LAYOUTS)
def test_c_is_written_where_it_lies_and_nowhere_else(how, beta, rng):
    precision = PRECISIONS["s"]
    memory = random_matrix(rng, precision, 70, 70)
    c = C_LAYOUTS[how](memory)
    assert np.shares_memory(c, memory)
    if beta == 0:
        c[...] = np.nan
    before = memory.copy(order="F")
    a, b = random_matrix(rng, precision, 30, 17), random_matrix(rng, precision, 17, 20)
    want, size = reference.gemm(2.0, a, b, beta, c)
    gemm(2.0, a, b, beta, c)
    reference.assert_within_bound(c, want, size, 17, precision.eps)
    for x in (memory, before):
        C_LAYOUTS[how](x)[...] = 0
    np.testing.assert_array_equal(memory, before)


@pytest.mark.usefixtures("device")
def test_alpha_zero_reads_neither_a_nor_b():
    nan = np.full((5, 5), np.nan)
    c = np.arange(25.0).reshape(5, 5)
    gemm(0.0, nan, nan, 1.0, c)
    np.testing.assert_array_equal(c, np.arange(25.0).reshape(5, 5))
    gemm(0.0, nan, nan, -2.0, c)
    np.testing.assert_array_equal(c, -2 * np.arange(25.0).reshape(5, 5))
    c[0, 0] = np.nan
    gemm(0.0, nan, nan, 0.0, c)
    np.testing.assert_array_equal(c, np.zeros((5, 5)))


@pytest.mark.usefixtures("device")
def test_beta_zero_does_not_read_c(rng):
    a = random_matrix(rng, PRECISIONS["z"], 70, 70)
    c = np.full((70, 70), complex(np.nan, np.inf), order="F")
    gemm(1.0, a, a, 0.0, c)
    np.testing.assert_allclose(c, a @ a)


@pytest.mark.usefixtures("device")
def test_infinities_and_nans_go_where_they_belong():
    a, b = np.ones((70, 70), np.float32), np.ones((70, 70), np.float32)
    a[3, 5], a[4, 6] = np.inf, np.nan
    c = blas.sgemm(1.0, a, b)
    assert np.all(np.isposinf(c[3]))
    assert np.all(np.isnan(c[4]))
    assert np.all(np.delete(c, [3, 4], axis=0) == 70)


STACKS = {
    "plain": lambda x: x,
    "column-major": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "one matrix repeated": lambda x: np.broadcast_to(x[1], x.shape),
    "one repeated without layout": lambda x: np.broadcast_to(
        np.repeat(np.repeat(x[1], 2, 0), 2, 1)[::2, ::2], x.shape
    ),
    "backwards": lambda x: x[::-1],
    "interleaved": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "every other": lambda x: np.repeat(x, 2, 0)[::2],
    "no layout": lambda x: np.repeat(np.repeat(x, 2, 1), 2, 2)[:, ::2, ::2],
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("how_b", STACKS)
@pytest.mark.parametrize("how_a", STACKS)
def test_stacks(how_a, how_b, rng):
    a = STACKS[how_a](rng.uniform(-1, 1, (3, 34, 11)))
    b = STACKS[how_b](rng.uniform(-1, 1, (3, 11, 19)))
    for c in (
        np.empty((3, 34, 19)),
        np.empty((3, 19, 34)).swapaxes(1, 2),
        np.empty((3, 34, 19))[::-1],
    ):
        for beta in (0.0, 0.5):
            c[...] = np.nan if beta == 0 else rng.uniform(-1, 1, c.shape)
            want, size = reference.gemm(1.0, a, b, beta, c)
            gemm(1.0, a, b, beta, c)
            reference.assert_within_bound(c, want, size, 11, PRECISIONS["d"].eps)


def test_a_repeated_matrix_without_layout_is_copied_once():
    """A stack of a thousand views of one matrix must not become a thousand matrices."""
    x = np.broadcast_to(np.ones((20, 20))[::2, ::2], (1000, 10, 10))
    fitting = expressible(x)
    assert fitting.strides[0] == 0
    assert fitting.base.nbytes <= 800
    np.testing.assert_array_equal(fitting, x)


@pytest.mark.parametrize("flags", [(0, 0), (1, 0), (0, 2), (2, 1)])
@pytest.mark.parametrize("code", "sdcz")
def test_host_route_is_scipy_bit_by_bit(code, flags, rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    monkeypatch.setattr(registry, "current", None)  # no device is asked for
    precision = PRECISIONS[code]
    a, b, c = (random_matrix(rng, precision, 93, 93) for _ in "abc")
    for beta in (0.0, 1.5):
        arguments = {"beta": beta, "c": c, "trans_a": flags[0], "trans_b": flags[1]}
        ours = getattr(blas, code + "gemm")(0.5, a, b, **arguments)
        theirs = getattr(scipy.linalg.blas, code + "gemm")(0.5, a, b, **arguments)
        assert ours.tobytes("F") == theirs.tobytes("F")


@pytest.mark.parametrize("code", "sz")
def test_host_takes_any_layout_too(code, rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    precision = PRECISIONS[code]
    for how_a, how_b, conj in [("offset", "steps", False), ("backwards", "C", True)]:
        a = view(rng, precision, 12, 9, how_a)
        b = view(rng, precision, 9, 14, how_b)
        for c in (
            np.empty((12, 14), precision.dtype),
            random_matrix(rng, precision, 25, 30)[::2, ::2][:12, :14],
        ):
            c[...] = 1
            want, size = reference.gemm(1.0, a.conj() if conj else a, b, 2.0, c)
            gemm(1.0, a, b, 2.0, c, conj_a=conj)
            reference.assert_within_bound(c, want, size, 9, precision.eps)
    a, b, c = (
        rng.uniform(-1, 1, s).astype(precision.dtype) for s in ((3, 4, 5), (3, 5, 6), (3, 4, 6))
    )
    want, size = reference.gemm(1.0, a, b, -1.0, c)
    gemm(1.0, a, b, -1.0, c)
    reference.assert_within_bound(c, want, size, 5, precision.eps)


def like(device, **facts):
    """Open a device on the same device with other facts."""
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    return registry.Device(found._replace(traits=replace(found.traits, **facts)), "a test")


@pytest.fixture
def host_calls(monkeypatch):
    """Record the shapes of C that the host computes."""
    computed = []
    real = host_blas.gemm

    def spy(call):
        computed.append(call.c.shape)
        real(call)

    monkeypatch.setattr(host_blas, "gemm", spy)
    return computed


def test_operands_that_the_device_cannot_allocate_are_copied(device, host_calls, rng):
    """The span in memory counts, not the number of elements."""
    a = random_matrix(rng, PRECISIONS["s"], 40000, 8)[:4]
    b = random_matrix(rng, PRECISIONS["s"], 8, 5)
    if not device.traits.unified_memory:
        pytest.skip(f"{device.traits.describe()} gets copies without gaps")
    small = like(device, max_allocation=1 << 20, system_svm=False)
    with registry.using(small):
        near = blas.sgemm(1.0, np.array(a), b)
        assert small.memory.peak == 0
        far = blas.sgemm(1.0, a, b)
        assert small.memory.peak > 0
    assert host_calls == []
    np.testing.assert_allclose(near, far, rtol=1e-5)


@pytest.mark.usefixtures("device")
def test_small_problems_are_computed_by_the_host(host_calls, rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    monkeypatch.setattr(small, "gemm", lambda *_: None)
    a = random_matrix(rng, PRECISIONS["d"], 100, 100)
    blas.dgemm(1.0, a[:10], a[:, :10])
    assert host_calls == [(10, 10)]
    large = random_matrix(rng, PRECISIONS["d"], 1000, 1000)
    blas.dgemm(1.0, large, large)
    assert host_calls == [(10, 10)]


@pytest.mark.parametrize("how", ["F", "C", "padded", "offset", "read-only"])
@pytest.mark.parametrize("code", "sz")
def test_what_blas_can_express_is_not_copied(device, code, how, rng, monkeypatch):
    if not device.traits.unified_memory:
        pytest.skip(f"{device.traits.describe()} has a memory of its own")
    seen = []
    real = host_memory.share

    def share(device, x):
        seen.append(x)
        return real(device, x)

    monkeypatch.setattr(host_memory, "share", share)
    precision = PRECISIONS[code]
    a, b = (view(rng, precision, 66, 66, how) for _ in "ab")
    c = np.zeros((66, 66), precision.dtype, order="F")
    got = getattr(blas, code + "gemm")(1.0, a, b, 1.0, c, trans_a=2, overwrite_c=1)
    assert got is c
    for x, user in zip(seen, (a, b, c), strict=True):
        assert x.__array_interface__["data"][0] == user.__array_interface__["data"][0]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("how", ["backwards", "steps"])
def test_what_blas_cannot_express_is_copied_once(how, rng, monkeypatch):
    precision = PRECISIONS["s"]
    a = view(rng, precision, 20, 20, how)
    copies, real = [], np.array

    def array(x, *arguments, **more):
        copies.append(x)
        return real(x, *arguments, **more)

    c = np.zeros((20, 20), precision.dtype, order="F")
    b = np.eye(20, dtype=precision.dtype)
    want = real(a)
    monkeypatch.setattr(engine.np, "array", array)
    gemm(1.0, a, b, 0.0, c)
    monkeypatch.undo()
    assert len(copies) == 1
    np.testing.assert_array_equal(c, want)


def too_large(device):
    memory = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 2**62)
    # Some drivers allocate when the memory is first used.
    cl.enqueue_fill_buffer(device.queue, memory, np.zeros(1, np.float32), 0, 64)
    device.queue.finish()


def out_of_bounds(device):
    memory = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 16)
    cl.enqueue_copy(device.queue, memory, np.zeros(64), dst_offset=8)


@pytest.mark.parametrize(
    ("fault", "raised", "words"),
    [(too_large, MemoryError, "no memory"), (out_of_bounds, DeviceError, "INVALID_VALUE")],
)
def test_a_failed_call_is_explained_and_changes_nothing(
    device, fault, raised, words, rng, monkeypatch
):
    a = random_matrix(rng, PRECISIONS["s"], 80, 80)
    c = a.copy("F")
    monkeypatch.setattr(KernelRunner, "run", lambda _self, _call, _stop=None: fault(device))
    monkeypatch.setattr(StreamingRunner, "run", lambda _self, _call, _stop=None: fault(device))
    with pytest.raises(raised, match=words) as caught:
        blas.sgemm(1.0, a, a, 1.0, c, overwrite_c=1)
    text = str(caught.value)
    assert "sgemm" in text
    assert device.traits.name in text
    assert "CLGEMM_ROUTE=host" in text
    assert isinstance(caught.value.__cause__, cl.Error)
    np.testing.assert_array_equal(c, a)
    monkeypatch.undo()
    blas.sgemm(1.0, a, a, 1.0, c, overwrite_c=1)
    np.testing.assert_allclose(c, a @ a + a, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("device")
def test_a_result_that_does_not_fit_is_a_memory_error():
    tall = np.broadcast_to(np.float32(1), (2**25, 1))
    with pytest.raises(MemoryError):
        blas.sgemm(1.0, tall, tall, trans_b=1)


@pytest.mark.usefixtures("device")
def test_plans_are_reused(rng, monkeypatch):
    a, b = (random_matrix(rng, PRECISIONS["s"], 70, 71) for _ in "ab")
    blas.sgemm(1.0, a, b, trans_b=1)
    monkeypatch.setattr(Parameters, "config_for", None)
    blas.sgemm(2.0, a + 1, b, trans_b=1)
    for x, y in ((a[:69], b), (a, a)):  # another shape; A and B in the same memory
        with pytest.raises(TypeError):
            blas.sgemm(1.0, x, y, trans_b=1)


def test_plans_do_not_accumulate_without_end(device, monkeypatch):
    monkeypatch.setattr(engine, "MOST_DECISIONS", 4)
    fresh = like(device)
    with registry.using(fresh):
        for n in range(1, 12):
            assert clgemm.dgemm(1.0, np.ones((n, 3)), np.ones((3, n)))[-1, -1] == 3
            assert len(engines.of(fresh).decisions) <= 4


@pytest.mark.usefixtures("device")
def test_matmul_runs_on_the_device_too(host_calls, rng):
    a = rng.uniform(-1, 1, (4, 40, 30)).astype(np.float32)
    got = clgemm.matmul(a, a.swapaxes(1, 2))
    np.testing.assert_allclose(got, a @ a.swapaxes(1, 2), rtol=1e-4, atol=1e-5)
    assert host_calls == []


@pytest.mark.parametrize("beside_another", [False, True])
def test_operands_are_not_kept_alive(device, monkeypatch, beside_another):
    """A plan is kept for the next call; the memory of the last one is not.

    Beside another call a thread waits for the kernels: it holds the operands until they end, and
    may itself end long after.
    """

    def run_and_linger(thread):
        thread._target(*thread._args, **thread._kwargs)
        time.sleep(0.02)

    monkeypatch.setattr(threading.Thread, "run", run_and_linger)
    if beside_another:
        device.running.append(None)
    try:
        a, b = np.ones((80, 81), np.float32, "F"), np.ones((81, 82), np.float32, "F")
        c = np.zeros((80, 82), np.float32, "F")
        gone = [weakref.ref(x) for x in (a, b, c)]
        blas.sgemm(1.0, a, b, 1.0, c, overwrite_c=1)
        assert engines.of(device).decisions
        del a, b, c
        assert [ref() is None for ref in gone] == [True] * 3
    finally:
        if beside_another:
            device.running.pop()


def test_a_family_that_the_driver_refuses_is_replaced(device, monkeypatch, caplog, rng):
    """One log line, then the next family; nothing is tried twice."""
    fresh = like(device)
    first = engines.of(fresh).parameters.config_for(square(300)).family
    real, refused = fresh.programs.kernel, []

    def kernel(spec):
        if spec.name.startswith(first):
            refused.append(spec.name)
            raise BuildError("ptxas refuses this")
        return real(spec)

    monkeypatch.setattr(fresh.programs, "kernel", kernel)
    a = random_matrix(rng, PRECISIONS["s"], 300, 300)
    with registry.using(fresh), caplog.at_level("WARNING", logger="clgemm"):
        got = blas.sgemm(1.0, a, a)
        blas.sgemm(1.0, a[:200], a)
    np.testing.assert_allclose(got, a @ a, atol=1e-3)
    assert len(refused) == 1
    assert [r.levelname for r in caplog.records if first in r.getMessage()] == ["WARNING"]
    assert "ptxas refuses this" in caplog.text


def test_the_last_family_does_not_hide_its_error(device, monkeypatch):
    fresh = like(device)

    def kernel(_spec):
        raise BuildError("no compiler here")

    monkeypatch.setattr(fresh.programs, "kernel", kernel)
    with registry.using(fresh), pytest.raises(BuildError, match="no compiler here"):
        blas.sgemm(1.0, np.ones((99, 99)), np.ones((99, 99)))


def test_a_known_kind_of_call_still_looks_at_alignment(device, rng, monkeypatch):
    """NumPy aligns complex numbers like their parts; kernels load both at once."""
    if not device.traits.unified_memory:
        pytest.skip(f"{device.traits.describe()} gets copies, which are aligned")
    memory = np.zeros(2 * 50 * 50 + 1, np.float32)
    even, odd = (memory[i:][:5000].view(np.complex64).reshape(50, 50).T for i in (0, 1))
    real, seen = host_memory.share, []

    def share(device, x):
        seen.append(x.__array_interface__["data"][0] % x.itemsize)
        return real(device, x)

    monkeypatch.setattr(host_memory, "share", share)
    for a in (even, odd, even):
        a[...] = random_matrix(rng, PRECISIONS["c"], 50, 50)
        assert a.flags.aligned
        np.testing.assert_allclose(blas.cgemm(1.0, a, a), a @ a, rtol=1e-4, atol=1e-4)
    assert len(seen) == 9
    assert not any(seen)
