"""``python -m clgemm cache``: list, show, clear, export and import tuned parameters."""

from __future__ import annotations

import fnmatch
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm import settings
from clgemm.errors import TuningError
from clgemm.runtime import devices, private_files, registry
from clgemm.runtime.binaries import FOLDER
from clgemm.traits import fingerprint_of
from clgemm.tuning.outcome import config_from_json
from clgemm.tuning.store import lookup, similar
from clgemm.tuning.store.entries import NAMES, TRIAL, keep_readable, read_variants, why_outdated
from clgemm.tuning.store.files import (
    SCHEMA,
    Contents,
    fingerprint_in,
    list_files,
    read_cached,
    read_file,
)
from clgemm.tuning.store.store import Store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from clgemm.traits import DeviceTraits
    from clgemm.tuning.cost_model import Variant
    from clgemm.tuning.shapes import Shape

FAILURES_SHOWN = 20
FACTS = frozenset({
    "platform", "platform_version", "vendor", "name", "driver_version", "compute_units",
    "simd_bytes", "processor",
})  # fmt: skip
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
        driver = self.found.head["identity"].get("driver_version", "?")
        return f"{similar.describe(self.found.head)}, driver {driver}"

    def matches(self, wish: str) -> bool:
        """Tell whether a user means this file."""
        facts = self.found.head.get("identity", {}).values()
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
    every = [Cached(path, read_cached(path)) for path in list_files(settings.cache_dir())]
    meant = [c for c in every if c.matches(wish)] if wish else every
    if every and not meant:
        names = "; ".join(f"{c.device} ({c.path.name})" for c in every)
        raise TuningError(f"--device {wish!r} names none of what is in the cache: {names}")
    return meant


def _here() -> dict[str, DeviceTraits]:
    """Give the traits of this machine's devices by fingerprint."""
    return {f.traits.fingerprint(): f.traits for f in devices.find()}


def cache_directory() -> str:
    """Name the cache directory, and say why it is not used if that is so."""
    folder = settings.cache_dir()
    distrust, fault = private_files.why_not_trusted(folder), private_files.why_not_written(folder)
    if distrust:
        return f"cache directory: {folder} (not used: {distrust})"
    return f"cache directory: {folder}{f' (nothing is kept there: {fault})' if fault else ''}"


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
        for file in similar.find_shipped(traits):
            entries = " ".join(file.found.entries)
            print(f"\n{file.name} ({file.similarity.words}: {traits.describe()}): {entries}")
    return 0


def _print_entries(c: Cached, here: Mapping[str, DeviceTraits]) -> None:
    print(f"\n{c.device}\n  {c.path.name}{f': {c.found.why}' if c.found.why else ''}")
    for name, entry in c.found.entries.items():
        found = f"found {entry['tuned'] or 'at an unknown time'}"
        version = f"clgemm {entry['clgemm'] or '?'}"
        print(f"  {name:10} {found}, {version}: {usage(c, name, here)}")
    for name, why in c.found.bad.items():
        print(f"  {name:10} not used: {why}")


def usage(c: Cached, name: str, here: Mapping[str, DeviceTraits]) -> str:
    """Say whether an entry of a file in the cache directory is used here, or why not."""
    traits = here.get(fingerprint_in(c.path))
    if traits is None:
        for device in here.values():
            if similar.compare(device, c.found.head) is similar.Similarity.DEVICE:
                return f"not used: {similar.describe_change(device, c.found.head)}"
        return "not used: no such device here"
    precision = NAMES.get(name)
    if precision is None:
        return "not used: no such routine or precision"
    if name != lookup.entry_name(precision):
        return f"used {'with' if name.endswith('-fma') else 'without'} CLGEMM_FP32=fma"
    why = lookup.why_unused(lookup.store_for(traits), traits, precision)
    return f"not used: {why}" if why else "used"


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
    trials = keep_readable(entry["trials"], TRIAL)
    tried = f"trials: {len(trials)}, in " if trials else "found in "
    print(f"\n  {name}: {tried}{entry['search_seconds']} s")
    for line in table(NAMES[name].code if name in NAMES else "s", *read_variants(entry)):
        print(f"    {line}")
    failures = [t for t in trials if t["status"] != "ok"]
    for trial in failures[:FAILURES_SHOWN]:
        detail = trial["detail"].strip().splitlines() or [""]
        print(f"    {trial['status']}: {config_from_json(trial['config'])}: {detail[0]}")
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


def clear(wish: str) -> int:
    """Remove parameters; say what was removed."""
    folder, meant = settings.cache_dir(), cached(wish)
    for c in meant:
        private_files.remove(c.path)
        print(f"removed {c.path.name}: {c.device}: {' '.join(c.found.entries) or 'no entries'}")
    stems = [fingerprint_in(c.path) for c in meant] if wish else ["[0-9a-f]" * 16]
    others = sum(_remove(folder, f"{stem}.*") for stem in stems)
    if others:
        print(f"removed what lay beside them (state, locks, files set aside): {others}")
    programs = 0 if wish else sum(_remove(folder / FOLDER, f"*.{x}") for x in ("bin", "tmp"))
    if programs:
        print(f"removed compiled programs: {programs}")
    with suppress(OSError):  # it is not there, or not empty
        (folder / FOLDER).rmdir()
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
        meant = [c for c in meant if fingerprint_in(c.path) == device.traits.fingerprint()]
    if not meant:
        of = f" of {device}" if device is not None else ""
        raise TuningError(
            f"there are no parameters{of} in {settings.cache_dir()}; `python -m clgemm tune` finds "
            "them, `cache list` says whose there are"
        )
    if len(meant) > 1:
        names = "; ".join(f"{c.device} ({c.path.name})" for c in meant)
        raise TuningError(f"--device {wish!r} names several, say which: {names}")
    head, entries = meant[0].found.head, _for_others(meant[0].found, is_current=True)
    if not entries:
        raise TuningError(
            f"{meant[0].path} has nothing that was found with the kernels of this version; "
            "`python -m clgemm tune` searches anew"
        )
    path = to / export_name(head) if to.is_dir() else to
    text = json.dumps({"schema": SCHEMA, **head, "entries": entries}, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")
    print(f"wrote {path}: {meant[0].device}: {' '.join(entries)}")
    print(f"to use it elsewhere: python -m clgemm cache import {path.name}")
    return 0


def _for_others(found: Contents, *, is_current: bool) -> dict[str, dict[str, Any]]:
    """Return what is good for other processes and machines: entries without their trials."""
    return {
        name: {key: value for key, value in entry.items() if key != "trials"}
        for name, entry in found.entries.items()
        if not is_current or not why_outdated(entry)
    }


def export_name(head: Mapping[str, Mapping[str, Any]]) -> str:
    """Name a file after its device: letters, digits and hyphens."""
    facts = (str(head["identity"][name]) for name in ("platform", "name", "processor"))
    return "-".join(re.findall(r"[a-z0-9]+", " ".join(facts).lower())) + ".json"


def import_files(paths: list[Path]) -> int:
    """Merge exported files into the cache directory; say what became of each entry.

    An entry replaces one of the same name.
    """
    here, good = _here(), True
    every = [(path, read_exported(path)) for path in paths]  # all or nothing
    for path, found in every:
        identity = found.head["identity"]
        store = Store(
            settings.cache_dir(), fingerprint_of(identity), identity, found.head["architecture"]
        )
        print(f"{path}: {Cached(path, found).device}, into {store.path}")
        for name, entry in _for_others(found, is_current=False).items():
            written = store.write(name, entry)
            good &= written
            if written:
                print(f"  {name:10} {usage(Cached(store.path, store.read()), name, here)}")
    return 0 if good else 1


def read_exported(path: Path) -> Contents:
    """Read a file that `export` wrote.

    Raises
    ------
    TuningError
        Says what is wrong with the file, where in it, and what to do.
    """
    found = read_file(path)
    wrong = found.why or next((f"{name}: {why}" for name, why in found.bad.items()), "")
    if not wrong and set(found.head["identity"]) != FACTS:
        wrong = f"its identity does not name a device by {', '.join(sorted(FACTS))}"
    if not wrong and not found.head["architecture"]:
        wrong = "it names no architecture"
    unknown = [name for name in found.entries if name not in NAMES]
    if not wrong and (unknown or not found.entries):
        wrong = f"{unknown[0]!r} is none of {', '.join(NAMES)}" if unknown else "it has no entries"
    empty = [name for name, entry in found.entries.items() if not entry["variants"]]
    if not wrong and empty:
        wrong = f"{empty[0]} has no variants"
    if wrong:
        raise TuningError(f"{path}: {wrong}; take a file that `clgemm cache export` wrote")
    return found
