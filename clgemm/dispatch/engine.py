"""A device and what was decided on it.

Each kind of call (equal shapes, strides, types, flags and modes) is decided on once: where it runs,
with which parameters, what is copied.  What comes of it, a `Decision` with its `Runner`, is kept,
so that a later call costs one look into a table.  Finding out is never a side effect: what is not
known of a device when a call is decided on has a default, and only the parameters of the kernels
that this very call needs are searched for; its own product may be tried on both sides.
"""

from __future__ import annotations

import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clgemm import settings
from clgemm.dispatch import building, multi_device
from clgemm.dispatch.break_even import MOST_SECONDS, NO_LIMITS, BreakEvens, Limits
from clgemm.dispatch.copying import CopyingRunner, copied_call
from clgemm.dispatch.explanation import explained
from clgemm.dispatch.integers import route_integers
from clgemm.dispatch.route import HOST, SMALL_SHARED, Route, by_rule, route
from clgemm.dispatch.times import CopiedTimes, usual_seconds
from clgemm.dispatch.trial import CALL_SECONDS, STACK_SECONDS, Sides, Trials
from clgemm.errors import ClgemmError, NoKernelError
from clgemm.host import blas as host_blas
from clgemm.host import openblas, spinning, threads
from clgemm.layouts import is_aligned, layout_of
from clgemm.problem import ELEMENT_OF, INTEGERS, PRECISIONS, Call, describe
from clgemm.runtime import reentry, registry
from clgemm.runtime.opencl_errors import translated, translated_errors
from clgemm.runtime.processor import has_more_cores, usable_cores
from clgemm.streaming.copy_threads import CopyThreads
from clgemm.streaming.direct import uses_threads
from clgemm.streaming.runner import StreamingRunner, must_copy
from clgemm.tuning.store.lookup import find_or_default
from clgemm.tuning.tuner import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from clgemm.dispatch.explanation import Explanation
    from clgemm.dispatch.route import Times
    from clgemm.dispatch.times import BreakEven
    from clgemm.problem import Gemm, Precision
    from clgemm.runtime.device import Device
    from clgemm.runtime.kernel_runner import KernelRunner
    from clgemm.runtime.runner import Runner
    from clgemm.settings import Modes
    from clgemm.tuning.results import Effort, Result

    ByHost = Callable[[Call], object]

log = logging.getLogger(__name__)

MOST_DECISIONS = 4096  # more kinds of calls than this in one process: start over rather than grow

_HOST = host_blas.HostRunner()


class Decision(NamedTuple):
    """What was decided for all calls of a kind."""

    runner: Runner
    problem: Gemm
    route: Route
    needs_cores: bool = True
    """Whether it keeps the host's cores busy for so long that threads which spin there are
    stopped."""
    copied: tuple[str, ...] = ()
    """Operands that no BLAS can express where they lie: copied first, then decided on again."""


class Engine:
    """A device and what was decided on it.

    Parameters
    ----------
    device : Device
        The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.parameters = Parameters(device)
        self.break_evens = BreakEvens(device, self.parameters)
        self.threads = CopyThreads(device)
        """What copies to and from a device with memory of its own."""
        self.decisions: dict[Hashable, Any] = {}
        """By kind of call: `Decision` for arrays of NumPy's, plans of products for Arrays."""
        self.repeated = device.repeated
        self.forgotten = 0
        """How often it has forgotten all decisions."""
        self._by_size: set[str] = set()
        """Precisions of which something small was decided on before anything was measured."""
        self._found_out: set[str] = set()
        """Precisions whose parameters were looked for before a product was decided on."""
        self._finding_out = reentry.CheckedLock()
        self._trials = Trials()
        self._on_cores = device.traits.kind == "cpu"
        self._units = device.traits.compute_units
        if self._on_cores:
            self.parameters.reserved = MOST_SECONDS
            threads.be_seen()

    def __str__(self) -> str:
        return str(self.device)

    def forget(self) -> None:
        """Decide anew on every kind of call."""
        self.decisions.clear()
        self.repeated.clear()
        registry.changed()
        self.forgotten += 1

    def remember(self, key: Hashable, decision: Any) -> None:
        """Keep a decision; of too many kinds of calls none is kept."""
        if len(self.decisions) >= MOST_DECISIONS:
            self.forget()
        self.decisions[key] = decision

    def repeat(self, kind: Hashable, compute: Any) -> None:
        """Keep what computes a kind of plain products; see `remember`."""
        if len(self.repeated) >= MOST_DECISIONS:
            self.forget()
        self.repeated[kind] = compute

    @property
    def tries(self) -> bool:
        """Whether it tries products on both sides where predictions leave open which is faster."""
        return self._on_cores

    def units(self) -> int:
        """Return how many compute units a call may use now: on the host's cores there are limits.

        What is decided depends on it.
        """
        if not self._on_cores:
            return self._units
        units = min(threads.limit(), self.device.traits.compute_units)
        if units != self._units:
            self._units = units
            openblas.follow()
        return units

    def compute(
        self,
        call: Call,
        modes: Modes,
        partners: tuple[Engine, ...] = (),
        by_host: ByHost | None = None,
    ) -> bool:
        """Compute a call of NumPy's arrays; there is something to multiply.

        Parameters
        ----------
        call : Call
            The call.
        modes : Modes
            Those in force.
        partners : tuple of Engine
            What shares large calls with this one.
        by_host : callable, optional
            Computes a call on the host; SciPy's gemm by default.

        Returns
        -------
        bool
            Whether `by_host` has computed it.
        """
        decision = self.decide(call, modes, partners)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", self.explain(decision, transposed=call.transposed))
        if decision.runner is _HOST:
            (by_host or host_blas.gemm)(call)
            return True
        self.run(decision, call)
        return False

    def run(self, decision: Decision, call: Call) -> None:
        """Compute a call on the device as was decided for its kind."""
        try:
            if decision.needs_cores:
                self._run_alone(decision.runner, call)
            else:
                decision.runner.run(call)
        except self.device.cl.Error as error:
            where = f"{decision.problem.precision}gemm on {self.device}"
            raise translated(error, where) from error

    def _run_alone(self, runner: Runner, call: Call) -> None:
        """Compute what keeps the host's cores busy: it has them for itself."""
        # Threads that copy to another device are on all cores.
        parked = spinning.stop(leave_core=self._on_cores)
        try:
            runner.run(call)
        finally:
            if parked:
                spinning.go_on()

    def decide(self, call: Call, modes: Modes, partners: tuple[Engine, ...] = ()) -> Decision:
        """Find or make the decision on calls of a kind."""
        _, a, b, beta, c, conj_a, conj_b, _ = call
        kind_of_beta = 0 if beta == 0 else 1 if beta == 1 else 2
        fits = is_aligned(a) and is_aligned(b) and is_aligned(c)  # see `layout_of`
        key = (
            modes, self.units(), partners, c.dtype, kind_of_beta, conj_a, conj_b, fits,
            call.is_gram, a.shape, a.strides, b.shape, b.strides, c.shape, c.strides,
        )  # fmt: skip
        decision: Decision | None = self.decisions.get(key)
        if decision is None:
            decision = self._decide(call, modes, partners)
            self.remember(key, decision)
        return decision

    def _decide(self, call: Call, modes: Modes, partners: tuple[Engine, ...]) -> Decision:
        """Decide where calls of a kind run and, if on the device, make what computes them."""
        copied = tuple(x for x in "abc" if layout_of(getattr(call, x)) is None)
        if copied:
            inner = self.decide(copied_call(call, values=False)[0], modes, partners)
            if inner.runner is _HOST:  # which copies what it has to
                return inner._replace(copied=copied)
            compute = partial(self.compute, modes=modes, partners=partners)
            runner = CopyingRunner(compute, inner.runner)
            return inner._replace(runner=runner, copied=copied)
        precision = ELEMENT_OF[call.c.dtype]
        problem = describe(*call.operands, call.c, reads_c=call.beta != 0, is_gram=call.is_gram)
        if precision.code in INTEGERS:
            return self._decide_on_integers(call, problem, modes)
        # A device opened under a limit has but one unit itself.
        one_core = self._on_cores and self.units() == 1 and has_more_cores(1)
        chosen = by_rule(problem, modes.route, one_core=one_core)
        if chosen is None:
            found = self._times(problem)
            chosen = route(self.device.traits, problem, modes.route, found)
            if self.tries:
                chosen = self._tried(call, problem, chosen, self._usual_seconds(problem))
        if chosen.where == HOST:
            return Decision(_HOST, problem, chosen)
        self.device.require(precision)
        with translated_errors(f"{problem.precision}gemm on {self.device}"):
            shared = None
            if partners:
                shared = multi_device.runner((self, *partners), problem)
            if shared is not None and shared.seconds is not None:
                chosen = chosen._replace(device_seconds=shared.seconds)
            needs_cores = self._needs_cores(problem, chosen.device_seconds)
            return Decision(shared or self.runner(problem), problem, chosen, needs_cores)

    def _needs_cores(self, problem: Gemm, seconds: float | None) -> bool:
        """Tell whether threads that spin on the host's cores would hold up a product.

        A CPU device computes on them, and to others threads copy.
        """
        if self._on_cores:
            return spinning.lasts(problem.flops / self.units(), seconds)
        copies = must_copy(self.device, problem) and uses_threads(problem.operand_bytes)
        return copies and spinning.parks()

    def _decide_on_integers(self, call: Call, problem: Gemm, modes: Modes) -> Decision:
        """Decide where calls of a kind run of which the host has no BLAS."""
        traits = building.within_limits(self.device.traits, self.units())
        chosen = route_integers(traits, problem, modes.route)
        if traits.unified_memory and must_copy(self.device, problem):
            chosen = Route(HOST, "it does not fit the device, which integers have to")
        # A trial's own C has more than a row, and sums of bool end early with some values.
        if self._on_cores and call.c.dtype != bool and problem.m > 1:
            chosen = self._tried(call, problem, chosen)
        if chosen.where == HOST:
            return Decision(_HOST, problem, chosen)
        try:
            with translated_errors(f"{problem.precision} matmul on {self.device}"):
                needs_cores = self._on_cores or self._needs_cores(problem, None)
                return Decision(self.runner(problem), problem, chosen, needs_cores)
        except NoKernelError as error:  # what else fails may be well when the next call asks
            return Decision(_HOST, problem, Route(HOST, f"the device cannot compute it: {error}"))

    def _usual_seconds(self, problem: Gemm) -> float | None:
        """Estimate either side of a product if nothing was measured, but parameters are known.

        None for what is small and was decided on before: equal calls give equal bits.
        """
        code = problem.precision
        if self.parameters.known(code) is None or not settings.tuning_enabled():
            return None
        decided = problem.flops <= SMALL_SHARED and code in self._by_size
        return None if decided else usual_seconds(self.device.traits, problem)

    def _tried(
        self, call: Call, problem: Gemm, predicted: Route, usual: float | None = None
    ) -> Route:
        """Try both sides if the prediction leaves open which one is faster."""

        def sides() -> Sides:
            *batch, m, n = call.c.shape
            c = np.empty((*batch, n, m), call.c.dtype).swapaxes(-1, -2)
            like = call._replace(beta=0.0, c=c)
            g = describe(*like.operands, like.c, reads_c=False, is_gram=like.is_gram)
            compute = partial(self._run_alone, self.runner(g), like)
            more = STACK_SECONDS if batch else CALL_SECONDS
            return Sides(partial(host_blas.multiply, like), compute, more)

        try:
            return self._trials.settle((problem, self.units()), predicted, sides, usual)
        except reentry.WouldDeadlockError:
            raise
        except (ClgemmError, MemoryError, self.device.cl.Error) as error:
            log.debug("both sides of a product could not be tried: %s", error)
            return predicted

    def _times(self, problem: Gemm) -> Times | None:
        """Return what predicts both sides, if anything is known of them."""
        return self._predicting(problem, self._break_even(problem))

    def known_times(self, problem: Gemm) -> Times | None:
        """Return what predicts both sides, as far as it is known by now; finds out nothing."""
        measured = self.break_evens.known(PRECISIONS[problem.precision])
        return self._predicting(problem, measured)

    def _predicting(self, problem: Gemm, found: BreakEven | None) -> Times | None:
        if self.device.traits.unified_memory:
            return found
        kernels = self.kernel_seconds(problem)
        return found if kernels is None else CopiedTimes(kernels, usable_cores(), found)

    def _break_even(self, problem: Gemm) -> BreakEven | None:
        """Return what a decision may go by.

        What is small and was decided by size alone stays so: equal calls give equal bits.
        """
        precision = PRECISIONS[problem.precision]
        code = precision.code
        if problem.flops <= SMALL_SHARED:
            found = self.break_evens.known(precision)
            if found is None and self.parameters.known(code) is None:
                self._by_size.add(code)
            return None if code in self._by_size else found
        if self._on_cores and settings.tuning_enabled() and code not in self._found_out:
            self._find_out(precision)
        return self.break_evens.known(precision)

    def _find_out(self, precision: Precision) -> None:
        """Search for parameters if none are known, and measure break-evens in what time is left.

        Before the first product is decided on that a CPU device may compute.  Other threads wait:
        they would be measured too, and be decided on without the figures.
        """
        code = precision.code
        with self._finding_out():
            if code not in self._found_out and self.parameters.known(code) is None:
                end = time.monotonic() + settings.search_seconds()
                find_or_default(lambda: self.parameters.of(code), lambda _why: None)
                if code in self.parameters.searched:
                    self.try_to_measure(precision, end, builds=False)
                    self.break_evens.forget(precision)
            self._found_out.add(code)

    @reentry.entry(lambda *_: None)
    def warm_up(self, precision: Precision) -> None:
        """Find parameters and measure break-evens, as far as they are missing, for calls to come.

        Within the budget of one search.
        """
        code, end = precision.code, time.monotonic() + settings.search_seconds()
        with self._finding_out():
            before, self.parameters.reserved = self.parameters.reserved, MOST_SECONDS
            try:
                find_or_default(lambda: self.parameters.of(code), lambda _why: None)
            finally:
                self.parameters.reserved = before
            self._found_out.add(code)
            self.break_evens.forget(precision)
            if settings.tuning_enabled() and self.break_evens.known(precision) is None:
                self.try_to_measure(precision, end)
                self._use_measured(precision)

    def _use_measured(self, precision: Precision) -> None:
        """Go by what was just measured, on asking: also where calls were decided on without it."""
        self.break_evens.forget(precision)
        self._by_size.discard(precision.code)
        self.forget()

    def try_to_measure(
        self, precision: Precision, end: float = math.inf, *, builds: bool = True
    ) -> None:
        """Measure break-evens where nobody has asked for it: no trouble reaches a product.

        By the `end` of the time that a first call may take, if there is one; a search on a busy
        machine may have come near it.  Unless it `builds`, shapes are left out whose kernels the
        search has not built: each takes a second on a slow machine.
        """
        least = min(MOST_SECONDS, settings.search_seconds() / 2)
        limits = Limits(max(end, time.monotonic() + least))
        if not builds:
            limits = limits._replace(is_ready=self._is_ready)
        try:
            self.measure_break_evens(precision, limits)
        except (ClgemmError, MemoryError, OSError, self.device.cl.Error) as error:
            log.debug("break-evens were not measured: %s", error)

    def kernel_seconds(self, problem: Gemm) -> float | None:
        """Predict the kernels of a problem from what a search has timed; None if it did not."""
        tuned = self.parameters.stored(problem.precision)
        if tuned is None:
            return None
        return find_or_default(lambda: tuned.model.least_seconds(problem), lambda _why: None)

    def runner(self, problem: Gemm) -> Runner:
        """Make what computes a problem on this device, where operands lie or with copies."""
        if must_copy(self.device, problem):
            return StreamingRunner(self.device, self.threads, problem, self.build)
        return self.build(problem)

    def build(self, problem: Gemm) -> KernelRunner:
        """Make what computes a problem whose operands lie on the device; see `building.build`."""
        return building.build(self.device, self.parameters, problem, self.units())

    def explain(self, decision: Decision, *, transposed: bool) -> Explanation:
        """Tell what calls of a kind do; in the caller's terms if C is transposed."""
        g, tuned = decision.problem, self.parameters.known(decision.problem.precision)
        copied = decision.copied
        if transposed:
            g = g._replace(m=g.n, n=g.m)
            copied = tuple(sorted({"a": "b", "b": "a"}.get(name, name) for name in copied))
        work = decision.runner.work()
        chosen = tuned is not None and work.config in map(str, tuned.configs)
        origin = tuned.origin if tuned and chosen else "the family's default"
        return explained(g, decision.route, work, str(self.device), origin, copied)

    @reentry.entry()
    def tune(self, code: str, effort: Effort) -> Result:
        """Search for one precision's parameters now, and measure its break-evens with them.

        Of those a driver that has compiled nothing takes half a second for each shape: they take no
        more time than the search may; what is left out is estimated, or measured by later
        processes.
        """
        result = self.parameters.tune(code, effort)
        self.measure_break_evens(PRECISIONS[code], Limits(time.monotonic() + effort.seconds))
        self._use_measured(PRECISIONS[code])
        return result

    def _is_ready(self, call: Call) -> bool:
        """Tell whether the device needs no compiler for a call."""
        problem = describe(*call.operands, call.c, reads_c=call.beta != 0)
        return building.is_built(self.device, self.parameters, problem, self.units())

    def measure_break_evens(self, precision: Precision, limits: Limits = NO_LIMITS) -> None:
        """Measure where the device breaks even with the host, for later processes."""
        modes, before = settings.modes()._replace(route="device"), set(self.decisions)

        def on_device(call: Call) -> None:
            self.decide(call, modes).runner.run(call)

        try:
            self.break_evens.measure(precision, on_device, limits)
        finally:
            # The kernels of these hundred shapes; what other threads have decided stays.
            for key in set(self.decisions) - before:
                if isinstance(key, tuple) and key[0] == modes:
                    self.decisions.pop(key, None)
