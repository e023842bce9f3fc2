"""The PTX route: from what NVIDIA's compiler made of a kernel to what its assembler shall make.

NVIDIA's OpenCL compiler chooses the plain target of a device (``sm_90``) and refuses instructions
that exist for the architecture-specific one only (``sm_90a``: wgmma, setmaxnreg).  A kernel hides
them in PTX comments that begin with `MARK`; they keep their operands, and the compiler passes them
on.  `retarget` takes the mark away and names the target, and the driver assembles the result.

A kernel may also say, in a line ``//@@.minnctapersm 5``, how many of its work-groups a compute unit
shall hold at once: the assembler then limits its registers, which no build option does where a
kernel requires the size of its work-groups.

So the driver assembles twice, and the first result is of no use.  `unassembled` has each kernel
return at once: the compiler passes on all that follows, and the first assembler drops it, which on
an H200 takes a third off the time of a build.  `retarget` takes the return out again.
"""

from __future__ import annotations

import re

MARK = b"//@@"
_BODY = re.compile(r"^__kernel\b[^{;]*\n\{\n", re.MULTILINE)
_RETURN = 'asm volatile("ret; //@@return" ::: "memory");\n'
_RETURNED = re.compile(rb"^.*" + MARK + rb"return.*\n", re.MULTILINE)
_TARGET = re.compile(rb"^(\.target\s+)sm_\w+", re.MULTILINE)
_WISH = re.compile(rb"^.*" + MARK + rb"(\.minnctapersm \d+).*\n", re.MULTILINE)
# setmaxnreg is ignored unless the number of registers at entry follows from the limits.
_WORK_GROUP = re.compile(rb"^(\.reqntid[^\n]*)$(?!\n\.minnctapersm)", re.MULTILINE)


class PtxError(ValueError):
    """What the compiler returned is not the PTX that was expected."""


def unassembled(text: str) -> str:
    """Have each kernel of a source with marked instructions return at once, until `retarget`."""
    if MARK.decode() not in text:
        return text
    return _BODY.sub(lambda body: body.group() + _RETURN, text)


def retarget(ptx: bytes, target: str) -> bytes:
    """Uncover the marked instructions and assemble for another target.

    Parameters
    ----------
    ptx : bytes
        A program binary of NVIDIA's OpenCL, which is PTX text.
    target : str
        Such as ``sm_90a``.

    Raises
    ------
    PtxError
        If it is no PTX text, or nothing in it is marked.
    """
    targets = len(_TARGET.findall(ptx))
    if targets != 1:
        raise PtxError(f"the program binary is no PTX text: {targets} .target lines")
    if MARK not in ptx:
        raise PtxError(f"no instruction is marked with {MARK.decode()}")
    wish = _WISH.search(ptx)
    units = wish.group(1) if wish else b".minnctapersm 1"
    whole = _WISH.sub(b"", _RETURNED.sub(b"", ptx)).replace(MARK, b"")
    named = _TARGET.sub(rb"\g<1>" + target.encode(), whole)
    return _WORK_GROUP.sub(rb"\1\n" + units, named)
