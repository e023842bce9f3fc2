"""Guard zones around the memory that kernels work on, and configurations at their extremes.

The suite tries a sample; every family at every extreme, which may be run under Oclgrind, by

    python tests/kernels/guarded.py
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

import conftest
import reference
from test_families import value
from test_small_kernels import tiny

from clgemm.kernels import FAMILIES
from clgemm.kernels.family import Config
from clgemm.problem import INTEGERS, PRECISIONS, Operand
from clgemm.runtime import registry
from clgemm.runtime.opencl import cl
from clgemm.tuning.measure.verify import random_matrix, run_once

CASES = (
    ((37, 35, 29), "NN", 0.0),
    ((35, 37, 29), "TC", 0.5),
    ((1, 3, 2), "CN", 0.0),
    ((70, 1, 13), "NT", 2.0),
)
GRAM = 41
GUARD = 4096  # bytes on each side: what a whole work-group may overrun by
SENTINEL = 0xFF  # a NaN in every type: who reads it and uses it shows it
TRIES = 4000  # at a configuration that has one value and breaks no rule


class Guarded:
    """A matrix that lies column by column, with a gap between them, between two guard zones."""

    def __init__(self, values, gap):
        self._shape, self._gap, self._dtype = values.shape, gap, values.dtype
        inner = (len(values) + gap) * values.shape[1] * values.itemsize
        self._memory = np.full(inner + 2 * GUARD, SENTINEL, np.uint8)
        self.data = self._matrix(self._memory)
        self.data[...] = values
        self._before = self._memory.copy()

    def _matrix(self, memory):
        rows, columns = self._shape
        inner = memory[GUARD:-GUARD].view(self._dtype)
        return inner.reshape(columns, rows + self._gap).T[:rows]

    def has_changed(self):
        """Tell whether anything has changed since."""
        return not np.array_equal(self._memory, self._before)

    def has_changed_beside(self):
        """Tell whether anything has changed but the elements of the matrix."""
        before, after = self._before.copy(), self._memory.copy()
        self._matrix(before)[...] = self._matrix(after)[...] = 0
        return not np.array_equal(before, after)


def elements(rng, precision, rows, columns):
    """Draw a matrix; integers of all bits, so that sums wrap around."""
    if precision.code not in INTEGERS:
        return random_matrix(rng, precision, rows, columns)
    drawn = rng.integers(0, 2**8, (columns, rows, precision.dtype.itemsize), np.uint8)
    return (drawn < 25 if precision.dtype == bool else drawn.view(precision.dtype))[..., 0].T


def as_operand(rng, precision, shape, op, gap):
    """Make op(X) of a shape, and the guarded memory that it lies in."""
    tall, wide = shape if op in "NR" else shape[::-1]
    held = Guarded(elements(rng, precision, tall, wide), gap)
    x = held.data if op in "NR" else held.data.T
    return Operand(x, conj=op in "CR" and precision.is_complex), held


@contextmanager
def guarded_scratch(device, monkeypatch):
    """Give each call scratch of exactly the size it asks for; yield a list of what was overrun."""
    overrun, zones = [], {}
    queue, context = device.queue, device.context

    def lease(nbytes):
        total = nbytes + 2 * GUARD
        if device.traits.system_svm:
            raw = np.empty(total + GUARD, np.uint8)
            start = -raw.ctypes.data % GUARD
            memory = raw[start : start + total]
            memory[...] = SENTINEL
            scratch = cl.SVM(memory[GUARD : GUARD + nbytes])
            zones[id(scratch)] = nbytes, lambda: memory
            return scratch
        whole = cl.Buffer(context, cl.mem_flags.READ_WRITE, total)
        cl.enqueue_copy(queue, whole, np.full(total, SENTINEL, np.uint8))
        scratch = whole.get_sub_region(GUARD, nbytes)

        def read():
            host = np.empty(total, np.uint8)
            cl.enqueue_copy(queue, host, whole)
            return host

        zones[id(scratch)] = nbytes, read
        return scratch

    def release(scratch):
        if scratch is None:
            return
        nbytes, read = zones.pop(id(scratch))
        memory = read()
        for name, zone in (("before", memory[:GUARD]), ("after", memory[GUARD + nbytes :])):
            if np.any(zone != SENTINEL):
                overrun.append(f"{name} {nbytes} bytes of scratch")

    monkeypatch.setattr(device.scratch, "lease", lease)
    monkeypatch.setattr(device.scratch, "release", release)
    yield overrun
    assert not zones, "scratch was leased and not given back"


def extremes(family, traits, precision, base):
    """List configurations that together have every parameter at its least and its greatest value.

    Each is as near to `base` as the family's rules allow.
    """
    space = {x: sorted(values) for x, values in family.space(traits, precision).items()}
    found = [base]
    for name, values in space.items():
        for end in dict.fromkeys((values[0], values[-1])):
            if all(config[name] != end for config in found):
                config = _nearest(family, traits, precision, base, space, name, end)
                if config is not None:
                    found.append(config)
    return found


def _nearest(family, traits, precision, base, space, name, value):
    """Return a valid configuration that has one value, with few others changed; None if none is."""
    chance = random.Random(f"{family.name} {precision.code} {name} {value}")
    others = [x for x in space if x != name]
    for attempt in range(TRIES):
        changed = chance.sample(others, min(len(others), attempt * 8 // TRIES))
        params = dict(base.params) | {x: chance.choice(space[x]) for x in changed} | {name: value}
        config = Config.of(family.name, params)
        if not any(family.broken_rules(traits, precision, config)):
            return config
    return None


def check(device, config, precision, case, rng):
    """Compute one product; tell whether anything but its result has changed."""
    (m, n, k), ops, beta = case
    a, held_a = as_operand(rng, precision, (m, k), ops[0], 1)
    b, held_b = as_operand(rng, precision, (k, n), ops[1], 3)
    c = Guarded(elements(rng, precision, m, n), 2)
    if precision.code in INTEGERS:  # there are no factors
        run_once(device, config, a, b, c.data, poison=True)
        np.testing.assert_array_equal(c.data, np.matmul(a.data, b.data))
    else:
        want, size = reference.gemm(1.5, value(a), value(b), beta, c.data)
        run_once(device, config, a, b, c.data, 1.5, beta, poison=True)
        reference.assert_within_bound(c.data, want, size, k, precision.eps)
    return held_a.has_changed() or held_b.has_changed() or c.has_changed_beside()


def check_gram(device, config, precision, rng):
    """Do the same with a matrix times its own transpose."""
    a, held = as_operand(rng, precision, (GRAM, 13), "N", 1)
    b = Operand(a.data.T, conj=precision.is_complex)
    c = Guarded(random_matrix(rng, precision, GRAM, GRAM), 2)
    want, size = reference.gemm(1.0, a.data, value(b), 0.0, c.data)
    run_once(device, config, a, b, c.data, poison=True)
    reference.assert_within_bound(c.data, want, size, 13, precision.eps)
    return held.has_changed() or c.has_changed_beside()


def check_config(device, config, precision, rng, monkeypatch):
    """Compute every case with a configuration; return what is wrong, "" if nothing is."""
    with guarded_scratch(device, monkeypatch) as overrun:
        for case in CASES:
            if check(device, config, precision, case, rng):
                return f"{config}, {case}: written beside C"
        if precision.code not in INTEGERS and check_gram(device, config, precision, rng):
            return f"{config}: written beside C of a Gram product"
    return f"{config}: {overrun}" if overrun else ""


def main():
    failed = False
    for found in conftest.DEVICES:
        device = registry.open_device(found)
        for family in FAMILIES:
            known = INTEGERS if family.name.endswith("_integer") else PRECISIONS
            for code, precision in known.items():
                if not family.supports(device.traits, precision):
                    continue
                base = tiny(family, device.traits, precision)
                configs = extremes(family, device.traits, precision, base)
                with pytest.MonkeyPatch.context() as patch:
                    rng = np.random.default_rng(7)
                    said = [check_config(device, x, precision, rng, patch) for x in configs]
                wrong = list(filter(None, said))
                failed |= bool(wrong)
                counted = f"{len(configs)} configurations, {len(wrong)} wrong"
                print(f"{found.traits.platform}: {family.name} {code}: {counted}", flush=True)
                print("\n".join(wrong), end="")
    return failed


if __name__ == "__main__":
    sys.exit(main())
