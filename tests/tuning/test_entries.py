"""Whatever is of its form can be used: no bounded value makes a prediction fail."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from helpers import CPU, GPU

from clgemm.dispatch.times import Curve
from clgemm.kernels import FAMILIES
from clgemm.kernels.costs import Costs
from clgemm.problem import PRECISIONS
from clgemm.tuning.shapes import Shape
from clgemm.tuning.store import entries

NVIDIA = replace(
    GPU, vendor="NVIDIA Corporation", platform="NVIDIA CUDA", compute_capability=(9, 0),
    local_memory=227 << 10,
)  # fmt: skip
MOST = 2**31 - 1
SHAPES = (
    Shape(1, 1, 1), Shape(513, 511, 9), Shape(1, 2**30, 1), Shape(2**30, 2**30, 2**30),
    Shape(100, 3, 77, 2**20),
)  # fmt: skip
chance = random.Random(5)


def size(most):
    return chance.choice([1, 2, 7, 512, most, chance.randrange(1, most)])


def seconds():
    return chance.choice([1e-9, 1e6, 1e-9 + chance.random()])


def rates():
    return {name: chance.choice([0, 1e3, 5e-324, chance.random()]) for name in Costs._fields}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("traits", [CPU, GPU, NVIDIA], ids=["cpu", "gpu", "nvidia"])
@pytest.mark.parametrize("code", "sdcz")
def test_a_model_of_bounded_values_always_chooses(code, traits):
    precision = PRECISIONS[code]
    configs = [f.default(traits, precision) for f in FAMILIES if f.supports(traits, precision)]
    for _ in range(20):
        shapes = {str(i): [*(size(MOST) for _ in "mnkb"), i % 2, i // 2] for i in range(4)}
        variants = [
            {"family": config.family, "params": dict(config.params), "rates": rates(),
             "seconds": {name: seconds() for name in shapes}}
            for config in configs
        ]  # fmt: skip
        entry = entries.keep({"shapes": shapes, "variants": variants}, entries.ENTRY)
        model = entries.stored_model(entry, traits, precision)
        for shape in SHAPES:
            assert model.choose(shape.problem(code)) in configs


@pytest.mark.filterwarnings("error")
def test_break_evens_of_bounded_values_always_predict():
    for _ in range(50):
        rows = [[*(size(1 << 16) for _ in "mnkb"), i % 2, i // 2 % 2, seconds()] for i in range(12)]
        data = {"stamp": "a", "tries": 1, "host": rows, "device": rows[::-1],
                "library": {"kernels": "K", "threads": 1}}  # fmt: skip
        known = entries.keep(data, entries.BREAK_EVEN)
        for shape in SHAPES:
            for side in ("host", "device"):
                assert math.isfinite(Curve.from_json(known[side]).one(shape))
