"""What ships with clgemm: as `clgemm cache export` wrote it, and good for these kernels."""

from __future__ import annotations

import importlib.resources
import math
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import CPU, GPU

from clgemm.cli.cache import export_name, read_exported
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import entries, lookup, similar
from clgemm.tuning.store.similar import Similarity

FILES = sorted(
    Path(str(x))
    for x in importlib.resources.files("clgemm.tuning.shipped").iterdir()
    if x.name.endswith(".json")
)
ENTRIES = [(path, name) for path in FILES for name in read_exported(path).entries]
OTHER_SHAPES = (
    Shape(3, 4, 5), Shape(100, 90, 80), Shape(5000, 5001, 4999), Shape(20, 4000, 4000),
    Shape(4000, 20, 4000), Shape(3000, 3000, 3), Shape(64, 64, 65536), Shape(50, 50, 50, 1000),
    Shape(1000, 1000, 1000, 1, trans_a=True), Shape(1000, 1000, 1000, 1, trans_b=True),
)  # fmt: skip


def traits_of(head):
    """Give traits of a device as a file describes it; what it does not say is ample."""
    like = CPU if head["architecture"]["kind"] == "cpu" else GPU
    capability = head["architecture"].get("compute_capability")
    return replace(
        like,
        **head["identity"],
        clang_builtins=like is CPU,
        local_memory=48 << 10,
        global_memory=64 << 30,
        compute_capability=tuple(map(int, capability.split("."))) if capability else None,
    )


def test_something_ships():
    assert FILES
    assert len({path.name for path in FILES}) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_ships_is_as_it_was_exported(path):
    found = read_exported(path)
    assert path.name == export_name(found.head)
    traits = traits_of(found.head)
    assert similar.architecture(traits) == found.head["architecture"]
    assert {f"gemm.{code}" for code in PRECISIONS} <= set(found.entries), "all four precisions"


@pytest.mark.parametrize(("path", "name"), ENTRIES, ids=lambda x: getattr(x, "stem", x))
def test_what_ships_runs_and_chooses(path, name, monkeypatch):
    if name.endswith("-fma"):
        monkeypatch.setenv("CLGEMM_FP32", "fma")
    found = read_exported(path)
    traits, precision = traits_of(found.head), entries.NAMES[name]
    assert lookup.entry_name(precision) == name
    model = entries.stored_model(found.entries[name], traits, precision)
    assert model is not None, "a variant is no point of its family's space any more"
    families = {v.config.family for v in model.variants}
    for shape in (*model.shapes.values(), *OTHER_SHAPES):
        problem = shape.problem(precision.code)
        config = model.choose(problem)
        if any(BY_NAME[name].accepts(problem) for name in families):
            assert config in [v.config for v in model.variants]
        times = model.predict(problem, range(len(model.variants)))
        assert all(0 < x < math.inf for x in times.values())


@pytest.mark.parametrize(("path", "name"), ENTRIES, ids=lambda x: getattr(x, "stem", x))
def test_what_ships_was_timed_with_every_shape(path, name):
    entry = read_exported(path).entries[name]
    if len(entry["variants"]) > 1:  # or there is nothing to choose
        assert set().union(*(v["seconds"] for v in entry["variants"])) == set(entry["shapes"])
    assert all(v["rates"] for v in entry["variants"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_ships_is_found_elsewhere_but_not_everywhere(path, monkeypatch):
    """With more cores and another driver, but not for another processor of the same name."""
    monkeypatch.delenv("CLGEMM_SHIPPED")
    head = read_exported(path).head
    here = traits_of(head)
    larger = replace(here, compute_units=here.compute_units * 8, driver_version="another")
    assert similar.compare(larger, head) is Similarity.ARCHITECTURE
    name = "a sister" if here.compute_capability else here.name
    assert similar.compare(replace(larger, name=name), head) is Similarity.ARCHITECTURE
    other = replace(
        here, processor="A maker family 1 model 2", compute_capability=(7, 5), simd_bytes=16,
        name="another",
    )  # fmt: skip
    assert similar.compare(other, head) is Similarity.VENDOR
