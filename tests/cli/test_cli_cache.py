"""``clgemm cache``, and what ``clgemm info`` says of stored parameters."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from helpers import as_data, entry_with

from clgemm.cli import main
from clgemm.errors import ClgemmWarning
from clgemm.problem import PRECISIONS
from clgemm.tuning.store import files, lookup, similar
from clgemm.tuning.store import store as stores


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Each test hears its own warnings."""
    monkeypatch.setattr(stores, "_warned", set())


def test_info_says_where_parameters_come_from(device, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    store = lookup.store_for(device.traits)
    config = lookup.defaults(device.traits, PRECISIONS["s"], "").configs[0]
    store.write("gemm.s", entry_with(config))
    assert main.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"  s: {store.path}" in out
    assert str(config) in out
    assert "d: not tuned yet; the first call will" in out
    stored = {"sources": {config.family: "old"}} | entry_with(config)
    store.write("gemm.s", stored)
    assert main.main(["info"]) == 0
    assert (
        f"s: not tuned yet; the first call will (the sources of {config.family} changed; known "
        "configurations, tried first: 1)" in capsys.readouterr().out
    )
    store.path.unlink()
    traits = replace(device.traits, driver_version="an older one")
    lookup.store_for(traits).write("gemm.s", stored)
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
    assert "  d: shipped with clgemm: shipped.json (found on this device)" in (
        capsys.readouterr().out
    )
    assert main.main(["cache", "list"]) == 0
    assert "shipped with clgemm: shipped.json (this device: " in capsys.readouterr().out


def cache_with(traits, *codes, **more):
    """Store each precision's default, with a trial that went well and one that did not."""
    for code in codes:
        config = lookup.defaults(traits, PRECISIONS[code], "").configs[0]
        bad = {"family": config.family, "params": {}}
        known = {"side": 0, "spread": {}, "clock": ""}
        trials = [
            {"config": as_data(config), "status": "ok", "detail": "", "seconds": {"square": 0.5}}
            | known,
            {"config": bad, "status": "wrong", "detail": "by far\nand more", "seconds": {}} | known,
        ]
        entry = {"tuned": "2026-11-21"} | entry_with(config)
        entry["shapes"] = {"square": [1000, 1000, 1000, 1, 0, 0]}
        entry["variants"][0]["seconds"] = {"square": 0.5}
        assert lookup.store_for(traits).write(f"gemm.{code}", entry | {"trials": trials} | more)


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
    cache_with(traits, "z", sources={})
    cache_with(replace(traits, driver_version="9.9"), "c")
    cache_with(replace(traits, name="Elsewhere"), "s")
    out = said(capsys, "list")
    assert str(cache) in out
    assert traits.describe() in out
    assert out.count(": used\n") == 2
    assert out.count(": not used: the sources of ") == 1
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
    assert "gemm.s: trials: 2" in out


@pytest.mark.parametrize(
    "more",
    [{"variants": 3, "trials": 3}, {"variants": [3], "trials": [3, {}]}, {"tuned": None}, {}],
)
def test_cache_show_survives_what_somebody_edited(more, device, cache, capsys):
    cache_with(device.traits, "s", "d")
    (path,) = cache.glob("*.v4.json")
    data = json.loads(path.read_text())
    data["entries"]["gemm.s"] |= more
    path.write_text(json.dumps(data))
    for command in ("show", "list"):
        out = said(capsys, command)
        assert device.traits.describe() in out
        assert ("not used: it has no variants with" in out) == bool(more)
        assert out.count(": used") == 2 - bool(more)


def test_cache_show_of_a_file_that_cannot_be_read(device, cache, capsys):
    cache_with(device.traits, "s")
    (cache / f"{device.traits.fingerprint()}.v4.json").write_text("{")
    assert "a file that cannot be read (damaged: " in said(capsys, "show")


def test_cache_clear_of_one_device_leaves_the_others(device, cache, capsys):
    other = replace(device.traits, name="Elsewhere")
    cache_with(device.traits, "s", "d")
    cache_with(other, "s")
    lookup.store_for(other).begin({"family": "f", "params": {}})
    out = said(capsys, "clear", "--device", "elsewhere")
    assert f"removed {other.fingerprint()}.v4.json: Elsewhere" in out
    assert list(cache.glob(f"{other.fingerprint()}*")) == []
    assert set(lookup.store_for(device.traits).read().entries) == {"gemm.s", "gemm.d"}
    err = said(capsys, "clear", "--device", "elsewhere", status=1)
    assert "names none of what is in the cache" in err
    assert device.traits.name in err


def test_cache_clear_removes_all_that_is_clgemm_s(device, cache, capsys):
    cache_with(device.traits, "s")
    name = device.traits.fingerprint()
    store = lookup.store_for(device.traits)
    store.begin({"family": "f", "params": {}})
    left = [f"{name}{ending}" for ending in (
        ".json", ".passed", ".route", ".trying.json", ".v4.json.aside", ".v4.0123456789abcdef.tmp",
        ".state.v4.0123456789abcdef.tmp", ".gemm.s.searching", ".gemm.s.searching-too",
        ".v5.json", ".0123.alive",
    )]  # fmt: skip
    (cache / "programs").mkdir()
    for file in (*left, "programs/a.bin", "programs/a.0123456789abcdef.tmp"):
        (cache / file).touch()
    (cache / "notes.txt").write_text("the user's own")
    out = said(capsys, "clear")
    assert f"removed {name}.v4.json" in out
    assert "removed compiled programs: 2" in out
    assert list(cache.rglob("*")) == [cache / "notes.txt"]
    assert "nothing to remove" in said(capsys, "clear")


def test_cache_knows_what_an_older_release_found(device, cache, capsys):
    cache_with(device.traits, "s")
    (path,) = cache.glob("*.v4.json")
    data = json.loads(path.read_text())
    entry = data["entries"]["gemm.s"] | {"kernels": files.SCHEMA_3_KERNELS}
    path.unlink()
    old = path.with_name(f"{device.traits.fingerprint()}.json")
    old.write_text(json.dumps(data | {"schema": 3, "precisions": {"s": entry}}))
    before = old.read_bytes()
    assert ": used\n" in said(capsys, "list")
    assert path.exists(), "asked whether it is used, it is kept anew"
    path.unlink()
    assert "gemm.s" in said(capsys, "export", "-o", str(cache.parent / "x.json"))
    assert old.read_bytes() == before
    said(capsys, "clear", "--device", device.traits.fingerprint())
    assert list(cache.glob("*.json")) == [], "or it would come back"


@pytest.mark.usefixtures("cache")
def test_cache_export_and_import(device, capsys, monkeypatch, tmp_path):
    cache_with(device.traits, "s", "d")
    cache_with(replace(device.traits, name="Elsewhere"), "s")
    monkeypatch.chdir(tmp_path)
    out = said(capsys, "export")
    (path,) = tmp_path.glob("*.json")
    assert f"wrote {path.name}" in out
    assert ": gemm.s gemm.d\n" in out
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "other"))
    out = said(capsys, "import", path.name)
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["gemm.s", "used"], ["gemm.d", "used"],
    ]  # fmt: skip

    assert set(lookup.store_for(device.traits).read().entries) == {"gemm.s", "gemm.d"}


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
