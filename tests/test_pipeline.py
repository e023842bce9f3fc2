"""Products with copies: in blocks, under any limit, beside others, interrupted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import reference
from test_transfer import HOWS, matrices, memory_for, separate

from clgemm import driver, flow, host
from clgemm.problem import PRECISIONS
from clgemm.runtime import session as sessions
from clgemm.tuning.check import random_matrix

KB = 1 << 10


@pytest.fixture
def apart(session, monkeypatch):
    """Give a session on the device that is told it has a memory of its own; threads copy all."""
    monkeypatch.setattr(flow, "INLINE", 0)
    monkeypatch.setattr(flow, "SMALL_PART", 1000)
    yield separate(session)
    memory = separate(session).memory
    assert memory.used == 0
    assert not separate(session).running
    memory.trim()
    memory.peak = 0


def limit(monkeypatch, nbytes):
    monkeypatch.setenv("CLGEMM_DEVICE_MEMORY_MB", str(nbytes / 2**20))


def check(session, code, a, b, c, alpha=1.5, beta=0.0):
    """Compute on a session and compare with the reference."""
    want, size = reference.gemm(alpha, a, b, beta, c)
    with sessions.using(session):
        driver.gemm(alpha, a, b, beta, c)
    reference.assert_within_bound(c, want, size, a.shape[-1], PRECISIONS[code].eps)


@pytest.mark.parametrize("room", [60 * KB, 400 * KB, 1 << 30])
@pytest.mark.parametrize("code", "sdcz")
def test_blocks_of_every_layout(apart, code, room, rng, monkeypatch):
    limit(monkeypatch, room)
    precision = PRECISIONS[code]
    shapes = ((150, 130, 140), (1000, 9, 11), (7, 900, 13), (12, 10, 3000), (1, 1, 5000))
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
    with sessions.using(apart):
        driver.gemm(1.0, a.T, b.T, 0.0, c, conj_a=True, conj_b=True)
    reference.assert_within_bound(c, want, size, 130, precision.eps)


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
        with sessions.using(apart):
            driver.gemm(1.0, a, b, 0.0, c)
        results.add(c.tobytes())
    assert len(results) == 1


def with_limits(session, **facts):
    """Open a session on the same device with other facts, which shares no memory with others."""
    found = next(f for f in sessions.devices.find() if f.traits == session.traits)
    return sessions.Session(found._replace(traits=replace(found.traits, **facts)), "a test")


def test_operands_larger_than_an_allocation_go_in_blocks(session, rng, monkeypatch):
    """On CPU devices too, where what fits is not copied at all."""
    hosted = []
    monkeypatch.setattr(host, "gemm", lambda *arguments: hosted.append(arguments))
    small = with_limits(session, max_allocation=100 * KB, system_svm=False)
    a, b = (
        random_matrix(rng, PRECISIONS["d"], 140, 120),
        random_matrix(rng, PRECISIONS["d"], 120, 150),
    )
    check(small, "d", a, b, np.empty((140, 150)))
    assert small.memory.peak > 0
    assert hosted == []


def test_a_limit_that_is_set_binds_devices_that_share_memory(session, rng, monkeypatch):
    shared = with_limits(session)
    a, b = (
        random_matrix(rng, PRECISIONS["d"], 140, 120),
        random_matrix(rng, PRECISIONS["d"], 120, 150),
    )
    limit(monkeypatch, 200 * KB)
    check(shared, "d", a, b, np.empty((140, 150)))
    assert 0 < shared.memory.peak <= 200 * KB


def test_too_little_memory_for_anything_leaves_the_host(apart, rng, monkeypatch):
    limit(monkeypatch, 100)
    computed, real = [], host.gemm
    monkeypatch.setattr(host, "gemm", lambda *x: (computed.append(x), real(*x)))
    a, b = random_matrix(rng, PRECISIONS["c"], 40, 50), random_matrix(rng, PRECISIONS["c"], 50, 30)
    c = random_matrix(rng, PRECISIONS["c"], 40, 30)
    check(apart, "c", a, b, c, 1.0 - 2j, 0.5j)
    assert len(computed) == 1
