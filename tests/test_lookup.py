"""Which known parameters serve a device: its own, those of its like, and why others do not."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import CPU, GPU, as_data, entry_with, quiet

from clgemm.errors import TuningError
from clgemm.kernels import BY_NAME, source
from clgemm.problem import PRECISIONS
from clgemm.traits import fingerprint_of
from clgemm.tuning import tuner
from clgemm.tuning.store import exchange, lookup, similar, store
from clgemm.tuning.store.files import SCHEMA, contents
from clgemm.tuning.store.similar import Kinship
from clgemm.tuning.store.store import Store

S = PRECISIONS["s"]
SPACE = list(BY_NAME["cpu_packed"].candidates(CPU, S))
FIRST, SECOND, THIRD, FOURTH = SPACE[0], SPACE[1], SPACE[-1], SPACE[-2]
NVIDIA = replace(GPU, vendor="NVIDIA Corporation", platform="NVIDIA CUDA",
                 compute_capability=(9, 0))  # fmt: skip

NEW_DRIVER = replace(CPU, driver_version="2.0", platform_version="OpenCL 3.0 B")
BIGGER = replace(CPU, name="A larger CPU", compute_units=64)
COUSIN = replace(CPU, name="An older CPU", simd_bytes=32, compute_units=4)
NEWER = replace(CPU, processor="A maker family 2 model 1")  # of the same name, as in clouds
STRANGER = replace(CPU, name="Another CPU", vendor="Another vendor")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Give each test a cache directory of its own, which is not made yet."""
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def shipped(monkeypatch, tmp_path):
    """Put a folder in place of the one in the package."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.delenv("CLGEMM_SHIPPED")
    real = similar.resources.files
    monkeypatch.setattr(
        similar.resources,
        "files",
        lambda package: folder if package == "clgemm.tuning.shipped" else real(package),
    )
    return folder


def entry(config):
    return {"tuned": "2026-11-21T12:00:00+00:00"} | entry_with(config)


def write(folder, traits, config, kernels=None, code="s", name=None):
    """Put a file of parameters into a folder."""
    kernels = kernels or source.package_hash()
    facts = traits.identity, kernels, similar.architecture(traits)
    place = Store(folder, traits.fingerprint(), *facts)
    assert place.write(code, entry(config))
    if name is not None:
        place.path.replace(folder / name)
    for rest in folder.glob("*.lock"):
        rest.unlink()


def looked_up(traits=CPU, precision=S):
    return quiet(lambda: lookup.stored_parameters(lookup.store_for(traits), traits, precision))


def starts(traits=CPU):
    return quiet(lambda: lookup.starting_points(lookup.store_for(traits), traits, S))


def test_nothing_is_known():
    assert looked_up() is None
    assert starts() == []
    assert lookup.why_unused(lookup.store_for(CPU), CPU, S) == ""


@pytest.mark.parametrize(
    ("traits", "facts"),
    [
        (CPU, {"kind": "cpu", "vendor": CPU.vendor, "platform": CPU.platform, "simd_bytes": 64,
               "processor": CPU.processor}),
        (replace(CPU, processor=""), {"kind": "cpu", "vendor": CPU.vendor, "simd_bytes": 64,
                                      "platform": CPU.platform, "processor": CPU.name}),
        (NVIDIA, {"kind": "gpu", "vendor": NVIDIA.vendor, "platform": NVIDIA.platform,
                  "compute_capability": "9.0"}),
        (GPU, {"kind": "gpu", "vendor": GPU.vendor, "platform": GPU.platform, "name": GPU.name}),
    ],
)  # fmt: skip
def test_an_architecture_is_what_devices_share(traits, facts):
    assert similar.architecture(traits) == facts


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (CPU, CPU, Kinship.DEVICE),
        (CPU, NEW_DRIVER, Kinship.DEVICE),
        (CPU, BIGGER, Kinship.ARCHITECTURE),
        (CPU, COUSIN, Kinship.VENDOR),
        (CPU, NEWER, Kinship.VENDOR),
        (replace(CPU, processor=""), replace(BIGGER, processor=""), Kinship.VENDOR),
        (CPU, replace(CPU, platform="Another platform"), Kinship.VENDOR),
        (CPU, STRANGER, None),
        (CPU, GPU, None),
        (NVIDIA, replace(NVIDIA, name="Another", compute_units=99), Kinship.ARCHITECTURE),
        (NVIDIA, replace(NVIDIA, name="Another", compute_capability=(8, 0)), Kinship.VENDOR),
        (GPU, replace(GPU, compute_units=99), Kinship.ARCHITECTURE),
        (GPU, replace(GPU, name="Another GPU"), Kinship.VENDOR),
    ],
)
def test_kinship(ours, theirs, expected):
    head = {"identity": theirs.identity, "architecture": similar.architecture(theirs)}
    assert similar.kinship(ours, json.loads(json.dumps(head))) is expected


@pytest.mark.parametrize("head", [{}, {"identity": 3}, {"identity": {}, "architecture": []}])
def test_a_file_without_identity_is_a_stranger_s(head):
    assert similar.kinship(CPU, head) is None


@pytest.mark.parametrize("traits", [CPU, NEW_DRIVER, BIGGER], ids=["same", "driver", "larger"])
def test_what_ships_for_a_device_or_its_architecture_is_used(traits, shipped, monkeypatch):
    write(shipped, traits, SECOND, name="found.json")
    tuned = looked_up()
    assert set(tuned.configs) == {SECOND}
    assert tuned.origin.startswith("shipped with clgemm: found.json")
    if traits is BIGGER:
        assert "found on A larger CPU [A platform], this architecture" in tuned.origin
    else:
        assert "found on this device" in tuned.origin
    assert "kernel source" not in tuned.origin
    monkeypatch.setattr(tuner, "_search", None)
    monkeypatch.setattr(tuner.verification, "fault", lambda *_: "")  # no device is here to check on
    device = SimpleNamespace(traits=CPU, tuned={}, tuning=threading.Lock())
    assert tuner.tuned_for(device, "s") == tuned, "without a search"


@pytest.mark.parametrize("traits", [COUSIN, STRANGER, GPU], ids=lambda t: t.name)
def test_what_ships_for_others_is_not_used(traits, shipped):
    write(shipped, traits, SECOND)
    assert looked_up() is None
    assert starts() == ([SECOND] if traits is COUSIN else [])


def test_other_kernels_do_not_make_shipped_parameters_useless(shipped):
    write(shipped, CPU, SECOND, kernels="before")
    tuned = looked_up()
    assert set(tuned.configs) == {SECOND}
    assert "with another kernel source" in tuned.origin


def test_the_nearest_of_what_ships_is_used(shipped):
    write(shipped, replace(BIGGER, compute_units=CPU.compute_units + 1), FOURTH)
    assert set(looked_up().configs) == {FOURTH}
    write(shipped, replace(BIGGER, compute_units=CPU.compute_units + 9), FIRST)
    assert set(looked_up().configs) == {FOURTH}, "the number of cores is nearer"
    write(shipped, NEW_DRIVER, THIRD)
    assert set(looked_up().configs) == {THIRD}, "the device itself comes first"
    write(shipped, CPU, SECOND)
    assert set(looked_up().configs) == {SECOND}, "with its own driver, even more so"


def test_the_user_s_parameters_come_first(cache, shipped):
    write(shipped, CPU, SECOND)
    write(cache, CPU, FIRST)
    tuned = looked_up()
    assert set(tuned.configs) == {FIRST}
    assert tuned.origin == str(lookup.store_for(CPU).path)


def test_a_precision_that_did_not_ship_is_looked_for_further_away(shipped):
    write(shipped, CPU, SECOND, code="d")
    write(shipped, BIGGER, FOURTH)
    assert set(looked_up().configs) == {FOURTH}


def test_a_folder_can_stand_for_what_ships(shipped, tmp_path, monkeypatch):
    write(shipped, CPU, SECOND)
    (tmp_path / "fleet").mkdir()
    write(tmp_path / "fleet", CPU, FIRST, name="ours.json")
    monkeypatch.setenv("CLGEMM_SHIPPED", str(tmp_path / "fleet"))
    tuned = looked_up()
    assert set(tuned.configs) == {FIRST}
    assert tuned.origin == f"{tmp_path / 'fleet' / 'ours.json'} (found on this device)"
    monkeypatch.setenv("CLGEMM_SHIPPED", "off")
    assert looked_up() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 99}', "\0"])
def test_a_shipped_file_that_cannot_be_read_is_passed_over(text, shipped):
    write(shipped, BIGGER, SECOND)
    (shipped / "bad.json").write_text(text)
    (shipped / "__init__.py").touch()
    assert set(looked_up().configs) == {SECOND}


def test_shipped_configurations_that_are_no_points_of_the_space_are_passed_over(shipped):
    good, bad = entry(SECOND), entry_with(as_data(SECOND, KC=7), SECOND)
    place = Store(shipped, CPU.fingerprint(), CPU.identity, "k", similar.architecture(CPU))
    place.write("s", bad)
    assert looked_up() is None
    assert starts() == [SECOND], "what is left of it is still a start"
    write(shipped, BIGGER, FOURTH)
    assert set(looked_up().configs) == {FOURTH}
    place.write("s", good)
    assert set(looked_up().configs) == {SECOND}


def test_a_search_starts_from_what_is_known(cache, shipped):
    write(cache, CPU, FIRST, kernels="before")
    write(cache, NEW_DRIVER, SECOND)
    write(shipped, COUSIN, SECOND)
    write(shipped, replace(COUSIN, name="Its sister"), THIRD, kernels="before")
    write(cache, STRANGER, FOURTH)
    assert looked_up() is None
    assert starts() == [FIRST, SECOND, THIRD]


def test_the_newest_driver_s_parameters_are_tried_first(cache):
    for age, (driver, config) in enumerate([("1.3", FIRST), ("1.2", SECOND), ("1.1", THIRD)]):
        traits = replace(CPU, driver_version=driver)
        write(cache, traits, config)
        then = 1_700_000_000 - age
        os.utime(lookup.store_for(traits).path, (then, then))
    assert starts() == [FIRST, SECOND, THIRD]


def why(traits=CPU):
    return lookup.why_unused(lookup.store_for(traits), traits, S)


def test_why_what_is_stored_is_not_used(cache):
    write(cache, NEW_DRIVER, FIRST)
    expected = "driver changed: OpenCL 3.0 B then, OpenCL 3.0 A now; 2.0 then, 1.0 now"
    assert why() == expected
    write(cache, CPU, FIRST, kernels="before")
    assert why() == "kernel source changed"
    bad = entry(FIRST)
    del bad["shapes"]
    lookup.store_for(CPU).write("s", bad)
    assert why() == "the stored configurations cannot run in this version"
    path = lookup.store_for(CPU).path
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": SCHEMA + 1}))
    assert why() == "schema changed"
    write(cache, CPU, FIRST)
    assert why(NEW_DRIVER) == ""


def usage(traits, *here, name="s"):
    path = lookup.store_for(traits).path
    by_print = {t.fingerprint(): t for t in here}
    return lookup.usage(path, name, contents(path), by_print)


def test_usage_of_a_cached_entry(cache):
    write(cache, CPU, FIRST)
    assert usage(CPU, GPU, CPU) == "used"
    assert usage(CPU, GPU) == "not used: no such device here"
    assert usage(CPU, NEW_DRIVER).startswith("not used: driver changed: OpenCL 3.0 A then")
    write(cache, CPU, FIRST, kernels="before")
    assert usage(CPU, CPU) == "not used: kernel source changed"
    write(cache, CPU, FIRST, code="x")
    assert usage(CPU, CPU, name="x") == "not used: no such precision"


def test_usage_depends_on_how_fp32_is_computed(cache, monkeypatch):
    write(cache, CPU, FIRST)
    write(cache, CPU, FIRST, code="s-fma")
    assert usage(CPU, CPU, name="s-fma") == "used with CLGEMM_FP32=fma"
    monkeypatch.setenv("CLGEMM_FP32", "fma")
    assert usage(CPU, CPU, name="s-fma") == "used"
    assert usage(CPU, CPU) == "used without CLGEMM_FP32=fma"


def test_what_is_exported_can_ship_and_be_taken_up(cache, shipped, tmp_path, monkeypatch):
    trials = [{"config": as_data(FIRST), "status": "ok", "seconds": {}}]
    place = lookup.store_for(CPU)
    place.write("s", entry(SECOND) | {"trials": trials, "note": "not for others"})
    write(cache, CPU, FIRST, kernels="before", code="d")
    path, names = exchange.export(place.path, shipped)
    assert names == ["s"], "what other kernels found stays"
    assert path == shipped / "a-platform-a-cpu-a-maker-family-1-model-2.json"
    written = json.loads(path.read_text())["precisions"]["s"]
    assert written["variants"] == entry(SECOND)["variants"]
    assert "trials" not in written
    assert "note" not in written
    assert path.read_text().endswith("}\n")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "other"))
    tuned = looked_up()
    assert tuned.origin.startswith(f"shipped with clgemm: {path.name}")
    write(tmp_path / "other", CPU, FIRST, code="z")
    found = exchange.loaded(path)
    assert exchange.take_up(found) == (lookup.store_for(CPU).path, ["s"])
    again = looked_up()
    assert tuned.unvetted == set(tuned.configs)
    assert again == replace(tuned, origin=str(tmp_path / "other" / place.path.name))
    assert set(lookup.store_for(CPU).read()) == {"s", "z"}, "merged"


def test_what_other_kernels_found_is_taken_up_as_such(shipped):
    write(shipped, CPU, FIRST, kernels="before", name="old.json")
    path, names = exchange.take_up(exchange.loaded(shipped / "old.json"))
    (shipped / "old.json").unlink()
    assert names == ["s"]
    assert looked_up() is None
    assert usage(CPU, CPU) == "not used: kernel source changed"
    assert path == lookup.store_for(CPU).path


def test_nothing_to_export_is_an_error(cache, tmp_path):
    write(cache, CPU, FIRST, kernels="before")
    with pytest.raises(TuningError, match="clgemm tune"):
        exchange.export(lookup.store_for(CPU).path, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def without(data, *path):
    """Remove what a path of keys leads to."""
    at = data
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]


def changed(data, value, *path):
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value


BEST = ("precisions", "s", "variants", 0)
SQUARE = ("precisions", "s", "shapes", "square")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda d: changed(d, 1, "schema"), "has schema 1"),
        (lambda d: changed(d, 2, "schema"), "has schema 2"),
        (lambda d: without(d, "identity", "name"), "identity"),
        (lambda d: changed(d, "text", "identity"), "identity"),
        (lambda d: changed(d, [], "identity", "name"), "neither text nor number"),
        (lambda d: without(d, "architecture"), "no architecture"),
        (lambda d: changed(d, [], "precisions"), "no entries"),
        (lambda d: changed(d, {}, "precisions"), "no entries"),
        (lambda d: changed(d, {}, "precisions", "q"), "'q' is none of"),
        (lambda d: changed(d, {}, "precisions", "s", "variants"), "has no variants"),
        (lambda d: without(d, "precisions", "s", "shapes"), "has no variants"),
        (lambda d: without(d, *BEST), "has no variants"),
        (lambda d: changed(d, {}, *BEST), "has no variants"),
        (lambda d: changed(d, "many", *BEST, "params", "KC"), "has no variants"),
        (lambda d: changed(d, float("inf"), *BEST, "params", "KC"), "has no variants"),
        (lambda d: changed(d, {"launches": 1.0}, *BEST, "rates"), "has no variants"),
        (lambda d: changed(d, {"square": -1.0}, *BEST, "seconds"), "has no variants"),
        (lambda d: changed(d, {"square": float("nan")}, *BEST, "seconds"), "has no variants"),
        (lambda d: changed(d, [1, 1, 1], *SQUARE), "has no variants"),
        (lambda d: changed(d, [0, 1, 1, 1, 0, 0], *SQUARE), "has no variants"),
    ],
)
def test_a_file_that_nobody_exported_is_refused(spoil, complaint, shipped):
    write(shipped, CPU, FIRST, name="x.json")
    path = shipped / "x.json"
    data = json.loads(path.read_text())
    exchange.loaded(path)
    spoil(data)
    path.write_text(json.dumps(data))
    with pytest.raises(TuningError) as caught:
        exchange.loaded(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "17"])
def test_a_file_that_is_no_json_object_is_refused(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TuningError, match=r"x\.json"):
        exchange.loaded(path)
    with pytest.raises(TuningError, match="there is no file"):
        exchange.loaded(tmp_path / "y.json")


def test_an_identity_from_a_file_has_the_fingerprint_of_its_traits():
    identity = json.loads(json.dumps(CPU.identity))
    assert fingerprint_of(identity) == CPU.fingerprint()
    assert set(identity) == exchange.FACTS
