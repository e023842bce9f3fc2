"""The time of one search: what is left, and what must be kept for its end."""

from __future__ import annotations

import math
import statistics
import time

SHARE = 0.92  # of the budget that a search may take: the call that began it goes on afterwards
RACE_SHARE = 0.25  # of it, kept for the races
HANG_SECONDS = (
    30.0  # a candidate that needs longer to build and check, or to be timed, is of no use
)
LEAST_HANG_SECONDS = 3.0  # on a busy machine a good candidate may stall for a second or two
FIRST_SECONDS = 12.0  # that something to choose is waited for, however busy the cores are
NEXT_SECONDS = 5.0  # that what began beside it is waited for, however short the search
LATE_SHARE = 2 / 5  # of the budget, after which a candidate is given up for this search
HANG_SHARE = 1 / 3  # of the time that is left, which one candidate may use up
SOME_SECONDS = 0.05  # what a trial takes at least


class Budget:
    """Counts seconds from its making.

    Parameters
    ----------
    seconds : float
        For all of it.
    crew : int
        Children that build and check side by side.
    """

    def __init__(self, seconds: float, crew: int) -> None:
        self._start = time.monotonic()
        self.seconds = SHARE * seconds
        self._crew = crew
        self._vets: dict[str, list[float]] = {}
        self._known_since = math.inf  # when the first one was vetted
        self._times: list[float] = []
        self.has_winner = False
        """Whether a candidate has passed its last check."""

    def passed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start

    def left(self) -> float:
        """Return the seconds until the end."""
        return self.seconds - self.passed()

    def vetted(self, family: str, seconds: float) -> None:
        """Note how long it took to build and check a candidate."""
        self._known_since = min(self._known_since, self.passed())
        self._vets.setdefault(family, []).append(seconds)

    def timed(self, seconds: float) -> None:
        """Note how long it took to time a candidate."""
        self._times.append(seconds)

    def _all_vets(self) -> list[float]:
        return [seconds for some in list(self._vets.values()) for seconds in some]

    def longest_vet(self) -> float:
        """Return the most that building and checking a candidate took."""
        return max(self._all_vets(), default=0.0)

    def searching(self, racing: float) -> float:
        """Return the seconds that may still go into new candidates.

        A part is kept for the races, by how many candidates there are for them, and as much for
        the last checks as building and checking a candidate took at most: they build more kernels,
        side by side.
        """
        kept = RACE_SHARE * racing * self.seconds + self.longest_vet()
        return self.left() - kept

    def fits(self) -> bool:
        """Tell whether one more candidate could be vetted, however long it takes."""
        return self.searching(0.0) > self.longest_vet()

    def fits_timing(self) -> bool:
        """Tell whether what is vetted could be timed, and a winner checked after it."""
        return self.left() > self.longest_vet() + 2 * max(self._times[1:], default=0.0)

    def racing(self) -> bool:
        """Tell whether there is time for a race."""
        return self.left() > RACE_SHARE / 2 * self.seconds

    def typical(self) -> float:
        """Return what one more candidate takes; the first one made the operands as well."""
        vets = self._all_vets()
        vet = statistics.median(vets) if vets else 0.0
        timed = statistics.median(self._times[1:]) if self._times[1:] else 0.0
        return max(SOME_SECONDS, vet / self._crew + timed)

    def patience(self, family: str, waited: float) -> float:
        """Return how much longer to wait for a build and a check: not all the time that is left.

        As long as none of its family has ended nothing is known of how long its builds take.  The
        very first ones, begun before any had ended, may go beyond the end of a short search: there
        must be something to choose, and to compare it with; they start while others do.
        """
        known = self._vets.get(family)
        blind = not self._times and self.passed() - waited <= self._known_since
        some = self._usual((2 if blind else 1) * max(known), waited) if known else HANG_SECONDS
        beyond = NEXT_SECONDS if self._vets else FIRST_SECONDS
        end = max(self.left(), beyond - waited) if blind else self.searching(0.0)
        return min(some - waited, end)

    def try_patience(self, family: str, waited: float) -> float:
        """Return the same for timing one."""
        del family
        some = self._usual(max(self._times), waited) if self._times else HANG_SECONDS
        end = self.left() if self._times else max(self.left(), FIRST_SECONDS - waited)
        return min(some - waited, end)

    def _usual(self, longest: float, waited: float) -> float:
        least = min(LEAST_HANG_SECONDS, LATE_SHARE * self.seconds)
        return min(HANG_SECONDS, max(least, 2 * longest, HANG_SHARE * (self.left() + waited)))

    def race_patience(self, family: str, waited: float) -> float:
        """Return the same for a race, which ends the search."""
        del family
        return min(HANG_SECONDS - waited, self.left())

    def last_patience(self, family: str, waited: float) -> float:
        """Return the same for a winner's check: until there is one, it may go beyond the end."""
        usual = max(FIRST_SECONDS, 2 * max(self._vets.get(family, [0.0])))
        end = self.left() if self.has_winner else max(self.left(), usual - waited)
        return min(HANG_SECONDS - waited, end)

    def is_hang(self, waited: float) -> bool:
        """Tell whether no answer after so long is a fault, not just too late for this search."""
        return waited >= (LEAST_HANG_SECONDS if self.left() > 0 else FIRST_SECONDS)
