"""Scratch memory is leased to one call at a time, and large pieces of it are not kept for ever."""

from __future__ import annotations

import time

import numpy as np
import pytest

import clgemm
from clgemm.kernels.family import TICKETS
from clgemm.runtime import registry, scratch
from clgemm.runtime.opencl import cl

SMALL, BIG = 8192, 1 << 20


def pool_of(device):
    return scratch.ScratchPool(device.context, system_svm=device.traits.system_svm)


class RacedList(list):
    """Idle pieces, of which another thread leases each one just before it is taken."""

    def remove(self, piece):
        self[:] = [x for x in self if x is not piece]
        super().remove(piece)


def test_a_piece_that_another_thread_leases_meanwhile_is_left_to_it(device):
    pool = pool_of(device)
    first, last = pool.lease(BIG), pool.lease(SMALL)
    pool._idle = RacedList([first, last])
    taken = pool.lease(BIG)
    assert taken is not first
    assert taken.size >= BIG
    assert not pool._idle


def test_of_the_idle_pieces_the_smallest_that_fits_is_leased(device):
    pool = pool_of(device)
    pieces = [pool.lease(size) for size in (4 * BIG, 2 * BIG, BIG, SMALL)]
    for piece in pieces:
        pool.release(piece)
    assert pool.lease(BIG) is pieces[2]
    assert pool._idle == pieces[:2]


@pytest.fixture
def quick(device, monkeypatch):
    """Open the device anew, with scratch that is large, and given back, sooner."""
    monkeypatch.setattr(scratch, "LARGE", 0)
    monkeypatch.setattr(scratch, "IDLE_SECONDS", 0.05)
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    return registry.Device(found, "a test")


def test_large_scratch_is_given_back_when_no_call_comes(quick, rng, monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    a, b = rng.standard_normal((200, 300)), rng.standard_normal((300, 210))
    pool = quick.scratch
    pool.release(pool.lease(BIG))
    with registry.using(quick):
        for _ in range(2):
            deadline = time.monotonic() + 30
            while pool._idle and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not pool._idle
            np.testing.assert_allclose(clgemm.matmul(a, b), a @ b, rtol=1e-9, atol=1e-9)
            pool.release(pool.lease(BIG))


def test_small_scratch_is_kept(device, monkeypatch):
    monkeypatch.setattr(scratch, "IDLE_SECONDS", 0.0)
    pool = pool_of(device)
    piece = pool.lease(SMALL)
    pool.release(piece)
    time.sleep(0.05)
    assert pool._idle == [piece]


def test_tickets_are_zeros_that_launches_share_until_one_fails(device):
    pool = pool_of(device)
    tickets = pool.tickets(device.queue)
    assert pool.tickets(device.queue) is tickets
    found = np.ones(TICKETS, np.uint32)
    cl.enqueue_copy(device.queue, found, tickets)
    assert not found.any()
    pool.drop_tickets()
    assert pool.tickets(device.queue) is not tickets
