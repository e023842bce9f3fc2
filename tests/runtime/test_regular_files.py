"""What is no regular file is neither read nor locked, whatever comes out of it."""

from __future__ import annotations

import os

import pytest

from clgemm.runtime import private_files

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.fixture
def pipe(tmp_path, monkeypatch):
    """Make a named pipe in the cache directory, with something in it."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(folder))
    path = folder / "pipe"
    os.mkfifo(path, 0o600)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(handle, b"{}")
    yield path
    os.close(handle)


def test_a_pipe_is_not_read(pipe):
    assert private_files.read(pipe, 100) == (None, "it is no regular file")


def test_a_pipe_is_not_locked(pipe):
    with pytest.raises(PermissionError, match="no regular file"):
        private_files.open_lock(pipe)
