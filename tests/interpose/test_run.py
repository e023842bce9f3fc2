"""``clgemm run``: programs that do not know of it behave as Python runs them."""

from __future__ import annotations

import json
import os
import py_compile
import re
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
from helpers import PATIENCE

from clgemm.cli import picture
from clgemm.interpose.account import Tally
from clgemm.runtime import machine_code

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(machine_code.why_not() is not None, reason=str(machine_code.why_not())),
]

PROGRAM = """
import atexit, sys
import numpy as np

a = np.ones((200, 200), np.float32)
assert (a @ a == 200).all()
names = sorted(name for name in globals() if name.startswith("__"))
print(sys.argv, sys.path[0], __name__, __file__, __package__, type(__spec__).__name__, names)
print(sys.modules["__main__"].__dict__ is globals(), type(__builtins__).__name__)
print(type(__loader__).__name__ if __spec__ else "")
atexit.register(print, "at exit", file=sys.stderr)

def act(how):
    if how == "raise":
        raise ValueError("too bad")
    if how == "cause":
        try:
            act("raise")
        except ValueError as error:
            raise KeyError(how) from error
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "scipy":
        import scipy.linalg
        print(scipy.linalg.blas.sgemm(1.0, a, a).sum())
    if how == "hook":
        def mine(kind, error, traceback):
            print("mine", error, sys.last_value is error, sys.excepthook is mine, file=sys.stderr)
            assert error.__traceback__ is sys.last_traceback is traceback
        sys.excepthook = mine
        raise ValueError(how)
    if how == "import":
        import no_library
    sys.exit({"zero": 0, "three": 3, "text": "some words", "none": None}.get(how, 0))

act(sys.argv[-1])
"""


COUNTED = """
import numpy as np
import scipy.linalg
import scipy.linalg.blas as blas

a, x = np.ones((60, 50)), np.ones(50)
for _ in range(7):
    a @ a.T.copy()
for _ in range(3):
    a.T @ a
for _ in range(11):
    a @ x
np.einsum("ij,kj->ik", a, a + 1, optimize=True)
np.ones((5, 20, 30)) @ np.ones((30, 20))
for _ in range(4):
    blas.dgemm(1.0, a, a, trans_b=1)
    blas.dsyrk(1.0, a)
for _ in range(2):
    blas.zhemm(1.0, np.ones((9, 9)), np.ones((9, 9)))
    blas.cherk(1.0, a)
    blas.strmm(1.0, np.ones((9, 9)), np.ones((9, 9)))
"""
"""`einsum` comes to one gemm, and a stack to one of each matrix."""


@pytest.fixture
def folder(tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text(PROGRAM)
    (package / "__main__.py").write_text(
        "import sys\nprint('main of', __package__, sys.argv, sys.path[0])\n1 / 0\n"
    )
    (package / "broken.py").write_text("x = (\n")
    (package / f"no_library{EXTENSION_SUFFIXES[0]}").write_text("no library")
    py_compile.compile(package / "inner.py", package / "compiled.pyc", doraise=True)
    return tmp_path


def run(folder, *words, ours=()):
    command = [sys.executable, *ours, *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    found = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    plain = re.sub(r"0x[0-9a-f]+", "0x", found.stdout)
    errors, _, account = found.stderr.partition("\nclgemm: ")
    return found.returncode, plain, errors, account


@pytest.mark.parametrize(
    "words",
    [
        ["pack/inner.py"], ["./pack/inner.py", "--json", "-m", "x", "three"],
        ["pack/inner.py", "raise"], ["pack/inner.py", "cause"], ["pack/inner.py", "text"],
        ["pack/inner.py", "interrupt"], ["pack/inner.py", "hook"], ["pack/inner.py", "none"],
        ["pack/inner.py", "scipy"], ["pack/none.py"], ["pack/broken.py"],
        ["pack/inner.py", "import"], ["pack/compiled.pyc", "three"], ["pack", "-m", "x"],
        ["-m", "pack.inner", "--flag", "-m", "three"], ["-m", "pack.inner", "raise"],
        ["-m", "pack.none"], ["-m", "pack", "--", "-m", "x"], ["-m", "pack.broken"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_program_behaves_as_python_runs_it(folder, words):
    *wanted, _ = run(folder, *words)
    *found, account = run(folder, *words, ours=("-m", "clgemm", "run"))
    assert found == wanted
    assert account


@pytest.mark.parametrize("route", ["host", "device"])
def test_every_call_is_counted(folder, route, monkeypatch):
    """As many as the program makes, counted by hand; products of clgemm's own are left out."""
    monkeypatch.setenv("CLGEMM_ROUTE", route)
    (folder / "counted.py").write_text(COUNTED)
    status, *_ = run(folder, "counted.py", ours=("-m", "clgemm", "run", "--json", "account.json"))
    assert status == 0
    found = {}
    for row in read(folder)["rows"]:
        module = row["module"].rpartition(".")[2].replace("_multiarray_umath", "numpy")
        name = re.sub(r"scipy_|cblas_|_|64", "", row["entry"])
        if row["calls"]:
            found[module, name] = row["calls"]
    if ("_fblas", "dgemm") not in found:
        pytest.skip("this SciPy keeps its addresses in a table of its own")
    expected = {
        ("numpy", "dgemm"): 7 + 1 + 5, ("numpy", "dsyrk"): 3, ("numpy", "dgemv"): 11,
        ("_fblas", "dgemm"): 4, ("_fblas", "dsyrk"): 4, ("_fblas", "zhemm"): 2,
        ("_fblas", "cherk"): 2, ("_fblas", "strmm"): 2,
    }  # fmt: skip
    assert found == expected


def test_the_account_comes_at_the_end_and_as_json(folder):
    options = ("-m", "clgemm", "run", "--json", "account.json")
    status, _, errors, account = run(folder, "pack/inner.py", "scipy", ours=options)
    assert status == 0
    assert errors.endswith("at exit\n")
    lines = [line.split() for line in account.splitlines()]
    assert {words[0] for words in lines if "gemm_" in words[0] or "gemm64" in words[0]} == {
        row["entry"] for row in read(folder)["rows"] if row["calls"] and not row["only_counted"]
    }
    calls = [row for row in read(folder)["rows"] if row["device_calls"]]
    assert {"_multiarray_umath", "_fblas"} == {row["module"].rpartition(".")[2] for row in calls}
    assert all(row["device_flops"] == 2 * 200**3 and row["device_seconds"] > 0 for row in calls)


def test_the_account_is_written_where_the_command_was_given(folder):
    (folder / "elsewhere.py").write_text("import os; os.chdir('/')\n")
    options = ("-m", "clgemm", "run", "--json", "account.json")
    assert run(folder, "elsewhere.py", ours=options)[0] == 0
    assert read(folder)["interposed"]


def test_without_standard_error_the_output_is_the_programs_alone(folder):
    (folder / "silent.py").write_text("import sys; sys.stderr = None; print('all there is')\n")
    found = run(folder, "silent.py", ours=("-m", "clgemm", "run"))
    assert found == (0, "all there is\n", "", "")


def test_the_account_as_a_picture(folder):
    pytest.importorskip("matplotlib", reason="plots need matplotlib, from the bench extra")
    options = ("-m", "clgemm", "run", "--plot", "account.png")
    program = "import os, sys, runpy; os.chdir('/'); assert 'matplotlib' not in sys.modules\n"
    (folder / "elsewhere.py").write_text(program + PROGRAM)
    status, _, errors, _ = run(folder, "elsewhere.py", "scipy", ours=options)
    assert (status, "not written" in errors) == (0, False)
    assert (folder / "account.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told(folder):
    pytest.importorskip("matplotlib", reason="plots need matplotlib, from the bench extra")
    options = ("-m", "clgemm", "run", "--plot", "account.nothing")
    status, _, errors, account = run(folder, "pack/inner.py", "zero", ours=options)
    assert status == 0
    assert "account.nothing was not written" in errors + account


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_an_account_that_could_not_be_written_is_told_before_the_program_runs(folder, option):
    options = ("-m", "clgemm", "run", option, "nowhere/account")
    status, out, errors, _ = run(folder, "pack/inner.py", "zero", ours=options)
    assert (status, out) == (2, "")
    assert f"{option}: 'nowhere/account': no file can be written in {folder}" in errors


def test_an_account_that_cannot_be_written_at_the_end_is_told_in_a_line(folder):
    (folder / "breaks.py").write_text("import os; os.mkdir('account.json')\n")
    options = ("-m", "clgemm", "run", "--json", "account.json")
    status, _, errors, account = run(folder, "breaks.py", ours=options)
    assert (status, "Traceback" in errors) == (0, False)
    assert f"{folder}/account.json was not written" in errors + account
    assert "no gemm or syrk was called" in errors + account


def test_without_matplotlib_a_picture_says_how_to_get_it(folder):
    program = "import sys; sys.modules['matplotlib'] = None; from clgemm.cli.main import main; "
    program += "sys.exit(main(['run', '--plot', 'x.png', 'pack/inner.py']))"
    status, out, errors, _ = run(folder, ours=("-c", program))
    assert (status, out) == (1, "")
    assert "clgemm[bench]" in errors


def test_a_picture_shows_what_the_account_has(tmp_path):
    pytest.importorskip("matplotlib", reason="plots need matplotlib, from the bench extra")
    tally = Tally()
    tally.on_device(2 * 10**9, 0.5, 0.75)
    tally.on_host(10**6)
    rows = [tally.row("sgemm_", "a.module", 7, 3)._asdict()]
    for name, found in (("full", rows), ("empty", [])):
        picture.draw({"rows": found}, tmp_path / f"{name}.svg")
    text = (tmp_path / "full.svg").read_text()
    assert all(words in text for words in ("sgemm_", "a.module", "predicted for the host"))
    assert "sgemm_" not in (tmp_path / "empty.svg").read_text()


def read(folder):
    return json.loads((folder / "account.json").read_text())


def test_a_command_without_a_program_says_so(folder):
    status, _, _, error = run(folder, ours=("-m", "clgemm", "run"))
    assert status == 2
    assert "give a script" in error
