"""What became of a candidate, as a value that travels between processes and into the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clgemm.kernels.family import Config

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate."""

    config: Config
    status: str
    """ok, build (refused by the compiler), run (failed to run), wrong, crash or hang."""
    detail: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by size class, if ok: the lower quartile, as other processes only ever add."""
    sizes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """m, n, k that were timed, by size class."""
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
            "sizes": self.sizes,
            "spread": self.spread,
            "clock": self.clock,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what `as_json` wrote."""
        config = config_from_json(data["config"])
        sizes = {name: (int(m), int(n), int(k)) for name, (m, n, k) in data["sizes"].items()}
        return cls(
            config,
            data["status"],
            data["detail"],
            dict(data["seconds"]),
            sizes,
            dict(data.get("spread", {})),
            data.get("clock", ""),
        )


def config_as_json(config: Config) -> dict[str, Any]:
    """Turn a Config into what `config_from_json` reads."""
    return {"family": config.family, "params": dict(config.params)}


def config_from_json(data: Mapping[str, Any]) -> Config:
    """Read a Config from a stored object."""
    return Config.of(str(data["family"]), data["params"])
