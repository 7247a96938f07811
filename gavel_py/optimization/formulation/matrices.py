"""The program of an allocation as matrices: put together, solved from an old basis, and its answer read.

This is what cvxpy would compile from expressions, where there are none: rounds solve thousands of small programs whose rows are
known as matrices, and to compile each would take several times as long as to solve it. `assembled` joins named columns and rows,
`ProgramMatrices` are the variables of valid allocations and their rows, and `AllocationProgram` is compiled, solved and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from gavel_py.optimization.checking.certificates import Prices
from gavel_py.optimization.job_classes import JobClasses
from gavel_py.optimization.solving.highs import LinearSolver
from gavel_py.optimization.solving.lp_problem import LinearProgram, Solution
from gavel_py.optimization.solving.time_limit import TimeLimitReached
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.row_hashing import content_keys, hash_of, position_keys


@dataclass(frozen=True, eq=False)
class Columns:
    """Variables z with costs·z in the objective, lower <= z <= upper."""

    costs: Floats
    lower: Floats
    upper: Floats


class Rows(NamedTuple):
    """Σ matrix @ z over the columns by their names <= limits."""

    blocks: Mapping[str, sp.sparray]
    limits: Floats


def assembled(columns: Mapping[str, Columns], rows: Mapping[str, Rows], offset: float = 0.0) -> LinearProgram:
    """Return min Σ costs·z + offset under these rows, columns and rows in this order and by these names."""
    column_slices = _slices({name: len(each.costs) for name, each in columns.items()})
    row_slices = _slices({name: len(each.limits) for name, each in rows.items()})
    entries = [
        (row_slices[to].start, column_slices[of].start, block.tocoo())
        for to, each in rows.items()
        for of, block in each.blocks.items()
    ]
    at = (
        np.concatenate([block.coords[0] + first for first, _, block in entries]),
        np.concatenate([block.coords[1] + first for _, first, block in entries]),
    )
    shape = sum(len(each.limits) for each in rows.values()), sum(len(each.costs) for each in columns.values())
    there = columns.values()
    return LinearProgram(
        costs=np.concatenate([each.costs for each in there]),
        offset=offset,
        matrix=sp.csc_array((np.concatenate([block.data for *_, block in entries]), at), shape=shape),
        limits=np.concatenate([each.limits for each in rows.values()]),
        equalities=0,
        lower=np.concatenate([each.lower for each in there]),
        upper=np.concatenate([each.upper for each in there]),
        columns=column_slices,
        rows=row_slices,
    )


def _slices(lengths: Mapping[str, int]) -> dict[int | str, slice]:
    ends = np.cumsum([*lengths.values()]).tolist()
    return {name: slice(end - length, end) for (name, length), end in zip(lengths.items(), ends, strict=True)}


PARTS, FACTOR = "parts", "factor"
"""Names of columns."""

TIME, CAPACITY, LIMITS, OWN = "time", "capacity", "limits", "own"
"""Names of rows."""

TOP = 2.0
"""No bound but those of the rows, whose dual values it would take over; but without any, the dual simplex method has a far longer
way, hence twice as much as can be.
"""

LEAST_EXPONENT = -29
"""Of the least part of what there is that a variable is measured in: HiGHS takes coefficients of up to 1e-9 for 0. Parts are
powers of 2, so that nothing is rounded.
"""


class ProgramMatrices:
    """A variable for each of P pairs of a class and a type where it can run: x_gj in parts of the most that it can be.

    So HiGHS's absolute tolerances mean the same for 2 GPUs and for 10^7, and for one job and for a million; capacities are 1.
    rows, columns: (P,) classes and types of the pairs; most: (P,) min(1, c_j / (n_g s_g)); units: (K,) c_j, 1 where there are none.

    enough: (G,) steps/s beyond which a job gains nothing. Where that takes less time, variables are in parts of about that time:
    what a job needs could be too little for the tolerances otherwise. sizes: (P,) the time of one part.
    """

    def __init__(self, jobs: JobClasses, enough: Floats | None = None) -> None:
        self._jobs = jobs
        self.rows, self.columns = np.nonzero(jobs.runnable)
        self._gpus = (jobs.counts * jobs.num_gpus)[self.rows]
        self.units: Floats = np.where(jobs.capacities > 0, jobs.capacities, 1.0)
        self.most: Floats = np.minimum(1.0, self.units[self.columns] / self._gpus)
        self.sizes: Floats = self.most
        if enough is not None:
            parts = enough[self.rows] / (jobs.throughputs[self.rows, self.columns] * self.most)
            least = LEAST_EXPONENT + np.maximum(0.0, np.log2(self.units[self.columns] / self._gpus))
            with np.errstate(divide="ignore"):  # what needs nothing is in the least parts
                exponents = np.clip(np.ceil(np.log2(parts)), np.minimum(0.0, np.ceil(least)), 0.0)
            self.sizes = self.most * 2**exponents

    @property
    def tops(self) -> Floats:
        """(P,) bounds of the variables, twice as much as each can be."""
        return TOP * self.most / self.sizes

    def by_job(self, coefficients: Floats) -> sp.csr_array:
        """(G, P) Σ_j a_gj x_gj; coefficients: (P,) a_gj."""
        return self._matrix(self.rows, coefficients * self.sizes, len(self._jobs))

    @cached_property
    def used(self) -> sp.csr_array:
        """(K, P) what each variable takes of the capacities, in parts of them."""
        return self._matrix(self.columns, self._gpus * self.sizes / self.units[self.columns], len(self.units))

    def of_limits(self, limits: sp.csr_array) -> sp.csr_array:
        """(R, P) what each variable takes of (R, G·K) limits."""
        own = limits[:, self.rows * len(self.units) + self.columns]
        return sp.csr_array(own @ sp.diags_array(self._jobs.counts[self.rows] * self.sizes))

    def table(self, values: Floats) -> Floats:
        """Return one value per pair as a (G, K) table with 0 elsewhere."""
        table = np.zeros(self._jobs.throughputs.shape)
        table[self.rows, self.columns] = values
        return table

    def best(self, constant: float, worth: Floats, floors: sp.csr_array) -> LinearProgram:
        """Return the program max constant + Σ worth·part over valid allocations; floors: (F, P) what must be at least 1."""
        own = {OWN: Rows({PARTS: -floors}, -np.ones(floors.shape[0]))} if floors.shape[0] else {}
        parts = Columns(-worth, np.zeros(len(worth)), self.tops)
        return assembled({PARTS: parts}, self._valid_rows() | own, -constant)

    def factor(self, own: sp.csr_array, least: Floats, time_limits: Floats | float) -> LinearProgram:
        """Return the program min ϕ >= 0 such that own rows are at least so much with ϕ times all GPUs.

        Limits grow with ϕ as `limits_grow` says. own: (R, P); least: (R,); time_limits: (G,) in place of 1.
        """
        count = len(self.rows)
        factor = Columns(np.ones(1), np.zeros(1), np.full(1, np.inf))
        parts = Columns(np.zeros(count), np.zeros(count), TOP / self.sizes)
        rows = self._valid_rows() | {OWN: Rows({PARTS: -own}, -least)}
        rows[TIME] = rows[TIME]._replace(limits=np.broadcast_to(time_limits, len(self._jobs)).astype(float))
        grows = {CAPACITY: np.ones(len(self.units)), LIMITS: self._jobs.limits_grow}
        for name in rows.keys() & grows.keys():
            with_factor = {**rows[name].blocks, FACTOR: sp.csr_array(-grows[name][:, None])}
            rows[name] = Rows(with_factor, rows[name].limits - grows[name])
        return assembled({FACTOR: factor, PARTS: parts}, rows)

    def _valid_rows(self) -> dict[str, Rows]:
        """Σ_j x_gj <= 1, Σ_g n_g s_g x_gj <= c_j, and what the rules limit."""
        limits, most = self._jobs.limits
        rows = {
            TIME: Rows({PARTS: self.by_job(np.ones(len(self.rows)))}, np.ones(len(self._jobs))),
            CAPACITY: Rows({PARTS: self.used}, np.ones(len(self.units))),
        }
        return rows | ({LIMITS: Rows({PARTS: self.of_limits(limits)}, most)} if len(most) else {})

    def _matrix(self, positions: Indices, coefficients: Floats, count: int) -> sp.csr_array:
        """The (count, P) matrix with each pair's coefficient in the row at its position."""
        pairs = np.arange(len(self.rows))
        return sp.csr_array((coefficients, (positions, pairs)), shape=(count, len(pairs)))


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
