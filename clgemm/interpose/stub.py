"""Machine code between a caller and a BLAS function: small products never reach Python.

A stub counts the call and compares its size with a threshold.  A small product goes on to the
original, with every argument where the caller has put it.  A large one is shown to a function of
Python's first; unless that has computed it, it goes on to the original, too.  So whatever happens
in Python, an exception at its first instruction included, the product is computed.

Some sizes beyond the threshold may be told to the stub that are left to the original as well: to be
shown takes some 8 us, and 90 where other data has taken Python's place in the caches, and programs
make thousands of calls of a few kinds.

Functions that clgemm does not compute have a stub that counts, and no more.

Only threads that Python knows are shown to it.  The threads of an OpenMP team are not, so no such
thread waits for the interpreter's lock, which the team's first thread may hold.

x86-64, System V ABI.  What a stub reads lies in a cell of 256 bytes on another page than its code.
Neither is ever given back: a thread may be inside.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from clgemm.runtime.machine_code import executable, memory

if TYPE_CHECKING:
    from collections.abc import Sequence

CELL_BYTES, CODE_BYTES = 256, 64  # of which either begins at a multiple
_CALLS, _LEAST, _ORIGINAL, _SHOWN, _THREAD_STATE, _RAISE, _SOON, _LEFT = range(0, 64, 8)
"""Where in a cell are: the count of calls, the product m * n * k up to which a call is small, the
original's address, the function's of Python, and three of Python's own: what tells a thread's
state, `PyObject_IsTrue`, and what has the main thread call it; `SIZES` times the product of larger
calls that are left to the original, and behind each the count of these."""
SIZES = 12
"""Of calls that are left to the original, at most: they fill a cell."""
NEVER = 2**63 - 1
"""A threshold that no product exceeds."""
REGISTERS, STACK = 8, 72
"""Where, in the block that the function of Python gets, the registers are, and the address of the
arguments behind them.  Before is what it answers."""
COMPUTED, RAISES = 1, 2
"""What it answers: the product is computed, so the original is not called; what now lies at `STACK`
is an object whose `__bool__` raises, in the main thread, as soon as that is in Python again."""

Shown = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""The function of Python's: it takes the address of the block."""

_REGISTERS = (7, 6, 2, 1, 8, 9)
"""The numbers of the registers of arguments, by their place: rdi, rsi, rdx, rcx, r8, r9."""
_RAX, _R10 = 0, 10
_CMP = 7  # what the instruction 83 does, instead of a register


def _size(extents: Sequence[int], *, by_value: bool, wide: bool) -> str:
    """Write what computes m * n * k in r10, of arguments at these places, or addresses there.

    A product that does not fit into 64 bits is large.  Only r10, r11 and the flags may change, and
    r11 is the cell's address.  Of 32-bit integers, the upper halves of registers are not defined.
    """
    m, n, k = (_REGISTERS[x] for x in extents)

    def of(opcode: str, register: int, argument: int, *, is_wide: bool) -> str:
        """Encode an instruction of a register and an argument."""
        rex = 0x40 | is_wide << 3 | register >> 3 << 2 | argument >> 3
        operands = (0xC0 if by_value else 0) | (register & 7) << 3 | argument & 7
        return f"{rex:02X} {opcode} {operands:02X}"

    small = [  # cmp m, 1; jle small: as NumPy's vectors are
        of("83", _CMP, x, is_wide=wide) + "01 7E {small}" for x in dict.fromkeys((m, n))
    ]
    if wide:
        first = of("8B", _R10, m, is_wide=True)  # mov r10, m
        times = [of("0F AF", _R10, x, is_wide=True) + "70 {large}" for x in (n, k)]
        return "".join([*small, first, *times])  # imul r10, n; jo large
    first = of("63", _R10, m, is_wide=True)  # movsxd r10, m
    times = [
        of("63", _RAX, x, is_wide=True)  # movsxd rax, n
        + "4C 0F AF D0"  # imul r10, rax       the first does not overflow: 31 bits each
        for x in (n, k)
    ]
    # push rax, and pop rax, which leaves the flags; jo large
    return "".join([*small, first, "50", *times, "58 70 {large}"])


_FRONT = (
    "F3 0F 1E FA"  # endbr64             where indirect jumps may end
    "49 BB {cell}"  # mov r11, cell
    "F0 49 FF 03"  # lock inc qword [r11]     calls, of all threads
)
_ON = "41 FF 63 10"  # jmp [r11+16]     the original
_LEAVE = "".join(
    f"4D 3B 93 {size:02X} 00 00 00"  # cmp r10, [r11+size]
    "75 0C"  # jne over what follows
    f"F0 49 FF 83 {size + 8:02X} 00 00 00"  # lock inc qword [r11+size+8]
    "41 FF 63 10"  # jmp [r11+16]     the original
    for size in range(_LEFT, _LEFT + 16 * SIZES, 16)
)
_COMPARE = (
    "4D 3B 53 08"  # cmp r10, [r11+8]
    "7F 09"  # jg over the next two jumps
    "41 FF 63 10"  # small: jmp [r11+16]     the original
    f"E9 {struct.pack('<i', 21 * SIZES).hex()}"  # large: jmp over _LEAVE
) + _LEAVE
_SMALL_AT, _LARGE_AT = 6, 10
"""Where in this jumps go that come before it: no product of more than 64 bits is left."""
_LARGE = (
    "4C 8D 54 24 08"  # lea r10, [rsp+8]    behind the return address: arguments on the stack
    "48 83 EC 08"  # sub rsp, 8          16-byte alignment, at the call below
    "0F AE 1C 24"  # stmxcsr [rsp]       block[80]: rounding, and floating-point errors so far
    "41 52"  # push r10            block[72]
    "48 83 EC 10"  # sub rsp, 16
    "F2 0F 11 04 24"  # movsd [rsp], xmm0    block[56]: alpha, if by value
    "F2 0F 11 4C 24 08"  # movsd [rsp+8], xmm1   block[64]: beta
    "41 51 41 50"  # push r9; push r8    block[48], block[40]
    "51 52 56 57"  # push rcx, rdx, rsi, rdi    block[32] ... block[8]
    "6A 00"  # push 0              block[0]: not computed
    "41 FF 53 20"  # call [r11+32]       the thread's state in Python, which needs no lock
    "48 85 C0"  # test rax, rax
    "74 11"  # je over the call    a thread that is not Python's
    "49 BB {cell}"  # mov r11, cell
    "48 89 E7"  # mov rdi, rsp        the block
    "41 FF 53 18"  # call [r11+24]       the function of Python's
    "F6 04 24 02"  # test byte [rsp], 2  whether something is to be raised
    "74 1C"  # je over all of that
    "49 BB {cell}"  # mov r11, cell
    "49 8B 7B 28"  # mov rdi, [r11+40]   PyObject_IsTrue
    "48 8B 74 24 48"  # mov rsi, [rsp+72]   the object
    "41 FF 53 30"  # call [r11+48]       Py_AddPendingCall, which needs no lock
    "48 83 24 24 01"  # and qword [rsp], 1
    "58"  # pop rax             whether it is computed
    "5F 5E 5A 59"  # pop rdi, rsi, rdx, rcx
    "41 58 41 59"  # pop r8; pop r9
    "F2 0F 10 04 24"  # movsd xmm0, [rsp]
    "F2 0F 10 4C 24 08"  # movsd xmm1, [rsp+8]
    "0F AE 54 24 18"  # ldmxcsr [rsp+24]    NumPy would report errors of kernels as its own
    "48 83 C4 20"  # add rsp, 32
    "48 85 C0"  # test rax, rax
    "75 0E"  # jne over the jump
    "49 BB {cell}"  # mov r11, cell
    "41 FF 63 10"  # jmp [r11+16]        the original, as if nothing had been
    "C3"  # ret
)


def address_of(function: Any) -> int:
    """Return where a function of ctypes' begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _pythons(name: str) -> int:
    return address_of(getattr(ctypes.pythonapi, name))


class Cell(NamedTuple):
    """What a stub reads and counts."""

    address: int

    @property
    def calls(self) -> int:
        """How often the stub was called."""
        return self._word(_CALLS).value

    @property
    def least(self) -> int:
        """The product m * n * k up to which calls are small."""
        return self._word(_LEAST).value

    def set_least(self, product: int) -> None:
        """Change that: one store, while calls go on."""
        self._word(_LEAST).value = min(product, NEVER)

    def left_calls(self, number: int) -> int:
        """Return how many larger calls were made of the sizes with a number below `SIZES`."""
        return self._word(_LEFT + 16 * number + 8).value

    def leave(self, number: int, product: int) -> None:
        """Leave calls of a product m * n * k to the original, unless it is 0.

        No more of those that were left before with the same number, whose count goes on.
        """
        self._word(_LEFT + 16 * number).value = product

    def fill(self, original: int, shown: int, least: int) -> None:
        """Say where calls go, before the stub is used."""
        self._word(_ORIGINAL).value = original
        self._word(_SHOWN).value = shown
        self._word(_THREAD_STATE).value = _pythons("PyGILState_GetThisThreadState")
        self._word(_RAISE).value = _pythons("PyObject_IsTrue")
        self._word(_SOON).value = _pythons("Py_AddPendingCall")
        self.set_least(least)

    def _word(self, offset: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(self.address + offset)


def counting_code(cell: int) -> bytes:
    """Assemble a stub that counts the call and goes on to the original, whatever its arguments."""
    return _bytes(_FRONT + _ON, struct.pack("<Q", cell))


def code(cell: int, extents: Sequence[int], *, by_value: bool, wide: bool) -> bytes:
    """Assemble the stub of a function that multiplies matrices.

    Parameters
    ----------
    cell : int
        Address of its cell.
    extents : sequence of three integers
        The places of m, n and k among the arguments that are no floating-point numbers, 5 at most.
    by_value : bool
        Whether they are values; else they are addresses.
    wide : bool
        Whether they have 64 bits.
    """
    address = struct.pack("<Q", cell)
    sizes = _size(extents, by_value=by_value, wide=wide).replace(" ", "")
    length = len(_bytes(sizes.replace("{small}", "00").replace("{large}", "00"), address))
    found = b""
    for before, target in _jumps(sizes):  # 8 bits, counted from behind the jump
        found += _bytes(before, address)
        if target:
            there = length + (_SMALL_AT if target == "small" else _LARGE_AT)
            found += struct.pack("<b", there - len(found) - 1)
    return _bytes(_FRONT, address) + found + _bytes(_COMPARE + _LARGE, address)


def _jumps(text: str) -> list[tuple[str, str]]:
    """Cut a text behind each jump: what comes before, and where it goes."""
    parts = text.replace("}", "{").split("{")
    targets = [*parts[1::2], ""]
    return list(zip(parts[::2], targets, strict=True))


def _bytes(text: str, cell: bytes) -> bytes:
    return bytes.fromhex(text.replace("{cell}", cell.hex()))


def place(codes: Sequence[bytes]) -> list[int]:
    """Write stubs to a page, or several, and return their addresses.

    Raises
    ------
    OSError
        If the system allows no memory to be made executable.
    """
    padded = [x + b"\xcc" * (-len(x) % CODE_BYTES) for x in codes]
    start = executable(b"".join(padded))
    ends = [sum(map(len, padded[:number])) for number in range(len(padded))]
    return [start + end for end in ends]


_free_cells: list[int] = []


def cell() -> Cell:
    """Return a new cell, all zeros."""
    if not _free_cells:
        start = memory(mmap.PAGESIZE)
        _free_cells.extend(range(start, start + mmap.PAGESIZE, CELL_BYTES))
    return Cell(_free_cells.pop(0))
