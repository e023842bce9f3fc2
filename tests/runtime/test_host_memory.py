"""Copies between host and device memory: every layout there and back, gaps untouched."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from layouts import separate
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from clgemm.layouts import address_of, layout_of
from clgemm.problem import PRECISIONS
from clgemm.runtime import host_memory, opencl, registry
from clgemm.runtime.opencl import cl

ROOM = (9, 8, 7)


def room(dtype):
    """Make a block of memory with a different number in each element."""
    return (np.arange(np.prod(ROOM)) + 1).astype(dtype).reshape(ROOM)


def interleaved(x):
    """Matrices whose columns take turns in memory."""
    return x.transpose(1, 2, 0)


# What BLAS can express, cut out of `room`; True where no two elements share memory.
LAYOUTS = {
    "row-major": (lambda x: x[0], True),
    "column-major": (lambda x: x[0].T, True),
    "row-major, padded": (lambda x: x[1, :, 2:6], True),
    "column-major, padded": (lambda x: x[1, 1:5, 2:6].T, True),
    "every other row": (lambda x: x[2, ::2], True),
    "one element": (lambda x: x[3, 4:5, 5:6], True),
    "a row": (lambda x: x[3, 4:5], True),
    "a row of a column-major matrix": (lambda x: x[3].T[2:3], True),
    "a row of every third element": (lambda x: x.reshape(1, -1)[:, 5::3], True),
    "the same with a step between rows": (lambda x: x[::8, 0, ::2][:1], True),
    "a column": (lambda x: x[3, :, 2:3], True),
    "a column of every third element": (lambda x: x.reshape(-1, 1)[5::3], True),
    "the same, turned": (lambda x: x.reshape(1, -1)[:, 5::3].T, True),
    "a row repeated": (lambda x: np.broadcast_to(x[2, 3], (5, 7)), False),
    "a number repeated": (lambda x: np.broadcast_to(x[2, 3:4, 4:5], (1, 6)), False),
    "a column repeated": (lambda x: np.broadcast_to(x[2, 3], (5, 7)).T, False),
    "sliding windows": (lambda x: sliding_window_view(x.reshape(-1)[:40], 7), False),
    "sliding windows, turned": (lambda x: sliding_window_view(x.reshape(-1)[:40], 7).T, False),
    "sparse sliding windows": (lambda x: sliding_window_view(x.reshape(-1), 7)[::5], False),
    "stack": (lambda x: x, True),
    "stack, column-major": (lambda x: x.swapaxes(1, 2), True),
    "stack, padded": (lambda x: x[:, :, 1:5], True),
    "stack, fewer rows": (lambda x: x[:, 2:5], True),
    "every other matrix": (lambda x: x[1::2], True),
    "stack of one": (lambda x: x[4:5], True),
    "stack of one padded": (lambda x: x[4:5, :, 2:5], True),
    "stack of rows": (lambda x: x[:, 3:4, 1:6], True),
    "stack of columns": (lambda x: x[:, 1:6, 3:4], True),
    "stack of one matrix": (lambda x: np.broadcast_to(x[2], (4, 8, 7)), False),
    "stack of one padded matrix": (lambda x: np.broadcast_to(x[2, 1:4, 1:4].T, (4, 3, 3)), False),
    "interleaved stack": (lambda x: interleaved(x).swapaxes(1, 2), True),
    "stack of windows": (lambda x: sliding_window_view(x.reshape(-1)[:60], (20,))[::7]
                         .reshape(-1, 4, 5), False),
    "overlapping matrices": (lambda x: as_strided(x, (6, 4, 5), (x.itemsize * 5, x.itemsize * 5,
                                                                 x.itemsize)), False),
}  # fmt: skip


def in_column_order(x):
    """Put the elements as `upload` must place them; a stack of one matrix counts once."""
    layout = layout_of(x)
    stack = x if x.ndim > 2 else x[None]
    if x.ndim > 2 and layout.stride == 0 and x.strides[0] == 0:
        stack = stack[:1]
    return np.concatenate([m.ravel("C" if layout.trans else "F") for m in stack])


def contents(device, buffer, dtype):
    got = np.empty(buffer.size // dtype.itemsize, dtype)
    cl.enqueue_copy(device.queue, got, buffer)
    return got


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("code", "sz")
def test_what_is_placed_has_no_gaps(device, code, name):
    dtype = PRECISIONS[code].dtype
    memory = room(dtype)
    x = LAYOUTS[name][0](memory)
    x.flags.writeable = False
    assert layout_of(x) is not None, "the case is one that the driver does not copy"
    want, apart = in_column_order(x), separate(device)
    np.testing.assert_array_equal(contents(apart, host_memory.place(apart, x), dtype), want)
    np.testing.assert_array_equal(memory, room(dtype))


@pytest.mark.parametrize("name", [name for name, (_, free) in LAYOUTS.items() if free])
def test_what_is_fetched_touches_the_elements_only(device, name):
    dtype = np.dtype(np.float32)
    memory, want = room(dtype), room(dtype)
    x, y = LAYOUTS[name][0](memory), LAYOUTS[name][0](want)
    y *= -1
    apart = separate(device)
    host_memory.fetch(apart, host_memory.place(apart, y), x)
    np.testing.assert_array_equal(memory, want)


WHERE = """
__kernel void where(__global const char *x, __global ulong *out) { out[0] = (ulong)x; }
"""


@pytest.fixture(params=[True, False], ids=["system SVM", "buffers"])
def where(request, device):
    """Give a function that tells where a kernel finds an array, on a device of either kind."""
    if not device.traits.unified_memory:
        pytest.skip(f"{device.traits.describe()} has a memory of its own")
    if request.param and not device.traits.system_svm:
        pytest.skip(f"{device.traits.describe()} follows no host pointers")
    found = next(f for f in registry.devices.find() if f.traits == device.traits)
    found = found._replace(traits=replace(found.traits, system_svm=request.param))
    apart = registry.Device(found, "a test")
    kernel = cl.Kernel(opencl.build(apart.context, WHERE), "where")

    def find(x):
        out = np.zeros((1, 1), np.uint64)
        # Kept until the launch has ended: OpenCL keeps neither.
        places = host_memory.place(apart, x), host_memory.place(apart, out)
        kernel.set_args(*places)
        cl.enqueue_nd_range_kernel(apart.queue, kernel, (1,), (1,)).wait()
        return int(out[0, 0])

    return find


def test_kernels_see_the_memory_of_the_caller(where):
    """Zero copy, by counting the operands that a kernel finds where the caller has them.

    A runtime that copies silently, as Intel's does for read-only buffers that are not on a page,
    shows another address.
    """
    memory = np.zeros(3 << 20, np.uint8)
    seen, wanted = [], []
    for offset, dtype in itertools.product((*range(0, 80, 4), 4092, 4096), "fdFD"):
        itemsize = np.dtype(dtype).itemsize
        if offset % (itemsize // 2 if dtype in "FD" else itemsize):
            continue
        for rows, columns in ((1, 1), (5, 7), (300, 200)):
            flat = memory[offset:][: rows * columns * itemsize].view(dtype)
            for x in (flat.reshape(rows, columns), flat.reshape(columns, rows).T):
                x.flags.writeable = bool(offset % 8)
                seen.append(where(x))
                wanted.append(address_of(x))
    assert len(seen) > 200
    assert sum(x != y for x, y in zip(seen, wanted, strict=True)) == 0


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "stack" in name])
def test_kernels_see_the_stacks_of_the_caller(where, name):
    x = LAYOUTS[name][0](room(np.dtype(np.float32)))
    assert where(x) == address_of(x)


@pytest.mark.parametrize("view", ["stack", "stack, column-major", "row-major", "column-major"])
def test_what_lies_dense_is_passed_as_it_is(where, view, monkeypatch):
    """To make another array of its bytes takes a third of a short call."""
    monkeypatch.setattr(host_memory, "_Span", lambda _: pytest.fail("its bytes are passed"))
    x = LAYOUTS[view][0](room(np.dtype(np.float32)))
    assert where(x) == address_of(x)
