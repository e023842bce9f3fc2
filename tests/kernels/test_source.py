"""Which files decide whether a family's stored parameters still hold."""

from __future__ import annotations

import pytest

from clgemm.kernels import BY_NAME, FAMILIES, source

NAMES = sorted(BY_NAME)


@pytest.fixture
def changed(monkeypatch):
    """Return a function that changes a file and lists the families whose hash that changes."""
    real = source.read
    before = {name: source.family_hash(name) for name in NAMES}

    def change(file):
        monkeypatch.setattr(source, "read", lambda x: real(x) + "// changed" * (x == file))
        source.family_hash.cache_clear()
        return [name for name in NAMES if source.family_hash(name) != before[name]]

    yield change
    monkeypatch.undo()
    source.family_hash.cache_clear()


@pytest.mark.parametrize(
    ("file", "families"),
    [
        ("common.cl", NAMES),
        ("family.py", NAMES),
        ("costs.py", NAMES),
        ("gpu_tiled/pack.cl", ["gpu_tiled"]),
        ("gpu_tiled/tiling.py", ["batched", "gpu_tiled", "nv_fused"]),
        ("cpu_packed/family.py", ["cpu_packed"]),
        ("nv_async.cl", ["batched", "nv_dmma", "nv_fused", "nv_mma", "nv_split", "nv_wgmma"]),
        ("nv_split/layout.py", ["nv_fused", "nv_mma", "nv_split"]),
        ("nv_split/walk.cl", ["nv_fused", "nv_mma", "nv_split"]),
        ("nv_fused/produce.cl", ["nv_fused"]),
        ("nv_mma/mma.cl", ["nv_mma"]),
        ("__init__.py", []),
        ("source.py", []),
    ],
)
def test_a_change_outdates_the_families_that_use_the_file(file, families, changed):
    assert changed(file) == families


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_a_family_s_kernels_are_made_of_is_hashed(family):
    files = source.family_files(family.name)
    assert set(family.files) <= set(files)
    assert f"{family.name}/family.py" in files
    assert all(source.read(file) is not None for file in files)


def test_families_differ_and_a_name_that_is_none_has_a_hash():
    hashes = {source.family_hash(name) for name in (*NAMES, "nothing")}
    assert len(hashes) == len(NAMES) + 1
    assert all(len(x) == 16 for x in hashes)
