"""Reading the slots of shared objects, whole and broken ones."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess

import numpy as np
import pytest
from clients import needs_compiler

from clgemm.interpose import elf
from clgemm.interpose.entries import NAME

pytestmark = needs_compiler

UMATH = getattr(np, "_core", None) or np.core


def by_readelf(path):
    """List names, places and kinds of a file's slots as another program reads them."""
    command = [shutil.which("readelf"), "-rW", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([0-9a-f]+) +\S+ +R_X86_64_(\w+) +[0-9a-f]+ (\w+)", text, re.MULTILINE)
    return {
        (name, int(where, 16), {"JUMP_SLO": "JUMP_SLOT"}.get(kind, kind))
        for where, kind, name in found
        if NAME.fullmatch(name)
    }


@pytest.mark.parametrize(
    ("way", "kind"),
    [("lazy", "JUMP_SLOT"), ("partial", "JUMP_SLOT"), ("no_plt", "GLOB_DAT"), ("now", None)],
)
def test_the_slots_of_a_module_are_found(paths, way, kind):
    found = elf.imports(paths[way], NAME, ("PyEval_SaveThread", "PyEval_NoSuch"))
    assert len(found.slots) == 16
    assert kind is None or {slot.kind for slot in found.slots} == {kind}
    assert found.names == {"PyEval_SaveThread"}


def test_what_a_library_exports_is_no_import(paths):
    assert elf.imports(paths["blas"], NAME).slots == ()


def test_the_slots_are_those_that_readelf_finds(paths):
    if shutil.which("readelf") is None:
        pytest.skip("there is no readelf")
    for path in (paths["no_plt"], paths["lazy"], paths["now"], UMATH._multiarray_umath.__file__):
        found = elf.imports(type(paths["now"])(path), NAME)
        assert {(s.name, s.where, s.kind) for s in found.slots} == by_readelf(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends within its header"),
        (b"#!/bin/sh\n" * 20, "no little-endian ELF"),
        (b"\x7fELF\x01\x01" + bytes(100), "no little-endian ELF"),
        (b"\x7fELF\x02\x01" + bytes(100), "no shared object"),
    ],
)
def test_what_is_no_shared_object_gives_a_sentence(data, words, tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(data)
    assert words in elf.imports(path, NAME)


def test_a_file_that_is_not_there_gives_a_sentence(tmp_path):
    assert "No such file" in elf.imports(tmp_path / "none.so", NAME)


def test_a_broken_file_gives_a_sentence_or_slots(paths, tmp_path):
    whole = paths["partial"].read_bytes()
    path, rng, sentences = tmp_path / "a.so", np.random.default_rng(1), 0
    wanted = struct.unpack_from("<Q", whole, 32)[0]  # program headers
    for case in range(400):
        data = bytearray(whole)
        if case % 4 == 0:
            del data[rng.integers(len(data)) :]
        else:
            places = rng.integers(0, (wanted + 600, len(data))[case % 2], 1 + case % 7)
            for place in places:
                data[place] = rng.integers(256)
        path.write_bytes(data)
        found = elf.imports(path, NAME)
        assert isinstance(found, str | elf.Imports)
        sentences += isinstance(found, str)
    assert sentences > 80
