"""Jobs that are to run on the same GPUs in a round: to the rules for who runs, and to placement, they are one gang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gavel_py.scheduling.assignment import Assignment
from gavel_py.scheduling.mechanism.demand import RoundDemand

__all__ = ["Crew", "Crews"]

Mask = NDArray[np.bool_]
Held = Mapping[str, Assignment]


class Crew(NamedTuple):
    """rows: of its jobs, the first of which stands for all; holder: the row of the job whose GPUs it keeps, if any, -1 for none."""

    rows: tuple[int, ...]
    holder: int = -1


@dataclass(frozen=True, eq=False)
class Crews:
    """crews: each job is in one of them at most; they run this round or not at all.

    demand: with what all of a crew are owed together in the row of its first job, and nothing in the others'; in the rows of jobs
    that are in no crew, what they are owed alone.
    """

    crews: tuple[Crew, ...]
    demand: RoundDemand

    def before(self, previous: Held, ids: list[str]) -> dict[str, Assignment]:
        """Return who held which GPUs until now, with one entry for each crew."""
        held = dict(previous)
        for crew in self.crews:
            kept = previous.get(ids[crew.holder]) if crew.holder >= 0 else None
            for row in crew.rows:
                held.pop(ids[row], None)
            if kept is not None:
                held[ids[crew.rows[0]]] = kept
        return held

    def together(self, assignments: Held, ids: list[str]) -> dict[str, Assignment]:
        """Return who runs where, all of each crew included."""
        found = dict(assignments)
        for crew in self.crews:
            held = found.get(ids[crew.rows[0]])
            if held is not None:
                found |= {ids[row]: held for row in crew.rows[1:]}
        return found

    def without_place(self, assignments: Held, ids: list[str]) -> Mask:
        """Return (N,) bool, the jobs of crews that do not run."""
        waits = np.zeros(len(ids), dtype=bool)
        for crew in self.crews:
            waits[list(crew.rows)] = ids[crew.rows[0]] not in assignments
        return waits
