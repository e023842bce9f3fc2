"""What a tuning run is asked for, what it found, and what earlier runs ruled out."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clgemm.tuning.outcome import Outcome
from clgemm.tuning.store.entries import current_trials, stored_config, variant_as_json
from clgemm.tuning.store.lookup import entry_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clgemm.kernels.family import Config
    from clgemm.problem import Precision
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.cost_model import Model
    from clgemm.tuning.shapes import Shape
    from clgemm.tuning.store.store import Store

DEADLY = frozenset({"crash", "hang"})
RULED_OUT = DEADLY | {"wrong", "build"}  # "run" may have been another's use of memory


@dataclass(frozen=True)
class Effort:
    """How hard to search."""

    mode: str = "auto"
    """auto, quick or full: see `settings.tune_mode`."""
    seconds: float = 5.0
    """The whole run's budget."""
    asked: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes to go by, by name, in place of the usual ones."""
    keeps_on_interrupt: bool = False
    """Ctrl-C ends the search and keeps what was found, instead of raising KeyboardInterrupt."""


@dataclass(frozen=True)
class Result:
    """What a run found."""

    model: Model
    """The winners, and which of them is the best for a shape."""
    outcomes: Sequence[Outcome]
    """In the order of the trials."""
    seconds: float
    interrupted: bool = False

    def entry(self) -> dict[str, Any]:
        """Turn into what the store keeps."""
        return {
            "tuned": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "search_seconds": round(self.seconds, 2),
            "shapes": {name: list(shape) for name, shape in self.model.shapes.items()},
            "variants": [variant_as_json(variant) for variant in self.model.variants],
            "trials": [outcome.as_json() for outcome in self.outcomes],
        }


def failures(store: Store, traits: DeviceTraits, precision: Precision) -> dict[Config, Outcome]:
    """Return what is never tried again on this device and driver with these sources, and why."""
    found: dict[Config, Outcome] = {}
    for data in current_trials(store.read().entries.get(entry_name(precision))):
        outcome = Outcome.from_json(data)
        if outcome.status in RULED_OUT and stored_config(data["config"], traits, precision):
            found[outcome.config] = outcome
    for killer in store.interrupted():
        config = stored_config(killer, traits, precision)
        if config is not None and config not in found:
            reason = "a tuning run was killed while it was tried"
            found[config] = Outcome(config, "crash", reason)
    return found
