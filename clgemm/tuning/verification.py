"""One cheap check of stored parameters per device and driver, before their first use.

A file may have been shipped, imported or found by an earlier driver's twin: a configuration that
was right elsewhere must be right here.  What passed is remembered beside the store, so that later
processes skip the check; what the tuner chose has passed more than this one.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

from clgemm.errors import BuildError, ClgemmError, ClgemmWarning, TuningError
from clgemm.runtime import devices, opencl_errors
from clgemm.tuning.outcome import CHECK, config_as_json
from clgemm.tuning.search.budget import HANG_SECONDS
from clgemm.tuning.store.entries import stored_config
from clgemm.tuning.store.files import cached_json, replace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.measure.verify import Checker
    from clgemm.tuning.store.lookup import Tuned
    from clgemm.tuning.store.store import Store

log = logging.getLogger(__name__)


def _path(store: Store) -> Path:
    return store.path.with_name(f"{store.path.stem}.passed")


def _passed(store: Store) -> list[dict[str, Any]]:
    """Read what passed with these kernels; nothing where that cannot be read."""
    data = cached_json(_path(store))
    good = isinstance(data, dict) and data.get("kernels") == store.kernels
    found = data.get("passed") if good else None
    return [x for x in found if isinstance(x, dict)] if isinstance(found, list) else []


def _name(config: Config, precision: Precision) -> dict[str, Any]:
    return {"precision": precision.code} | config_as_json(config)


def remember(store: Store, precision: Precision, configs: Iterable[Config]) -> None:
    """Note that configurations passed their checks on the store's device and driver."""
    passed = _passed(store)
    more = [_name(config, precision) for config in dict.fromkeys(configs)]
    more = [name for name in more if name not in passed]
    if not more:
        return
    try:
        replace(_path(store), {"kernels": store.kernels, "passed": passed + more})
    except OSError as error:  # it is checked again, which is cheap
        log.debug("what passed cannot be noted in %s: %s", _path(store), error)


def fault(device: Device, precision: Precision, store: Store, config: Config) -> str:
    """Say what is wrong with a stored configuration on this device, "" if nothing is.

    Parameters
    ----------
    device : Device
        The device.
    precision : Precision
        What it is for.
    store : Store
        Where it is noted what passed.
    config : Config
        The configuration.
    """
    if _name(config, precision) in _passed(store):
        return ""
    killers = [stored_config(x, device.traits, precision) for x in store.interrupted()]
    from clgemm.tuning.measure.verify import Checker  # noqa: PLC0415 - most processes check nothing

    if config in killers:
        wrong = _check_apart(device, precision, store, config)
    else:
        wrong = _check(Checker(device, precision), store, config)
    if wrong:
        return f"{config}: {wrong}"
    remember(store, precision, [config])
    return ""


def _check(checker: Checker, store: Store, config: Config) -> str:
    candidate = config_as_json(config)
    store.begin(candidate)
    try:
        with opencl_errors.translated_errors(str(config)):
            return checker.quick(config)
    except BuildError as error:
        return str(error)
    except (ClgemmError, MemoryError) as error:
        return str(error)
    finally:
        store.end(candidate)


def _check_apart(device: Device, precision: Precision, store: Store, config: Config) -> str:
    """Check in another process what a process ended with: it may have been killed from outside."""
    from clgemm.tuning.workers.worker import Worker  # noqa: PLC0415 - hardly ever needed

    traits = device.traits
    place = [found.traits for found in devices.find()].index(traits)
    try:
        with Worker(place, traits.fingerprint(), precision.code) as child:
            outcome = child.attempt(
                config, {}, task=CHECK, patience=lambda waited: HANG_SECONDS - waited
            )
    except (TuningError, OSError) as error:
        return f"a process ended while it ran, and it could not be tried again: {error}"
    if not outcome.ok:
        return f"a process ended while it ran, and in another one: {outcome.detail}"
    store.absolve(config_as_json(config))
    return ""


def warn(device: Device, precision: Precision, tuned: Tuned, wrong: str) -> None:
    """Tell the user that a configuration is not used, and what happens instead."""
    warnings.warn(
        f"a configuration for {precision.code}gemm on {device.traits.describe()} from "
        f"{tuned.origin} is not used: {wrong}. Another one takes its place",
        ClgemmWarning,
        stacklevel=2,
    )
