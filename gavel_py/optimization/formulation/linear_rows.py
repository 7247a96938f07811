"""Rules of an allocation beside validity: what constraints come to for the jobs of one problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from gavel_py.problem.arrays import Floats, Indices, Mask
from gavel_py.problem.problem import AllocationProblem

ROUNDING = 1e-9

LEAST_PART = 1e-9
"""Of a job's time: less is next to nothing, and coefficients of a row that asks for it would be huge."""


class Row(Protocol):
    """A rule that several jobs keep together: Σ_i Σ_j a_ij X_ij <= most, in the sign that makes it an upper limit.

    name: the rule in the user's words; most: the right-hand side; penalty: None where the rule must hold, else what
    the objective loses if it is missed by as much as `most`; grows: whether it becomes less strict where there are more GPUs,
    which rules that jobs keep among themselves do not.
    """

    @property
    def name(self) -> str: ...
    @property
    def rhs(self) -> float: ...
    @property
    def penalty(self) -> float | None: ...
    @property
    def grows(self) -> bool: ...
    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        """(N,) columns in which jobs of one kind must agree, so that a_ij is the same for all of them."""

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        """Return (G, K) a_ij of the jobs in these rows, whose gangs are (G,) num_gpus."""

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:
        """Return Σ_ij a_ij X_ij of (N, K) time fractions."""


@dataclass(frozen=True, eq=False)
class Limit:
    """Σ_{i in group} s_i Σ_j a_j X_ij <= limit, or >= limit: GPUs, or what they cost, of a group of jobs.

    group: (N,) the jobs that count; per_gpu: (K,) a_j >= 0; requested: what is missed where all that is asked for is missed, by
    default the limit, or 1 where it is 0.
    """

    name: str
    group: Mask
    per_gpu: Floats
    limit: float
    at_least: bool = False
    penalty: float | None = None
    requested: float | None = None

    grows: ClassVar[bool] = True

    def charged(self, penalty: float | None, problem: AllocationProblem) -> Limit:
        """Return the same limit at a price: `penalty` where as much is missed as it requested for; None: it must hold."""
        if penalty is None:
            return self
        able = np.flatnonzero(problem.runnable.any(axis=1))
        return replace(self, penalty=penalty * scale_of(self.rhs, self.costs(able, problem.num_gpus[able])) / self.unit)

    @property
    def unit(self) -> float:
        """What is missed where all that is asked for is missed."""
        return self.requested or self.limit or 1.0

    @property
    def sign(self) -> float:
        return -1.0 if self.at_least else 1.0

    @property
    def rhs(self) -> float:
        return self.sign * self.limit

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.group,)

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        table: Floats = self.sign * np.where(self.group[rows], num_gpus, 0)[:, None] * self.per_gpu
        return table

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:
        jobs = np.flatnonzero(self.group)
        gpus = problem.num_gpus[jobs] @ time_fractions[jobs]
        return self.sign * float(gpus @ self.per_gpu)


@dataclass(frozen=True, eq=False)
class ObjectiveRow:
    """Σ_ij G_ij X_ij >= least: a linear objective that must stay what it is.

    table: (G, K) of one job of each class; index: (N,) the class of each job, -1 for those that can run nowhere.
    """

    name: str
    table: Floats
    least: float
    index: Indices
    penalty: float | None = None

    grows: ClassVar[bool] = True

    @property
    def rhs(self) -> float:
        return -self.least

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return (self.index,)

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:  # noqa: ARG002
        classes = self.index[rows]
        table: Floats = -np.where(classes[:, None] >= 0, self.table[classes], 0.0)
        return table

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        able = self.index >= 0
        return -float(np.einsum("ij,ij->", self.table[self.index[able]], time_fractions[able]))


@dataclass(frozen=True, eq=False)
class Load:
    """Σ_j Σ_i a_ij X_ij <= most on one accelerator type, or on few: loads: {j: (N,) a_ij >= 0}; num_types: K."""

    name: str
    loads: Mapping[int, Floats]
    num_types: int
    rhs: float
    penalty: float | None = None

    grows: ClassVar[bool] = True

    @property
    def split(self) -> tuple[NDArray[np.generic], ...]:
        return tuple(self.loads.values())

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:  # noqa: ARG002
        table = np.zeros((len(rows), self.num_types))
        for column, loads in self.loads.items():
            table[:, column] = loads[rows]
        return table

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        return float(sum(loads @ time_fractions[:, column] for column, loads in self.loads.items()))


@dataclass(frozen=True, eq=False)
class Need:
    """thr_i >= f_i for the M jobs in `rows`. throughputs: (M,) f_i, steps/s; name_of: the rule for job i in the user's words."""

    name_of: Callable[[int], str]
    rows: Indices
    throughputs: Floats
    penalty: float | None = None


@dataclass(frozen=True, eq=False)
class Floor:
    """Needs put together: thr_i >= f_i for all jobs. throughputs: (N,) f_i, steps/s, 0 = none; name_of: the rule for job i."""

    name_of: Callable[[int], str]
    throughputs: Floats
    penalty: float | None = None


@dataclass(frozen=True, eq=False)
class Place:
    """Where the M jobs in `rows` may run at most: (M, K) allowed; name_of: the rule for job i in the user's words.

    insists: whether a job is to run there, so that other bans may not leave it without any type;
    shared: whether it stands for a limit of 0 that jobs share.
    """

    name_of: Callable[[int], str]
    rows: Indices
    allowed: Mask
    insists: bool = False
    shared: bool = False


@dataclass(frozen=True, eq=False)
class CompiledConstraint:
    """What one constraint comes to, for the account of what was kept. text: the constraint in the user's words."""

    text: str
    penalty: float | None = None
    rows: tuple[Row, ...] = ()
    needs: tuple[Need, ...] = ()
    places: tuple[Place, ...] = ()
    switch_cost: float = 0.0


@dataclass(frozen=True)
class Broken:
    """A rule that an allocation does not keep: by how much, in parts of what it asks for."""

    name: str
    part: float


@dataclass(frozen=True, eq=False)
class Rules:
    """All rules of one problem. switch_cost: what the objective loses per GPU that changes hands, Σ_ij s_i |X_ij − previous_ij|.

    asked: the constraints behind them, in the user's order; unplaced: the problem before jobs were kept off types;
    kept: from a `Program` to a constraint of cvxpy, for an objective with kinks that must stay what it is, which is no row.
    """

    rows: tuple[Row, ...] = ()
    floors: tuple[Floor, ...] = ()
    switch_cost: float = 0.0
    constraints: tuple[CompiledConstraint, ...] = ()
    unplaced: AllocationProblem | None = None
    kept: tuple[Callable[[Any], Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.floors or self.switch_cost or self.kept)

    def also(self, other: Rules) -> Rules:
        """Return these rules and the rows, floors and kept objectives of others."""
        return replace(self, rows=self.rows + other.rows, floors=self.floors + other.floors, kept=self.kept + other.kept)

    @property
    def hard_rows(self) -> tuple[Row, ...]:
        """The rows that must hold."""
        return tuple(row for row in self.rows if row.penalty is None)

    @property
    def soft_rows(self) -> tuple[Row, ...]:
        """The rows that may be missed at a price."""
        return tuple(row for row in self.rows if row.penalty is not None)

    @property
    def soft_floors(self) -> tuple[Floor, ...]:
        """The floors that may be missed at a price."""
        return tuple(floor for floor in self.floors if floor.penalty is not None)

    @property
    def has_penalties(self) -> bool:
        """Whether the objective may lose something by them."""
        return bool(self.switch_cost or self.soft_rows or self.soft_floors)

    @cached_property
    def least(self) -> Floats | None:
        """(N,) the throughput that each job must have, steps/s; None if no job must have any."""
        hard = [floor.throughputs for floor in self.floors if floor.penalty is None]
        return np.maximum.reduce(hard) if hard else None

    @property
    def can_conflict(self) -> bool:
        """Whether there is a rule that an empty allocation breaks."""
        return self.least is not None or any(row.rhs < 0 for row in self.hard_rows)

    def name_of_least(self, i: int) -> str:
        """Return the name of the rule that asks for the most of job i, of those that must hold."""
        hard = (floor for floor in self.floors if floor.penalty is None)
        return max(hard, key=lambda floor: float(floor.throughputs[i])).name_of(i)

    def kind_columns(self) -> list[NDArray[np.generic]]:
        """(N,) columns in which two jobs must agree to be of one kind."""
        columns = list({id(column): column for row in self.rows for column in row.split}.values())
        masks = [column for column in columns if column.dtype == bool]
        others = [column for column in columns if column.dtype != bool]
        return [*others, *np.packbits(np.array(masks), axis=0)] if masks else others  # eight groups are one column of bytes

    def class_columns(self, problem: AllocationProblem) -> list[NDArray[np.generic]]:
        """(N,) further columns in which two jobs must agree to be equal."""
        columns: list[NDArray[np.generic]] = [floor.throughputs for floor in self.floors]
        return [*columns, *problem.previous_fractions.T] if self.switch_cost else columns


NO_RULES = Rules()


def floors_of(needs: Sequence[Need], fastest: Floats) -> tuple[Floor, ...]:
    """Put needs together in as few floors as there are penalties; only where soft ones are about the same job, it takes more.

    fastest: (N,) throughput of each job; what a billionth of its time would give counts as a billionth of its time.
    """
    layers: list[tuple[list[Need], Mask]] = []
    for need in needs:
        fitting = (layer for layer in layers if layer[0][0].penalty == need.penalty)
        layer = next((each for each in fitting if need.penalty is None or not each[1][need.rows].any()), None)
        if layer is None:
            layers.append(layer := ([], np.zeros(len(fastest), dtype=bool)))
        layer[0].append(need)
        layer[1][need.rows] = True
    return tuple(_floor(found, fastest) for found, concerned in layers if concerned.any())


def _floor(needs: Sequence[Need], fastest: Floats) -> Floor:
    least, source = np.zeros(len(fastest)), np.zeros(len(fastest), dtype=np.int64)
    for number, need in enumerate(needs):
        more = need.throughputs > least[need.rows]
        least[need.rows[more]] = need.throughputs[more]
        source[need.rows[more]] = number
    least = np.where(least > 0, np.maximum(least, LEAST_PART * fastest), 0.0)
    return Floor(lambda i: needs[source[i]].name_of(i), least, needs[0].penalty)


def entries_of(row: Row, rows: Indices, num_gpus: Floats) -> tuple[Indices, Floats]:
    """Return the places g·K + j and the values of all a_gj that are not 0, of the jobs in (G,) rows."""
    if hasattr(row, "entries"):
        found: tuple[Indices, Floats] = row.entries(rows, num_gpus)
        return found
    costs = row.costs(rows, num_gpus).ravel()
    places = np.flatnonzero(costs)
    return places, costs[places]


def shortfalls(least: Floats, throughputs: Floats) -> Floats:
    """Return by which part of it each throughput falls short of what is needed; below 0 where it is more, 0 for no need.

    Of what no throughput can meet, an infinite need, all is missed.
    """
    short = np.divide(least - throughputs, least, out=np.zeros_like(throughputs), where=(least > 0) & np.isfinite(least))
    return np.where(np.isinf(least), 1.0, short)


def scale_of(most: float, costs: Floats) -> float:
    """Return what a row is measured in: its right-hand side, or its largest coefficient where that is 0."""
    return abs(most) or float(np.abs(costs).max(initial=0.0)) or 1.0
