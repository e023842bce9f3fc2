"""Whatever is raised after a launch: nothing is left running, and nobody else is disturbed."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import reference
from helpers import gemm

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import CANCEL, CELL_STEP
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import host_memory, interrupt, registry
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.runtime.opencl import cl
from clgemm.runtime.queues import QueueState
from clgemm.tuning.measure.verify import random_matrix

SECONDS = 60  # until something counts as hung


class Product:
    """A product, and its runner with one family's defaults."""

    def __init__(self, device, family, n, *, repeats=1):
        rng, precision = np.random.default_rng(n), PRECISIONS["s"]
        self.a, self.b = (random_matrix(rng, precision, n, n) for _ in "ab")
        self.c = np.full((n, n), np.nan, np.float32, order="F")
        problem = describe(Operand(self.a), Operand(self.b), self.c, reads_c=False)
        if not device.traits.unified_memory:
            problem = problem.dense()
        family = BY_NAME[family]
        plan = family.plan(device.traits, problem, family.default(device.traits, precision))
        plan = plan._replace(steps=plan.steps * repeats)
        self.device, self.scratch_bytes = device, plan.scratch_bytes
        self.runner = KernelRunner(device, problem, plan, long=True)
        self.places = [host_memory.place(device, x) for x in (self.a, self.b, self.c)]
        self.values = (1.0, 0.0, *self.places, NO_OFFSETS)
        self.events = []

    def run(self):
        self.runner.execute(self.values, events=self.events)

    def check(self):
        """Compute, and compare with the reference."""
        self.run()
        host_memory.fetch(self.device, self.places[2], self.c)
        want, size = reference.gemm(1.0, self.a, self.b, 0.0, self.c)
        eps = PRECISIONS["s"].eps
        reference.assert_within_bound(self.c, want, size, len(self.a), eps)

    def running(self):
        """List the statuses of the launches that have not ended."""
        ended = cl.command_execution_status.COMPLETE
        return [x for x in (e.command_execution_status for e in self.events) if x > ended]


@pytest.fixture
def product(device):
    """Give a product of some tenths of a second, in many launches."""
    made = Product(device, "direct", 400, repeats=12)
    made.check()
    made.events.clear()
    return made


def interrupt_after(product, launches):
    """Press Ctrl-C, so to speak, right after so many launches."""
    real, count = product.runner._enqueue, []

    def enqueue(*arguments):
        event = real(*arguments)
        product.events.append(event)
        count.append(None)
        if len(count) == launches:
            raise KeyboardInterrupt
        return event

    product.runner._enqueue = enqueue
    product.runner._bare = None


def test_who_waits_for_a_long_launch_begins_where_no_thread_of_the_runtime_is(product, monkeypatch):
    workers = product.device.worker_threads
    if workers is None:
        pytest.skip(f"threads of {product.device.traits.platform} need not leave")
    cores, wait = [], interrupt.wait
    monkeypatch.setattr(workers, "_core", lambda: min(os.sched_getaffinity(0)))

    def noting(event, cancel, memory, holder):
        cores.append(holder._core)
        wait(event, cancel, memory, holder)

    monkeypatch.setattr(interrupt, "wait", noting)
    product.check()
    assert cores == [workers.left] == [min(os.sched_getaffinity(0))]


@pytest.mark.parametrize("launches", [1, 12])
def test_nothing_runs_after_an_interrupt_between_launches(product, launches):
    interrupt_after(product, launches)
    with pytest.raises(KeyboardInterrupt):
        product.run()
    assert product.running() == []
    del product.runner._enqueue
    product.runner._enqueue = cl.enqueue_nd_range_kernel
    product.check()


def test_nothing_runs_after_an_interrupt_between_launch_and_wait(product, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(product.runner, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        product.run()
    assert product.running() == []
    monkeypatch.undo()
    product.check()


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no signal to one process alone")
@pytest.mark.parametrize("presses", [1, 2])
def test_nothing_runs_after_a_signal_while_waiting(product, presses):
    done = threading.Event()

    def press():
        for _ in range(presses):
            time.sleep(0.02)
            if not done.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come in any of the three
        thread = threading.Thread(target=press)
        try:
            thread.start()  # on a busy machine it is pressed in here, too
            while True:
                product.events.clear()
                product.run()
        finally:
            done.set()
            thread.join()
    assert product.running() == []
    product.check()


def test_scratch_that_a_second_interrupt_leaves_in_use_is_not_used_again(device, monkeypatch):
    """And what the launches work on stays alive until they have ended."""
    product = Product(
        device, "gpu_tiled" if not device.traits.unified_memory else "cpu_packed", 300
    )
    product.check()
    if not product.scratch_bytes:
        pytest.skip("this family takes no scratch here")
    device.scratch.trim()
    leased, real = [], device.scratch.lease

    def lease(nbytes):
        leased.append(real(nbytes))
        return leased[-1]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device.scratch, "lease", lease)
        patch.setattr(product.runner, "_wait", interrupted)
        patch.setattr(interrupt, "_apart", interrupted)
        with pytest.raises(KeyboardInterrupt):
            product.run()
    assert any(leased[0] in memory for memory in interrupt._in_flight.values())
    assert device.scratch.lease(product.scratch_bytes) is not leased[0]
    device.queue.finish()
    interrupt._in_flight.clear()
    product.check()


@pytest.mark.families("cpu_packed")
@pytest.mark.parametrize("family", ["cpu_packed", "direct"])
def test_an_interrupt_cancels_no_other_call(device, family, monkeypatch):
    """Launches of other threads have cells of their own, which say whether they are cancelled."""
    product, pool = Product(device, family, 200), device.scratch
    pool._cell = len(pool._cells) - CELL_STEP
    cells = [pool.counter()[1] for _ in range(3)]
    assert cells[0] == 0

    def interrupted(*_):
        raise KeyboardInterrupt

    for name in ("_wait", "_enqueue"):
        with monkeypatch.context() as patch:
            patch.setattr(product.runner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                product.run()
    assert [int(pool._cells[cell + CANCEL]) for cell in cells] == [0, 0, 0]
    product.check()


@pytest.mark.parametrize("in_order", [True, False])
def test_a_queue_s_scratch_is_not_shared_with_launches_that_were_interrupted(device, in_order):
    """On a queue without an order the next call would not wait for them."""
    product = Product(device, "direct", 120, repeats=3)
    properties = 0 if in_order else cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(device.context, properties=properties)
    flags = cl.mem_flags.READ_WRITE
    scratch = cl.Buffer(device.context, flags, 4096)
    state = QueueState(device.context, queue, scratch)
    places = [
        cl.Buffer(device.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        for x in (product.a, product.b, product.c)
    ]
    interrupt_after(product, 2)
    with pytest.raises(KeyboardInterrupt):
        product.runner.enqueue((1.0, 0.0, *places, NO_OFFSETS), state, [])
    assert state.begin([], 4096, counts=False, takes_tickets=False)[1][0] is not scratch
    queue.finish()


def test_a_call_waits_itself_where_no_thread_can_be_started(device, rng, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    a, b = (random_matrix(rng, PRECISIONS["s"], 130, 130) for _ in "ab")
    device.running.append(None)  # as if another thread computed: this one waits in a thread
    try:
        for _ in range(2):
            c = np.full_like(a, np.nan)
            with registry.using(device):
                gemm(1.0, a, b, 0.0, c)
            np.testing.assert_allclose(c, a @ b, atol=1e-4)
    finally:
        device.running.pop()
