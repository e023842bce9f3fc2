"""The benches of devices: what they would run, and that they notice a wrong result."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import GPU

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import Config
from clgemm.problem import PRECISIONS

BENCH = Path(__file__).parents[1] / "bench"
if not BENCH.is_dir():
    pytest.skip("an installed clgemm has no benches beside it", allow_module_level=True)
sys.path.insert(0, str(BENCH))

bench_device, bench_ladder, on_device = (
    import_module(name) for name in ("bench_device", "bench_ladder", "on_device")
)

LARGE = replace(GPU, compute_units=132, local_memory=48 << 10, compute_capability=(9, 0))
SMALL = replace(GPU, max_work_group_size=256, local_memory=32 << 10)


@pytest.mark.parametrize("traits", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("code", "sdcz")
def test_every_rung_is_a_point_of_the_space(traits, code):
    family, precision = BY_NAME["gpu_tiled"], PRECISIONS[code]
    space, params = family.space(traits, precision), dict(bench_ladder.PLAIN)
    for step in bench_ladder.LADDER:
        params |= step.changes
        config = bench_ladder.tiled_config(SimpleNamespace(traits=traits), precision, step, params)
        assert isinstance(config, Config), f"{step.name}: {config}"
        assert family.is_valid(traits, precision, config)
        strange = {n: v for n, v in config.params if v not in space[n] and n not in {"MC", "NC"}}
        assert strange == {}, step.name


def test_cases_cover_what_was_asked_for():
    found = list(bench_device.cases(list(bench_device.SETS), "sdcz", [512, 2048, 8192]))
    labels = {case.label for case in found}
    assert len(labels) == len(found)
    assert {"squares  z NN 2048", "fma      s NN 512", "skinny   d NN 256x256x65536"} <= labels
    assert {"ops      s TN 4096", "ops      d NN 2049", "fallback s NN 8192"} <= labels
    assert not any(label.startswith("squares  c NN 8192") for label in labels)


def test_fallback_operands_hide_small_entries_behind_large_ones():
    case = bench_device.Case("fallback", on_device.problem("s", 7, 5, 6))
    a, b = (x.reshape(-1, ld) for x, ld in zip(bench_device.operands(case), (7, 6), strict=True))
    assert np.all(a[0] == 1)
    assert np.all(b[:, 0] == 0)
    assert np.max(np.abs(a[1:])) < 2**-26


@pytest.mark.parametrize("ops", ["NN", "TN", "NT", "TT"])
def test_a_wrong_result_is_noticed(session, ops):
    g = on_device.problem("s", 33, 21, 17, ops)
    a, b = (on_device.normal("s", 33 * 33, seed) for seed in (1, 2))
    resident = on_device.Resident(session, g, a, b)
    config = BY_NAME["direct"].default(session.traits, PRECISIONS["s"])
    assert resident.error(resident.launches(config)) <= 1
    assert resident.error(lambda: None) == np.inf, "NaN was left where no result was written"
    left = a[: 33 * 17].reshape((33, 17) if g.trans_a else (17, 33))
    right = b[: 17 * 21].reshape((17, 21) if g.trans_b else (21, 17))
    c = (left if g.trans_a else left.T) @ (right if g.trans_b else right.T)
    assert resident.error_of(np.ravel(c.T)) <= 1
    c[0, 0] += 1e-3
    assert resident.error_of(np.ravel(c.T)) > 1
