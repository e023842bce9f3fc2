"""The same Arrays multiplied again are launched at once, to the same bits, if nothing changed."""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers import run_python

import clgemm
from clgemm.api import device_arrays, repeated_arrays
from clgemm.dispatch import engines
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import TICKETS
from clgemm.problem import PRECISIONS, Gemm
from clgemm.runtime import ending, host_memory, opencl, registry
from clgemm.runtime.events import InOrder
from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.runtime.opencl import cl
from clgemm.runtime.queues import LaunchState
from clgemm.tuning.measure.verify import random_matrix

M, N, K = 37, 23, 51
ENOUGH = 2  # calls after which one is known


@pytest.fixture
def queue(device):
    """Give a queue in a context of the test's own, and no calls from before."""
    repeated_arrays._repeats.clear()
    repeated_arrays._seen.clear()
    context = cl.Context(device.context.devices)
    yield cl.CommandQueue(context)
    del context  # Intel's runtime forgets a context that only a queue holds


@pytest.fixture
def hosts(rng):
    return rng.uniform(-1, 1, (M, K)).astype(np.float32), rng.uniform(-1, 1, (K, N)).astype("f4")


@pytest.fixture
def operands(queue, hosts):
    return tuple(opencl.arrays().to_device(queue, x) for x in hosts)


@pytest.fixture
def shortly(monkeypatch):
    """Refuse the long way from the call on."""

    def refuse(*_: object) -> None:
        raise AssertionError("the long way")

    return lambda: monkeypatch.setattr(device_arrays, "_matmul", refuse)


def empty(queue, dtype=np.float32):
    return opencl.arrays().empty(queue, (M, N), dtype).fill(np.nan)


def close(got, a, b):
    np.testing.assert_allclose(got.get(), a @ b, rtol=0, atol=1e-4)


@pytest.mark.parametrize("code", "sdcz")
def test_later_products_are_the_first_one_bit_by_bit(device, queue, code, rng, shortly):
    device.require(PRECISIONS[code])
    a, b = (random_matrix(rng, PRECISIONS[code], *shape) for shape in ((M, K), (K, N)))
    x, y = (opencl.arrays().to_device(queue, host) for host in (a, b))
    out = empty(queue, a.dtype)
    calls = {
        "new": lambda: clgemm.matmul(x, y),
        "out": lambda: clgemm.matmul(x, y, out=out),
        "transposed": lambda: clgemm.matmul(y.T, x.T),
        "one of a tuple": lambda: clgemm.matmul(x, y, out=(out,)),
    }
    first = {name: call().get() for name, call in calls.items()}
    for call in calls.values():
        call()
    del calls["transposed"], calls["one of a tuple"]  # each time views, or a tuple, of their own
    shortly()
    cl.enqueue_fill_buffer(queue, out.base_data, np.float32(np.nan), 0, out.nbytes)
    for name, call in calls.items():
        again = call()
        assert (again is out) == (name == "out")
        assert again.get().tobytes() == first[name].tobytes(), name


@pytest.mark.parametrize("code", "sdcz")
def test_later_gemms_are_the_first_one_bit_by_bit(device, queue, code, rng, monkeypatch):
    device.require(PRECISIONS[code])
    a, b, c = (random_matrix(rng, PRECISIONS[code], *s) for s in ((K, M), (N, K), (M, N)))
    gemm = getattr(clgemm, f"{code}gemm")
    x, y, z = (opencl.arrays().to_device(queue, np.asfortranarray(host)) for host in (a, b, c))
    first = z.get().copy(), gemm(2.0, x, y, trans_a=1, trans_b=2).get()
    added = gemm(2.0, x, y, 0.5, z, 1, 2, 1).get()
    for _ in range(ENOUGH):
        gemm(2.0, x, y, trans_a=1, trans_b=2)
        gemm(2.0, x, y, 0.5, z, 1, 2, 1)
    monkeypatch.setattr(device_arrays, "gemm", None)
    memory = np.asfortranarray(first[0])
    cl.enqueue_copy(queue, z.base_data, memory)
    assert gemm(2.0, x, y, 0.5, z, 1, 2, 1) is z
    assert gemm(2, x, y, 0.0, None, 1, 2).get().tobytes() == first[1].tobytes()
    assert z.get().tobytes() == added.tobytes()


@pytest.mark.parametrize(
    "changed",
    [{"alpha": 3.0}, {"alpha": 2.0 + 0j}, {"beta": 0.25}, {"trans_b": 0}, {"overwrite_c": 0},
     {"alpha": 0.0}, {"beta": 0.0}],
    ids=str,
)  # fmt: skip
def test_gemms_with_other_arguments_are_other_calls(queue, rng, changed):
    a, b, c = (random_matrix(rng, PRECISIONS["c"], 9, 9) for _ in range(3))
    x, y, z = (opencl.arrays().to_device(queue, np.asfortranarray(host)) for host in (a, b, c))
    usual = {"alpha": 2.0, "beta": 0.5, "trans_a": 0, "trans_b": 1, "overwrite_c": 1}
    for _ in range(ENOUGH + 1):
        z.set(np.asfortranarray(c))
        clgemm.cgemm(a=x, b=y, c=z, **usual)
    for _ in range(ENOUGH + 1):
        z.set(np.asfortranarray(c))
        given = usual | changed
        got = clgemm.cgemm(a=x, b=y, c=z, **given)
        op_b = b.T if given["trans_b"] else b
        want = given["alpha"] * (a @ op_b) + given["beta"] * c
        np.testing.assert_allclose(got.get(), want, rtol=0, atol=1e-4)
        assert (got is z) == (given["overwrite_c"] == 1)


@pytest.mark.parametrize("beside", ["nothing", "c"])
def test_flags_are_looked_at_in_every_call(queue, operands, beside):
    x, y = operands
    c = None if beside == "nothing" else opencl.arrays().zeros(queue, (M, N), np.float32)
    for _ in range(ENOUGH + 1):
        clgemm.sgemm(1.0, x, y, 0.0, c, overwrite_c=1)
    with pytest.raises(TypeError, match="overwrite_c"):
        clgemm.sgemm(1.0, x, y, 0.0, c, overwrite_c="1")
    with pytest.raises(OverflowError, match="overwrite_c"):
        clgemm.sgemm(1.0, x, y, 0.0, c, overwrite_c=2**40)
    assert clgemm.sgemm(1.0, x, y, 0.0, c, overwrite_c=0) is not c


def test_a_c_left_out_is_zeros_whatever_beta_is(queue, rng):
    a = random_matrix(rng, PRECISIONS["s"], 5, 5)
    x = opencl.arrays().to_device(queue, a)
    repeated_arrays._repeats.clear()
    for beta in (np.inf, np.inf, np.inf, np.nan, np.nan, np.nan):
        assert np.all(np.isnan(clgemm.sgemm(1.0, x, x, beta).get()))
        assert not repeated_arrays._repeats
    for _ in range(ENOUGH + 1):
        assert np.all(np.isfinite(clgemm.sgemm(1.0, x, x, 0.5).get()))
    assert repeated_arrays._repeats


def test_results_are_new_ones(operands, hosts):
    results = [clgemm.matmul(*operands) for _ in range(ENOUGH + 2)]
    assert len({x.base_data.int_ptr for x in results}) == len(results)
    for x in results:
        close(x, *hosts)


def test_what_somebody_looked_at_has_a_short_way_still(queue, operands, hosts, shortly):
    x, y = operands
    x = clgemm.matmul(x, opencl.arrays().to_device(queue, np.eye(K, dtype=np.float32)))
    for _ in range(ENOUGH):
        clgemm.matmul(x, y)
    x.get()
    clgemm.matmul(x, y)
    shortly()
    close(clgemm.matmul(x, y), *hosts)


def test_values_that_changed_are_multiplied(queue, operands, hosts):
    x, y = operands
    a, b = hosts
    out = empty(queue)
    for i in range(6):
        x += 1.0  # an event that the product has to follow
        a = a + np.float32(1)
        close(clgemm.matmul(x, y, out=out), a, b)
        close(clgemm.matmul(x, y), a, b)
        if i % 2:
            out.fill(np.nan)


def test_two_products_in_turn(queue, operands, hosts, shortly):
    """Results and operands take turns, as in an iteration."""
    x, y = operands
    transposed = y.T
    there, back = empty(queue), opencl.arrays().empty(queue, (M, K), np.float32)
    for i in range(5):
        if i == ENOUGH:
            shortly()
        clgemm.matmul(x, y, out=there)
        clgemm.matmul(there, transposed, out=back)
    a, b = hosts
    close(back, a @ b, b.T)


def test_the_first_array_that_goes_ends_a_repeat(queue, hosts):
    x, y = (opencl.arrays().to_device(queue, host) for host in hosts)
    out = empty(queue)
    for _ in range(ENOUGH):
        clgemm.matmul(x, y, out=out)
        clgemm.matmul(x, y)
    assert len(repeated_arrays._repeats) == 2
    memory = weakref.ref(out)
    del out
    gc.collect()
    assert memory() is None
    assert len(repeated_arrays._repeats) == 1
    del y
    gc.collect()
    assert not repeated_arrays._repeats


def test_results_that_go_are_no_repeats(queue, operands, monkeypatch):
    """Others take their place in memory, and their identity."""
    x, y = operands
    z = opencl.arrays().to_device(queue, np.ones((N, 2), np.float32))
    kept, remember = [], repeated_arrays.remember

    def seen(key, *arguments):
        kept.append(key[0])
        remember(key, *arguments)

    monkeypatch.setattr(repeated_arrays, "remember", seen)
    for _ in range(8):
        clgemm.matmul(clgemm.matmul(x, y), z)
    assert kept == [id(x)]
    assert [key[0] for key in repeated_arrays._repeats] == [id(x)]


def test_results_say_what_they_were_computed_in_the_order_of(queue, operands):
    """Another queue that reads them has to wait."""
    for _ in range(ENOUGH):
        clgemm.matmul(*operands)
    result = repeated_arrays.matmul(*operands, None)
    assert type(result.events) is InOrder
    assert result.events.queue.int_ptr == queue.int_ptr


@pytest.mark.parametrize("place", ["a", "b", "out"])
@pytest.mark.parametrize("kind", ["an event", "another queue"])
def test_what_others_compute_is_waited_for(queue, operands, place, kind):
    x, y = operands
    out = empty(queue)
    for _ in range(ENOUGH):
        clgemm.matmul(x, y, out=out)
    assert repeated_arrays.matmul(x, y, out) is out
    array = {"a": x, "b": y, "out": out}[place]
    queue.finish()
    event = cl.UserEvent(queue.context)
    array.events = [event] if kind == "an event" else InOrder(cl.CommandQueue(queue.context))
    found = repeated_arrays.matmul(x, y, out)
    event.set_status(cl.command_execution_status.COMPLETE)
    assert found is None


def test_queues_that_are_not_known_any_more_are_looked_at_anew(operands, monkeypatch):
    for _ in range(ENOUGH):
        clgemm.matmul(*operands)
    assert repeated_arrays.matmul(*operands, None) is not None
    monkeypatch.setattr(registry, "states", {})
    assert repeated_arrays.matmul(*operands, None) is None


@pytest.mark.parametrize("name", ["base_data", "offset", "shape", "strides", "queue"])
def test_an_array_that_changed_is_looked_at_anew(queue, operands, hosts, name):
    (x, y), (a, b) = operands, hosts
    both = np.concatenate((a, 2 * a))
    room = opencl.arrays().to_device(queue, both)
    x = room[:M]
    other = cl.CommandQueue(queue.context)
    half = room[M:]
    changed = {
        "base_data": (opencl.arrays().to_device(queue, 3 * a).base_data, 3 * a),
        "offset": (half.offset, 2 * a),
        "shape": ((M - 2, K), a[:-2]),
        "strides": ((4, 4 * M), both.ravel()[: M * K].reshape(K, M).T),
        "queue": (other, a),
    }
    value, want = changed[name]
    for _ in range(ENOUGH):
        clgemm.matmul(x, y)
    close(repeated_arrays.matmul(x, y, None), a, b)
    x.finish()
    setattr(x, name, value)
    got = clgemm.matmul(x, y)
    assert got.queue is (other if name == "queue" else queue)
    close(got, want, b)


def test_modes_and_what_was_forgotten_count(operands, hosts, monkeypatch):
    ways = []
    monkeypatch.setattr(
        device_arrays, "_matmul", lambda *arrays: ways.append("long") or long_way(*arrays)
    )
    for _ in range(ENOUGH + 1):
        clgemm.matmul(*operands)
    assert len(ways) == ENOUGH
    monkeypatch.setenv("CLGEMM_FP32", "fma")
    close(clgemm.matmul(*operands), *hosts)
    assert len(ways) == ENOUGH + 1
    clgemm.matmul(*operands)
    assert len(ways) == ENOUGH + 1
    engine, _ = engines.of_queue(operands[0].queue)
    engine.forget()
    close(clgemm.matmul(*operands), *hosts)
    assert len(ways) == ENOUGH + 2


long_way = device_arrays._matmul


def test_out_that_shares_memory_is_refused_each_time(queue):
    room = opencl.arrays().to_device(queue, np.zeros((3 * K, K), np.float32))
    x, y, out = room[:K], room[K : 2 * K], room[1 : K + 1]
    for _ in range(ENOUGH + 1):
        with pytest.raises(ValueError, match="shares memory"):
            clgemm.matmul(x, y, out=out)


@pytest.mark.parametrize("properties", [1, 2], ids=["out of order", "timed"])
def test_queues_whose_launches_make_events_have_no_repeats(device, hosts, properties):
    repeated_arrays._repeats.clear()
    queue = cl.CommandQueue(device.context, properties=properties)
    x, y = (opencl.arrays().to_device(queue, host) for host in hosts)
    for _ in range(ENOUGH + 2):
        close(clgemm.matmul(x, y), *hosts)
    assert not repeated_arrays._repeats


def test_nested_calls_go_the_long_way(operands):
    for _ in range(ENOUGH):
        clgemm.matmul(*operands)
    me = threading.get_ident()
    assert repeated_arrays.matmul(*operands, None) is not None
    ending.inside.add(me)
    try:
        assert repeated_arrays.matmul(*operands, None) is None
    finally:
        ending.inside.discard(me)
    assert me not in ending.inside


def test_of_too_many_calls_none_is_kept(queue, operands, monkeypatch):
    monkeypatch.setattr(repeated_arrays, "MOST", 3)
    outs = [empty(queue) for _ in range(7)]
    for out in outs:
        for _ in range(ENOUGH):
            clgemm.matmul(*operands, out=out)
        assert len(repeated_arrays._repeats) <= 3
        assert len(repeated_arrays._seen) <= 3


@pytest.mark.parametrize("name", ["direct", "gpu_tiled", "gemv"])
def test_what_the_driver_refuses_pyopencl_tries_again(device, name, rng, monkeypatch):
    precision = PRECISIONS["s"]
    g = Gemm("s", 20, 1, 30, 1, False, False, 20, 0, False, False, 30, 0, 20, 0, False, False)
    family = BY_NAME[name]
    plan = family.plan(device.traits, g, family.default(device.traits, precision))
    runner = KernelRunner(device, g, plan)
    refused = []
    monkeypatch.setattr(runner, "_bare", lambda *_: refused.append(1) or -5)
    a, b, c = (random_matrix(rng, precision, *s) for s in ((20, 30), (30, 1), (20, 1)))
    places = [host_memory.place(device, x) for x in (a, b, c)]
    state = LaunchState(device.context, device.queue)
    runner.repeated((2.0, 0.0, *places, (0, 0, 0)), state)(places[2])
    device.queue.finish()
    host_memory.fetch(device, places[2], c)
    np.testing.assert_allclose(c, 2 * a @ b, rtol=1e-5, atol=1e-5)
    assert refused


def test_what_takes_scratch_is_launched_at_once_with_what_the_queue_has(device, rng, monkeypatch):
    """Parts of k leave sums there, after others were trimmed and where others need more, too."""
    precision, family, k = PRECISIONS["s"], BY_NAME["gemv"], 100_000
    g = Gemm("s", 20, 1, k, 1, False, False, 20, 0, False, False, k, 0, 20, 0, False, False)
    traits = replace(device.traits, compute_units=64, kind="gpu", compute_capability=None)
    plan = family.plan(traits, g, family.default(device.traits, precision))
    parts = plan._replace(steps=plan.steps[:1])
    assert parts.scratch_bytes > 0
    runner = KernelRunner(device, g, parts)
    monkeypatch.setattr(runner, "enqueue", lambda *_, **__: pytest.fail("the long way"))
    a, b = random_matrix(rng, precision, 20, k), random_matrix(rng, precision, k, 1)
    places = [host_memory.place(device, x) for x in (a, b, np.zeros((20, 1), np.float32))]
    state = LaunchState(device.context, device.queue)
    launch = runner.repeated((1.0, 0.0, *places, (0, 0, 0)), state)
    known = []
    # Less and more than it needs, as the launch before left it, and after all was given back.
    for size in (4, 0, None, 2 * parts.scratch_bytes, 0, None, 0):
        if size is None:
            state.trim()
        elif size:
            state.memory(size, takes_tickets=False)
        state.used = False
        launch(places[2])
        assert state.used
        known.append(state._scratch)  # others do not lie where it did
        found = np.empty((parts.scratch_bytes // 80, 20), np.float32)
        cl.enqueue_copy(device.queue, found, state._scratch)
        np.testing.assert_allclose(found.sum(axis=0), (a @ b)[:, 0], atol=1e-6 * k)
        cl.enqueue_copy(device.queue, state._scratch, np.full_like(found, np.nan))


@pytest.mark.parametrize("fails", [False, True])
def test_scratch_is_given_back_before_there_is_more(device, monkeypatch, fails):
    """Both might not fit.  Whoever has set the first one as an argument is told in any case."""
    state = LaunchState(device.context, device.queue)
    state.memory(64, takes_tickets=False)
    before, real, held = state.version, cl.Buffer, []

    def buffer(*given):
        held.append((state._scratch, state.version))
        if fails:
            raise MemoryError
        return real(*given)

    monkeypatch.setattr(opencl.load(), "Buffer", buffer)
    with pytest.raises(MemoryError) if fails else nullcontext():
        state.memory(128, takes_tickets=False)
    assert held == [(None, before + 1)]
    assert (state._scratch is None) == fails


def test_tickets_are_zeros_and_the_same_until_they_are_given_back(device):
    state = LaunchState(device.context, device.queue)
    *others, tickets = state.memory(0, takes_tickets=True)
    assert others == [None, None]
    found = np.ones(TICKETS, np.uint32)
    cl.enqueue_copy(device.queue, found, tickets)
    assert not found.any()
    assert state.memory(0, takes_tickets=True)[2] is tickets
    assert state.begin([], 0, counts=False, takes_tickets=True)[1][2] is tickets
    state.trim()
    assert state.memory(0, takes_tickets=True)[2] is not tickets


@pytest.mark.parametrize("name", ["direct", "gpu_tiled"])
def test_plans_that_share_a_kernel_set_their_own_arguments(device, name, rng):
    """Sizes, offsets, factors and memory, whoever has launched it before, themselves among them."""
    precision, family = PRECISIONS["s"], BY_NAME[name]
    config, again = family.default(device.traits, precision), []
    for m, alpha in ((64, 2.0), (60, 3.0), (64, -1.0)):
        g = Gemm("s", m, 8, 30, 1, False, False, m, 0, False, False, 30, 0, m, 0, False, False)
        runner = KernelRunner(device, g, family.plan(device.traits, g, config))
        a, b = random_matrix(rng, precision, m, 30), random_matrix(rng, precision, 30, 8)
        results = [np.full((m, 8), np.nan, np.float32, "F") for _ in range(3)]
        left, right, *places = (host_memory.place(device, x) for x in (a, b, *results))
        values = alpha, 0.0, left, right, places[0], (0, 0, 0)
        launch = runner.repeated(values, LaunchState(device.context, device.queue))
        want = alpha * a @ b
        again += [(launch, x, c, want) for x, c in zip(places, results, strict=True)]
        again.append((partial(_executed, runner, values), places[0], results[0], want))
    for compute, place, c, want in (again[i] for i in rng.integers(len(again), size=80)):
        compute(place)
        device.queue.finish()
        host_memory.fetch(device, place, c)
        np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-5)
        c[...] = np.nan


def _executed(runner, values, c):
    """Compute it the long way."""
    runner.execute((*values[:4], c, values[5]))


def test_a_forked_child_forgets_them():
    code = """
import os
import numpy as np
import clgemm
x = clgemm.to_device(np.ones((8, 8), np.float32))
for _ in range(3):
    clgemm.matmul(x, x)
child = os.fork()
if not child:
    try:
        clgemm.matmul(x, x)
    except clgemm.DeviceError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    run_python(code)
