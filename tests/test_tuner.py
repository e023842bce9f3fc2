"""Where parameters come from: memory, the user's file, a shipped one, a search; and its faults."""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import CPU, GPU, as_data, entry_with, heard, run_python

import clgemm
from clgemm.dispatch import engine
from clgemm.errors import TuningError
from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import devices, registry
from clgemm.runtime.opencl import cl
from clgemm.tuning import tuner, verification
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.measure import verify
from clgemm.tuning.outcome import CHECK, RACE, TRY, VET, Outcome, config_from_json
from clgemm.tuning.search import budget, finalists, progress
from clgemm.tuning.search import search as search_loop
from clgemm.tuning.shapes import SEARCHED, standard
from clgemm.tuning.store import lookup, similar, store
from clgemm.tuning.workers import main, worker

S = PRECISIONS["s"]
PACKED = BY_NAME["cpu_packed"]
FIXED = {"KU": (4,), "BLOCK_KB": (256,), "TURNS": (1,)}  # so that a whole search is short
SPACE = [
    config
    for config in PACKED.candidates(CPU, S)
    if all(config[name] in values for name, values in FIXED.items())
]
DEFAULT = PACKED.default(CPU, S)
HOPPER = replace(GPU, compute_capability=(9, 0))


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Tuning is on, among few candidates, in a cache directory of the test's own."""
    space = PACKED.space
    monkeypatch.setattr(PACKED, "space", lambda *arguments: space(*arguments) | FIXED)
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "5")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path / "cache"


def new_device(traits=CPU):
    """Make what the tuner needs of a device on a device that is not here."""
    return SimpleNamespace(traits=traits, tuned={}, refused=set(), tuning=threading.Lock())


class FakeWorker:
    """Answers at once, from a function of (config, task)."""

    answer = None
    tried = ()

    def __init__(self, device, fingerprint, precision, asked, programs, *, leads):  # noqa: ARG002
        assert Path(programs).is_dir()
        assert asked == {}
        assert devices.find()[device].traits.fingerprint() == fingerprint
        assert precision in PRECISIONS

    def start(self):
        pass

    stop = start

    def learn(self, outcome):
        assert outcome.side == 512

    def attempt(self, config, best, *, task, patience, seconds):
        assert task == TRY or best == {}
        assert patience(0.0) <= budget.HANG_SECONDS
        assert (seconds > 0) == (task in {TRY, RACE})
        self.tried.append((config, task))
        outcome = type(self).answer(config, task)
        if task == TRY and outcome.ok:
            few = {name: outcome.seconds[name] for name in SEARCHED}
            outcome = replace(outcome, seconds=few)
        return outcome


SHAPES = standard(512)


def patience(seconds):
    """Wait for so many seconds."""
    return lambda waited: seconds - waited


def fine(config, seconds=1.0):
    times = seconds if isinstance(seconds, dict) else dict.fromkeys(SHAPES, seconds)
    return Outcome(config, "ok", "", times, 512)


@pytest.fixture
def fake(monkeypatch):
    """Replace the child process; by default every candidate is equally good, and all are tried."""
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "90")
    monkeypatch.setattr(FakeWorker, "tried", [])
    monkeypatch.setattr(FakeWorker, "answer", staticmethod(lambda config, _task: fine(config)))
    monkeypatch.setattr(search_loop, "Worker", FakeWorker)
    monkeypatch.setattr(verification, "fault", lambda *_: "")  # these devices cannot be asked
    found = [devices.Found(None, traits) for traits in (GPU, CPU)]
    monkeypatch.setattr(devices, "find", lambda: tuple(found))
    return FakeWorker


def no_search(monkeypatch):
    monkeypatch.setattr(search_loop, "Worker", None)


def stored(cache, traits=CPU):
    return json.loads((cache / f"{traits.fingerprint()}.json").read_text())


def test_a_miss_searches_and_stores(fake, cache, caplog):
    caplog.set_level(logging.INFO, "clgemm")
    device = new_device()
    tuned = tuner.tuned_for(device, "s")
    assert tuner.tuned_for(device, "s") is tuned, "the second time from memory"
    (record,) = [r for r in caplog.records if r.levelno >= logging.INFO]
    assert record.levelname == "INFO"
    assert "tuning sgemm" in record.getMessage()
    assert CPU.name in record.getMessage()
    assert "90 s" in record.getMessage()
    entry = stored(cache)["precisions"]["s"]
    assert set(entry["shapes"]) == set(SHAPES)
    assert [v["params"] for v in entry["variants"]] == [dict(c.params) for c in tuned.configs]
    assert lookup.stored_parameters(lookup.store_for(CPU), CPU, S).model == tuned.model
    tried = [config for config, task in fake.tried if task == TRY]
    trials = [config_from_json(t["config"]) for t in entry["trials"]]
    assert trials[: len(tried)] == tried
    raced = {config for config, task in fake.tried if task == RACE}
    assert set(trials[len(tried) :]) == raced, "what was raced has a line for that"
    assert raced >= set(tuned.configs)
    assert set(entry["variants"][0]["seconds"]) == set(SHAPES), "what wins has run all of them"
    assert tried[0] == PACKED.default(CPU, S), "the default is tried first"
    assert set(tried) == set(SPACE)
    assert str(cache) in tuned.origin


def test_the_next_process_reads_what_was_stored(fake, caplog, monkeypatch):
    fake.answer = staticmethod(lambda config, _task: fine(config, 1.0 / config["NR"]))
    first = tuner.tuned_for(new_device(), "s")
    no_search(monkeypatch)
    caplog.set_level(logging.INFO, "clgemm")
    second = tuner.tuned_for(new_device(), "s")
    assert second.model == first.model
    assert second.configs[0]["NR"] == max(c["NR"] for c in SPACE)
    assert caplog.records == []


@pytest.mark.usefixtures("fake")
def test_precisions_and_devices_are_tuned_apart(cache, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "0.4")
    for traits, code in [(CPU, "s"), (CPU, "z"), (GPU, "s")]:
        tuner.tuned_for(new_device(traits), code)
    assert set(stored(cache, CPU)["precisions"]) == {"s", "z"}
    assert set(stored(cache, GPU)["precisions"]) == {"s"}


def test_off_takes_defaults_and_no_file(fake, cache, monkeypatch):
    tuner.tuned_for(new_device(), "s")
    fake.tried.clear()
    monkeypatch.setenv("CLGEMM_TUNE", "off")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(cache / "other"))
    tuned = tuner.tuned_for(new_device(), "s")
    assert set(tuned.configs) == {PACKED.default(CPU, S)}
    assert "CLGEMM_TUNE=off" in tuned.origin
    assert fake.tried == []
    assert not (cache / "other").exists()


@pytest.mark.parametrize(("family", "traits", "code"), [
    (family, traits, code)
    for family in FAMILIES
    for traits in (CPU, GPU, HOPPER, replace(CPU, simd_bytes=16))
    for code in "sdcz"
    if family.supports(traits, PRECISIONS[code])
], ids=lambda value: getattr(value, "name", None))  # fmt: skip
def test_a_stored_default_is_accepted(family, traits, code):
    """Defaults are points of the space, or a winner that is one would be searched for again."""
    precision = PRECISIONS[code]
    config = family.default(traits, precision)
    data = json.loads(json.dumps({"family": config.family, "params": dict(config.params)}))
    assert lookup.stored_config(data, traits, precision) == config


def file_with(entry, cache, traits=CPU):
    lookup.store_for(traits).write("s", entry)
    assert entry.items() <= stored(cache, traits)["precisions"]["s"].items()


@pytest.fixture
def short(monkeypatch, fake):  # noqa: ARG001 - which sets another budget
    """Let searches try little more than the default."""
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "0.1")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "bad",
    [
        as_data(DEFAULT) | {"family": "unheard_of"},
        as_data(DEFAULT) | {"family": ["cpu_packed"]},
        as_data(DEFAULT) | {"params": [1, 2]},
        as_data(DEFAULT) | {"params": "MR"},
        {"family": "cpu_packed"},
        "cpu_packed",
        None,
        as_data(DEFAULT, MR=DEFAULT["MR"] * 4, NR=24),
        as_data(DEFAULT, KU=0),
        as_data(DEFAULT, VW=0),
        as_data(DEFAULT, KC=-384),
        as_data(DEFAULT, KC=2**40),
        as_data(DEFAULT, KC="many"),
        as_data(DEFAULT, KC=float("inf")),
        as_data(DEFAULT, KC=None),
        as_data(DEFAULT, EXTRA=1),
        {"family": "cpu_packed", "params": {"MR": 32}},
        as_data(BY_NAME["gpu_tiled"].default(GPU, S), MR=0),
    ],
)
def test_a_stored_configuration_that_cannot_run_is_searched_again(bad, fake, cache):
    entry = entry_with(DEFAULT, DEFAULT)
    entry["variants"][1] = bad | {"rates": {}, "seconds": {}} if isinstance(bad, dict) else bad
    file_with(entry, cache)
    tuned = tuner.tuned_for(new_device(), "s")
    assert fake.tried, "the file was believed"
    assert all(config in SPACE for config in tuned.configs)
    assert stored(cache)["precisions"]["s"]["variants"] != entry["variants"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "entry",
    [None, [], "text", {}, {"variants": None}, {"variants": ["square"]}, {"variants": []},
     entry_with(), entry_with(DEFAULT) | {"shapes": None}, entry_with(DEFAULT) | {"shapes": [3]},
     entry_with(DEFAULT) | {"variants": {"large": as_data(DEFAULT)}},
     {"choices": dict.fromkeys(("large", "small", "skinny"), as_data(DEFAULT))}],
)  # fmt: skip
def test_a_stored_entry_of_another_form_is_searched_again(entry, fake, cache):
    file_with(entry_with(DEFAULT), cache)
    path = cache / f"{CPU.fingerprint()}.json"
    path.write_text(json.dumps(stored(cache) | {"precisions": {"s": entry}}))
    tuner.tuned_for(new_device(), "s")
    assert fake.tried


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    """Put a folder in place of the one in the package."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.delenv("CLGEMM_SHIPPED")
    monkeypatch.setattr(similar.resources, "files", lambda package: {
        "clgemm.tuning.shipped": folder}[package])  # fmt: skip
    return folder


@pytest.mark.usefixtures("fake")
def test_shipped_parameters_are_used_without_a_search(cache, shipped, monkeypatch):
    tuner.tuned_for(new_device(), "s")
    path = cache / f"{CPU.fingerprint()}.json"
    path.rename(shipped / path.name)
    no_search(monkeypatch)
    tuned = tuner.tuned_for(new_device(), "s")
    assert tuned.origin.startswith("shipped")
    assert not path.exists()


def test_the_user_s_parameters_come_before_shipped_ones(fake, cache, shipped):
    del fake
    other = SPACE[-1]
    assert other != DEFAULT
    file_with(entry_with(DEFAULT), cache)
    path = cache / f"{CPU.fingerprint()}.json"
    (shipped / path.name).write_bytes(path.read_bytes())
    file_with(entry_with(other), cache)
    assert tuner.tuned_for(new_device(), "s").configs == (other,)
    path.unlink()
    assert tuner.tuned_for(new_device(), "s").configs == (DEFAULT,)


def test_shipped_parameters_of_another_driver_are_used(fake, cache, shipped):
    """They outlive an update: what they are is checked here before its first use."""
    newer = replace(CPU, driver_version="2.0")
    file_with(entry_with(DEFAULT), cache, newer)
    (cache / f"{newer.fingerprint()}.json").rename(shipped / "device.json")
    assert tuner.tuned_for(new_device(), "s").origin.startswith("shipped")
    assert fake.tried == []


def test_each_shape_runs_with_what_is_best_there(fake):
    def answer(config, _task):
        times = dict.fromkeys(SHAPES, 1.0)
        return fine(
            config,
            times
            | {
                "square": 1.0 / config["NR"],
                "small": config["NR"],
                "wide": 1.0 + (config["KC"] != 256),
            },
        )

    fake.answer = staticmethod(answer)
    device = new_device()
    tuner.tuned_for(device, "s")
    widths = {config["NR"] for config in SPACE}

    def chosen(name):
        return tuner.config_for(device, SHAPES[name].problem("s"))

    assert chosen("square")["NR"] == max(widths)
    assert chosen("small")["NR"] == min(widths)
    assert chosen("wide")["KC"] == 256


def test_a_winner_that_fails_the_full_check_loses_to_the_next(fake, cache):
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        if task == CHECK and config == by_rank[0]:
            return Outcome(config, "wrong", "not with B transposed")
        return fine(config, 1.0 + by_rank.index(config))

    fake.answer = staticmethod(answer)
    assert tuner.tuned_for(new_device(), "s").configs == (by_rank[1],)
    assert [task for config, task in fake.tried if config == by_rank[0]].count(CHECK) == 1
    failures = [t for t in stored(cache)["precisions"]["s"]["trials"] if t["status"] != "ok"]
    assert [(t["status"], t["detail"]) for t in failures] == [("wrong", "not with B transposed")]


def test_a_finalist_that_fails_in_a_race_is_out(fake):
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        if task == RACE and config == by_rank[0]:
            return Outcome(config, "wrong", "as timed")
        return fine(config, 1.0 + 0.01 * by_rank.index(config))

    fake.answer = staticmethod(answer)
    assert by_rank[0] not in tuner.tuned_for(new_device(), "s").configs
    assert [task for config, task in fake.tried if config == by_rank[0]].count(RACE) == 1


def test_a_race_that_the_end_cuts_off_rules_nobody_out(fake, cache):
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        if task == RACE:
            return Outcome(config, "late", "the search ended")
        return fine(config, 1.0 + 0.01 * by_rank.index(config))

    fake.answer = staticmethod(answer)
    assert by_rank[0] in tuner.tuned_for(new_device(), "s").configs
    assert all(t["status"] == "ok" for t in stored(cache)["precisions"]["s"]["trials"])


def test_candidates_are_vetted_before_they_are_timed_and_failures_are_named(fake, cache):
    broken = SPACE[5]

    def answer(config, _task):
        return Outcome(config, "wrong", "by 3") if config == broken else fine(config)

    fake.answer = staticmethod(answer)
    tuner.tuned_for(new_device(), "s")
    first = {}
    for place, (config, task) in enumerate(fake.tried):
        first.setdefault((config, task), place)
    assert {config for config, task in first if task == VET} == set(SPACE)
    assert all(first[c, VET] < place for (c, task), place in first.items() if task == TRY)
    assert [task for config, task in fake.tried if config == broken] == [VET]
    failures = [t for t in stored(cache)["precisions"]["s"]["trials"] if t["status"] != "ok"]
    assert [(t["config"], t["detail"]) for t in failures] == [(as_data(broken), "by 3")]


def test_what_was_vetted_is_timed_though_no_other_fits(fake, monkeypatch):
    """Builds leave no time for a third one, and enough for what is built."""
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "5")
    monkeypatch.setattr(search_loop.crew, "size", lambda _traits: 2)
    real, now = budget.Budget.vetted, [100.0]
    monkeypatch.setattr(budget.Budget, "vetted", lambda b, family, _: real(b, family, 1.5))
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])

    def answer(config, task):
        if task == VET:
            now[0] += 1.4  # the sample has no more time after the first
        return fine(config)

    fake.answer = staticmethod(answer)
    tuner.tuned_for(new_device(), "s")
    assert [task for _, task in fake.tried].count(VET) == 2
    assert {c for c, task in fake.tried if task == TRY} == {
        c for c, task in fake.tried if task == VET
    }


def test_a_search_in_which_nothing_was_ready_says_how_to_give_it_more_time(fake, cache, caplog):
    """The default is used meanwhile; the next process searches again."""
    fake.answer = staticmethod(lambda config, _task: Outcome(config, "late", "no answer"))
    tuned = tuner.tuned_for(new_device(), "s")
    assert set(tuned.configs) == {DEFAULT}
    assert "CLGEMM_TUNE_SECONDS gives a search more time" in caplog.text
    assert not (cache / f"{CPU.fingerprint()}.json").exists()


def test_if_no_finalist_passes_the_others_are_looked_at(fake):
    """Seven of them, which is one more than race."""
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        rank = by_rank.index(config)
        if task == CHECK and rank < finalists.RACERS:
            return Outcome(config, "wrong", "not with B transposed")
        return fine(config, 1.0 + rank)

    fake.answer = staticmethod(answer)
    assert tuner.tuned_for(new_device(), "s").configs[0] == by_rank[finalists.RACERS]


def test_without_a_survivor_defaults_are_used_and_nothing_is_stored(fake, cache, caplog):
    fake.answer = staticmethod(lambda config, _task: Outcome(config, "build", "error: no"))
    device = new_device()
    tuned = tuner.tuned_for(device, "s")
    assert set(tuned.configs) == {DEFAULT}
    assert "tuning failed" in tuned.origin
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "no candidate passed" in record.getMessage()
    assert "build" in record.getMessage()
    assert not (cache / f"{CPU.fingerprint()}.json").exists()
    count = len(fake.tried)
    tuner.tuned_for(device, "s")
    assert len(fake.tried) == count, "this process does not try again"


def test_a_search_that_cannot_start_falls_back_to_defaults(fake, caplog, monkeypatch):
    def no_child(_config, _task):
        raise OSError(11, "Resource temporarily unavailable")

    fake.answer = staticmethod(no_child)
    assert set(tuner.tuned_for(new_device(), "s").configs) == {DEFAULT}
    assert "Resource temporarily unavailable" in caplog.text
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(TuningError, match="executable"):
        worker.Worker(0, "", "s").attempt(DEFAULT, {}, patience=patience(1))


def test_a_device_with_nothing_to_tune_is_not_searched(fake, caplog):
    odd = replace(GPU, kind="other", local_memory=0)
    tuned = tuner.tuned_for(new_device(odd), "s")
    assert {config.family for config in tuned.configs} == {"direct"}
    assert fake.tried == []
    assert caplog.records == []


def test_the_budget_ends_a_search(fake, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "5")
    now = [100.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])

    def answer(config, task):
        now[0] += 0.5 * (task != VET)
        return fine(config)

    fake.answer = staticmethod(answer)
    tuner.tuned_for(new_device(), "s")
    searched = [task for _, task in fake.tried].count(TRY)
    assert 4 <= searched <= 8, "5 seconds, half a second each, some kept for races and checks"
    assert now[0] <= 105.5


@pytest.mark.parametrize(("seconds", "status"), [("4", "late"), ("40", "hang")])
def test_what_a_short_search_could_not_wait_for_is_tried_again(fake, seconds, status, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", seconds)
    slow, waited, now = SPACE[-1], [], [100.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])

    def answer(config, _task):
        if config == slow:
            return Outcome(config, "hang", "no answer")
        return fine(config)

    class Slow(FakeWorker):
        def attempt(self, config, best, *, patience, **more):
            if config == slow:
                waited.append(patience(0.0))
                now[0] += waited[-1]
            return super().attempt(config, best, patience=patience, **more)

    fake.answer = Slow.answer = staticmethod(answer)
    monkeypatch.setattr(search_loop, "Worker", Slow)
    assert slow not in tuner.tuned_for(new_device(), "s").configs
    assert (waited[0] < budget.LEAST_HANG_SECONDS) == (status == "late")
    store = lookup.store_for(CPU)
    trials = store.read()["s"]["trials"]
    assert [t["status"] for t in trials if t["status"] != "ok"] == [status]
    assert (store.interrupted() == []) == (status == "late")
    store.path.unlink()
    tuner.tuned_for(new_device(), "s")
    assert len(waited) == (2 if status == "late" else 1)


@pytest.mark.process
def test_an_interrupted_candidate_is_never_tried_again(fake, cache):
    """It was noted by a process that then ended without a word."""
    program = (
        "import json, os, sys; from pathlib import Path; from clgemm.tuning.store.store import Store;"
        "folder, fingerprint, kernels, candidate = sys.argv[1:];"
        "Store(Path(folder), fingerprint, {}, kernels).begin(json.loads(candidate)); os._exit(9)"
    )
    for killer in (as_data(DEFAULT), as_data(SPACE[-1]), {"family": "gone"}, {"params": 3}):
        run = run_python(
            program, cache, CPU.fingerprint(), lookup.source.package_hash(), json.dumps(killer)
        )
        assert run.returncode == 9, run.stderr
    for _ in range(2):
        tuned = tuner.tuned_for(new_device(), "s")
        assert {config for config, _ in fake.tried} == set(SPACE) - {DEFAULT, SPACE[-1]}
        assert not {DEFAULT, SPACE[-1]} & set(tuned.configs)
        crashed = [t for t in stored(cache)["precisions"]["s"]["trials"] if t["status"] == "crash"]
        assert [t["config"] for t in crashed] == [as_data(DEFAULT), as_data(SPACE[-1])]
        (cache / f"{CPU.fingerprint()}.json").unlink()  # such as a cleaner may do
        fake.tried.clear()


def test_the_keyboard_stops_a_search_and_blames_nobody(fake):
    def interrupt(_config, _task):
        raise KeyboardInterrupt

    fake.answer = staticmethod(interrupt)
    with pytest.raises(KeyboardInterrupt):
        tuner.tuned_for(new_device(), "s")
    assert lookup.store_for(CPU).interrupted() == []
    fake.answer = staticmethod(lambda config, _task: fine(config))
    tuner.tuned_for(new_device(), "s")
    assert (DEFAULT, TRY) in fake.tried


@pytest.mark.usefixtures("fake")
def test_an_unwritable_cache_is_said_once_and_works_from_memory(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    device = new_device()
    (message,) = heard(lambda: [tuner.tuned_for(device, code) for code in "sdcz"])
    assert "cannot be written" in message
    assert "not stored" in device.tuned["s"].origin


def test_threads_that_need_parameters_at_once_search_once(fake):
    gate = threading.Barrier(4)
    device, got = new_device(), []

    def ask():
        gate.wait()
        got.append(tuner.tuned_for(device, "s"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert len(set(map(id, got))) == 1
    checked = [config for config, task in fake.tried if task == CHECK]
    assert len(checked) == len(set(checked)), "a second search would check its winners again"


@pytest.mark.usefixtures("fake")
def test_a_problem_that_a_family_does_not_take_goes_to_direct():
    device, x = new_device(), np.empty((70, 70), np.float32, order="F")
    problem = describe(Operand(x), Operand(x), x, reads_c=False)
    assert tuner.config_for(device, problem).family == "cpu_packed"
    assert tuner.config_for(device, problem._replace(m=2**31)).family == "direct"


# From here on with a device and a real child process.


@pytest.fixture
def fresh(device):
    """Open a device without parameters on each device."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    return registry.Device(found, "a test")


@pytest.mark.process
@pytest.mark.slow
def test_the_first_call_tunes_and_the_next_process_does_not(fresh, cache, caplog, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "30")  # however busy the machine
    monkeypatch.setenv("CLGEMM_TUNE", "quick")
    caplog.set_level(logging.INFO, "clgemm.tuning")
    a = np.random.default_rng(5).uniform(-1, 1, (70, 70)).astype(np.float32)
    with registry.using(fresh):
        np.testing.assert_allclose(clgemm.sgemm(1.0, a, a), a @ a, atol=1e-4)
        clgemm.sgemm(1.0, a[:65], a)
    assert [r.levelname for r in caplog.records] == ["INFO"]
    entry = stored(cache, fresh.traits)["precisions"]["s"]
    assert entry["variants"]
    assert [t["status"] for t in entry["trials"]].count("ok") >= 1
    assert all(t["seconds"]["square"] > 0 for t in entry["trials"] if t["status"] == "ok")
    program = """
import json, logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
import numpy as np
import clgemm
a = np.ones((70, 70), np.float32)
assert clgemm.sgemm(1.0, a, a)[0, 0] == 70
from clgemm.runtime import device as device
tuned = device.current().tuned["s"]
print(json.dumps([dict(config.params) for config in tuned.configs]))
"""
    run = run_python(program, CLGEMM_DEVICE=fresh.traits.platform)
    assert run.returncode == 0, run.stderr
    assert "clgemm.tuning" not in run.stderr
    assert json.loads(run.stdout) == [v["params"] for v in entry["variants"]]


@pytest.mark.process
@pytest.mark.slow
def test_a_child_that_dies_hangs_or_refuses_costs_one_candidate(fresh):
    traits = fresh.traits
    index = [f.traits for f in devices.find()].index(traits)
    good = lookup.defaults(traits, S, "").configs[0]
    uncompilable = Config.of(good.family, dict(good.params) | {"VW": 5})
    with worker.Worker(index, traits.fingerprint(), "s") as child:

        def status(config, limit=60.0):
            outcome = child.attempt(config, {}, task=CHECK, patience=patience(limit))
            assert outcome.config == config
            return outcome.status, outcome.detail

        crashed, last_words = status(Config.of("unheard_of", {}))
        assert crashed == "crash"
        assert "KeyError" in last_words
        assert status(good) == ("ok", "")
        refused, log = status(uncompilable)
        assert refused == "build"
        assert "Its log:" in log
        process = child._child
        assert status(good, limit=0.001)[0] == "hang"
        assert process.poll() is not None, "a hung child is ended"
        assert status(good) == ("ok", "")
        process = child._child
    assert process.poll() is not None


@pytest.mark.process
def test_nobody_waits_for_a_child_that_is_dropped(fresh):
    index = [f.traits for f in devices.find()].index(fresh.traits)
    with worker.Worker(index, fresh.traits.fingerprint(), "s") as child:
        child.start()
        child.dropped = True
        outcome = child.attempt(Config.of("unheard_of", {}), {}, patience=patience(60))
        assert (outcome.status, outcome.detail) == ("late", "the search ended before it answered")
        child.dropped = False
        good = lookup.defaults(fresh.traits, S, "").configs[0]
        assert child.attempt(good, {}, task=VET, patience=patience(60)).ok, "another child"


@pytest.mark.process
def test_a_child_that_sees_other_devices_is_no_candidate_s_fault(device):
    with (
        worker.Worker(0, "not " + device.traits.fingerprint(), "s") as child,
        pytest.raises(TuningError, match="ended with 3"),
    ):
        child.attempt(DEFAULT, {}, patience=patience(60))


@pytest.fixture
def default(device):
    return lookup.defaults(device.traits, S, "").configs[0]


@pytest.mark.parametrize("code", "sz")
def test_check_passes_what_is_right(device, code):
    precision = PRECISIONS[code]
    config = lookup.defaults(device.traits, precision, "").configs[0]
    assert verify.Checker(device, precision).mismatch(config, every=False) == ""
    assert verify.Checker(device, precision).quick(config) == ""


def ruin_one_element(c, _beta):
    c[-1, -1] += np.float32(0.01)


def ruin_with_nan(c, _beta):
    c[0, 0] = np.nan


def ruin_beyond_the_edge(c, _beta):
    c.base[-1] = 0  # C lies in columns that are three rows longer


def ruin_where_c_is_read(c, beta):
    if beta != 0:
        c[...] = 0


@pytest.mark.parametrize(
    "ruin", [ruin_one_element, ruin_with_nan, ruin_beyond_the_edge, ruin_where_c_is_read]
)
def test_check_finds_what_is_wrong(device, default, ruin, monkeypatch):
    real = verify.run_once

    def run_once(device, config, a, b, c, alpha=1.0, beta=0.0, **more):
        real(device, config, a, b, c, alpha, beta, **more)
        ruin(c, beta)

    monkeypatch.setattr(verify, "run_once", run_once)
    said = verify.Checker(device, S).mismatch(default, every=False)
    assert ("wrote beyond C" if ruin is ruin_beyond_the_edge else "times the bound") in said
    assert "run 1 of" in said
    outcome = main.Trial(device, S).attempt(default, {}, task=VET)
    assert outcome.status == "wrong"
    assert outcome.seconds == {}


def test_check_poisons_scratch_and_c(device, default, monkeypatch):
    poisoned = []
    real = verify.run_once

    def run_once(device, config, a, b, c, alpha=1.0, beta=0.0, *, poison=False):
        poisoned.append((poison, beta == 0, bool(np.all(np.isnan(c)))))
        real(device, config, a, b, c, alpha, beta, poison=poison)

    monkeypatch.setattr(verify, "run_once", run_once)
    assert verify.Checker(device, S).mismatch(default, every=False) == ""
    assert len(poisoned) == len(verify.SHAPES) * 2 * verify.REPEATS
    assert set(poisoned) == {(True, True, True), (True, False, False)}


def test_check_compares_with_a_reference(device, default, monkeypatch):
    """If the reference were wrong, nothing could win."""

    def nonsense(a, b, _precision):
        return np.full((a.data.shape[0], b.data.shape[1]), 3.0)

    monkeypatch.setattr(verify, "reference", nonsense)
    assert verify.Checker(device, S).mismatch(default, every=False) != ""


def test_a_launch_that_fails_is_an_outcome(device, default, monkeypatch):
    def fail(device, *_arguments, **_more):
        cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 2**62)

    monkeypatch.setattr(verify, "run_once", fail)
    outcome = main.Trial(device, S).attempt(default, {}, task=VET)
    assert outcome.status == "run"
    assert "no memory" in outcome.detail


def test_after_a_failed_launch_the_child_is_replaced(monkeypatch):
    """On some drivers a failed launch spoils the context for every later one."""
    answers = iter([Outcome(DEFAULT, "run", "failed"), fine(DEFAULT)])
    child = worker.Worker(0, "", "s")
    stopped = []
    child._child = SimpleNamespace(stdin=io.StringIO())
    monkeypatch.setattr(child, "stop", lambda: stopped.append(True))
    for expected in ([True], [True]):
        child._answers.put(json.dumps(next(answers).as_json()))
        child.attempt(DEFAULT, {}, patience=patience(1))
        assert stopped == expected


def test_a_child_that_replaces_another_measures_alike():
    """Times at other sizes, or by another clock, could not be compared."""
    child = worker.Worker(0, "", "s")
    child._child = SimpleNamespace(stdin=io.StringIO())
    child._answers.put(json.dumps(replace(fine(DEFAULT), clock="the host's clock").as_json()))
    child.attempt(DEFAULT, {}, patience=patience(1))
    assert child._hello["side"] == 512
    assert child._hello["clock"] == "the host's clock"


def test_outcomes_survive_json():
    outcome = replace(fine(DEFAULT, 0.25), spread={"square": 0.01}, clock="the host's clock")
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show_progress():
    with progress.Progress("s", "A device", 5.0) as line:
        line.show(1, 1.25)


def test_progress_is_one_line_that_disappears(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    show_progress()
    text = terminal.getvalue()
    assert "tuning sgemm on A device" in text
    assert "1 tried, best 1 GFLOP/s" in text
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


def test_progress_is_silent_without_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    show_progress()
    assert file.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)  # a windowed program
    show_progress()


def test_progress_shows_on_a_real_terminal():
    pty = pytest.importorskip("pty", reason="no pseudo-terminals on this system")
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        show_progress()
        terminal.flush()
        text = ""
        while "1 tried" not in text and select.select([reader], [], [], 5)[0]:
            text += os.read(reader, 4096).decode()
    os.close(reader)
    assert "1 tried" in text


def test_the_driver_asks_the_tuner(fresh, fake, monkeypatch):
    """A configuration that the tuner chooses is the one that runs."""
    del fake
    chosen = Config.of("direct", {})
    monkeypatch.setattr(tuner, "_load_or_search", lambda *_: lookup.Tuned(
        Model(fresh.traits, "d", {}, (Variant(chosen, (), {}),)), "a test"))  # fmt: skip
    planned = []
    real = BY_NAME["direct"].plan

    def plan(traits, problem, config):
        planned.append(config)
        return real(traits, problem, config)

    monkeypatch.setattr(BY_NAME["direct"], "plan", plan)
    a = np.ones((70, 70))
    with registry.using(fresh):
        engine.gemm(1.0, a, a, 0.0, np.empty((70, 70)))
    assert planned == [chosen]


@pytest.mark.process
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always looks here first")
def test_a_folder_named_clgemm_does_not_stand_in_for_the_package(device, tmp_path, monkeypatch):
    (tmp_path / "clgemm").mkdir()
    (tmp_path / "clgemm" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    index = [f.traits for f in devices.find()].index(device.traits)
    with worker.Worker(index, device.traits.fingerprint(), "s") as child:
        child.start()
