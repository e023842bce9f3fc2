"""Devices: find them, read their traits, probe them."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.runtime import opencl, platforms, processor, worker_threads
from clgemm.runtime.opencl import cl
from clgemm.runtime.programs import compiled
from clgemm.traits import DeviceTraits

if TYPE_CHECKING:
    from clgemm.runtime.binaries import Binaries

log = logging.getLogger(__name__)

INSTALL_HINT = (
    "install one for this CPU with: pip install 'clgemm[cpu]' (x86-64 Linux and Windows), or your "
    "GPU's OpenCL driver, or PoCL (Debian: pocl-opencl-icd)"
)


@dataclass(frozen=True)
class Quirk:
    """What a driver does not tell of itself, or tells wrong."""

    platform: str
    """Part of the platform's name."""
    reason: str
    facts: tuple[tuple[str, Any], ...]
    """Traits that differ from what was read."""
    name: str = ""
    """Part of the device's name."""


# Everything that depends on a driver's name stands here and nowhere else.
POCL = "Portable Computing Language"
QUIRKS = (
    Quirk(
        POCL,
        "PoCL is clang and keeps what it compiled",
        (("clang_builtins", True), ("caches_programs", True)),
    ),
    Quirk("Intel(R) OpenCL", "Intel's runtime is clang", (("clang_builtins", True),)),
    Quirk("NVIDIA CUDA", "keeps what it compiled in ~/.nv", (("caches_programs", True),)),
    Quirk("Oclgrind", "interprets LLVM IR, without clang's target builtins",
          (("kind", "cpu"), ("unified_memory", True), ("caches_programs", True))),
    Quirk("rusticl", "Mesa's compiler for CPUs gets cpu_packed wrong (22.3), and shares no memory",
          (("kind", "other"), ("unified_memory", False)), name="llvmpipe"),
)  # fmt: skip

PROBE_SOURCE = "__kernel void probe(__global int *x) { x[get_global_id(0)] += 41; }"


class Found(NamedTuple):
    """A device and its facts."""

    device: cl.Device
    traits: DeviceTraits

    def matches(self, wish: str) -> bool:
        """Tell whether a part of CLGEMM_DEVICE names this device."""
        t = self.traits
        text = f"{t.platform} {t.platform_version} {t.vendor} {t.name} {t.kind}".lower()
        return wish.lower() in text


def read_traits(device: cl.Device) -> DeviceTraits:
    """Ask a device for its facts and correct them by `QUIRKS`."""
    platform = device.platform
    kinds = {cl.device_type.CPU: "cpu", cl.device_type.GPU: "gpu"}
    kind = next((name for bit, name in kinds.items() if device.type & bit), "other")
    extensions = device.extensions.split()
    capability = None
    if "cl_nv_device_attribute_query" in extensions:
        capability = (device.compute_capability_major_nv, device.compute_capability_minor_nv)
    traits = DeviceTraits(
        platform=platform.name.strip(),
        platform_version=platform.version.strip(),
        vendor=device.vendor.strip(),
        name=device.name.strip(),
        driver_version=device.driver_version.strip(),
        kind=kind,
        compute_units=device.max_compute_units,
        max_work_group_size=device.max_work_group_size,
        local_memory=device.local_mem_size,
        global_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        simd_bytes=max(16, 4 * device.native_vector_width_float),
        fp64="cl_khr_fp64" in extensions or bool(getattr(device, "double_fp_config", 0)),
        unified_memory=kind == "cpu",
        system_svm=_has_system_svm(device),
        clang_builtins=False,
        caches_programs=False,
        compute_capability=capability,
        clock_mhz=device.max_clock_frequency,
        processor=processor.identity() if kind == "cpu" else "",
    )
    for quirk in QUIRKS:
        if quirk.platform in traits.platform and quirk.name in traits.name:
            traits = replace(traits, **dict(quirk.facts))
    return traits


def _has_system_svm(device: cl.Device) -> bool:
    try:
        return bool(device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_SYSTEM)
    except (cl.Error, AttributeError):
        return False  # OpenCL before 2.0 does not know the question


class Probe(NamedTuple):
    """What came of probing a device."""

    fault: str
    """What went wrong, "" if nothing did."""
    context: cl.Context | None = None
    """In which it worked: making one takes a tenth of a second on some."""


def works(device: cl.Device, binaries: Binaries | None = None) -> str:
    """Probe a device; return what went wrong, or "" if nothing did."""
    return probe(device, binaries).fault


def probe(device: cl.Device, binaries: Binaries | None = None) -> Probe:
    """Build and run a tiny kernel.

    Parameters
    ----------
    device : cl.Device
        To be probed.
    binaries : Binaries, optional
        Where compiled programs are kept: compiling the kernel takes longer than all the rest.
    """
    try:
        context = cl.Context([device])
        queue = cl.CommandQueue(context)
        kernel = opencl.make_kernel(compiled(context, PROBE_SOURCE, binaries), "probe")
        memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4)
        answer = bytearray((1).to_bytes(4, sys.byteorder))
        cl.enqueue_copy(queue, memory, answer)
        kernel.set_arg(0, memory)
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, answer, memory)
        queue.finish()
    except Exception as error:  # noqa: BLE001 - a broken driver may raise anything
        return Probe(str(error).strip().splitlines()[0] if str(error) else type(error).__name__)
    value = int.from_bytes(answer, sys.byteorder)
    if value != 42:
        return Probe(f"the probe kernel computed {value} instead of 42")
    return Probe("", context)


def _once_more(platform: cl.Platform) -> list[cl.Device]:
    """Ask PoCL again with another cache directory: it has no device if it cannot use the user's."""
    if POCL not in platform.name or "POCL_CACHE_DIR" in os.environ:
        return []
    folder = os.environ["POCL_CACHE_DIR"] = tempfile.mkdtemp(prefix="clgemm-pocl-")
    atexit.register(_remove, folder, os.getpid())
    return platform.get_devices()


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, whose parent still uses it
        shutil.rmtree(folder, ignore_errors=True)


def find() -> tuple[Found, ...]:
    """List every device of every platform, not probed yet.

    The list is kept once every driver has answered: one that is short of memory may do so later.
    """
    if _kept:
        return _kept[0]
    found: list[Found] = []
    worker_threads.note()
    platforms.silent.clear()
    for platform in platforms.known():
        try:
            devices = platform.get_devices() or _once_more(platform)
        except cl.Error as error:
            platforms.silent.append(str(error))
            continue
        found += [x for x in map(_read, devices) if x is not None]
    for words in platforms.silent:
        log.info("a platform or a device is passed over: %s", words)
    if not platforms.silent:
        _kept.append(tuple(found))
    return tuple(found)


def _read(device: cl.Device) -> Found | None:
    """Return a device with its traits, None if its driver does not tell them."""
    try:
        return Found(device, read_traits(device))
    except cl.Error as error:
        platforms.silent.append(str(error))
    return None


_kept: list[tuple[Found, ...]] = []
"""What `find` has found."""
