"""What a search is asked for and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clgemm.tuning.store.entries import variant_as_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clgemm.tuning.cost_model import Model
    from clgemm.tuning.outcome import Outcome
    from clgemm.tuning.shapes import Shape


@dataclass(frozen=True)
class Effort:
    """How hard to search."""

    mode: str = "auto"
    """auto, quick or full: see `settings.tune_mode`."""
    seconds: float = 5.0
    """The budget of the whole search."""
    asked: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes to go by, by name, in place of the usual ones."""
    keeps_on_interrupt: bool = False
    """Ctrl-C ends the search and keeps what was found, instead of raising KeyboardInterrupt."""


@dataclass(frozen=True)
class Result:
    """What a search found."""

    model: Model
    """The winners, and which of them is the best for a shape."""
    outcomes: Sequence[Outcome]
    """In the order in which candidates were measured or failed."""
    seconds: float
    interrupted: bool = False
    stored: bool = False
    """Whether it is in the cache directory, for later processes."""

    def entry(self) -> dict[str, Any]:
        """Turn into what the store keeps."""
        return {
            "tuned": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "search_seconds": round(self.seconds, 2),
            "shapes": {name: list(shape) for name, shape in self.model.shapes.items()},
            "variants": [variant_as_json(variant) for variant in self.model.variants],
            "trials": [outcome.as_json() for outcome in self.outcomes],
        }
