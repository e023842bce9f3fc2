"""Rates from measured times: which seconds of each count explain them best, none negative."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray


def rates(
    counts: NDArray[Any], seconds: Sequence[float], columns: Collection[int] | None = None
) -> tuple[float, ...]:
    """Find the seconds of each count such that their sum is near the times; relative errors count.

    The best rates that are not negative are the plain least squares of some of the counts, the
    others zero.  A handful of counts has few such choices: all are tried.

    Parameters
    ----------
    counts : ndarray of shape (times, kinds)
        How much of each kind there is at each time.
    seconds : sequence of float
        The times.
    columns : collection of int, optional
        Kinds that may be other than zero; all by default.
    """
    rows = np.asarray(counts, float) / np.asarray(seconds, float)[:, None]
    kinds = rows.shape[1]
    able = [i for i in (range(kinds) if columns is None else columns) if rows[:, i].any()]
    scale = np.maximum(rows.max(axis=0), np.finfo(float).tiny)
    best, least = np.zeros(kinds), math.inf
    for size in range(1, min(len(able), len(rows)) + 1):
        for chosen in map(list, itertools.combinations(able, size)):
            part = rows[:, chosen] / scale[chosen]
            found = np.linalg.lstsq(part, np.ones(len(rows)), rcond=None)[0]
            error = float(np.sum((part @ found - 1) ** 2))
            if np.all(found >= 0) and error < least:
                best, least = np.zeros(kinds), error
                best[chosen] = found / scale[chosen]
    return tuple(best.tolist())
