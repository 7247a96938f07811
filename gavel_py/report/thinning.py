"""Long rows of numbers made short, so that a report stays small however long its runs are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["every", "quantiles", "stretches", "thinned"]

FloatArray = NDArray[np.float64]


def quantiles(values: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Return values and the part of all that is no larger than each: all of them, or `most` with the smallest and the largest.

    >>> quantiles(np.array([3.0, 1.0, 2.0, 4.0]), 2)
    (array([1., 4.]), array([0.25, 1.  ]))
    """
    ordered = np.sort(values)
    count = len(ordered)
    at = np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))
    return ordered[at], (at + 1) / count


def stretches(seconds: FloatArray, most: int) -> FloatArray:
    """Return the limits of at most so many stretches: those given, or even ones from the first to the last."""
    return seconds if len(seconds) - 1 <= most else np.linspace(seconds[0], seconds[-1], most + 1)


def thinned(seconds: FloatArray, values: FloatArray, limits: FloatArray) -> FloatArray:
    """Return the mean over time of a step function in each stretch between `limits`, NaN where it is not known at any time.

    seconds: (T + 1,) where its steps begin and end; values: (T,), NaN where nothing is known, which then does not count.

    >>> thinned(np.array([0.0, 1.0, 3.0, 4.0]), np.array([6.0, np.nan, 2.0]), np.array([0.0, 2.0, 4.0]))
    array([6., 2.])
    """
    known = np.isfinite(values)
    lengths = np.diff(seconds)
    area: FloatArray = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0) * lengths)])
    length = np.concatenate([[0.0], np.cumsum(np.where(known, lengths, 0.0))])
    areas, there = (np.diff(np.interp(limits, seconds, total)) for total in (area, length))
    means: FloatArray = np.divide(areas, there, out=np.full(len(there), np.nan), where=there > 0)
    return means


def every(rows: Sequence[Sequence[str]], most: int) -> list[Sequence[str]]:
    """Return all rows, or so many of them at even steps, the first and the last among them."""
    return list(rows) if len(rows) <= most else [rows[round(at)] for at in np.linspace(0, len(rows) - 1, most)]
