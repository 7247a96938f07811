"""A problem with several columns for a type: ways of running there that use the same GPUs, and are not equally fast.

Of the K' columns the first K are those of the problem itself, one of each type. What is said of a type holds in all of its columns,
and one row says how many GPUs these have together (`FurtherColumns`).

`PlacementColumns` has two columns for a type: gangs on as few nodes as possible, and spread over more. Both have the GPUs of the
type together, so that without further rules each gang would use its faster placement only: one column with that throughput is then
as good (`AllocationProblem.from_jobs`). Where nodes have no room for all gangs that are faster consolidated, the second column is
what the others use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.formulation.linear_rows import CompiledConstraint, Limit, Load, Row, Rules
from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem


@dataclass(frozen=True, eq=False)
class FurtherColumns:
    """base: the problem with one column for each of K types; rules: over all K' columns; source: (K',) the type of each;
    parts: (K',) the part of a GPU that a job has there for each that it asks for; joint: {type: the place in `Rules.hard_rows` of
    the row for its GPUs}.
    """

    base: AllocationProblem
    rules: Rules
    source: Indices
    parts: Floats
    joint: Mapping[int, int]

    @cached_property
    def columns_of(self) -> dict[int, dict[int, float]]:
        """{type: {column: part}} all columns of each type."""
        found: dict[int, dict[int, float]] = {}
        for column, (j, part) in enumerate(zip(self.source.tolist(), self.parts.tolist(), strict=True)):
            found.setdefault(j, {})[column] = part
        return found

    def folded(self, columns: Floats) -> Floats:
        """Return (M, K) the time on types of (M, K') columns."""
        # Column by column, so that equal jobs have the same to the last digit.
        count = len(self.base.capacities)
        times = columns[:, :count].copy()
        for column in range(count, len(self.source)):
            times[:, self.source[column]] += columns[:, column]
        return times

    def gpus(self, columns: Floats, num_gpus: Floats) -> Floats:
        """Return (K,) the GPUs in use, Σ_i s_i Σ_columns part · X_i,column. num_gpus: (M,) of the jobs in each row."""
        used = num_gpus @ columns * self.parts
        return np.bincount(self.source, used, len(self.base.capacities)).astype(float)

    def folded_prices(self, prices: Floats, limits: Floats | None) -> Floats:
        """Return (K,) what a GPU of each type is worth: in all columns, and in the row for all of them. limits: of hard rows."""
        worth = np.bincount(self.source, prices / self.parts, len(self.base.capacities)).astype(float)
        for j, row in self.joint.items() if limits is not None else ():
            worth[j] += limits[row]  # type: ignore[index]
        return worth


def with_columns(
    problem: AllocationProblem, source: Indices, parts: Floats, names: Iterable[str], throughputs: Floats, able: Mask
) -> AllocationProblem:
    """Return the problem with columns in addition, whose names, (N, further) throughputs and jobs that can use them are these.

    They are left out of the normalisers, which stay what they are.
    """
    types = source[len(problem.capacities) :]
    return replace(
        problem,
        accelerator_types=(*problem.accelerator_types, *names),
        throughputs=np.column_stack([problem.throughputs, throughputs]),
        type_index=None,
        # No less than the row for all columns of a type allows.
        capacities=problem.capacities[source] / parts,
        share_capacities=np.concatenate([problem.share_capacities, np.zeros(len(types))]),
        runnable=np.column_stack([problem.runnable, problem.runnable[:, types] & able]),
        prices_per_hour=problem.prices_per_hour[source],
        gpu_parts=parts,
        previous_fractions=np.column_stack([problem.previous_fractions, np.zeros((problem.num_jobs, len(types)))]),
    )


def with_rules(problem: AllocationProblem, rules: Rules, source: Indices, parts: Floats) -> tuple[Rules, dict[int, int]]:
    """Return the rules of a problem over all columns, with a row for the GPUs of each type that has several, and `joint`.

    Places stay what they are: where jobs may run is said of types.
    """
    wider = tuple(_wider(row, source, parts) for row in rules.rows)
    known = dict(zip(map(id, rules.rows), wider, strict=True))
    asked = tuple(replace(each, rows=tuple(known[id(row)] for row in each.rows)) for each in rules.asked)
    types = np.unique(source[len(problem.capacities) :]).tolist()
    everybody = np.broadcast_to(np.True_, problem.num_jobs)
    joint = tuple(
        Limit(f"the GPUs of {problem.accelerator_types[j]}", everybody, np.where(source == j, parts, 0.0), float(gpus))
        for j, gpus in zip(types, problem.capacities[types].tolist(), strict=True)
    )
    first = sum(row.penalty is None for row in wider)
    places = {j: first + n for n, j in enumerate(types)}
    return replace(rules, rows=(*wider, *joint), asked=asked), places


def _wider(row: Row, source: Indices, parts: Floats) -> Row:
    """The row over all columns: GPUs by the part that a job has of them, and all that a job itself needs."""
    if isinstance(row, Limit):
        return replace(row, per_gpu=row.per_gpu[source] * parts)
    if isinstance(row, Load):
        loads = {column: row.loads[j] for column, j in enumerate(source.tolist()) if j in row.loads}
        return replace(row, loads=loads, num_types=len(source))
    raise TypeError(f"no form over several columns is known of {row!r}")


@dataclass(frozen=True, eq=False)
class PlacementColumns(FurtherColumns):
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
        return self.base.speeds.spread_is_faster


def spread_part(problem: AllocationProblem, time_fractions: Floats) -> Floats | None:
    """Return (N, K) the part of time fractions that is meant for gangs on more nodes than they need, where that is faster.

    None where nothing is known of a difference.
    """
    return None if problem.speeds is None else np.where(problem.speeds.spread_is_faster, time_fractions, 0.0)


def placement_columns(problem: AllocationProblem, rules: Rules) -> PlacementColumns:
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
    return PlacementColumns(problem, wider, source, parts, joint, widened(problem), second)


def _placed(asked: CompiledConstraint, source: Indices) -> CompiledConstraint:
    """What is said of the places of jobs, for all columns."""
    return replace(asked, places=tuple(replace(place, allowed=place.allowed[:, source]) for place in asked.places))
