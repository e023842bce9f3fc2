"""Lets every call of a scenario fail in turn, and looks at what becomes of the product.

The scenario runs once while its calls are counted.  Then it runs again and again, and each time
another call fails: out of memory, a lost device, a refused build, no thread, a full disk.  All
faults, rather than the suite's sample:

    python tests/faults/attack.py
"""

from __future__ import annotations

import argparse
import operator
import sys
import threading
import traceback
import warnings
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

import border
import conftest
import scenarios
from border import BESIDE, OPENCL, Faults, Row
from scenarios import FRESH, KEPT, World

from clgemm.errors import ClgemmError, ClgemmWarning

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 300  # until something counts as hung
SAMPLE = 5  # one fault in so many is tried where a process must be new to each


def in_thread(call):
    """Call in a thread of its own; return the result, or what was raised, and the warnings."""
    answers = []

    def run():
        try:
            answers.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            answers.append((None, error))

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), "it hangs"
    return *answers[0], [str(w.message) for w in heard if issubclass(w.category, ClgemmWarning)]


class Fault(NamedTuple):
    """What fails, at which of its calls, and how."""

    name: str
    turn: int
    label: str
    make: Callable[[], BaseException]
    for_ever: bool = False

    def __str__(self):
        return f"{self.name}, call {self.turn}: {self.label}"


def errors_of(name, what):
    """List names of errors that a call can raise, and what makes them."""
    if isinstance(what, Row):
        return [(x, partial(border.opencl_error, x, what.routine)) for x in what.errors]
    return [(type(x).__name__, lambda x=x: x) for x in border.host_errors(name, what)]


def faults_of(calls, *, every):
    """Yield the faults that a counted run can meet."""
    targets = [(str(row), row) for row in OPENCL]
    targets += [(name, owner) for owner, name in BESIDE]
    for number, (name, what) in enumerate(targets):
        count, errors = calls[name], errors_of(name, what)
        turns = {1, 2, 3, (1 + count) // 2, count} if every else {1, count}
        chosen = cycle(errors[number % len(errors) :] + errors[: number % len(errors)])
        for turn in sorted(x for x in turns if 0 < x <= count):
            for label, make in errors if every else [next(chosen)]:
                yield Fault(name, turn, label, make)
        if count and isinstance(what, Row):
            yield Fault(name, 1, "lost", partial(border.opencl_error, border.LOST, ""), True)


def said(error):
    """Return an error with the end of its traceback."""
    return "".join(traceback.format_exception(error)[-6:])


def wrong_outcome(product, result, error, heard):
    """Yield what is wrong with what a call returned, raised or said."""
    if error is not None:
        if not isinstance(error, ClgemmError | MemoryError) or not str(error):
            yield f"raised {said(error)}"
        elif product.by_numpy and str(error) != str(border.host_errors("", np)[0]):
            yield f"raised what NumPy does not: {said(error)}"
    else:
        try:
            product.check(result)
        except AssertionError as wrong:
            yield f"was wrong: {wrong}"
    if len(heard) > 1 + product.by_numpy:  # that, and why the device is not used
        yield f"warned {len(heard)} times: {heard}"


def wrong_state(product, error, calls):
    """Yield what a call has left behind."""
    if any(map(operator.ne, map(bytes, product.operands), map(bytes, product.before))):
        yield "changed an operand"
    began = any(calls[x] for x in ("enqueue_nd_range_kernel", "enqueue_copy"))
    if began or error is None or product.c is None:
        pass
    elif bytes(product.c) != bytes(product.c_before):
        yield "changed C though nothing was computed"
    device = product.device()
    if device is not None and device.running:
        yield "is counted as running"
    if device is not None and device.memory.used:
        yield f"keeps {device.memory.used} bytes of device memory"


def run_one(product, faults, fault):
    """Compute with one fault and once more; return what went wrong."""
    product.reset()
    faults.arm(fault.name, fault.turn, fault.make, for_ever=fault.for_ever)
    try:
        result, error, heard = in_thread(product.compute)
    finally:
        faults.disarm()
    problems = [*wrong_outcome(product, result, error, heard),
                *wrong_state(product, error, faults.calls)]  # fmt: skip
    product.reset()
    result, error, _ = in_thread(product.compute)
    if error is not None:
        problems.append(f"the next call raised {said(error)}")
    else:
        problems += [f"the next call {x}" for x in wrong_outcome(product, result, None, ())]
    return problems


def attack(found, scenario, *, every, only=()):
    """Let each call of a scenario fail in turn; return how many faults there were, and problems.

    `only` names the calls that fail, all by default.
    """
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults(patch.setattr)
        for _ in range(2):  # what is kept on disk is there the second time
            product = scenario(World(found, patch))
            faults.arm()
            result = product.compute()
            faults.disarm()
            product.check(result)
        ran, problems = 0, []
        met = list(faults_of(faults.calls.copy(), every=every))
        met = [fault for fault in met if not only or fault.name in only]
        for fault in met if every or only or scenario in KEPT else met[::SAMPLE]:
            with pytest.MonkeyPatch.context() as inner:
                if scenario not in KEPT:
                    product = scenario(World(found, inner))
                problems += [f"{fault}: {x}" for x in run_one(product, faults, fault)]
                ran += faults.fired > 0
    return ran, problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [x.__name__ for x in (*FRESH, *KEPT, scenarios.searched)]
    parser.add_argument("scenario", nargs="*", choices=[[], *names], help="all by default")
    failed = False
    for name in parser.parse_args().scenario or names:
        for found in conftest.DEVICES:
            ran, problems = attack(found, getattr(scenarios, name), every=True)
            failed |= bool(problems)
            print(f"{name} on {found.traits.describe()}: {ran} faults, {len(problems)} problems")
            print("\n".join(problems), end="")
    return failed


if __name__ == "__main__":
    sys.exit(main())
