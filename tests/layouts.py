"""How users' matrices lie in memory, and devices that are told to have a memory of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clgemm.runtime import devices
from clgemm.runtime.device import Device
from clgemm.tuning.measure.verify import random_matrix

_SEPARATE = {}


def separate(device):
    """Return the same device with a memory of its own, as far as clgemm is told."""
    if device not in _SEPARATE:
        found = next(f for f in devices.find() if f.traits == device.traits)
        traits = replace(device.traits, unified_memory=False, system_svm=False)
        _SEPARATE[device] = Device(found._replace(traits=traits), "a test")
    return _SEPARATE[device]


def matrices(flat, rows, columns):
    """Cut views of rows x columns out of a block of memory, as users' matrices lie in theirs."""
    wide = flat.reshape(2 * columns + 1, 2 * rows + 3).T
    long = flat.reshape(2 * rows + 3, 2 * columns + 1)
    return {
        "column-major": lambda: flat[: rows * columns].reshape(columns, rows).T,
        "row-major": lambda: flat[: rows * columns].reshape(rows, columns),
        "column-major, padded": lambda: wide[1 : rows + 1, :columns],
        "row-major, padded": lambda: long[:rows, 1 : columns + 1],
        "every other column": lambda: wide[:rows, : 2 * columns : 2],
        "backwards": lambda: wide[rows - 1 :: -1, :columns],
        "two steps": lambda: wide[: 2 * rows : 2, : 2 * columns : 2],
    }


HOWS = tuple(matrices(np.empty(15), 1, 1))


def memory_for(rng, precision, rows, columns):
    return random_matrix(rng, precision, 2 * rows + 3, 2 * columns + 1).ravel("F")
