"""What became of a candidate, as a value that travels between processes and into the store."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clgemm.kernels.family import Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


VET, TRY, RACE, CHECK = "vet", "try", "race", "check"
"""What is done with a candidate: see `Trial.attempt`."""


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate."""

    config: Config
    status: str
    """ok, build (refused by the compiler), run (failed to run), wrong, crash, hang, or late (no
    answer in the little time that the search had)."""
    detail: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by shape, if ok: the lower quartile, as other processes only ever add."""
    side: int = 0
    """Of the square among the shapes, which says what the others are: see `shapes.standard`."""
    spread: dict[str, float] = field(default_factory=dict)
    """By how much the median was above the least time, as a part of it."""
    clock: str = ""
    """Whose clock: the device's, or the host's and why."""

    @property
    def ok(self) -> bool:
        """Whether the candidate may win."""
        return self.status == "ok"

    def as_json(self) -> dict[str, Any]:
        """Turn into what JSON can hold."""
        return {
            "config": config_as_json(self.config),
            "status": self.status,
            "detail": self.detail,
            "seconds": self.seconds,
            "side": self.side,
            "spread": self.spread,
            "clock": self.clock,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what `as_json` wrote."""
        config = config_from_json(data["config"])
        return cls(
            config,
            data["status"],
            data["detail"],
            dict(data["seconds"]),
            int(data["side"]),
            dict(data.get("spread", {})),
            data.get("clock", ""),
        )


def config_as_json(config: Config) -> dict[str, Any]:
    """Turn a Config into what `config_from_json` reads."""
    return {"family": config.family, "params": dict(config.params)}


def config_from_json(data: Mapping[str, Any]) -> Config:
    """Read a Config from a stored object."""
    return Config.of(str(data["family"]), data["params"])


def medians(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the median seconds of several races by shape."""
    return {
        name: statistics.median(outcome.seconds[name] for outcome in outcomes)
        for name in outcomes[0].seconds
    }
