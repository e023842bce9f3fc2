"""The model that chooses a configuration for a shape: what it is fitted to, and what it ranks."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import CPU, GPU
from scipy.optimize import nnls

from clgemm.kernels import BY_NAME, FAMILIES
from clgemm.kernels.costs import Costs
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS, Operand, describe
from clgemm.tuning import cost_model
from clgemm.tuning.cost_model import Model, Variant
from clgemm.tuning.shapes import SEARCHED, Shape, parse, standard
from clgemm.tuning.store import entries

SHAPES = standard(1024)
NVIDIA = replace(
    GPU, vendor="NVIDIA Corporation", platform="NVIDIA CUDA", compute_units=132,
    compute_capability=(9, 0), local_memory=48 << 10, global_memory=80 << 30,
    max_allocation=20 << 30,
)  # fmt: skip
LAUNCH, WORK = 1e-5, 1e-11
OTHERS = [Shape(1000, 1000, 1000), Shape(70, 2000, 900), Shape(1500, 40, 31), Shape(50, 60, 9000)]


def packed(**changes):
    config = BY_NAME["cpu_packed"].default(CPU, PRECISIONS["s"])
    return Config.of("cpu_packed", dict(config.params) | changes)


def seconds_of(config, rates, shapes=SHAPES, traits=CPU):
    """Give exact times of a device that is as simple as the model."""
    counted = {name: cost_model.costs_of(traits, "s", config, x) for name, x in shapes.items()}
    return {name: float(np.dot(rates, costs)) for name, costs in counted.items()}


def fit(config, rates, shapes=SHAPES, traits=CPU):
    times = seconds_of(config, rates, shapes, traits)
    return cost_model.fitted(traits, "s", SHAPES, config, times)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("code", "sz")
def test_a_shape_s_problem_is_that_of_its_matrices(name, code):
    shape, dtype = SHAPES[name], PRECISIONS[code].dtype
    stack = (shape.batch,) if shape.batch > 1 else ()

    def some(rows, columns, trans):
        order = (rows, columns) if trans else (columns, rows)
        x = np.empty((*stack, *order), dtype)
        return x if trans else x.swapaxes(-1, -2)

    a, b = some(shape.m, shape.k, shape.trans_a), some(shape.k, shape.n, shape.trans_b)
    c = some(shape.m, shape.n, trans=False)
    problem = describe(Operand(a), Operand(b), c, reads_c=False)
    assert shape.problem(code) == problem._replace(aligned=True)


def test_shapes_have_different_names_and_sizes():
    for side in (512, 1024, 4096):
        assert len(set(standard(side).values())) == len(SHAPES)
    assert set(SEARCHED) <= set(SHAPES)
    assert len(SHAPES) > len(Costs._fields), "or the sum could explain any times"


def test_sizes_as_text():
    assert parse("1000") == Shape(1000, 1000, 1000)
    assert parse("3X40x500") == Shape(3, 40, 500)
    for text in ("", "0", "3x4", "-3", "1.5", "3x0x5", "x"):
        with pytest.raises(ValueError, match=rf"^{text}$"):
            parse(text)
    assert str(Shape(3, 4, 5)) == "3 x 4 x 5"
    assert str(Shape(3, 4, 5, 6, trans_b=True)) == "3 x 4 x 5 x 6 NT"


def gemms():
    for shape in (*SHAPES.values(), *OTHERS, Shape(1, 1, 1), Shape(40000, 40000, 40000)):
        yield shape.problem("s")


@pytest.mark.parametrize(("family", "traits", "code"), [
    (family, traits, code)
    for family in FAMILIES
    for traits in (CPU, GPU, NVIDIA)
    for code in "sd"
    if family.supports(traits, PRECISIONS[code])
], ids=lambda value: getattr(value, "name", None))  # fmt: skip
def test_costs_are_positive_and_grow_with_the_problem(family, traits, code):
    config = family.default(traits, PRECISIONS[code])
    for g in gemms():
        costs = family.costs(traits, g._replace(precision=code), config)
        assert all(math.isfinite(x) and x > 0 for x in costs)
        assert costs.busiest * 1.0001 >= costs.shared, "nobody has less to do than the mean"
        twice = g._replace(precision=code, batch=2 * g.batch)
        assert family.costs(traits, twice, config).shared == 2 * costs.shared


def test_a_fit_finds_the_rates_of_a_device_that_is_a_sum():
    true = Costs(LAUNCH, 0, WORK, 0, 2e-10, 0)
    found = fit(packed(), true)
    assert min(found.rates) >= 0
    machine = Model(CPU, "s", SHAPES, (found,))
    for shape in OTHERS:
        want = float(np.dot(true, cost_model.costs_of(CPU, "s", packed(), shape)))
        assert machine.predict(shape.problem("s"), [0])[0] == pytest.approx(want, rel=0.05)


def test_relative_errors_count():
    """Or the largest product would be all that matters."""
    noise = {name: 1 + 0.05 * (-1) ** i for i, name in enumerate(SHAPES)}
    true = Costs(LAUNCH, 0, WORK, 0, 0, 0)
    times = {n: x * noise[n] for n, x in seconds_of(packed(), true).items()}
    found = cost_model.fitted(CPU, "s", SHAPES, packed(), times)
    sums = seconds_of(packed(), found.rates)
    assert max(abs(math.log(sums[n] / times[n])) for n in SHAPES) < 0.15


def test_few_times_are_not_explained_by_many_costs():
    few = {name: SHAPES[name] for name in SEARCHED}
    found = fit(packed(), Costs(LAUNCH, 0, WORK, 0, 0, 0), few)
    assert dict(zip(Costs._fields, found.rates, strict=True)) == pytest.approx(
        dict.fromkeys(Costs._fields, 0.0) | {"launches": LAUNCH, "shared": WORK}
    )


def test_a_family_that_declines_some_shapes_still_shows_what_packing_costs():
    """Times of nv_split on an H200: counted as launches they made it slow at 1024."""
    seconds = {
        "square": 669.5e-6,
        "deep": 269.8e-6,
        "stack": 139.0e-6,
        "turned": 120.7e-6,
        "odd": 133.6e-6,
    }
    config = BY_NAME["nv_split"].default(NVIDIA, PRECISIONS["s"])
    shapes = standard(4096)
    found = cost_model.fitted(NVIDIA, "s", shapes, config, seconds)
    rates = dict(zip(Costs._fields, found.rates, strict=True))
    assert rates["operands"] > 0
    assert rates["launches"] < 1e-5
    one = Model(NVIDIA, "s", shapes, (found,))
    times = one.predict(Shape(1024, 1024, 1024).problem("s"), [0])
    assert times[0] == pytest.approx(32e-6, rel=0.1)


def test_one_cost_less_than_there_are_times_is_told_apart():
    few = {name: SHAPES[name] for name in ("square", "wide", "deep", "thin")}
    rates = Costs(LAUNCH, 0, WORK, 0, 1e-12, 0)
    assert fit(packed(), rates, few).rates == pytest.approx(tuple(rates), rel=1e-6)
    more = Costs(LAUNCH, 0, WORK, 0, 0, 1e-9)
    found = fit(packed(), more, few)
    assert found.rates[Costs._fields.index("results")] == 0


def test_large_products_are_not_much_faster_than_any_that_was_timed():
    times = {name: shape.problem("s").flops / 1e12 for name, shape in SHAPES.items()}
    times["square"] /= 2
    config = packed()
    model = Model(CPU, "s", SHAPES, (cost_model.fitted(CPU, "s", SHAPES, config, times),))
    large = Shape(20000, 20000, 20000).problem("s")
    assert model.least_seconds(large) >= large.flops / 2e12
    half = model.least_seconds(large._replace(triangle=1))
    assert half >= large.flops / 4e12
    assert Model(CPU, "s", SHAPES, (Variant(config, (), {}),)).least_seconds(large) is None


def test_at_a_timed_shape_the_measured_order_counts():
    """Whatever the sums say: here each variant is twice as fast as its sum at one shape."""
    configs = packed(KC=256), packed(KC=512)
    found = []
    for config, name in zip(configs, ("deep", "thin"), strict=True):
        variant = fit(config, Costs(LAUNCH, 0, WORK, 0, 0, 0))
        odd_one = dict(variant.seconds) | {name: variant.seconds[name] / 2}
        found.append(replace(variant, seconds=odd_one))
    machine = Model(CPU, "s", SHAPES, tuple(found))
    for config, name in zip(configs, ("deep", "thin"), strict=True):
        assert machine.choose(SHAPES[name].problem("s")) == config
    m, n, k = SHAPES["deep"][:3]
    assert machine.choose(Shape(m + 3, n - 3, k + 9).problem("s")) == configs[0], "nor nearby"


def test_far_from_all_timed_shapes_the_sum_decides():
    quick_to_start = fit(packed(KC=256), Costs(LAUNCH / 9, 0, 2 * WORK, 0, 0, 0))
    quick_to_work = fit(packed(KC=512), Costs(LAUNCH, 0, WORK, 0, 0, 0))
    machine = Model(CPU, "s", SHAPES, (quick_to_work, quick_to_start))
    assert machine.choose(Shape(20, 20, 20).problem("s")) == packed(KC=256)
    assert machine.choose(Shape(30000, 30000, 30000).problem("s")) == packed(KC=512)


def test_of_equals_the_first_is_chosen():
    """Another kernel is not worth a predicted 2 %."""
    slow = fit(packed(KC=256), Costs(LAUNCH, 0, WORK, 0, 0, 0))
    alike = fit(packed(KC=512), Costs(LAUNCH, 0, 0.98 * WORK, 0, 0, 0))
    fast = fit(packed(KC=512), Costs(LAUNCH, 0, 0.9 * WORK, 0, 0, 0))
    g = Shape(1000, 1000, 1000).problem("s")
    assert Model(CPU, "s", SHAPES, (slow, alike)).choose(g) == slow.config
    assert Model(CPU, "s", SHAPES, (slow, fast)).choose(g) == fast.config


def test_families_that_decline_or_are_refused_are_passed_over():
    families = [BY_NAME["nv_split"], BY_NAME["gpu_tiled"]]
    configs = [f.default(NVIDIA, PRECISIONS["s"]) for f in families]
    fast, slow = (
        fit(config, Costs(LAUNCH, 0, rate, 0, 0, 0), traits=NVIDIA)
        for config, rate in zip(configs, (WORK, 9 * WORK), strict=True)
    )
    machine = Model(NVIDIA, "s", SHAPES, (fast, slow))
    square, thin = (SHAPES[name].problem("s") for name in ("square", "thin"))
    assert machine.choose(square) == configs[0]
    assert machine.choose(thin) == configs[1], "k is too small for halves"
    assert machine.choose(square, {"nv_split"}) == configs[1]
    assert machine.choose(square, {"nv_split", "gpu_tiled"}) is None


def test_without_times_the_first_that_accepts_is_chosen():
    configs = [BY_NAME[name].default(NVIDIA, PRECISIONS["s"]) for name in ("nv_split", "gpu_tiled")]
    machine = Model(NVIDIA, "s", {}, tuple(Variant(c, (), {}) for c in configs))
    assert machine.choose(SHAPES["square"].problem("s")) == configs[0]
    assert machine.choose(SHAPES["thin"].problem("s")) == configs[1]


def test_a_portfolio_has_what_is_best_somewhere_and_no_more():
    a, b, c, d = (packed(KC=kc) for kc in (128, 256, 384, 512))
    best = dict.fromkeys(SHAPES, 1.0)
    times = {
        a: best | {"deep": 2.0},
        b: dict.fromkeys(SHAPES, 1.5) | {"deep": 1.0},
        c: best | {"deep": 1.9},
        d: best | {"deep": 2.5, "thin": 0.96},
    }
    assert cost_model.portfolio(times) == [c, b], "a is like c and d gains too little"


def test_a_portfolio_covers_shapes_that_the_best_declines():
    a, b = packed(KC=128), packed(KC=256)
    fast = {name: 1.0 for name in SHAPES if name != "thin"}
    assert cost_model.portfolio({a: fast, b: dict.fromkeys(SHAPES, 5.0)}) == [a, b]
    assert cost_model.portfolio({b: dict.fromkeys(SHAPES, 5.0)}) == [b]


def test_a_model_survives_json():
    found = fit(packed(), Costs(LAUNCH, 0, WORK, 0, 3e-10, 0)), Variant(packed(KC=256), (), {})
    machine = Model(CPU, "s", SHAPES, found)
    entry = {
        "shapes": {name: list(shape) for name, shape in SHAPES.items()},
        "variants": [entries.variant_as_json(v) for v in found],
    }
    read = entries.stored_model(json.loads(json.dumps(entry)), CPU, PRECISIONS["s"])
    assert read == machine
    assert list(map(str, read.shapes.values())) == list(map(str, SHAPES.values()))


@pytest.mark.parametrize(("times", "kinds"), [(9, 6), (17, 4), (4, 6), (1, 3)])
def test_the_same_as_nonnegative_least_squares(times, kinds, rng):
    for _ in range(20):
        counts = rng.uniform(0, 10.0 ** rng.integers(0, 9, kinds), (times, kinds))
        seconds = rng.uniform(1e-5, 1e-2, times)
        found = np.array(cost_model.fit(counts, seconds))
        rows = counts / seconds[:, None]
        scale = rows.max(axis=0)
        want, miss = nnls(rows / scale, np.ones(times))
        assert np.all(found >= 0)
        assert np.linalg.norm(rows @ found - 1) <= miss + 1e-9
        if times >= kinds:
            np.testing.assert_allclose(found * scale, want, atol=1e-7)


def test_exact_rates_are_found(rng):
    rates = np.array([1e-6, 0.0, 2e-11, 3e-10])
    counts = rng.uniform(1, 1e6, (12, 4))
    np.testing.assert_allclose(cost_model.fit(counts, counts @ rates), rates, rtol=1e-6, atol=1e-16)


def test_only_the_kinds_that_may_count_do(rng):
    counts = rng.uniform(1, 2, (5, 4))
    found = cost_model.fit(counts, counts.sum(axis=1), columns=[1, 3])
    assert found[0] == found[2] == 0
    assert min(found[1], found[3]) >= 0
    assert max(found) > 0


def test_what_never_occurs_costs_nothing():
    assert cost_model.fit(np.array([[0, 2], [0, 4]]), [1.0, 2.0]) == (0.0, pytest.approx(0.5))
