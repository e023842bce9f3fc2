"""Environment variables: what each value means, and that a bad one is said once and ignored."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from unittest.mock import Mock

import platformdirs
import pytest
from helpers import heard, quiet

from clgemm import settings
from clgemm.runtime import private_files

NAMES = (
    "DEVICE", "TUNE", "TUNE_SECONDS", "ROUTE", "CACHE_DIR", "STAGING_MB", "DEVICE_MEMORY_MB",
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable set, and nothing warned about yet."""
    for name in NAMES:
        monkeypatch.delenv(f"CLGEMM_{name}", raising=False)
    settings._warn_once.cache_clear()
    settings._KNOWN_MODES.clear()


def read_route():
    return settings.modes().route


def test_defaults():
    assert quiet(settings.device) == ""
    assert quiet(settings.tune_seconds) == settings.DEFAULT_TUNE_SECONDS == 5
    assert quiet(settings.tuning_enabled) is True
    assert quiet(settings.tune_mode) == "auto"
    assert quiet(read_route) == "auto"
    assert quiet(settings.staging_bytes) == settings.DEFAULT_STAGING_MB * 2**20
    assert quiet(settings.device_memory_bytes) is None
    assert quiet(settings.cache_dir) == Path(platformdirs.user_cache_dir("clgemm", appauthor=False))


@pytest.mark.parametrize("known", ["raises", "~/.cache/clgemm"])
def test_a_user_without_a_home_has_a_cache_directory_among_temporary_files(known, monkeypatch):
    """As in a container whose user the system does not know; old platformdirs did not raise."""

    def place(*_, **__):
        if known == "raises":
            raise RuntimeError("could not determine the home directory")
        return known

    monkeypatch.setattr(platformdirs, "user_cache_dir", place)
    found = quiet(settings.cache_dir)
    assert found.is_absolute()
    assert found.parent == Path(tempfile.gettempdir())
    monkeypatch.setattr(tempfile, "gettempdir", Mock(side_effect=FileNotFoundError))
    assert private_files.names(quiet(settings.cache_dir)) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_value_is_the_default(name, monkeypatch):
    read = {
        "DEVICE": settings.device,
        "TUNE": settings.tuning_enabled,
        "TUNE_SECONDS": settings.tune_seconds,
        "ROUTE": read_route,
        "CACHE_DIR": settings.cache_dir,
        "STAGING_MB": settings.staging_bytes,
        "DEVICE_MEMORY_MB": settings.device_memory_bytes,
    }[name]
    default = read()
    monkeypatch.setenv(f"CLGEMM_{name}", "")
    assert quiet(read) == default


@pytest.mark.parametrize(
    ("name", "text", "read", "want"),
    [
        ("DEVICE", " pocl:0 ", settings.device, "pocl:0"),
        ("TUNE", "off", settings.tuning_enabled, False),
        ("TUNE", " OFF ", settings.tuning_enabled, False),
        ("TUNE", "0", settings.tuning_enabled, False),
        ("TUNE", "no", settings.tuning_enabled, False),
        ("TUNE", "false", settings.tuning_enabled, False),
        ("TUNE", "auto", settings.tuning_enabled, True),
        ("TUNE", "full", settings.tuning_enabled, True),
        ("TUNE", "full", settings.tune_mode, "full"),
        ("TUNE", "Quick", settings.tune_mode, "quick"),
        ("TUNE", "no", settings.tune_mode, "off"),
        ("TUNE_SECONDS", "0.25", settings.tune_seconds, 0.25),
        ("TUNE_SECONDS", " 1e2 ", settings.tune_seconds, 100.0),
        ("ROUTE", "host", read_route, "host"),
        ("ROUTE", "Device", read_route, "device"),
        ("ROUTE", "auto", read_route, "auto"),
        ("CACHE_DIR", "/some/where", settings.cache_dir, Path("/some/where")),
        ("STAGING_MB", " 12 ", settings.staging_bytes, 12 << 20),
        ("STAGING_MB", "0", settings.staging_bytes, 0),
        ("DEVICE_MEMORY_MB", "0.5", settings.device_memory_bytes, 1 << 19),
    ],
)
def test_values(name, text, read, want, monkeypatch):
    monkeypatch.setenv(f"CLGEMM_{name}", text)
    assert quiet(read) == want


@pytest.mark.parametrize(
    ("name", "text", "read", "want"),
    [
        ("TUNE", "sometimes", settings.tuning_enabled, True),
        ("TUNE", "sometimes", settings.tune_mode, "auto"),
        ("ROUTE", "gpu", read_route, "auto"),
        *(
            ("TUNE_SECONDS", text, settings.tune_seconds, settings.DEFAULT_TUNE_SECONDS)
            for text in ("soon", "0", "-1", "nan", "inf", "5 s")
        ),
        ("STAGING_MB", "-1", settings.staging_bytes, int(settings.DEFAULT_STAGING_MB * 2**20)),
        *(
            ("DEVICE_MEMORY_MB", text, settings.device_memory_bytes, None)
            for text in ("2 GB", "-1", "nan", "inf")
        ),
    ],
)
def test_a_bad_value_warns_once_and_is_ignored(name, text, read, want, monkeypatch):
    monkeypatch.setenv(f"CLGEMM_{name}", text)
    results = []
    (message,) = heard(lambda: results.append(read()))
    assert results == [want]
    assert f"CLGEMM_{name}" in message
    assert repr(text) in message
    assert quiet(read) == want


def test_a_full_search_may_take_longer(monkeypatch):
    monkeypatch.setenv("CLGEMM_TUNE_SECONDS", "3")
    for mode, seconds in (("auto", 3), ("quick", 3), ("full", 3 * settings.FULL_FACTOR)):
        monkeypatch.setenv("CLGEMM_TUNE", mode)
        assert settings.search_seconds() == seconds


def test_two_bad_values_are_two_warnings(monkeypatch):
    def read(text):
        monkeypatch.setenv("CLGEMM_ROUTE", text)
        return settings.modes().route

    assert len(heard(lambda: [read(text) for text in ("gpu", "cpu", "gpu")])) == 2


def test_variables_are_read_at_each_use(monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    assert settings.modes().route == "host"
    monkeypatch.setenv("CLGEMM_ROUTE", "device")
    assert settings.modes().route == "device"


def test_the_route_is_read_at_each_call(monkeypatch):
    """Whether it was set when clgemm was imported or not."""
    monkeypatch.delenv("CLGEMM_ROUTE", raising=False)
    assert settings.modes().route == "auto"
    for text, meant in [("host", "host"), (" Device ", "device"), ("", "auto")]:
        monkeypatch.setenv("CLGEMM_ROUTE", text)
        assert settings.modes().route == meant
    monkeypatch.delenv("CLGEMM_ROUTE")
    assert settings.modes().route == "auto"


def test_modes_change_in_one_thread_and_end_with_their_block(monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "host")
    seen = []
    with settings.using(fp32="fma", route="device") as modes:
        assert settings.modes() == modes == settings.Modes("device", "fma")
        with settings.using(route="auto"):
            assert settings.modes() == settings.Modes("auto", "fma")
        thread = threading.Thread(target=lambda: seen.append(settings.modes()))
        thread.start()
        thread.join()
    assert seen == [settings.Modes("host", "auto")]
    assert settings.modes() == seen[0]
    with pytest.raises(ValueError, match="fp32: auto, fma"), settings.using(fp32="half"):
        pass
    with pytest.raises(ValueError, match="speed"), settings.using(speed="high"):
        pass
