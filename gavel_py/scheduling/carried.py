"""What an allocation gives jobs that are not all those that it was solved for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.colocation import Pairs

__all__ = ["Carried"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Carried:
    """rows: (N,) the row of each job in the allocation, -1 for those that it says nothing of; asked_seconds: when it was solved."""

    rows: NDArray[np.int64]
    asked_seconds: float

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """(N,) the jobs that the allocation is about."""
        known: NDArray[np.bool_] = self.rows >= 0
        return known

    def of(self, table: Floats) -> Floats:
        """Return (N, K) these jobs' rows of a table with a row for each job of the allocation, 0 where it says nothing of a job."""
        found = np.zeros((len(self.rows), table.shape[1]))
        found[self.known] = table[self.rows[self.known]]
        return found

    def pairs(self, pairs: Pairs) -> Pairs:
        """Return those of the pairs of which both are there: who has lost a partner has the time by itself."""
        last = max(self.rows.max(initial=-1), pairs.first.max(initial=-1), pairs.second.max(initial=-1))
        places = np.full(int(last) + 1, -1, dtype=np.int64)
        places[self.rows[self.known]] = np.flatnonzero(self.known)
        first, second = places[pairs.first], places[pairs.second]
        both = np.flatnonzero((first >= 0) & (second >= 0))
        return replace(pairs.at(both), first=first[both], second=second[both])
