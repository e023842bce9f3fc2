"""Which configuration for this problem?  Memory, the user's file, a shipped file, or a search.

The first call on a device and precision that nobody tuned yet searches for a few seconds; the
result is stored and the next process reads it.
"""

from __future__ import annotations

import logging
import threading
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
    find_or_default,
    find_starting_points,
    find_stored,
    store_for,
)

if TYPE_CHECKING:
    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.store.store import Store

log = logging.getLogger(__name__)


class Parameters:
    """The parameters in use on one device, found when they are first needed.

    Parameters
    ----------
    device : Device
        The device.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tuned: dict[str, Tuned] = {}
        self._lock = threading.Lock()
        """Held while parameters are looked up or searched."""
        self.refused: set[str] = set()
        """Families that the driver's compiler refused."""

    def known(self, code: str) -> Tuned | None:
        """Return the parameters of a precision if they are known; finds out nothing."""
        return self._tuned.get(self._key(code))

    def stored(self, code: str) -> Tuned | None:
        """Return the parameters of a precision if they are known or stored; searches nothing."""
        known = self.known(code)
        if known is None and settings.tuning_enabled():
            with self._lock:
                known = self.known(code)
                if known is None:
                    traits, precision = self._device.traits, PRECISIONS[code]
                    known = find_or_default(
                        lambda: find_stored(store_for(traits), traits, precision),
                        lambda why: defaults(traits, precision, why),
                    )
                    if known is not None:
                        self.use(code, known)
        return known

    def use(self, code: str, tuned: Tuned) -> None:
        """Use these parameters from here on."""
        self._tuned[self._key(code)] = tuned

    @staticmethod
    def _key(code: str) -> str:
        return entry_name(PRECISIONS[code])

    def config_for(self, problem: Gemm) -> Config:
        """Return the configuration that a problem runs with; the first call may search."""

        def by_default(why: str) -> Config:
            code = problem.precision
            self.use(code, defaults(self._device.traits, PRECISIONS[code], why))
            return self._config_for(problem)

        return find_or_default(lambda: self._config_for(problem), by_default)

    def _config_for(self, problem: Gemm) -> Config:
        tuned = self.known(problem.precision) or self.of(problem.precision)
        config = tuned.model.choose(problem, self.refused)
        while config in tuned.unverified:
            tuned = self._verified(PRECISIONS[problem.precision], tuned, config)
            config = tuned.model.choose(problem, self.refused)
        if config is not None:
            return config
        traits, precision = self._device.traits, PRECISIONS[problem.precision]
        families = (*competitors(traits, precision), BY_NAME["direct"])  # direct takes anything
        family = next(f for f in families if f.name not in self.refused and f.accepts(problem))
        return family.default(traits, precision)

    def of(self, code: str) -> Tuned:
        """Return the parameters of one precision: from memory, a file or a search."""
        with self._lock:
            known = self.known(code)
            if known is None:
                known = _load_or_search(self._device, PRECISIONS[code])
                self.use(code, known)
            return known

    def _verified(self, precision: Precision, tuned: Tuned, config: Config) -> Tuned:
        """Verify a configuration from a file before its first use, or go on with the others."""
        store = store_for(self._device.traits)
        with self._lock:
            if config not in tuned.unverified:  # another thread was quicker
                return self.known(precision.code) or tuned
            wrong = verification.find_fault(self._device, precision, store, config)
            tuned.unverified.discard(config)
            if wrong:
                verification.warn(self._device, precision, tuned, wrong)
                tuned = tuned.without(config)
                if not tuned.configs:
                    tuned = _searched(self._device, precision, store, stored=False)
                self.use(precision.code, tuned)
        return tuned

    def tune(self, code: str, effort: Effort) -> Result:
        """Search for one precision's parameters now, whatever is stored, and keep the result.

        Parameters
        ----------
        code : str
            BLAS letter.
        effort : Effort
            How hard to search.

        Raises
        ------
        TuningError
            If no candidate passed its checks, or another process does not end its own search.
        """
        device, precision = self._device, PRECISIONS[code]
        store = store_for(device.traits)
        device.require(precision)
        with (
            self._lock,
            store.turn(entry_name(precision), effort.seconds, lambda _seconds: None) as refusal,
        ):
            if refusal:
                raise TuningError(refusal)
            result = _run_search(device, precision, store, effort)
            self.use(code, _store(store, precision, result))
        return result


def _load_or_search(device: Device, precision: Precision) -> Tuned:
    traits = device.traits
    if not settings.tuning_enabled():
        return defaults(traits, precision, "CLGEMM_TUNE=off")
    if not competitors(traits, precision):
        return defaults(traits, precision, "no other family fits this device")
    store = store_for(traits)
    stored = find_stored(store, traits, precision)
    return stored or _searched(device, precision, store, stored=True)


def _searched(device: Device, precision: Precision, store: Store, *, stored: bool) -> Tuned:
    """Search, or take what is `stored` meanwhile; defaults if neither works."""
    traits = device.traits
    try:
        return _search_in_turn(device, precision, store, stored=stored)
    except (TuningError, OSError) as error:
        log.warning("tuning %sgemm on %s failed: %s", precision.code, traits.describe(), error)
        return defaults(traits, precision, f"tuning failed: {error}")


def _search_in_turn(device: Device, precision: Precision, store: Store, *, stored: bool) -> Tuned:
    """Search, unless another process is at it: then wait for what it finds."""
    traits = device.traits

    def waiting(seconds: float) -> None:
        log.info(
            "another process is tuning %sgemm on %s; waiting for its result, at most %g s",
            precision.code, traits.describe(), seconds,
        )  # fmt: skip

    with store.turn(entry_name(precision), settings.search_seconds(), waiting) as refusal:
        found = find_stored(store, traits, precision) if stored else None
        if found is not None:
            return found
        if refusal:
            return defaults(traits, precision, f"not tuned: {refusal}")
        return _search(device, precision, store)


def _search(device: Device, precision: Precision, store: Store) -> Tuned:
    effort = Effort(settings.tune_mode(), settings.search_seconds())
    log.info(
        "tuning %sgemm on %s for at most %g s; later processes read the result from %s",
        precision.code, device.traits.describe(), effort.seconds, store.path,
    )  # fmt: skip
    return _store(store, precision, _run_search(device, precision, store, effort))


def _run_search(device: Device, precision: Precision, store: Store, effort: Effort) -> Result:
    from clgemm.tuning.search.search import Campaign  # noqa: PLC0415 - only a search needs all this

    first = find_starting_points(store, device.traits, precision)
    return Campaign(device.traits, precision, store, effort, first).run()


def _store(store: Store, precision: Precision, result: Result) -> Tuned:
    written = store.write(entry_name(precision), result.entry())
    if written:
        verification.remember(store, precision, (v.config for v in result.model.variants))
    origin = str(store.path) if written else "found by this process, not stored"
    return Tuned(result.model, f"tuned: {origin}")
