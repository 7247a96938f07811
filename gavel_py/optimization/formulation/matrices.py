"""The linear program of an allocation as matrices: building it, solving it from a kept basis, and reading its solution.

A scheduler solves thousands of small programs whose rows are known as matrices. Compiling each of them with cvxpy would take
several times as long as solving it. `program.Program` adds cvxpy expressions of the same variables for the objectives of policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gavel_py.optimization.checking.certificates import Prices, priced_bound
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearProgram, LinearSolver, Solution, TimeLimitReached
from gavel_py.problem.arrays import Floats
from gavel_py.problem.row_hashing import content_keys, hash_of, position_keys
from gavel_py.problem.tolerances import FLOAT_ROUNDING, SOLVER_TOLERANCE

TOP = 2.0
"""Upper bound of a variable as a multiple of its largest possible value: it never binds, so that all duals belong to rows. Without
any bound, the dual simplex method needs far more iterations.
"""

LEAST_EXPONENT = -29
"""Smallest unit of a variable as a power of 2 of its largest value: HiGHS treats coefficients up to 1e-9 as 0. With powers of 2,
scaling does not round.
"""


@dataclass(frozen=True)
class Blocks:
    """The columns and rows of a compiled program by their meaning.

    Attributes:
        parts: Columns of the variables.
        factor: Column of the capacity factor, if there is one.
        time, capacity, limits: Rows of valid allocations and of hard limits.
        own: Rows of further constraints, a slice for each of them.
    """

    parts: slice
    time: slice
    capacity: slice
    limits: slice
    own: tuple[slice, ...]
    factor: slice


class AllocationLP:
    """Valid allocations of job classes, within the hard limits of `jobs.rules`, as a linear program.

    There is one variable for each of the P pairs of a class and a type where its jobs can run: x_gj in units of `sizes`. Rows:

        Σ_j x_gj <= 1              time, for each class
        Σ_g n_g s_g x_gj <= c_j    capacity, for each type, divided by c_j
        hard limits                each divided by its own size (`JobClasses.limits`)

    followed by the rows of the objective. With this scaling, HiGHS's absolute tolerances mean the same for 2 GPUs and for 10^7, and
    for one job and for a million.

    Args:
        jobs: The job classes.
        enough: (G,) steps/s beyond which a job gains nothing. If a job reaches this in little time, the unit of its variables is
            about that time; otherwise, the need could be below the solver's tolerance.

    Attributes:
        rows: (P,) the class of each pair, class by class.
        columns: (P,) the type of each pair.
        most: (P,) the largest possible x_gj, min(1, c_j / (n_g s_g)).
        sizes: (P,) the time that one unit of each variable represents.
        units: (K,) c_j, or 1 for a type without GPUs.
        program, blocks: The program compiled last.
        solution: Its optimum.
    """

    program: LinearProgram
    blocks: Blocks
    solution: Solution

    def __init__(self, jobs: JobClasses, enough: Floats | None = None) -> None:
        self.jobs = jobs
        self.rows, self.columns = np.nonzero(jobs.runnable)
        self._gpus = (jobs.counts * jobs.num_gpus)[self.rows]
        self.units: Floats = np.where(jobs.capacities > 0, jobs.capacities, 1.0)
        self.most: Floats = np.minimum(1.0, self.units[self.columns] / self._gpus)
        self.sizes: Floats = self.most
        if enough is not None:
            needed = enough[self.rows] / (jobs.throughputs[self.rows, self.columns] * self.most)
            least = LEAST_EXPONENT + np.maximum(0.0, np.log2(self.units[self.columns] / self._gpus))
            with np.errstate(divide="ignore"):  # a need of 0 gets the smallest unit
                exponents = np.clip(np.ceil(np.log2(needed)), np.minimum(0.0, np.ceil(least)), 0.0)
            self.sizes = self.most * 2**exponents
        self._used: Floats = self._gpus * self.sizes / self.units[self.columns]

    def rows_by_job(self, coefficients: Floats) -> SparseMatrix:
        """Return the (G, P) matrix of Σ_j a_gj x_gj for (P,) coefficients a_gj, one for each pair, class by class."""
        pairs = np.arange(len(self.rows))
        return SparseMatrix(self.rows, pairs, coefficients * self.sizes, (len(self.jobs), len(pairs)))

    def normalized_rows(self, coefficients: Floats) -> tuple[SparseMatrix, Floats]:
        """Return the (G, P) matrix of Σ_j a_gj x_gj / u_g, and (G,) u_g, the most that such a sum can be on one type."""
        largest = np.zeros(len(self.jobs))
        np.maximum.at(largest, self.rows, coefficients * self.most)
        return self.rows_by_job(coefficients / largest[self.rows]), largest

    def limit_matrix(self, limits: SparseMatrix) -> SparseMatrix:
        """Return the (R, P) matrix of limits on (R, G·K) coefficients of the time of a job of each class."""
        own = limits.take_columns(self.rows * len(self.units) + self.columns)
        return replace(own, values=own.values * (self.jobs.counts[self.rows] * self.sizes)[own.columns])

    @property
    def used(self) -> SparseMatrix:
        """(K, P) the part of each capacity that one unit of a variable takes."""
        pairs = np.arange(len(self.rows))
        return SparseMatrix(self.columns, pairs, self._used, (len(self.units), len(pairs)))

    @property
    def tops(self) -> Floats:
        """(P,) upper bounds of the variables."""
        return TOP * self.most / self.sizes

    @property
    def floor_matrix(self) -> SparseMatrix:
        """(F, P) throughput divided by the floor of the rules, for the F classes with a floor; it must be >= 1."""
        floors, speeds = self.jobs.floors, self.jobs.throughputs[self.rows, self.columns]
        pairs = np.flatnonzero(floors[self.rows] > 0)
        classes, parts = self.rows[pairs], speeds[pairs] * self.sizes[pairs]
        row_of = np.cumsum(floors > 0) - 1
        return SparseMatrix(row_of[classes], pairs, parts / floors[classes], (int((floors > 0).sum()), len(self.rows)))

    def matrix_of(self, values: Floats) -> Floats:
        """Return (P,) values as a (G, K) table with 0 where jobs cannot run."""
        table = np.zeros(self.jobs.throughputs.shape)
        table[self.rows, self.columns] = values
        return table

    def compile_linear(self, constant: float, worth: Floats) -> None:
        """Compile max constant + worth·z over the valid allocations that keep the rules. worth: (P,)."""
        floors = self.floor_matrix
        self._assemble(-worth, self.tops, floors, np.ones(floors.shape[0]), offset=-constant)

    def compile_factor(self, own: SparseMatrix, least: Floats, time_limits: Floats | float = 1.0) -> None:
        """Compile min ϕ >= 0 such that own @ z >= least with ϕ times all GPUs.

        Limits grow with ϕ as well if `JobClasses.limits_grow` is 1. own: (R, P); least: (R,); time_limits: (G,), instead of 1.
        """
        self._assemble(np.zeros(len(self.rows)), TOP / self.sizes, own, least, time_limits=time_limits, has_factor=True)

    def _assemble(
        self,
        costs: Floats,
        upper: Floats,
        own: SparseMatrix,
        least: Floats,
        *,
        offset: float = 0.0,
        time_limits: Floats | float = 1.0,
        has_factor: bool = False,
    ) -> None:
        """Compile min costs·z + offset, 0 <= z <= upper, with further rows own @ z >= least; or min ϕ (`compile_factor`)."""
        jobs = self.jobs
        limits, most = jobs.limits
        heights = [len(jobs), len(self.units), len(most), own.shape[0]]
        time, capacity, limit, extra = (slice(end - n, end) for n, end in zip(heights, np.cumsum(heights).tolist(), strict=True))
        right = np.concatenate([np.broadcast_to(time_limits, len(jobs)), np.ones(len(self.units)), most, -least])
        pairs = np.arange(len(self.rows))
        entries = [(self.rows, pairs, self.sizes), (self.columns + capacity.start, pairs, self._used)]
        entries.append((own.rows + extra.start, own.columns, -own.values))
        if len(most):
            rows = self.limit_matrix(limits)
            entries.insert(2, (rows.rows + limit.start, rows.columns, rows.values))
        if has_factor:
            growth = np.concatenate([np.zeros(len(jobs)), np.ones(len(self.units)), jobs.limits_grow, np.zeros(len(least))])
            growing = np.flatnonzero(growth)
            entries.append((growing, np.full(len(growing), -1), -growth[growing]))
            right = right - growth
            costs, upper = np.append(1.0, costs), np.append(np.inf, upper)
        first = int(has_factor)
        i, j, values = (np.concatenate(each) for each in zip(*entries, strict=True))
        order = np.argsort(j, kind="stable")
        self.program = LinearProgram(
            costs=costs,
            offset=offset,
            matrix=SparseMatrix(i[order], j[order] + first, values[order], (len(right), len(costs))),
            limits=right,
            equalities=0,
            lower=np.zeros(len(costs)),
            upper=upper,
        )
        self.blocks = Blocks(slice(first, len(costs)), time, capacity, limit, (extra,), slice(0, first))

    def solve(self, solver: LinearSolver, name: str) -> Solution:
        """Solve the compiled program from the basis that the solver keeps as `name`."""
        with self._noting_candidates():
            self.solution = solver.solve(self.program, name, *self.keys)
        return self.solution

    def solve_with(self, limits: Floats, solver: LinearSolver, name: str) -> None:
        """Solve the solver's last program with other right-hand sides, and keep these."""
        with self._noting_candidates():
            self.solution = solver.again(limits, keep=name)
        self.program = self.solution.program

    def solve_again(self, solver: LinearSolver, name: str, worth: Floats, factor: float, start: str | None) -> Solution:
        """Return the optimum of max Σ a_gj x_gj in the same program with at most this factor. worth: (P,) a_gj.

        The solve starts from the basis kept as `start`, which must be feasible, or from that kept as `name` if `start` is None.
        """
        costs, upper = np.zeros(len(self.program.costs)), self.program.upper.copy()
        costs[self.blocks.parts] = -worth * self.sizes
        upper[self.blocks.factor] = factor
        return solver.solve(replace(self.program, costs=costs, upper=upper), name, *self.keys, feasible=start)

    @contextmanager
    def _noting_candidates(self) -> Iterator[None]:
        """Add to `TimeLimitReached` the time fractions and prices at which HiGHS stopped."""
        try:
            yield
        except TimeLimitReached as reached:
            found = reached.solution
            if found is None:
                raise
            raise TimeLimitReached(found, (self.candidate(found),), (self.scarcity_of(found),)) from None

    def candidate(self, solution: Solution) -> Floats:
        """Return (G, K) time fractions of the job classes from a solve that ended at the time limit."""
        return self.fractions_of(solution)

    @property
    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The (2, ·) keys of columns and rows. Those of the same class and type, or of the same class, are equal in every program.

        The second keys are those of kin (`JobClasses.kin`).
        """
        columns, rows = zip(*map(self._keys_of, (self.jobs.keys, self.jobs.kin)), strict=True)
        return np.stack(columns), np.stack(rows)

    def _keys_of(self, classes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        blocks, count = self.blocks, len(self.jobs)
        columns = position_keys(len(self.program.costs), "column")
        columns[blocks.parts] = content_keys([classes[self.rows], self.columns], len(self.rows))
        rows = position_keys(len(self.program.limits), "row")
        rows[blocks.capacity] = position_keys(len(self.units), "type")
        rows[blocks.limits] = position_keys(blocks.limits.stop - blocks.limits.start, "limit")
        for position, there in enumerate([blocks.time, *blocks.own]):
            if there.stop - there.start == count:
                tag = np.full(count, hash_of("class") + position, dtype=np.uint64)
                rows[there] = content_keys([classes, tag], count)
        return columns, rows

    def fractions_of(self, solution: Solution) -> Floats:
        """Return a solution's time fractions x, (G, K)."""
        parts = solution.values[self.blocks.parts]
        noise = np.where(self.jobs.floors[self.rows] > 0, 0.0, FLOAT_ROUNDING)  # a rule may require just a small time
        return self.matrix_of(np.where(parts > noise, parts, 0.0) * self.sizes)

    def prices(self, solution: Solution) -> Floats:
        """Return (K,) the dual values of the capacities: objective per GPU of each type, >= 0; 0 for a type without GPUs."""
        duals = solution.duals[self.blocks.capacity] / self.units
        return np.where(self.jobs.capacities > 0, duals, 0.0)

    def scarcity_of(self, solution: Solution) -> Prices:
        """Return the dual values of capacities and limits."""
        return Prices(self.prices(solution), solution.duals[self.blocks.limits])

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits at the optimum."""
        return self.scarcity_of(self.solution)

    @cached_property
    def type_rows(self) -> list[NDArray[np.int64]]:
        """For each of K types, the rows that one more GPU relaxes: those of its columns, and the row for all of them together."""
        columns, first = self.jobs.columns, self.blocks.capacity.start
        if columns is None:
            return [np.array([first + j]) for j in range(len(self.units))]
        joint = {j: self.blocks.limits.start + row for j, row in columns.joint.items()}
        by_type = [first + np.flatnonzero(columns.source == j) for j in range(len(columns.base.capacities))]
        return [np.append(rows, joint[j]) if j in joint else rows for j, rows in enumerate(by_type)]

    def shadow_prices(self, solver: LinearSolver) -> Floats:
        """Return the gain of the objective just maximised per extra GPU of each of K types, for a small part of a GPU.

        At a kink, dual values are not unique, and only the smallest are the gain of more GPUs. The program is then solved again
        with slightly more GPUs of the type, and its dual value is returned if it accounts for the whole gain.
        """
        solution = self.solution
        prices = np.zeros(len(self.type_rows))
        for j, rows in enumerate(self.type_rows):
            price = raw = float(solution.duals[rows].sum())
            for more in (1e-5, 1e-8) if raw > 0 and not solution.has_unique_duals else ():
                limits = self.program.limits.copy()
                limits[rows] += more
                found = solver.again(limits)
                there = float(found.duals[rows].sum())
                if solution.value - found.value - there * more <= 1e-6 * raw * more:
                    price = min(raw, there)
                    break
            prices[j] = price / self.units[j] if self.jobs.capacities[j] > 0 else 0.0
        return prices

    def bound(self) -> float:
        """Return an upper bound on the objective just maximised, over all valid allocations.

        Weak duality: with duals y >= 0 of the rows that the objective and constraints of a policy added (kinks such as `minimum`
        become rows), objective <= constant + Σ_g n_g Σ_j G_gj x_gj for every valid x, and `priced_bound` bounds the sum.
        """
        solution, program = self.solution, self.program
        duals, capacity = solution.duals, solution.duals[self.blocks.capacity]
        times = duals[self.blocks.time]
        slopes = -(program.costs + program.matrix.T @ duals)
        own = np.arange(len(slopes))[self.blocks.parts]
        counts, gangs = self.jobs.counts[self.rows], self.jobs.num_gpus[self.rows]
        # The rows of valid allocations are left out, since `priced_bound` accounts for them.
        gains = (slopes[own] / self.sizes + times[self.rows]) / counts + self.prices(solution)[self.columns] * gangs
        constant = duals @ program.limits - program.offset - times.sum() - capacity.sum()
        others = np.delete(np.arange(len(slopes)), own)
        return float(
            constant + _most(solution, slopes, others) + priced_bound(self.jobs, self.matrix_of(gains), self.prices(solution))
        )

    def net_gains(self) -> Floats:
        """Return (G, K) the reduced gains of the objective just maximised, per unit of a job's time on each type.

        The reduced gain is the gain less the price of all resources that the time takes. It is never above 0, and where it is below
        0, a job has no time.
        """
        slopes = -(self.program.costs + self.program.matrix.T @ self.solution.duals)
        return self.matrix_of(slopes[self.blocks.parts] / self.sizes / self.jobs.counts[self.rows])

    @property
    def time_prices(self) -> Floats:
        """(G,) dual values of the time rows per job: the gain of the objective just maximised per unit of time beyond 1."""
        return self.solution.duals[self.blocks.time] / self.jobs.counts

    @property
    def scale(self) -> float:
        """The largest coefficient of the compiled objective, per all of the time that a job can have."""
        costs = np.abs(self.program.costs)
        costs[self.blocks.parts] *= self.most / self.sizes
        return float(costs.max(initial=0.0))


class SumCertificate:
    """Base class of the certificates of a maximised sum. The bound follows from the dual values of its program.

    program: the program as solved (`AllocationLP.bound`); sign: -1 if the policy's objective is the negative of the sum.
    """

    program: AllocationLP
    sign: float

    @property
    def jobs(self) -> JobClasses:
        return self.program.jobs

    def bound(self) -> float:
        """Return the bound on the objective of all valid allocations that keep the rules."""
        return self.sign * self.program.bound()

    def scale(self, fractions: Floats) -> float:  # noqa: ARG002
        """Return the largest coefficient of the objective."""
        return self.program.scale

    @property
    def scarcity(self) -> Prices:
        """The dual values of capacities and limits."""
        return self.program.scarcity

    def net_gains(self) -> Floats:
        """Return (G, K') the reduced gains of the program."""
        return self.program.net_gains()


@dataclass(frozen=True)
class LinearCertificate(SumCertificate):
    """The certificate of a linear sum. gains: (G, K) the gain of the objective by the time of a job of each class."""

    program: AllocationLP
    gains: Floats
    sign: float = 1.0

    def value(self, fractions: Floats) -> float:
        """Return the objective of (G, K) time fractions."""
        return float(self.jobs.counts @ (self.gains * fractions).sum(axis=1))


def _most(solution: Solution, slopes: Floats, columns: NDArray[np.int64]) -> float:
    """Return max Σ slope·z within the bounds of these columns, which represent kinks of the objective.

    A column without a bound has slope 0 up to rounding, unless the objective is unbounded. Such a slope is multiplied by
    the column's value.
    """
    program = solution.program
    slope, value = slopes[columns], solution.values[columns]
    limit = np.where(slope > 0, program.upper[columns], program.lower[columns])
    rounding = np.abs(slope) <= SOLVER_TOLERANCE * np.maximum(1.0, np.abs(program.costs).max(initial=0.0))
    free = np.where(rounding, np.abs(slope) * (1 + np.abs(value)), np.inf)
    return float(np.where(np.isinf(limit), free, slope * np.where(np.isinf(limit), 0.0, limit)).sum())
