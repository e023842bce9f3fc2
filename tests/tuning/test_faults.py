"""A family of which five configurations are broken tunes to the one that is right and fast."""

from __future__ import annotations

import json
import time
from pathlib import Path

import faulty
import numpy as np
import pytest
from helpers import PATIENCE, entry_with

import clgemm
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, registry
from clgemm.tuning import verification
from clgemm.tuning.measure import verify
from clgemm.tuning.outcome import config_as_json as as_json
from clgemm.tuning.results import Effort
from clgemm.tuning.search import budget
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup, store
from clgemm.tuning.tuner import Parameters
from clgemm.tuning.workers.pool import Worker

S = PRECISIONS["s"]
EFFORT = Effort(seconds=2 * PATIENCE)  # the budget is never what ends the search
HANG_SECONDS = 4.0
ASK = Worker.ask
WANT = {
    faulty.ABORTS: ("crash", "ended with"),
    faulty.HANGS: ("hang", "no answer within"),
    faulty.ODD_K: ("wrong", "261 x 133 x 401"),
    faulty.SOMETIMES: ("wrong", "times the bound"),
    faulty.NO_BUILD: ("build", "Its log:"),
}


@pytest.fixture(autouse=True)
def only_faulty(monkeypatch, tmp_path):
    """No other family competes, here and in workers."""
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", str(EFFORT.seconds))
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(lookup, "FAMILIES", (faulty.FAULTY,))
    monkeypatch.setattr(budget, "HANG_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(budget, "START_SECONDS", PATIENCE)
    monkeypatch.setattr(budget, "START_GRACE", PATIENCE)
    monkeypatch.setattr(verification, "FIRST_SECONDS", PATIENCE)
    monkeypatch.setattr(verification, "HANG_SECONDS", PATIENCE)
    program = str(Path(__file__).with_name("faulty_worker.py"))
    monkeypatch.setattr(Worker, "command", (program,))
    monkeypatch.setattr(Worker, "ask", ask_patiently)
    monkeypatch.setattr(store, "_warned", set())
    faulty.install(monkeypatch.setattr, monkeypatch.setitem)


def ask_patiently(worker, task, config, patience, **more):
    """Ask, and take for hung what hangs: not what has to wait for a core on a busy machine."""
    hangs = config["KIND"] == faulty.HANGS
    return ASK(worker, task, config, patience if hangs else lambda _: PATIENCE, **more)


@pytest.fixture
def fresh(device):
    """Open a device without parameters on each device."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    return registry.Device(found, "a test")


def failures_in(path):
    """Read what the store says of each configuration that is not ok."""
    (entry,) = json.loads(path.read_text())["entries"].values()
    return {
        trial["config"]["params"]["KIND"]: (trial["status"], trial["detail"])
        for trial in entry["trials"]
        if trial["status"] != "ok"
    }


@pytest.mark.process
@pytest.mark.slow
def test_the_right_one_wins_and_all_five_are_named(fresh, monkeypatch):
    result = Parameters(fresh).tune("s", EFFORT)
    assert {v.config for v in result.model.variants} == {faulty.kind(faulty.RIGHT)}
    assert result.seconds < EFFORT.seconds
    found = failures_in(lookup.store_for(fresh.traits).path)
    assert set(found) == set(WANT)
    for number, (status, words) in WANT.items():
        assert found[number][0] == status
        assert words in found[number][1]
    a = np.random.default_rng(1).uniform(-1, 1, (71, 71)).astype(np.float32)
    with registry.using(fresh):
        np.testing.assert_allclose(clgemm.sgemm(1.0, a, a), a @ a, atol=1e-4)

    # What is broken is never tried again on this device and driver, and still named.
    tried = []
    ask = Worker.ask

    def spy(self, task, config, *arguments, **more):
        tried.append(config["KIND"])
        return ask(self, task, config, *arguments, **more)

    monkeypatch.setattr(Worker, "ask", spy)
    again = Parameters(fresh).tune("s", EFFORT)
    assert set(tried) == {faulty.SLOW, faulty.RIGHT}
    assert {v.config for v in again.model.variants} == {faulty.kind(faulty.RIGHT)}
    assert failures_in(lookup.store_for(fresh.traits).path) == found


@pytest.mark.process
@pytest.mark.slow
def test_what_killed_a_worker_is_remembered_if_nothing_is_stored(fresh, monkeypatch):
    """The keyboard ends the search after the crash, before there is a result."""
    ask, tried = Worker.ask, []

    def until_the_crash(self, task, config, *arguments, **more):
        outcome = ask(self, task, config, *arguments, **more)
        tried.append(config["KIND"])
        if outcome.status == "crash":
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(Worker, "ask", until_the_crash)
    monkeypatch.setattr(faulty.FAULTY, "space", lambda *_: {"KIND": (0, 1, faulty.ABORTS)})
    with pytest.raises(KeyboardInterrupt):
        Parameters(fresh).tune("s", EFFORT)
    # Interrupted, the candidate is not blamed: what did end the worker is known only afterwards.
    monkeypatch.setattr(Worker, "ask", ask)
    result = Parameters(fresh).tune("s", EFFORT)
    assert [o.config["KIND"] for o in result.outcomes if not o.ok] == [faulty.ABORTS]
    path = lookup.store_for(fresh.traits).path
    path.unlink()
    found = lookup.store_for(fresh.traits).interrupted()
    assert [c["params"]["KIND"] for c in found] == [faulty.ABORTS]


def test_a_candidate_wrong_once_in_a_while_fails_as_a_finalist(fresh):
    said = verify.Verifier(fresh, S).mismatch(faulty.kind(faulty.SOMETIMES), finalist=True)
    assert "times the bound, in run" in said


def test_a_stored_winner_is_checked_once_per_device_and_driver(fresh, monkeypatch):
    runs = []
    real = verify.run_once

    def run_once(*arguments, **more):
        runs.append(1)
        real(*arguments, **more)

    monkeypatch.setattr(verify, "run_once", run_once)
    kept = lookup.store_for(fresh.traits)
    assert verification.find_fault(fresh, S, kept, faulty.kind(faulty.RIGHT)) == ""
    assert len(runs) == 2, "once with beta zero and once not"
    assert verification.find_fault(fresh, S, kept, faulty.kind(faulty.RIGHT)) == ""
    assert len(runs) == 2, "what passed is remembered"
    assert verification.find_fault(fresh, PRECISIONS["d"], kept, faulty.kind(faulty.RIGHT)) == ""
    assert len(runs) == 4, "another precision is another kernel"


@pytest.mark.parametrize(
    ("number", "words"), [(faulty.ODD_K, "67 x 45 x 129"), (faulty.NO_BUILD, "Its log:")]
)
def test_a_stored_winner_that_is_wrong_here_is_not_used(fresh, number, words):
    kept = lookup.store_for(fresh.traits)
    params = {"family": "faulty", "params": {"KIND": number}}
    kept.write(lookup.entry_name(S), entry_with(params, faulty.kind(faulty.RIGHT)))
    assert words in verification.find_fault(fresh, S, kept, faulty.kind(number))
    parameters, problem = Parameters(fresh), Shape(70, 70, 70).problem("s")
    with pytest.warns(clgemm.ClgemmWarning, match="is not used"):
        assert parameters.config_for(problem) == faulty.kind(faulty.RIGHT), "the next best"
    assert parameters.known("s").configs == (faulty.kind(faulty.RIGHT),)
    assert parameters.known("s").unverified == set()
    assert words in verification.find_fault(fresh, S, kept, faulty.kind(number)), (
        "nor the next time"
    )


@pytest.mark.process
@pytest.mark.slow
def test_without_a_stored_winner_that_is_right_here_a_search_follows(fresh, monkeypatch):
    kept = lookup.store_for(fresh.traits)
    kept.write(lookup.entry_name(S), entry_with(faulty.kind(faulty.ODD_K)))
    parameters = Parameters(fresh)
    monkeypatch.setattr(faulty.FAULTY, "space", lambda *_: {"KIND": (faulty.SLOW, faulty.ODD_K)})
    with pytest.warns(clgemm.ClgemmWarning, match="is not used"):
        config = parameters.config_for(Shape(70, 70, 70).problem("s"))
    assert config == faulty.kind(faulty.SLOW)
    assert parameters.known("s").origin.startswith("tuned")


def test_what_a_shape_does_not_run_with_is_not_checked(fresh, monkeypatch):
    """A first call builds one kernel, not one for each variant."""
    kept = lookup.store_for(fresh.traits)
    kept.write(lookup.entry_name(S), entry_with(faulty.kind(faulty.RIGHT), faulty.kind(5)))
    checked = []
    monkeypatch.setattr(verification, "find_fault", lambda *more: checked.append(more[3]) or "")
    parameters = Parameters(fresh)
    for n in (70, 71):
        parameters.config_for(Shape(n, n, n).problem("s"))
    assert checked == [faulty.kind(faulty.RIGHT)]
    assert parameters.known("s").unverified == {faulty.kind(5)}


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "words"), [(faulty.ABORTS, "ended with"), (faulty.HANGS, "no answer within")]
)
def test_a_stored_winner_that_took_a_process_down_is_not_run(fresh, monkeypatch, number, words):
    if number == faulty.HANGS:
        monkeypatch.setattr(verification, "HANG_SECONDS", 3.0)
    kept, candidate = lookup.store_for(fresh.traits), as_json(faulty.kind(number))
    kept.begin(candidate)
    for _ in range(2):
        said = verification.find_fault(fresh, S, kept, faulty.kind(number))
        assert "a process ended while it ran" in said
        assert words in said
    assert kept.interrupted() == [candidate]


@pytest.mark.process
def test_a_stored_winner_whose_process_was_killed_is_tried_in_another_one(fresh, monkeypatch):
    """A time limit or a full memory kills whatever runs at that moment."""
    kept, candidate = lookup.store_for(fresh.traits), as_json(faulty.kind(faulty.RIGHT))
    kept.begin(candidate)
    monkeypatch.setattr(verification, "_verify", None)  # not in this process
    assert verification.find_fault(fresh, S, kept, faulty.kind(faulty.RIGHT)) == ""
    assert kept.interrupted() == []
    assert verification.find_fault(fresh, S, kept, faulty.kind(faulty.RIGHT)) == "", (
        "which is remembered"
    )


@pytest.mark.process
@pytest.mark.parametrize("place", ["start", "answer"])
def test_a_suspect_is_waited_for_no_longer_than_a_search(fresh, place, monkeypatch):
    """A first call does not take a minute because its worker hangs."""
    kept, candidate = lookup.store_for(fresh.traits), as_json(faulty.kind(faulty.RIGHT))
    kept.begin(candidate)
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "0.5")
    monkeypatch.setattr(budget, "START_GRACE", 0.5)
    monkeypatch.setattr(verification, "FIRST_SECONDS", 0.5)
    program = f"import time; time.sleep({2 * PATIENCE})"
    if place == "answer":
        program = "import sys; sys.stdin.readline(); print('{}', flush=True);" + program
    monkeypatch.setattr(Worker, "command", ("-c", program))
    monkeypatch.setattr(Worker, "ask", ASK)
    begun = time.monotonic()
    wrong = verification.find_fault(fresh, S, kept, faulty.kind(faulty.RIGHT))
    assert "no answer within" in wrong
    assert time.monotonic() - begun < PATIENCE


@pytest.mark.process
def test_where_no_other_process_starts_a_suspect_is_not_run(fresh, monkeypatch):
    kept, candidate = lookup.store_for(fresh.traits), as_json(faulty.kind(faulty.RIGHT))
    kept.begin(candidate)
    monkeypatch.setattr(Worker, "command", ("-c", "raise SystemExit(3)"))
    assert "could not be tried again" in verification.find_fault(
        fresh, S, kept, faulty.kind(faulty.RIGHT)
    )
    assert kept.interrupted() == [candidate]
