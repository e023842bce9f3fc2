"""Kernels by what they are made of: each is built once, and not kept without end."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import numpy as np
from helpers import gemm

from clgemm.dispatch import engines
from clgemm.kernels.family import GEMM_SIGNATURE, KernelSpec
from clgemm.runtime import opencl, programs, registry
from clgemm.runtime.programs import Programs


def spec(number):
    """Name a kernel that differs from others by a define which nothing reads."""
    defines = {"IS_DOUBLE": 0, "IS_COMPLEX": 0, "NUMBER": number}
    return KernelSpec(("direct/gemm.cl",), "direct", tuple(sorted(defines.items())), GEMM_SIGNATURE)


def test_kernels_are_built_once_and_not_kept_without_end(device, monkeypatch):
    monkeypatch.setattr(programs, "MOST_KERNELS", 3)
    found = Programs(device.context, device.traits)
    first = found.kernel(spec(0))
    assert found.kernel(spec(0)) is first
    for number in range(1, 8):
        assert found.kernel(spec(number)) is found.kernel(spec(number))
        assert len(found._kernels) <= 3
        assert len(found._programs) <= 3
    assert found.kernel(spec(0)) is not first


def test_who_has_kernels_built_ahead_takes_no_lock_that_ctrl_c_may_leave_held(device, monkeypatch):
    """A thread that builds would wait for it, and the caller for that thread."""
    taken, enter = [], threading.Condition.__enter__

    def note(condition):
        if threading.get_ident() == threading.main_thread().ident:
            taken.append(condition)
        return enter(condition)

    found = Programs(device.context, device.traits)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__enter__", note)
        found.build_ahead([spec(number) for number in range(2)])
    assert not taken
    assert set(found._programs) == {spec(0), spec(1)}


def test_builds_in_several_threads_warn_nobody_and_leave_filters_alone(device, monkeypatch):
    """Python has one list of filters for all threads; compilers say things (Intel's always)."""
    kind, during = opencl.load()._cl._Program, []
    build = kind._build

    def noting(program, *arguments):
        during.append(list(warnings.filters))
        return build(program, *arguments)

    monkeypatch.setattr(kind, "_build", noting)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = list(warnings.filters)
        Programs(device.context, device.traits).build_ahead([spec(number) for number in range(4)])
    assert during == [mine] * 4
    assert caught == []


def test_plans_keep_kernels_that_nothing_else_keeps(device, rng, monkeypatch):
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    apart = registry.Device(found._replace(traits=replace(found.traits)), "a test")
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    monkeypatch.setattr(programs, "MOST_KERNELS", 1)
    products = [
        (rng.standard_normal((70, 90)).astype(t), rng.standard_normal((90, 80)).astype(t))
        for t in ("f", "d")
    ]
    with registry.using(apart):
        for _ in range(3):
            for a, b in products:
                c = np.zeros((70, 80), a.dtype)
                gemm(1.0, a, b, 0.0, c)
                np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    assert engines.of(apart).decisions
    assert len(apart.programs._kernels) == 1
