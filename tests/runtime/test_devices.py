"""Finding, trying and choosing devices, with faults put in their way."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import CPU, GPU, heard, quiet, run_python

import clgemm
from clgemm.errors import BuildError, ClgemmError, DeviceError
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, opencl, platforms, registry
from clgemm.runtime.choice import choose, wanted
from clgemm.runtime.devices import Found
from clgemm.runtime.opencl import cl

POCL = replace(CPU, platform="Portable Computing Language", platform_version="OpenCL 3.0 PoCL 9",
               name="cpu-generic")  # fmt: skip
INTEL = replace(CPU, platform="Intel(R) OpenCL", vendor="Intel(R) Corporation", name="Xeon")
NVIDIA = replace(GPU, platform="NVIDIA CUDA", vendor="NVIDIA Corporation", name="H200")
SECOND = replace(NVIDIA, name="H200 NVL")
HERE = tuple(Found(name, traits) for name, traits in
             [("d0", POCL), ("d1", INTEL), ("d2", NVIDIA), ("d3", SECOND)])  # fmt: skip


def names(found):
    return [f.device for f in found]


@pytest.mark.parametrize(
    ("wish", "devices_named"),
    [
        ("nvidia", ["d2", "d3"]),
        ("NVIDIA", ["d2", "d3"]),
        ("nvidia:0", ["d2"]),
        ("nvidia:1", ["d3"]),
        ("nvidia:2", []),
        ("nvl", ["d3"]),
        ("pocl", ["d0"]),
        ("pocl:0", ["d0"]),
        ("pocl:1", []),
        ("Intel(R) OpenCL", ["d1"]),
        ("xeon", ["d1"]),
        ("gpu", ["d2", "d3"]),
        ("gpu:1", ["d3"]),
        ("cpu:1", ["d1"]),
        ("amd", []),
    ],
)
def test_wishes(wish, devices_named):
    assert names(wanted(HERE, wish)) == devices_named


def test_gpus_come_before_cpus_and_faster_ones_before_slower():
    slow = replace(GPU, compute_units=1)
    fast = replace(GPU, compute_units=132)
    many = replace(CPU, compute_units=256)
    found = tuple(Found(t.compute_units, t) for t in (many, slow, CPU, fast))
    assert names(wanted(found, "")) == [132, 1, 256, 8]


def test_of_two_runtimes_for_a_cpu_the_one_with_shared_virtual_memory():
    found = (Found("buffers", CPU), Found("svm", replace(CPU, system_svm=True)))
    assert names(wanted(found, "")) == ["svm", "buffers"]


def test_of_equal_devices_the_first():
    assert names(wanted((Found("x", CPU), Found("y", CPU)), "")) == ["x", "y"]


@pytest.fixture
def here(monkeypatch):
    """Let devices of the test's choice be present, with the faults that it names."""
    monkeypatch.delenv("CLGEMM_DEVICE", raising=False)

    def have(found, faults=()):
        faults = dict(faults)
        monkeypatch.setattr(devices, "find", lambda: tuple(found))

        def probe(device, _kept=None):
            return devices.Probe(faults.get(device, ""))

        monkeypatch.setattr(devices, "probe", probe)

    return have


def test_the_best_device_is_chosen_and_the_reason_given(here):
    here(HERE)
    (found,), reason, _ = quiet(choose)
    assert found.device == "d2"
    assert "GPU" in reason
    here(HERE[:2])
    assert "CPU" in choose()[1]
    here(HERE[:1])
    assert choose()[1] == "the only device"


def test_a_wish_is_obeyed_and_is_the_reason(here, monkeypatch):
    here(HERE)
    monkeypatch.setenv("CLGEMM_DEVICE", "pocl:0")
    (found,), reason, _ = quiet(choose)
    assert found.device == "d0"
    assert reason == "CLGEMM_DEVICE=pocl:0"


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        ("nvidia:all", ["d2", "d3"]),
        ("nvidia:1,nvidia:0", ["d3", "d2"]),
        ("nvidia, pocl", ["d2", "d0"]),
        ("xeon,nvidia:all", ["d1", "d2", "d3"]),
        ("nvidia:all,gpu,", ["d2", "d3"]),
        ("pocl:all", ["d0"]),
    ],
)
def test_several_devices(wish, chosen, here, monkeypatch):
    here(HERE)
    monkeypatch.setenv("CLGEMM_DEVICE", wish)
    choice = quiet(choose)
    assert names(choice.found) == chosen
    assert choice.reason == f"CLGEMM_DEVICE={wish}"


def test_each_name_in_a_list_must_be_here(here, monkeypatch):
    here(HERE)
    monkeypatch.setenv("CLGEMM_DEVICE", "nvidia:all,abacus")
    with pytest.raises(DeviceError, match="CLGEMM_DEVICE='abacus'"):
        choose()


def test_of_several_devices_the_broken_ones_are_skipped(here, monkeypatch):
    here(HERE, {"d2": "no"})
    monkeypatch.setenv("CLGEMM_DEVICE", "nvidia:all")
    chosen = []
    assert len(heard(lambda: chosen.append(choose()))) == 1
    assert names(chosen[0].found) == ["d3"]


def test_a_comma_may_belong_to_a_name(here, monkeypatch):
    here([Found("d9", replace(GPU, vendor="Advanced Micro Devices, Inc."))])
    monkeypatch.setenv("CLGEMM_DEVICE", "Advanced Micro Devices, Inc.")
    assert names(quiet(choose).found) == ["d9"]


def test_a_wish_that_names_none_is_an_error_that_names_all(here, monkeypatch):
    here(HERE)
    monkeypatch.setenv("CLGEMM_DEVICE", "abacus")
    with pytest.raises(DeviceError, match="CLGEMM_DEVICE='abacus'") as caught:
        choose()
    for f in HERE:
        assert f.traits.describe() in str(caught.value)


def test_a_broken_device_is_skipped_with_one_warning(here):
    here(HERE, {"d2": "CL_BUILD_PROGRAM_FAILURE"})
    chosen = []
    (message,) = heard(lambda: chosen.append(choose()))
    assert chosen[0].found[0].device == "d3"
    assert "CL_BUILD_PROGRAM_FAILURE" in message
    assert NVIDIA.describe() in message


def test_broken_devices_only(here):
    here(HERE[:2], {"d0": "no", "d1": "neither"})

    def complain():
        with pytest.raises(DeviceError, match=r"pip install 'clgemm\[cpu\]'"):
            choose()

    assert len(heard(complain)) == 2


def test_no_device_at_all_says_how_to_get_one(here, monkeypatch):
    here(())
    monkeypatch.setattr(registry, "in_use", None)
    with pytest.raises(DeviceError, match=r"pip install 'clgemm\[cpu\]'") as caught:
        clgemm.sgemm(1.0, np.eye(70), np.eye(70))
    assert isinstance(caught.value, ClgemmError)


def test_the_host_needs_no_device(here, monkeypatch):
    here(())
    monkeypatch.setattr(registry, "in_use", None)
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    np.testing.assert_array_equal(clgemm.sgemm(1.0, np.eye(70), np.eye(70)), np.eye(70))


def driver_s_device(platform="A platform", **facts):
    """Make what `read_traits` asks of a cl.Device."""
    usual = {
        "type": cl.device_type.CPU, "vendor": " V ", "name": " N ", "driver_version": "1 ",
        "max_compute_units": 4, "max_work_group_size": 256, "local_mem_size": 1 << 15,
        "global_mem_size": 1 << 30, "max_mem_alloc_size": 1 << 28, "extensions": "",
        "native_vector_width_float": 8, "max_clock_frequency": 2000, "svm_capabilities": 0,
    }  # fmt: skip
    place = SimpleNamespace(name=platform, version="OpenCL 3.0 ")
    return SimpleNamespace(platform=place, **(usual | facts))


def test_traits_are_read():
    t = devices.read_traits(driver_s_device())
    assert (t.vendor, t.name, t.driver_version, t.platform_version) == ("V", "N", "1", "OpenCL 3.0")
    assert (t.kind, t.simd_bytes, t.compute_units) == ("cpu", 32, 4)
    assert t.unified_memory
    assert {t.fp64, t.system_svm, t.clang_builtins} == {False}


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ({"type": cl.device_type.GPU}, {"kind": "gpu", "unified_memory": False}),
        ({"type": cl.device_type.ACCELERATOR}, {"kind": "other"}),
        ({"extensions": "cl_khr_fp64 cl_other"}, {"fp64": True}),
        ({"double_fp_config": 63}, {"fp64": True}),
        ({"extensions": "cl_khr_fp64_not"}, {"fp64": False}),
        ({"native_vector_width_float": 1}, {"simd_bytes": 16}),
        ({"native_vector_width_float": 16}, {"simd_bytes": 64}),
        ({"svm_capabilities": cl.device_svm_capabilities.FINE_GRAIN_SYSTEM}, {"system_svm": True}),
        (
            {
                "extensions": "cl_nv_device_attribute_query",
                "compute_capability_major_nv": 9,
                "compute_capability_minor_nv": 0,
            },
            {"compute_capability": (9, 0)},
        ),
    ],
)
def test_traits_follow_what_the_driver_says(facts, want):
    traits = devices.read_traits(driver_s_device(**facts))
    assert {name: getattr(traits, name) for name in want} == want


def test_a_driver_that_does_not_know_of_shared_virtual_memory():
    old = driver_s_device()
    del old.svm_capabilities
    assert devices.read_traits(old).system_svm is False


@pytest.mark.parametrize(
    ("platform", "want"),
    [
        ("Portable Computing Language", {"clang_builtins": True, "caches_programs": True}),
        ("Intel(R) OpenCL", {"clang_builtins": True, "caches_programs": False}),
        ("Oclgrind", {"kind": "cpu", "unified_memory": True}),
        ("Somebody's OpenCL", {"clang_builtins": False, "caches_programs": False}),
    ],
)
def test_quirks_correct_what_drivers_say(platform, want):
    oddly = driver_s_device(platform, type=cl.device_type.ACCELERATOR)
    traits = devices.read_traits(oddly)
    assert {name: getattr(traits, name) for name in want} == want


def test_quirks_name_traits_and_give_a_reason():
    known = {field.name for field in fields(CPU)}
    for quirk in devices.QUIRKS:
        assert quirk.reason
        assert {name for name, _ in quirk.facts} <= known


def test_the_fingerprint_is_stable_and_names_the_driver():
    assert CPU.fingerprint() == replace(CPU).fingerprint()
    for fact in ("platform", "platform_version", "vendor", "name", "driver_version"):
        assert replace(CPU, **{fact: "another"}).fingerprint() != CPU.fingerprint(), fact
    assert replace(CPU, compute_units=9).fingerprint() != CPU.fingerprint()
    # What changes from boot to boot must not cost a search.
    same = replace(CPU, global_memory=1, max_allocation=1, clock_mhz=1)
    assert same.fingerprint() == CPU.fingerprint()


@pytest.mark.process
def test_fingerprints_are_the_same_in_every_process():
    program = (
        "from clgemm.runtime.devices import find;"
        "print(*[found.traits.fingerprint() for found in find()])"
    )
    run = run_python(program, PYTHONHASHSEED=7)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [f.traits.fingerprint() for f in devices.find()]


def device_of(device):
    return next(f for f in devices.find() if f.traits == device.traits).device


def test_a_device_that_works(device):
    assert devices.works(device_of(device)) == ""


@pytest.mark.parametrize(
    ("probe", "complaint"),
    [
        ("__kernel void probe(__global int *x) { x[0] += 40; }", "41 instead of 42"),
        ("__kernel void probe(__global int *x) { x[0] += ; }", ""),
        ("__kernel void another(__global int *x) { x[0] += 41; }", ""),
    ],
    ids=["wrong", "no compiler", "no kernel"],
)
def test_a_device_that_does_not_work(device, probe, complaint, monkeypatch):
    monkeypatch.setattr(devices, "PROBE_SOURCE", probe)
    fault = quiet(lambda: devices.works(device_of(device)))
    assert fault
    assert complaint in fault
    assert "\n" not in fault


def test_a_refused_kernel_is_a_build_error_with_the_log(device, monkeypatch):
    found = next(f for f in devices.find() if f.traits == device.traits)
    fresh = registry.Device(found, "a test")
    monkeypatch.setattr("clgemm.kernels.source.text", lambda _spec: "__kernel void x( { nonsense")
    with registry.using(fresh), pytest.raises(BuildError) as caught:
        clgemm.sgemm(1.0, np.eye(70), np.eye(70))
    text = str(caught.value)
    assert device.traits.name in text
    assert device.traits.driver_version in text
    assert "CLGEMM_DEVICE" in text
    assert isinstance(caught.value, DeviceError)


@pytest.mark.parametrize("code", "sdcz")
def test_double_precision_is_refused_where_there_is_none(device, code):
    found = next(f for f in devices.find() if f.traits == device.traits)
    single = registry.Device(found._replace(traits=replace(found.traits, fp64=False)), "a test")
    routine = getattr(clgemm, f"{code}gemm")
    c = np.full((70, 70), 3, routine.dtype, order="F")
    with registry.using(single):
        if code in "sc":
            np.testing.assert_array_equal(routine(2.0, np.eye(70), np.eye(70)), 2 * np.eye(70))
            return
        with pytest.raises(DeviceError, match=f"{code}gemm") as caught:
            routine(2.0, np.eye(70), np.eye(70), 1.0, c, overwrite_c=1)
        with pytest.raises(DeviceError):
            clgemm.matmul(c, c)
    assert found.traits.describe() in str(caught.value)
    assert "cl_khr_fp64" in str(caught.value)
    assert np.all(c == 3)


def test_a_type_that_no_kernel_has_is_refused(device):
    """It would be computed as another one, of another size."""
    with pytest.raises(DeviceError, match="no kernel computes in half"):
        device.require(replace(PRECISIONS["s"], code="h", real="half"))


def an_error():
    try:
        cl.Context([])
    except cl.Error as error:
        return error
    raise AssertionError("a context without devices was made")


def test_a_platform_without_devices_is_passed_over(monkeypatch, device):
    def refuse():
        raise an_error()

    empty = SimpleNamespace(name="An empty platform", get_devices=refuse)
    known = platforms.known()
    monkeypatch.setattr(platforms, "known", lambda: [empty, *known])
    monkeypatch.setattr(devices, "_kept", [])
    assert device.traits in [f.traits for f in devices.find()]


def test_a_loader_that_knows_no_platform_is_not_the_end(monkeypatch):
    def refuse():
        raise an_error()

    monkeypatch.setattr(opencl.load(), "get_platforms", refuse)
    embedded = SimpleNamespace(name="X")
    monkeypatch.setattr(platforms, "embedded_platforms", lambda: [embedded])
    assert platforms.known() == [embedded]


def test_a_platform_is_listed_once(monkeypatch):
    """The embedded runtime may be one that the loader knows too."""
    first, second = SimpleNamespace(name="X"), SimpleNamespace(name="Y")
    monkeypatch.setattr(opencl.load(), "get_platforms", lambda: [first])
    monkeypatch.setattr(
        platforms, "embedded_platforms", lambda: [SimpleNamespace(name="X"), second]
    )
    assert platforms.known() == [first, second]


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Give a folder that packages are imported from, in a Python that has no runtime of its own."""
    site = tmp_path / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "another"))
    monkeypatch.setattr(sys, "path", [str(site)])
    return site


def install(site, library):
    """Have the metadata of a package say that a library belongs to it, two folders above."""
    info = site / "intel_opencl_rt-2099.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: intel-opencl-rt\nVersion: 2099.1\n"
    )
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n../../{library},,\n")
    return site.parents[1] / library


def test_without_an_embedded_runtime_there_is_none(elsewhere):
    assert elsewhere.is_dir()
    assert quiet(platforms.embedded_platforms) == []


INSTALLED = platforms._libraries()


@pytest.mark.skipif(not INSTALLED, reason="the extra cpu is not installed")
def test_an_embedded_runtime_is_found_where_its_package_says(elsewhere):
    """Not in this environment's own folder: `pip install --user`, and Debian's own Python."""
    install(elsewhere, INSTALLED[0].name).symlink_to(INSTALLED[0])
    (platform,) = quiet(platforms.embedded_platforms)
    assert "Intel" in platform.name


@pytest.mark.skipif(not INSTALLED, reason="the extra cpu is not installed")
def test_an_embedded_runtime_is_found_without_a_package_that_says_where(elsewhere):
    """As conda installs it."""
    folder = Path(sys.prefix) / "lib"
    folder.mkdir(parents=True)
    (folder / INSTALLED[0].name).symlink_to(INSTALLED[0])
    assert elsewhere.is_dir()
    (platform,) = quiet(platforms.embedded_platforms)
    assert "Intel" in platform.name


@pytest.mark.parametrize("spoil", ["no library", None], ids=["damaged", "gone"])
def test_a_broken_embedded_runtime_is_said_and_passed_over(elsewhere, spoil):
    library = install(elsewhere, platforms.LIBRARIES[0])
    if spoil is not None:
        library.write_text(spoil)
    (message,) = heard(platforms.embedded_platforms)
    assert str(library) in message
    assert "pip install --force-reinstall" in message
    found = []
    heard(lambda: found.extend(platforms.embedded_platforms()))
    assert found == []


MULTIPLY = """
import os, sys, warnings
warnings.simplefilter("error", RuntimeWarning)
before = os.environ.get("PYOPENCL_NO_CACHE")
if sys.argv[1] == "pyopencl first":
    import pyopencl
import numpy as np
import clgemm
a = np.random.default_rng(1).uniform(-1, 1, (90, 90)).astype(np.float32)
assert abs(clgemm.sgemm(1.0, a, a) - a @ a).max() < 1e-4
from clgemm.runtime import registry
assert os.environ.get("PYOPENCL_NO_CACHE") == before
print(registry.current().traits.platform)
"""


@pytest.mark.process
@pytest.mark.parametrize("order", ["clgemm first", "pyopencl first"])
def test_unusable_caches_do_not_matter(device, order, tmp_path):
    """A file stands where the cache directory should be: even root cannot make it."""
    (tmp_path / "cache").touch()
    run = run_python(
        MULTIPLY,
        order,
        CLGEMM_DEVICE=device.traits.platform,
        CLGEMM_CACHE_DIR=None,
        POCL_CACHE_DIR=None,
        PYOPENCL_NO_CACHE=None,
        XDG_CACHE_HOME=tmp_path / "cache",
        TMPDIR=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == device.traits.platform
    assert [path.name for path in tmp_path.iterdir()] == ["cache"], "nothing is left behind"


@pytest.mark.process
def test_pyopencl_s_own_setting_stands(device):
    run = run_python(
        MULTIPLY, "pyopencl first", CLGEMM_DEVICE=device.traits.platform, PYOPENCL_NO_CACHE=None
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == device.traits.platform


def test_a_cache_that_turns_out_unusable_is_turned_off(device, monkeypatch):
    """The program imported pyopencl with caches that fail when the first kernel is made."""
    module = opencl.load()
    monkeypatch.setattr(module, "_PYOPENCL_NO_CACHE", False)
    calls, real = [], module.Kernel

    def first_time_full(*arguments):
        calls.append(module._PYOPENCL_NO_CACHE)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(module, "Kernel", first_time_full)
    assert devices.works(device_of(device)) == ""
    assert calls == [False, True]


def test_a_quirk_may_be_of_some_of_a_platform_s_devices():
    slow = driver_s_device("rusticl", name="llvmpipe (LLVM 15.0.6)", type=cl.device_type.CPU)
    fast = driver_s_device("rusticl", name="AMD Radeon", type=cl.device_type.GPU)
    assert [devices.read_traits(x).kind for x in (slow, fast)] == ["other", "gpu"]
