"""Compiled clients, made once; whatever a test interposes, it restores."""

from __future__ import annotations

import ctypes

import pytest
from clients import WHY_NOT, Client, built

from clgemm.interpose import hook


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    """Give the files of clients that were compiled, by name."""
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    return built(tmp_path_factory.mktemp("clients"))


@pytest.fixture
def client(paths):
    return Client(paths["partial"])


@pytest.fixture
def originals(paths):
    """Give a function that counts the calls of the fake BLAS's gemms."""
    blas = ctypes.CDLL(str(paths["blas"]))
    return lambda: ctypes.c_int64.in_dll(blas, "originals").value


@pytest.fixture
def restored():
    """Put everything back after a test, and see that it is."""
    yield
    hook.uninstall()
    assert not hook.usage().interposed
    for known in hook._hook.known.values():
        assert known.slot.get() == known.slot.original, known.slot
