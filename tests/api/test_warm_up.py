"""What `warm_up` does beforehand: search, times of both sides, kernels; and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import entry_with

import clgemm
from clgemm.api import warm_up as face
from clgemm.dispatch import break_even, engine, engines
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, opencl, programs, registry
from clgemm.runtime.device import Device
from clgemm.tuning.search import search
from clgemm.tuning.store import lookup

S = PRECISIONS["s"]


@pytest.fixture
def fresh(device, monkeypatch, tmp_path):
    """Give the engine of a device of which nothing is known, in a directory of its own."""
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    made = Device(devices.Found(device.context.devices[0], device.traits), "a test")
    with registry.using(made):
        yield engines.of(made)


@pytest.fixture
def built(monkeypatch):
    """List what is built from here on."""
    found, real = [], programs.compiled
    monkeypatch.setattr(programs, "compiled", lambda *x: found.append(x[1]) or real(*x))
    return found


@pytest.mark.usefixtures("fresh")
def test_nothing_is_decided_or_built_by_the_first_product(built, monkeypatch):
    a = np.ones((300, 200), np.float32)
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    clgemm.warm_up(((300, 200), (200, 100)), (a.T, a))
    assert built
    built.clear()
    monkeypatch.setattr(engine.Engine, "_decide", None)
    b = np.ones((200, 100), np.float32)
    np.testing.assert_allclose(clgemm.matmul(a, b), a @ b)
    np.testing.assert_allclose(clgemm.matmul(a.T, a), a.T @ a)
    assert built == []


@pytest.mark.usefixtures("fresh")
def test_arrays_on_a_device_are_warmed_up_where_they_lie(built):
    a = np.ones((150, 150), np.float32)
    x = clgemm.to_device(a)
    clgemm.warm_up((x, x))
    assert built
    assert all(event.command_execution_status == 0 for event in x.events), "it has waited"
    built.clear()
    np.testing.assert_array_equal(clgemm.matmul(x, x).get(), a @ a)
    assert built == []
    assert type(x) is opencl.arrays().Array


def test_both_sides_are_timed_once_and_products_go_by_it(fresh, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    found = lookup.defaults(fresh.device.traits, S, "a test")
    lookup.store_for(fresh.device.traits).write("gemm.s", entry_with(*found.configs))
    monkeypatch.setattr(break_even, "SHAPES", break_even.SHAPES[:8])
    a = np.ones((200, 200), np.float32)
    clgemm.explain(a, a)
    assert fresh.break_evens.known(S) is None, "nothing is measured by asking"
    clgemm.warm_up((a, a))
    assert fresh.break_evens.known(S) is not None
    assert clgemm.explain(a, a).host_seconds is not None, "decided anew"
    monkeypatch.setattr(break_even, "measured", None)
    clgemm.warm_up((a, a))


@pytest.mark.usefixtures("fresh")
def test_a_search_and_the_times_share_one_budget(monkeypatch):
    """What ends both is the same moment, and each has its part."""
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "4")
    efforts, limits = [], []

    class Search:
        def __init__(self, *given):
            efforts.append(given[3])

        def run(self):
            raise clgemm.TuningError("a test")

    monkeypatch.setattr(search, "Search", Search)
    monkeypatch.setattr(break_even.BreakEvens, "measure", lambda *given: limits.append(given[-1]))
    begun = break_even.time.monotonic()
    clgemm.warm_up(((200, 200), (200, 200)))
    assert [effort.seconds for effort in efforts] == [4 - break_even.MOST_SECONDS]
    assert [0 <= x.until - begun - 4 < 2 for x in limits] == [True]
    assert limits[0].is_ready is break_even.NO_LIMITS.is_ready, "who asks for it waits"


@pytest.mark.usefixtures("fresh")
def test_small_products_vectors_and_other_types_wait_for_nothing(monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setattr(engine.Engine, "warm_up", None)
    clgemm.warm_up(((30, 30), (30, 30)), ((500, 500), (500,)), ((1, 900), (900, 900)))
    clgemm.warm_up(((300, 300), (300, 300)), dtype=object)
    clgemm.warm_up()


def test_the_host_needs_no_device(monkeypatch):
    monkeypatch.setattr(face.engines, "current", None)
    with clgemm.settings.using(route="host"):
        clgemm.warm_up(((300, 300), (300, 300)))


@pytest.mark.parametrize(
    ("products", "error", "words"),
    [
        (((300, 300), (300, 300)), TypeError, "300 is neither an array nor a shape: pass pairs"),
        ((300,), TypeError, "300 is no pair of arrays or shapes: pass pairs"),
        ((((3, 4), (4, 5), (5, 6)),), TypeError, "is no pair"),
        ((([1.0], [2.0]),), TypeError, "a list is neither"),
        ((((3, 4), (5, 6)),), ValueError, r"are \(3, 4\) and \(5, 6\): .* differ, 4 != 5"),
        ((((2, 3, 4), (3, 4, 5)),), ValueError, "broadcast"),
        ((((), (3,)),), ValueError, "one axis at least"),
        ((((3, -1), (-1, 3)),), ValueError, "negative"),
    ],
)
def test_a_mistake_is_named_before_anything_is_done(products, error, words, monkeypatch):
    monkeypatch.setattr(face, "matmul", None)
    monkeypatch.setattr(face.engines, "current", None)
    with pytest.raises(error, match=words):
        clgemm.warm_up(*products)


def test_a_type_that_is_none_is_refused():
    with pytest.raises(TypeError, match="data type"):
        clgemm.warm_up(((3, 4), (4, 5)), dtype="no type")
