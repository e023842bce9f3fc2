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
from clgemm.dispatch import engines
from clgemm.errors import TuningError
from clgemm.kernels import BY_NAME, FAMILIES, LAST_RESORT
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.runtime import devices, registry
from clgemm.runtime.programs import Programs
from clgemm.tuning import tuner, verification
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.outcome import WHOLE, Outcome, Part, Task, config_from_json
from clgemm.tuning.results import Effort
from clgemm.tuning.search import budget
from clgemm.tuning.search import search as search_loop
from clgemm.tuning.shapes import SEARCHED, standard
from clgemm.tuning.store import lookup, similar, store
from clgemm.tuning.tuner import Parameters
from clgemm.tuning.workers import pool
from clgemm.tuning.workers.pool import Worker

S = PRECISIONS["s"]
PACKED = BY_NAME["cpu_packed"]
FIXED = {"BLOCK_KB": (256,), "TURNS": (1,)}  # so that a whole search is short
SPACE = [
    config
    for config in PACKED.candidates(CPU, S)
    if all(config[name] in values for name, values in FIXED.items())
]
IN_USE = SPACE[1], SPACE[-1]
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


def set_clock(monkeypatch, now):
    """Have a search read the time from a list; threads of others go by the real one.

    It has two cores: what many workers do side by side that clock counts one after the other.
    """
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    for module in (budget, search_loop, search_loop.pool):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))


def new_parameters(traits=CPU):
    """Make the parameters of a device that is not here."""
    device = SimpleNamespace(traits=traits, programs=Programs(None, traits), require=traits.has)
    return Parameters(device)


class FakeWorker:
    """Answers at once, from a function of (config, task)."""

    answer = None
    tried = ()
    built = ()
    starved = 0.0

    def __init__(self, setup, patience_to_start):
        assert Path(setup.programs).is_dir()
        assert setup.asked == {}
        assert devices.find()[setup.device].traits.fingerprint() == setup.fingerprint
        assert setup.precision in PRECISIONS
        assert patience_to_start(0.0) <= budget.START_SECONDS

    def start(self):
        pass

    kill = stop = start

    def learn(self, outcome):
        assert outcome.side == 512

    def ask(self, task, config, patience, *, best=None, seconds=0.0, part=WHOLE):
        if task.only_builds:
            self.built.append((config, task, part))
            return Outcome(config, "ok")
        assert task is Task.MEASURE or best == {}
        assert patience(0.0) <= budget.HANG_SECONDS
        assert (seconds > 0) == task.measures
        self.tried.append((config, task))
        outcome = type(self).answer(config, task)
        if task is Task.MEASURE and outcome.ok:
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
    """Replace the workers; by default every candidate is equally good, and all are tried."""
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "90")
    monkeypatch.setattr(FakeWorker, "tried", [])
    monkeypatch.setattr(FakeWorker, "built", [])
    monkeypatch.setattr(FakeWorker, "answer", staticmethod(lambda config, _task: fine(config)))
    monkeypatch.setattr(search_loop, "Worker", FakeWorker)
    monkeypatch.setattr(verification, "find_fault", lambda *_: "")  # these devices cannot be asked
    found = [devices.Found(None, traits) for traits in (GPU, CPU)]
    monkeypatch.setattr(devices, "find", lambda: tuple(found))
    return FakeWorker


def no_search(monkeypatch):
    monkeypatch.setattr(search_loop, "Worker", None)


def stored(traits=CPU):
    return json.loads(lookup.store_for(traits).path.read_text())


def test_a_miss_searches_and_stores(fake, cache, caplog):
    caplog.set_level(logging.INFO, "clgemm")
    parameters = new_parameters()
    tuned = parameters.of("s")
    assert parameters.of("s") is tuned, "the second time from memory"
    (record,) = [r for r in caplog.records if r.levelno >= logging.INFO]
    assert record.levelname == "INFO"
    assert "tuning sgemm" in record.getMessage()
    assert CPU.name in record.getMessage()
    assert "90 s" in record.getMessage()
    entry = stored()["entries"]["gemm.s"]
    assert set(entry["shapes"]) == set(SHAPES)
    assert [v["params"] for v in entry["variants"]] == [dict(c.params) for c in tuned.configs]
    assert lookup.find_stored(lookup.store_for(CPU), CPU, S).model == tuned.model
    tried = [config for config, task in fake.tried if task == Task.MEASURE]
    trials = [config_from_json(t["config"]) for t in entry["trials"]]
    assert trials[: len(tried)] == tried
    raced = {config for config, task in fake.tried if task == Task.MEASURE_FINALIST}
    assert set(trials[len(tried) :]) == raced, "what was compared has a line for that"
    assert raced >= set(tuned.configs)
    assert set(entry["variants"][0]["seconds"]) == set(SHAPES), "what wins has run all of them"
    assert tried[0] == PACKED.default(CPU, S), "the default is tried first"
    assert set(tried) == set(SPACE)
    assert str(cache) in tuned.origin


def test_the_next_process_reads_what_was_stored(fake, caplog, monkeypatch):
    fake.answer = staticmethod(lambda config, _task: fine(config, 1.0 / config["NR"]))
    first = new_parameters().of("s")
    no_search(monkeypatch)
    caplog.set_level(logging.INFO, "clgemm")
    second = new_parameters().of("s")
    assert second.model == first.model
    assert second.configs[0]["NR"] == max(c["NR"] for c in SPACE)
    assert caplog.records == []


@pytest.mark.usefixtures("fake")
def test_precisions_and_devices_are_tuned_apart(monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "0.4")
    for traits, code in [(CPU, "s"), (CPU, "z"), (GPU, "s")]:
        new_parameters(traits).of(code)
    assert set(stored(CPU)["entries"]) == {"gemm.s", "gemm.z"}
    assert set(stored(GPU)["entries"]) == {"gemm.s"}


def test_off_takes_defaults_and_no_file(fake, cache, monkeypatch):
    new_parameters().of("s")
    fake.tried.clear()
    monkeypatch.setenv("CLGEMM_TUNE", "off")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(cache / "other"))
    tuned = new_parameters().of("s")
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


def file_with(entry, traits=CPU):
    lookup.store_for(traits).write("gemm.s", entry)
    assert entry.items() <= stored(traits)["entries"]["gemm.s"].items()


def edit(entry):
    """Put an entry into a good file as somebody might who edits it."""
    file_with(entry_with(DEFAULT))
    data = stored()
    data["entries"]["gemm.s"] = entry(data["entries"]["gemm.s"]) if callable(entry) else entry
    lookup.store_for(CPU).path.write_text(json.dumps(data))


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
        as_data(DEFAULT, NR=0),
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
def test_a_stored_configuration_that_cannot_run_is_searched_again(bad, fake):
    variants = entry_with(DEFAULT, DEFAULT)["variants"]
    variants[1] = bad | {"rates": {}, "seconds": {}} if isinstance(bad, dict) else bad
    edit(lambda entry: entry | {"variants": variants})
    tuned = new_parameters().of("s")
    assert fake.tried, "the file was believed"
    assert all(config in SPACE for config in tuned.configs)
    assert stored()["entries"]["gemm.s"]["variants"] != variants


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "entry",
    [None, [], "text", {}, {"variants": None}, {"variants": ["square"]}, {"variants": []},
     entry_with(), entry_with(DEFAULT) | {"shapes": None}, entry_with(DEFAULT) | {"shapes": [3]},
     entry_with(DEFAULT) | {"variants": {"large": as_data(DEFAULT)}},
     {"choices": dict.fromkeys(("large", "small", "skinny"), as_data(DEFAULT))}],
)  # fmt: skip
def test_a_stored_entry_of_another_form_is_searched_again(entry, fake):
    edit(entry)
    new_parameters().of("s")
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
def test_shipped_parameters_are_used_without_a_search(shipped, monkeypatch):
    new_parameters().of("s")
    path = lookup.store_for(CPU).path
    path.rename(shipped / path.name)
    no_search(monkeypatch)
    tuned = new_parameters().of("s")
    assert tuned.origin.startswith("shipped")
    assert not path.exists()


def test_the_user_s_parameters_come_before_shipped_ones(fake, shipped):
    del fake
    other = SPACE[-1]
    assert other != DEFAULT
    file_with(entry_with(DEFAULT))
    path = lookup.store_for(CPU).path
    (shipped / path.name).write_bytes(path.read_bytes())
    file_with(entry_with(other))
    assert new_parameters().of("s").configs == (other,)
    path.unlink()
    assert new_parameters().of("s").configs == (DEFAULT,)


def test_shipped_parameters_of_another_driver_are_used(fake, shipped):
    """They outlive an update: what they are is checked here before its first use."""
    newer = replace(CPU, driver_version="2.0")
    file_with(entry_with(DEFAULT), newer)
    lookup.store_for(newer).path.rename(shipped / "device.json")
    assert new_parameters().of("s").origin.startswith("shipped")
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
    parameters = new_parameters()
    parameters.of("s")
    widths = {config["NR"] for config in SPACE}

    def chosen(name):
        return parameters.config_for(SHAPES[name].problem("s"))

    assert chosen("square")["NR"] == max(widths)
    assert chosen("small")["NR"] == min(widths)
    assert chosen("wide")["KC"] == 256


def test_a_winner_that_fails_the_full_verification_loses_to_the_next(fake):
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        if task == Task.VERIFY_FINALIST and config == by_rank[0]:
            return Outcome(config, "wrong", "not with B transposed")
        return fine(config, 1.0 + by_rank.index(config))

    fake.answer = staticmethod(answer)
    assert new_parameters().of("s").configs == (by_rank[1],)
    assert [task for config, task in fake.tried if config == by_rank[0]].count(
        Task.VERIFY_FINALIST
    ) == 1
    failures = [t for t in stored()["entries"]["gemm.s"]["trials"] if t["status"] != "ok"]
    assert [(t["status"], t["detail"]) for t in failures] == [("wrong", "not with B transposed")]


def test_a_finalist_that_fails_when_measured_is_out(fake):
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        if task == Task.MEASURE_FINALIST and config == by_rank[0]:
            return Outcome(config, "wrong", "as timed")
        return fine(config, 1.0 + 0.01 * by_rank.index(config))

    fake.answer = staticmethod(answer)
    assert by_rank[0] not in new_parameters().of("s").configs
    assert [task for config, task in fake.tried if config == by_rank[0]].count(
        Task.MEASURE_FINALIST
    ) == 1


def test_measuring_that_the_end_cuts_off_rules_nobody_out(fake):
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        if task == Task.MEASURE_FINALIST:
            return Outcome(config, "late", "the search ended")
        return fine(config, 1.0 + 0.01 * by_rank.index(config))

    fake.answer = staticmethod(answer)
    assert by_rank[0] in new_parameters().of("s").configs
    assert all(t["status"] == "ok" for t in stored()["entries"]["gemm.s"]["trials"])


def test_candidates_are_verified_before_they_are_measured_and_failures_are_named(fake):
    broken = SPACE[5]

    def answer(config, _task):
        return Outcome(config, "wrong", "by 3") if config == broken else fine(config)

    fake.answer = staticmethod(answer)
    new_parameters().of("s")
    first = {}
    for place, (config, task) in enumerate(fake.tried):
        first.setdefault((config, task), place)
    assert {config for config, task in first if task == Task.VERIFY} == set(SPACE)
    assert all(
        first[c, Task.VERIFY] < place for (c, task), place in first.items() if task == Task.MEASURE
    )
    assert [task for config, task in fake.tried if config == broken] == [Task.VERIFY]
    failures = [t for t in stored()["entries"]["gemm.s"]["trials"] if t["status"] != "ok"]
    assert [(t["config"], t["detail"]) for t in failures] == [(as_data(broken), "by 3")]


def test_what_was_verified_is_measured_though_no_other_fits(fake, monkeypatch):
    """Builds leave no time for a third one, and enough for what is built."""
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "5")
    monkeypatch.setattr(search_loop.pool, "size", lambda _traits: 2)
    real, now = budget.Budget.note, [100.0]
    monkeypatch.setattr(
        budget.Budget, "note", lambda b, task, family, _: real(b, task, family, 1.5)
    )
    set_clock(monkeypatch, now)

    def answer(config, task):
        if task == Task.VERIFY:
            now[0] += 1.4  # the sample has no more time after the first
        return fine(config)

    fake.answer = staticmethod(answer)
    new_parameters().of("s")
    assert [task for _, task in fake.tried].count(Task.VERIFY) == 2
    assert {c for c, task in fake.tried if task == Task.MEASURE} == {
        c for c, task in fake.tried if task == Task.VERIFY
    }


def test_a_search_in_which_nothing_was_ready_says_how_to_give_it_more_time(fake, caplog):
    """The default is used meanwhile; the next process searches again."""
    fake.answer = staticmethod(lambda config, _task: Outcome(config, "late", "no answer"))
    tuned = new_parameters().of("s")
    assert set(tuned.configs) == {DEFAULT}
    assert "CLGEMM_TUNE_SECONDS gives a search more time" in caplog.text
    assert not lookup.store_for(CPU).path.exists()


def test_if_no_finalist_passes_the_others_are_looked_at(fake):
    """Seven of them, which is one more than are compared."""
    by_rank = sorted(SPACE, key=str)

    def answer(config, task):
        rank = by_rank.index(config)
        if task == Task.VERIFY_FINALIST and rank < search_loop.FINALISTS:
            return Outcome(config, "wrong", "not with B transposed")
        return fine(config, 1.0 + rank)

    fake.answer = staticmethod(answer)
    assert new_parameters().of("s").configs[0] == by_rank[search_loop.FINALISTS]


def test_without_a_survivor_defaults_are_used_and_nothing_is_stored(fake, caplog):
    fake.answer = staticmethod(lambda config, _task: Outcome(config, "build", "error: no"))
    parameters = new_parameters()
    tuned = parameters.of("s")
    assert set(tuned.configs) == {DEFAULT}
    assert "tuning failed" in tuned.origin
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "no candidate was found to be right" in record.getMessage()
    assert "build" in record.getMessage()
    assert not lookup.store_for(CPU).path.exists()
    count = len(fake.tried)
    parameters.of("s")
    assert len(fake.tried) == count, "this process does not try again"


def test_a_first_search_as_the_interpreter_ends_leaves_the_defaults(monkeypatch, caplog):
    """Python refuses to import its executors then."""
    name = "clgemm.tuning.search.search"
    monkeypatch.delitem(sys.modules, name)
    error = RuntimeError("can't register atexit after shutdown")

    def find_spec(wanted, *_):
        if wanted == name:
            raise error

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    tuned = new_parameters().of("s")
    assert set(tuned.configs) == {DEFAULT}
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    error.args = ("something else",)
    with pytest.raises(RuntimeError, match="something else"):
        new_parameters().of("s")


def test_a_search_that_cannot_start_falls_back_to_defaults(fake, caplog):
    def no_process(_config, _task):
        raise OSError(11, "Resource temporarily unavailable")

    fake.answer = staticmethod(no_process)
    assert set(new_parameters().of("s").configs) == {DEFAULT}
    assert "Resource temporarily unavailable" in caplog.text


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("executable", "", "no Python"), ("executable", "/usr/sbin/uwsgi", "no Python"),
     ("executable", None, "no Python"), ("frozen", True, "frozen")],
)  # fmt: skip
def test_a_program_that_is_no_python_starts_no_worker(name, value, words, caplog, monkeypatch):
    """Started once more it would do anything but what a worker does."""
    monkeypatch.setattr(pool.subprocess, "Popen", None)
    monkeypatch.setattr(search_loop, "Worker", Worker)
    monkeypatch.setattr(sys, name, value, raising=False)
    tuned = new_parameters().of("s")
    assert set(tuned.configs) == {DEFAULT}
    assert words in tuned.origin
    assert words in caplog.text


@pytest.mark.parametrize("traits", [HOPPER, CPU], ids=["GPU", "CPU"])
@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_workers_build_the_first_candidate_together(fake, monkeypatch, seconds, traits):
    """If that took long, nothing else is begun before it is measured."""
    now = [0.0]
    set_clock(monkeypatch, now)
    monkeypatch.setattr(pool, "usable_cores", lambda: 16)

    def answer(config, _task):
        now[0] += 0.001
        return fine(config)

    def build(self, ask):
        now[0] += seconds
        real(self, ask)

    real = pool.WorkerPool.build
    monkeypatch.setattr(pool.WorkerPool, "build", build)
    monkeypatch.setattr(fake, "answer", staticmethod(answer))
    monkeypatch.setattr(devices, "find", lambda: (devices.Found(None, traits),))
    new_parameters(traits).of("s")
    first = fake.built[0][0]
    assert sorted(x for x in fake.built if x[1] is Task.BUILD) == sorted(
        (first, Task.BUILD, Part(number, 4)) for number in range(4)
    )
    tasks = [task for _, task in fake.tried]
    assert (first, Task.VERIFY) in fake.tried
    before = tasks.index(Task.MEASURE)
    assert (before == 1) == (seconds > 0)
    assert len(fake.built) == 4, "what it takes as a finalist is built by then"


@pytest.fixture
def slow_builds(fake, monkeypatch):
    """Have a candidate for a GPU built in 100 s of 400, and be the slowest if it is the first."""
    now = [0.0]
    set_clock(monkeypatch, now)
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "400")

    def answer(config, _task):
        now[0] += 1
        return fine(config, 2.0 if config == fake.built[0][0] else 1.0)

    def build(self, ask):
        now[0] += 100
        real(self, ask)

    real = pool.WorkerPool.build
    monkeypatch.setattr(pool.WorkerPool, "build", build)
    monkeypatch.setattr(fake, "answer", staticmethod(answer))
    monkeypatch.setattr(devices, "find", lambda: (devices.Found(None, HOPPER),))
    return fake


def test_no_other_candidate_is_begun_that_would_not_be_built_in_time(slow_builds, monkeypatch):
    """What four workers build in 100 s takes the one that verifies another four times as long."""
    monkeypatch.setattr(pool, "usable_cores", lambda: 16)
    new_parameters(HOPPER).of("d")
    assert {config for config, _ in slow_builds.tried} == {slow_builds.built[0][0]}


def test_workers_build_another_winner_for_a_gpu_together(slow_builds, monkeypatch):
    fake = slow_builds
    monkeypatch.setattr(pool, "usable_cores", lambda: 6)
    tuned = new_parameters(HOPPER).of("d")
    first = fake.built[0][0]
    finalist = [x for x in fake.built if x[1] is Task.BUILD_FINALIST]
    assert {config for config, *_ in finalist} == {tuned.configs[0]} != {first}
    assert sorted(part for *_, part in finalist) == [Part(0, 2), Part(1, 2)]


def test_a_device_with_nothing_to_tune_is_not_searched(fake, caplog):
    odd = replace(GPU, kind="other", local_memory=0)
    tuned = new_parameters(odd).of("s")
    assert {config.family for config in tuned.configs} == {"direct"}
    assert fake.tried == []
    assert caplog.records == []


def test_the_budget_ends_a_search(fake, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "5")
    now = [100.0]
    set_clock(monkeypatch, now)

    def answer(config, task):
        now[0] += 0.5 * (task != Task.VERIFY)
        return fine(config)

    fake.answer = staticmethod(answer)
    new_parameters().of("s")
    searched = [task for _, task in fake.tried].count(Task.MEASURE)
    assert 4 <= searched <= 8, "5 seconds, half a second each, some kept for races and checks"
    assert now[0] <= 105.5


@pytest.mark.parametrize(
    ("seconds", "starved", "status"), [("4", 0, "late"), ("40", 0.1, "hang"), ("40", 0.9, "late")]
)
def test_what_a_short_search_could_not_wait_for_or_had_no_core_is_tried_again(
    fake, seconds, starved, status, monkeypatch
):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", seconds)
    slow, waited, now = SPACE[-1], [], [100.0]
    set_clock(monkeypatch, now)

    def answer(config, _task):
        if config == slow:
            return Outcome(config, "hang", "no answer")
        return fine(config)

    class Slow(FakeWorker):
        def ask(self, task, config, patience, **more):
            if config == slow:
                waited.append(patience(0.0))
                now[0] += waited[-1]
                self.starved = starved * waited[-1]
            return super().ask(task, config, patience, **more)

    fake.answer = Slow.answer = staticmethod(answer)
    monkeypatch.setattr(search_loop, "Worker", Slow)
    assert slow not in new_parameters().of("s").configs
    assert (waited[0] < budget.LEAST_HANG_SECONDS) == (seconds == "4")
    store = lookup.store_for(CPU)
    trials = store.read().entries["gemm.s"]["trials"]
    assert [t["status"] for t in trials if t["status"] != "ok"] == [status]
    assert (store.interrupted() == []) == (status == "late")
    store.path.unlink()
    new_parameters().of("s")
    assert len(waited) == (2 if status == "late" else 1)


@pytest.fixture
def in_use(request, monkeypatch):
    """Have two in use, the second one a bit faster; give what they take, seconds by task.

    All others take one.
    """
    request.getfixturevalue("fake")
    file_with(entry_with(*IN_USE))
    takes, now = {}, [100.0]
    set_clock(monkeypatch, now)

    class Slow(FakeWorker):
        def ask(self, task, config, patience, **more):
            seconds = takes.get((config, task), 0.0 if config in IN_USE else 1.0)
            waited = min(seconds, max(0.0, patience(0.0)))
            now[0] += waited
            if waited < seconds:
                return Outcome(config, "hang", "no answer")
            return super().ask(task, config, patience, **more)

    times = dict(zip(IN_USE, (0.52, 0.5), strict=True))
    Slow.answer = staticmethod(lambda config, _: fine(config, times.get(config, 1.0)))
    monkeypatch.setattr(search_loop, "Worker", Slow)
    return takes


def refusal():
    """Search for four seconds, in vain; say why."""
    parameters, before = new_parameters(), stored()
    with pytest.raises(TuningError, match="CLGEMM_TUNE_SECONDS gives a search more time") as why:
        parameters.tune("s", Effort(seconds=4.0))
    assert stored() == before
    assert parameters.of("s").configs == IN_USE
    return str(why.value)


@pytest.mark.parametrize("task", [Task.BUILD, Task.VERIFY, Task.MEASURE, Task.VERIFY_FINALIST])
def test_what_is_in_use_is_waited_for(in_use, task):
    """A short search would find something else to be the best, which is not."""
    in_use[IN_USE[1], task] = 5.0  # of a build, for each of two workers
    parameters = new_parameters()
    parameters.tune("s", Effort(seconds=4.0))
    assert parameters.of("s").configs == IN_USE[1:]


@pytest.mark.parametrize("task", [Task.VERIFY, Task.MEASURE, Task.VERIFY_FINALIST])
def test_what_is_in_use_stays_where_there_was_no_time_to_try_it(in_use, task):
    in_use[IN_USE[1], task] = 25.0
    why = refusal()
    assert f"{IN_USE[1]}: in use until now, and not tried to the end" in why
    assert str(IN_USE[0]) not in why


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_in_use_stays_where_its_turn_did_not_come(in_use, place, monkeypatch):
    """Since the only worker took all the time for the other one."""
    monkeypatch.setattr(search_loop.pool, "size", lambda _traits: 1)
    other = IN_USE[1 - place]
    if place:  # it is the second to be verified
        in_use[other, Task.VERIFY], in_use[other, Task.MEASURE] = 6.0, 6.5
    else:  # and the first one the second finalist
        in_use[other, Task.VERIFY_FINALIST] = 11.0
    why = refusal()
    assert f"{IN_USE[place]}: in use until now" in why
    assert str(other) not in why


@pytest.mark.parametrize("wrong", [True, False], ids=["first wrong", "first right"])
def test_nothing_is_begun_beside_what_is_in_use_where_builds_are_slow(in_use, wrong, monkeypatch):
    """And each is built once."""
    monkeypatch.setattr(search_loop.pool, "size", lambda _traits: 3)
    in_use[IN_USE[0], Task.BUILD] = 3.0  # for each worker
    find, right = search_loop.Worker.answer, (Task.VERIFY, Task.MEASURE)

    def answer(config, task):
        return Outcome(config, "wrong") if wrong and config == IN_USE[0] else find(config, task)

    monkeypatch.setattr(search_loop.Worker, "answer", staticmethod(answer))
    new_parameters().tune("s", Effort(seconds=40.0))
    order = [(IN_USE[0], task) for task in (right[:1] if wrong else right)]
    order += [(IN_USE[1], task) for task in right]
    assert FakeWorker.tried[: len(order)] == order
    built = [config for config, task, _ in FakeWorker.built if task is Task.BUILD]
    assert built == [config for config in IN_USE for _ in range(3)]
    tried = [config_from_json(t["config"]) for t in stored()["entries"]["gemm.s"]["trials"]]
    assert wrong or set(tried) == set(IN_USE)


@pytest.mark.parametrize("slow", IN_USE, ids=["first", "second"])
def test_a_finalist_that_the_end_kept_from_being_measured_stays(in_use, slow, monkeypatch):
    """Each of two is the best at one shape, and one takes all the time that is left."""
    best = dict(zip(IN_USE, ("square", "small"), strict=True))
    monkeypatch.setattr(search_loop.Worker, "answer", staticmethod(
        lambda config, _: fine(config, dict.fromkeys(SHAPES, 1.0) | {best.get(config): 0.5})
    ))  # fmt: skip
    in_use[slow, Task.MEASURE_FINALIST] = 9.0
    parameters = new_parameters()
    parameters.tune("s", Effort(seconds=4.0))
    assert set(parameters.of("s").configs) == set(IN_USE)


def test_what_is_in_use_is_tried_before_what_other_drivers_left(fake, monkeypatch):
    file_with(entry_with(*IN_USE))
    monkeypatch.setattr(tuner, "find_starting_points", lambda *_: [DEFAULT, SPACE[2], *IN_USE])
    new_parameters().tune("s", Effort())
    tried = [config for config, task in fake.tried if task is Task.MEASURE]
    assert tuple(dict.fromkeys(tried))[:4] == (*IN_USE, DEFAULT, SPACE[2])


def test_what_is_in_use_but_no_candidate_is_not_waited_for(fake):
    """Such as the last resort, where other families compete."""
    file_with(entry_with(LAST_RESORT.default(CPU, S)))
    fake.tried.clear()
    new_parameters().tune("s", Effort(seconds=4.0))
    assert {config for config, _ in fake.tried} == set(SPACE)


def test_what_is_in_use_is_replaced_where_it_is_wrong(fake):
    wrong = SPACE[-1]
    file_with(entry_with(wrong))
    fake.answer = staticmethod(
        lambda config, _: Outcome(config, "wrong") if config == wrong else fine(config)
    )
    parameters = new_parameters()
    parameters.tune("s", Effort(seconds=4.0))
    assert wrong not in parameters.of("s").configs


def test_what_is_in_use_and_took_a_process_down_is_not_tried(fake):
    file_with(entry_with(*IN_USE))
    lookup.store_for(CPU).begin(as_data(IN_USE[0]))
    new_parameters().tune("s", Effort())
    assert IN_USE[0] not in {config for config, *_ in (*fake.tried, *fake.built)}
    assert IN_USE[1] in {config for config, _ in fake.tried}


def test_workers_build_all_that_is_in_use_together(fake):
    file_with(entry_with(*IN_USE))
    new_parameters().tune("s", Effort(seconds=4.0))
    built = [config for config, task, _ in fake.built if task is Task.BUILD]
    assert tuple(dict.fromkeys(built)) == IN_USE


@pytest.mark.process
def test_an_interrupted_candidate_is_never_tried_again(fake, cache):
    """It was noted by a process that then ended without a word."""
    program = (
        "import json, os, sys; from pathlib import Path;"
        "from clgemm.tuning.store.store import Store;"
        "folder, fingerprint, candidate = sys.argv[1:];"
        "Store(Path(folder), fingerprint, {}).begin(json.loads(candidate)); os._exit(9)"
    )
    for killer in (as_data(DEFAULT), as_data(SPACE[-1]), {"family": "gone", "params": {}}):
        run = run_python(program, cache, CPU.fingerprint(), json.dumps(killer))
        assert run.returncode == 9, run.stderr
    for _ in range(2):
        tuned = new_parameters().of("s")
        assert {config for config, _ in fake.tried} == set(SPACE) - {DEFAULT, SPACE[-1]}
        assert not {DEFAULT, SPACE[-1]} & set(tuned.configs)
        crashed = [t for t in stored()["entries"]["gemm.s"]["trials"] if t["status"] == "crash"]
        assert [t["config"] for t in crashed] == [as_data(DEFAULT), as_data(SPACE[-1])]
        lookup.store_for(CPU).path.unlink()  # such as a cleaner may do
        fake.tried.clear()


def test_the_keyboard_stops_a_search_and_blames_nobody(fake):
    def interrupt(_config, _task):
        raise KeyboardInterrupt

    fake.answer = staticmethod(interrupt)
    with pytest.raises(KeyboardInterrupt):
        new_parameters().of("s")
    assert lookup.store_for(CPU).interrupted() == []
    fake.answer = staticmethod(lambda config, _task: fine(config))
    new_parameters().of("s")
    assert (DEFAULT, Task.MEASURE) in fake.tried


@pytest.mark.usefixtures("fake")
def test_an_unwritable_cache_is_said_once_and_works_from_memory(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    parameters = new_parameters()
    (message,) = heard(lambda: [parameters.of(code) for code in "sdcz"])
    assert "cannot be written" in message
    assert "not stored" in parameters.known("s").origin


def test_threads_that_need_parameters_at_once_search_once(fake):
    gate = threading.Barrier(4)
    parameters, got = new_parameters(), []

    def ask():
        gate.wait()
        got.append(parameters.of("s"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert len(set(map(id, got))) == 1
    checked = [config for config, task in fake.tried if task == Task.VERIFY_FINALIST]
    assert len(checked) == len(set(checked)), "a second search would check its winners again"


@pytest.mark.usefixtures("fake")
def test_a_problem_that_a_family_does_not_take_goes_to_direct():
    parameters, x = new_parameters(), np.empty((70, 70), np.float32, order="F")
    problem = describe(Operand(x), Operand(x), x, reads_c=False)
    assert parameters.config_for(problem).family == "cpu_packed"
    assert parameters.config_for(problem._replace(m=2**31)).family == "direct"


def test_a_claimed_problem_starts_no_search(monkeypatch):
    no_search(monkeypatch)
    parameters, a, x = new_parameters(GPU), np.empty((70, 90), "f4", "F"), np.empty((90, 1), "f4")
    problem = describe(Operand(a), Operand(x), a[:, :1], reads_c=False)
    assert parameters.config_for(problem) == BY_NAME["gemv"].default(GPU, S)
    assert parameters.known("s") is None


def test_what_a_refused_family_claims_goes_to_the_others(monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE", "off")
    parameters, a, x = new_parameters(GPU), np.empty((70, 90), "f4", "F"), np.empty((90, 1), "f4")
    problem = describe(Operand(a), Operand(x), a[:, :1], reads_c=False)
    parameters.refused.add("gemv")
    assert parameters.config_for(problem).family == "gpu_tiled"


# From here on with a device and real workers.


@pytest.fixture
def fresh(device):
    """Open a device without parameters on each device."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    return registry.Device(found, "a test")


@pytest.mark.process
@pytest.mark.slow
def test_the_first_call_tunes_and_the_next_process_does_not(fresh, caplog, monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "30")  # however busy the machine
    monkeypatch.setenv("CLGEMM_TUNE", "quick")
    caplog.set_level(logging.INFO, "clgemm.tuning")
    a = np.random.default_rng(5).uniform(-1, 1, (70, 70)).astype(np.float32)
    with registry.using(fresh):
        np.testing.assert_allclose(clgemm.sgemm(1.0, a, a), a @ a, atol=1e-4)
        clgemm.sgemm(1.0, a[:65], a)
    assert [r.levelname for r in caplog.records] == ["INFO"]
    entry = stored(fresh.traits)["entries"]["gemm.s"]
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
from clgemm.dispatch.engines import of
from clgemm.runtime import registry
tuned = of(registry.current()).parameters.known("s")
print(json.dumps([dict(config.params) for config in tuned.configs]))
"""
    run = run_python(program, CLGEMM_DEVICE=fresh.traits.platform)
    assert run.returncode == 0, run.stderr
    assert "clgemm.tuning" not in run.stderr
    assert json.loads(run.stdout) == [v["params"] for v in entry["variants"]]


def test_outcomes_survive_json():
    outcome = replace(fine(DEFAULT, 0.25), spread={"square": 0.01}, clock="the host's clock")
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome


class Terminal(io.StringIO):
    def isatty(self):
        return True


def show_progress():
    with search_loop.progress("tuning sgemm on A device") as show:
        show("1 tried, best 1 GFLOP/s")


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


def test_calls_run_with_what_the_parameters_say(fresh, fake, monkeypatch):
    del fake
    chosen = Config.of("direct", {})
    model = Model(fresh.traits, "d", {}, (Variant(chosen, (), {}),))
    engines.of(fresh).parameters.use("d", lookup.Tuned(model, "a test"))
    planned = []
    real = BY_NAME["direct"].plan

    def plan(traits, problem, config):
        planned.append(config)
        return real(traits, problem, config)

    monkeypatch.setattr(BY_NAME["direct"], "plan", plan)
    a = np.ones((70, 70))
    with registry.using(fresh):
        clgemm.dgemm(1.0, a, a)
    assert planned == [chosen]
