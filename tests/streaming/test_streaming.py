"""Products with copies: in blocks, under any limit, beside others, interrupted."""

from __future__ import annotations

import itertools
import signal
import threading
from concurrent.futures import CancelledError
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from helpers import (
    PATIENCE,
    gemm,
    multiply_in_threads,
    needs_fork,
    press_at_any_moment,
    run_python,
    run_threads,
)
from helpers import wait_until as until
from layouts import HOWS, matrices, memory_for, separate
from numpy.lib.stride_tricks import sliding_window_view

from clgemm.dispatch import engines
from clgemm.errors import DeviceError
from clgemm.host import blas as host_blas
from clgemm.problem import PRECISIONS, Call, describe
from clgemm.runtime import ending, reentry, registry
from clgemm.runtime.interrupt import Stop
from clgemm.runtime.opencl import cl, load
from clgemm.streaming import copies, copy_threads, direct, runner, stream
from clgemm.streaming.runner import StreamingRunner
from clgemm.streaming.schedule import Blocking, Schedule
from clgemm.streaming.staging import StagingBuffer
from clgemm.tuning.measure.verify import random_matrix

KB = 1 << 10
"""Signals that interrupt a call; .ci/full has more."""


@pytest.fixture
def apart(device, monkeypatch):
    """Give a device on the device that is told it has a memory of its own; all goes in blocks."""
    monkeypatch.setattr(direct, "MOST", 0)
    monkeypatch.setattr(stream, "SMALL_CHUNK", 1000)
    yield separate(device)
    memory = separate(device).memory
    assert memory.used == 0
    assert not separate(device).running
    memory.trim()
    memory.peak = 0


def threads_of(device):
    """Return what copies to and from a device."""
    return engines.of(device).threads


def limit(monkeypatch, nbytes):
    monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", str(nbytes / 2**20))


def check(device, code, a, b, c, alpha=1.5, beta=0.0):
    """Compute on a device and compare with the reference."""
    want, size = reference.gemm(alpha, a, b, beta, c)
    with registry.using(device):
        gemm(alpha, a, b, beta, c)
    reference.assert_within_bound(c, want, size, a.shape[-1], PRECISIONS[code].eps)


@pytest.mark.parametrize(
    ("code", "room"),
    [("s", 1 << 30), ("s", 100 * KB), ("d", 300 * KB), ("c", 1 << 30), ("z", 300 * KB)],
)
def test_blocks_of_every_layout(apart, code, room, rng, monkeypatch):
    limit(monkeypatch, room)
    precision = PRECISIONS[code]
    shapes = ((150, 130, 140), (900, 9, 11), (7, 900, 13), (12, 10, 2000), (1, 1, 5000))
    cases = itertools.product(shapes, ((1.0, 0.0), (-0.5, 1.0), (2.0, 0.75)))
    for case, ((m, n, k), (alpha, beta)) in enumerate(cases):
        how_a, how_b, how_c = HOWS[case % 7], HOWS[(case * 3 + 1) % 7], HOWS[(case * 5 + 2) % 7]
        a = matrices(memory_for(rng, precision, m, k), m, k)[how_a]()
        b = matrices(memory_for(rng, precision, k, n), k, n)[how_b]()
        a.flags.writeable = b.flags.writeable = False
        memory = memory_for(rng, precision, m, n)
        c = matrices(memory, m, n)[how_c]()
        if beta == 0:
            c[...] = np.nan
        before = memory.copy()
        check(apart, code, a, b, c, alpha, beta)
        for x in (memory, before):
            matrices(x, m, n)[how_c]()[...] = 0
        np.testing.assert_array_equal(memory, before, f"beside {how_c} memory has changed")
        assert 0 < apart.memory.peak <= room


@pytest.mark.parametrize("code", "sz")
def test_conjugated_operands_in_blocks(apart, code, rng, monkeypatch):
    limit(monkeypatch, 100 * KB)
    precision = PRECISIONS[code]
    a, b = random_matrix(rng, precision, 130, 90), random_matrix(rng, precision, 110, 130)
    want, size = reference.gemm(1.0, a.conj().T, b.conj().T, 0.0, np.zeros((90, 110), a.dtype))
    c = np.full((90, 110), np.nan, precision.dtype)
    with registry.using(apart):
        gemm(1.0, a.T, b.T, 0.0, c, conj_a=True, conj_b=True)
    reference.assert_within_bound(c, want, size, 130, precision.eps)


@pytest.mark.parametrize("code", "sz")
@pytest.mark.parametrize("room", [150 * KB, 1 << 20, 1 << 30])
def test_gram_products_in_blocks(apart, code, room, rng, monkeypatch):
    """Only whole ones are mirrored: blocks of C beside the diagonal are general products."""
    limit(monkeypatch, room)
    a = random_matrix(rng, PRECISIONS[code], 70, 150)
    for x in (a, a.T.copy()):
        for left, right in ((x.T, x), (x, x.T)):
            for order in "CF":
                c = np.full((len(left), len(left)), np.nan, a.dtype, order)
                check(apart, code, left, right, c)
                if room == 1 << 30 and apart.traits.kind == "cpu":  # on GPUs it is too small
                    np.testing.assert_array_equal(c, c.T)
    assert 0 < apart.memory.peak <= room


@pytest.mark.parametrize("most", [0, 1 << 30])
@pytest.mark.parametrize("how", ["plain", "gaps"])
def test_the_matrix_of_a_gram_product_arrives_once(apart, rng, monkeypatch, most, how):
    monkeypatch.setattr(direct, "MOST", most)
    a = rng.standard_normal((90, 150)).astype(np.float32)
    x = a if how == "plain" else np.pad(a, 5)[5:-5, 5:-5]
    sent, send = [], cl.enqueue_copy

    def counting(queue, to, source, **options):
        if isinstance(to, cl.Buffer):
            sent.append(source.nbytes)
        return send(queue, to, source, **options)

    for module in (cl, apart.cl):
        monkeypatch.setattr(module, "enqueue_copy", counting)
    c = np.full((150, 150), np.nan, a.dtype)
    check(apart, "s", x.T, x, c)
    assert sum(sent) == a.nbytes
    np.testing.assert_array_equal(c, c.T)
    for count in (2, 3):  # of blocks along each axis
        g = describe(*Call(1.0, x.T, x, 0.0, c).operands, c.T, reads_c=False, is_gram=True)
        size = -(-150 // count)
        divided = Schedule(g, Blocking(1, size, size, 90, is_resident=True))
        monkeypatch.setattr(runner, "plan", lambda *_, divided=divided, **__: divided)
        engines.of(apart).forget()
        sent.clear()
        check(apart, "s", x.T, x, c)
        assert most or sum(sent) == a.nbytes
    engines.of(apart).forget()


@pytest.mark.parametrize("room", [KB, 40 * KB, 150 * KB, 1 << 30])
@pytest.mark.parametrize("most", [0, 1 << 30])
def test_results_may_be_written_by_a_function(apart, rng, monkeypatch, room, most):
    """Also where the host computes, for want of room for any block."""
    limit(monkeypatch, room)
    monkeypatch.setattr(direct, "MOST", most)
    a, b, c = operands(rng)
    c = np.asfortranarray(c)
    call, seen = Call(1.5, a, b, 0.0, c), np.zeros(c.shape, int, order="F")

    def write(to, values):
        place = (to.ctypes.data - c.ctypes.data) // c.itemsize
        column, row = divmod(place, len(c))
        to, values = (x.reshape(-1, x.shape[-1]) for x in (to, values))
        seen[row : row + to.shape[1], column : column + len(to)] += 1
        to[...] = -values

    problem = describe(*call.operands, c, reads_c=False)
    engine = engines.of(apart)
    streaming = StreamingRunner(apart, engine.threads, problem, engine.build)
    want, size = reference.gemm(-1.5, a, b, 0.0, c)
    streaming.run(call, write=write)
    assert (seen == 1).all()
    reference.assert_within_bound(c, want, size, a.shape[-1], PRECISIONS["s"].eps)


@pytest.mark.parametrize("room", [30 * KB, 200 * KB, 1 << 30])
def test_stacks_in_blocks(apart, room, rng, monkeypatch):
    limit(monkeypatch, room)
    dtype = np.dtype(np.float32)
    many = rng.uniform(-1, 1, (31, 50, 40)).astype(dtype)
    one = np.broadcast_to(many[3], many.shape)
    others = rng.uniform(-1, 1, (31, 40, 45)).astype(dtype)
    for a, b in ((many, others), (one, others), (many, np.broadcast_to(others[2], others.shape))):
        for beta, c in ((0.0, np.full((31, 50, 45), np.nan, dtype)),
                        (0.5, np.ones((50, 31, 45), dtype).swapaxes(0, 1))):  # fmt: skip
            check(apart, "s", a, b, c, 1.5, beta)
            assert apart.memory.peak <= room


def test_results_are_bitwise_the_same(apart, rng, monkeypatch):
    limit(monkeypatch, 150 * KB)
    a, b = (
        random_matrix(rng, PRECISIONS["s"], 300, 200),
        random_matrix(rng, PRECISIONS["s"], 200, 170),
    )
    results = set()
    for _ in range(5):
        c = np.empty((300, 170), np.float32)
        with registry.using(apart):
            gemm(1.0, a, b, 0.0, c)
        results.add(c.tobytes())
    assert len(results) == 1


def with_limits(device, **facts):
    """Open a device on the same device with other facts, which shares no memory with others."""
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    return registry.Device(found._replace(traits=replace(found.traits, **facts)), "a test")


def test_operands_larger_than_an_allocation_go_in_blocks(device, rng, monkeypatch):
    """On CPU devices too, where what fits is not copied at all."""
    hosted = []
    monkeypatch.setattr(host_blas, "gemm", hosted.append)
    small = with_limits(device, max_allocation=100 * KB, system_svm=False)
    a, b = (
        random_matrix(rng, PRECISIONS["d"], 140, 120),
        random_matrix(rng, PRECISIONS["d"], 120, 150),
    )
    check(small, "d", a, b, np.empty((140, 150)))
    assert small.memory.peak > 0
    assert hosted == []


def test_a_limit_that_is_set_binds_devices_that_share_memory(device, rng, monkeypatch):
    shared = with_limits(device)
    a, b = (
        random_matrix(rng, PRECISIONS["d"], 140, 120),
        random_matrix(rng, PRECISIONS["d"], 120, 150),
    )
    limit(monkeypatch, 200 * KB)
    check(shared, "d", a, b, np.empty((140, 150)))
    assert 0 < shared.memory.peak <= 200 * KB


def test_too_little_memory_for_anything_leaves_the_host(apart, rng, monkeypatch):
    limit(monkeypatch, 100)
    computed, real = [], host_blas.gemm
    monkeypatch.setattr(host_blas, "gemm", lambda *x: (computed.append(x), real(*x)))
    a, b = random_matrix(rng, PRECISIONS["c"], 40, 50), random_matrix(rng, PRECISIONS["c"], 50, 30)
    c = random_matrix(rng, PRECISIONS["c"], 40, 30)
    check(apart, "c", a, b, c, 1.0 - 2j, 0.5j)
    assert len(computed) == 1


def out_of_memory():
    """Make the error of a device that has no memory."""
    module = load()
    return module.MemoryError(module._cl._ErrorRecord("clCreateBuffer", -4, ""))


def operands(rng, code="s", m=300, n=280, k=260):
    return [random_matrix(rng, PRECISIONS[code], *x) for x in ((m, k), (k, n), (m, n))]


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("room", [1 << 20, 1 << 40])
def test_a_refused_allocation_is_tried_again_with_less(apart, room, beta, rng, monkeypatch):
    refused, hosted = [], []
    real = apart.memory._allocate

    def allocate(size):
        if apart.memory.used + size > 200 * KB:
            refused.append(size)
            raise out_of_memory()
        return real(size)

    apart.memory.trim()
    monkeypatch.setattr(apart.memory, "_allocate", allocate)
    monkeypatch.setattr(host_blas, "gemm", hosted.append)
    limit(monkeypatch, room)
    check(apart, "s", *operands(rng), beta=beta)
    assert refused
    assert hosted == []


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("which", ["first", "later"])
def test_memory_that_ends_on_the_way_costs_no_result(apart, which, beta, rng, monkeypatch):
    """Some drivers find out when memory is first used; tiles that are home by then stay as is."""
    limit(monkeypatch, 300 * KB)
    a, b, c = operands(rng)
    steps = []
    real = stream.StreamedCall._enqueue

    def enqueue(self, number, waits):
        steps.append(number)
        if number == (0 if which == "first" else 5) and steps.count(number) == 1:
            raise out_of_memory()
        real(self, number, waits)

    monkeypatch.setattr(stream.StreamedCall, "_enqueue", enqueue)
    check(apart, "s", a, b, c, beta=beta)
    assert len(steps) > 6


def test_no_memory_at_all_leaves_the_host(apart, rng, monkeypatch):
    computed, real = [], host_blas.gemm
    monkeypatch.setattr(host_blas, "gemm", lambda *x: (computed.append(x), real(*x)))

    def allocate(_):
        raise out_of_memory()

    apart.memory.trim()
    monkeypatch.setattr(apart.memory, "_allocate", allocate)
    check(apart, "z", *operands(rng, "z", 40, 30, 50), beta=0.5)
    assert len(computed) == 1


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_the_rest_of_a_call_is_the_host_s_where_a_build_would_wait_for_ever(
    apart, beta, rng, monkeypatch
):
    """Some blocks of C are written when a log handler's call needs kernels that others build."""
    limit(monkeypatch, 300 * KB)
    hosted, enqueue, compute = [], stream.StreamedCall._enqueue, host_blas.gemm
    monkeypatch.setattr(host_blas, "gemm", lambda call: (hosted.append(call), compute(call)))

    def build(*_):
        raise reentry.WouldDeadlockError("a test")

    def end_of_memory(self, number, waits):
        if number == 5:
            monkeypatch.setattr(StreamingRunner, "_runner", build)
            raise out_of_memory()
        enqueue(self, number, waits)

    monkeypatch.setattr(stream.StreamedCall, "_enqueue", end_of_memory)
    check(apart, "s", *operands(rng), beta=beta)
    assert hosted


def test_a_result_torn_by_a_failure_is_not_read_again(apart, rng, monkeypatch):
    """A tile that is home in part cannot be computed anew if its old values count."""
    a, b, c = operands(rng)
    real, copied = copies.Copies._end, []

    def end(self, job):
        if self._jobs[job][1].to_host:
            copied.append(job)
            if len(copied) == 2:
                self._to_fetch.clear()
                job.error = out_of_memory()
        real(self, job)

    monkeypatch.setattr(stream.StreamedCall, "_save_results", lambda _: None)
    monkeypatch.setattr(copies.Copies, "_end", end)
    with registry.using(apart), pytest.raises(MemoryError, match=r"sgemm on .*no memory"):
        gemm(1.0, a, b, 0.5, c)
    copied.clear()
    monkeypatch.setattr(stream.StreamedCall, "_save_results", lambda _: None)
    check(apart, "s", a, b, np.full_like(c, np.nan))


def test_a_block_that_came_home_unheard_is_not_computed_anew(apart, rng, monkeypatch):
    """It would be added to C twice: the device fails while a thread copies, and fails again."""
    limit(monkeypatch, 300 * KB)
    monkeypatch.setattr(stream, "SMALL_CHUNK", 300 * KB)  # a block in one
    a, b, c = operands(rng)
    failed, unload, copyto = threading.Event(), copies.Copies._unload, np.copyto

    def after_failure(into, source):
        if np.may_share_memory(into, c):
            failed.wait(PATIENCE)
        copyto(into, source)

    def fails(self):
        happened = unload(self)
        home = [job for job, (_, copy, _) in self._jobs.items() if copy.to_host]
        if home and not failed.is_set():
            until(home[0].lock.locked)
            failed.set()
            raise out_of_memory()
        return happened

    def fails_again(_):
        raise out_of_memory()

    monkeypatch.setattr(np, "copyto", after_failure)
    monkeypatch.setattr(copies.Copies, "_unload", fails)
    monkeypatch.setattr(copies.Copies, "only_to_host", fails_again)
    check(apart, "s", a, b, c, beta=0.5)
    assert failed.is_set()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_ends_the_wait_for_results_leaves_no_thread_at_work(apart, error, rng, monkeypatch):
    """Of the host's memory, too, there may be none left; the rest is computed anew then."""
    limit(monkeypatch, 300 * KB)
    a, b, c = operands(rng)
    real, proved = stream.StreamedCall._enqueue, []
    abandon = copies.Copies.abandon

    def end_of_memory(self, number, waits):
        if number == 5 and not proved:
            raise out_of_memory()
        real(self, number, waits)

    def ends(_):
        raise error

    def note(self, *queues):
        proved.append(abandon(self, *queues))
        return proved[-1]

    monkeypatch.setattr(stream.StreamedCall, "_enqueue", end_of_memory)
    monkeypatch.setattr(copies.Copies, "only_to_host", ends)
    monkeypatch.setattr(copies.Copies, "abandon", note)
    if error is MemoryError:
        check(apart, "s", a, b, c)
    else:
        with registry.using(apart), pytest.raises(error):
            gemm(1.0, a, b, 0.0, c)
    assert proved == [True]


def test_a_failure_is_explained_and_changes_nothing(apart, rng, monkeypatch):
    a, b, c = operands(rng)
    before = c.copy()

    def enqueue(*_):
        memory = cl.Buffer(apart.context, cl.mem_flags.READ_WRITE, 16)
        cl.enqueue_copy(apart.queue, memory, np.zeros(64), dst_offset=8)

    monkeypatch.setattr(stream.StreamedCall, "_enqueue", enqueue)
    with registry.using(apart), pytest.raises(DeviceError, match="INVALID_VALUE"):
        gemm(1.0, a, b, 0.5, c)
    np.testing.assert_array_equal(c, before)


@pytest.mark.parametrize("turn", [1, 2, 5, 20])
def test_an_interrupt_leaves_everything_usable(apart, turn, rng, monkeypatch):
    limit(monkeypatch, 300 * KB)
    a, b, c = operands(rng)
    turns, real = [], copies.Copies.advance

    def interrupted(self, *waits, **how):
        turns.append(None)
        if len(turns) == turn:
            raise KeyboardInterrupt
        real(self, *waits, **how)

    with monkeypatch.context() as patch:
        patch.setattr(copies.Copies, "advance", interrupted)
        with registry.using(apart), pytest.raises(KeyboardInterrupt):
            gemm(1.0, a, b, 0.0, c)
    assert apart.memory.used == 0
    staging = threads_of(apart).staging
    assert len(staging._spare) == staging.count
    check(apart, "s", a, b, c)


def test_what_a_second_interrupt_leaves_in_use_is_not_used_again(apart, rng, monkeypatch):
    a, b, c = operands(rng)
    check(apart, "s", a, b, c)
    leased, leases, real = [], [], apart.memory.lease
    staging = threads_of(apart).staging

    def lease(*arguments):
        leases.append(real(*arguments))
        return leases[-1]

    def interrupted(self, *_, **__):
        leased.extend(self._leased.values())
        leased.extend(leases[0].buffers)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(apart.memory, "lease", lease)
        patch.setattr(copies.Copies, "_wait", interrupted)
        patch.setattr(copies.Copies, "abandon", interrupted)
        with registry.using(apart), pytest.raises(KeyboardInterrupt):
            gemm(1.0, a, b, 0.0, c)
    assert any(isinstance(x, StagingBuffer) for x in leased)
    assert not [x for x in (*apart.memory._idle, *staging._spare) if x in leased]
    assert apart.memory.used == 0
    check(apart, "s", a, b, c)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
@pytest.mark.slow
def test_signals_at_any_moment_leave_everything_usable(apart, rng, monkeypatch):
    """Also while a call cleans up: the second comes soon after the first."""
    limit(monkeypatch, 300 * KB)
    a, b, c = operands(rng, m=200, n=180, k=160)
    want = a @ b
    check(apart, "s", a, b, c)

    def work():
        c[...] = np.nan
        with registry.using(apart):
            gemm(1.0, a, b, 0.0, c)

    press_at_any_moment(work, lambda: np.testing.assert_allclose(c, want, atol=1e-4), rng)
    apart.running.clear()
    thread = threading.Thread(target=threads_of(apart).trim, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a lock is held by nobody"
    assert apart.memory.used == 0


@pytest.mark.parametrize("name", ["clgemm copy", "clgemm idle timer"])
@pytest.mark.parametrize("after", [0, 1])
def test_results_are_right_where_threads_cannot_be_started(apart, name, after, rng, monkeypatch):
    a, b, c = operands(rng)
    threads = threads_of(apart)
    threads._most = 3
    real, started = threading.Thread.start, []

    def start(thread):
        if thread.name == name:
            if len(started) == after:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        real(thread)

    with monkeypatch.context() as patch:
        threads.trim()
        patch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            c[...] = np.nan
            check(apart, "s", a, b, c)
        assert len(started) <= after
        assert not threads._jobs
    check(apart, "s", a, b, c)


def test_a_call_copies_itself_once_the_interpreter_ends(apart, rng, monkeypatch):
    """Threads do not run any more then."""
    limit(monkeypatch, 300 * KB)
    monkeypatch.setattr(ending, "_has_begun", True)
    tokens = SimpleNamespace(put=lambda _: pytest.fail("no thread runs"))
    monkeypatch.setattr(threads_of(apart), "_tokens", tokens)
    check(apart, "s", *operands(rng))
    check(apart, "z", *operands(rng, "z", 40, 30, 50), beta=0.5)


@pytest.mark.parametrize("to_host", [True, False])
@pytest.mark.parametrize("most", [1, 4])
def test_a_copy_that_the_device_refuses_once_costs_no_result(
    apart, most, to_host, rng, monkeypatch
):
    """Nor does it wait for ever if the only staging buffer was for that copy."""
    a, b, c = operands(rng)
    staging = threads_of(apart).staging
    staging.trim()
    monkeypatch.setattr(staging, "_most", most)
    module, refused = load(), []
    real = module.enqueue_copy

    def enqueue_copy(queue, into, source, **named):
        if isinstance(into, np.ndarray) == to_host and not refused:
            refused.append(None)
            raise out_of_memory()
        return real(queue, into, source, **named)

    monkeypatch.setattr(module, "enqueue_copy", enqueue_copy)
    check(apart, "s", a, b, c)
    assert refused


def test_a_call_that_nobody_wants_any_more_ends(apart, rng):
    a, b, c = operands(rng)
    before, stop = c.copy(), Stop()
    stop.set()
    call = Call.of(1.0, a, b, 0.5, np.asfortranarray(c))
    problem = describe(*call.operands, call.c, reads_c=True)
    runner = engines.of(apart).runner(problem)
    assert isinstance(runner, StreamingRunner)
    with pytest.raises(CancelledError):
        runner.run(call, stop)
    np.testing.assert_array_equal(call.c, before)


@pytest.mark.parametrize("room", [300 * KB, 1 << 30])
def test_threads_get_their_own_results(apart, room, monkeypatch):
    """Beside each other, or one after the other where memory is for one."""
    limit(monkeypatch, room)
    with registry.using(apart):
        multiply_in_threads(4)
    assert apart.memory.peak <= room


def test_threads_get_their_own_results_without_pinned_memory(apart, monkeypatch):
    monkeypatch.setattr(threads_of(apart).staging, "lease", lambda _: None)
    with registry.using(apart):

        def work(number):
            rng = np.random.default_rng(number)
            a, b, c = operands(rng, "s", 90 + number)
            want, size = reference.gemm(1.0, a, b, 0.5, c)
            gemm(1.0, a, b, 0.5, c)
            reference.assert_within_bound(c, want, size, a.shape[1], PRECISIONS["s"].eps)

        run_threads(work)


PROGRAM = """
import os, sys, time
import numpy as np
import clgemm
from clgemm.runtime import registry
from clgemm.runtime.interrupt import Stop
a = np.random.default_rng(3).uniform(-1, 1, (300, 300)).astype(np.float32)
want = a.astype(np.float64) @ a
def right():
    return np.abs(clgemm.sgemm(1.0, a, a) - want).max() < 1e-3
assert right() and registry.current().memory.peak > 0
"""


@pytest.mark.process
def test_a_program_ends_at_once_and_in_silence(device):
    """Threads, staging and timers of copies wait for nothing when it ends.

    Whatever they would wait for would last until the program counts as hung.
    """
    program = f"""
from clgemm.runtime import registry
from clgemm.streaming import copy_threads
registry._timer._seconds = copy_threads.IDLE_SECONDS = {2 * PATIENCE}
"""
    run = run_python(
        program + PROGRAM, CLGEMM_DEVICE=device.traits.platform, CLGEMM_DEVICE_MEMORY_MB="0.5",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.process
def test_a_program_multiplies_to_its_very_end(device):
    """When no thread can be started any more, or those there are do not run."""
    program = "import atexit; atexit.register(lambda: print(right()))" + PROGRAM
    run = run_python(
        program, CLGEMM_DEVICE=device.traits.platform, CLGEMM_DEVICE_MEMORY_MB="0.5",
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


@pytest.mark.process
@needs_fork
def test_a_child_forked_beside_copiers_computes(device):
    program = (
        PROGRAM
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of each fork beside threads
child = os.fork()
if not child:
    os._exit(0 if right() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert right()
"""
    )
    run = run_python(
        program, CLGEMM_DEVICE=device.traits.platform, CLGEMM_DEVICE_MEMORY_MB="0.5",
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")


def test_tiles_that_came_home_out_of_turn_are_told_one_by_one():
    """After a shortage of memory only the others are computed again."""
    broken = object.__new__(stream.StreamedCall)
    broken._leaving = [SimpleNamespace(to_copy=left) for left in (2, 0, 1)]
    broken._schedule = SimpleNamespace(results=["first", "second", "third", "fourth"])
    assert broken.missing() == ["first", "third", "fourth"]


def test_pages_of_a_new_result_are_taken_while_operands_arrive(apart, rng, monkeypatch):
    """Only where C is not read: else they are there; and not those between its columns."""
    prepared = []
    monkeypatch.setattr(copies.Copies, "populate", lambda _self, x: prepared.append(x))
    a, b = rng.random((70, 60)), rng.random((60, 50))
    dense, wide = np.zeros((70, 50), order="F"), np.zeros((90, 50), order="F")[:70]
    for c, beta in ((dense, 0.5), (wide, 0.0), (dense, 0.0)):
        assert not prepared
        check(apart, "d", a, b, c, beta=beta)
    (x,) = prepared
    assert np.shares_memory(x, dense)
    assert x.nbytes == dense.nbytes


def test_each_page_is_asked_for_unless_the_call_is_over(apart, monkeypatch):
    x, seen, all_seen = np.empty(3 * copy_threads.PAGES_BYTES), set(), threading.Event()
    wanted = set(copy_threads.page_ranges(x))

    def take(*chunk):
        seen.add(chunk)
        if seen == wanted:
            all_seen.set()
        return True

    monkeypatch.setattr(copy_threads, "populate", take)
    with threads_of(apart).in_use() as queues:
        copies.Copies(threads_of(apart), *queues).populate(x)
        assert all_seen.wait(PATIENCE)
        seen.clear()
        over = copies.Copies(threads_of(apart), *queues)
        over.close(is_idle=True)
        over.populate(x)
        done = threading.Event()
        threads_of(apart).submit_idle(done.set)
        assert done.wait(PATIENCE)
    threads_of(apart).trim()
    assert len(seen) == 0


@pytest.mark.parametrize(
    ("size", "chunk"),
    [(10**6, 2**19), (24 << 20, 2 << 20), (200 << 20, 4 << 20), (2 << 30, (2 << 30) // 400),
     (17 << 30, 8 << 20)],
)  # fmt: skip
def test_very_large_operands_are_copied_in_larger_chunks(size, chunk):
    """Each takes a turn of the interpreter's lock, for which threads of several devices wait."""
    assert stream.chunk_bytes(size) == chunk


SHAPES = ((5, 3, 4), (1, 7, 9), (7, 1, 9), (33, 40, 1), (70, 65, 31))


@pytest.mark.parametrize("code", "sdcz")
def test_gemm_with_separate_memories(device, code, rng):
    precision, apart = PRECISIONS[code], separate(device)
    cases = [(shape, how) for shape in SHAPES for how in HOWS]
    for case, ((m, n, k), how_c) in enumerate(cases):
        how_a, how_b = HOWS[case % 7], HOWS[(case * 3 + 1) % 7]
        a = matrices(memory_for(rng, precision, m, k), m, k)[how_a]()
        b = matrices(memory_for(rng, precision, k, n), k, n)[how_b]()
        alpha, beta = ((1.0, 0.0), (-0.5, 1.0), (2.0, 0.75))[case % 3]
        memory = memory_for(rng, precision, m, n)
        c = matrices(memory, m, n)[how_c]()
        assert np.shares_memory(c, memory)
        if beta == 0:
            c[...] = np.nan
        before = memory.copy()
        want, size = reference.gemm(alpha, a, b, beta, c)
        with registry.using(apart):
            gemm(alpha, a, b, beta, c)
        reference.assert_within_bound(c, want, size, k, precision.eps)
        for x in (memory, before):
            matrices(x, m, n)[how_c]()[...] = 0
        np.testing.assert_array_equal(memory, before, f"beside {how_c} memory has changed")


@pytest.mark.parametrize("code", "sc")
def test_stacks_with_separate_memories(device, code, rng):
    precision, apart = PRECISIONS[code], separate(device)
    shape_a, shape_b = (4, 9, 13), (4, 13, 6)

    def fill(shape):
        x = rng.uniform(-1, 1, shape)
        return (x + 1j * x[::-1]).astype(precision.dtype) if code == "c" else x.astype("f4")

    stacks_a = {
        "plain": fill(shape_a),
        "turned": fill((4, 13, 9)).swapaxes(1, 2),
        "one repeated": np.broadcast_to(fill((9, 13)), shape_a),
        "padded": fill((4, 9, 20))[:, :, 3:16],
        "interleaved": fill((9, 4, 13)).swapaxes(0, 1),
        "interleaved, turned": fill((13, 4, 9)).transpose(1, 2, 0),
        "backwards": fill(shape_a)[::-1],
        "windows": sliding_window_view(fill(60), 13)[:36].reshape(4, 9, 13),
    }
    b = fill(shape_b)
    stacks_c = {
        "plain": lambda: fill((4, 9, 6)),
        "turned": lambda: fill((4, 6, 9)).swapaxes(1, 2),
        "interleaved": lambda: fill((9, 4, 6)).swapaxes(0, 1),
        "interleaved, turned": lambda: fill((6, 4, 9)).transpose(1, 2, 0),
        "backwards": lambda: fill((4, 9, 6))[::-1],
    }
    for name, beta, how in itertools.product(stacks_a, (0.0, -0.5), stacks_c):
        a, c = stacks_a[name], stacks_c[how]()
        if beta == 0:
            c[...] = np.nan
        want, size = reference.gemm(1.5, a, b, beta, c)
        with registry.using(apart):
            gemm(1.5, a, b, beta, c)
        try:
            reference.assert_within_bound(c, want, size, 13, precision.eps)
        except AssertionError as error:
            raise AssertionError(f"a {name}, beta {beta}, c {how}: {error}") from error
