"""What waits for an Array that was computed without an event."""

import operator
import time
from functools import partial

import numpy as np
import pytest

import clgemm
from clgemm.dispatch import engines
from clgemm.errors import DeviceError
from clgemm.runtime import events, opencl, registry
from clgemm.runtime.events import InOrder
from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.runtime.opencl import cl

pytestmark = pytest.mark.device
COMPLETE = 0  # CL_COMPLETE
SIDE = 90


@pytest.fixture
def queue(device):
    return cl.CommandQueue(device.context)


@pytest.fixture
def operands(queue, rng):
    host = [rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in "ab"]
    return [opencl.arrays().to_device(queue, x) for x in host], host[0] @ host[1]


def near(x, want):
    np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-3)


@pytest.fixture
def launches(queue, monkeypatch):
    """Count launches with an event, of runners that are made from here on."""
    count, real = [], opencl.load().enqueue_nd_range_kernel
    engine, _ = engines.of_queue(queue)
    engine.forget()

    def enqueue(*arguments, **more):
        count.append(arguments[1].function_name)
        return real(*arguments, **more)

    monkeypatch.setattr(opencl.load(), "enqueue_nd_range_kernel", enqueue)
    yield count
    engine.forget()


@pytest.mark.skipif(opencl.bare_launch() is None, reason="this system hides the loader's functions")
def test_a_product_makes_no_event_until_somebody_asks(operands, launches):
    (x, y), want = operands
    z = clgemm.matmul(x, y)
    assert type(z.events) is InOrder
    assert not launches
    assert z.events.queue is not None, "nobody has asked"
    cl.wait_for_events(z.events)
    assert len(z.events) == 1
    assert [e.command_execution_status for e in z.events] == [COMPLETE]
    near(z.get(), want)


@pytest.mark.parametrize(
    "ask",
    [list, tuple, len, bool, iter, reversed, repr, lambda e: e[0], lambda e: e[:2], lambda e: [*e],
     partial(operator.add, []), lambda e: operator.add(e, []), lambda e: e == [],
     lambda e: e.copy(), lambda e: e * 2, [].extend, lambda e: None in e,
     lambda e: e.append(e[0])],
)  # fmt: skip
def test_whoever_reads_the_list_finds_the_event(queue, ask):
    found = InOrder(queue)
    ask(found)
    assert found.queue is None
    assert list.__len__(found) >= 1


def test_lists_are_added_in_order(queue):
    first, second = InOrder(queue), InOrder(queue)
    marker = cl.enqueue_marker(queue)
    plus = operator.add
    assert plus([marker], first) == [marker, *first]
    assert plus(first, second) == [*first, *second]


def test_another_queue_waits_for_a_product(device, operands):
    """The product itself waits for a gate; the copy on the other queue has only its events."""
    (x, y), want = operands
    gate = cl.UserEvent(device.context)
    x.events.append(gate)
    try:
        z = clgemm.matmul(x, y)
        other = cl.CommandQueue(device.context)
        host = np.full((SIDE, SIDE), np.nan, np.float32)
        copied = cl.enqueue_copy(other, host, z.base_data, wait_for=z.events, is_blocking=False)
        other.flush()
        time.sleep(0.1)  # enough for a copy that does not wait
        assert copied.command_execution_status != COMPLETE
    finally:
        gate.set_status(COMPLETE)
    copied.wait()
    near(host, want)


def test_views_made_before_learn_of_a_product(operands):
    (x, y), want = operands
    out = opencl.arrays().zeros(x.queue, (SIDE, SIDE), np.float32)
    view = out[3:]
    clgemm.matmul(x, y, out=out)
    assert view.events is out.events
    assert len(view.events)
    cl.wait_for_events(view.events)
    later = out[5:]
    clgemm.matmul(x, y, out=out)
    cl.wait_for_events(later.events)
    near(out.get(), want)


def test_what_has_ended_is_not_asked_for_again(operands, launches):
    (x, y), _ = operands
    assert x.events, "pyopencl tells of its copy"
    x.finish()
    x.add_event(cl.enqueue_marker(x.queue))
    x.queue.finish()
    clgemm.matmul(x, y)
    assert not x.events
    launches.clear()
    clgemm.matmul(x, y)
    if opencl.bare_launch() is not None:
        assert not launches


def test_a_failed_event_is_the_product_s_failure(device, operands):
    (x, _), _ = operands
    failed = cl.UserEvent(device.context)
    failed.set_status(-5)
    x.events.append(failed)
    _, state = registry.of_queue(x.queue)
    assert failed in events.to_wait_for(state, [x])


def test_a_queue_that_times_its_commands_has_their_events(device, rng):
    """A program may read the times of a product's kernel from its Array."""
    timed = cl.command_queue_properties.PROFILING_ENABLE
    queue = cl.CommandQueue(device.context, properties=timed)
    x = opencl.arrays().to_device(queue, rng.standard_normal((SIDE, SIDE)).astype(np.float32))
    z = clgemm.matmul(x, x)
    assert type(z.events) is list
    z.events[-1].wait()
    assert z.events[-1].profile.end > z.events[-1].profile.start
    assert z.events[-1].command_type == cl.command_type.NDRANGE_KERNEL


def test_an_out_of_order_queue_has_events(device, rng):
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(device.context, properties=properties)
    host = rng.standard_normal((SIDE, SIDE)).astype(np.float32)
    x = opencl.arrays().to_device(queue, host)
    z = clgemm.matmul(x, x)
    assert type(z.events) is list
    assert z.events
    near(clgemm.matmul(z, x).get(), host @ host @ host)


def test_what_the_driver_refuses_is_launched_by_pyopencl(operands, launches):
    """It tells what is wrong, or does it."""
    (x, y), want = operands
    engine_products = []
    real = KernelRunner.enqueue

    def refused(runner, *arguments, **more):
        runner._bare = lambda *_: -4
        engine_products.append(runner)
        return real(runner, *arguments, **more)

    KernelRunner.enqueue = refused
    try:
        z = clgemm.matmul(x, y)
    finally:
        KernelRunner.enqueue = real
        for runner in engine_products:
            runner._bare = opencl.bare_launch()
    assert launches
    near(z.get(), want)


def test_a_launch_that_fails_raises(operands, monkeypatch):
    (x, y), want = operands
    clgemm.matmul(x, y)

    def fail(*_, **__):
        raise cl.RuntimeError(opencl.load()._cl._ErrorRecord("clEnqueueNDRangeKernel", -5, ""))

    real = KernelRunner.enqueue

    def refused(runner, *arguments, **more):
        with monkeypatch.context() as patch:
            patch.setattr(runner, "_bare", lambda *_: -5)
            patch.setattr(runner, "_enqueue", fail)
            return real(runner, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(KernelRunner, "enqueue", refused)
        with pytest.raises((DeviceError, MemoryError)):
            clgemm.matmul(x, y)
    near(clgemm.matmul(x, y).get(), want)


def test_an_event_that_another_thread_adds_meanwhile_stays(queue):
    _, state = registry.of_queue(queue)
    x = opencl.arrays().zeros(queue, 4, np.float32)
    later = cl.enqueue_marker(queue)

    class Ended:
        """An event that has ended; as it is asked, another one is added."""

        @property
        def command_execution_status(self):
            x.events.append(later)
            return COMPLETE

    x.events[:] = [Ended()]
    assert events.to_wait_for(state, [x]) == []
    assert x.events == [later]
