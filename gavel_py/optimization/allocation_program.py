"""The program of an allocation: compiled, solved from an old basis, and its answer read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.optimization.bases import LinearProgram, Solution
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.program_matrices import CAPACITY, FACTOR, LIMITS, OWN, PARTS, TIME, ProgramMatrices
from gavel_py.optimization.proof import Prices
from gavel_py.optimization.solver import LinearSolver
from gavel_py.optimization.time_limit import TimeLimitReached
from gavel_py.problem.row_hashing import content_keys, hash_of, position_keys

__all__ = ["AllocationProgram"]

Floats = NDArray[np.float64]

NOISE = 1e-12


class AllocationProgram:
    """Valid allocations of classes of equal jobs as a linear program of matrices (`ProgramMatrices`).

    jobs: the classes with their attributes; rows, columns: the class and the type of each pair that can run, class by class;
    most: the most that the time x of each pair can be, min(1, c_j / (n_g s_g)).
    """

    def __init__(self, jobs: JobClasses, enough: Floats | None = None) -> None:
        self.jobs, self._matrices = jobs, ProgramMatrices(jobs, enough)
        self.rows, self.columns, self.most = self._matrices.rows, self._matrices.columns, self._matrices.most
        self.compiled: LinearProgram | None = None
        self._solution: Solution | None = None
        self._own: list[slice] = []

    def rows_by_job(self, coefficients: Floats) -> sp.csr_array:
        """Return the (G, pairs) matrix of Σ_j a_gj x_gj; `coefficients` has one a_gj for each pair that can run, class by class."""
        return self._matrices.by_job(coefficients)

    @property
    def floor_matrix(self) -> sp.csr_array:
        """(floors, pairs) the throughputs that single jobs must have by the rules, in parts of these: to be at least 1."""
        floors, some = self.jobs.floors, np.flatnonzero(self.jobs.floors > 0)
        if not len(some):
            return sp.csr_array((0, len(self.rows)))
        speeds = self.jobs.throughputs[self.rows, self.columns]
        return self._matrices.by_job(speeds)[some].multiply(1 / floors[some][:, None]).tocsr()

    def compile_factor(self, own: sp.csr_array, least: Floats, time_limits: Floats | float = 1.0) -> None:
        """Compile the program of the least factor by which GPUs would have to be multiplied (`ProgramMatrices.factor`)."""
        self._take(self._matrices.factor(own, least, time_limits))

    def _take(self, program: LinearProgram) -> None:
        self.compiled = program
        self._own = [program.rows[OWN]] if OWN in program.rows else []

    def solve(self, solver: LinearSolver, name: str) -> Solution:
        """Solve the compiled program, from the basis that the solver keeps under `name`."""
        program = self.program
        with self._stopping():
            self._solution = solver.solve(program, name, *self.keys)
        return self._solution

    def solve_with(self, limits: Floats, solver: LinearSolver, name: str) -> None:
        """Solve the program that the solver has just solved once more, with these right-hand sides from now on."""
        with self._stopping():
            self._solution = solver.again(limits, keep=name)
        self.compiled = self._solution.program

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Let `TimeLimitReached` tell the time fractions and prices at which HiGHS has stopped."""
        try:
            yield
        except TimeLimitReached as reached:
            found = reached.solution
            if found is None:
                raise
            prices = Prices(self.prices(found), self.limit_duals(found))
            raise TimeLimitReached(found, (self.fractions_of(found),), (prices,)) from None

    def solve_again(self, solver: LinearSolver, name: str, worth: Floats, factor: float, start: str | None) -> Solution:
        """Solve for max Σ a_gj x_gj in the same program with at most such a factor.

        It starts from the basis kept as `start`, if given, which must still be feasible, else from that kept under `name`.

        worth: one a_gj for each pair that can run, class by class.
        """
        program = self.program
        costs, upper = np.zeros(len(program.costs)), program.upper.copy()
        costs[program.columns[PARTS]] = -worth * self._matrices.sizes
        upper[self.factor_column] = factor
        return solver.solve(replace(program, costs=costs, upper=upper), name, *self.keys, feasible=start)

    @property
    def program(self) -> LinearProgram:
        """The program as compiled last."""
        if self.compiled is None:
            raise RuntimeError("the program has not been compiled")
        return self.compiled

    @property
    def solution(self) -> Solution:
        """The optimum found last."""
        if self._solution is None:
            raise RuntimeError("the program has not been solved")
        return self._solution

    @property
    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The keys of columns and rows: what tells of the same class and type has the same key in every program."""
        program = self.program
        classes, count = self.jobs.keys, len(self.jobs)
        columns = position_keys(len(program.costs), "column")
        columns[program.columns[PARTS]] = content_keys([classes[self.rows], self.columns], len(self.rows))
        rows = position_keys(len(program.limits), "row")
        rows[program.rows[CAPACITY]] = position_keys(len(self._matrices.units), "type")
        if LIMITS in program.rows:
            rows[self.limit_rows] = position_keys(len(self.jobs.limits[1]), "limit")
        for position, there in enumerate([self.time_rows, *self._own]):
            if there.stop - there.start == count:
                tag = np.full(count, hash_of("class") + position, dtype=np.uint64)
                rows[there] = content_keys([classes, tag], count)
        return columns, rows

    def fractions_of(self, solution: Solution) -> Floats:
        """Return a solution's time fractions x, (G, K)."""
        parts = solution.values[self.program.columns[PARTS]]
        noise = np.where(self.jobs.floors[self.rows] > 0, 0.0, NOISE)  # however little a job must have, it is no noise
        return self.matrix_of(np.where(parts > noise, parts, 0.0) * self._matrices.sizes)

    def matrix_of(self, values: Floats) -> Floats:
        """Return one value per pair that can run as a (G, K) table with 0 elsewhere."""
        return self._matrices.table(values)

    @property
    def capacity_rows(self) -> slice:
        """The rows of the capacities in the compiled program; their limits and duals are in parts of c_j."""
        return self.program.rows[CAPACITY]

    @property
    def limit_rows(self) -> slice:
        """The rows of the rules' limits in the compiled program, each in parts of itself."""
        return self.program.rows.get(LIMITS, slice(0, 0))

    def limit_duals(self, solution: Solution) -> Floats:
        """Return (R,) the dual values of the limits, >= 0."""
        return solution.duals[self.limit_rows]

    @property
    def time_rows(self) -> slice:
        """The rows of the jobs' time in the compiled program."""
        return self.program.rows[TIME]

    @property
    def own_rows(self) -> slice:
        """The rows of `compile_factor` in the compiled program."""
        return self.program.rows.get(OWN, slice(0, 0))

    @property
    def factor_column(self) -> slice:
        """The column of the factor of `compile_factor`."""
        return self.program.columns[FACTOR]

    def prices(self, solution: Solution) -> Floats:
        """Return (K,) the dual values of the capacities: objective per GPU of each type, >= 0; 0 for a type without GPUs."""
        duals = solution.duals[self.capacity_rows] / self._matrices.units
        prices: Floats = np.where(self.jobs.capacities > 0, duals, 0.0)
        return prices
