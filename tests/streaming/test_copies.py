"""What copies need: device memory and staging, bounded, kept and given back; threads; parts."""

from __future__ import annotations

import importlib.util
import itertools
import threading
import time
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import PATIENCE as SECONDS
from helpers import wait_until as until
from layouts import separate
from numpy.lib.stride_tricks import as_strided

from clgemm.runtime import idle as idle_module
from clgemm.runtime import memory
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.memory import DeviceMemory, rounded
from clgemm.runtime.opencl import cl, load
from clgemm.runtime.reentry import entry
from clgemm.streaming import copy_threads
from clgemm.streaming.copies import BlockCopy, Copies, chunks
from clgemm.streaming.copy_threads import CopyThreads
from clgemm.streaming.staging import BYTES, Staging

MB = 1 << 20


def out_of_memory():
    """Make the error of a device that has no memory."""
    module = load()
    return module.MemoryError(module._cl._ErrorRecord("clCreateBuffer", -4, ""))


@pytest.fixture
def pool(device):
    return DeviceMemory(device.context, device.traits.max_allocation)


def test_buffers_are_used_again(pool):
    with pool.lease([5000, 70000], MB) as first:
        assert [x.size >= size for x, size in zip(first, (5000, 70000), strict=True)] == [True] * 2
        used = pool.used
        assert used == sum(x.size for x in first)
    assert (pool.used, pool.idle) == (0, used)
    with pool.lease([70001, 4990], MB) as second:
        assert {x.int_ptr for x in second} == {x.int_ptr for x in first}
        assert (pool.used, pool.idle, pool.peak) == (used, 0, used)


@pytest.mark.parametrize("size", [1, 4096, 5000, 70001, 2**20 - 1, 2**20 + 1, 10**9])
def test_sizes_are_rounded_a_little(size):
    assert size <= rounded(size) <= max(memory.SMALLEST, size * 9 / 8)


def test_a_lease_keeps_to_the_limit_even_where_rounding_would_not(pool):
    with pool.lease([70001, 70001], 140_003):
        assert pool.peak <= 140_003


def test_idle_buffers_make_room(pool):
    for size in (60_000, 90_000, 120_000, 90_000, 200_000):
        with pool.lease([size], 200_000):
            assert pool.used + pool.idle <= 200_000
    assert pool.idle <= 200_000 // memory.IDLE_SHARE
    pool.trim()
    assert pool.idle == 0
    assert pool.peak <= 200_000


def test_a_lease_that_rests_finds_its_buffers_again(pool):
    lease = pool.lease([5000, 6000], MB, rests=True)
    with lease as first:
        mine = [x.int_ptr for x in first]
    assert (pool.used, pool.idle) == (0, lease.total)
    with pool.lease([5000, 6000], MB) as others:
        assert not {x.int_ptr for x in others} & set(mine)
    for _ in range(2):
        with lease as again:
            assert again is first
            assert [x.int_ptr for x in again] == mine
            assert pool.used == lease.total
    assert pool.idle == 2 * lease.total
    pool.trim()
    assert (pool.used, pool.idle) == (0, 0)


def test_who_needs_the_memory_takes_that_of_a_lease_that_rests(pool):
    lease = pool.lease([50_000, 20_000], 300_000, rests=True)
    with lease as first:
        mine = {x.int_ptr for x in first}
    with pool.lease([50_000], 80_000) as (other,):
        assert other.int_ptr in mine
        assert pool.used + pool.idle <= 80_000
    with lease as second:
        assert second is not first
        assert [x.size >= size for x, size in zip(second, (50_000, 20_000), strict=True)]
        assert pool.used == lease.total
    assert pool.idle <= 300_000 // memory.IDLE_SHARE


def test_a_lease_whose_buffers_ctrl_c_kept_from_others_gets_whole_ones(pool):
    class Interrupted(list):
        def pop(self):
            super().pop()
            raise KeyboardInterrupt

    lease = pool.lease([50_000, 20_000], MB, rests=True)
    with lease:
        pass
    lease.taken = Interrupted(lease.taken)
    with pytest.raises(KeyboardInterrupt):
        pool.trim()
    with lease as buffers:
        assert [x.size >= size for x, size in zip(buffers, (50_000, 20_000), strict=True)]
        assert pool.used == lease.total
    pool.trim()
    assert (pool.used, pool.idle) == (0, 0)


def test_few_leases_rest(pool):
    """The others' buffers are anybody's, so that many kinds of calls share them."""
    leases = [pool.lease([5000], MB, rests=True) for _ in range(memory.MOST_RESTING + 2)]
    found = []
    for lease in leases:
        with lease as buffers:
            found.append(buffers[0].int_ptr)
    assert pool.idle == (memory.MOST_RESTING + 1) * leases[0].total
    assert len(set(found)) == memory.MOST_RESTING + 1
    with leases[-1] as buffers:
        assert buffers[0].int_ptr == found[-1]


def test_a_lease_that_did_not_get_all_does_not_rest(pool, monkeypatch):
    real = pool._allocate

    def allocate(size):
        if size > 5500:
            raise out_of_memory()
        return real(size)

    lease = pool.lease([5000, 6000], MB, rests=True)
    with lease:
        pass
    pool.trim()
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_allocate", allocate)
        with pytest.raises(cl.Error), lease:
            pytest.fail("there was no memory")
    assert not pool._resting
    with lease as buffers:
        assert [x.size >= size for x, size in zip(buffers, (5000, 6000), strict=True)]
        assert pool.used == lease.total


def test_a_lease_waits_for_memory(pool):
    order, held, free = [], threading.Event(), threading.Event()

    def first():
        with pool.lease([80_000], 100_000):
            held.set()
            free.wait(SECONDS)
            order.append("first ends")

    thread = threading.Thread(target=first)
    thread.start()
    assert held.wait(SECONDS)
    threading.Timer(0.1, free.set).start()
    with pool.lease([30_000], 100_000):
        order.append("second begins")
    thread.join(SECONDS)
    assert order == ["first ends", "second begins"]


def test_a_lease_is_held_by_the_thread_that_uses_it_now(pool):
    """Not by the one that made it, whose call is over."""
    order, held, free = [], threading.Event(), threading.Event()

    @entry()
    def make():
        lease = pool.lease([80_000], 100_000, rests=True)
        with lease:
            return lease

    @entry()
    def hold(lease):
        with lease:
            held.set()
            free.wait(SECONDS)
            order.append("first ends")

    thread = threading.Thread(target=hold, args=(make(),))
    thread.start()
    assert held.wait(SECONDS)
    threading.Timer(0.1, free.set).start()
    with pool.lease([30_000], 100_000):
        order.append("second begins")
    thread.join(SECONDS)
    assert order == ["first ends", "second begins"]


def test_what_is_refused_leaves_the_books_right(pool, monkeypatch):
    real, calls = pool._allocate, []

    def allocate(size):
        calls.append(size)
        if len(calls) > 1:
            raise out_of_memory()
        return real(size)

    monkeypatch.setattr(pool, "_allocate", allocate)
    with pytest.raises(cl.Error), pool.lease([5000, 6000], MB):
        pytest.fail("there was no memory")
    assert pool.used == 0


def test_idle_memory_is_given_up_before_a_refusal_is_believed(pool, monkeypatch):
    with pool.lease([100_000], MB):
        pass
    assert pool.idle
    real = cl.Buffer

    def buffer(context, flags, size):
        if pool.idle:
            raise out_of_memory()
        return real(context, flags, size)

    monkeypatch.setattr(load(), "Buffer", buffer)
    with pool.lease([50_000], MB) as (x,):
        assert x.size >= 50_000


def test_staging_is_bounded(device, monkeypatch):
    monkeypatch.setenv("CLGEMM_STAGING_MB", str(2 * (BYTES >> 20) + 1))
    staging, queue = Staging(device.context, 5), cl.CommandQueue(device.context)
    taken = [staging.lease(queue) for _ in range(4)]
    assert [x is not None for x in taken] == [True, True, False, False]
    assert staging.count == 2
    for x in taken[:2]:
        assert x.memory.nbytes == BYTES
        x.memory[...] = 3
        staging.release(x)
    assert staging.lease(queue) in taken
    staging.release(taken[0] if staging._spare[0] is taken[1] else taken[1])
    staging.trim()
    assert staging.count == 0
    monkeypatch.setenv("CLGEMM_STAGING_MB", "0")
    assert staging.lease(queue) is None


def test_staging_does_without_pinned_memory(device, monkeypatch):
    def buffer(*_):
        raise out_of_memory()

    staging, queue = Staging(device.context, 5), cl.CommandQueue(device.context)
    monkeypatch.setattr(load(), "Buffer", buffer)
    piece = staging.lease(queue)
    assert piece.memory.nbytes == BYTES
    staging.release(piece)
    assert staging.count == 0
    assert not staging._spare


def test_an_idle_timer_runs_once_after_the_last_touch():
    """By a clock that stands still: a copy of the module has it, and no other timer."""
    spec = importlib.util.spec_from_file_location("an_idle_timer", idle_module.__file__)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    now, asked, woken, runs = [50.0], SimpleQueue(), SimpleQueue(), []

    def sleep(seconds):
        asked.put(seconds)
        woken.get(timeout=SECONDS)

    def after(seconds):
        """Let time pass, and give what the timer sleeps for from now on."""
        now[0] += seconds
        woken.put(None)
        return pytest.approx(asked.get(timeout=SECONDS))

    copied.time = SimpleNamespace(monotonic=lambda: now[0])
    event = SimpleNamespace(wait=sleep)
    copied.threading = SimpleNamespace(
        Event=lambda: event, Lock=threading.Lock, Thread=threading.Thread
    )
    timer = copied.IdleTimer(2.0, lambda: runs.append(now[0]))
    timer.touch()
    assert asked.get(timeout=SECONDS) == pytest.approx(2.0)
    for _ in range(3):
        now[0] += 0.5
        timer.touch()
    assert after(0.5) == 1.5, "it is touched 2.0 s before 53.5"
    assert runs == []
    now[0] += 1.5
    woken.put(None)
    until(lambda: runs)
    timer.touch()
    assert asked.get(timeout=SECONDS) == pytest.approx(2.0)
    now[0] += 2.0
    woken.put(None)
    until(lambda: len(runs) == 2)
    assert runs == [53.5, 55.5]


def test_an_idle_timer_without_a_thread_tries_again_at_the_next_touch(monkeypatch):
    runs = []
    timer = IdleTimer(0.05, lambda: runs.append(None))
    for error in (RuntimeError, KeyboardInterrupt):

        def start(_, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with nullcontext() if error is RuntimeError else pytest.raises(KeyboardInterrupt):
                timer.touch()
        assert not runs
    timer.touch()
    until(lambda: runs)


def test_an_idle_timer_whose_lock_ctrl_c_released_tries_again_at_the_next_touch():
    runs = []
    timer = IdleTimer(0.05, lambda: runs.append(None))
    lock = timer._lock

    class Interrupted:
        def __enter__(self):
            return lock.__enter__()

        def __exit__(self, *what):
            lock.__exit__(*what)
            raise KeyboardInterrupt

    timer._lock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        timer.touch()
    timer._lock = lock
    timer.touch()
    until(lambda: runs)


@pytest.fixture
def threads(device):
    apart = separate(device)
    made = CopyThreads(apart)
    yield made
    made.trim()
    assert not apart.running
    assert made.staging.count == 0


def test_all_is_given_back_when_no_call_comes(device, threads):
    before, pool = threading.active_count(), separate(device).memory
    threads._timer._seconds = 0.05
    with threads.in_use() as queues, pool.lease([4000], MB) as (buffer,):
        copies = Copies(threads, *queues)
        for to_host in (False, True):
            x = np.ones((1, 10, 100), np.float32)
            copies.start(BlockCopy(buffer, [(0, x)], to_host=to_host))
            until(lambda: copies.advance() or not copies._leased)
        assert threads._count == min(threads._most, 2), "one for each chunk until all are there"
        time.sleep(0.2)
        assert threads.staging.count, "not while a call is there"
    until(lambda: not (threads._count or threads.staging.count or pool.idle))
    until(lambda: threading.active_count() <= before)


def gate_to(threads):
    """Keep the only thread busy until the event is set that is returned."""
    threads._most, gate = 1, threading.Event()
    threads.submit(lambda: gate.wait(SECONDS))
    until(lambda: not threads._jobs)
    return gate


def test_what_comes_first_is_copied_first(threads):
    gate, done, order = gate_to(threads), threading.Event(), []
    threads.submit_idle(lambda: order.append("pages"))
    threads.submit_idle(done.set)
    for name, first in (("out", False), ("out too", False), ("home", True)):
        threads.submit(partial(order.append, name), first=first)
    gate.set()
    assert done.wait(SECONDS)
    assert order == ["home", "out", "out too", "pages"]


def test_a_copy_that_fails_fails_the_call(device, threads):
    with threads.in_use() as queues, separate(device).memory.lease([4000], MB) as (buffer,):
        copies = Copies(threads, *queues)
        x = np.ones((1, 4, 5), np.float32)
        x.flags.writeable = False
        copies.start(BlockCopy(buffer, [(0, x)], to_host=True))
        with pytest.raises(ValueError, match="read-only"):
            until(copies.advance)
        assert copies.abandon()
        copies.close(is_idle=True)
    assert len(threads.staging._spare) == threads.staging.count


def test_what_no_thread_begins_is_copied_by_the_call(device, threads):
    """All of them may wait for what the call holds."""
    gate, x = gate_to(threads), np.arange(1000, dtype=np.float32).reshape(1, 10, 100)
    got = np.zeros_like(x)
    with threads.in_use() as queues, separate(device).memory.lease([4000], MB) as (buffer,):
        copies = Copies(threads, *queues)
        for array, to_host in ((x, False), (got, True)):
            copies.start(BlockCopy(buffer, [(0, array)], to_host=to_host))
            until(lambda: copies.advance() or not copies._leased)
    np.testing.assert_array_equal(got, x)
    got[:], done = -1, threading.Event()
    threads.submit(done.set)
    gate.set()
    assert done.wait(SECONDS)
    assert (got == -1).all(), "what the call copied is copied once more"


@pytest.mark.parametrize("when", [0, 1])
def test_jobs_are_done_where_threads_cannot_be_started(threads, when, monkeypatch):
    """In the calling thread if there is none; what only prepares is left out then."""
    threads._most, real, done = 3, threading.Thread.start, SimpleQueue()

    def start(thread):
        if threads._count >= when:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(5):
        threads.submit(lambda: done.put(threading.current_thread()))
    workers = {done.get(timeout=SECONDS) for _ in range(5)}
    assert workers == {threading.main_thread()} if when == 0 else len(workers) == 1
    assert not threads._jobs
    threads.submit_idle(lambda: done.put("idle"))
    assert done.empty() if when == 0 else done.get(timeout=SECONDS) == "idle"


def test_a_job_whose_token_was_never_put_keeps_no_other_from_being_done(threads, monkeypatch):
    """Ctrl-C may come between the two."""
    threads._most, done = 1, threading.Event()

    class Interrupted(SimpleQueue):
        def put(self, _):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threads, "_have_threads", lambda: True)
        patch.setattr(threads, "_tokens", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            threads.submit(lambda: None)
    threads.submit(done.set)
    assert done.wait(SECONDS)


class Interrupting(SimpleQueue):
    """A queue during whose n-th use Ctrl-C is pressed, after the fact."""

    def __init__(self, turn):
        self.turn = turn

    def get(self, *arguments, **named):
        found = super().get(*arguments, **named)
        self.turn -= 1
        if self.turn == 0:
            raise KeyboardInterrupt
        return found


@pytest.mark.parametrize("turn", [1, 2])
def test_what_was_heard_as_ctrl_c_came_is_not_waited_for_again(device, threads, turn):
    x = np.ones((1, 10, 100), np.float32)
    with threads.in_use() as queues, separate(device).memory.lease([4000], MB) as (buffer,):
        copies = Copies(threads, *queues)
        copies.ended = Interrupting(turn)
        copies.start(BlockCopy(buffer, [(0, x)] * 2, to_host=False))
        with pytest.raises(KeyboardInterrupt):
            until(copies.advance)
        assert copies.abandon()
        copies.close(is_idle=True)
    assert len(threads.staging._spare) == threads.staging.count


def test_what_ctrl_c_kept_from_being_handed_over_is_not_waited_for(device, threads, monkeypatch):
    def submit(*_, **__):
        raise KeyboardInterrupt

    x = np.ones((1, 10, 100), np.float32)
    with threads.in_use() as queues, separate(device).memory.lease([4000], MB) as (buffer,):
        copies = Copies(threads, *queues)
        copies.start(BlockCopy(buffer, [(0, x)], to_host=False))
        monkeypatch.setattr(threads, "submit", submit)
        with pytest.raises(KeyboardInterrupt):
            copies.advance()
        assert copies.abandon()
        copies.close(is_idle=True)


def test_a_copy_that_runs_is_waited_for_and_no_other_begins(device, threads, monkeypatch):
    gate, began, copied, real = threading.Event(), threading.Event(), [], np.copyto

    def copyto(into, source):
        began.set()
        gate.wait(SECONDS)
        copied.append(source)
        real(into, source)

    monkeypatch.setattr(np, "copyto", copyto)
    threads._most = 1
    x = np.ones((1, 10, 100), np.float32)
    with threads.in_use() as queues, separate(device).memory.lease([8000], MB) as (buffer,):
        copies = Copies(threads, *queues)
        copies.start(BlockCopy(buffer, [(0, x), (4000, x)], to_host=False))
        copies.advance()
        assert began.wait(SECONDS)
        threading.Timer(0.1, gate.set).start()
        assert copies.abandon()
        assert len(copied) == 1
        copies.close(is_idle=True)
        done = threading.Event()
        threads.submit(done.set)
        assert done.wait(SECONDS)
    assert len(copied) == 1


def test_buffers_that_may_be_in_use_are_not_leased_again(pool):
    lease = pool.lease([5000], MB)
    with lease as dropped:
        lease.is_idle = False
    assert (pool.used, pool.idle) == (0, 0)
    for other in (pool.lease([5000], MB), lease):
        with other as taken:
            assert len(taken) == 1
            assert taken[0].int_ptr != dropped[0].int_ptr
    assert pool.idle == lease.total


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("name", ["_rest", "_evict"])
@pytest.mark.parametrize("turn", range(2))
def test_a_lease_ends_whenever_ctrl_c_comes(pool, turn, name, rests, monkeypatch):
    """Else what it took would be missing for ever, and the next large call would wait for it."""
    calls, real = [], getattr(pool, name)

    def may_interrupt():
        calls.append(None)
        if len(calls) == turn + 1:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        pool.lease([50_000, 60_000], 200_000, rests=rests),
    ):
        monkeypatch.setattr(pool, name, lambda x: (may_interrupt(), real(x), may_interrupt()))
    monkeypatch.undo()
    assert pool.used == 0
    with pool.lease([150_000], 200_000):
        pass


def test_a_lease_ends_with_its_call_though_somebody_keeps_the_exception(pool, monkeypatch):
    """Its frames have the lease, which Ctrl-C kept from being ended."""
    done = []

    def interrupted(_):
        raise KeyboardInterrupt

    @entry()
    def call():
        with pool.lease([150_000], 200_000):
            done.append(threading.current_thread())

    monkeypatch.setattr(pool, "end", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        call()
    monkeypatch.undo()
    assert (pool.used > 0, len(done)) == (True, 1)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    assert thread in done, "another thread waits for it"
    call()
    assert len(done) == 3
    assert kept


def test_staging_that_may_be_in_use_is_not_leased_again(threads):
    with threads.in_use() as (up, down):
        copies = Copies(threads, up, down)
        dropped = copies._lease()
        copies.close(is_idle=False)
        leased = [threads.staging.lease(up) for _ in range(threads.staging._most)]
        assert dropped not in leased
        assert None not in leased, "there is room for as many"
        for staging in leased:
            threads.staging.release(staging)
    threads.trim()
    dropped.memory[...] = 1  # it is there still


@pytest.mark.parametrize("most", [1, 16, 100, 1000, 10**6])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (1, 40, 3), (50, 2, 2), (2, 1, 300)])
def test_chunks_are_dense_in_order_and_small(shape, most):
    memory_ = np.arange(2 * np.prod(shape), dtype=np.float64)
    x = as_strided(memory_, shape, (16 * shape[1] * shape[2], 16 * shape[2], 16))
    most = max(most, 8)
    found = list(chunks(x, most))
    assert all(part.nbytes <= most for _, part in found)
    offsets = np.cumsum([0, *(part.nbytes for _, part in found)])
    assert [offset for offset, _ in found] == offsets[:-1].tolist()
    np.testing.assert_array_equal(np.concatenate([p.ravel() for _, p in found]), x.ravel())
    assert all(np.shares_memory(p, memory_) for _, p in found)
    assert len(found) <= 2 * -(-x.nbytes // most) + shape[0] * (shape[1] + 1) * (most < 100)


@pytest.mark.parametrize("offset", [0, 100, 5000])
def test_pages_are_taken_once_and_keep_what_they_hold(offset):
    resource = pytest.importorskip("resource", reason="another system counts page faults otherwise")
    x = np.empty(4 * copy_threads.PAGES_BYTES, np.uint8)[offset:]
    x[:10] = 7
    found = list(copy_threads.page_ranges(x))
    first, last = x.ctypes.data, x.ctypes.data + x.nbytes
    assert found[0][0] <= first < found[0][0] + copy_threads.PAGE
    assert found[-1][0] + found[-1][1] == last
    for (start, size), (after, _) in itertools.pairwise(found):
        assert start + size == after
        assert after % copy_threads.PAGES_BYTES == 0
    if not all(copy_threads.populate(*chunk) for chunk in found):
        pytest.skip("this system takes no pages in advance")
    mine = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # other threads have theirs
    before = resource.getrusage(mine).ru_minflt
    assert np.array_equal(x[:10], np.full(10, 7, np.uint8))
    x[...] = 1
    assert resource.getrusage(mine).ru_minflt - before < 50


def test_memory_that_is_not_there_cannot_be_taken():
    assert not copy_threads.populate(copy_threads.PAGE, copy_threads.PAGE)
