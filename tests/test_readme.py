"""The README is right: its examples run as they stand, and it names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import clgemm
from clgemm import settings

ROOT = Path(clgemm.__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_examples_run_one_after_the_other(capsys):
    examples = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(examples) == 3
    names = {}
    for example in examples:
        exec(example, names)  # noqa: S102 - written in this repository
    assert "sgemm (2048 x 2048 x 2048)" in capsys.readouterr().out


def test_every_environment_variable_is_in_the_table():
    read = set(re.findall(r"CLGEMM_[A-Z0-9_]+", Path(settings.__file__).read_text("utf-8")))
    assert set(re.findall(r"^\| `(CLGEMM_\w+)`", TEXT, re.MULTILINE)) == read


def test_the_scripts_that_it_names_are_there():
    named = set(re.findall(r"\bbench/\w+\.(?:py|json)|bench/results/\w+\.json", TEXT))
    assert "bench/bench_gemm.py" in named
    assert [name for name in named if not (ROOT / name).exists()] == []
