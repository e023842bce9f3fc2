"""SciPy's BLAS is imported by the first call that needs it, and everything is as if it had been."""

from __future__ import annotations

import copy
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.linalg.blas
from helpers import entry_with, run_python

import clgemm
from clgemm import errors
from clgemm.api import small
from clgemm.dispatch import break_even, engines
from clgemm.dispatch.times import BreakEven, Curve
from clgemm.errors import GemmArgumentError
from clgemm.host import scipy_blas
from clgemm.problem import PRECISIONS
from clgemm.runtime import devices, registry
from clgemm.tuning import verification
from clgemm.tuning.measure import timing
from clgemm.tuning.store import lookup

S = PRECISIONS["s"]
CALL = """
import sys
import numpy as np
import clgemm
heavy = (
    "scipy.linalg", "scipy.optimize", "clgemm.tuning.search.search", "clgemm.tuning.measure.verify",
)
assert not [name for name in heavy if name in sys.modules], "the import"
a = np.ones((300, 300), np.float32, order="F")
assert (clgemm.sgemm(1.0, a, a) == 300).all()
loaded = [name for name in heavy if name in sys.modules]
assert not loaded, loaded
why = clgemm.explain(a, a)
assert why.route == "device" and "tuned" not in why.origin, why
tiny = a[:4, :4]
assert (clgemm.sgemm(2.0, tiny, tiny) == 8).all()
assert ("scipy.linalg" in sys.modules) == (clgemm.explain(tiny, tiny).route == "host")
"""


@pytest.fixture
def fresh(device, monkeypatch, tmp_path):
    """Give an engine that knows parameters and no break-evens, and an empty cache directory."""
    monkeypatch.setenv("CLGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CLGEMM_TUNE", "auto")
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    found = next(f for f in devices.find() if f.traits == device.traits)
    fresh = engines.of(registry.Device(found, "a test"))
    fresh.parameters.use("s", lookup.defaults(device.traits, S, "a test"))
    with registry.using(fresh.device):
        yield fresh


@pytest.mark.process
@pytest.mark.parametrize("route", ["auto", "device"])
def test_a_call_on_a_device_imports_no_scipy_linalg(route, fresh, monkeypatch):
    """Nor what only a search needs, if parameters and break-evens are known."""
    sides = (
        Curve.fitted({shape: seconds * math.prod(shape[:3]) for shape in break_even.SHAPES})
        for seconds in (1e-9, 1e-11)
    )
    times = BreakEven(*sides)
    monkeypatch.setattr(break_even, "measured", lambda *_: times)
    monkeypatch.setattr(timing.Neighbours, "share", lambda _self: 0.0)
    configs = fresh.parameters.of("s").configs
    store = lookup.store_for(fresh.device.traits)
    assert store.write(lookup.entry_name(S), entry_with(*configs))
    verification.remember(store, S, configs)
    fresh.measure_break_evens(S)
    name = fresh.device.traits.platform.split()[0]
    run = run_python(CALL, CLGEMM_ROUTE=route, CLGEMM_DEVICE=name)
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.process
def test_errors_are_scipys_too_whenever_it_is_imported():
    program = """
import pickle, sys
import clgemm
import numpy as np
assert "scipy.linalg" not in sys.modules
try:
    clgemm.dgemm(1.0, np.ones((2, 3)), np.ones((2, 3)))
except clgemm.GemmArgumentError as error:
    mine = error
import scipy.linalg.blas
try:
    scipy.linalg.blas.dgemm(1.0, np.ones((2, 3)), np.ones((2, 3)))
except Exception as error:
    theirs = error
assert isinstance(mine, type(theirs)) and isinstance(mine, ValueError), type(mine).__mro__
"""
    run = run_python(program)
    assert (run.stderr, run.returncode) == ("", 0)


def test_errors_can_be_copied_and_pickled():
    error = GemmArgumentError("sgemm: no", 3)
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert type(again) is type(error)
        assert again.args == error.args
    assert type(error).__name__ == "GemmArgumentError"
    assert repr(error) == "GemmArgumentError('sgemm: no', 3)"
    assert isinstance(error, errors.scipy_error())


def test_a_subclass_of_an_error_stays_one():
    class OwnError(GemmArgumentError):
        pass

    assert type(OwnError("x")) is OwnError


@pytest.mark.parametrize(
    ("extension", "want"),
    [
        (SimpleNamespace(__fblas_error=KeyError), KeyError),
        (SimpleNamespace(error=OSError), OSError),
        (SimpleNamespace(), Exception),
        (None, Exception),
    ],
)
def test_a_scipy_without_its_own_error_leaves_ours_alone(extension, want):
    assert errors.scipy_error(SimpleNamespace(_fblas=extension)) is want


def test_small_products_ask_for_scipys_routine_once(monkeypatch):
    monkeypatch.setenv("CLGEMM_ROUTE", "auto")
    asked = []
    monkeypatch.setattr(small, "_ROUTINES", small._Routines())
    monkeypatch.setattr(
        scipy_blas, "gemm", lambda code: asked.append(code) or scipy.linalg.blas.sgemm
    )
    a = np.ones((2, 2), np.float32, order="F")
    for _ in range(3):
        assert (clgemm.sgemm(1.0, a, a) == 2).all()
    assert asked == ["s"]


@pytest.mark.process
def test_threads_that_need_it_at_once_get_one_module():
    program = """
import sys, threading
from clgemm.host import scipy_blas
assert "scipy.linalg.blas" not in sys.modules
start, found = threading.Barrier(8), []
def ask():
    start.wait()
    found.append(scipy_blas.gemm("d"))
threads = [threading.Thread(target=ask) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
import scipy.linalg.blas
assert len(found) == 8
assert all(f is scipy.linalg.blas.dgemm for f in found)
"""
    run = run_python(program)
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.process
@pytest.mark.parametrize("place", ["scipy.linalg", "scipy.linalg.blas", "scipy.linalg._fblas"])
def test_a_signal_handler_may_multiply_while_its_thread_imports_it(place):
    program = f"""
import sys
import numpy as np
import clgemm
a, within = np.ones((3, 3)), []
class Finder:
    def find_spec(self, name, *more):
        if name == {place!r} and not within:
            within.append(None)
            within.append(clgemm.dgemm(2.0, a, a))
sys.meta_path.insert(0, Finder())
assert (clgemm.dgemm(1.0, a, a) == 3).all()
assert (within[1] == 6).all()
"""
    run = run_python(program, CLGEMM_ROUTE="host")
    assert (run.stderr, run.returncode) == ("", 0)


@pytest.mark.process
@pytest.mark.parametrize("first", ["clgemm", "scipy.linalg"])
def test_programs_may_replace_scipys_functions_before_the_first_call(first):
    program = f"""
import {first}
import os
import numpy as np
import scipy.linalg
import clgemm
blas = scipy.linalg.blas
for code in "sdcz":
    setattr(blas, code + "gemm", getattr(clgemm, code + "gemm"))
blas.get_blas_funcs = clgemm.get_blas_funcs
if {first == "scipy.linalg"}:  # then every place may be filled by clgemm's
    blas._fblas.dgemm, scipy.linalg.get_blas_funcs = clgemm.dgemm, clgemm.get_blas_funcs
a = np.ones((3, 3))
os.environ["CLGEMM_ROUTE"] = "host"
assert (blas.dgemm(1.0, a, a, beta=1.0, c=a) == 4).all()
assert blas.get_blas_funcs("gemm") is clgemm.dgemm
assert blas.get_blas_funcs("gemv").typecode == "d"
"""
    run = run_python(program)
    assert (run.stderr, run.returncode) == ("", 0)


def test_scipys_functions_that_are_nowhere_left_are_named(monkeypatch):
    scipy_blas.gemm("s")
    for place in (scipy.linalg.blas, scipy_blas.extension()):
        monkeypatch.setattr(place, "sgemm", clgemm.sgemm)
    with pytest.raises(RuntimeError, match=r"own sgemm.*import scipy\.linalg before clgemm"):
        scipy_blas.gemm.__wrapped__("s")
