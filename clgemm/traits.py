"""What clgemm knows of a device: frozen facts, read once, that constraints and keys are made of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clgemm.problem import Precision


def fingerprint_of(identity: Mapping[str, object]) -> str:
    """Hash a device's identity, from its traits or from a file, to 16 hexadecimal digits."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class DeviceTraits:
    """Facts of one OpenCL device.  Sizes are bytes."""

    platform: str
    platform_version: str
    vendor: str
    name: str
    driver_version: str
    kind: str
    """cpu, gpu or other."""
    compute_units: int
    max_work_group_size: int
    local_memory: int
    global_memory: int
    max_allocation: int
    simd_bytes: int
    """Width of a SIMD register, at least 16."""
    fp64: bool
    unified_memory: bool
    """Host and device share memory, so that operands need no copy."""
    system_svm: bool
    """Kernels may follow any host pointer (fine-grain system shared virtual memory)."""
    clang_builtins: bool
    """The compiler is clang and lowers its builtins (``__builtin_prefetch``)."""
    caches_programs: bool
    """The driver keeps compiled programs on disk itself."""
    compute_capability: tuple[int, int] | None = None
    """NVIDIA's, None elsewhere."""
    clock_mhz: int = 0
    processor: str = ""
    """Vendor, family and model of a CPU, whose name need not tell; "" elsewhere or if unknown."""

    def has(self, precision: Precision) -> bool:
        """Tell whether the device computes in a precision."""
        return self.fp64 or not precision.is_double

    @property
    def identity(self) -> dict[str, str | int]:
        """The facts that tuned parameters depend on, in clear."""
        return {
            "platform": self.platform,
            "platform_version": self.platform_version,
            "vendor": self.vendor,
            "name": self.name,
            "driver_version": self.driver_version,
            "compute_units": self.compute_units,
            "simd_bytes": self.simd_bytes,
            "processor": self.processor,
        }

    def fingerprint(self) -> str:
        """Hash the identity to 16 hexadecimal digits."""
        return fingerprint_of(self.identity)

    def describe(self) -> str:
        """Name the device as messages do."""
        return f"{self.name.strip()} [{self.platform}]"

    def as_json(self) -> dict[str, object]:
        """All facts as JSON can hold them."""
        return asdict(self)
