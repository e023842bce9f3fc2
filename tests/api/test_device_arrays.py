"""pyopencl Arrays as operands: any layout, offset and queue, right and without waiting."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest
import reference
from helpers import pairwise

import clgemm
from clgemm.dispatch import engines
from clgemm.problem import PRECISIONS
from clgemm.runtime import opencl, registry
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure.verify import random_matrix

OUT_OF_ORDER = 1  # cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE


@pytest.fixture(params=[0, OUT_OF_ORDER], ids=["in order", "out of order"])
def queue(device, request):
    """Give a queue in a context of the test's own."""
    context = cl.Context(device.context.devices)
    yield cl.CommandQueue(context, properties=request.param)
    del context  # Intel's runtime forgets a context that only a queue holds


def upload(queue, x, gap=0):
    """Put `x` on the device, `gap` elements into a buffer and with gaps between its columns."""
    arrays = opencl.arrays()
    if not gap:
        return arrays.to_device(queue, x)
    turned = x.flags.f_contiguous and not x.flags.c_contiguous
    rows = x.T if turned else x
    room = np.full((rows.shape[0] + 1, rows.shape[1] + gap), np.nan, x.dtype)
    room[1:, gap:] = rows
    there = arrays.to_device(queue, room)[1:, gap:]
    return there.T if turned else there


def read(x):
    """Bring a matrix back that has gaps between its columns."""
    x.finish()
    (rows, columns), (_, step) = x.shape, x.strides
    memory = np.empty((columns - 1) * step + rows * x.dtype.itemsize, np.uint8)
    cl.enqueue_copy(x.queue, memory, x.base_data, src_offset=x.offset)
    return np.ndarray(x.shape, x.dtype, memory, strides=x.strides)


def require(device, code):
    if not device.traits.has(PRECISIONS[code]):
        pytest.skip(f"{device.traits.describe()} has no double precision")


@pytest.mark.parametrize("code", "sdcz")
def test_gemm_is_right_for_any_layout(device, queue, code, rng):
    require(device, code)
    precision = PRECISIONS[code]
    m, n, k = 37, 29, 45
    ours = getattr(clgemm, code + "gemm")
    cases = pairwise((0, 1, 2), (0, 1, 2), "FC", (0, 3), (0, 1))
    for case, (trans_a, trans_b, order, gap, overwrite_c) in enumerate(cases):
        a = np.array(
            random_matrix(rng, precision, *((m, k) if not trans_a else (k, m))), order=order
        )
        b = np.array(
            random_matrix(rng, precision, *((k, n) if not trans_b else (n, k))), order=order
        )
        c = np.array(random_matrix(rng, precision, m, n), order=order)
        alpha, beta = ((1.0, 0.0), (-0.5, 0.75), (2.0, 1.0))[case % 3]
        op_a, op_b = ([x, x.T, x.conj().T][t] for x, t in ((a, trans_a), (b, trans_b)))
        want, size = reference.gemm(alpha, op_a, op_b, beta, c)
        there = upload(queue, c)
        got = ours(
            alpha, upload(queue, a, gap), upload(queue, b, gap), beta, there, trans_a, trans_b,
            overwrite_c=overwrite_c,
        )  # fmt: skip
        assert (got is there) == bool(overwrite_c)
        reference.assert_within_bound(got.get(), want, size, k, precision.eps)
        if got is not there:
            np.testing.assert_array_equal(there.get(), c)


def test_gemm_without_c(queue, rng):
    a = random_matrix(rng, PRECISIONS["s"], 70, 60)
    got = clgemm.sgemm(1.5, upload(queue, a), upload(queue, a), trans_b=1)
    assert got.flags.f_contiguous
    np.testing.assert_allclose(got.get(), 1.5 * a @ a.T, rtol=1e-4, atol=1e-4)
    assert np.isnan(
        clgemm.sgemm(1.0, upload(queue, a), upload(queue, a), np.nan, trans_b=1).get()
    ).all()


def test_quick_returns(queue, rng):
    a = upload(queue, random_matrix(rng, PRECISIONS["s"], 5, 4))
    c = random_matrix(rng, PRECISIONS["s"], 5, 5)
    got = clgemm.sgemm(0.0, a, a, 2.0, upload(queue, c), trans_b=1).get()
    np.testing.assert_array_equal(got, 2 * c)
    assert not clgemm.sgemm(0.0, a, a, trans_b=1).get().any()
    none = upload(queue, np.ones((3, 0), np.float32))
    np.testing.assert_array_equal(clgemm.matmul(none, none.T).get(), np.zeros((3, 3)))


@pytest.mark.parametrize(("alpha", "k"), [(0.0, 4), (1.0, 0)])
@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_nothing_to_add_up(queue, alpha, k, beta, elsewhere, rng):
    """Into a c with gaps between its columns, and one of another queue, too."""
    other = cl.CommandQueue(queue.context) if elsewhere else queue
    a, b = (upload(queue, np.full(shape, np.nan, np.float32)) for shape in ((5, k), (k, 6)))
    host = np.asfortranarray(random_matrix(rng, PRECISIONS["s"], 5, 6))
    c = upload(other, np.full_like(host, np.nan) if beta == 0 else host, gap=3)
    assert clgemm.sgemm(alpha, a, b, beta, c, overwrite_c=1) is c
    np.testing.assert_array_equal(read(c), beta * host)
    if not k:
        out = upload(other, np.full_like(host, np.nan), gap=3)
        assert clgemm.matmul(a, b, out=out) is out
        assert not read(out).any()
        stack = upload(queue, np.zeros((3, 5, 0), np.float32))
        vector = upload(queue, np.zeros(0, np.float32))
        assert clgemm.matmul(stack, vector).get().tolist() == np.zeros((3, 5)).tolist()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((30, 20), (20, 10)),
        ((20,), (20, 10)),
        ((30, 20), (20,)),
        ((4, 30, 20), (20, 10)),
        ((4, 30, 20), (4, 20, 10)),
        ((2, 1, 30, 20), (3, 20, 10)),
        ((30, 20), (5, 20, 10)),
    ],
)
def test_matmul(queue, a, b, rng):
    x = rng.uniform(-1, 1, a).astype(np.float32)
    y = rng.uniform(-1, 1, b).astype(np.float32)
    got = clgemm.matmul(upload(queue, x), upload(queue, y))
    want = np.matmul(x, y)
    assert got.shape == want.shape
    assert got.queue == queue
    np.testing.assert_allclose(got.get(), want, rtol=1e-4, atol=1e-5)
    out = opencl.arrays().zeros(queue, want.shape, np.float32)
    assert clgemm.matmul(upload(queue, x), upload(queue, y), out=out) is out
    np.testing.assert_allclose(out.get(), want, rtol=1e-4, atol=1e-5)
    out.fill(0)
    assert clgemm.matmul(upload(queue, x), upload(queue, y), out=(out,)) is out
    np.testing.assert_allclose(out.get(), want, rtol=1e-4, atol=1e-5)


def test_nothing_waits(device, rng):
    """The call returns before its operand is there, and the result follows it."""
    context = cl.Context(device.context.devices)
    queue = cl.CommandQueue(context, properties=OUT_OF_ORDER)
    a = rng.uniform(-1, 1, (50, 50)).astype(np.float32)
    there = upload(queue, a)
    clgemm.matmul(there, there).get()  # built and tuned
    gate = cl.UserEvent(context)
    later = np.asarray(a.T, order="C")
    there.add_event(
        cl.enqueue_copy(queue, there.base_data, later, wait_for=[gate], is_blocking=False)
    )
    results = [clgemm.matmul(there, there) for _ in range(3)]
    complete = cl.command_execution_status.COMPLETE
    try:
        time.sleep(0.1)  # enough for products that do not wait for the copy
        assert all(x.events[-1].command_execution_status != complete for x in results)
    finally:
        gate.set_status(complete)
    for x in results:
        np.testing.assert_allclose(x.get(), later @ later, rtol=1e-4, atol=1e-5)


def test_a_chain_of_products(queue, rng):
    """Each product reads the last one's result; scratch and counters are shared by all."""
    a = np.linalg.qr(rng.normal(size=(40, 40)))[0].astype(np.float32)
    there = x = upload(queue, a)
    for _ in range(1500):
        x = clgemm.matmul(x, there)
    want = np.linalg.matrix_power(a.astype(float), 1501)
    np.testing.assert_allclose(x.get(), want, atol=1e-3)


def test_to_device_and_back(device, rng):
    with registry.using(device):
        a = rng.uniform(-1, 1, (60, 60)).astype(np.float32)
        there = clgemm.to_device(a)
        assert there.context == device.context
        np.testing.assert_array_equal(there.get(), a)
        np.testing.assert_allclose(clgemm.matmul(there, there).get(), a @ a, atol=1e-4)


def test_what_is_on_a_device_already_is_not_copied_element_by_element(device, monkeypatch):
    with registry.using(device):
        there = clgemm.to_device(np.ones((3, 3), np.float32))
        monkeypatch.setattr(type(there), "__getitem__", None)
        with pytest.raises(TypeError, match=r"to_device: x is a pyopencl.array.Array, on a device"):
            clgemm.to_device(there)


def test_python_objects_stay_on_the_host(device):
    with registry.using(device), pytest.raises(TypeError, match=r"to_device: .* dtype object are"):
        clgemm.to_device(np.array([1, None]))


def test_whatever_lies_on_the_host_is_copied(device, rng):
    x = rng.uniform(-1, 1, (6, 8)).astype(np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)
    views = (x[::2, ::3], x[::-1], np.broadcast_to(x[0], (4, 8)), np.broadcast_to(x[:, :1], (6, 5)))
    with registry.using(device):
        for view in (
            *views,
            rows,
            x.T[1:4],
            np.broadcast_to(np.float32(3), (2, 2)),
            x[0, 0],
            [1, 2],
        ):
            np.testing.assert_array_equal(clgemm.to_device(view).get(), view)


def test_mistakes_say_what_to_do(device, queue):
    a = np.ones((4, 4), np.float32)
    there = upload(queue, a)
    with pytest.raises(TypeError, match=r"to_device\(b\)"):
        clgemm.sgemm(1.0, there, a)
    with pytest.raises(TypeError, match=r"c\.get\(\)"):
        clgemm.sgemm(1.0, a, a, 1.0, there)
    with pytest.raises(TypeError, match="float64"):
        clgemm.dgemm(1.0, there, there)
    with pytest.raises(TypeError, match="no keyword"):
        clgemm.matmul(there, there, dtype=np.float32)
    with pytest.raises(TypeError, match="int32"):
        clgemm.matmul(there, there.astype(np.int32))
    with pytest.raises(clgemm.GemmArgumentError, match="match"):
        clgemm.sgemm(1.0, there, there[:3])
    with pytest.raises(ValueError, match="inner dimensions"):
        clgemm.matmul(there, there[:3])
    with pytest.raises(ValueError, match="shares memory"):
        clgemm.matmul(there, there, out=there)
    with pytest.raises(ValueError, match="out is"):
        clgemm.matmul(there, there, out=there[:2])
    with pytest.raises(ValueError, match="copy"):
        clgemm.matmul(there[::2, ::2], there[::2, ::2])
    context = cl.Context(device.context.devices)
    other = upload(cl.CommandQueue(context), a)
    with pytest.raises(ValueError, match="contexts"):
        clgemm.matmul(there, other)
    with pytest.raises(ValueError, match="queue"):
        clgemm.matmul(there.with_queue(None), there.with_queue(None))
    np.testing.assert_array_equal(there.get(), a)


@pytest.mark.usefixtures("in_use")
def test_a_traceback_may_be_shown_with_its_variables():
    """As pytest and other tools show it: layouts in it stand for memory that is not there."""
    x, y = (clgemm.to_device(np.ones(shape, "f")) for shape in ((4, 6), (3, 5)))
    stack = clgemm.to_device(np.ones((2, 7, 8, 6), "f"))[..., ::2]
    calls = (
        lambda: clgemm.matmul(x[:, ::2], y),
        lambda: clgemm.matmul(stack, clgemm.to_device(np.ones((7, 3, 5), "f"))),
        lambda: clgemm.sgemm(1.0, x[:, ::2], y),
        lambda: clgemm.matmul(x, y),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"differ|no BLAS can read") as raised:
            call()
        frames = [entry.frame.f_locals for entry in raised.traceback]
        values = [value for found in frames for value in found.values()]
        values += [part for value in values if isinstance(value, tuple) for part in value]
        layouts = [value for value in values if isinstance(value, np.ndarray)]
        readers = sum(type(value).__repr__ is np.ndarray.__repr__ for value in layouts)
        count = len(layouts)
        assert count > 0
        assert readers == 0
        assert all("layout" in f"{value} {value!r}" for value in layouts)


def test_c_that_shares_memory_is_computed_beside_it(queue, rng):
    a = random_matrix(rng, PRECISIONS["s"], 20, 20)
    there = upload(queue, a)
    got = clgemm.sgemm(1.0, there, there, 1.0, there, overwrite_c=1)
    assert got is not there
    np.testing.assert_allclose(got.get(), a @ a + a, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(there.get(), a)


def test_a_table_of_slices_is_one_decision(device):
    """Offsets are bound at each launch; only how they are aligned is decided on."""
    rng = np.random.default_rng(8)
    host = rng.standard_normal((600, 48)).astype(np.float32)
    with registry.using(device):
        known = engines.of(device).decisions
        table, b = clgemm.to_device(host), clgemm.to_device(host[:48])
        before = len(known)
        for i in range(560):
            got = clgemm.matmul(table[i : i + 5], b)
            if i % 40 == 0:
                np.testing.assert_allclose(got.get(), host[i : i + 5] @ host[:48], atol=1e-4)
        assert len(known) - before <= 1
        odd = clgemm.to_device(np.arange(4000, dtype=np.float32) % 7)
        for i in range(64):  # five ways in which a float's place is aligned, for either operand
            x = odd[i : i + 12 * 48].reshape(12, 48)
            want = (np.arange(i, i + 12 * 48, dtype=np.float32) % 7).reshape(12, 48) @ host[:48]
            np.testing.assert_allclose(clgemm.matmul(x, b).get(), want, atol=1e-3)
        assert len(known) - before <= 6


def test_a_stack_s_offsets_and_its_matrices_add_up(device, rng):
    host = rng.standard_normal((3, 4, 9, 7)).astype(np.float32)
    with registry.using(device):
        memory = clgemm.to_device(np.concatenate([np.zeros(5, np.float32), host.ravel()]))
        x = memory[5:].reshape(host.shape)
        y = clgemm.to_device(np.ascontiguousarray(host.transpose(1, 0, 3, 2)))
        for i in range(3):
            got = clgemm.matmul(x[i], y[:, i])
            np.testing.assert_allclose(got.get(), host[i] @ host[i].swapaxes(1, 2), atol=1e-4)


def test_results_are_taken_from_a_pool(device, rng):
    with registry.using(device):
        x = clgemm.to_device(rng.standard_normal((64, 64)).astype(np.float32))
        pool = clgemm.matmul(x, x).allocator
        assert pool is x.allocator
        held = pool.managed_bytes
        for _ in range(50):
            y = clgemm.matmul(clgemm.matmul(x, x), x)
        y.finish()
        assert pool.managed_bytes <= held + 4 * x.nbytes


def test_an_operand_s_own_allocator_wins(device, rng):
    asked = []

    def allocate(nbytes):
        asked.append(nbytes)
        return cl.Buffer(device.context, cl.mem_flags.READ_WRITE, nbytes)

    x = opencl.arrays().to_device(device.queue, rng.standard_normal((9, 5)), allocator=allocate)
    asked.clear()
    assert clgemm.matmul(x, x.T).allocator is allocate
    assert asked == [9 * 9 * 8]


def test_memory_that_another_queue_still_reads_is_not_used_again(device, rng):
    """What an operand leaves in its queue's pool waits for the product that reads it."""
    host = rng.standard_normal((300, 300)).astype(np.float32)
    other = cl.CommandQueue(device.context)
    with registry.using(device):
        x = clgemm.to_device(host)
        y = opencl.arrays().to_device(other, host)
        for _ in range(30):
            product = clgemm.matmul(x, x)  # on the device's own queue
            read = clgemm.matmul(y, product)  # on the other one
            del product
            filled = clgemm.to_device(np.zeros_like(host))
            np.testing.assert_allclose(read.get(), host @ (host @ host), rtol=1e-2, atol=1e-1)
            assert not filled.get().any()


def test_contexts_that_the_caller_dropped_are_let_go(device, rng):
    host = rng.standard_normal((20, 20)).astype(np.float32)
    gone = []
    for _ in range(4):
        context = cl.Context(device.context.devices)
        queue = cl.CommandQueue(context)
        x = opencl.arrays().to_device(queue, host)
        np.testing.assert_allclose(clgemm.matmul(x, x).get(), host @ host, atol=1e-4)
        gone.append(weakref.ref(context))
        del context, queue, x
        gc.collect()
    assert [ref() for ref in gone[:-1]] == [None] * 3


def test_what_an_idle_queue_keeps_is_given_back(device, rng):
    with registry.using(device):
        x = clgemm.to_device(rng.standard_normal((200, 200)).astype(np.float32))
        y = clgemm.matmul(x, x)
        pool, want = y.allocator, y.get()
        del y
        assert pool.held_blocks
        registry.give_back()  # as the timer does: what was used since it looked last is kept
        assert pool.held_blocks
        registry.give_back()
        assert not pool.held_blocks
        np.testing.assert_array_equal(clgemm.matmul(x, x).get(), want)
