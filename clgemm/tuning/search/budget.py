"""The time of one search: what is left, and what must be kept for its end."""

from __future__ import annotations

import math
import statistics
import time

from clgemm.tuning.outcome import Task

SHARE = 0.92  # of the budget that a search may take: the call that began it goes on afterwards
FINAL_SHARE = 0.25  # of it, kept for measuring the finalists
HANG_SECONDS = 30.0  # a candidate that needs longer to be built and verified, or timed, is useless
LEAST_HANG_SECONDS = 3.0  # on a busy machine a good candidate may stall for a second or two
FIRST_SECONDS = 12.0  # that something to choose is waited for, however busy the cores are
NEXT_SECONDS = 5.0  # that what began beside it is waited for, however short the search
LATE_SHARE = 2 / 5  # of the budget, after which a candidate is given up for this search
HANG_SHARE = 1 / 3  # of the time that is left, which one candidate may use up
STARVED_SHARE = 1 / 2  # of the time waited, without a core: the machine is to blame
TASKS_OF_FINALISTS = frozenset({Task.BUILD_FINALIST, Task.VERIFY_FINALIST})
SOME_SECONDS = 0.05  # what a candidate takes at least
START_SECONDS = 60.0  # for a worker to import what it needs and open the device
START_GRACE = 10.0  # that a worker's start may go beyond the end of a search


class Budget:
    """Counts the seconds of a search from its making; so many `workers` build side by side."""

    def __init__(self, seconds: float, workers: int) -> None:
        self._start = time.monotonic()
        self.seconds = SHARE * seconds
        self._workers = workers
        self._verifying: dict[str, list[float]] = {}
        """Seconds that candidates took to be built and verified, by family."""
        self._known_since = math.inf  # when the first one was verified
        self._measuring: list[float] = []
        self._has_winner = False

    def passed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Return the seconds until the end."""
        return self.seconds - self.passed()

    def note(self, task: Task, family: str, seconds: float) -> None:
        """Note how long a candidate took that was found to be good."""
        if task is Task.VERIFY:
            self._known_since = min(self._known_since, self.passed())
            self._verifying.setdefault(family, []).append(seconds)
        elif task is Task.MEASURE:
            self._measuring.append(seconds)
        elif task is Task.VERIFY_FINALIST:
            self._has_winner = True

    def _all_verifying(self) -> list[float]:
        return [seconds for some in list(self._verifying.values()) for seconds in some]

    def _longest(self) -> float:
        """Return the most that building and verifying a candidate took."""
        return max(self._all_verifying(), default=0.0)

    def for_candidates(self, finalists: float) -> float:
        """Return the seconds that may still go into new candidates.

        A part is kept for measuring the finalists, by how many of them there are, from 0 to 1, and
        as much for verifying them as building and verifying a candidate took at most: they build
        more kernels, side by side.
        """
        return self.left() - FINAL_SHARE * finalists * self.seconds - self._longest()

    def fits_candidate(self) -> bool:
        """Tell whether one more candidate could be verified, however long it takes."""
        return self.for_candidates(0.0) > self._longest()

    def fits_measuring(self) -> bool:
        """Tell whether what is verified could be measured, and a finalist verified after it."""
        return self.left() > self._longest() + 2 * max(self._measuring[1:], default=0.0)

    def fits_finalists(self) -> bool:
        """Tell whether there is time to measure the finalists."""
        return self.left() > FINAL_SHARE / 2 * self.seconds

    def typical(self) -> float:
        """Return what one more candidate takes; the first one made the operands as well."""
        verified = statistics.median(self._all_verifying() or [0.0])
        measured = statistics.median(self._measuring[1:] or [0.0])
        return max(SOME_SECONDS, verified / self._workers + measured)

    def patience_to_start(self, waited: float) -> float:
        """Return how many more seconds to wait until a worker has started."""
        return min(START_SECONDS, max(0.0, self.left() + waited) + START_GRACE) - waited

    def patience(self, task: Task, family: str, waited: float, *, needed: bool = False) -> float:
        """Return how many more seconds to wait for an answer: not all the time that is left.

        What there must be for a search to have a result may go beyond its end: a candidate that is
        measured, one that passed as a finalist, and each that is `needed`.
        """
        least = FIRST_SECONDS - self.passed() if needed else -math.inf
        if task in {Task.BUILD, Task.VERIFY}:
            return max(least, self._patience_to_verify(family, waited))
        most, end = HANG_SECONDS, max(least, self.left())
        if task is Task.MEASURE and self._measuring:
            most = max(least + waited, self._usual(max(self._measuring), waited))
        elif task is Task.MEASURE:
            end = max(end, FIRST_SECONDS - waited)
        elif task in TASKS_OF_FINALISTS and (needed or not self._has_winner):
            usual = max(FIRST_SECONDS, 2 * max(self._verifying.get(family, [0.0])))
            end = max(end, usual - waited)
        return min(most - waited, end)

    def waits_for_needed(self) -> bool:
        """Tell whether a candidate that is needed may still be begun."""
        return self.passed() < max(self.seconds, FIRST_SECONDS)

    def _patience_to_verify(self, family: str, waited: float) -> float:
        """Return how much longer to wait for a build.

        As long as none of its family has ended nothing is known of how long its builds take.  The
        very first ones, begun before any had ended, may go beyond the end of a short search: there
        must be something to choose, and to compare it with; they start while others do.
        """
        known = self._verifying.get(family)
        blind = not self._measuring and self.passed() - waited <= self._known_since
        most = self._usual((2 if blind else 1) * max(known), waited) if known else HANG_SECONDS
        beyond = NEXT_SECONDS if self._verifying else FIRST_SECONDS
        end = max(self.left(), beyond - waited) if blind else self.for_candidates(0.0)
        return min(most - waited, end)

    def _usual(self, longest: float, waited: float) -> float:
        least = min(LEAST_HANG_SECONDS, LATE_SHARE * self.seconds)
        return min(HANG_SECONDS, max(least, 2 * longest, HANG_SHARE * (self.left() + waited)))

    def is_hang(self, waited: float, starved: float = 0.0, *, needed: bool = False) -> bool:
        """Tell whether no answer after so long is a fault, not just too late for this search.

        Nor is it one of a worker that other programs left without a core for most of that time.
        What is `needed` is in use and has worked.
        """
        if starved > STARVED_SHARE * waited:
            return False
        if needed:
            return waited >= HANG_SECONDS
        return waited >= (LEAST_HANG_SECONDS if self.left() > 0 else FIRST_SECONDS)
