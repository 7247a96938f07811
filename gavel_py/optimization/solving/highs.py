"""From a cvxpy problem to HiGHS, or Clarabel for curves: the only place where a solver is called.

cvxpy compiles the problem; the call is ours, because the scaling, the tolerances and the statuses decide whether an answer
can be trusted, and because a kept `highspy.Highs` can start from an old basis while cvxpy's own warm start cannot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import InputError, SolverError, UnboundedError
from gavel_py.optimization.solving.lp_problem import KeptBasis, LinearProgram, Solution
from gavel_py.optimization.solving.time_limit import NO_LIMIT, TimeLimit, TimeLimitReached, run_stoppable
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

logger = logging.getLogger(__name__)

Keys = NDArray[np.uint64]

# HiGHS's tolerances are absolute. Programs are written with rows of about 1 (`formulation`), and the cost vector is
# scaled to 1 here, so that 1e-9 means the same in every unit of the objective.
OPTIONS: dict[str, object] = {
    "output_flag": False,
    # The order of pivots, and so the answer among equal optima, must not depend on the machine; a change after a run is not taken.
    "threads": 1,
    "random_seed": 0,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
    "presolve": "off",  # it takes a feasible set as thin as the tolerance for an empty one, and gains nothing on these programs
}


class Algorithm(StrEnum):
    """How HiGHS is to solve a program."""

    SIMPLEX = "simplex"
    """Dual simplex: starts from an old basis and ends with one."""
    INTERIOR_POINT = "interior point"
    """Interior point and crossover: another way to the same optimum, where the simplex method ends without one."""


ALGORITHMS: dict[Algorithm, dict[str, object]] = {
    Algorithm.SIMPLEX: {"solver": "simplex"},
    Algorithm.INTERIOR_POINT: {"solver": "ipm", "run_crossover": "on"},
}

RETRIES = (None, "off", "on")
"""How a program is tried until there is an optimum: as it is, from scratch, from scratch with presolve.

Very thin feasible sets, such as next to a job that needs all of its time, may look empty from an old basis.
"""

FEW_ROWS = 2_000
"""Programs of this size are done in milliseconds, in which a thread to watch for Ctrl-C would cost more than it is worth."""

LOGGED = "%d rows, %d columns, %d non-zeros: %s, %s after %d iterations, %.3f s"

MANY_ROWS = 20_000
"""Programs of this size are solved by interior point and crossover where the simplex method would start from a corner that is not
dual feasible: its first iterations then take most of the time, and can not be stopped."""

COMPILE_SECONDS, CONES_SECONDS = 3e-6, 1e-5
"""About how long cvxpy takes per variable to compile a linear program, and a conic one with what Clarabel prepares. Neither can be
stopped, so with a time limit they only start if there is as much time left."""

DUAL, PRIMAL = 1, 4
"""HiGHS's simplex strategies: dual where limits have changed since the last basis, primal where costs have."""


def compiled(problem: cp.Problem) -> LinearProgram:
    """Return `problem` as cvxpy compiles it; raises `InputError` when it is not a linear program."""
    import cvxpy as cp

    try:
        data, _, inverse = problem.get_problem_data(cp.HIGHS)
    except cp.error.DCPError as error:
        raise InputError(f"the objective or a constraint of this policy is not convex: {error}") from None
    except cp.error.SolverError as error:
        raise InputError(f"this policy is not a linear program, which is what HiGHS solves: {error}") from None
    if data["bool_vars_idx"] or data["int_vars_idx"]:
        raise InputError("this policy has whole-number variables; only linear and concave programs are solved")
    if data.get("P") is not None:
        raise InputError("this policy is not a linear program, which is what HiGHS solves: cvxpy takes it for a quadratic one")
    form = data["param_prob"]
    size = len(data["c"])
    starts = np.cumsum([0, *(constraint.size for constraint in form.constraints)]).tolist()
    lengths = {variable.id: variable.size for variable in form.variables}
    return LinearProgram(
        costs=np.asarray(data["c"], dtype=float),
        offset=float(inverse[-1]["offset"]),
        matrix=data["A"].tocsc(),
        limits=np.asarray(data["b"], dtype=float),
        equalities=int(data["dims"].zero),
        lower=_bounds(data["lower_bounds"], -np.inf, size),
        upper=_bounds(data["upper_bounds"], np.inf, size),
        columns={key: slice(start, start + lengths[key]) for key, start in form.var_id_to_col.items()},
        rows={c.id: slice(start, start + c.size) for c, start in zip(form.constraints, starts[:-1], strict=True)},
    )


# As far as numbers go: an answer is judged by its proof, not by the status with which Clarabel ends.
CONIC_OPTIONS: dict[str, object] = {
    "verbose": False,
    "direct_solve_method": "qdldl",  # on one thread, so that the answer does not depend on the machine
    "tol_gap_abs": 1e-12,
    "tol_gap_rel": 1e-12,
    "tol_feas": 1e-12,
}


class ConicProgram:
    """A concave objective and its constraints, compiled for Clarabel. Raises `InputError` for whole-number variables."""

    def __init__(self, problem: cp.Problem) -> None:
        import cvxpy as cp

        if problem.is_mixed_integer():
            raise InputError("this policy has whole-number variables; only linear and concave programs are solved")
        # Clarabel's word on how it ended is not taken, so whatever it has found is read.
        data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts={"accept_unknown": True})
        self._variables, self._chain, self._inverse = problem.variables(), chain, inverse
        self._data = data
        costs, squares = data["c"], data.get("P")
        # Of a cost vector far from 1, most of Clarabel's precision would be lost.
        size = float(np.abs(costs).max(initial=0.0)) or 1.0
        self._costs = costs / size
        self._squares = None if squares is None else squares / size

    def solve(self, step: float, limit: TimeLimit = NO_LIMIT) -> int:
        """Solve, leave the answer in cvxpy's variables, and return the number of iterations.

        step: the part of the way to the border of the cones that an iteration goes at most; the shorter, the more precise.

        Raises `SolverError` when Clarabel ends without any answer, `UnboundedError` where it says that there is no best one,
        `TimeLimitReached` when the limit ends it.
        """
        found = self._run(step, limit)
        solution = self._chain.invert(found, self._inverse)
        if not solution.primal_vars:
            error = UnboundedError if str(found.status) == "DualInfeasible" else SolverError
            raise error(f"Clarabel ended with status {str(found.status)!r}; there is no allocation")
        for variable in self._variables:
            variable.save_value(solution.primal_vars[variable.id])
        return int(found.iterations)

    def _run(self, step: float, limit: TimeLimit) -> Any:
        """Run Clarabel, which Ctrl-C and the time limit stop at its next iteration."""
        solver, stop = self._solver(step), threading.Event()
        if hasattr(solver, "set_termination_callback"):  # Clarabel before 0.11 ends when it ends
            solver.set_termination_callback(lambda _: stop.is_set())
        try:
            return run_stoppable(solver.solve, stop.set, limit)
        except BaseException as error:  # a panic of Clarabel's is no Exception
            if type(error).__name__ != "PanicException":
                raise
            raise SolverError(f"Clarabel gave up: {error}") from None

    def _solver(self, step: float) -> Any:
        import clarabel
        import scipy.sparse as sp
        from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

        settings = clarabel.DefaultSettings()
        for name, value in (CONIC_OPTIONS | {"max_step_fraction": step}).items():
            setattr(settings, name, value)
        data, size = self._data, len(self._costs)
        squares = sp.csc_array((size, size)) if self._squares is None else sp.triu(self._squares).tocsc()
        return clarabel.DefaultSolver(squares, self._costs, data["A"], data["b"], dims_to_solver_cones(data["dims"]), settings)


@dataclass
class LinearSolver:
    """Solves linear programs with one kept `highspy.Highs`, each from the last basis of the same name.

    A basis is kept by the keys of its columns and rows, so that it also serves a program in which some have come or gone:
    those that are new start outside. programs: how many were solved; iterations: simplex or interior-point, in all;
    prices: (K,) of the GPUs, for whoever solves the next problem to start from; limit: when to stop; latest: the algorithm of the
    latest program.
    """

    algorithm: Algorithm = Algorithm.SIMPLEX
    limit: TimeLimit = NO_LIMIT
    programs: int = 0
    iterations: int = 0
    prices: Floats | None = None
    latest: Algorithm = Algorithm.SIMPLEX
    _highs: Any = None
    _bases: dict[str, KeptBasis] = field(default_factory=dict)
    _scale: float = 1.0
    _loaded: LinearProgram | None = None

    def solve(self, program: LinearProgram, name: str, columns: Keys, rows: Keys, *, feasible: str | None = None) -> Solution:
        """Solve `program`, whose columns and rows have these keys, and keep its basis under `name`.

        feasible: the name of another basis to start from; it must be feasible in this program, and the primal simplex method,
        which then is the better one, goes on from it.

        Raises `SolverError` when HiGHS ends with any status but optimal, `TimeLimitReached` when the limit ends it: the basis
        reached by then is kept too, and the next solve goes on from it.
        """
        self.limit.check()
        highs = self._ready()
        self._load(program)
        start = feasible or name
        algorithm = self.algorithm
        if start in self._bases and algorithm is Algorithm.SIMPLEX:
            highs.setBasis(self._bases[start].on(columns, rows))
        else:
            highs.clearSolver()  # the basis of another program with this matrix is no good start
            if len(program.limits) > MANY_ROWS and (program.costs < 0).any():
                algorithm = Algorithm.INTERIOR_POINT
        self._set_algorithm(algorithm)
        highs.setOptionValue("simplex_strategy", PRIMAL if start == feasible else DUAL)
        try:
            solution = self._run()
        except TimeLimitReached:
            if self._highs is not None and highs.getBasis().valid:
                self._bases[name] = KeptBasis(highs.getBasis(), columns, rows)
            raise
        self._bases[name] = KeptBasis(highs.getBasis(), columns, rows)
        return solution

    def solve_first(self, program: LinearProgram) -> Solution:
        """Solve a program from no basis, and keep none. Raises as `solve`."""
        self._ready()
        self._load(program)
        return self._run()

    def again(self, limits: Floats, *, keep: str | None = None) -> Solution:
        """Solve the last program with other limits, starting where it ended; keep: keep the new basis under this name."""
        if self._loaded is None:
            raise RuntimeError("again() needs a program that solve() has solved")
        self.limit.check()
        program = replace(self._loaded, limits=limits)
        self._change_rows(program, np.flatnonzero(limits != self._loaded.limits).astype(np.int32))
        self._loaded = program
        self._set_algorithm(self.algorithm)
        self._highs.setOptionValue("simplex_strategy", DUAL)
        solution = self._run()
        if keep is not None:
            self._bases[keep] = self._bases[keep]._replace(basis=self._highs.getBasis())
        return solution

    def to_dict(self) -> dict[str, Any]:
        """Return as plain data what the next solve starts from."""
        prices = None if self.prices is None else self.prices.tolist()
        return {"prices": prices, "bases": {name: basis.to_dict() for name, basis in self._bases.items()}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LinearSolver:
        """Return a solver that starts from what `to_dict` described."""
        prices = None if document["prices"] is None else np.array(document["prices"], dtype=float)
        return cls(prices=prices, _bases={name: KeptBasis.from_dict(basis) for name, basis in document["bases"].items()})

    def __getstate__(self) -> dict[str, Any]:
        """What a copy starts from: the bases, and a HiGHS of its own."""
        return vars(self) | {"_bases": dict(self._bases), "_highs": None, "_loaded": None}

    def _load(self, program: LinearProgram) -> None:
        """Hand HiGHS the program, or what is new of it where it has the same matrix as the last one."""
        self._scale = float(np.abs(program.costs).max(initial=0.0)) or 1.0
        highs, costs, last = self._highs, program.costs / self._scale, self._loaded
        if last is None or last.matrix is not program.matrix:
            highs.passModel(_model(program, costs))
        else:
            columns = np.arange(len(costs), dtype=np.int32)
            highs.changeColsCost(len(costs), columns, costs)
            highs.changeColsBounds(len(costs), columns, program.lower, program.upper)
            self._change_rows(program, np.flatnonzero(program.limits != last.limits).astype(np.int32))
        self._loaded = program

    def _change_rows(self, program: LinearProgram, rows: NDArray[np.int32]) -> None:
        lower = _row_lower(program.limits, program.equalities)
        self._highs.changeRowsBounds(len(rows), rows, lower[rows], program.limits[rows])

    def _ready(self) -> Any:
        if self._highs is None:
            import highspy

            self._highs = highspy.Highs()
            for name, value in OPTIONS.items():
                self._highs.setOptionValue(name, value)
            self._set_algorithm(self.algorithm)
        return self._highs

    def _set_algorithm(self, algorithm: Algorithm) -> None:
        self.latest = algorithm
        for name, value in ALGORITHMS[algorithm].items():
            self._highs.setOptionValue(name, value)

    def _run(self) -> Solution:
        program = self._loaded
        assert program is not None  # noqa: S101
        self.programs += 1
        before, started = self.iterations, time.perf_counter()
        for presolve in RETRIES:
            if presolve is not None:  # once more, without the old basis
                self._highs.clearSolver()
                self._highs.setOptionValue("presolve", presolve)
            # HiGHS counts all of its runs.
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + self.limit.remaining)
            if len(program.limits) <= FEW_ROWS:
                self._run_here()
            else:
                self._run_interruptibly()
            info = self._highs.getInfo()
            self.iterations += max(0, info.simplex_iteration_count) + max(0, info.ipm_iteration_count)
            status = self._highs.getModelStatus().name.removeprefix("k").lower()
            size, iterations, seconds = program.matrix.shape, self.iterations - before, time.perf_counter() - started
            logger.debug(LOGGED, *size, program.matrix.nnz, self.latest, status, iterations, seconds)
            if status in ("optimal", "timelimit"):
                break
        self._highs.setOptionValue("presolve", OPTIONS["presolve"])
        if status not in ("optimal", "timelimit"):
            raise SolverError(f"HiGHS ended with status {status!r}, not optimal; there is no allocation")
        answer = self._highs.getSolution()
        duals = -np.array(answer.row_dual) * self._scale
        duals[program.equalities :] = np.maximum(0.0, duals[program.equalities :])
        found = Solution(program, np.array(answer.col_value), duals)
        if status == "timelimit":
            raise TimeLimitReached(found if answer.value_valid and answer.dual_valid else None)
        return found

    def _run_here(self) -> None:
        """Run HiGHS on this thread."""
        highs = self._highs
        highs.HandleUserInterrupt = False
        highs.run()
        if highs.getModelStatus().name == "kNotset":  # the caller has used it with more threads, and no other number is taken now
            highs.setOptionValue("threads", 0)
            highs.run()
            highs.setOptionValue("threads", OPTIONS["threads"])

    def _run_interruptibly(self) -> None:
        """Run HiGHS so that Ctrl-C and the time limit end the wait for it at once."""
        highs = self._highs
        highs.HandleUserInterrupt = True
        try:
            run_stoppable(highs.run, highs.cancelSolve, self.limit)
        except (KeyboardInterrupt, TimeLimitReached):
            self._highs = self._loaded = None  # it may still be running, so the next solve begins anew
            self._bases.clear()
            raise


def solved_once(program: LinearProgram) -> Solution:
    """Solve one program by itself, so that the answer does not depend on what was solved before. Raises `SolverError`."""
    return LinearSolver().solve_first(program)


def _model(program: LinearProgram, costs: Floats) -> Any:
    import highspy

    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = program.matrix.shape
    model.col_cost_ = costs
    model.row_upper_ = program.limits
    model.row_lower_ = _row_lower(program.limits, program.equalities)
    model.col_lower_ = program.lower
    model.col_upper_ = program.upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = program.matrix.indptr
    model.a_matrix_.index_ = program.matrix.indices
    model.a_matrix_.value_ = program.matrix.data
    return model


def _row_lower(limits: Floats, equalities: int) -> Floats:
    return np.concatenate([limits[:equalities], np.full(len(limits) - equalities, -np.inf)])


def _bounds(bounds: Floats | None, default: float, count: int) -> Floats:
    return np.full(count, default) if bounds is None else np.asarray(bounds, dtype=float)
