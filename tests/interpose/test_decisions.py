"""What is shown to Python, and what of that the device computes, follow from the same times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import clgemm
from clgemm.dispatch.route import DEVICE, HOST, SMALL_SHARED, SMALL_WITH_COPIES, route
from clgemm.interpose import decisions, stub
from clgemm.problem import PRECISIONS


class Times(SimpleNamespace):
    """A host of some flops a second, and a device that takes some time before it begins."""

    def host_seconds(self, g):
        return g.flops / 1e11

    def device_seconds(self, g):
        return self.start + g.flops / 1e13


@pytest.fixture(autouse=True)
def automatic():
    """Leave where products run to clgemm, whatever tests want elsewhere."""
    with clgemm.settings.using(route="auto"):
        yield


@pytest.fixture
def opened(device, monkeypatch):
    """Give a function that opens an engine which predicts by some times, or by none."""

    def open_with(times, *, unified=True, tries=False):
        traits = SimpleNamespace(unified_memory=unified, kind=device.traits.kind)
        found = SimpleNamespace(
            device=SimpleNamespace(traits=traits),
            tries=tries,
            known_times=lambda _: times,
            break_evens=SimpleNamespace(known=lambda _: None),
        )
        monkeypatch.setattr(decisions.engines, "opened", lambda: found)
        return traits

    return open_with


def least(code="s"):
    return decisions.least_product(PRECISIONS[code])


def test_where_nothing_is_known_the_size_decides(opened, monkeypatch):
    for unified, small in ((True, SMALL_SHARED), (False, SMALL_WITH_COPIES)):
        opened(None, unified=unified)
        assert least("s") == small // 2
        assert least("z") == small // 8
    monkeypatch.setattr(decisions.engines, "opened", lambda: None)
    assert least("s") == SMALL_SHARED // 2


@pytest.mark.parametrize("start", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("unified", [True, False])
def test_all_that_the_engine_would_give_to_the_device_is_shown(opened, start, unified):
    """And nothing that is much smaller."""
    traits, times = opened(Times(start=start), unified=unified), Times(start=start)
    found = {}
    for shape in decisions._CUBES:
        problem = shape.problem("s")
        found[shape.m**3] = route(traits, problem, "auto", times).where
        shown = times.device_seconds(problem) + decisions.SHOWN_SECONDS
        if shown > times.host_seconds(problem):
            found[shape.m**3] = HOST
    assert {HOST, DEVICE} == set(found.values())
    first = min(size for size, where in found.items() if where == DEVICE)
    assert least() == first - 1


def test_what_may_be_tried_is_shown_too(opened):
    times = Times(start=1.05e-3)  # a cube of 384 takes 1.13 ms on the host
    opened(times)
    before = least()
    opened(times, tries=True)
    assert least() < before


def test_what_the_host_computes_in_no_time_is_not_shown(opened):
    times = Times(start=0.0)  # the device would win everywhere
    opened(times)
    worth = [
        x.m**3
        for x in decisions._CUBES
        if times.host_seconds(x.problem("s")) > 1.02 * decisions.SHOWN_SECONDS
    ]
    assert decisions._CUBES[0].m ** 3 < worth[0]
    assert least() == worth[0] - 1


def test_a_device_that_never_wins_is_shown_what_is_larger_than_all_that_is_known(opened):
    opened(Times(start=1e3))
    assert least() == decisions._CUBES[-1].m ** 3


@pytest.mark.parametrize(("wanted", "expected"), [("device", 1), ("host", stub.NEVER)])
def test_what_the_user_wants_comes_first(opened, wanted, expected):
    opened(Times(start=1e-3))
    with clgemm.settings.using(route=wanted):
        assert least() == expected
