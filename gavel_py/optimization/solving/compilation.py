"""Compilation of cvxpy problems: to linear programs for HiGHS, and to conic programs for Clarabel, which is called here.

cvxpy only compiles. Scaling, tolerances and statuses decide whether an answer can be trusted, so the solvers are called directly.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import SolverError, UnboundedError, faults_from, refuse
from gavel_py.optimization.formulation.linear_rows import SparseMatrix
from gavel_py.optimization.solving.highs import NO_LIMIT, LinearProgram, TimeLimit, run_stoppable
from gavel_py.problem.arrays import Floats

if TYPE_CHECKING:
    import cvxpy as cp

COMPILE_SECONDS, CONES_SECONDS = 3e-6, 1e-5
"""Approximate seconds per variable for cvxpy to compile a linear program, and for cvxpy and Clarabel to set up a conic one. Neither
can be interrupted, so with a time limit they start only if that much time is left.
"""


NOT_LINEAR = "this policy is not a linear program, which is what HiGHS solves"
NO_WHOLE_NUMBERS = "this policy has whole-number variables; only linear and concave programs are solved"


def compiled(problem: cp.Problem) -> LinearProgram:
    """Return the linear program that cvxpy compiles from `problem`; raises `InputError` if it is not linear."""
    import cvxpy as cp
    import scipy.sparse as sp

    with (
        faults_from("", "the objective or a constraint of this policy is not convex", cp.error.DCPError),
        faults_from("", NOT_LINEAR, cp.error.SolverError),
    ):
        data, _, inverse = problem.get_problem_data(cp.HIGHS)
    refuse(
        "",
        (data["bool_vars_idx"] or data["int_vars_idx"], "", NO_WHOLE_NUMBERS),
        (data.get("P") is not None, "", f"{NOT_LINEAR}: cvxpy treats it as quadratic"),
    )
    form = data["param_prob"]
    size, matrix = len(data["c"]), sp.csc_array(data["A"]).tocoo()
    starts = np.cumsum([0, *(constraint.size for constraint in form.constraints)]).tolist()
    lengths = {variable.id: variable.size for variable in form.variables}
    return LinearProgram(
        costs=np.asarray(data["c"], dtype=float),
        offset=float(inverse[-1]["offset"]),
        matrix=SparseMatrix(matrix.coords[0], matrix.coords[1], matrix.data, matrix.shape),
        limits=np.asarray(data["b"], dtype=float),
        equalities=int(data["dims"].zero),
        lower=_bounds(data["lower_bounds"], -np.inf, size),
        upper=_bounds(data["upper_bounds"], np.inf, size),
        columns={key: slice(start, start + lengths[key]) for key, start in form.var_id_to_col.items()},
        rows={c.id: slice(start, start + c.size) for c, start in zip(form.constraints, starts[:-1], strict=True)},
    )


def _bounds(bounds: Floats | None, default: float, count: int) -> Floats:
    return np.full(count, default) if bounds is None else np.asarray(bounds, dtype=float)


# As precise as floating point allows: an answer is judged by its proof, not by the status with which Clarabel ends.
CONIC_OPTIONS: dict[str, object] = {
    "verbose": False,
    "direct_solve_method": "qdldl",  # single-threaded, so that the answer does not depend on the machine
    "tol_gap_abs": 1e-12,
    "tol_gap_rel": 1e-12,
    "tol_feas": 1e-12,
}


class ConicProgram:
    """A concave objective and its constraints, compiled for Clarabel. Raises `InputError` for whole-number variables."""

    def __init__(self, problem: cp.Problem) -> None:
        import cvxpy as cp

        refuse("", (problem.is_mixed_integer(), "", NO_WHOLE_NUMBERS))
        # Clarabel's result is read regardless of its status.
        self._data, self._chain, self._inverse = problem.get_problem_data(cp.CLARABEL, solver_opts={"accept_unknown": True})
        self._variables = problem.variables()
        costs, squares = self._data["c"], self._data.get("P")
        # Clarabel loses most of its precision if costs are far from 1.
        size = float(np.abs(costs).max(initial=0.0)) or 1.0
        self._costs = costs / size
        self._squares = None if squares is None else squares / size

    def solve(self, step: float, limit: TimeLimit = NO_LIMIT) -> int:
        """Solve, store the answer in cvxpy's variables, and return the number of iterations.

        step: the largest step of an iteration as a part of the distance to the boundary of the cones; shorter steps are more
        precise.

        Raises `SolverError` when Clarabel ends without any answer, `UnboundedError` when it finds the objective unbounded,
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
        """Run Clarabel; Ctrl-C and the time limit stop it at the next iteration."""
        solver, stop = self._solver(step), threading.Event()
        if hasattr(solver, "set_termination_callback"):  # since Clarabel 0.11
            solver.set_termination_callback(lambda _: stop.is_set())
        try:
            return run_stoppable(solver.solve, stop.set, limit)
        except BaseException as error:  # a panic in Clarabel is not an Exception
            if type(error).__name__ != "PanicException":
                raise
            raise SolverError(f"Clarabel failed: {error}") from None

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
