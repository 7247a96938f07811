"""Segments of an array, one behind the other: running totals and sorted search in all of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segments"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Segments:
    """Segment m holds the places starts[m] to stops[m] - 1 of an array; every place is in one segment.

    What is done in a segment depends on what it holds alone: not on where it stands, and not on the size of numbers in others.
    """

    starts: Indices
    stops: Indices

    @classmethod
    def of(cls, lengths: Indices) -> Segments:
        """Return segments of these lengths."""
        stops = np.cumsum(lengths)
        return cls(stops - lengths, stops)

    def sums(self, values: Floats) -> Floats:
        """Return at each place the sum of its segment up to there, where no value is negative; the sums never descend.

        Each round joins spans of twice the length, so a sum of n terms is right to log2(n) roundings, whatever their sizes.
        Differences of one sum over everything would lose what is small.
        """
        return self.ascending(_doubled(np.add, values, self._before()))

    def sums_back(self, values: Floats) -> Floats:
        """Return at each place the sum of its segment from there on."""
        stops = np.repeat(self.stops, self.stops - self.starts)
        return _doubled(np.add, values[::-1], (stops - 1 - np.arange(len(values)))[::-1])[::-1]

    def ascending(self, values: Floats) -> Floats:
        """Return at each place the largest value of its segment up to there, where none is negative."""
        return _doubled(np.maximum, values, self._before())

    def _before(self) -> Indices:
        """How many places of its segment stand before each place."""
        starts = np.repeat(self.starts, self.stops - self.starts)
        return np.arange(len(starts)) - starts

    def last_up_to(self, table: Floats, which: Indices, values: Floats) -> Indices:
        """Return for each value the last place in segment which[i] of a table, ascending in each, that is not above it.

        The first place, if all are above it.
        """
        last = self.stops[which] - 1
        found = self.starts[which]
        step = 1 << int((last - found).max(initial=0)).bit_length()
        while step := step >> 1:
            further = found + step
            is_there = table.take(further, mode="clip") <= values
            is_there &= further <= last
            found = found + is_there * np.int64(step)  # twice as fast as to choose
        return found


def _doubled(ufunc: np.ufunc, values: Floats, before: Indices) -> Floats:
    """Join each value with the `before` ones of its segment that stand before it."""
    found, step = values.copy(), 1
    longest = int(before.max(initial=0))
    while step <= longest:
        ufunc(found[step:], np.where(before[step:] >= step, found[:-step], 0.0), out=found[step:])
        step *= 2
    return found
