"""Several devices in use: large calls are shared, and the answer is the same every time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import GPU, run_python

import clgemm
from clgemm.dispatch import engines, multi_device
from clgemm.problem import BY_DTYPE, PRECISIONS, Operand, describe
from clgemm.runtime import devices, registry
from clgemm.runtime.device import Device
from clgemm.tuning.shapes import Shape

RNG = np.random.default_rng(3)


@pytest.fixture
def pair(device, monkeypatch):
    """Let the device under test, and another like it or itself opened twice, be those in use.

    They share even small calls.
    """
    *_, found = (f for f in devices.find() if f.traits == device.traits)
    second = Device(found, "the same again")
    monkeypatch.setattr(registry, "in_use", device)
    monkeypatch.setattr(registry, "_chosen", device)
    monkeypatch.setattr(registry, "_others", (second,))
    monkeypatch.setattr(multi_device, "LEAST_FLOPS", 0)
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    engines.of(device).forget()
    yield device, second
    engines.of(device).forget()


def random(shape, dtype):
    x = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RNG.standard_normal(shape)
    return x.astype(dtype)


def assert_close(got, a, b, add=0):
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    k = a.shape[-1]
    bound = 2 * (k + 8) * np.finfo(got.dtype).eps * (np.abs(a).astype(float) @ np.abs(b))
    bound = bound + 4 * np.finfo(got.dtype).eps * np.abs(add)
    assert np.all(np.abs(got - (a.astype(wide) @ b.astype(wide) + add)) <= bound)


# Where a product is cut does not depend on its type.
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("f", (700, 90, 65)), ("f", (33, 601, 40)), ("f", (1, 1, 5)), ("d", (33, 601, 40)),
     ("F", (700, 90, 65)), ("D", (33, 601, 40))],
)  # fmt: skip
def test_matmul_on_two_devices(pair, dtype, shape):
    if not pair[0].traits.has(BY_DTYPE[np.dtype(dtype)]):
        pytest.skip("this device has no double precision")
    m, n, k = shape
    a, b = random((m, k), dtype), random((k, n), dtype)
    assert_close(clgemm.matmul(a, b), a, b)


def test_gemm_on_two_devices_with_everything(pair):  # noqa: ARG001 - two devices in use
    a, b = random((80, 700), np.float32), random((90, 80), np.float32)
    c = np.asfortranarray(random((700, 90), np.float32))
    kept = c.copy()
    got = clgemm.sgemm(1.0, a, b, beta=0.5, c=c, trans_a=1, trans_b=1)
    assert_close(got, a.T, b.T, np.float32(0.5) * kept)
    assert np.array_equal(c, kept)


def test_stacks_are_divided(pair):  # noqa: ARG001 - two devices in use
    a, b = random((9, 20, 30), np.float32), random((9, 30, 25), np.float32)
    assert_close(clgemm.matmul(a, b), a, b)


def test_both_devices_compute_and_explain_says_so(pair):
    a, b = random((1024, 64), np.float32), random((64, 512), np.float32)
    ran = []
    for device in pair:
        enqueue = device.programs.kernel

        def kernel(spec, device=device, enqueue=enqueue):
            ran.append(device)
            return enqueue(spec)

        device.programs.kernel = kernel
    try:
        first = clgemm.matmul(a, b)
    finally:
        for device in pair:
            del device.programs.kernel
    assert set(ran) == set(pair)
    explanation = clgemm.explain(a, b)
    assert sum(part for _, part in explanation.shares) == pytest.approx(1)
    assert str(explanation).count(str(pair[0])) >= 2
    for _ in range(5):
        assert np.array_equal(clgemm.matmul(a, b), first)


def test_what_is_small_is_not_shared(pair, monkeypatch):  # noqa: ARG001 - two devices in use
    monkeypatch.setattr(multi_device, "LEAST_FLOPS", 2**40)
    a = random((300, 300), np.float32)
    assert clgemm.explain(a, a).shares == ()


@pytest.mark.process
def test_devices_of_different_platforms():
    kinds = {f.traits.platform for f in devices.find() if not devices.works(f.device)}
    if len(kinds) < 2:
        pytest.skip(f"a single platform has devices here: {kinds}")
    program = """
import numpy as np, clgemm
rng = np.random.default_rng(1)
a, b = rng.random((1500, 800)), rng.random((800, 1400))
e = clgemm.explain(a, b)
c = clgemm.matmul(a, b)
assert np.abs(c - a @ b).max() < 1e-10
assert all((clgemm.matmul(a, b) == c).all() for _ in range(3))
print(e)
"""
    names = ",".join(sorted(kinds))
    done = run_python(program, CLGEMM_DEVICE=names, CLGEMM_TUNE="off")
    assert done.returncode == 0, done.stderr
    assert "shared among devices" in done.stdout


def shared(problem, traits_and_seconds):
    """Share a problem among devices that are not here, with these predicted times."""
    return multi_device.runner([far_away(*x) for x in traits_and_seconds], problem)


def far_away(traits, seconds, kernel_seconds=1e6):
    times = SimpleNamespace(device_seconds=lambda _: seconds)
    return SimpleNamespace(
        device=SimpleNamespace(traits=traits),
        break_evens=SimpleNamespace(known=lambda _: times),
        runner=lambda _: SimpleNamespace(run=lambda _call, _stop: None),
        kernel_seconds=lambda _: kernel_seconds,
    )


def problem_of(code, n):
    dtype = PRECISIONS[code].dtype
    a, b, c = (np.empty((n, n), dtype, "F") for _ in "abc")
    return describe(Operand(a), Operand(b), c, reads_c=False)


def test_shares_follow_the_measured_times():
    fast, slow = GPU, replace(GPU, name="another")
    found = shared(problem_of("s", 4096), [(fast, 0.1), (slow, 0.3)])
    assert [[t.columns.size for t in share.tiles] for share in found.shares] == [[3072], [1024]]


def test_what_the_fastest_device_soon_has_done_is_not_shared():
    pair = [GPU, replace(GPU, name="another")]
    times = [multi_device.LEAST_SECONDS * 0.9, multi_device.LEAST_SECONDS * 1.1]
    assert shared(problem_of("s", 4096), list(zip(pair, times, strict=True))) is None


def test_copies_to_several_devices_must_be_outweighed_by_kernels():
    """All of them go through the host's memory; what is not known to be worth it is not shared."""
    problem = problem_of("s", 4096)
    least = multi_device.LEAST_WORK * 4 * (2 + 1 + 1) * 4096**2 / multi_device.HOST_RATE
    far, near = GPU, replace(GPU, name="another", unified_memory=True)
    for kernels, helps in ((0.9 * least, False), (1.1 * least, True), (None, False)):
        found = shared(problem, [(far, 0.1, kernels)] * 2)
        assert (found is not None) is helps
        assert shared(problem, [(far, 0.1, kernels), (near, 0.1, kernels)]) is not None


def test_what_is_shared_is_predicted_from_kernels_and_copies():
    """As two H200s took it: seconds of both, of the kernels on one, and of how many."""
    for code, n, kernels, seen in (
        ("d", 32768, 1.21, 0.80), ("d", 20480, 0.30, 0.29), ("z", 16384, 0.61, 0.41)
    ):  # fmt: skip
        found = shared(Shape(n, n, n).problem(code), [(GPU, 1.0, kernels)] * 2)
        assert found.seconds == pytest.approx(seen, rel=0.25)
    near = replace(GPU, name="another", unified_memory=True)
    assert shared(problem_of("s", 2048), [(GPU, 0.1), (near, 0.1)]).seconds is None


def test_a_device_without_double_precision_takes_no_part_in_it():
    able, unable = GPU, replace(GPU, name="another", fp64=False)
    pair = [(able, 0.1), (unable, 0.1)]
    assert shared(problem_of("d", 2048), pair) is None
    assert shared(problem_of("z", 2048), pair) is None
    assert len(shared(problem_of("s", 2048), pair).workers) == 2
