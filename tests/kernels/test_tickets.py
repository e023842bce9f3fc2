"""Work-groups that meet at tickets: parts of k added up within the launch, shared macro-tiles."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import reference
from helpers import Differences

from clgemm.kernels import BY_NAME
from clgemm.kernels.family import TICKETS
from clgemm.problem import PRECISIONS, Gemm
from clgemm.runtime import host_memory, opencl
from clgemm.runtime.kernel_runner import NO_OFFSETS, KernelRunner
from clgemm.runtime.opencl import cl
from clgemm.runtime.queues import LaunchState
from clgemm.tuning.measure.verify import random_matrix

CASES = [
    ("gpu_tiled", "s", (55, 701, 2101)), ("gpu_tiled", "s", (377, 71, 1999)),
    ("gpu_tiled", "c", (126, 301, 1501)), ("gpu_tiled", "c", (403, 56, 2281)),
    ("nv_dmma", "d", (503, 505, 1980)), ("nv_dmma", "d", (701, 641, 3001)),
    ("nv_dmma", "d", (1301, 1283, 1501)), ("nv_dmma", "z", (133, 261, 1503)),
    ("nv_dmma", "z", (637, 1300, 518)),
    ("gemv", "s", (1, 1, 1_000_003)), ("gemv", "d", (1, 301, 17_001)),
    ("gemv", "c", (1001, 1, 9001)), ("gemv", "z", (3, 1, 100_001)),
]  # fmt: skip
RUNS = 200


class Case:
    """A problem on a device, its plan and its operands."""

    def __init__(self, device, name, code, size, rng, *, trans=False):
        family, precision = BY_NAME[name], PRECISIONS[code]
        if not family.supports(device.traits, precision):
            pytest.skip(f"{name} cannot run on {device}")
        m, n, k = size
        self.device, self.precision, self.size = device, precision, size
        lda, ldb = (k, n) if trans else (m, k)
        conj = trans and precision.is_complex
        self.problem = Gemm(
            code, m, n, k, 1, trans, conj, lda, 0, trans, False, ldb, 0, m, 0, True, False
        )
        self.a = random_matrix(rng, precision, *((k, m) if trans else (m, k)))
        self.b = random_matrix(rng, precision, *((n, k) if trans else (k, n)))
        self.left = self.a.T.conj() if conj else self.a.T if trans else self.a
        self.right = self.b.T if trans else self.b
        self.plan = family.plan(
            device.traits, self.problem, family.default(device.traits, precision)
        )
        if not self.plan.takes_tickets:
            pytest.skip(f"on {device} no work-groups meet in a product of {size}")

    def places(self, c):
        """Put the operands and `c` on the device."""
        columns = (np.asfortranarray(x) for x in (self.a, self.b, c))
        return [host_memory.place(self.device, x) for x in columns]

    def check(self, c, alpha=1.0, beta=0.0, before=None):
        """Compare some columns with what they should be."""
        some = slice(None, None, max(1, c.shape[1] // 24))
        old = np.empty(0) if before is None else before[:, some]
        want, size = reference.gemm(alpha, self.left, self.right[:, some], beta, old)
        reference.assert_within_bound(c[:, some], want, size, self.size[2], self.precision.eps)


@pytest.mark.parametrize(("name", "code", "size"), CASES, ids=str)
@pytest.mark.parametrize("trans", [False, True])
def test_sums_are_right_and_leave_no_ticket_taken(device, name, code, size, trans, rng):
    case = Case(device, name, code, size, rng, trans=trans)
    runner = KernelRunner(device, case.problem, case.plan)
    for alpha, beta in ((1.0, 0.0), (-0.75, 0.5), (2.0, 1.0)):
        before = random_matrix(rng, case.precision, *size[:2])
        c = before if beta else np.full(size[:2], np.nan, case.precision.dtype)
        places = case.places(c)
        runner.execute((alpha, beta, *places, NO_OFFSETS), poisoned=True)
        got = np.empty_like(c, order="F")
        host_memory.fetch(device, places[2], got)
        case.check(got, alpha, beta, before)
        left = np.ones(TICKETS, np.uint32)
        opencl.load().enqueue_copy(device.queue, left, device.scratch.tickets(device.queue))
        assert not left.any()


@pytest.mark.parametrize(("name", "code", "size"), CASES, ids=str)
def test_many_runs_give_the_same_bits(device, name, code, size, rng):
    case = Case(device, name, code, size, rng)
    runner = KernelRunner(device, case.problem, case.plan)
    watch = Differences(device, size[0] * size[1] * case.precision.itemsize)
    places = case.places(np.full(size[:2], np.nan, case.precision.dtype))
    values = (1.0, 0.0, *places, NO_OFFSETS)
    runner.execute(values, poisoned=True)
    first = watch.remember(places[2]).view(case.precision.dtype).reshape(size[1], size[0]).T
    case.check(first)
    for _ in range(RUNS):
        runner.execute(values)
        watch.compare(places[2])
    assert watch.count() == 0


@pytest.mark.parametrize(("name", "code", "size"), CASES, ids=str)
def test_queues_of_several_threads_have_tickets_of_their_own(device, name, code, size, rng):
    case = Case(device, name, code, size, rng)
    runner = KernelRunner(device, case.problem, case.plan)
    out_of_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    results = [np.empty(size[:2], case.precision.dtype, order="F") for _ in range(3)]

    def work(c, properties):
        queue = opencl.load().CommandQueue(device.context, properties=properties)
        state = LaunchState(device.context, queue)
        state.in_order = not properties
        places = case.places(c)
        for _ in range(RUNS // 4):
            runner.enqueue((1.0, 0.0, *places, NO_OFFSETS), state, [])
        queue.finish()
        host_memory.fetch(device, places[2], c)

    threads = [
        threading.Thread(target=work, args=(c, properties))
        for c, properties in zip(results, (0, 0, out_of_order), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    case.check(results[0])
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
