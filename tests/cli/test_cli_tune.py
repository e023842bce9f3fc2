"""``clgemm tune``: what it stores and says, Ctrl-C, sizes, plots, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import CPU, PATIENCE

from clgemm.cli import main, tune
from clgemm.dispatch import engine, engines
from clgemm.errors import TuningError
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, registry
from clgemm.tuning import results, shapes
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.outcome import Outcome, Task
from clgemm.tuning.search import budget
from clgemm.tuning.search import search as search_loop
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import lookup, store
from clgemm.tuning.workers.pool import Worker

# They take next to no time.
SIZES = ["--sizes", "800x800x32", "90", "30x90x90"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Tuning is on, in a cache directory of the test's own; a busy machine has a result."""
    for name in ("HANG_SECONDS", "FIRST_SECONDS", "START_SECONDS", "START_GRACE"):
        monkeypatch.setattr(budget, name, PATIENCE)
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path


@pytest.fixture
def device(device):
    """Each device present, in use, without parameters."""
    found = next(f for f in devices.find() if f.traits == device.traits)
    with registry.using(registry.Device(found, "a test")) as fresh:
        yield fresh


def entry_of(device):
    return lookup.store_for(device.traits).read().entries["gemm.s"]


@pytest.mark.process
@pytest.mark.slow
def test_tune_stores_and_shows_what_it_found(device, capsys):
    # Long enough for the default on busy cores, whatever is tried beside it.
    assert main.main(["tune", "--precision", "s", "--seconds", "6", *SIZES]) == 0
    out = capsys.readouterr().out
    assert device.traits.describe() in out
    assert "sgemm: " in out
    assert "800 x 800 x 32" in out
    flat = Shape(800, 800, 32).problem("s")  # which some families decline
    configs = lookup.defaults(device.traits, PRECISIONS["s"], "").configs
    default = next(config for config in configs if BY_NAME[config.family].accepts(flat))
    (line,) = [line for line in out.splitlines() if line.split()[:3] == ["800", "x", "800"]]
    assert f"{default.family} " in line
    assert line.endswith("x)")
    entry = entry_of(device)
    assert str(lookup.store_for(device.traits).path) in out
    asked = {"800 x 800 x 32", "90 x 90 x 90", "30 x 90 x 90"}
    timed = [set(trial["seconds"]) for trial in entry["trials"] if trial["status"] == "ok"]
    assert timed[0] <= asked, "the search goes by these"
    assert set().union(*timed) >= asked
    assert set(entry["shapes"]) == asked | set(shapes.standard(512))
    assert set(entry["variants"][0]["seconds"]) >= asked
    assert engines.of(device).parameters.known("s").origin.startswith("tuned")


@pytest.mark.process
@pytest.mark.slow
def test_tune_searches_again_whatever_is_stored(device):
    arguments = ["tune", "--precision", "s", "--seconds", "1", *SIZES]
    assert main.main(arguments) == 0
    first = entry_of(device)
    assert main.main(arguments) == 0
    assert entry_of(device) != first


@pytest.mark.process
@pytest.mark.slow
def test_the_keyboard_keeps_what_is_found(device, capsys, monkeypatch):
    ask, tried = Worker.ask, []

    def until_the_second(self, task, *arguments, **more):
        if task not in {Task.BUILD, Task.VERIFY}:
            tried.append(task)
        if tried == [Task.MEASURE, Task.MEASURE]:
            raise KeyboardInterrupt
        return ask(self, task, *arguments, **more)

    monkeypatch.setattr(Worker, "ask", until_the_second)
    assert main.main(["tune", "--precision", "sd", "--seconds", "60", *SIZES]) == 0
    out = capsys.readouterr().out
    assert "stopped by the keyboard" in out
    assert "dgemm" not in out, "the other precisions are not begun"
    assert tried == [Task.MEASURE, Task.MEASURE, Task.VERIFY_FINALIST], "verified all the same"
    assert entry_of(device)["variants"]


@pytest.mark.process
@pytest.mark.usefixtures("device")
def test_the_keyboard_before_anything_is_found(capsys, monkeypatch):
    def at_once(*_arguments, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "ask", at_once)
    assert main.main(["tune", "--precision", "s", *SIZES]) == 1
    assert "none was tried" in capsys.readouterr().err


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("arguments", "mode", "seconds"),
    [
        ([], "auto", 3.0),
        (["--seconds", "7"], "auto", 7.0),
        (["--full"], "full", 60.0),
        (["--full", "--seconds", "9"], "full", 9.0),
    ],
)
def test_how_hard_it_searches(arguments, mode, seconds, monkeypatch):
    asked = []

    def tune(_engine, code, effort):
        asked.append((code, effort))
        raise TuningError("that is enough")

    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "3")
    monkeypatch.setattr(engine.Engine, "tune", tune)
    assert main.main(["tune", "--precision", "d", *arguments]) == 1
    ((code, effort),) = asked
    assert (code, effort.mode, effort.seconds) == ("d", mode, seconds)
    assert effort.keeps_on_interrupt


def test_a_device_is_named_as_in_the_environment(device, capsys, monkeypatch):
    asked = []
    result = results.Result(Model(CPU, "s", {}, ()), (), 0.0, interrupted=True, stored=True)
    monkeypatch.setattr(
        engine.Engine, "tune", lambda e, *_: asked.append(e.device.traits) or result
    )
    monkeypatch.setattr(tune, "_print_result", lambda *_: None)
    assert main.main(["tune", "--device", device.traits.platform]) == 0
    assert asked == [device.traits]
    assert main.main(["tune", "--device", "abacus"]) == 1
    error = capsys.readouterr().err
    assert "--device 'abacus' names no device" in error
    assert device.traits.describe() in error


@pytest.mark.parametrize("can_be_made", [True, False])
@pytest.mark.filterwarnings("ignore::clgemm.ClgemmWarning")
def test_the_status_tells_whether_what_was_found_is_stored(
    device, capsys, monkeypatch, tmp_path, can_be_made
):
    default = lookup.defaults(device.traits, PRECISIONS["s"], "").configs[0]
    model = Model(device.traits, "s", {}, (Variant(default, (), {}),))
    monkeypatch.setattr(search_loop.Search, "run", lambda _: results.Result(model, (), 0.0))
    monkeypatch.setattr(engine.Engine, "measure_break_evens", lambda *_: None)
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path / "folder" if can_be_made else file))
    assert main.main(["tune", "--precision", "s"]) == (0 if can_be_made else 1)
    assert ("\nstored in" if can_be_made else "\nnot stored:") in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--sizes", "0"], ["--sizes", "3x4"], ["--sizes", "big"], ["--seconds", "-1"],
     ["--seconds", "soon"], ["--seconds", "inf"], ["--plot", "nowhere/rates.png"]],
)  # fmt: skip
def test_what_the_parser_refuses(arguments, capsys):
    with pytest.raises(SystemExit):
        main.main(["tune", *arguments])
    assert arguments[1] in capsys.readouterr().err


@pytest.mark.process
def test_a_plot_shows_rates_and_candidates(device, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="plots need matplotlib, from the bench extra")
    monkeypatch.setattr(tune, "PLOT_SIZES", (65, 70))
    file = tmp_path / "rates.png"
    # A compiler for GPUs needs seconds for the first candidate.
    seconds = "0.5" if device.traits.kind == "cpu" else "6"
    arguments = ["--precision", "s", "--seconds", seconds, "--plot", str(file), *SIZES]
    assert main.main(["tune", *arguments]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert engines.of(device).parameters.known("s").origin.startswith("tuned"), (
        "not the default it was compared with"
    )


@pytest.mark.usefixtures("device")
def test_without_matplotlib_a_plot_says_how_to_get_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(search_loop, "Worker", None)  # nothing is searched before it is said
    assert main.main(["tune", "--plot", str(tmp_path / "rates.png")]) == 1
    assert "pip install 'clgemm[bench]'" in capsys.readouterr().err


def test_what_is_ruled_out_is_shown(device, capsys):
    precision = PRECISIONS["s"]
    default = lookup.defaults(device.traits, precision, "").configs[0]
    shape, seconds = {"square": Shape(1000, 1000, 1000)}, {"square": 1e-2}
    best = Outcome(default, "ok", "", seconds, 1000)
    wrong = Outcome(default, "wrong", "261 x 133 x 401: error 9\nand more")
    found = Model(device.traits, "s", shape, (Variant(default, (), seconds),))
    result = results.Result(found, (best, wrong), 1.0)
    tune._print_result(device, precision, result)
    out = capsys.readouterr().out
    assert "2 candidates in 1.0 s, 1 ruled out" in out
    assert "wrong: 261 x 133 x 401: error 9\n" in out
    words = f"square 1000 x 1000 x 1000 200 1; {default.family} 200 (1.00x)"
    assert words in " ".join(out.split())
    assert f"1: {default}" in out
    assert json.dumps(result.entry())
