"""Which configuration for this problem?  Memory, the user's file, a shipped file, or a search.

The first call on a device and precision that nobody tuned yet searches for a few seconds; the
result is stored and the next process reads it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from clgemm import settings
from clgemm.errors import NoKernelError, TuningError
from clgemm.kernels import BY_NAME, FAMILIES, LAST_RESORT
from clgemm.problem import ELEMENTS, PRECISIONS
from clgemm.runtime import ending
from clgemm.runtime.reentry import CheckedLock
from clgemm.tuning import verification
from clgemm.tuning.results import Effort, Result
from clgemm.tuning.store.lookup import (
    Tuned,
    competitors,
    defaults,
    defaults_of,
    entry_name,
    find_or_default,
    find_starting_points,
    find_stored,
    store_for,
    to_be_verified,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clgemm.kernels.family import Config, KernelSpec
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.store.store import Store

log = logging.getLogger(__name__)


class Parameters:
    """The parameters in use on one device, found when they are first needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tuned: dict[str, Tuned] = {}
        self._lock = CheckedLock()
        """Held while parameters are looked up or searched."""
        self.refused: set[str] = set()
        """Families that the driver's compiler refused, or whose defaults are wrong."""
        self.searched: set[str] = set()
        """Codes of precisions that this process has searched for."""
        self.reserved = 0.0
        """Seconds of a first call's budget that are not for the search."""

    def known(self, code: str) -> Tuned | None:
        """Return the parameters of a precision if they are known; finds out nothing.

        Other types have none: families claim them.
        """
        precision = PRECISIONS.get(code)
        return None if precision is None else self._tuned.get(entry_name(precision))

    def use(self, code: str, tuned: Tuned) -> None:
        """Use these parameters from here on."""
        self._tuned[entry_name(PRECISIONS[code])] = tuned

    def stored(self, code: str) -> Tuned | None:
        """Return the parameters of a precision if they are known or stored; searches nothing."""
        known = self.known(code)
        if known is None and settings.tuning_enabled():
            with self._lock():
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

    def of(self, code: str, problem: Gemm | None = None) -> Tuned:
        """Return the parameters of one precision: from memory, a file or a search.

        With the `problem` that a call waits for, its kernels are built beside a search.
        """
        with self._lock():
            known = self.known(code) or self._load_or_search(PRECISIONS[code], problem)
            self.use(code, known)
            return known

    def config_for(self, problem: Gemm) -> Config:
        """Return the configuration that a problem runs with; the first call may search."""

        def by_default(why: str) -> Config:
            code = problem.precision
            self.use(code, defaults(self._device.traits, PRECISIONS[code], why))
            return self._config_for(problem)

        return find_or_default(lambda: self._config_for(problem), by_default)

    def _config_for(self, problem: Gemm) -> Config:
        return self.claimed(problem) or self._chosen(problem)

    def claimed(self, problem: Gemm) -> Config | None:
        """Return the default of the first family that claims a problem; searches nothing."""
        traits, precision = self._device.traits, ELEMENTS[problem.precision]
        for family in FAMILIES:
            able = family.name not in self.refused and family.supports(traits, precision)
            if able and family.claims(traits, problem):
                return family.default(traits, precision)
        return None

    def _chosen(self, problem: Gemm) -> Config:
        if problem.precision not in PRECISIONS:
            raise NoKernelError(
                f"{self._device.traits.describe()} has no kernel for "
                f"{ELEMENTS[problem.precision].dtype}: NumPy's own matmul computes it"
            )
        tuned = self.known(problem.precision) or self.of(problem.precision, problem)
        config = tuned.model.choose(problem, self.refused)
        while config in tuned.unverified:
            tuned = self._verified(tuned, config, problem)
            config = tuned.model.choose(problem, self.refused)
        if config is not None:
            return config
        traits, precision = self._device.traits, PRECISIONS[problem.precision]
        families = (*competitors(traits, precision), LAST_RESORT)
        for family in families:
            if family.name not in self.refused and family.accepts(problem):
                return family.default(traits, precision)
        raise NoKernelError(
            f"{precision.code}gemm: no kernel computes right on {traits.describe()}, driver "
            f"{traits.driver_version}: set CLGEMM_DEVICE to another device, or CLGEMM_ROUTE=host"
        )

    def tune(self, code: str, effort: Effort) -> Result:
        """Search for one precision's parameters now, whatever is stored, and keep the result.

        Raises
        ------
        TuningError
            If no candidate was found to be right, there was no time to try what is in use until
            now, or another process does not end its own search.
        """
        precision, store = PRECISIONS[code], store_for(self._device.traits)
        self._device.require(precision)
        with (
            self._lock(),
            store.turn(entry_name(precision), effort.seconds, lambda _seconds: None) as refusal,
        ):
            if refusal:
                raise TuningError(refusal)
            found = find_stored(store, self._device.traits, precision)
            in_use = found.configs if found is not None else ()
            result, tuned = self._search(precision, store, effort, in_use)
            self.use(code, tuned)
        return result

    def _verified(self, tuned: Tuned, config: Config, problem: Gemm) -> Tuned:
        """Verify a configuration from a file before its first use, or go on with the others."""
        store, precision = store_for(self._device.traits), PRECISIONS[problem.precision]
        with self._lock():
            if config not in tuned.unverified:  # another thread was quicker
                return self.known(precision.code) or tuned
            wrong = verification.find_fault(self._device, precision, store, config, problem)
            tuned.unverified.discard(config)
            if wrong:
                verification.warn(self._device, precision, tuned, wrong)
                tuned = tuned.without(config)
                if tuned.is_default:
                    tuned = self._without_family(precision, tuned, config.family)
                elif not tuned.configs:
                    tuned = self._searched(precision, store, problem, reads=False)
                self.use(precision.code, tuned)
        return tuned

    def _without_family(self, precision: Precision, tuned: Tuned, name: str) -> Tuned:
        """Refuse a family whose default is wrong; after the last one comes the last resort."""
        self.refused.add(name)
        if tuned.configs or name == LAST_RESORT.name:
            return tuned
        why = "no other kernel is right here"
        return to_be_verified(defaults_of([LAST_RESORT], self._device.traits, precision, why))

    def _load_or_search(self, precision: Precision, problem: Gemm | None) -> Tuned:
        traits = self._device.traits
        if not settings.tuning_enabled():
            return defaults(traits, precision, "CLGEMM_TUNE=off")
        if not competitors(traits, precision):
            return defaults(traits, precision, "no other family fits this device")
        store = store_for(traits)
        stored = find_stored(store, traits, precision)
        return stored or self._searched(precision, store, problem, reads=True)

    def _searched(
        self, precision: Precision, store: Store, problem: Gemm | None, *, reads: bool
    ) -> Tuned:
        """Search, or wait for a process that does and read its result; defaults if both fail."""
        traits = self._device.traits
        what = f"{precision.code}gemm on {traits.describe()}"
        budget = settings.search_seconds()
        effort = Effort(settings.tune_mode(), max(budget / 2, budget - self.reserved))

        def waiting(seconds: float) -> None:
            words = "another process is tuning %s; waiting for its result, at most %g s"
            log.info(words, what, seconds)

        try:
            with store.turn(entry_name(precision), effort.seconds, waiting) as refusal:
                found = find_stored(store, traits, precision) if reads else None
                if found is not None:
                    return found
                if refusal:
                    return defaults(traits, precision, f"not tuned: {refusal}")
                words = "tuning %s for at most %g s; later processes read the result from %s"
                log.info(words, what, effort.seconds, store.path)
                with self._device.programs.building(self._likely(precision, problem, store)):
                    return self._search(precision, store, effort)[1]
        except (TuningError, OSError) as error:
            level = logging.INFO if ending.explains(error.__cause__) else logging.WARNING
            log.log(level, "tuning %s failed: %s", what, error)
            return to_be_verified(defaults(traits, precision, f"tuning failed: {error}"))

    def _likely(
        self, precision: Precision, problem: Gemm | None, store: Store
    ) -> Iterator[KernelSpec]:
        """Name the kernels of a problem under what a short search is likely to find.

        That is what it tries first.
        """
        traits = self._device.traits
        if problem is None or traits.unified_memory:
            return  # no other thread builds on the cores on which candidates are timed
        first = find_starting_points(store, traits, precision)
        first += [f.default(traits, precision) for f in competitors(traits, precision)]
        for config in first:
            family = BY_NAME[config.family]
            if family.accepts(problem) and family.is_valid(traits, precision, config):
                steps = family.plan(traits, problem, config).steps
                yield from (step.kernel for step in steps)
                return

    def _search(
        self, precision: Precision, store: Store, effort: Effort, in_use: Sequence[Config] = ()
    ) -> tuple[Result, Tuned]:  # fmt: skip
        """Search and store what is found, which replaces what is in use."""
        try:
            from clgemm.tuning.search.search import Search  # noqa: PLC0415 - a search needs much
        except RuntimeError as error:
            if not ending.explains(error):
                raise
            raise TuningError("a search needs threads, and the interpreter ends") from error
        traits = self._device.traits
        first = find_starting_points(store, traits, precision)
        result = Search(traits, precision, store, effort, first, in_use).run()
        self.searched.add(precision.code)
        written = store.write(entry_name(precision), result.entry())
        if written:
            configs = (variant.config for variant in result.model.variants)
            verification.remember(store, precision, configs)
        origin = str(store.path) if written else "found by this process, not stored"
        return replace(result, stored=written), Tuned(result.model, f"tuned: {origin}")
