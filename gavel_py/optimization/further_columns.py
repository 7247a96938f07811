"""A problem with several columns for a type: ways of running there that use the same GPUs, and are not equally fast.

Of the K' columns the first K are those of the problem itself, one of each type. What is said of a type holds in all of its
columns, and one row says how many GPUs these have together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.rules import Limit, Load, Row, Rules
from gavel_py.problem.problem import AllocationProblem

__all__ = ["FurtherColumns", "with_columns", "with_rules"]

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]


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
