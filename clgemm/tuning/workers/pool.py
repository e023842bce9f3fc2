"""A few children that try candidates side by side: builds take a core each, and hangs a child.

What is timed is timed by the leader alone, while the others wait.
"""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from clgemm.errors import TuningError
from clgemm.host.identity import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from typing_extensions import Self

    from clgemm.kernels.family import Config
    from clgemm.traits import DeviceTraits
    from clgemm.tuning.outcome import Outcome
    from clgemm.tuning.workers.worker import Worker

    Attempt = Callable[[Worker, Config], Outcome]

log = logging.getLogger(__name__)

MOST = 4  # children: each has a context on the device and starts in a few tenths of a second
GPU_BUILDS = 6  # programs that a candidate for a GPU is made of, built at a time
LOOK_SECONDS = 0.05  # between looks at whether idle children may go on


def size(traits: DeviceTraits) -> int:
    """Return how many children this machine has cores for; GPUs' families have many kernels."""
    builds = 1 if traits.kind == "cpu" else GPU_BUILDS
    return max(1, min(MOST, usable_cores() // builds))


class Crew:
    """Children of one search.

    Parameters
    ----------
    workers : sequence of Worker
        The first is the leader.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = list(workers)
        self._pool = ThreadPoolExecutor(len(self._workers), "clgemm-tuning")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._drop(dropped=True)
        self._pool.shutdown()
        for worker in self._workers:
            worker.stop()

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def leader(self) -> Worker:
        """The one that times."""
        return self._workers[0]

    def start(self) -> None:
        """Start the children, those that can be.

        Raises
        ------
        TuningError
            If the leader cannot.
        """
        starts = {worker: self._pool.submit(worker.start) for worker in self._workers}
        starts.pop(self.leader).result()
        for worker, started in starts.items():
            error = started.exception()
            if isinstance(error, TuningError | OSError):
                log.debug("one child less tries candidates: %s", error)
                self._workers.remove(worker)
            elif error is not None:
                raise error

    def learn(self, outcome: Outcome) -> None:
        """Let all children know what was found out by the first one that timed a candidate."""
        for worker in self._workers:
            worker.learn(outcome)

    def each(
        self, configs: Iterable[Config], attempt: Attempt, go_on: Callable[[bool], bool]
    ) -> list[Outcome]:
        """Try candidates, one a child at a time.

        Parameters
        ----------
        configs : iterable of Config
            In order; the first one for each child is tried in any case.
        attempt : callable
            Tries one, in a thread of its own.
        go_on : callable
            Tells whether another one may be begun, by whether one takes much longer than any that
            has ended: that one is waited for anyway.

        Returns
        -------
        list of Outcome
            Of those that were tried, as they ended.
        """
        waiting, idle = iter(configs), list(self._workers)
        fresh, longest = len(idle), math.inf
        running: dict[Future[Outcome], tuple[Worker, float]] = {}
        outcomes: list[Outcome] = []
        try:
            while True:
                now = time.monotonic()
                overdue = any(now - begun > longest for _, begun in running.values())
                while idle and (fresh > 0 or go_on(overdue)):
                    config = next(waiting, None)
                    if config is None:
                        break
                    fresh -= 1
                    worker = idle.pop(0)
                    running[self._pool.submit(attempt, worker, config)] = worker, now
                if not running:
                    return outcomes
                for done in wait(running, LOOK_SECONDS, FIRST_COMPLETED).done:
                    worker, begun = running.pop(done)
                    idle.append(worker)
                    outcomes.append(done.result())
                    took = time.monotonic() - begun
                    longest = max(2 * took + LOOK_SECONDS, 0 if math.isinf(longest) else longest)
        except BaseException:  # the keyboard, or a child that cannot be replaced
            self._drop(dropped=True)
            wait(running)
            self._drop(dropped=False)
            raise

    def _drop(self, *, dropped: bool) -> None:
        for worker in self._workers:
            worker.dropped = dropped
