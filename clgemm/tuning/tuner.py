"""Which configuration for this problem?  Memory, the user's file, a shipped file, or a search.

The first call on a device and precision that nobody tuned yet searches for a few seconds; the
result is stored and the next process reads it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.errors import TuningError
from clgemm.kernels import BY_NAME
from clgemm.problem import PRECISIONS
from clgemm.tuning import verification
from clgemm.tuning.results import Effort, Result
from clgemm.tuning.store.lookup import (
    Tuned,
    competitors,
    defaults,
    entry_name,
    starting_points,
    store_for,
    stored_parameters,
)

if TYPE_CHECKING:
    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Session
    from clgemm.tuning.store.store import Store

log = logging.getLogger(__name__)


def config_for(session: Session, problem: Gemm) -> Config:
    """Return the configuration that a problem runs with; the first call may search."""
    tuned = session.tuned.get(problem.precision) or tuned_for(session, problem.precision)
    config = tuned.model.choose(problem, session.refused)
    while config in tuned.unvetted:
        tuned = _vetted(session, PRECISIONS[problem.precision], tuned, config)
        config = tuned.model.choose(problem, session.refused)
    if config is not None:
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


def _vetted(session: Session, precision: Precision, tuned: Tuned, config: Config) -> Tuned:
    """Check a configuration from a file before its first use; without it go on with the others."""
    store = store_for(session.traits)
    with session.tuning:
        if config not in tuned.unvetted:  # another thread was quicker
            return session.tuned[precision.code]
        wrong = verification.fault(session, precision, store, config)
        tuned.unvetted.discard(config)
        if wrong:
            verification.warn(session, precision, tuned, wrong)
            tuned = tuned.without(config)
            if not tuned.configs:
                tuned = _searched(session, precision, store, stored=False)
            session.tuned[precision.code] = tuned
    return tuned


def _load_or_search(session: Session, precision: Precision) -> Tuned:
    traits = session.traits
    if not settings.tuning_enabled():
        return defaults(traits, precision, "CLGEMM_TUNE=off")
    if not competitors(traits, precision):
        return defaults(traits, precision, "no other family fits this device")
    store = store_for(traits)
    stored = stored_parameters(store, traits, precision)
    return stored or _searched(session, precision, store, stored=True)


def _searched(session: Session, precision: Precision, store: Store, *, stored: bool) -> Tuned:
    """Search, or take what is `stored` meanwhile; defaults if neither works."""
    traits = session.traits
    try:
        return _search_in_turn(session, precision, store, stored=stored)
    except (TuningError, OSError) as error:
        log.warning("tuning %sgemm on %s failed: %s", precision.code, traits.describe(), error)
        return defaults(traits, precision, f"tuning failed: {error}")


def _search_in_turn(session: Session, precision: Precision, store: Store, *, stored: bool) -> Tuned:
    """Search, unless another process is at it: then wait for what it finds."""
    traits = session.traits

    def waiting(seconds: float) -> None:
        log.info(
            "another process is tuning %sgemm on %s; waiting for its result, at most %g s",
            precision.code, traits.describe(), seconds,
        )  # fmt: skip

    with store.turn(entry_name(precision), settings.search_seconds(), waiting) as refusal:
        found = stored_parameters(store, traits, precision) if stored else None
        if found is not None:
            return found
        if refusal:
            return defaults(traits, precision, f"not tuned: {refusal}")
        return _search(session, precision, store)


def _search(session: Session, precision: Precision, store: Store) -> Tuned:
    effort = Effort(settings.tune_mode(), settings.search_seconds())
    log.info(
        "tuning %sgemm on %s for at most %g s; later processes read the result from %s",
        precision.code, session.traits.describe(), effort.seconds, store.path,
    )  # fmt: skip
    return _store(store, precision, _campaign(session, precision, store, effort))


def tune(session: Session, code: str, effort: Effort) -> Result:
    """Search for one precision's parameters now, whatever is stored, and keep the result.

    Parameters
    ----------
    session : Session
        The device.
    code : str
        BLAS letter.
    effort : Effort
        How hard to search.

    Raises
    ------
    TuningError
        If no candidate passed its checks, or another process does not end its own search.
    """
    precision, store = PRECISIONS[code], store_for(session.traits)
    session.require(precision)
    with (
        session.tuning,
        store.turn(entry_name(precision), effort.seconds, lambda _seconds: None) as refusal,
    ):
        if refusal:
            raise TuningError(refusal)
        result = _campaign(session, precision, store, effort)
        session.tuned[code] = _store(store, precision, result)
    session.forget()
    return result


def _campaign(session: Session, precision: Precision, store: Store, effort: Effort) -> Result:
    from clgemm.tuning.search.search import Campaign  # noqa: PLC0415 - only a search needs all this

    first = starting_points(store, session.traits, precision)
    return Campaign(session.traits, precision, store, effort, first).run()


def _store(store: Store, precision: Precision, result: Result) -> Tuned:
    written = store.write(entry_name(precision), result.entry())
    if written:
        verification.remember(store, precision, (v.config for v in result.model.variants))
    origin = str(store.path) if written else "found by this process, not stored"
    return Tuned(result.model, f"tuned: {origin}")
