"""The cache directory believes nobody but its owner, and trouble with it reaches no product."""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile
from pathlib import Path

import pytest
from helpers import PATIENCE, entry_with, heard, quiet, run_python

from clgemm.cli import cache as cache_command
from clgemm.dispatch import break_even
from clgemm.dispatch.times import BreakEven, Curve
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS
from clgemm.runtime import private_files
from clgemm.runtime.binaries import Binaries, kept_for
from clgemm.tuning import verification
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import locks, store
from clgemm.tuning.store.files import read_cached
from clgemm.tuning.store.store import Store

if not hasattr(os, "geteuid"):
    pytest.skip("this system has neither owners nor modes to ask for", allow_module_level=True)

IDENTITY = {"name": "A device"}
ENTRY = {"shapes": {}, "variants": []}
CANDIDATE = {"family": "f", "params": {}}
NOBODY = 65534
PLANTED = {
    "schema": store.SCHEMA, "identity": IDENTITY, "entries": {"gemm.s": ENTRY},
}  # fmt: skip

as_root = pytest.mark.skipif(
    hasattr(os, "geteuid") and os.geteuid() != 0, reason="only root can give files away"
)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    """Each test hears its own warnings, and none of them hangs."""
    monkeypatch.setattr(private_files, "_warned", set())
    monkeypatch.setattr(store, "_warned", set())
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a planted file"))
    signal.alarm(2 * int(PATIENCE))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Name a cache directory that is not there yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def own(cache):
    """Give a cache directory that is this user's alone."""
    cache.mkdir(mode=0o700)
    return cache


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def make(folder):
    return Store(folder, "0123", IDENTITY)


def listing(folder):
    return {
        p.relative_to(folder): (p.lstat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in folder.rglob("*")
    }


def use(folder):
    """Do all that is done with a cache directory; return what was read."""
    place, programs = make(folder), Binaries(folder / "programs", "print")
    config = Config("direct", ())
    found = dict(place.read().entries), place.interrupted(), programs.load("text")
    place.write("gemm.d", ENTRY)
    place.begin(CANDIDATE)
    place.end(CANDIDATE)
    place.forget_interrupted(CANDIDATE)
    verification.remember(place, PRECISIONS["s"], [config])
    break_even._write(place, "gemm.s", "0123", measured())
    programs.save("text", b"binary")
    with place.turn("gemm.s", 0.1, lambda _seconds: None) as reason:
        assert reason == ""
    return found


def measured():
    line = Curve.fitted({Shape(8, 8, 8): 1e-6, Shape(64, 64, 64): 1e-5, Shape(512, 512, 512): 1e-3})
    return break_even._Measured(BreakEven(line, line), 1)


def test_what_is_made_is_for_its_owner_alone(cache):
    before = os.umask(0)
    try:
        assert quiet(lambda: use(cache)) == ({}, [], None)
        place = make(cache)
        place.begin(CANDIDATE)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (cache, *cache.rglob("*"))}
        place.end(CANDIDATE)
    finally:
        os.umask(before)
    (program,) = (name for name in modes if name.endswith(".bin"))
    (alive,) = (name for name in modes if name.endswith(".alive"))
    assert {name for name, mode in modes.items() if mode == 0o700} == {"cache", "programs"}
    assert {name for name, mode in modes.items() if mode == 0o600} == {
        "0123.v4.json", "0123.state.v4.json", "0123.lock", "0123.gemm.s.searching", program, alive,
    }  # fmt: skip
    assert len(modes) == 8, "there is nothing else"


def test_what_is_kept_is_found_again(cache):
    use(cache)
    entries, _, binary = quiet(lambda: use(cache))
    assert set(entries) == {"gemm.d"}
    assert binary == b"binary"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_may_write_is_left_alone(mode, own):
    use(own)
    own.chmod(mode)
    (own / "0123.v4.json").write_text(json.dumps(PLANTED))
    before = listing(own)
    (message,) = heard(lambda: [use(own) for _ in range(3)])
    assert f"{mode:03o}" in message
    assert str(own) in message
    assert "chmod 700" in message
    assert "CLGEMM_CACHE_DIR" in message
    assert use(own) == ({}, [], None)
    assert listing(own) == before
    own.chmod(0o700)
    assert set(quiet(lambda: use(own))[0]) == {"gemm.s"}, "put right, it is used"


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_programs_that_others_may_write_are_left_alone(mode, own):
    programs = Binaries(own / "programs", "print")
    programs.save("text", b"binary")
    (own / "programs").chmod(mode)
    assert len(heard(lambda: [programs.load("text"), programs.save("more", b"binary")])) == 1
    assert programs.load("text") is None
    assert len(listing(own / "programs")) == 1


def test_a_link_inside_leads_nowhere(own, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    Binaries(elsewhere, "print").save("text", b"binary")
    (own / "programs").symlink_to(elsewhere)
    programs = Binaries(own / "programs", "print")
    assert len(heard(lambda: [programs.load("text"), programs.save("more", b"binary")])) == 1
    assert programs.load("text") is None
    assert len(listing(elsewhere)) == 1


def test_the_user_may_name_a_link(cache, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "real")
    quiet(lambda: use(cache))
    assert set(make(tmp_path / "real").read().entries) == {"gemm.d"}
    assert set(quiet(lambda: use(cache))[0]) == {"gemm.d"}


@as_root
def test_nobody_else_s_link_is_followed(cache, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "real")
    os.chown(cache, NOBODY, -1, follow_symlinks=False)
    (message,) = heard(lambda: use(cache))
    assert str(NOBODY) in message
    assert listing(tmp_path / "real") == {}


@as_root
def test_a_directory_of_somebody_else_is_left_alone(own):
    use(own)
    os.chown(own, NOBODY, -1)
    before = listing(own)
    (message,) = heard(lambda: [use(own) for _ in range(2)])
    assert f"belongs to user {NOBODY}" in message
    assert use(own) == ({}, [], None)
    assert listing(own) == before


def write_to(path):
    path.chmod(0o606)


def give_away(path):
    os.chown(path, NOBODY, -1)


@pytest.mark.parametrize("spoil", [write_to, pytest.param(give_away, marks=as_root)])
def test_a_program_that_others_may_have_written_is_not_loaded(spoil, own):
    programs = Binaries(own / "programs", "print")
    programs.save("text", b"binary")
    (path,) = (own / "programs").iterdir()
    spoil(path)
    assert quiet(lambda: programs.load("text")) is None
    programs.save("text", b"binary")
    assert programs.load("text") == b"binary", "it is replaced by one of our own"


def link(path):
    kept = path.with_name("kept")
    path.rename(kept)
    path.symlink_to(kept)


def fifo(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [link, fifo])
def test_what_is_no_file_is_not_read(spoil, own):
    place, programs = make(own), Binaries(own / "programs", "print")
    place.write("gemm.s", ENTRY)
    programs.save("text", b"binary")
    (program,) = (own / "programs").iterdir()
    for path in (place.path, program):
        spoil(path)
    assert len(heard(lambda: [place.read(), place.read(), programs.load("text")])) == 1
    assert place.read().entries == {}
    assert programs.load("text") is None
    assert read_cached(place.path).why
    assert place.write("gemm.d", ENTRY)
    assert set(quiet(place.read).entries) == {"gemm.d"}


def test_a_file_that_is_too_large_is_not_read(own):
    programs = Binaries(own / "programs", "print")
    programs.save("text", b"binary")
    (program,) = (own / "programs").iterdir()
    os.truncate(program, 1 << 40)
    assert quiet(lambda: programs.load("text")) is None


@pytest.mark.parametrize("name", ["0123.lock", "0123.gemm.s.searching"])
def test_a_planted_link_makes_and_empties_no_file(name, own, victim, tmp_path):
    (own / name).symlink_to(victim)
    heard(lambda: use(own))
    assert victim.read_text() == "precious"
    (own / name).unlink()
    (own / name).symlink_to(tmp_path / "new")
    heard(lambda: use(own))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("plant", [os.link, os.symlink])
def test_a_lock_is_nothing_but_a_lock(plant, own, victim):
    plant(victim, own / "lock")
    with locks.turn(own / "lock", 0, lambda: None) as reason:
        assert reason == "", "each process works on its own"
    with pytest.raises(OSError), locks.FileLock(own / "lock") as lock:  # noqa: PT011 - any will do
        lock.write("")
    assert victim.read_text() == "precious"


def test_what_failed_to_be_written_leaves_nothing(own, monkeypatch):
    def full_disk(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files.os, "replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        private_files.write(own / "0123.json", b"{}")
    assert list(own.iterdir()) == []


def test_a_folder_for_children_s_programs_is_as_good(cache):
    with tempfile.TemporaryDirectory() as folder:
        programs = Binaries(Path(folder), "print")
        quiet(lambda: programs.save("text", b"binary"))
        assert programs.load("text") == b"binary"
    assert not cache.exists()


def test_the_command_line_says_why_a_directory_is_not_used(own, capsys):
    use(own)
    own.chmod(0o777)
    before = listing(own)
    heard(lambda: [cache_command.print_list(), cache_command.clear("")])
    assert capsys.readouterr().out.count("not used: everybody may write to it (mode 777)") == 2
    assert listing(own) == before
    own.chmod(0o700)
    assert "not used" not in cache_command.cache_directory()


def test_where_neither_owner_nor_mode_is_known_a_folder_is_as_good_as_its_place(own, monkeypatch):
    own.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")
    use(own)
    assert set(quiet(lambda: use(own))[0]) == {"gemm.d"}


PRODUCT = """
import json, os, sys, warnings
import numpy as np
import clgemm

folder, user = sys.argv[1], int(sys.argv[2])
x = np.asfortranarray(np.arange(300 * 300, dtype=np.float32).reshape(300, 300) % 7)
if user >= 0:
    import scipy.linalg.blas  # what products take: the user may not read Python's own files
    clgemm.dgemm(1.0, x, x)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
os.environ["CLGEMM_CACHE_DIR"] = folder
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert np.array_equal(clgemm.sgemm(1.0, x, x), x @ x)
        assert np.array_equal(clgemm.sgemm(1.0, x[:9], x), x[:9] @ x)
print(json.dumps([str(w.message) for w in caught if folder in str(w.message)]))
"""


def warned_by_products(folder, before, device, user=-1):
    run = run_python(
        PRODUCT, folder, user, CLGEMM_TUNE="auto", CLGEMM_TUNE_SECONDS=1,
        CLGEMM_ROUTE="auto", CLGEMM_DEVICE=device.traits.platform, CLGEMM_CACHE_DIR=before,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_products_are_right_beside_a_directory_that_others_may_write(device, own, tmp_path):
    own.chmod(0o777)
    (message,) = warned_by_products(own, tmp_path / "before", device)
    assert message.count("is not used") == 1
    assert message.count("everybody") == 1
    assert list(own.iterdir()) == []


@pytest.mark.slow
def test_products_are_right_beside_a_directory_that_may_not_be_entered(device, tmp_path):
    user = NOBODY if os.geteuid() == 0 else -1
    if user >= 0 and device.traits.platform.startswith("Portable"):
        pytest.skip("PoCL builds nothing more once root has become somebody else")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "cache"
        folder.mkdir()
        if user >= 0:
            for path in (made, folder):
                os.chown(path, user, -1)
        folder.chmod(0)
        (message,) = warned_by_products(folder, tmp_path / "before", device, user)
        assert message.count("is not used") == message.count("may not be entered") == 1
        folder.chmod(0o700)
        assert list(folder.iterdir()) == []


def test_stored_parameters_of_others_are_not_used(device, own):
    """Neither they nor the programs that lie beside them."""
    traits = device.traits
    place = Store(own, traits.fingerprint(), traits.identity)
    place.write("gemm.s", entry_with())
    assert set(place.read().entries) == {"gemm.s"}
    own.chmod(0o777)
    (message,) = heard(place.read)
    assert str(own) in message
    kept = kept_for(traits)
    if kept is not None:
        kept.save("text", b"binary")
        assert kept.load("text") is None
    assert not (own / "programs").exists()
