"""Machine code in front of the callback: who gets a call, and what it leaves as it was."""

from __future__ import annotations

import ctypes
import struct
import threading

import pytest
from clients import needs_compiler

from clgemm.interpose import stub

pytestmark = [needs_compiler, pytest.mark.usefixtures("restored")]

FORMS = [(by_value, wide) for by_value in (True, False) for wide in (True, False)]
EXTENTS = [(3, 4, 5), (2, 3, 4), (3, 3, 4), (2, 2, 3), (4, 4, 5), (0, 1, 2)]
"""Where m, n and k are: of gemm, syrk and gemmt by CBLAS and Fortran, and where no function has
them."""
UNDEFINED = 0x5EADBEEF << 32
"""What the upper half of a register may hold beside an integer of 32 bits."""


class Placed:
    """A stub whose original records its arguments."""

    def __init__(self, paths, by_value, wide, least, done=0, extents=(3, 4, 5)):
        self.library = ctypes.CDLL(str(paths["registers"]))
        self.by_value, self.wide, self.extents, self.shown = by_value, wide, extents, []
        self.done = done

        @stub.Shown
        def show(block):
            self.shown.append([ctypes.c_int64.from_address(block + 8 * i).value for i in range(10)])
            stack = self.shown[-1][9]
            self.shown[-1] += [ctypes.c_int64.from_address(stack + 8 * i).value for i in (0, 1)]
            ctypes.c_int64.from_address(block).value = self.done

        self._show, self.cell = show, stub.cell()
        original = stub.address_of(self.library.record)
        self.cell.fill(original, stub.address_of(show), least)
        code = stub.code(self.cell.address, extents, by_value=by_value, wide=wide)
        (self.address,) = stub.place([code])

    def __call__(self, m, n, k):
        """Call it; return what the original saw, None if it was not called."""
        memory = struct.pack("3q" if self.wide else "3i", m, n, k)
        self._memory = ctypes.create_string_buffer(memory)
        start, size = ctypes.addressof(self._memory), 8 if self.wide else 4
        words = [1, 2, 3, 4, 5, 6]
        for number, (place, x) in enumerate(zip(self.extents, (m, n, k), strict=True)):
            bits = x & (2**64 - 1) if self.wide else UNDEFINED | (x & (2**32 - 1))
            words[place] = bits if self.by_value else start + number * size
        words += [0x3FF8000000000000, 0x4004000000000000, 77, 88]
        seen = (ctypes.c_int64 * 12).in_dll(self.library, "seen")
        kept = (ctypes.c_int64 * 5).in_dll(self.library, "kept_after")
        seen[:], kept[:] = [0] * 12, [0] * 5
        wanted = struct.unpack("10q", struct.pack("10Q", *words))
        before = len(self.shown)
        self.library.call_it(ctypes.c_void_p(self.address), (ctypes.c_int64 * 10)(*wanted))
        assert list(kept) == [11, 12, 13, 14, 15]
        assert seen[11] == 0, "the stack is where it was"
        assert all(x[1:9] == list(wanted[:8]) and x[10:] == [77, 88] for x in self.shown[before:])
        if not any(seen[:10]):
            return None
        assert seen[10] % 16 == 8, "the stack is aligned as the ABI wants it"
        assert tuple(seen[:10]) == wanted
        return wanted


SMALL = [(10, 10, 10), (1, 10**6, 10**6), (10**6, 1, 10**6), (2, 2, 250), (-5, 7, 10**6),
         (7, -5, 10**6), (500, 500, -1), (10**6, 10**6, 0), (0, 0, 0)]  # fmt: skip
LARGE = [(10, 10, 11), (11, 10, 10), (2, 2, 251), (2**30, 2**30, 2), (2**31 - 1,) * 3]
LARGER = [(2**40, 2**40, 2), (2, 2**40, 2**40)]


@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize(("by_value", "wide"), FORMS)
def test_only_large_products_are_shown(paths, by_value, wide, extents):
    call = Placed(paths, by_value, wide, least=1000, extents=extents)
    is_square = extents[0] == extents[1]

    def fitting(rows):
        return [(m, n, k) for m, n, k in rows if m == n or not is_square]

    small, large = fitting(SMALL), fitting(LARGE + LARGER * wide)
    for count, sizes in enumerate(small, 1):
        assert call(*sizes) is not None
        assert (call.shown, call.cell.calls) == ([], count), sizes
    for count, sizes in enumerate(large, 1):
        assert call(*sizes) is not None
        assert len(call.shown) == count, sizes
    assert call.cell.calls == len(small) + len(large)


@pytest.mark.parametrize(("by_value", "wide"), FORMS)
def test_what_python_has_computed_does_not_reach_the_original(paths, by_value, wide):
    call = Placed(paths, by_value, wide, least=1000, done=1)
    assert call(10, 10, 11) is None
    assert call(10, 10, 10) is not None
    assert len(call.shown) == 1


def test_the_threshold_can_be_changed(paths):
    call = Placed(paths, by_value=True, wide=True, least=1000)
    call.cell.set_least(2**70)
    assert call.cell.least == stub.NEVER
    call(2**20, 2**20, 2**20)
    assert call.shown == []
    call.cell.set_least(8)
    call(3, 3, 3)
    assert len(call.shown) == 1


@pytest.mark.parametrize("number", range(stub.SIZES))
@pytest.mark.parametrize(("by_value", "wide"), FORMS)
def test_some_larger_sizes_may_be_left_to_the_original(paths, by_value, wide, number):
    call = Placed(paths, by_value, wide, least=1000, done=1)

    def left():
        return [call.cell.left_calls(x) for x in range(stub.SIZES)]

    call.cell.leave(number, 10 * 11 * 12)
    expected = [0] * stub.SIZES
    expected[number] = 2
    for sizes in ((10, 11, 12), (2, 2, 330), (10, 10, 10)):
        assert call(*sizes) is not None
    assert (call.shown, call.cell.calls, left()) == ([], 3, expected)
    for sizes in ((10, 11, 13), (10, 11, 11), (2**31 - 1,) * 3):
        assert call(*sizes) is None
    call.cell.leave(number, 0)
    assert call(10, 11, 12) is None
    assert (len(call.shown), left()) == (4, expected)


def test_all_sizes_that_are_left_are_told_apart(paths):
    call = Placed(paths, by_value=True, wide=True, least=10)
    for number in range(stub.SIZES):
        call.cell.leave(number, 100 * (number + 1))
    for number in range(stub.SIZES):
        for _ in range(number + 1):
            call(10, 10, number + 1)
    assert [call.cell.left_calls(x) for x in range(stub.SIZES)] == [*range(1, stub.SIZES + 1)]
    assert call.shown == []
    call(10, 10, stub.SIZES + 1)
    assert len(call.shown) == 1


def test_calls_of_all_threads_are_counted(paths):
    call = Placed(paths, by_value=True, wide=True, least=stub.NEVER)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(call.address)

    def work():
        for _ in range(20000):
            function(0, 0, 0, 2, 2, 2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert call.cell.calls == 80000


def test_code_is_never_writable(paths):
    from clgemm.runtime.mappings import Mappings  # noqa: PLC0415 - reads /proc

    call = Placed(paths, by_value=True, wide=True, least=0)
    mappings = Mappings()
    assert mappings.at(call.address).access[:3] == "r-x"
    assert mappings.at(call.cell.address).access[:3] == "rw-"
