"""Side constraints of an allocation: rows, throughput floors and penalties, compiled for the jobs of one problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import scipy.sparse as sp

    from gavel_py.problem.arrays import Floats, Indices, Mask
    from gavel_py.problem.problem import AllocationProblem

LEAST_PART = 1e-9
"""Smallest part of a job's time that a floor may require; a smaller one would have huge coefficients."""


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A sparse matrix by its (E,) entries. Importing those of SciPy takes as long as the rest of a small solve."""

    rows: Indices
    columns: Indices
    values: Floats
    shape: tuple[int, int]

    @property
    def T(self) -> SparseMatrix:  # noqa: N802  (as in NumPy)
        """The transposed matrix."""
        return SparseMatrix(self.columns, self.rows, self.values, self.shape[::-1])

    def __abs__(self) -> SparseMatrix:
        return replace(self, values=np.abs(self.values))

    def __matmul__(self, vector: Floats) -> Floats:
        return np.bincount(self.rows, self.values * vector[self.columns], self.shape[0]).astype(float, copy=False)

    def take_columns(self, columns: Indices) -> SparseMatrix:
        """Return the matrix of these columns only."""
        place = np.full(self.shape[1], -1)
        place[columns] = np.arange(len(columns))
        new = place[self.columns]
        some = np.flatnonzero(new >= 0)
        return SparseMatrix(self.rows[some], new[some], self.values[some], (self.shape[0], len(columns)))

    def toarray(self) -> Floats:
        """Return the dense matrix."""
        table = np.zeros(self.shape)
        table[self.rows, self.columns] = self.values
        return table

    def to_scipy(self) -> sp.csr_array:
        """Return the matrix for cvxpy."""
        import scipy.sparse as sp

        return sp.csr_array((self.values, (self.rows, self.columns)), shape=self.shape)


class Row(Protocol):
    """A linear constraint on several jobs: Σ_i Σ_j a_ij X_ij <= rhs.

    name: the rule, for messages; penalty: the loss of the objective if a soft rule is exceeded by |rhs|, None for a hard rule;
    grows: whether more GPUs relax the rule, False for rules that only relate jobs to each other.
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
        """(N,) columns that determine a_ij: jobs that agree in all of them have equal coefficients."""

    def costs(self, rows: Indices, num_gpus: Floats) -> Floats:
        """Return (G, K) a_ij of the jobs in these rows of the problem. num_gpus: (G,) their gang sizes."""

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:
        """Return Σ_ij a_ij X_ij of (N, K) time fractions."""


@dataclass(frozen=True, eq=False)
class Limit:
    """Σ_{i in group} s_i Σ_j a_j X_ij <= limit, or >= limit: the GPUs of a group of jobs, or their cost.

    group: (N,) mask of the jobs; per_gpu: (K,) a_j >= 0; requested: the violation that counts as 100 %, default the limit, or 1 for
    a limit of 0; below: elastic jobs count only while they have fewer GPUs than this; at_once: whether it holds at any one time.
    """

    name: str
    group: Mask
    per_gpu: Floats
    limit: float
    at_least: bool = False
    penalty: float | None = None
    requested: float | None = None
    below: float = np.inf
    at_once: bool = False

    grows: ClassVar[bool] = True

    def charged(self, penalty: float | None, problem: AllocationProblem) -> Limit:
        """Return the same limit as a soft one, with the loss `penalty` for a violation of 100 %; it stays hard if that is None."""
        if penalty is None:
            return self
        able = np.flatnonzero(problem.runnable.any(axis=1))
        return replace(self, penalty=penalty * scale_of(self.rhs, self.costs(able, problem.num_gpus[able])) / self.unit)

    @property
    def unit(self) -> float:
        """The violation that counts as 100 %."""
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
        return self.sign * np.where(self.group[rows], num_gpus, 0)[:, None] * self.per_gpu

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:
        jobs = np.flatnonzero(self.group)
        gpus = problem.num_gpus[jobs] @ time_fractions[jobs]
        return self.sign * float(gpus @ self.per_gpu)


@dataclass(frozen=True, eq=False)
class ObjectiveRow:
    """Σ_ij G_ij X_ij >= least: an objective cut, which keeps an earlier linear objective at its optimum.

    table: (G, K) gains of one job of each class; index: (N,) the class of each job, -1 for jobs that can run nowhere.
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
        return -np.where(classes[:, None] >= 0, self.table[classes], 0.0)

    def used(self, problem: AllocationProblem, time_fractions: Floats) -> float:  # noqa: ARG002
        able = self.index >= 0
        return -float(np.einsum("ij,ij->", self.table[self.index[able]], time_fractions[able]))


@dataclass(frozen=True, eq=False)
class Load:
    """Σ_j Σ_i a_ij X_ij <= rhs on one or a few accelerator types.

    loads: {j: (N,) a_ij}, below 0 for a lower limit; num_types: K.
    """

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
    """thr_i >= f_i for the M jobs in `rows`.

    throughputs: (M,) f_i, steps/s; name_of: the rule for job i, for messages; types: (M,) the type on which each job must have all
    of its time, with f_i its throughput there; None for other rules.
    """

    name_of: Callable[[int], str]
    rows: Indices
    throughputs: Floats
    penalty: float | None = None
    types: Indices | None = None


@dataclass(frozen=True, eq=False)
class Floor:
    """Combined needs of one penalty: thr_i >= f_i for all jobs. throughputs: (N,) f_i, steps/s, 0 = none; name_of: as in `Need`."""

    name_of: Callable[[int], str]
    throughputs: Floats
    penalty: float | None = None


@dataclass(frozen=True, eq=False)
class Place:
    """The accelerator types on which the M jobs in `rows` may run. allowed: (M, K); name_of: the rule for job i, for messages.

    insists: whether a job must be able to run there, so that other rules must leave it at least one type; shared: whether the rule
    is a limit on a group of jobs; numbers: (K, L) the numbers of GPUs (`GpuCounts.counts`) that elastic ones of these jobs may
    have, None for all.
    """

    name_of: Callable[[int], str]
    rows: Indices
    allowed: Mask
    insists: bool = False
    shared: bool = False
    numbers: Mask | None = None


@dataclass(frozen=True, eq=False)
class CompiledConstraint:
    """One constraint compiled for a problem, from which its outcome is computed. text: the constraint, for messages."""

    text: str
    penalty: float | None = None
    rows: tuple[Row, ...] = ()
    needs: tuple[Need, ...] = ()
    places: tuple[Place, ...] = ()
    switch_cost: float = 0.0


@dataclass(frozen=True)
class Broken:
    """A rule that an allocation breaks. part: the violation, relative to the right-hand side."""

    name: str
    part: float


@dataclass(frozen=True, eq=False)
class Rules:
    """All side constraints of one problem.

    switch_cost: the loss of the objective per GPU that changes hands, Σ_ij s_i |X_ij − previous_ij|; constraints: the compiled
    constraints, in the caller's order; unplaced: the problem before places restricted types; kept: functions from a `Program` to a
    cvxpy constraint that keeps an earlier objective with kinks, which is not a row.
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
        """Return these rules combined with the rows, floors and kept objectives of others."""
        return replace(self, rows=self.rows + other.rows, floors=self.floors + other.floors, kept=self.kept + other.kept)

    @property
    def hard_rows(self) -> tuple[Row, ...]:
        """The rows without a penalty."""
        return tuple(row for row in self.rows if row.penalty is None)

    @property
    def soft_rows(self) -> tuple[Row, ...]:
        """The rows with a penalty."""
        return tuple(row for row in self.rows if row.penalty is not None)

    @property
    def soft_floors(self) -> tuple[Floor, ...]:
        """The floors with a penalty."""
        return tuple(floor for floor in self.floors if floor.penalty is not None)

    @property
    def has_penalties(self) -> bool:
        """Whether these rules can reduce the objective."""
        return bool(self.switch_cost or self.soft_rows or self.soft_floors)

    @cached_property
    def least(self) -> Floats | None:
        """(N,) the hard throughput floor of each job, steps/s; None if there is none."""
        hard = [floor.throughputs for floor in self.floors if floor.penalty is None]
        return np.maximum.reduce(hard) if hard else None

    @property
    def can_conflict(self) -> bool:
        """Whether an empty allocation breaks a hard rule."""
        return self.least is not None or any(row.rhs < 0 for row in self.hard_rows)

    def name_of_least(self, i: int) -> str:
        """Return the name of the highest hard floor of job i."""
        hard = (floor for floor in self.floors if floor.penalty is None)
        return max(hard, key=lambda floor: float(floor.throughputs[i])).name_of(i)

    def kind_columns(self) -> list[NDArray[np.generic]]:
        """Return (N,) columns that determine all row coefficients."""
        columns = list({id(column): column for row in self.rows for column in row.split}.values())
        masks = [column for column in columns if column.dtype == bool]
        others = [column for column in columns if column.dtype != bool]
        return [*others, *np.packbits(np.array(masks), axis=0)] if masks else others  # eight masks per column of bytes

    def class_columns(self, problem: AllocationProblem) -> list[NDArray[np.generic]]:
        """Return (N,) further columns in which jobs of one class must agree: floors, and previous times if changes cost."""
        columns: list[NDArray[np.generic]] = [floor.throughputs for floor in self.floors]
        return [*columns, *problem.previous_fractions.T] if self.switch_cost else columns


NO_RULES = Rules()


def floors_of(needs: Sequence[Need], fastest: Floats) -> tuple[Floor, ...]:
    """Combine needs into a floor for each penalty, or several if soft needs with one penalty apply to the same job.

    fastest: (N,) throughput of each job; a need below `LEAST_PART` of it is raised to that part.
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
    return Floor(partial(_name_in, needs, source), least, needs[0].penalty)


def _name_in(needs: Sequence[Need], source: Indices, i: int) -> str:
    return str(needs[source[i]].name_of(i))


def entries_of(row: Row, rows: Indices, num_gpus: Floats) -> tuple[Indices, Floats]:
    """Return the positions g·K + j and the values of the nonzero a_gj of the jobs in (G,) rows."""
    if hasattr(row, "entries"):
        found: tuple[Indices, Floats] = row.entries(rows, num_gpus)
        return found
    costs = row.costs(rows, num_gpus).ravel()
    places = np.flatnonzero(costs)
    return places, costs[places]


def shortfalls(least: Floats, throughputs: Floats) -> Floats:
    """Return the shortfall of each throughput relative to its need: below 0 if it exceeds the need, 0 for no need.

    The shortfall of an infinite need is 1.
    """
    short = np.divide(least - throughputs, least, out=np.zeros_like(throughputs), where=(least > 0) & np.isfinite(least))
    return np.where(np.isinf(least), 1.0, short)


def scale_of(rhs: float, costs: Floats) -> float:
    """Return the scale of a row: |rhs|, or the largest coefficient if that is 0."""
    return abs(rhs) or float(np.abs(costs).max(initial=0.0)) or 1.0
