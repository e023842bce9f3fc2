"""The products that candidates are timed with: sizes, operands, and what is made ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, programs, registry
from clgemm.tuning.measure import measure, timing
from clgemm.tuning.measure.measure import VERIFIED_ROWS, Measurements, Products
from clgemm.tuning.outcome import Setup, Task
from clgemm.tuning.shapes import SEARCHED, Shape, standard
from clgemm.tuning.store import lookup
from clgemm.tuning.workers import main

SETUP = Setup(0, "", "s")


@pytest.fixture
def fresh(device):
    """Open a device on each device that nothing was built for."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    return registry.Device(found, "a test")


def default(device, code="s"):
    """Return the first default that takes products of any size: some decline small ones."""
    small = Shape(64, 64, 64).problem(code)
    configs = lookup.defaults(device.traits, PRECISIONS[code], "").configs
    return next(config for config in configs if BY_NAME[config.family].accepts(small))


@pytest.mark.parametrize("code", "sdcz")
def test_references_are_right(device, code):
    if not device.traits.fp64 and code in "dz":
        pytest.skip("the device has no fp64")
    products = Products(device, PRECISIONS[code])
    for shape in (Shape(30, 300, 20), Shape(9, 8, 7, 5), Shape(30, 20, 40, 1, True, True)):
        found = products.of(shape)
        a, b = found.a.data, found.b.data
        stack = (a @ b) if shape.batch > 1 else (a @ b)[None]
        for place, entry in enumerate(found.entries):
            miss = np.abs(found.want[place] - stack[entry][found.rows])
            assert found.want[place].shape == (VERIFIED_ROWS, shape.n)
            assert np.all(miss <= found.limit[place])
            assert np.all(found.limit[place] < 1e-2)


def test_shapes_share_operands_that_are_alike(device):
    products = Products(device, PRECISIONS["s"])
    square, wide = products.of(Shape(64, 64, 64)), products.of(Shape(5, 64, 64))
    assert wide.b.data is square.b.data
    assert wide.place_b is square.place_b
    assert wide.a.data is not square.a.data
    assert square.a.data is not square.b.data, "caches would hold both"
    products.forget_all_but([Shape(5, 64, 64)])
    assert products.of(Shape(5, 64, 64)) is wide
    again = products.of(Shape(64, 64, 64))
    assert again.b.data is wide.b.data
    assert again.a.data is not square.a.data


def test_sizes_follow_from_one_square(fresh, monkeypatch):
    """Each square may take a kernel of its own, which takes long to build."""
    monkeypatch.setattr(measure, "FIRST_N", 64)
    monkeypatch.setattr(measure, "FIRST_N_OF_GPUS", 64)
    monkeypatch.setattr(measure, "LARGEST_N", 512)
    for seconds, side in ((1.0, 64), (measure.ENOUGH_SECONDS / 9, 256), (1e-9, 512)):
        found = Measurements(fresh, SETUP)
        measured = [timing.of_times([seconds])]  # a second measurement finds nothing here
        monkeypatch.setattr(timing, "measure", lambda *_, m=measured, **__: m.pop())
        monkeypatch.setattr(found, "time_shape", lambda *_: None)
        found.measure(default(fresh), {}, 0.0)
        assert found.side == side
        assert measured == []


def test_what_was_verified_is_measured_without_a_build(fresh, monkeypatch):
    monkeypatch.setattr(measure, "FIRST_N", 64)
    monkeypatch.setattr(measure, "LARGEST_N", 128)
    tester = main.Tester(fresh, SETUP)
    config = default(fresh)
    assert tester.test(Task.VERIFY, config, {}, 0.0).ok
    built, real = [], programs.compiled
    monkeypatch.setattr(programs, "compiled", lambda *x: built.append(x) or real(*x))
    outcome = tester.test(Task.MEASURE, config, {}, 0.0)
    assert outcome.ok
    assert set(outcome.seconds) == set(SEARCHED)
    assert built == []
    assert outcome.side in {64, 128}


def test_what_was_built_is_verified_measured_and_a_finalist_without_a_build(fresh, monkeypatch):
    monkeypatch.setattr(measure, "FIRST_N", 64)
    monkeypatch.setattr(measure, "LARGEST_N", 64)
    tester = main.Tester(fresh, SETUP)
    config = default(fresh)
    assert tester.test(Task.BUILD, config, {}, 0.0).ok
    built, real = [], programs.compiled
    monkeypatch.setattr(programs, "compiled", lambda *x: built.append(x) or real(*x))
    for task in (Task.VERIFY, Task.MEASURE, Task.VERIFY_FINALIST):
        assert tester.test(task, config, {}, 0.0).ok
    assert built == []


@pytest.mark.parametrize(
    ("task", "names"),
    [(Task.BUILD, {"quick", "timed", "final"}), (Task.VERIFY, {"quick", "timed"}),
     (Task.BUILD_FINALIST, {"final"}), (Task.VERIFY_FINALIST, {"final"})],
)  # fmt: skip
def test_what_a_task_builds(fresh, monkeypatch, task, names):
    """On a CPU kernels are few, and each task's are among the others'."""
    tester = main.Tester(fresh, SETUP)
    kinds = {False: ["quick"], True: ["final"]}
    monkeypatch.setattr(tester._verifier, "kernels", lambda _, finalist: kinds[finalist])
    monkeypatch.setattr(tester._measurements, "kernels", lambda *_, **__: ["timed"])
    assert tester._kernels(default(fresh), task) == names


@pytest.mark.parametrize(("unified", "side"), [(True, 512), (False, 1024)])
def test_the_first_square_of_a_gpu_takes_longer_than_a_launch(fresh, monkeypatch, unified, side):
    monkeypatch.setattr(fresh, "traits", replace(fresh.traits, unified_memory=unified))
    found, asked = Measurements(fresh, SETUP), []
    monkeypatch.setattr(found, "_prepared", lambda _, shape: asked.append(shape))
    monkeypatch.setattr(found, "kernels", lambda *_, **__: ())
    found.measure(default(fresh), {}, 0.0)
    assert asked[0] == Shape(side, side, side)


def test_a_worker_takes_the_sizes_that_another_found(fresh):
    tester = main.Tester(fresh, SETUP)
    assert tester.test(Task.MEASURE, default(fresh), {}, 0.0, side=64).side == 64
    assert tester.test(Task.MEASURE, default(fresh), {}, 0.0, side=0).side == 64


def test_programs_build_beside_what_a_caller_does(fresh, monkeypatch):
    family, events = BY_NAME[default(fresh).family], []
    plan = family.plan(fresh.traits, standard(64)["square"].problem("s"), default(fresh))
    (spec, *_) = [step.kernel for step in plan.steps]
    real = programs.compiled
    monkeypatch.setattr(programs, "compiled", lambda *x: (real(*x), events.append("built"))[0])
    with fresh.programs.building([spec, spec]):
        events.append("beside")
    assert sorted(events) == ["beside", "built"]
    fresh.programs.kernel(spec)
    with fresh.programs.building([spec]):
        pass
    assert events.count("built") == 1
