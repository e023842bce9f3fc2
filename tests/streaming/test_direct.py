"""Products whose operands are copied whole: few commands; nothing is let go while it is used."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from concurrent.futures import CancelledError
from contextlib import suppress

import numpy as np
import pytest
import reference
from helpers import gemm, multiply_in_threads, press_at_any_moment, wait_until
from layouts import separate

from clgemm.dispatch import engines
from clgemm.errors import DeviceError
from clgemm.problem import PRECISIONS, Call, describe
from clgemm.runtime import registry
from clgemm.runtime.interrupt import Stop
from clgemm.runtime.kernel_runner import KernelRunner
from clgemm.runtime.opencl import load
from clgemm.streaming import direct
from clgemm.streaming.staging import Staging
from clgemm.streaming.stream import StreamedCall
from clgemm.tuning.measure.verify import random_matrix

KB = 1 << 10
SECONDS = 60  # that a thread may take to come about
RUN = StreamedCall.run


@pytest.fixture
def apart(device):
    """Give a device on the device that is told it has a memory of its own."""
    apart = separate(device)
    engines.of(apart).threads.trim()  # of what tests before have left
    yield apart
    assert apart.memory.used == 0
    assert not apart.running
    apart.memory.trim()


@pytest.fixture
def whole(apart, monkeypatch):
    """Give the same where nothing may be divided."""
    monkeypatch.setattr(StreamedCall, "run", lambda _: pytest.fail("it is divided"))
    return apart


@pytest.fixture(params=[direct.FEW, direct.Shares(0.3, 4, 16 * KB)], ids=["few", "many"])
def shared(request, whole, monkeypatch):
    """Give the same where other threads copy parts of all operands, in few or many pieces."""
    monkeypatch.setattr(direct, "SENT", KB)
    monkeypatch.setattr(direct, "FETCHED", KB)
    monkeypatch.setattr(direct, "FEW", request.param)
    return whole


def operands(rng, code="s", m=90, n=80, k=70):
    return [random_matrix(rng, PRECISIONS[code], *x) for x in ((m, k), (k, n), (m, n))]


def check(device, a, b, c, beta=0.0):
    """Compute on a device and compare with the reference."""
    want, size = reference.gemm(1.5, a, b, beta, c)
    with registry.using(device):
        gemm(1.5, a, b, beta, c)
    eps = next(x.eps for x in PRECISIONS.values() if x.dtype == c.dtype)
    reference.assert_within_bound(c, want, size, a.shape[-1], eps)


def buffers_of(device):
    """Return the buffers that wait for their next use, in an order of their own."""
    memory = device.memory
    found = [*memory._idle, *(x for lease in memory._resting for x in lease.buffers)]
    return sorted(found, key=lambda x: x.int_ptr)


def out_of_memory():
    """Make the error of a device that has no memory."""
    module = load()
    return module.MemoryError(module._cl._ErrorRecord("clEnqueueReadBuffer", -4, ""))


def on_copies(monkeypatch, happens):
    """Have something happen at each copy, which is given as it is enqueued."""
    module = load()
    real = module.enqueue_copy

    def enqueue_copy(queue, into, source, **named):
        return happens(lambda: real(queue, into, source, **named), into, source, named)

    monkeypatch.setattr(module, "enqueue_copy", enqueue_copy)


def pressed_after(turn):
    """Make what presses Ctrl-C after one of the copies, and the list of those that were made."""
    made = []

    def happens(copy, *_):
        event = copy()
        made.append(event)
        if len(made) == turn:
            raise KeyboardInterrupt
        return event

    return happens, made


def hosts(met):
    """Return the memory of the host that copies worked on, there and back."""
    ups = [y for _, y, _ in met if isinstance(y, np.ndarray)]
    return ups, [x for x, _, _ in met if isinstance(x, np.ndarray)]


@pytest.mark.parametrize("code", "sz")
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_operands_are_copied_from_where_they_lie(whole, code, beta, rng, monkeypatch):
    """Each byte once, and by commands that block."""
    a, b, c = operands(rng, code)
    met = []

    def note(copy, *what):
        met.append(what)
        return copy()

    on_copies(monkeypatch, note)
    b = b.T.copy().T
    check(whole, a, b, c, beta)
    ups, downs = hosts(met)
    assert sum(x.nbytes for x in ups) == a.nbytes + b.nbytes + c.nbytes * (beta != 0)
    assert sum(x.nbytes for x in downs) == c.nbytes
    assert all(any(np.shares_memory(x, y) for y in (a, b, c)) for x in ups)
    assert all(np.shares_memory(x, c) for x in downs)
    assert all(named["is_blocking"] for *_, named in met)
    assert (len(ups), len(downs)) == (2 + (beta != 0), 1)
    assert engines.of(whole).threads.staging.count == 0


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("code", "sz")
def test_other_threads_copy_parts_of_what_is_large(shared, code, beta, rng, monkeypatch):
    """The driver copies one part each way; no other command has NumPy's memory."""
    met = []
    monkeypatch.setattr(engines.of(shared).threads.staging, "_most", 28)  # on few cores, too

    def note(copy, *what):
        met.append(what)
        return copy()

    on_copies(monkeypatch, note)
    for gaps in (False, True):
        a, b, c = operands(rng, code)
        b = np.concatenate([b, b])[: b.shape[0]] if gaps else b
        a = np.concatenate([a, a], axis=1)[:, : a.shape[1]] if gaps else a.T.copy().T
        met.clear()
        check(shared, a, b, c, beta)
        sent = a.nbytes + b.nbytes + c.nbytes * (beta != 0)
        for found, size in zip(hosts(met), (sent, c.nbytes), strict=True):
            assert sum(x.nbytes for x in found) == size
            assert max(x.nbytes for x in found) <= max(direct.FEW.own, 0.5) * size
            assert len(found) > 1
        blocking = [named["is_blocking"] for *_, named in met]
        assert blocking.count(True) == 2
        own = [x if isinstance(x, np.ndarray) else y for x, y, named in met if named["is_blocking"]]
        assert gaps or np.shares_memory(own[0], c if beta else a), "the largest one's"
        assert np.shares_memory(own[1], c)
        pinned = [x for pair in zip(*hosts(met), strict=False) for x in pair if x.dtype == np.uint8]
        assert not any(np.shares_memory(x, y) for x in pinned for y in (a, b, c))
    staging = engines.of(shared).threads.staging
    assert len(staging._spare) == staging.count > 0
    engines.of(shared).threads.trim()


@pytest.mark.parametrize("shape", [(2, 90, 3000), (3000, 90, 1), (1, 4000, 4), (500, 1, 500)])
@pytest.mark.parametrize("gap", [0, 3])
def test_parts_of_operands_that_are_thin_are_right(shared, shape, gap, rng):
    m, n, k = shape
    a, b, c = (random_matrix(rng, PRECISIONS["s"], x, y + gap)[:, :y]
               for x, y in ((m, k), (k, n), (m, n)))  # fmt: skip
    check(shared, a, b, c, 0.5)
    check(shared, a.T.copy().T, b.T.copy().T, c)


def test_a_part_is_no_larger_than_a_piece():
    shares = direct.Shares(0.3, 2, 4 * KB)
    operands = [(None, np.zeros((70, 90))), (None, np.zeros((600, 90))[:, :80])]
    _, others = direct._pieces(operands, shares)
    assert max(x.nbytes for _, (_, x) in others) <= 4 * KB
    own = 70 * 90 * 8 + 600 * 80 * 8 - sum(x.nbytes for _, (_, x) in others)
    assert 0.29 < own / (70 * 90 * 8 + 600 * 80 * 8) < 0.31


def test_ctrl_c_while_other_threads_copy_leaves_everything_usable(shared, rng, monkeypatch):
    a, b, c = operands(rng)
    happens, made = pressed_after(0)
    with monkeypatch.context() as patch:
        on_copies(patch, happens)
        check(shared, a, b, c)
    for turn in range(1, len(made) + 1):
        with monkeypatch.context() as patch:
            on_copies(patch, pressed_after(turn)[0])
            with registry.using(shared), pytest.raises(KeyboardInterrupt):
                gemm(1.0, a, b, 0.0, c)
        staging = engines.of(shared).threads.staging
        assert len(staging._spare) == staging.count, "all was proved to be free"
        check(shared, a, b, c)
    engines.of(shared).threads.trim()


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_memory_that_is_short_while_other_threads_copy_costs_no_result(
    shared, beta, rng, monkeypatch
):
    """Unless a part of a C that is read was overwritten by then."""
    monkeypatch.setattr(StreamedCall, "run", RUN)
    a, b, c = operands(rng)
    check(shared, a, b, c, beta)
    refusals, torn = [], 0

    def refused(copy, into, *_):
        refusals.append(isinstance(into, np.ndarray))
        if len(refusals) == turn:
            raise out_of_memory()
        return copy()

    for turn in range(1, 20):
        refusals.clear()
        before = c.copy()
        with monkeypatch.context() as patch:
            on_copies(patch, refused)
            try:
                check(shared, a, b, c, beta)
            except MemoryError:
                assert beta, "C is not read"
                assert refusals[-1], "C was not written before"
                torn += 1
                c[...] = before
        if len(refusals) < turn:
            break
    assert 3 < turn < 20
    assert (torn > 0) == (beta > 0)
    engines.of(shared).threads.trim()


@pytest.mark.parametrize("to_host", [False, True])
@pytest.mark.parametrize("most", [1, 2])
def test_ctrl_c_waits_for_threads_that_copy_and_no_other_begins(
    shared, most, to_host, rng, monkeypatch
):
    """Else one of them would write into a C that is the caller's again."""
    a, b, c = operands(rng)
    threads = engines.of(shared).threads
    monkeypatch.setattr(threads, "_most", most)
    check(shared, a, b, c)
    gate, began, copied, real = threading.Event(), [], [], np.copyto

    def copyto(into, source):
        if np.shares_memory(into, c) == to_host:
            began.append(into)
            place = len(began)
            gate.wait(SECONDS)
            time.sleep(0.1 * place)
            copied.append(into)
        real(into, source)

    def happens(copy, into, _, named):
        if named["is_blocking"] and isinstance(into, np.ndarray) == to_host:
            wait_until(lambda: len(began) == most)
            threading.Timer(0.1, gate.set).start()
            raise KeyboardInterrupt
        return copy()

    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", copyto)
        on_copies(patch, happens)
        with registry.using(shared), pytest.raises(KeyboardInterrupt):
            gemm(1.0, a, b, 0.0, c)
        assert len(copied) == most
        done = threading.Event()
        threads.submit(done.set)
        assert done.wait(SECONDS)
        assert len(began) == most
    check(shared, a, b, c)
    threads.trim()


def test_pinned_memory_that_a_second_ctrl_c_leaves_in_use_is_not_used_again(
    shared, rng, monkeypatch
):
    a, b, c = operands(rng)
    check(shared, a, b, c)
    staging = engines.of(shared).threads.staging

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(direct, "finish", interrupted)
        on_copies(patch, interrupted)
        with registry.using(shared), pytest.raises(KeyboardInterrupt):
            gemm(1.0, a, b, 0.0, c)
    assert staging._dropped
    assert not set(staging._dropped) & set(staging._spare)
    check(shared, a, b, c)
    engines.of(shared).threads.trim()


def test_threads_that_copy_beside_a_call_stay_until_its_end(shared, rng, monkeypatch):
    """The seconds after an earlier call may end while they are given what to copy."""
    threads, counts = engines.of(shared).threads, []
    submit = threads.submit

    def submit_late(job, **how):
        threads.trim()
        counts.append(threads._count)
        submit(job, **how)

    monkeypatch.setattr(threads, "submit", submit_late)
    check(shared, *operands(rng))
    assert 0 < counts[-1] == min(len(counts) - 1, threads._most)
    threads.trim()
    assert threads._count == 0


def test_what_no_thread_begins_is_copied_by_the_call(shared, rng, monkeypatch):
    """All of them may wait for what the call holds."""
    threads, late = engines.of(shared).threads, []
    monkeypatch.setattr(threads, "submit", late.append)
    a, b, c = operands(rng)
    check(shared, a, b, c, beta=0.5)
    c[:] = -1
    assert late
    for job in late:
        job()
    assert (c == -1).all(), "what the call copied is copied once more"


def test_without_pinned_memory_the_driver_copies_all(shared, rng, monkeypatch):
    monkeypatch.setattr(Staging, "lease", lambda *_: None)
    check(shared, *operands(rng))


def test_a_thread_that_cannot_copy_fails_the_call(shared, rng, monkeypatch):
    a, b, c = operands(rng)
    before = c.copy()

    def fails(*_):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", fails)
        with registry.using(shared), pytest.raises(MemoryError):
            gemm(1.0, a, b, 0.5, c)
    np.testing.assert_array_equal(c, before)
    check(shared, a, b, c)


def test_what_has_gaps_is_packed_and_what_lies_between_is_left(whole, rng):
    a, b = rng.uniform(-1, 1, (70, 100))[:, 5:95], rng.uniform(-1, 1, (90, 100))[:, 7:77]
    memory = rng.uniform(-1, 1, (100, 100))
    before, c = memory.copy(), memory[10:80, 20:90]
    for beta in (0.5, 0.0):
        check(whole, a, b, c, beta)
    memory[10:80, 20:90] = before[10:80, 20:90]
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("turn", [1, 2, 3, 4])
def test_ctrl_c_after_any_copy_leaves_everything_usable(whole, turn, gaps, beta, rng, monkeypatch):
    a, b, c = operands(rng)
    c = np.zeros((100, 100), np.float32)[:90, 5:85] if gaps else c
    check(whole, a, b, c, beta)
    happens, made = pressed_after(turn)
    with monkeypatch.context() as patch:
        on_copies(patch, happens)
        with registry.using(whole), suppress(KeyboardInterrupt):
            gemm(1.0, a, b, beta, c)
    assert len(made) == min(turn, 3 + (beta != 0))
    assert whole.memory.used == 0
    assert whole.memory.idle, "all was proved to be free"
    check(whole, a, b, c, beta)


def test_what_a_second_ctrl_c_leaves_in_use_is_not_used_again(whole, rng, monkeypatch):
    a, b, c = operands(rng)
    check(whole, a, b, c)
    leased = buffers_of(whole)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(direct, "finish", interrupted)
        on_copies(patch, interrupted)
        with registry.using(whole), pytest.raises(KeyboardInterrupt):
            gemm(1.0, a, b, 0.0, c)
    assert leased
    assert not buffers_of(whole)
    check(whole, a, b, c)
    assert not [x for x in buffers_of(whole) if x in leased]


def test_a_call_finds_buffers_and_arguments_as_the_one_before_left_them(whole, rng, monkeypatch):
    """Until alpha or beta is another one, or somebody else had the memory."""
    made, scratch, real = [], [], KernelRunner.repeated

    def repeated(self, values, state):
        made.append(values[:2])
        scratch.append((self.scratch_bytes, state))
        return real(self, values, state)

    monkeypatch.setattr(KernelRunner, "repeated", repeated)
    a, b, c = operands(rng)
    check(whole, a, b, c, 0.5)
    found = buffers_of(whole)
    for _ in range(3):
        check(whole, *operands(rng), 0.5)
        assert buffers_of(whole) == found
    ((nbytes, state),) = scratch
    assert len(found) == 3 + (nbytes > 0)
    assert nbytes == 0 or state._scratch in found
    assert made == [(1.5, 0.5)]
    for beta in (0.25, 0.5):
        check(whole, *operands(rng), beta)
    assert made == [(1.5, 0.5), (1.5, 0.25), (1.5, 0.5)]
    whole.memory.trim()
    for _ in range(2):
        check(whole, *operands(rng), 0.5)
    assert made[3:] == [(1.5, 0.5)]


def test_a_call_that_copies_all_itself_may_follow_one_with_threads(shared, rng, monkeypatch):
    a, b, c = operands(rng)
    check(shared, a, b, c)
    monkeypatch.setattr(direct, "SENT", 1 << 30)
    check(shared, a, b, c)


def test_what_launched_a_call_that_failed_launches_no_other(whole, rng, monkeypatch):
    """Its tickets need not be zeros any more."""
    states, real = [], KernelRunner.repeated

    def repeated(self, values, state):
        states.append(state)
        return real(self, values, state)

    monkeypatch.setattr(KernelRunner, "repeated", repeated)
    a, b, c = operands(rng)
    check(whole, a, b, c)
    happens, _ = pressed_after(2)
    with monkeypatch.context() as patch:
        on_copies(patch, happens)
        with registry.using(whole), pytest.raises(KeyboardInterrupt):
            gemm(1.5, a, b, 0.0, c)
    check(whole, a, b, c)
    first, second = states
    assert second is not first


def test_many_kinds_of_calls_in_turn_are_right(whole, rng):
    """More than may keep their buffers, and of sizes that share them."""
    kinds = [operands(rng, code, m, 80, 70) for code in "sz" for m in range(90, 97)]
    for _ in range(3):
        for a, b, c in kinds:
            check(whole, a, b, c)
            assert whole.memory.used == 0


def test_a_call_keeps_no_array_alive(whole, rng):
    a, b, c = operands(rng)
    check(whole, a, b, c, 0.5)
    kept = [weakref.ref(x) for x in (a, b, c)]
    del a, b, c
    assert [x() for x in kept] == [None] * 3


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_copy_that_is_refused_once_costs_no_result(apart, turn, rng, monkeypatch):
    turns = []

    def refused(copy, *_):
        turns.append(None)
        if len(turns) == turn:
            raise out_of_memory()
        return copy()

    on_copies(monkeypatch, refused)
    check(apart, *operands(rng))
    assert len(turns) >= turn + 3


def test_a_result_that_may_be_torn_is_not_read_again(apart, rng, monkeypatch):
    """Where it lies dense: one with gaps is written when all of it has come."""
    a, b, c = operands(rng)
    refusals = []

    def refused(copy, into, *_):
        if isinstance(into, np.ndarray) and not refusals:
            refusals.append(None)
            raise out_of_memory()
        return copy()

    on_copies(monkeypatch, refused)
    with registry.using(apart), pytest.raises(MemoryError, match=r"sgemm on .*no memory"):
        gemm(1.0, a, b, 0.5, c)
    refusals.clear()
    check(apart, a, b, np.ones((100, 100), np.float32)[:90, 5:85], 0.5)
    assert refusals


def test_a_failure_that_is_no_shortage_is_explained(whole, rng, monkeypatch):
    a, b, c = operands(rng)
    before = c.copy()

    def lost(*_):
        module = load()
        raise module.RuntimeError(module._cl._ErrorRecord("clEnqueueWriteBuffer", -2, ""))

    with monkeypatch.context() as patch:
        on_copies(patch, lost)
        with registry.using(whole), pytest.raises(DeviceError, match="DEVICE_NOT_AVAILABLE"):
            gemm(1.0, a, b, 0.5, c)
    np.testing.assert_array_equal(c, before)
    check(whole, a, b, c)


def test_a_call_that_nobody_wants_any_more_ends(whole, rng):
    a, b, c = operands(rng)
    before, stop = c.copy(), Stop()
    stop.set()
    call = Call.of(1.0, a, b, 0.5, np.asfortranarray(c))
    runner = engines.of(whole).runner(describe(*call.operands, call.c, reads_c=True))
    with pytest.raises(CancelledError):
        runner.run(call, stop)
    np.testing.assert_array_equal(call.c, before)


def test_a_limit_of_memory_is_kept(device, rng, monkeypatch):
    apart = separate(device)
    apart.memory.trim()
    apart.memory.peak = 0
    monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", str(60 / 1024))
    check(apart, *operands(rng))
    assert 0 < apart.memory.peak <= 60 * KB


def test_threads_get_their_own_results(whole):
    with registry.using(whole):
        multiply_in_threads(6)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
@pytest.mark.slow
def test_signals_at_any_moment_leave_everything_usable(whole, rng):
    """Also while a call cleans up: the second comes soon after the first."""
    a, b, c = operands(rng, m=200, n=180, k=160)
    want = a @ b
    check(whole, a, b, c)

    def work():
        c[...] = np.nan
        with registry.using(whole):
            gemm(1.0, a, b, 0.0, c)

    press_at_any_moment(work, lambda: np.testing.assert_allclose(c, want, atol=1e-4), rng)
    whole.running.clear()
    assert whole.memory.used == 0
