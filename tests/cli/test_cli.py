"""The command line: what it prints and how it exits."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers import PATIENCE, run_python

import clgemm
from clgemm.cli import demo, info, main
from clgemm.errors import ClgemmWarning
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, registry
from clgemm.tuning.measure import timing
from clgemm.tuning.store import lookup


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Do not wait for a quiet machine: times do not matter here."""
    monkeypatch.setattr(timing, "_busy_ticks", lambda: None)


def test_versions_name_what_a_report_needs():
    text = info.versions()
    for part in (clgemm.__version__, np.__version__, "scipy", "pyopencl", "python"):
        assert part in text


def test_info(device, capsys):
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert info.versions() in out
    for found in devices.find():
        assert found.traits.describe() in out
        assert found.traits.driver_version in out
    marked = [line for line in out.splitlines() if line.startswith(" * ")]
    assert len(marked) == 1
    assert device.traits.describe() in marked[0]
    assert f"in use: {device.traits.describe()} ({device.reason})" in out
    assert "CLGEMM_TUNE=off" in out
    for code in "sdcz":
        assert f"\n  {code}: " in out
    assert str(lookup.defaults(device.traits, PRECISIONS["z"], "").configs[0]) in out
    assert "cache directory:" in out


@pytest.mark.usefixtures("device")
def test_info_says_that_nothing_is_kept_where_nothing_can_be(capsys, monkeypatch, tmp_path):
    place = tmp_path / "a file"
    place.touch()
    for folder in (place, place / "below"):
        monkeypatch.setenv("CLGEMM_CACHE_DIR", str(folder))
        assert main.main(["info"]) == 0
        why = f"(nothing is kept there: {place} is no directory)"
        assert f"cache directory: {folder} {why}" in capsys.readouterr().out
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "not made yet"))
    assert main.main(["info"]) == 0
    assert "nothing is kept" not in capsys.readouterr().out


def test_info_of_a_device_without_double_precision(device, capsys):
    single = type(device).__new__(type(device))
    single.__dict__.update(device.__dict__, traits=replace(device.traits, fp64=False))
    with registry.using(single):
        assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "d: this device has no double precision" in out
    assert "z: this device has no double precision" in out
    assert "  s: " in out


def test_info_without_a_device_says_how_to_get_one(capsys, monkeypatch):
    monkeypatch.setattr(devices, "find", tuple)
    assert main.main(["info"]) == 1
    out = capsys.readouterr().out
    assert "devices: none" in out
    assert "pip install 'clgemm[cpu]'" in out


@pytest.mark.usefixtures("device")
def test_demo(capsys):
    assert main.main(["demo", "--n", "96", "--precisions", "sd"]) == 0
    out = capsys.readouterr().out
    assert "n = 96" in out
    rows = [line for line in out.splitlines() if "GF/s" in line]
    assert [row.split()[0] for row in rows] == ["sgemm", "dgemm"]
    for row in rows:
        assert row.count(" ms") == 2
        speed_up = next(word for word in row.split() if word.endswith("x"))
        assert float(speed_up[:-1]) > 0
        assert float(row.split()[-1]) < 1, "the error is below the bound"
    assert "all results agree with SciPy" in out


@pytest.mark.usefixtures("device")
def test_demo_of_one_element(capsys):
    assert main.main(["demo", "--n", "1", "--precisions", "z"]) == 0
    assert "zgemm" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [np.nan, 1e-2])
@pytest.mark.usefixtures("device")
def test_demo_says_so_if_a_result_is_wrong(wrong, capsys, monkeypatch):
    right = clgemm.sgemm

    def sgemm(*arguments):
        c = right(*arguments)
        c[0, 0] += np.float32(wrong)
        return c

    monkeypatch.setattr(demo.blas, "sgemm", sgemm)
    assert main.main(["demo", "--n", "50", "--precisions", "s"]) == 1
    assert "A RESULT IS WRONG" in capsys.readouterr().out


def test_demo_leaves_out_what_the_device_lacks(device, capsys):
    single = type(device).__new__(type(device))
    single.__dict__.update(device.__dict__, traits=replace(device.traits, fp64=False))
    with registry.using(single):
        assert main.main(["demo", "--n", "40"]) == 0
    out = capsys.readouterr().out
    assert "sgemm" in out
    assert "dgemm" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["demo", "--n", "many"],
        ["demo", "--n", "0"],
        ["demo", "--n", "-3"],
        ["demo", "--precision", "sx"],
        ["demo", "--precisions", ""],
        ["explain", "90", "--precision", "q"],
        ["tune", "--precision", "sx"],
        ["tune", "--precision", ""],
        ["info", "more"],
        ["cache"],
        ["cache", "dance"],
        ["cache", "import"],
    ],
)
def test_what_the_parser_refuses(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main.main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert "usage: clgemm" in captured.err
    assert captured.out == ""
    if len(arguments) > 2:
        assert repr(arguments[-1]) in captured.err


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (MemoryError("no room"), 1, "no room"),
        (OSError(28, "No space left on device"), 1, "No space"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_ends_a_command_is_said_in_a_line(fault, status, words, capsys, monkeypatch):
    def run(_):
        raise fault

    monkeypatch.setattr(info, "run", run)
    assert main.main(["info"]) == status
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_command_without_standard_output_ends_as_ever(monkeypatch):
    """As `>&-` of a shell leaves it, or a Python without a console."""
    monkeypatch.setattr(info, "run", lambda _: 0)
    monkeypatch.setattr(sys, "stdout", None)
    assert main.main(["info"]) == 0


@pytest.mark.process
def test_a_reader_that_has_seen_enough_is_no_error():
    program = """
import os, subprocess, sys
read, write = os.pipe()
os.close(read)
run = subprocess.run([sys.executable, "-m", "clgemm", "info"], stdout=write, stderr=subprocess.PIPE)
assert (run.stderr, run.returncode) == (b"", 0), run
"""
    run = run_python(program)
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.parametrize("command", ["info", "demo"])
def test_an_error_is_one_line_and_status_one(command, capsys, monkeypatch):
    monkeypatch.setattr(registry, "in_use", None)
    monkeypatch.setenv("CLGEMM_DEVICE", "abacus")
    assert main.main([command]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("clgemm: error: ")
    assert "abacus" in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("command", ["info", "demo"])
def test_in_a_child_that_may_use_no_device(command, capsys, monkeypatch):
    monkeypatch.setattr(registry, "current", lambda: None)
    assert main.main([command]) == 1
    assert "no" in capsys.readouterr().out


@pytest.mark.process
def test_as_a_module(device):
    run = subprocess.run(
        [sys.executable, "-m", "clgemm", "info"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert device.traits.describe() in run.stdout


@pytest.mark.process
def test_version_needs_no_device():
    program = """
import sys
from clgemm.cli import main as cli
from clgemm.errors import ClgemmWarning
sys.argv = ["clgemm", "--version"]
try:
    cli.main()
except SystemExit as end:
    assert not end.code
assert "pyopencl" not in sys.modules
"""
    run = run_python(program)
    assert (run.returncode, run.stderr) == (0, "")
    assert clgemm.__version__ in run.stdout


@pytest.mark.parametrize(("flags", "level"), [([], logging.INFO), (["-v"], logging.DEBUG)])
def test_verbose_shows_the_log(flags, level, monkeypatch):
    asked = []
    monkeypatch.setattr(logging, "basicConfig", lambda **more: asked.append(more["level"]))
    monkeypatch.setattr(info, "run", lambda _: 0)
    assert main.main([*flags, "info"]) == 0
    assert asked == [level]


def test_warnings_of_clgemm_are_shown(monkeypatch, recwarn):
    def run(_):
        for _ in range(2):
            warnings.warn("the same", ClgemmWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(info, "run", run)
    assert main.main(["info"]) == 0
    assert len(recwarn) == 2
