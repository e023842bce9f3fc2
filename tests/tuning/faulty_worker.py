"""The program of a worker, with the faulty family in it, for test_faults.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import faulty  # noqa: E402 - which the path above is for

from clgemm.tuning.measure import measure  # noqa: E402 - likewise
from clgemm.tuning.workers import main  # noqa: E402 - likewise

if __name__ == "__main__":
    measure.FIRST_N = measure.LARGEST_N = faulty.SIDE
    faulty.FAULTY.armed = True
    faulty.install(setattr, dict.__setitem__)
    sys.exit(main.main())
