"""Products that faults are injected into: each prepares what it needs and returns a `Product`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import reference
from helpers import entry_with, gemm

import clgemm
from clgemm.dispatch import engines, multi_device
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, private_files, registry
from clgemm.runtime.binaries import kept_for
from clgemm.runtime.device import Device
from clgemm.runtime.idle import IdleTimer
from clgemm.runtime.opencl import arrays, cl
from clgemm.streaming import direct, stream
from clgemm.tuning.measure.verify import random_matrix
from clgemm.tuning.store import lookup, store

if TYPE_CHECKING:
    from collections.abc import Callable

S = PRECISIONS["s"]
M, N, K = 70, 65, 80
KB = 1 << 10


@dataclass
class Product:
    """One product that is computed again and again, and what it comes to."""

    compute: Callable[[], Any]
    want: np.ndarray
    size: np.ndarray
    operands: list[np.ndarray]
    c: np.ndarray | None = None
    """What it is computed into, if that is the caller's."""
    device: Callable[[], Device | None] = registry.opened
    fetch: Callable[[Any], np.ndarray] = np.asarray
    """What the caller does to see the result."""
    by_numpy: bool = False
    """Whether NumPy has to compute what the device fails to."""
    before: list[np.ndarray] = field(init=False)

    def __post_init__(self):
        self.before = [x.copy() for x in self.operands]
        self.c_before = None if self.c is None else self.c.copy()

    def reset(self):
        """Give C its values back."""
        if self.c is not None:
            self.c[...] = self.c_before

    def check(self, result):
        """Compare a result with the reference."""
        if self.by_numpy:
            np.testing.assert_array_equal(result, self.want, strict=True)
        else:
            reference.assert_within_bound(self.fetch(result), self.want, self.size, K, S.eps)


class World:
    """What a scenario may change, as a process that has not computed yet finds it."""

    def __init__(self, found: devices.Found, monkeypatch: Any) -> None:
        self.found, self.patch = found, monkeypatch
        monkeypatch.setenv("CLGEMM_DEVICE", found.traits.platform)
        for name in ("_devices", "_foreign", "states"):
            monkeypatch.setattr(registry, name, {})
        monkeypatch.setattr(registry, "in_use", None)
        monkeypatch.setattr(registry, "_chosen", None)
        monkeypatch.setattr(registry, "_others", ())
        monkeypatch.setattr(registry, "_timer", IdleTimer(1e-3, lambda: None))
        monkeypatch.setattr(engines, "_engines", {})
        monkeypatch.setattr(store, "_warned", set())
        monkeypatch.setattr(private_files, "_warned", set())
        monkeypatch.setattr(devices, "_kept", [])
        self.rng = np.random.default_rng(3)
        self.a, self.b = random_matrix(self.rng, S, M, K), random_matrix(self.rng, S, K, N)

    def product(self, compute, beta=0.0, c=None, **more):
        """Make the product ``a @ b + beta * c``."""
        given = np.zeros((M, N), np.float32) if c is None else c
        want, size = reference.gemm(1.0, self.a, self.b, beta, given)
        return Product(compute, want, size, [self.a, self.b], c, **more)

    def matrix(self):
        """Make a C that can be written where it lies."""
        return random_matrix(self.rng, S, M, N)


def first(world):
    """Find the devices, try one, build its kernel, compute."""
    return world.product(lambda: clgemm.matmul(world.a, world.b))


def later(world):
    """Compute once more."""
    product = first(world)
    product.check(product.compute())
    return product


def in_place(world):
    """Compute once more, into the caller's matrix, which is read."""
    later(world)
    c = world.matrix()

    def compute():
        return clgemm.sgemm(1.0, world.a, world.b, 0.5, c, overwrite_c=1)

    return world.product(compute, 0.5, c)


def _separate(world, *, room=None):
    traits = replace(world.found.traits, unified_memory=False, system_svm=False)
    device = Device(world.found._replace(traits=traits), "a test", kept_for(traits))
    if room is not None:
        world.patch.setenv("CLGEMM_DEVICE_MEMORY_MB", str(room / 2**20))
    c = world.matrix()

    def compute():
        with registry.using(device):
            gemm(1.0, world.a, world.b, 0.5, c)
        return c

    return world.product(compute, 0.5, c, device=lambda: device)


def copying(world):
    """Copy whole operands to a device and the result back, in this thread."""
    return _separate(world)


def streaming(world):
    """Copy in blocks, by threads, through pinned memory."""
    world.patch.setattr(direct, "MOST", 0)
    world.patch.setattr(stream, "SMALL_CHUNK", 1000)
    product = _separate(world, room=40 * KB)
    product.check(product.compute())
    product.reset()
    engines.of(product.device()).threads.trim()
    return product


def device_arrays(world):
    """Copy to the device, multiply there, copy back."""

    def compute():
        a, b = clgemm.to_device(world.a), clgemm.to_device(world.b)
        return clgemm.matmul(a, b)

    return world.product(compute, fetch=lambda x: x.get())


def device_arrays_later(world):
    """Multiply and add on the device, with operands of another queue."""
    a, b = clgemm.to_device(world.a), clgemm.to_device(world.b)
    c = world.matrix()
    on_device = clgemm.to_device(c)
    other = cl.CommandQueue(a.context)
    moved = arrays().to_device(other, world.b)
    clgemm.sgemm(1.0, a, moved, 0.5, on_device).get()

    def compute():
        result = clgemm.sgemm(1.0, a, moved, 0.5, on_device)
        clgemm.sgemm(0.0, a, b, 0.5, on_device)
        clgemm.sgemm(0.0, a, b)
        return result

    return world.product(compute, 0.5, c, fetch=lambda x: x.get())


def device_arrays_again(world):
    """Multiply Arrays that were multiplied before, into memory that is there and into new one."""
    a, b = clgemm.to_device(world.a), clgemm.to_device(world.b)
    out = clgemm.matmul(a, b)
    for _ in range(2):
        clgemm.matmul(a, b, out=out)
        clgemm.matmul(a, b).get()

    def compute():
        clgemm.matmul(a, b, out=out)
        return clgemm.matmul(a, b)

    return world.product(compute, fetch=lambda x: x.get())


def out_of_order(world):
    """Multiply on a queue of the caller's that runs commands in any order."""
    clgemm.matmul(world.a, world.b)
    context = registry.opened().context
    out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    queue = cl.CommandQueue(context, properties=out_of_order)

    a, b = (arrays().to_device(queue, x) for x in (world.a, world.b))
    queue.finish()

    def fetch(result):
        for event in result.events:
            event.wait()
        return result.get()

    return world.product(lambda: clgemm.matmul(a, b), fetch=fetch)


def contracted(world):
    """Copy into another order, sum, multiply elements and matrices, on the device."""
    x, y = clgemm.to_device(np.repeat(world.a, 2, axis=1)), clgemm.to_device(world.b)
    one = clgemm.to_device(np.array([[0.25, 0.75]], np.float32))

    def compute():
        return clgemm.einsum("mk,kn,ij->imn", x[:, ::2], y, one)

    return world.product(compute, fetch=lambda made: made.get()[0])


def verified(world):
    """Verify what a file has for this device, then compute with it."""
    world.patch.setenv("CLGEMM_TUNE", "auto")
    world.patch.setenv("CLGEMM_TUNE_SECONDS", "0.5")
    traits = world.found.traits
    family = lookup.competitors(traits, S)[0]
    default = family.default(traits, S)
    others = (x for x in family.candidates(traits, S) if x != default)
    kept = lookup.store_for(traits)
    kept.write(lookup.entry_name(S), entry_with(default, next(others)))
    kept.change_state(lambda state: state._replace(verified=[], trying=[]))
    return first(world)


def searched(world):
    """Search for parameters, in processes of their own, then compute."""
    world.patch.setenv("CLGEMM_TUNE", "quick")
    world.patch.setenv("CLGEMM_TUNE_SECONDS", "0.3")
    lookup.store_for(world.found.traits).path.unlink(missing_ok=True)
    return first(world)


def several(world):
    """Share a product between two devices, or one device opened twice."""
    pair = [Device(world.found, "a test", kept_for(world.found.traits)) for _ in "ab"]
    world.patch.setattr(multi_device, "LEAST_FLOPS", 0)
    world.patch.setattr(multi_device, "GRAIN", 8)
    world.patch.setattr(registry, "_others", (pair[1],))
    world.patch.setattr(registry, "in_use", pair[0])
    world.patch.setattr(registry, "_chosen", pair[0])
    return first(world)


def integers_first(world):
    """Find the devices, try one, build its kernel, multiply integers."""
    a, b = (world.rng.integers(-(2**31), 2**31, x, np.int32) for x in ((M, K), (K, N)))
    want = a @ b
    return Product(lambda: clgemm.matmul(a, b), want, want, [a, b], by_numpy=True)


def integers_later(world):
    """Multiply integers once more: what computed them is remembered."""
    product = integers_first(world)
    product.check(product.compute())
    return product


FRESH = (first, device_arrays, verified, several, integers_first)
"""Each fault is met by a process that has not computed yet."""
KEPT = (
    later,
    in_place,
    copying,
    streaming,
    device_arrays_later,
    device_arrays_again,
    contracted,
    out_of_order,
    integers_later,
)
"""All faults are met by the same device, one after the other."""
