"""The PTX route, on what NVIDIA's OpenCL 580 made of a kernel with marked instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from clgemm.errors import BuildError
from clgemm.kernels import ptx, source
from clgemm.kernels.family import KernelSpec
from clgemm.runtime import opencl
from clgemm.runtime.binaries import Binaries
from clgemm.runtime.programs import Programs

SAMPLE = (Path(__file__).parent / "data" / "nvidia_580.ptx").read_bytes() + b"\0"


def test_marked_instructions_are_uncovered():
    text = ptx.retarget(SAMPLE, "sm_90a")
    assert SAMPLE.count(b"//@@") == 2
    assert b"//@@" not in text
    assert b"\twgmma.fence.sync.aligned;\n" in text
    assert b"\tsetmaxnreg.inc.sync.aligned.u32 240; // %f" in text


def test_target_is_named_and_all_else_stays():
    text = ptx.retarget(SAMPLE, "sm_90a")
    assert b".target sm_90a, texmode_independent\n" in text
    assert b".target sm_90," not in text
    assert text.endswith(b"\0")
    restored = text.replace(b"sm_90a", b"sm_90").replace(b"\n.minnctapersm 1", b"")
    assert restored == SAMPLE.replace(b"//@@", b"")


def test_registers_at_entry_are_determined():
    text = ptx.retarget(SAMPLE, "sm_90a")
    assert text.count(b".reqntid 128, 1, 1\n.minnctapersm 1\n{") == 1
    twice = ptx.retarget(text + b"//@@", "sm_90a")
    assert twice.count(b".minnctapersm") == 1


def test_a_kernel_says_how_many_of_its_groups_a_unit_holds():
    """Kernels that wait for memory: more of them at once, with fewer registers each."""
    body = b"{\n\t// begin inline asm\n\t//@@.minnctapersm 5\n\t// end inline asm\n"
    head, tail = SAMPLE.split(b"\n{\n", 1)
    text = ptx.retarget(head + b"\n" + body + tail, "sm_90a")
    assert text.count(b".minnctapersm") == 1
    assert text.count(b".reqntid 128, 1, 1\n.minnctapersm 5\n{") == 1
    restored = text.replace(b".minnctapersm 5", b".minnctapersm 1")
    assert restored.replace(b"\t// begin inline asm\n\t// end inline asm\n", b"", 1) == (
        ptx.retarget(SAMPLE, "sm_90a")
    )


MARKED = """\
inline int one(int x)
{
    return x;
}
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void two(__global int *x)
{
    asm volatile("//@@wgmma.fence.sync.aligned;");
}
"""


def test_kernels_return_at_once_until_they_are_assembled_again():
    text = ptx.unassembled(MARKED)
    assert text.count("ret;") == 1
    assert 'int *x)\n{\nasm volatile("ret; //@@return"' in text
    body = b"{\n\t// begin inline asm\n\tret; //@@return\n\t// end inline asm\n"
    head, tail = SAMPLE.split(b"\n{\n", 1)
    again = ptx.retarget(head + b"\n" + body + tail, "sm_90a")
    restored = again.replace(b"\t// begin inline asm\n\t// end inline asm\n", b"", 1)
    assert restored == ptx.retarget(SAMPLE, "sm_90a")


def test_every_kernel_with_marked_instructions_returns_at_once():
    for name in ("nv_split/gemm.cl", "nv_split/pack.cl", "nv_split/short.cl", "batched/gemm.cl"):
        text = source.read(name)
        changed = ptx.unassembled(text + ptx.MARK.decode())
        assert changed.count("//@@return") == text.count("\n__kernel "), name


def test_a_source_without_marked_instructions_stays():
    text = MARKED.replace("//@@", "")
    assert ptx.unassembled(text) == text


@pytest.mark.parametrize("binary", [b"", b"\x7fELF\x02\x01", SAMPLE.replace(b"//@@", b"")])
def test_what_is_no_marked_ptx_is_refused(binary):
    with pytest.raises(ptx.PtxError):
        ptx.retarget(binary, "sm_90a")


SPEC = KernelSpec(
    ("direct/gemm.cl",), "direct", (("IS_COMPLEX", 0), ("IS_DOUBLE", 0)), "seeppp", "sm_90a"
)


def test_a_device_without_ptx_refuses_a_target(device):
    """What such a device's compiler returns is no PTX: an error that the tuner can report."""
    if device.traits.compute_capability:
        pytest.skip(f"{device.traits.describe()} compiles to PTX")
    with pytest.raises(BuildError, match="no PTX text"):
        Programs(device.context, device.traits).kernel(SPEC)


def test_a_stored_program_is_kept_by_its_target(device, tmp_path, monkeypatch):
    """With and without a target the same source makes two programs."""
    calls = []
    monkeypatch.setattr(ptx, "retarget", lambda binary, target: calls.append(target) or binary)
    programs = Programs(device.context, device.traits, Binaries(tmp_path, "print"))
    for spec in (SPEC, SPEC._replace(target="")):
        programs.kernel(spec)
    assert calls == ["sm_90a"]
    assert len(list(tmp_path.glob("*.bin"))) == 2
    again = Programs(device.context, device.traits, Binaries(tmp_path, "print"))
    monkeypatch.setattr(opencl, "build", lambda *_: pytest.fail("compiled again"))
    again.kernel(SPEC)
    assert calls == ["sm_90a"]
