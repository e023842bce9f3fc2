"""``python -m clgemm cache``: list, show, clear, export and import tuned parameters."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm import settings
from clgemm.errors import TuningError
from clgemm.runtime import devices, private_files, registry
from clgemm.tuning.outcome import config_from_json
from clgemm.tuning.store import exchange, lookup, similar
from clgemm.tuning.store.entries import NOT_READABLE, variants_from_json
from clgemm.tuning.store.files import Contents, cached_contents, files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from clgemm.tuning.cost_model import Variant
    from clgemm.tuning.shapes import Shape

FAILURES_SHOWN = 20
DEVICE_HELP = "any part of the device's name, platform or file"


class Cached(NamedTuple):
    """A file of the cache directory."""

    path: Path
    found: Contents

    @property
    def device(self) -> str:
        """Name its device and driver."""
        if not self.found.head:
            return f"a file that cannot be read ({self.found.why or 'removed'})"
        identity = self.found.head.get("identity")
        driver = identity.get("driver_version") if isinstance(identity, dict) else "?"
        return f"{similar.described(self.found.head)}, driver {driver}"

    def matches(self, wish: str) -> bool:
        """Tell whether a user means this file."""
        identity = self.found.head.get("identity")
        facts = identity.values() if isinstance(identity, dict) else ()
        return wish.lower() in "\n".join([*map(str, facts), self.path.name]).lower()


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``cache`` and what it does to the command line."""
    cache = commands.add_parser("cache", help="tuned parameters: list, show, clear, export, import")
    actions = cache.add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="devices with parameters, and whether they are used")
    helps = {
        "show": "what was found: variants, times, failures",
        "clear": "remove parameters; without --device all of them, and compiled programs",
        "export": "write a file that others can import, or that can ship with clgemm",
    }
    for name, text in helps.items():
        action = actions.add_parser(name, help=text)
        action.add_argument("--device", default="", metavar="NAME", help=DEVICE_HELP)
        if name == "export":
            action.add_argument(
                "-o", "--output", type=Path, default=Path(), metavar="PATH",
                help="file, or folder for one named after the device; by default here",
            )  # fmt: skip
    taken = actions.add_parser("import", help="merge exported files into the cache directory")
    taken.add_argument("files", nargs="+", type=Path, metavar="FILE")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; return the exit status.

    Raises
    ------
    TuningError
        Says what cannot be done and why.
    """
    try:
        if arguments.action == "list":
            return print_list()
        if arguments.action == "import":
            return import_files(arguments.files)
        if arguments.action == "show":
            return show(arguments.device)
        if arguments.action == "clear":
            return clear(arguments.device)
        return export(arguments.device, arguments.output)
    except BrokenPipeError:
        raise  # it is about the output, not about the cache
    except OSError as error:
        raise TuningError(f"{error.filename or settings.cache_dir()}: {error.strerror}") from error


def cached(wish: str = "") -> list[Cached]:
    """List the files of the cache directory, those that match a wish.

    Raises
    ------
    TuningError
        If there are files and none of them is meant.
    """
    every = [Cached(path, cached_contents(path)) for path in files(settings.cache_dir())]
    meant = [c for c in every if c.matches(wish)] if wish else every
    if every and not meant:
        names = "; ".join(f"{c.device} ({c.path.name})" for c in every)
        raise TuningError(f"--device {wish!r} names none of what is in the cache: {names}")
    return meant


def _here() -> dict[str, Any]:
    """Give the traits of this machine's devices by fingerprint."""
    return {f.traits.fingerprint(): f.traits for f in devices.find()}


def cache_directory() -> str:
    """Name the cache directory, and say why it is not used if that is so."""
    why_not = private_files.why_not_trusted(settings.cache_dir())
    return f"cache directory: {settings.cache_dir()}{f' (not used: {why_not})' if why_not else ''}"


def print_list() -> int:
    """Print the devices that have parameters, and why what is not used is not."""
    print(cache_directory())
    if not settings.tuning_enabled():
        print("CLGEMM_TUNE=off: none of these is used")
    here, every = _here(), cached()
    for c in every:
        _print_entries(c, here)
    if not every:
        print("\nno parameters yet; the first call on a device searches for them")
    for traits in here.values():
        for kin in similar.shipped(traits):
            entries = " ".join(kin.found.entries)
            print(f"\n{kin.name} ({kin.kinship.words}: {traits.describe()}): {entries}")
    return 0


def _print_entries(c: Cached, here: Mapping[str, Any]) -> None:
    print(f"\n{c.device}\n  {c.path.name}{f': {c.found.why}' if c.found.why else ''}")
    for name, entry in c.found.entries.items():
        found = f"found {entry.get('tuned', 'at an unknown time')}"
        version = f"clgemm {entry.get('clgemm', '?')}"
        print(f"  {name:6} {found}, {version}: {lookup.usage(c.path, name, c.found, here)}")


def show(wish: str) -> int:
    """Print variants, how fast they are, and what failed."""
    here = _here()
    found = cached(wish)
    if not found:
        print(f"no parameters in {settings.cache_dir()}")
    for c in found:
        _print_entries(c, here)
        for name, entry in c.found.entries.items():
            _print_entry(name, entry)
    return 0


def _print_entry(name: str, entry: Mapping[str, Any]) -> None:
    trials = entry.get("trials")
    trials = [t for t in trials if isinstance(t, dict)] if isinstance(trials, list) else []
    tried = f"trials: {len(trials)}, in " if trials else "found in "
    print(f"\n  {name}: {tried}{entry.get('search_seconds', '?')} s")
    try:
        found, variants = variants_from_json(entry)
    except NOT_READABLE as error:
        print(f"    what was found cannot be read: {error!r}")
    else:
        for line in table(name[:1], found, variants):
            print(f"    {line}")
    failures = [t for t in trials if t.get("status") != "ok"]
    for trial in failures[:FAILURES_SHOWN]:
        detail = str(trial.get("detail", "")).strip().splitlines() or [""]
        print(f"    {trial.get('status')}: {_config(trial.get('config'))}: {detail[0]}")
    if len(failures) > FAILURES_SHOWN:
        print(f"    and {len(failures) - FAILURES_SHOWN} more failures")


def table(code: str, shapes: Mapping[str, Shape], variants: Sequence[Variant]) -> Iterator[str]:
    """Yield lines: the variants, and what each reached at the shapes it was timed with."""
    for number, variant in enumerate(variants, 1):
        yield f"{number}: {variant.config}"
    if any(variant.seconds for variant in variants):
        columns = "".join(f"{number:>9}" for number in range(1, len(variants) + 1))
        yield f"{'GFLOP/s':30}{columns}"
    for name, shape in shapes.items():
        times = [variant.seconds.get(name, 0) for variant in variants]
        if any(times):
            rates = (f"{shape.rate(code, x):9.0f}" if x else f"{'-':>9}" for x in times)
            yield f"{name:8}{shape!s:22}{''.join(rates)}"


def _config(config: Any) -> str:
    try:
        return str(config_from_json(config))
    except NOT_READABLE:
        return "?"


def clear(wish: str) -> int:
    """Remove parameters; say what was removed."""
    folder, meant = settings.cache_dir(), cached(wish)
    for c in meant:
        private_files.remove(c.path)
        print(f"removed {c.path.name}: {c.device}: {' '.join(c.found.entries) or 'no entries'}")
    stems = [c.path.stem for c in meant] if wish else ["[0-9a-f]" * 16]
    others = sum(_remove(folder, f"{stem}.*") for stem in stems)
    if others:
        print(f"removed what lay beside them (locks, journals, damaged files): {others}")
    programs = 0 if wish else _remove(folder / "programs", "*.bin")
    if programs:
        print(f"removed compiled programs: {programs}")
    if not meant and not others and not programs:
        print(f"nothing to remove; {cache_directory()}")
    return 0


def _remove(folder: Path, pattern: str) -> int:
    """Remove files; return how many."""
    every = fnmatch.filter(private_files.names(folder), pattern)
    for name in every:
        private_files.remove(folder / name)
    return len(every)


def export(wish: str, to: Path) -> int:
    """Write one device's parameters to a file; by default those of the device in use."""
    meant, device = cached(wish), None if wish else registry.current()
    if device is not None:
        meant = [c for c in meant if c.path.stem == device.traits.fingerprint()]
    if not meant:
        of = f" of {device}" if device is not None else ""
        raise TuningError(
            f"there are no parameters{of} in {settings.cache_dir()}; `python -m clgemm tune` finds "
            "them, `cache list` says whose there are"
        )
    if len(meant) > 1:
        names = "; ".join(f"{c.device} ({c.path.name})" for c in meant)
        raise TuningError(f"--device {wish!r} names several, say which: {names}")
    path, names_written = exchange.export(meant[0].path, to)
    print(f"wrote {path}: {meant[0].device}: {' '.join(names_written)}")
    print(f"to use it elsewhere: python -m clgemm cache import {path.name}")
    return 0


def import_files(paths: list[Path]) -> int:
    """Merge exported files into the cache directory; say what became of each entry."""
    here, good = _here(), True
    every = [(path, exchange.loaded(path)) for path in paths]  # all or nothing
    for path, found in every:
        place, written = exchange.take_up(found)
        print(f"{path}: {Cached(place, found).device}, into {place}")
        good &= len(written) == len(found.entries)
        now = cached_contents(place)
        for name in written:
            print(f"  {name:6} {lookup.usage(place, name, now, here)}")
    return 0 if good else 1
