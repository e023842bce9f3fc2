"""The processor behind a CPU device: what the system says of it."""

from __future__ import annotations

import pytest

from clgemm.runtime import devices, processor

ZEN_4 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: fpu avx512f

processor\t: 1
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 99
"""
ARM = "processor : 0\nCPU implementer : 0x41\nCPU architecture: 8\nCPU part : 0xd40\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ZEN_4, "AuthenticAMD family 25 model 17"),
        (ARM, "implementer 0x41 part 0xd40"),
        ("hart : 0\nisa : rv64imafdc\n", ""),
        ("", ""),
    ],
)
def test_linux_tells(text, expected):
    assert processor.of_linux(text) == expected


def test_windows_tells():
    text = "AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD"
    assert processor.of_windows(text) == processor.of_linux(ZEN_4)
    assert processor.of_windows("arm") == ""


def test_without_a_file_the_system_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(processor.platform, "processor", lambda: "x Family 6 Model 7 Stepping 8, Y")
    assert processor.identity.__wrapped__() == "Y family 6 model 7"


def test_only_cpu_devices_have_one():
    for found in devices.find():
        wanted = processor.identity() if found.traits.kind == "cpu" else ""
        assert found.traits.processor == wanted
