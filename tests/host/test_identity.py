"""What NumPy tells of itself, and what older releases do not."""

from __future__ import annotations

import numpy as np

from clgemm.host import identity


def test_a_numpy_that_only_prints_how_it_was_built_is_none_the_worse(monkeypatch):
    before = identity.identity()
    monkeypatch.setattr(np, "show_config", lambda: None)
    assert identity.identity() == before | {"blas": "? ?"}
