"""A family for tests alone: one right and fast configuration among five that are broken."""

# ruff: noqa: ARG002 - every method of a family takes the same arguments

from __future__ import annotations

import itertools
import os
import time

from clgemm.kernels import BY_NAME, source
from clgemm.kernels.direct.family import Direct
from clgemm.kernels.family import (
    GEMM_SIGNATURE,
    Config,
    Plan,
    Step,
    gemm_args,
    precision_of,
    round_up,
)

NAMES = (
    "slow", "right", "aborts the process", "hangs", "wrong for odd k", "wrong once in 20 runs",
    "does not build",
)  # fmt: skip
SLOW, RIGHT, ABORTS, HANGS, ODD_K, SOMETIMES, NO_BUILD = range(len(NAMES))
SIDE = 96  # of the largest product timed: a candidate takes milliseconds
SPOILT = 20  # one run in so many of SOMETIMES is wrong
KERNEL = """
#ifndef KIND
#define KIND 1  // which of faulty.py's configurations this is
#endif
#if KIND == 6
#error this one does not build
#endif
#define WORK (KIND == 0 ? 9 : KIND == 1 ? 2 : 1)  // what is broken is the fastest, by far

__kernel void faulty(GEMM_ARGS, const int spoil)
{
    const long i = get_global_id(0), j = get_global_id(1), entry = get_global_id(2);
    if (i >= g.m || j >= g.n)
        return;
    const long step_a = g.trans_a ? 1 : g.lda, step_b = g.trans_b ? g.ldb : 1;
    a += g.offset_a + entry * g.stride_a + i * (g.trans_a ? g.lda : 1);
    b += g.offset_b + entry * g.stride_b + j * (g.trans_b ? 1 : g.ldb);
    ELEM sum = (ELEM)(0);
    for (int turn = 0; turn < WORK; turn++) {
        sum *= 0;  // not optimised away: it may be NaN
        for (long p = 0; p < g.k - (KIND == 4 && g.k % 2); p++)
            sum = elem_fma(a[p * step_a], b[p * step_b], sum);
    }
    if (spoil)
        sum += 1;
    c += g.offset_c + entry * g.stride_c + i + j * g.ldc;
    elem_store(c, elem_mul(alpha, sum), beta, beta_class(beta));
}
"""


class Faulty(Direct):
    """Plans as `direct` does, and breaks in one way for each value of KIND."""

    name = "faulty"
    files = ("faulty.cl",)

    def __init__(self):
        self._plans = itertools.count(1)
        self.armed = False  # only in a worker: the tests' own process plans, too

    def space(self, traits, precision):
        return {"KIND": tuple(range(7))}

    def default(self, traits, precision):
        return kind(SLOW)

    def worth_tuning(self, traits):
        return True

    def plan(self, traits, problem, config):
        if self.armed and config["KIND"] == ABORTS:
            os.abort()
        if self.armed and config["KIND"] == HANGS:
            time.sleep(1e6)
        spoil = config["KIND"] == SOMETIMES and next(self._plans) % SPOILT == 0
        spec = self.spec("faulty", precision_of(problem), config, GEMM_SIGNATURE + "i")
        size = (round_up(problem.m, 8), round_up(problem.n, 8), problem.batch)
        return Plan((Step(spec, size, (8, 8, 1), (*gemm_args(problem), int(spoil))),))


FAULTY = Faulty()


def kind(number):
    return Config.of("faulty", {"KIND": number})


def install(set_attribute, set_item):
    """Make the family known in this process, by functions that set an attribute and an item."""
    read = source.read
    set_attribute(source, "read", lambda name: KERNEL if name == "faulty.cl" else read(name))
    set_item(BY_NAME, "faulty", FAULTY)
