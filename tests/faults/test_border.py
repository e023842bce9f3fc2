"""The list of calls that cross the border is complete, and each of them can be made to fail."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import border
import pytest
from border import OPENCL, Faults

import clgemm
from clgemm.runtime.opencl import arrays, cl, load, tools

HANDLES = (
    "Platform", "Device", "Context", "CommandQueue", "Event", "NannyEvent", "Buffer", "MemoryMap",
    "SVM", "_Program", "Program", "Kernel", "MemoryPool", "ImmediateAllocator", "Array",
)  # fmt: skip
ELSEWHERE = {
    "int_ptr": "a number that a handle has",
    "mem": "what an SVM was made of",
    "base_data": "a handle that an Array has", "queue": "likewise", "allocator": "likewise",
    "events": "a list that an Array has",
    "kind": "of DeviceTraits",
    "dtype": "facts that an Array knows without asking", "flags": "likewise", "nbytes": "likewise",
    "ndim": "likewise", "offset": "likewise", "shape": "likewise", "strides": "likewise",
    "T": "of NumPy's arrays", "astype": "likewise", "conj": "likewise", "data": "likewise",
    "imag": "likewise", "real": "likewise", "reshape": "likewise", "view": "likewise",
    "transpose": "likewise",
    "conjugate": "of contraction", "dot": "likewise", "vdot": "likewise", "squeeze": "NumPy's",
    "as_strided": "NumPy's", "empty_like": "NumPy's", "zeros": "NumPy's",
    "_copy": "of Copies", "device": "of an engine", "get": "of a dictionary",
    "map": "of an executor", "max": "Python's", "set": "of Stop", "warn": "of the module warnings",
}  # fmt: skip
"""Names in the package that pyopencl has as well, and why they do not cross the border."""


def package():
    """Yield the syntax trees of all modules that speak with pyopencl."""
    for path in Path(clgemm.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "opencl" in text:
            yield ast.parse(text)


def names_in_package():
    """Return every name of an attribute, and every one that a getattr may ask for."""
    nodes = [node for tree in package() for node in ast.walk(tree)]
    found = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found | {
        node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str
    }


def made_in_package():
    """Return the classes of pyopencl's that the package makes objects of."""
    calls = (node.func for tree in package() for node in ast.walk(tree) if type(node) is ast.Call)
    return {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute) and ast.unparse(call.value).endswith(("cl", "tools"))
    } & set(HANDLES)


def owners(name):
    """List the functions and handles of pyopencl's that have a name."""
    found = []
    for module in (load(), tools(), arrays()):
        value = module.__dict__.get(name)
        if inspect.isroutine(value) or type(value).__name__ == "nb_func":
            found.append(module.__name__)
        found += [kind for kind in HANDLES if hasattr(getattr(module, kind, None), name)]
    return found


def test_every_call_is_listed(capsys):
    listed = {row.name for row in OPENCL} | set(ELSEWHERE)
    names = (x for x in names_in_package() - listed if not x.startswith("__"))
    assert [(name, owners(name)) for name in names if owners(name)] == []
    assert made_in_package() <= {row.owner for row in OPENCL if row.name == "__init__"}
    with capsys.disabled():
        routines = {row.routine for row in OPENCL}
        print(f"{len(OPENCL)} calls of {len(routines)} OpenCL functions ", end="")


def test_nothing_is_listed_that_the_package_does_not_use():
    names = names_in_package() | {"__init__", "__call__", "__imul__"}
    assert [str(row) for row in OPENCL if row.name not in names] == []


@pytest.mark.parametrize("row", OPENCL, ids=str)
def test_each_can_be_made_to_fail(row, monkeypatch):
    """And is as it was when it is let through."""
    faults = Faults(monkeypatch.setattr)
    owner = border.owner_of(row)
    call = owner.__dict__[row.name]
    call = getattr(call, "fget", call)
    call = getattr(call, "__func__", call)
    faults.arm(str(row), 1, lambda: border.opencl_error(row.errors[0], row.routine))
    with pytest.raises(cl.Error, match=row.routine) as caught:
        call(None)
    assert caught.value.code == getattr(cl.status_code, row.errors[0])
    assert (faults.calls[str(row)], faults.fired) == (1, 1)
