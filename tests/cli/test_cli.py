"""The command line: what it prints and how it exits."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers import as_data, entry_with, run_python

import clgemm
from clgemm.cli import main
from clgemm.errors import ClgemmWarning
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, registry
from clgemm.tuning.measure import timing
from clgemm.tuning.store import lookup, similar
from clgemm.tuning.store import store as stores


@pytest.fixture
def device(device):
    """Each device present, in use."""
    with registry.using(device):
        yield device


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Do not wait for a quiet machine: times do not matter here."""
    monkeypatch.setattr(timing, "_busy_ticks", lambda: None)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Each test hears its own warnings."""
    monkeypatch.setattr(stores, "_warned", set())


def test_versions_name_what_a_report_needs():
    text = main.versions()
    for part in (clgemm.__version__, np.__version__, "scipy", "pyopencl", "python"):
        assert part in text


def test_info(device, capsys):
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert main.versions() in out
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


def test_info_says_where_parameters_come_from(device, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    store = lookup.store_for(device.traits)
    config = lookup.defaults(device.traits, PRECISIONS["s"], "").configs[0]
    store.write("s", entry_with(config))
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"s: from {store.path}" in out
    assert str(config) in out
    assert "d: not tuned yet; the first call will" in out
    stored = {"kernels": "old"} | entry_with(config)
    store.write("s", stored)
    assert main.main(["info"]) == 0
    assert (
        "s: not tuned yet; the first call will (kernel source changed; known configurations, tried "
        "first: 1)" in capsys.readouterr().out
    )
    store.path.unlink()
    traits = replace(device.traits, driver_version="an older one")
    lookup.store_for(traits).write("s", stored)
    assert main.main(["info"]) == 0
    assert "will (driver changed: an older one then" in capsys.readouterr().out


def test_info_names_what_ships(device, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    cache_with(device.traits, "d")
    assert main.main(["cache", "export", "-o", str(tmp_path / "shipped.json")]) == 0
    lookup.store_for(device.traits).path.unlink()
    monkeypatch.delenv("CLGEMM_SHIPPED")
    monkeypatch.setattr(similar.resources, "files", lambda _package: tmp_path)
    capsys.readouterr()
    assert main.main(["info"]) == 0
    assert "d: from shipped with clgemm: shipped.json (found on this device)" in (
        capsys.readouterr().out
    )
    assert main.main(["cache", "list"]) == 0
    assert "shipped with clgemm: shipped.json (this device: " in capsys.readouterr().out


def cache_with(traits, *codes, **more):
    """Store each precision's default, with a trial that went well and one that did not."""
    for code in codes:
        config = lookup.defaults(traits, PRECISIONS[code], "").configs[0]
        bad = {"family": config.family, "params": {}}
        trials = [
            {"config": as_data(config), "status": "ok", "detail": "", "seconds": {"square": 0.5}},
            {"config": bad, "status": "wrong", "detail": "by far\nand more", "seconds": {}},
        ]
        entry = {"tuned": "2026-11-21"} | entry_with(config)
        entry["shapes"] = {"square": [1000, 1000, 1000, 1, 0, 0]}
        entry["variants"][0]["seconds"] = {"square": 0.5}
        assert lookup.store_for(traits).write(code, entry | {"trials": trials} | more)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def said(capsys, *arguments, status=0):
    """Run a command of the cache; return what it printed."""
    assert main.main(["cache", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def test_cache_of_a_new_user(cache, capsys):
    assert str(cache) in said(capsys, "list")
    assert "no parameters yet" in said(capsys, "list")
    assert said(capsys, "show") == f"no parameters in {cache}\n"
    assert "nothing to remove" in said(capsys, "clear")
    assert not cache.exists()


def test_cache_list_says_what_is_used_and_why_not(device, cache, capsys, monkeypatch):
    traits = device.traits
    cache_with(traits, "s", "d")
    cache_with(traits, "z", kernels="before")
    cache_with(replace(traits, driver_version="9.9"), "c")
    cache_with(replace(traits, name="Elsewhere"), "s")
    out = said(capsys, "list")
    assert str(cache) in out
    assert traits.describe() in out
    assert out.count(": used\n") == 2
    assert out.count(": not used: kernel source changed\n") == 1
    assert f"not used: driver changed: 9.9 then, {traits.driver_version} now" in out
    assert out.count(": not used: no such device here\n") == 1
    assert f"Elsewhere [{traits.platform}], driver {traits.driver_version}" in out
    monkeypatch.setenv("CLGEMM_TUNE", "off")
    assert "CLGEMM_TUNE=off: none of these is used" in said(capsys, "list")


@pytest.mark.usefixtures("cache")
def test_cache_show_prints_variants_rates_and_failures(device, capsys):
    cache_with(device.traits, "s", "z")
    out = said(capsys, "show")
    config = lookup.defaults(device.traits, PRECISIONS["s"], "").configs[0]
    assert f"1: {config}\n" in out
    rates = [line.split()[-1] for line in out.splitlines() if line.split()[:1] == ["square"]]
    assert rates == ["4", "16"], "a complex product counts four real ones"
    assert f"wrong: {config.family}(): by far\n" in out
    assert "s: trials: 2" in out


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "more",
    [{"variants": 3, "trials": 3}, {"variants": [3], "trials": [3, {}]}, {"tuned": None}],
)
def test_cache_show_survives_what_somebody_edited(more, device, capsys):
    cache_with(device.traits, "s", **more)
    assert device.traits.describe() in said(capsys, "show")


def test_cache_show_of_a_file_that_cannot_be_read(device, cache, capsys):
    cache_with(device.traits, "s")
    (cache / f"{device.traits.fingerprint()}.json").write_text("{")
    assert "a file that cannot be read (damaged: " in said(capsys, "show")


def test_cache_clear_of_one_device_leaves_the_others(device, cache, capsys):
    other = replace(device.traits, name="Elsewhere")
    cache_with(device.traits, "s", "d")
    cache_with(other, "s")
    lookup.store_for(other).begin({"family": "f"})
    out = said(capsys, "clear", "--device", "elsewhere")
    assert f"removed {other.fingerprint()}.json: Elsewhere" in out
    assert list(cache.glob(f"{other.fingerprint()}*")) == []
    assert set(lookup.store_for(device.traits).read()) == {"s", "d"}
    err = said(capsys, "clear", "--device", "elsewhere", status=1)
    assert "names none of what is in the cache" in err
    assert device.traits.name in err


def test_cache_clear_removes_all_that_is_clgemm_s(device, cache, capsys):
    cache_with(device.traits, "s")
    (cache / "programs").mkdir()
    (cache / "programs" / "a.bin").touch()
    (cache / "notes.txt").write_text("the user's own")
    out = said(capsys, "clear")
    assert f"removed {device.traits.fingerprint()}.json" in out
    assert "removed compiled programs: 1" in out
    assert [path for path in cache.rglob("*") if path.is_file()] == [cache / "notes.txt"]
    assert "nothing to remove" in said(capsys, "clear")


@pytest.mark.usefixtures("cache")
def test_cache_export_and_import(device, capsys, monkeypatch, tmp_path):
    cache_with(device.traits, "s", "d")
    cache_with(replace(device.traits, name="Elsewhere"), "s")
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "export")
    (path,) = tmp_path.glob("*.json")
    assert f"wrote {path.name}" in out
    assert ": s d\n" in out
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "other"))
    out = said(capsys, "import", path.name)
    assert [line.split() for line in out.splitlines()[1:]] == [["s", "used"], ["d", "used"]]
    assert set(lookup.store_for(device.traits).read()) == {"s", "d"}


@pytest.mark.usefixtures("cache")
def test_cache_export_asks_which(device, capsys, tmp_path):
    err = said(capsys, "export", "--device", "pocket calculator", status=1)
    assert "there are no parameters" in err
    for name in ("Elsewhere", "Elsewhere 2"):
        cache_with(replace(device.traits, name=name), "s")
    assert f"no parameters of {device.traits.describe()}" in said(capsys, "export", status=1)
    assert "names several" in said(capsys, "export", "--device", "elsewhere", status=1)
    to = str(tmp_path / "out.json")
    assert "wrote" in said(capsys, "export", "--device", "Elsewhere 2", "--output", to)
    assert json.loads((tmp_path / "out.json").read_text())["identity"]["name"] == "Elsewhere 2"
    err = said(capsys, "export", "--device", "Elsewhere 2", "-o", str(tmp_path / "no" / "x"),
               status=1)  # fmt: skip
    assert "No such file" in err


def test_cache_import_refuses_all_if_one_is_wrong(device, cache, capsys, tmp_path):
    cache_with(device.traits, "s")
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    said(capsys, "export", "-o", str(good))
    bad.write_text("{")
    said(capsys, "clear")
    err = said(capsys, "import", str(good), str(bad), status=1)
    assert str(bad) in err
    assert list(cache.glob("*.json")) == []


def test_cache_import_into_a_folder_that_cannot_be_written(device, cache, capsys, tmp_path):
    cache_with(device.traits, "s")
    good = tmp_path / "good.json"
    said(capsys, "export", "-o", str(good))
    said(capsys, "clear")
    shutil.rmtree(cache)
    cache.touch()
    with pytest.warns(ClgemmWarning, match="cannot be written"):
        said(capsys, "import", str(good), status=1)


def test_info_of_a_device_without_double_precision(device, capsys):
    single = type(device).__new__(type(device))
    single.__dict__.update(device.__dict__, traits=replace(device.traits, fp64=False))
    with registry.using(single):
        assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "d: this device has no double precision" in out
    assert "z: this device has no double precision" in out
    assert "s: from" in out


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

    monkeypatch.setattr(main.blas, "sgemm", sgemm)
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
    def info():
        raise fault

    monkeypatch.setattr(main, "info", info)
    assert main.main(["info"]) == status
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


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
    monkeypatch.setattr(registry, "_current", None)
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
        timeout=60,
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
    monkeypatch.setattr(main, "info", lambda: 0)
    assert main.main([*flags, "info"]) == 0
    assert asked == [level]


def test_warnings_of_clgemm_are_shown(monkeypatch, recwarn):
    def info():
        for _ in range(2):
            warnings.warn("the same", ClgemmWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(main, "info", info)
    assert main.main(["info"]) == 0
    assert len(recwarn) == 2
