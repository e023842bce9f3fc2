"""A column times a row goes to SciPy only with a result that SciPy writes into."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import run_python
from scipy.linalg import blas

import clgemm

OUTS = {
    "wider": lambda: np.full((40, 30), -7.0),
    "swapped": lambda: np.full((40, 30), -7.0, np.dtype("f4").newbyteorder()),
    "complex": lambda: np.full((40, 30), -7.0, "c16"),
    "integers": lambda: np.full((40, 30), -7, "i4"),
    "half": lambda: np.full((40, 30), -7, "f2"),
    "a column more": lambda: np.full((40, 31), -7, "f4"),
    "transposed": lambda: np.full((30, 40), -7, "f4"),
    "a stack": lambda: np.full((2, 40, 30), -7, "f4"),
    "column-major": lambda: np.full((40, 30), -7, "f4", order="F"),
    "misaligned": lambda: np.zeros(4801, "u1")[1:].view("f4").reshape(40, 30),
    "as it should be": lambda: np.full((40, 30), -7, "f4"),
}


def outcome(function, *arguments):
    try:
        function(*arguments)
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("how", OUTS)
@pytest.mark.parametrize("route", ["auto", "host"])
@pytest.mark.parametrize("scale", [1, 60], ids=["small", "large"])
def test_a_result_of_any_kind_is_written_or_refused_as_by_numpy(how, route, scale, rng):
    assert blas.sgemm, "SciPy's BLAS is loaded, without which NumPy computes"
    a, b = (rng.uniform(-9, 9, x).astype("f4") for x in ((40, 1), (1, 30)))
    want, got = OUTS[how](), OUTS[how]()
    if scale > 1 and want.shape == (40, 30):
        a, want, got = (np.repeat(x, scale, axis=0) for x in (a, want, got))
    with clgemm.settings.using(route=route):
        for _ in range(3):  # later ones by what is remembered
            assert outcome(clgemm.matmul, a, b, got) == outcome(np.matmul, a, b, want)
            np.testing.assert_array_equal(got, want, strict=True)
            got[...] = want[...] = 5


def test_complex_ones_keep_their_bits_once_scipy_is_loaded():
    """NumPy's loop, which computes them before that, rounds their parts otherwise."""
    program = """
import sys
import numpy as np
import clgemm
rng = np.random.default_rng(1)
a, b = (rng.normal(size=x) + 1j * rng.normal(size=x) for x in ((300, 1), (1, 41)))
first = clgemm.matmul(a, b)
assert "scipy.linalg" not in sys.modules
clgemm.zgemm(1.0, a, b)
assert "scipy.linalg" in sys.modules
for _ in range(3):
    assert clgemm.matmul(a, b).tobytes() == first.tobytes()
"""
    run = run_python(program, CLGEMM_ROUTE="auto")
    assert run.returncode == 0, run.stderr


@pytest.mark.usefixtures("in_use")
def test_later_stacks_of_complex_columns_have_the_bits_of_the_first_one(rng):
    assert blas.zgemm, "SciPy's BLAS is loaded, without which NumPy computes"
    a, b = (rng.normal(size=x) + 1j * rng.normal(size=x) for x in ((10, 400, 1), (1, 43)))
    with clgemm.settings.using(route="auto"):
        first = clgemm.matmul(a, b)
        for _ in range(3):
            assert clgemm.matmul(a, b).tobytes() == first.tobytes()
    np.testing.assert_allclose(first, a * b, rtol=1e-15)
