"""A problem with two columns for each accelerator type: gangs on as few nodes as possible, and spread over more.

Both columns have the GPUs of the type together, so that without further rules each gang would use its faster placement only: one
column with that throughput is then as good (`AllocationProblem.from_jobs`). Where nodes have no room for all gangs that are
faster consolidated, the second column is what the others use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.further_columns import FurtherColumns, with_columns, with_rules
from gavel_py.optimization.rules import Asked, Rules
from gavel_py.problem.problem import AllocationProblem

__all__ = ["TwoKinds", "spread_part", "two_kinds"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TwoKinds(FurtherColumns):
    """The first column of a type is for the faster placement of each gang; problem: with all columns; second: {type: the column of
    the slower one}.
    """

    problem: AllocationProblem
    second: Mapping[int, int]

    def unfolded(self, time_fractions: Floats, spread_fractions: Floats | None = None) -> Floats:
        """Return (N, K') columns of (N, K) time on types and the part of it that is spread, by default the faster placement."""
        columns = np.zeros(self.problem.throughputs.shape)
        columns[:, : time_fractions.shape[1]] = time_fractions
        for j, other in self.second.items() if spread_fractions is not None else ():
            apart, spread = self._apart[:, j], spread_fractions[:, j]  # type: ignore[index]
            columns[:, other] = np.where(apart, time_fractions[:, j] - spread, spread)
            columns[:, j] = np.where(apart, spread, time_fractions[:, j] - spread)
        return np.maximum(columns, 0.0)

    def spread(self, columns: Floats) -> Floats:
        """Return (N, K) the time on types of (N, K') columns for which gangs are on more nodes than they need."""
        times = np.where(self._apart, columns[:, : self.base.throughputs.shape[1]], 0.0)
        for j, other in self.second.items():
            times[:, j] += np.where(self._apart[:, j], 0.0, columns[:, other])
        return times

    @property
    def _apart(self) -> NDArray[np.bool_]:
        assert self.base.speeds is not None  # noqa: S101
        return self.base.speeds.apart


def spread_part(problem: AllocationProblem, time_fractions: Floats) -> Floats | None:
    """Return (N, K) the part of time fractions that is meant for gangs on more nodes than they need, where that is faster.

    None where nothing is known of a difference.
    """
    return None if problem.speeds is None else np.where(problem.speeds.apart, time_fractions, 0.0)


def two_kinds(problem: AllocationProblem, rules: Rules) -> TwoKinds:
    """Return the problem with a second column for each type on which the placement of some gang matters, and its rules."""
    speeds = problem.speeds
    assert speeds is not None  # noqa: S101
    useful = speeds.differ & (speeds.slower > 0)
    types = np.flatnonzero((problem.runnable & useful).any(axis=0)).tolist()
    source = np.concatenate([np.arange(len(problem.capacities)), types]).astype(np.int64)
    parts = np.ones(len(source))

    def widened(narrow: AllocationProblem) -> AllocationProblem:
        names = (f"{problem.accelerator_types[j]} (slower placement)" for j in types)
        return with_columns(narrow, source, parts, names, speeds.slower[:, types], useful[:, types])

    wider, joint = with_rules(problem, rules, source, parts)
    asked = tuple(_placed(each, source) for each in wider.asked)
    wider = replace(wider, asked=asked, unplaced=None if rules.unplaced is None else widened(rules.unplaced))
    second = {j: len(problem.capacities) + n for n, j in enumerate(types)}
    return TwoKinds(problem, wider, source, parts, joint, widened(problem), second)


def _placed(asked: Asked, source: Indices) -> Asked:
    """What is said of the places of jobs, for all columns."""
    return replace(asked, places=tuple(replace(place, allowed=place.allowed[:, source]) for place in asked.places))
