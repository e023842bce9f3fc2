"""Which configuration for this problem?  Memory, the user's file, a shipped file, or a search.

The first call on a device and precision that nobody tuned yet searches for a few seconds; the
result is stored and the next process reads it.
"""

from __future__ import annotations

import logging
import statistics
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clgemm import settings
from clgemm.errors import TuningError
from clgemm.kernels import BY_NAME, FAMILIES, source
from clgemm.problem import PRECISIONS, SIZE_CLASSES
from clgemm.runtime import devices
from clgemm.tuning.outcome import Outcome, config_from_json
from clgemm.tuning.progress import Progress
from clgemm.tuning.search import Search
from clgemm.tuning.store import Store
from clgemm.tuning.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.kernels.family import Config, KernelFamily
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.session import Session
    from clgemm.traits import DeviceTraits

log = logging.getLogger(__name__)

HANG_SECONDS = 30.0  # a candidate that needs longer to build, check and time is of no use
SOME_SECONDS = 0.1  # what a trial takes at least
RUNNERS_UP = 5  # how far down the ranking a winner is looked for


@dataclass(frozen=True)
class Tuned:
    """The parameters in use for one precision."""

    choices: Mapping[str, Config]
    """By size class."""
    origin: str
    """Where they come from, in words."""


def config_for(session: Session, problem: Gemm) -> Config:
    """Return the configuration that a problem runs with; the first call may search."""
    tuned = session.tuned.get(problem.precision) or tuned_for(session, problem.precision)
    config = tuned.choices[problem.size_class]
    if config.family not in session.refused and BY_NAME[config.family].accepts(problem):
        return config
    traits, precision = session.traits, PRECISIONS[problem.precision]
    families = (*competitors(traits, precision), BY_NAME["direct"])  # direct takes anything
    family = next(f for f in families if f.name not in session.refused and f.accepts(problem))
    return family.default(traits, precision)


def tuned_for(session: Session, code: str) -> Tuned:
    """Return the parameters of one precision: from memory, a file or a search."""
    with session.tuning:
        if code not in session.tuned:
            session.tuned[code] = _load_or_search(session, PRECISIONS[code])
        return session.tuned[code]


def competitors(traits: DeviceTraits, precision: Precision) -> list[KernelFamily]:
    """List the families that may win on a device."""
    return [f for f in FAMILIES if f.supports(traits, precision) and f.worth_tuning(traits)]


def store_for(traits: DeviceTraits) -> Store:
    """Return the store of a device's parameters."""
    return Store(settings.cache_dir(), traits.fingerprint(), traits.identity, source.package_hash())


def defaults(traits: DeviceTraits, precision: Precision, why: str) -> Tuned:
    """Take the first family's default for every size class."""
    families = competitors(traits, precision) or [BY_NAME["direct"]]
    config = families[0].default(traits, precision)
    return Tuned(dict.fromkeys(SIZE_CLASSES, config), f"defaults of {config.family} ({why})")


def _load_or_search(session: Session, precision: Precision) -> Tuned:
    traits = session.traits
    if not settings.tuning_enabled():
        return defaults(traits, precision, "CLGEMM_TUNE=off")
    if not competitors(traits, precision):
        return defaults(traits, precision, "no other family fits this device")
    store = store_for(traits)
    stored = stored_parameters(store, traits, precision)
    if stored is not None:
        return stored
    try:
        return _search(session, precision, store)
    except (TuningError, OSError) as error:
        log.warning("tuning %sgemm on %s failed: %s", precision.code, traits.describe(), error)
        return defaults(traits, precision, f"tuning failed: {error}")


def stored_parameters(store: Store, traits: DeviceTraits, precision: Precision) -> Tuned | None:
    """Return what the user's file, or one shipped with clgemm, has for a precision."""
    shipped = Path(str(resources.files("clgemm.tuning.shipped") / store.path.name))
    for entries, origin in (
        (store.read(), str(store.path)),
        (store.read_shipped(shipped), f"shipped with clgemm: {shipped.name}"),
    ):
        choices = _choices(entries.get(_entry_name(precision)), traits, precision)
        if choices is not None:
            return Tuned(choices, origin)
    return None


def _entry_name(precision: Precision) -> str:
    """Name the entry of a precision; with ``CLGEMM_FP32=fma`` other families compete in s and c."""
    fma = precision.real == "float" and not settings.splits_fp32()
    return f"{precision.code}-fma" if fma else precision.code


def _choices(entry: Any, traits: DeviceTraits, precision: Precision) -> dict[str, Config] | None:
    """Read an entry's choices; None unless each is a configuration that this version can run."""
    choices = {}
    for name in SIZE_CLASSES:
        try:
            config = _config(entry["choices"][name], traits, precision)
        except (KeyError, TypeError):
            return None
        if config is None:
            return None
        choices[name] = config
    return choices


def _config(data: Any, traits: DeviceTraits, precision: Precision) -> Config | None:
    """Read a stored configuration; None unless it is a point of a family's space that runs here."""
    try:
        config = config_from_json(data)
        family = BY_NAME[config.family]
        space = family.space(traits, precision)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None
    inside = all(value in space.get(name, ()) for name, value in config.params)
    good = inside and family.supports(traits, precision)
    return config if good and family.is_valid(traits, precision, config) else None


def _search(session: Session, precision: Precision, store: Store) -> Tuned:
    traits, budget = session.traits, settings.tune_seconds()
    search = Search(competitors(traits, precision), traits, precision)
    outcomes: list[Outcome] = []
    for killer in store.interrupted():
        config = _config(killer, traits, precision)
        if config is not None:
            search.skip(config)
            outcomes.append(Outcome(config, "crash", "a tuning run was killed while it was tried"))
    log.info(
        "tuning %sgemm on %s for at most %g s; later processes read the result from %s",
        precision.code, traits.describe(), budget, store.path,
    )  # fmt: skip
    start = time.monotonic()
    index = [f.traits for f in devices.find()].index(traits)
    with (
        Worker(index, traits.fingerprint(), precision.code) as worker,
        Progress(precision.code, traits.describe(), budget) as progress,
    ):
        durations = [SOME_SECONDS]
        # A trial's time for each winner is kept for its full check, which builds more variants.
        while not outcomes or (
            time.monotonic() - start + len(SIZE_CLASSES) * statistics.median(durations) < budget
        ):
            began = time.monotonic()
            config_or_none = search.propose()
            if config_or_none is None:
                break
            outcome = _attempt(worker, store, config_or_none, search.best(), every=False)
            search.report(outcome)
            outcomes.append(outcome)
            if len(outcomes) > 1:  # the first one also starts the child
                durations.append(time.monotonic() - began)
            progress.show(outcomes, search.best())
        choices = _winners(worker, store, search, outcomes)
    entry = _entry(choices, outcomes, time.monotonic() - start)
    written = store.write(_entry_name(precision), entry)
    origin = str(store.path) if written else "found by this process, not stored"
    return Tuned({name: outcome.config for name, outcome in choices.items()}, f"tuned: {origin}")


def _attempt(
    worker: Worker, store: Store, config: Config, best: Mapping[str, float], *, every: bool
) -> Outcome:
    candidate = {"family": config.family, "params": dict(config.params)}
    store.begin(candidate)
    try:
        outcome = worker.attempt(config, best, every=every, limit=HANG_SECONDS)
    finally:  # whoever interrupts a search from the keyboard does not blame the candidate
        store.end(candidate)
    if not outcome.ok:
        log.debug("candidate %s: %s: %s", config, outcome.status, outcome.detail)
    return outcome


def _winners(
    worker: Worker, store: Store, search: Search, outcomes: list[Outcome]
) -> dict[str, Outcome]:
    """Take the fastest candidate of each size class that also passes the full check."""
    verdicts: dict[Config, bool] = {}
    choices: dict[str, Outcome] = {}
    for name in SIZE_CLASSES:
        for outcome in search.ranking(name)[:RUNNERS_UP]:
            config = outcome.config
            if config not in verdicts:
                verdict = _attempt(worker, store, config, {}, every=True)
                verdicts[config] = verdict.ok
                if not verdict.ok:
                    outcomes.append(verdict)
            if verdicts[config]:
                choices[name] = outcome
                break
        else:
            failures = "; ".join(f"{o.config}: {o.status}" for o in outcomes if not o.ok)
            raise TuningError(f"no candidate passed its checks ({failures or 'none was tried'})")
    return choices


def _entry(
    choices: Mapping[str, Outcome], outcomes: list[Outcome], seconds: float
) -> dict[str, Any]:
    return {
        "tuned": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "search_seconds": round(seconds, 2),
        "choices": {name: outcome.as_json()["config"] for name, outcome in choices.items()},
        "trials": [outcome.as_json() for outcome in outcomes],
    }
