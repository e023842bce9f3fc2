"""Which known parameters serve a device: its own, those of its like, and why others do not."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import CPU, GPU, as_data, entry_with, heard, quiet, square

from clgemm.cli import cache as commands
from clgemm.errors import ClgemmWarning, TuningError
from clgemm.kernels import BY_NAME, source
from clgemm.kernels.costs import Costs
from clgemm.problem import PRECISIONS
from clgemm.runtime import private_files
from clgemm.runtime.programs import Programs
from clgemm.traits import fingerprint_of
from clgemm.tuning import tuner
from clgemm.tuning.search import search
from clgemm.tuning.store import files, lookup, similar, store
from clgemm.tuning.store.files import SCHEMA, read_cached, read_file
from clgemm.tuning.store.similar import Similarity
from clgemm.tuning.store.store import Store

S = PRECISIONS["s"]
SPACE = list(BY_NAME["cpu_packed"].candidates(CPU, S))
FIRST, SECOND, THIRD, FOURTH = SPACE[0], SPACE[1], SPACE[-1], SPACE[-2]
NVIDIA = replace(GPU, vendor="NVIDIA Corporation", platform="NVIDIA CUDA",
                 compute_capability=(9, 0))  # fmt: skip

NEW_DRIVER = replace(CPU, driver_version="2.0", platform_version="OpenCL 3.0 B")
BIGGER = replace(CPU, name="A larger CPU", compute_units=64)
RELATED = replace(CPU, name="An older CPU", simd_bytes=32, compute_units=4)
NEWER = replace(CPU, processor="A maker family 2 model 1")  # of the same name, as in clouds
FOREIGN = replace(CPU, name="Another CPU", vendor="Another vendor")


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


def store_in(folder, traits):
    return Store(folder, traits.fingerprint(), traits.identity, similar.architecture(traits))


def write(folder, traits, config, sources=None, name="gemm.s", file=None):
    """Put a file of parameters into a folder."""
    place, more = store_in(folder, traits), {}
    if sources is not None:
        more = {"sources": {config.family: sources}}
    assert place.write(name, entry(config) | more)
    if file is not None:
        place.path.replace(folder / file)
    for rest in folder.glob("*.lock"):
        rest.unlink()


def looked_up(traits=CPU, precision=S):
    return quiet(lambda: lookup.find_stored(lookup.store_for(traits), traits, precision))


def starts(traits=CPU):
    return quiet(lambda: lookup.find_starting_points(lookup.store_for(traits), traits, S))


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
        (CPU, CPU, Similarity.DEVICE),
        (CPU, NEW_DRIVER, Similarity.DEVICE),
        (CPU, BIGGER, Similarity.ARCHITECTURE),
        (CPU, RELATED, Similarity.VENDOR),
        (CPU, NEWER, Similarity.VENDOR),
        (replace(CPU, processor=""), replace(BIGGER, processor=""), Similarity.VENDOR),
        (CPU, replace(CPU, platform="Another platform"), Similarity.VENDOR),
        (CPU, FOREIGN, None),
        (CPU, GPU, None),
        (NVIDIA, replace(NVIDIA, name="Another", compute_units=99), Similarity.ARCHITECTURE),
        (NVIDIA, replace(NVIDIA, name="Another", compute_capability=(8, 0)), Similarity.VENDOR),
        (GPU, replace(GPU, compute_units=99), Similarity.ARCHITECTURE),
        (GPU, replace(GPU, name="Another GPU"), Similarity.VENDOR),
    ],
)
def test_what_devices_have_in_common(ours, theirs, expected):
    head = {"identity": theirs.identity, "architecture": similar.architecture(theirs)}
    assert similar.compare(ours, json.loads(json.dumps(head))) is expected


@pytest.mark.parametrize("traits", [CPU, NEW_DRIVER, BIGGER], ids=["same", "driver", "larger"])
def test_what_ships_for_a_device_or_its_architecture_is_used(traits, shipped, monkeypatch):
    write(shipped, traits, SECOND, file="found.json")
    tuned = looked_up()
    assert set(tuned.configs) == {SECOND}
    assert tuned.origin.startswith("shipped with clgemm: found.json")
    if traits is BIGGER:
        assert "found on A larger CPU [A platform], this architecture" in tuned.origin
    else:
        assert "found on this device" in tuned.origin
    assert "kernel source" not in tuned.origin
    monkeypatch.setattr(tuner.Parameters, "_search", None)
    parameters = tuner.Parameters(SimpleNamespace(traits=CPU, programs=Programs(None, CPU)))
    assert parameters.of("s") == tuned, "without a search"


@pytest.mark.parametrize("traits", [RELATED, FOREIGN, GPU], ids=lambda t: t.name)
def test_what_ships_for_others_is_not_used(traits, shipped):
    write(shipped, traits, SECOND)
    assert looked_up() is None
    assert starts() == ([SECOND] if traits is RELATED else [])


def test_other_kernels_do_not_make_shipped_parameters_useless(shipped):
    write(shipped, CPU, SECOND, sources="before")
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
    write(shipped, CPU, SECOND, name="gemm.d")
    write(shipped, BIGGER, FOURTH)
    assert set(looked_up().configs) == {FOURTH}


def test_a_folder_can_stand_for_what_ships(shipped, tmp_path, monkeypatch):
    write(shipped, CPU, SECOND)
    (tmp_path / "fleet").mkdir()
    write(tmp_path / "fleet", CPU, FIRST, file="ours.json")
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
    place = store_in(shipped, CPU)
    place.write("gemm.s", bad)
    assert looked_up() is None
    assert starts() == [SECOND], "what is left of it is still a start"
    write(shipped, BIGGER, FOURTH)
    assert set(looked_up().configs) == {FOURTH}
    place.write("gemm.s", good)
    assert set(looked_up().configs) == {SECOND}


def test_a_search_starts_from_what_is_known(cache, shipped):
    write(cache, CPU, FIRST, sources="before")
    write(cache, NEW_DRIVER, SECOND)
    write(shipped, RELATED, SECOND)
    write(shipped, replace(RELATED, name="Its sister"), THIRD, sources="before")
    write(cache, FOREIGN, FOURTH)
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
    write(cache, CPU, FIRST, sources="before")
    assert why() == f"the sources of {FIRST.family} changed"
    lookup.store_for(CPU).write("gemm.s", entry_with(as_data(SECOND, KC=7)))
    assert why() == "the stored configurations cannot run in this version"
    path = lookup.store_for(CPU).path
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": SCHEMA + 1}))
    assert why() == "schema changed"
    write(cache, CPU, FIRST)
    assert why() == ""
    data = json.loads(path.read_text())
    data["entries"]["gemm.s"]["variants"] = 3
    path.write_text(json.dumps(data))
    assert "no variants with parameters, shapes and times" in why()
    assert why(NEW_DRIVER) == ""


def usage(traits, *here, name="gemm.s"):
    path = lookup.store_for(traits).path
    by_print = {t.fingerprint(): t for t in here}
    return commands.usage(commands.Cached(path, read_cached(path)), name, by_print)


def test_usage_of_a_cached_entry(cache):
    write(cache, CPU, FIRST)
    assert usage(CPU, GPU, CPU) == "used"
    assert usage(CPU, GPU) == "not used: no such device here"
    assert usage(CPU, NEW_DRIVER).startswith("not used: driver changed: OpenCL 3.0 A then")
    write(cache, CPU, FIRST, sources="before")
    assert usage(CPU, CPU) == f"not used: the sources of {FIRST.family} changed"
    write(cache, CPU, FIRST, name="gemm.x")
    assert usage(CPU, CPU, name="gemm.x") == "not used: no such routine or precision"


def test_usage_depends_on_how_fp32_is_computed(cache, monkeypatch):
    write(cache, CPU, FIRST)
    write(cache, CPU, FIRST, name="gemm.s-fma")
    assert usage(CPU, CPU, name="gemm.s-fma") == "used with CLGEMM_FP32=fma"
    monkeypatch.setenv("CLGEMM_FP32", "fma")
    assert usage(CPU, CPU, name="gemm.s-fma") == "used"
    assert usage(CPU, CPU) == "used without CLGEMM_FP32=fma"


OLD = "before"  # kernels of some other release


def old_entry(config, kernels):
    """Give an entry as releases before wrote it, with a trial."""
    known = entry(config) | {"clgemm": "0.1.0", "kernels": kernels, "search_seconds": 2.5}
    trial = {"config": as_data(FOURTH), "status": "wrong", "detail": "by far", "seconds": {},
             "side": 0}  # fmt: skip
    return known | {"trials": [trial]}


def write_old(folder, traits=CPU, **entries):
    """Put a file of schema 3 into a folder; return its path."""
    folder.mkdir(mode=0o700, exist_ok=True)
    data = {"schema": 3, "identity": traits.identity,
            "architecture": similar.architecture(traits), "precisions": entries}  # fmt: skip
    path = folder / f"{traits.fingerprint()}.json"
    path.write_text(json.dumps(data))
    return path


def test_what_an_older_release_found_is_read_once_and_kept_anew(cache, monkeypatch):
    same = files.SCHEMA_3_KERNELS
    old = write_old(cache, s=old_entry(FIRST, same), d=old_entry(SECOND, OLD), x=3)
    before = old.read_bytes()
    assert looked_up().configs == (FIRST,)
    assert old.read_bytes() == before
    new = lookup.store_for(CPU).path
    kept = json.loads(new.read_text())
    assert kept["schema"] == 4
    assert set(kept["entries"]) == {"gemm.s", "gemm.d"}
    single, double = kept["entries"]["gemm.s"], kept["entries"]["gemm.d"]
    assert single["sources"] == {FIRST.family: source.family_hash(FIRST.family)}
    assert single["variants"] == entry(FIRST)["variants"]
    assert single["trials"][0]["status"] == "wrong"
    assert (single["tuned"], single["search_seconds"]) == ("2026-11-21T12:00:00+00:00", 2.5)
    assert FOURTH in search.ruled_out(lookup.store_for(CPU), CPU, S), "never tried again"
    assert double["sources"] == {SECOND.family: OLD}
    assert looked_up(precision=PRECISIONS["d"]) is None
    assert usage(CPU, CPU, name="gemm.d") == f"not used: the sources of {FIRST.family} changed"
    old.write_text(old.read_text().replace(same, OLD))
    assert looked_up().configs == (FIRST,), "it is not read again"
    monkeypatch.setattr(source, "family_hash", lambda _name: "new")
    assert looked_up() is None
    assert starts() == [FIRST]


def test_what_an_older_release_found_is_kept_by_a_write(cache):
    write_old(cache, s=old_entry(FIRST, files.SCHEMA_3_KERNELS))
    write(cache, CPU, SECOND, name="gemm.d")
    assert set(lookup.store_for(CPU).read().entries) == {"gemm.s", "gemm.d"}


def test_an_older_release_s_file_serves_where_nothing_can_be_written(cache, monkeypatch):
    def refuse(*_more):
        raise OSError(30, "Read-only file system")

    write_old(cache, s=old_entry(FIRST, files.SCHEMA_3_KERNELS))
    monkeypatch.setattr(private_files, "write", refuse)
    for _ in range(2):
        assert looked_up().configs == (FIRST,)
    assert [path.suffixes for path in cache.glob("*.json")] == [[".json"]]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 3}', '{"schema": 3, "precisions": [3]}'])
def test_an_older_release_s_file_that_cannot_be_read_is_nothing(text, cache):
    write_old(cache).write_text(text)
    assert looked_up() is None
    assert lookup.why_unused(lookup.store_for(CPU), CPU, S) == ""
    write(cache, CPU, FIRST)
    assert looked_up().configs == (FIRST,)


def test_an_older_release_s_file_of_another_driver_is_a_start(cache):
    write_old(cache, NEW_DRIVER, s=old_entry(SECOND, OLD))
    assert looked_up() is None
    assert starts() == [SECOND]
    assert why().startswith("driver changed")


SPOILT = {
    "rates": lambda variant: variant | {"rates": dict.fromkeys(Costs._fields, 1e308)},
    "seconds": lambda variant: variant | {"seconds": {"square": math.inf}},
    "family": lambda variant: variant | {"family": "none"},
    "parameters": lambda variant: variant | {"params": {"KC": 1 << 30}},
    "form": lambda _variant: 3,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_somebody_spoilt_makes_no_product_raise(spoil, cache, monkeypatch):
    monkeypatch.setattr(
        tuner.Parameters, "_search", lambda *_: (None, lookup.defaults(CPU, S, "a search"))
    )
    write(cache, CPU, FIRST)
    path = lookup.store_for(CPU).path
    data = json.loads(path.read_text())
    data["entries"]["gemm.s"]["shapes"] = {"square": [512, 512, 512, 1, 0, 0]}
    data["entries"]["gemm.s"]["variants"] = [spoil(as_data(x) | {"rates": {}, "seconds": {}})
                                             for x in (FIRST, SECOND)]  # fmt: skip
    path.write_text(json.dumps(data))
    parameters = tuner.Parameters(SimpleNamespace(traits=CPU, programs=Programs(None, CPU)))
    for n in (1, 100, 5000):
        assert quiet(lambda n=n: parameters.config_for(square(n))) is not None
    assert parameters.of("s").origin == "defaults of cpu_packed (a search)"


@pytest.mark.parametrize("place", ["files", "model"])
@pytest.mark.parametrize("fault", [ArithmeticError, KeyError, OSError, RecursionError, ValueError])
def test_trouble_that_nobody_thought_of_is_said_once_and_defaults_run(
    place, fault, cache, monkeypatch
):
    """What files and models raise reaches no product."""

    def fail(*_arguments):
        raise fault("unheard of")

    write(cache, CPU, FIRST)
    monkeypatch.setattr(store, "_warned", set())
    monkeypatch.setattr(tuner.verification, "find_fault", lambda *_: "")
    parameters = tuner.Parameters(SimpleNamespace(traits=CPU, programs=Programs(None, CPU)))
    if place == "files":
        monkeypatch.setattr(store.Store, "read", fail)
        with pytest.warns(ClgemmWarning):
            assert parameters.stored("s").origin.startswith("defaults")
        monkeypatch.setattr(store, "_warned", set())
        parameters = tuner.Parameters(SimpleNamespace(traits=CPU, programs=Programs(None, CPU)))
    else:
        assert parameters.of("s").configs == (FIRST,)
        replaced = replace(parameters.of("s"), model=SimpleNamespace(choose=fail, variants=()))
        parameters.use("s", replaced)
    default = BY_NAME["cpu_packed"].default(CPU, S)
    (message,) = heard(lambda: [parameters.config_for(square(n)) for n in (8, 100, 200)])
    assert "unheard of" in message
    assert "clgemm cache clear" in message
    assert quiet(lambda: parameters.config_for(square(100))) == default


def export(path):
    """Export what the user has of the CPU; return the names of the entries written."""
    assert commands.export("a cpu", path) == 0
    return list(read_file(path).entries)


def test_what_is_exported_can_ship_and_be_taken_up(cache, shipped, tmp_path, monkeypatch, capsys):
    trials = [{"config": as_data(FIRST), "status": "wrong", "detail": "", "seconds": {}, "side": 0}]
    place = lookup.store_for(CPU)
    place.write("gemm.s", entry(SECOND) | {"trials": trials, "note": "not for others"})
    write(cache, CPU, FIRST, sources="before", name="gemm.d")
    path = shipped / "a-platform-a-cpu-a-maker-family-1-model-2.json"
    assert commands.export("a cpu", shipped) == 0
    assert str(path) in capsys.readouterr().out
    assert list(read_file(path).entries) == ["gemm.s"], "what other kernels found stays"
    written = json.loads(path.read_text())["entries"]["gemm.s"]
    assert written["variants"] == entry(SECOND)["variants"]
    assert "trials" not in written
    assert "note" not in written
    assert path.read_text().endswith("}\n")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "other"))
    tuned = looked_up()
    assert tuned.origin.startswith(f"shipped with clgemm: {path.name}")
    write(tmp_path / "other", CPU, FIRST, name="gemm.z")
    assert commands.import_files([path]) == 0
    again = looked_up()
    assert tuned.unverified == set(tuned.configs)
    assert again == replace(tuned, origin=str(tmp_path / "other" / place.path.name))
    assert set(lookup.store_for(CPU).read().entries) == {"gemm.s", "gemm.z"}, "merged"


def test_of_a_file_of_others_only_what_is_known_is_taken_up(shipped, capsys):
    """Trials of others would rule out configurations that are right here."""
    write(shipped, CPU, FIRST, file="x.json")
    path = shipped / "x.json"
    data = json.loads(path.read_text())
    trials = [
        {"config": as_data(x), "status": "wrong", "detail": "", "seconds": {}, "side": 0}
        for x in SPACE
    ]
    data["note"] = "theirs"
    data["entries"]["gemm.s"] |= {"trials": trials, "note": "theirs"}
    path.write_text(json.dumps(data))
    assert commands.import_files([path]) == 0
    assert "used" in capsys.readouterr().out
    text = lookup.store_for(CPU).path.read_text()
    assert "theirs" not in text
    assert search.ruled_out(lookup.store_for(CPU), CPU, S) == {}
    assert looked_up().configs == (FIRST,)


def test_what_other_kernels_found_is_taken_up_as_such(shipped):
    write(shipped, CPU, FIRST, sources="before", file="old.json")
    assert commands.import_files([shipped / "old.json"]) == 0
    (shipped / "old.json").unlink()
    assert looked_up() is None
    assert usage(CPU, CPU) == f"not used: the sources of {FIRST.family} changed"


def test_what_an_older_release_exported_can_be_taken_up(tmp_path):
    path = write_old(tmp_path / "old", s=old_entry(FIRST, files.SCHEMA_3_KERNELS))
    assert commands.import_files([path]) == 0
    assert looked_up().configs == (FIRST,)


def test_nothing_to_export_is_an_error(cache, tmp_path):
    write(cache, CPU, FIRST, sources="before")
    with pytest.raises(TuningError, match="clgemm tune"):
        export(tmp_path / "out.json")
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


ENTRY = ("entries", "gemm.s")
BEST = (*ENTRY, "variants", 0)
SQUARE = (*ENTRY, "shapes", "square")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda d: changed(d, 1, "schema"), "schema changed"),
        (lambda d: changed(d, 5, "schema"), "schema changed"),
        (lambda d: without(d, "identity", "name"), "identity"),
        (lambda d: changed(d, "text", "identity"), "identity"),
        (lambda d: changed(d, [], "identity", "name"), "identity"),
        (lambda d: without(d, "architecture"), "no architecture"),
        (lambda d: changed(d, [], "entries"), "schema changed"),
        (lambda d: changed(d, {}, "entries"), "no entries"),
        (lambda d: changed(d, d["entries"]["gemm.s"], "entries", "gemm.q"), "'gemm.q' is none of"),
        (lambda d: changed(d, [], *ENTRY, "variants"), "has no variants"),
        (lambda d: without(d, *ENTRY, "shapes"), "has no variants"),
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
    write(shipped, CPU, FIRST, file="x.json")
    path = shipped / "x.json"
    data = json.loads(path.read_text())
    commands.read_exported(path)
    spoil(data)
    path.write_text(json.dumps(data))
    with pytest.raises(TuningError) as caught:
        commands.read_exported(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "17"])
def test_a_file_that_is_no_json_object_is_refused(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(TuningError, match=r"x\.json"):
        commands.read_exported(path)
    with pytest.raises(TuningError, match=r"y\.json: unreadable: .*No such file"):
        commands.read_exported(tmp_path / "y.json")


def test_an_identity_from_a_file_has_the_fingerprint_of_its_traits():
    identity = json.loads(json.dumps(CPU.identity))
    assert fingerprint_of(identity) == CPU.fingerprint()
    assert set(identity) == commands.FACTS
