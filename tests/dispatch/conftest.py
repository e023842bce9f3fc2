"""What tests of decisions share."""

from __future__ import annotations

import pytest

from clgemm.dispatch import break_even
from clgemm.tuning.measure import timing


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the precisions that are measured, as if no other process had a core."""
    done, real = [], break_even.measured

    def measured(precision, on_device, until):
        done.append(precision.code)
        return real(precision, on_device, until)

    monkeypatch.setattr(break_even, "measured", measured)
    monkeypatch.setattr(timing.Neighbours, "share", lambda _self: 0.0)
    return done
