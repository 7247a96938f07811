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

from gavel_py.problem import AllocationProblem
from gavel_py.rules import Asked, Limit, Load, Row, Rules

__all__ = ["TwoKinds", "spread_part", "two_kinds"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TwoKinds:
    """base: the problem with one column for each of K types, the faster placement of each gang; problem, rules: with K' columns;
    second: {j: the column of the slower placement on type j}; joint: {j: the place in the rules of the row for its GPUs}.
    """

    base: AllocationProblem
    problem: AllocationProblem
    rules: Rules
    second: Mapping[int, int]
    joint: Mapping[int, int]

    @property
    def columns_of(self) -> dict[int, dict[int, float]]:
        """{type: {column: 1}} both columns of each type that has two."""
        return {j: {j: 1.0, other: 1.0} for j, other in self.second.items()}

    def unfolded(self, time_fractions: Floats, spread_fractions: Floats | None = None) -> Floats:
        """Return (N, K') columns of (N, K) time on types and the part of it that is spread, by default the faster placement."""
        columns = np.zeros(self.problem.throughputs.shape)
        columns[:, : time_fractions.shape[1]] = time_fractions
        for j, other in self.second.items() if spread_fractions is not None else ():
            apart, spread = self._apart[:, j], spread_fractions[:, j]  # type: ignore[index]
            columns[:, other] = np.where(apart, time_fractions[:, j] - spread, spread)
            columns[:, j] = np.where(apart, spread, time_fractions[:, j] - spread)
        return np.maximum(columns, 0.0)

    def folded(self, columns: Floats) -> Floats:
        """Return (N, K) time on types of (N, K') columns."""
        times = columns[:, : self.base.throughputs.shape[1]].copy()
        for j, other in self.second.items():
            times[:, j] += columns[:, other]
        return times

    def spread(self, columns: Floats) -> Floats:
        """Return (N, K) the time on types of (N, K') columns for which gangs are on more nodes than they need."""
        times = np.where(self._apart, columns[:, : self.base.throughputs.shape[1]], 0.0)
        for j, other in self.second.items():
            times[:, j] += np.where(self._apart[:, j], 0.0, columns[:, other])
        return times

    def gpus(self, columns: Floats) -> Floats:
        """Return (K,) the GPUs in use, Σ_i s_i X_ij."""
        used: Floats = self.base.num_gpus.astype(float) @ self.folded(columns)
        return used

    def folded_prices(self, prices: Floats, limits: Floats | None) -> Floats:
        """Return (K,) what a GPU of each type is worth: in both columns, and in the row for both of them."""
        worth = prices[: self.base.throughputs.shape[1]].copy()
        for j, other in self.second.items():
            worth[j] += prices[other] + (0.0 if limits is None else limits[self.joint[j]])
        return worth

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
    able = problem.runnable & speeds.differ & (speeds.slower > 0)
    types = np.flatnonzero(able.any(axis=0)).tolist()
    source = np.concatenate([np.arange(len(problem.capacities)), types]).astype(np.int64)
    second = {j: len(problem.capacities) + n for n, j in enumerate(types)}
    joint = tuple(_joint(problem, j, other, len(source)) for j, other in second.items())
    wider = tuple(_wider(row, source, second) for row in rules.rows)
    hard = sum(row.penalty is None for row in wider)
    return TwoKinds(
        base=problem,
        problem=_with_columns(problem, types, able, speeds.slower),
        rules=replace(
            rules,
            rows=(*wider, *joint),
            asked=tuple(_asked(each, source, dict(zip(map(id, rules.rows), wider, strict=True))) for each in rules.asked),
            unplaced=None if rules.unplaced is None else _with_columns(rules.unplaced, types, speeds.slower > 0, speeds.slower),
        ),
        second=second,
        joint={j: hard + n for n, j in enumerate(second)},
    )


def _with_columns(problem: AllocationProblem, types: list[int], able: NDArray[np.bool_], slower: Floats) -> AllocationProblem:
    """The problem with these columns in addition. They are left out of the normalisers, which stay what they are."""
    return replace(
        problem,
        accelerator_types=(*problem.accelerator_types, *(f"{problem.accelerator_types[j]} (slower placement)" for j in types)),
        throughputs=np.column_stack([problem.throughputs, slower[:, types]]),
        type_index=None,
        capacities=np.concatenate([problem.capacities, problem.capacities[types]]),
        share_capacities=np.concatenate([problem.share_capacities, np.zeros(len(types))]),
        runnable=np.column_stack([problem.runnable, (able & problem.runnable)[:, types]]),
        prices_per_hour=np.concatenate([problem.prices_per_hour, problem.prices_per_hour[types]]),
        previous_fractions=np.column_stack([problem.previous_fractions, np.zeros((problem.num_jobs, len(types)))]),
    )


def _joint(problem: AllocationProblem, j: int, other: int, num_columns: int) -> Limit:
    both = np.isin(np.arange(num_columns), (j, other)).astype(float)
    everybody = np.ones(problem.num_jobs, dtype=bool)
    return Limit(f"the GPUs of {problem.accelerator_types[j]}", everybody, both, float(problem.capacities[j]))


def _wider(row: Row, source: NDArray[np.int64], second: Mapping[int, int]) -> Row:
    """The row over all columns; what is said of a type holds in both of its columns."""
    if isinstance(row, Limit):
        return replace(row, per_gpu=row.per_gpu[source])
    if isinstance(row, Load):
        loads = dict(row.loads)
        loads |= {second[j]: load for j, load in row.loads.items() if j in second}
        return replace(row, loads=loads, num_types=len(source))
    raise TypeError(f"no form over several columns is known of {row!r}")


def _asked(asked: Asked, source: NDArray[np.int64], rows: Mapping[int, Row]) -> Asked:
    places = tuple(replace(place, allowed=place.allowed[:, source]) for place in asked.places)
    return replace(asked, rows=tuple(rows[id(row)] for row in asked.rows), places=places)
