"""The program that tries candidates, with the faulty family in it: a child of test_faults.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import faulty

from clgemm.tuning.measure import measure
from clgemm.tuning.workers import main

if __name__ == "__main__":
    measure.FIRST_N = measure.LARGEST_N = faulty.SIDE
    faulty.FAULTY.armed = True
    faulty.install(setattr, dict.__setitem__)
    sys.exit(main.main())
