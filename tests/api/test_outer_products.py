"""A column times a row goes to numpy.dot only with a result that it writes into."""

from __future__ import annotations

import numpy as np
import pytest

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
    a, b = (rng.uniform(-9, 9, x).astype("f4") for x in ((40, 1), (1, 30)))
    want, got = OUTS[how](), OUTS[how]()
    if scale > 1 and want.shape == (40, 30):
        a, want, got = (np.repeat(x, scale, axis=0) for x in (a, want, got))
    with clgemm.settings.using(route=route):
        for _ in range(3):  # later ones by what is remembered
            assert outcome(clgemm.matmul, a, b, got) == outcome(np.matmul, a, b, want)
            np.testing.assert_array_equal(got, want, strict=True)
            got[...] = want[...] = 5


@pytest.mark.usefixtures("in_use")
def test_later_stacks_of_complex_columns_have_the_bits_of_the_first_one(rng):
    a, b = (rng.normal(size=x) + 1j * rng.normal(size=x) for x in ((10, 400, 1), (1, 43)))
    with clgemm.settings.using(route="auto"):
        first = clgemm.matmul(a, b)
        for _ in range(3):
            assert clgemm.matmul(a, b).tobytes() == first.tobytes()
    np.testing.assert_allclose(first, a * b, rtol=1e-15)
