"""Verifies stored configurations once per device and driver, before their first use.

A file may have been shipped, imported or found with an earlier driver: a configuration that was
right elsewhere must be right here.  What is right is noted in the store's state, so that later
processes skip this; what the tuner chose has been verified more thoroughly.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from clgemm import settings
from clgemm.errors import ClgemmError, ClgemmWarning, TuningError
from clgemm.runtime import devices, opencl_errors
from clgemm.tuning.outcome import Setup, Task, config_as_json
from clgemm.tuning.search.budget import FIRST_SECONDS, HANG_SECONDS, Budget
from clgemm.tuning.store.entries import stored_config
from clgemm.tuning.store.lookup import entry_name
from clgemm.tuning.store.store import note_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clgemm.kernels.family import Config
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Device
    from clgemm.tuning.measure.verify import Verifier
    from clgemm.tuning.store.lookup import Tuned
    from clgemm.tuning.store.store import State, Store

MOST_NOTES = 256


def _note(config: Config, precision: Precision) -> dict[str, Any]:
    return note_of(config_as_json(config), entry=entry_name(precision))


def remember(store: Store, precision: Precision, configs: Iterable[Config]) -> None:
    """Note that configurations are right on the store's device and driver."""
    notes = [_note(config, precision) for config in dict.fromkeys(configs)]

    def change(state: State) -> State:
        more = [note for note in notes if note not in state.verified]
        return state._replace(verified=(state.verified + more)[-MOST_NOTES:])

    store.change_state(change)


def find_fault(
    device: Device, precision: Precision, store: Store, config: Config,
    problem: Gemm | None = None,
) -> str:  # fmt: skip
    """Say what is wrong with a stored configuration on this device, "" if nothing is.

    What is right is noted in the store.  With the `problem` that a call waits for it is verified
    by the kernels of that problem, which are built for it anyway.
    """
    if _note(config, precision) in store.state().verified:
        return ""
    interrupted = [stored_config(x, device.traits, precision) for x in store.interrupted()]
    from clgemm.tuning.measure.verify import Verifier  # noqa: PLC0415 - most processes verify nothing

    if config in interrupted:
        wrong = _verify_apart(device, precision, store, config)
    else:
        wrong = _verify(Verifier(device, precision), store, config, problem)
    if wrong:
        return f"{config}: {wrong}"
    remember(store, precision, [config])
    return ""


def _verify(verifier: Verifier, store: Store, config: Config, problem: Gemm | None) -> str:
    candidate = config_as_json(config)
    store.begin(candidate)
    try:
        with opencl_errors.translated_errors(str(config)):
            return verifier.quick_mismatch(config, problem) or ""
    except (ClgemmError, MemoryError) as error:
        if opencl_errors.is_transient(error.__cause__):
            raise  # it is verified in a later call
        return str(error)
    finally:
        store.end(candidate)


def _verify_apart(device: Device, precision: Precision, store: Store, config: Config) -> str:
    """Verify in another process what a process ended with: it may have been killed from outside."""
    from clgemm.tuning.workers.pool import Worker  # noqa: PLC0415 - hardly ever needed

    traits = device.traits
    place = [found.traits for found in devices.find()].index(traits)
    setup = Setup(place, traits.fingerprint(), precision.code)
    seconds = settings.search_seconds()
    most = min(HANG_SECONDS, max(seconds, FIRST_SECONDS))
    try:
        with Worker(setup, Budget(seconds, 1).patience_to_start) as worker:
            outcome = worker.ask(Task.VERIFY_FINALIST, config, lambda waited: most - waited)
    except (TuningError, OSError) as error:
        return f"a process ended while it ran, and it could not be tried again: {error}"
    if not outcome.ok:
        return f"a process ended while it ran, and in another one: {outcome.detail}"
    store.forget_interrupted(config_as_json(config))
    return ""


def warn(device: Device, precision: Precision, tuned: Tuned, wrong: str) -> None:
    """Tell the user that a configuration is not used, and what happens instead."""
    warnings.warn(
        f"a configuration for {precision.code}gemm on {device.traits.describe()} from "
        f"{tuned.origin} is not used: {wrong}. Another one takes its place",
        ClgemmWarning,
        stacklevel=2,
    )
