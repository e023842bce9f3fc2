"""What a worker is told and asked, and what it answers: values that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.kernels.family import Config
from clgemm.tuning.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping


class Task(Enum):
    """What a worker does with a candidate."""

    BUILD = "build"
    """Build a part of what `VERIFY`, `MEASURE` and `VERIFY_FINALIST` take."""
    VERIFY = "verify"
    """Build what it takes to measure it, and verify it."""
    MEASURE = "measure"
    """Measure it, which passed that, with the shapes that the search goes by."""
    BUILD_FINALIST = "build finalist"
    """Build a part of what verifying it as a finalist takes."""
    VERIFY_FINALIST = "verify finalist"
    """Verify all transposes, and often: what a winner must pass."""
    MEASURE_FINALIST = "measure finalist"
    """Measure it, which passed that, with every shape."""

    @property
    def measures(self) -> bool:
        """Whether a time comes of it."""
        return self in {Task.MEASURE, Task.MEASURE_FINALIST}

    @property
    def is_final(self) -> bool:
        """Whether it decides about a winner."""
        return self in {Task.BUILD_FINALIST, Task.VERIFY_FINALIST, Task.MEASURE_FINALIST}

    @property
    def only_builds(self) -> bool:
        """Whether nothing comes of it but compiled programs."""
        return self in {Task.BUILD, Task.BUILD_FINALIST}


class Part(NamedTuple):
    """A part of a candidate's kernels."""

    number: int
    of: int


WHOLE = Part(0, 1)


class Setup(NamedTuple):
    """What a worker is told before anything else."""

    device: int
    """Place of the device in `devices.find()`."""
    fingerprint: str
    """Of that device: in the worker it must be the same one."""
    precision: str
    """BLAS letter."""
    asked: Mapping[str, Shape] = {}
    """Shapes that every candidate is measured with, by name, in place of the usual ones."""
    programs: str = ""
    """Folder through which workers share what they compiled."""
    measures: bool = True
    """Whether this worker will measure, and had better have operands ready."""
    side: int = 0
    """Of the square among the shapes; 0 if the first measurement is to find it."""
    clock: str = ""
    """Whose clock counts; "" if the first measurement is to find out."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Setup:
        """Read what JSON made of it."""
        asked = {name: Shape(*sizes) for name, sizes in data["asked"].items()}
        return cls(**data)._replace(asked=asked)


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
        return vars(self) | {"config": config_as_json(self.config)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what `as_json` wrote."""
        return cls(
            config_from_json(data["config"]),
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
