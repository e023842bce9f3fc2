"""Compiled programs on disk: kept, found again, and rebuilt when damaged."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from present import DEVICES

from clgemm.errors import BuildError
from clgemm.kernels import BY_NAME
from clgemm.kernels.family import KernelSpec
from clgemm.problem import PRECISIONS, Gemm, Operand
from clgemm.runtime import devices, opencl
from clgemm.runtime.binaries import Binaries
from clgemm.runtime.device import Device
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure.verify import run_once


def multiply(device):
    x = np.asfortranarray(np.arange(9, dtype=np.float32).reshape(3, 3))
    c = np.empty((3, 3), np.float32, order="F")
    run_once(
        device,
        BY_NAME["direct"].default(device.traits, PRECISIONS["s"]),
        Operand(x),
        Operand(x),
        c,
    )
    np.testing.assert_array_equal(c, x @ x)


@pytest.fixture
def fresh(device, tmp_path):
    """Return a maker of registry that keep programs in a folder of this test."""
    found = next(f for f in DEVICES if f.traits == device.traits)
    return lambda: Device(found, "test", Binaries(tmp_path / "programs", "print"))


@pytest.fixture
def compiled(monkeypatch):
    """Count compilations."""
    texts = []
    build = opencl.build
    monkeypatch.setattr(
        opencl, "build", lambda context, text: texts.append(text) or build(context, text)
    )
    return texts


def test_second_session_compiles_nothing(fresh, compiled, tmp_path):
    multiply(fresh())
    assert len(compiled) == 1
    assert len(list((tmp_path / "programs").glob("*.bin"))) == 1
    multiply(fresh())
    assert len(compiled) == 1


def test_what_takes_no_compiler_is_known(fresh, device, tmp_path):
    """What was built here, or lies on disk; where the driver keeps programs nobody knows."""
    family = BY_NAME["direct"]
    g = Gemm("s", 5, 5, 5, 1, False, False, 5, 0, False, False, 5, 0, 5, 0, False, False)
    plan = family.plan(device.traits, g, family.default(device.traits, PRECISIONS["s"]))
    (spec,) = {step.kernel for step in plan.steps}
    first, second = fresh(), fresh()
    assert not first.programs.is_built(spec)
    first.programs.kernel(spec)
    assert second.programs.is_built(spec), "on disk"
    for path in (tmp_path / "programs").glob("*.bin"):
        path.unlink()
    assert first.programs.is_built(spec), "in memory"
    assert not second.programs.is_built(spec)
    assert Device(next(f for f in DEVICES if f.traits == device.traits), "").programs.is_built(spec)


def test_the_kernel_that_tries_a_device_is_compiled_once(device, compiled, tmp_path):
    device = next(f for f in DEVICES if f.traits == device.traits).device
    kept = Binaries(tmp_path / "programs", "print")
    for _ in range(3):
        assert devices.works(device, kept) == ""
    assert len(compiled) == 1
    assert devices.works(device) == ""
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, None])
def test_damaged_file_is_built_again(fresh, compiled, tmp_path, damage):
    multiply(fresh())
    (path,) = (tmp_path / "programs").glob("*.bin")
    path.write_bytes(path.read_bytes()[:-1] if damage is None else damage)
    multiply(fresh())
    assert len(compiled) == 2
    multiply(fresh())
    assert len(compiled) == 2, "the damaged file was replaced"


def test_binary_the_driver_refuses_is_built_again(fresh, compiled, monkeypatch):
    multiply(fresh())

    def refuse(*_):
        raise RuntimeError("INVALID_BINARY")

    monkeypatch.setattr(opencl, "from_binary", refuse)
    multiply(fresh())
    assert len(compiled) == 2


def test_unwritable_folder_is_no_obstacle(device, tmp_path):
    (tmp_path / "file").write_text("in the way")
    found = next(f for f in DEVICES if f.traits == device.traits)
    multiply(Device(found, "test", Binaries(tmp_path / "file" / "programs", "print")))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_other_device_or_source_is_another_file(tmp_path):
    first, second = Binaries(tmp_path, "one"), Binaries(tmp_path, "two")
    first.save("text", b"binary")
    assert first.load("text") == b"binary"
    assert first.load("other text") is None
    assert second.load("text") is None


def test_no_damaged_binary_is_handed_out(tmp_path):
    """What a driver makes of damaged code is not to be found out."""
    binaries = Binaries(tmp_path, "print")
    binaries.save("text", b"binary")
    (path,) = tmp_path.glob("*.bin")
    whole = path.read_bytes()
    for damaged in (b"", whole[:10], whole[:-1], whole[:-1] + b"?", b"?" + whole[1:]):
        path.write_bytes(damaged)
        assert binaries.load("text") is None


def age(path, days):
    """Make a file look as if it had been read for the last time so many days ago."""
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def kept(folder):
    """Keep three programs of three ages, and a file that a killed process left."""
    programs = Binaries(folder, "print")
    for days, text in ((0, "new"), (89, "old"), (91, "older")):
        before = set(folder.glob("*"))
        programs.save(text, text.encode() * 100)
        (path,) = set(folder.glob("*")) - before
        age(path, days)
    for days, name in ((0, "new.tmp"), (2, "old.tmp"), (200, "notes.txt")):
        (folder / name).touch()
        age(folder / name, days)
    return programs


def test_programs_that_nobody_reads_any_more_are_removed(tmp_path):
    programs = kept(tmp_path)
    programs.save("more", b"binary")
    assert [programs.load(x) is not None for x in ("new", "old", "older", "more")] == [
        True, True, False, True,
    ]  # fmt: skip
    left = {path.name for path in tmp_path.glob("*") if path.suffix != ".bin"}
    assert left == {"new.tmp", "notes.txt"}


def test_a_program_that_is_read_now_and_then_stays(tmp_path):
    programs = kept(tmp_path)
    assert programs.load("older")
    programs.save("more", b"binary")
    assert programs.load("older")


def test_of_too_many_programs_the_latest_stay(tmp_path, monkeypatch):
    programs = kept(tmp_path)
    monkeypatch.setattr("clgemm.runtime.binaries.MOST_TOTAL_BYTES", 500)
    programs.save("more", b"binary")
    assert programs.load("more")
    assert programs.load("new")
    assert programs.load("old") is None


def test_refused_source_names_device_and_log(device):
    spec = KernelSpec(("direct/gemm.cl",), "direct", (("ELEM", 1),), "i")
    with pytest.raises(BuildError) as caught:
        device.programs.kernel(spec)
    assert device.traits.describe() in str(caught.value)
    assert "error" in str(caught.value)


@pytest.mark.filterwarnings("ignore::pyopencl.CompilerWarning")
def test_programs_are_built_where_pyopencl_has_but_its_public_class(device, monkeypatch):
    monkeypatch.setattr(opencl, "_inner_program", lambda: None)
    program = opencl.build(device.context, "kernel void set(global int *x) { x[0] = 42; }")
    assert type(program) is cl.Program
    for made in (program, opencl.from_binary(device.context, opencl.to_binary(program))):
        found, memory = np.zeros(1, np.int32), cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 4)
        kernel = opencl.make_kernel(made, "set")
        kernel.set_arg(0, memory)
        cl.enqueue_nd_range_kernel(device.queue, kernel, (1,), (1,))
        cl.enqueue_copy(device.queue, found, memory)
        assert found[0] == 42
