"""From a cvxpy problem to HiGHS and back: the only place where a solver is called.

cvxpy compiles the problem and reads the answer back; the call in between is ours, because the scaling, the tolerances and
the statuses decide whether an answer can be trusted, and because a kept `highspy.Highs` can start from an old basis while
cvxpy's own warm start cannot.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import InputError, SolverError

if TYPE_CHECKING:
    import cvxpy as cp

__all__ = ["solve_linear_program"]

# HiGHS's tolerances are absolute. Programs are written with rows of about 1 (`program`), and the cost vector is
# scaled to 1 here, so that 1e-9 means the same in every unit of the objective.
OPTIONS: dict[str, object] = {
    "output_flag": False,
    "threads": 1,  # the order of pivots, and so the answer among equal optima, must not depend on the machine
    "random_seed": 0,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
}


def solve_linear_program(problem: cp.Problem) -> None:
    """Solve `problem` to optimality and set the values of its variables and the dual values of its constraints.

    Raises `InputError` when it is not a linear program, `SolverError` when HiGHS ends with any status but optimal.
    """
    data, chain, inverse = _compiled(problem)
    results = _run(data)
    if results["model_status"] != "kOptimal":
        status = results["model_status"].removeprefix("k").lower()
        raise SolverError(f"HiGHS ended with status {status!r}, not optimal; there is no allocation")
    problem.unpack_results(results, chain, inverse)


def _compiled(problem: cp.Problem) -> tuple[dict[str, Any], Any, Any]:
    import cvxpy as cp

    try:
        compiled: tuple[dict[str, Any], Any, Any] = problem.get_problem_data(cp.HIGHS)
    except cp.error.DCPError as error:
        raise InputError(f"the objective or a constraint of this policy is not convex: {error}") from None
    except cp.error.SolverError as error:
        raise InputError(f"this policy is not a linear program, which is what HiGHS solves: {error}") from None
    data = compiled[0]
    if data.get("P") is not None or data["bool_vars_idx"] or data["int_vars_idx"]:
        raise InputError("this policy has a quadratic objective or whole-number variables; only linear programs are solved")
    return compiled


def _run(data: dict[str, Any]) -> dict[str, Any]:
    """Hand cvxpy's data (minimise c x, rows A x = b first, then A x <= b) to HiGHS."""
    import highspy

    solver = highspy.Highs()
    for name, value in OPTIONS.items():
        solver.setOptionValue(name, value)
    scale = float(np.abs(data["c"]).max(initial=0.0)) or 1.0
    solver.passModel(_model(data, data["c"] / scale))
    _run_interruptibly(solver)
    answer = solver.getSolution()
    # cvxpy reads these off; the duals belong to the scaled costs.
    duals = np.array(answer.row_dual) * scale
    info = solver.getInfo()
    return {
        "model_status": solver.getModelStatus().name,
        "solution": SimpleNamespace(col_value=np.array(answer.col_value), row_dual=duals),
        "info": _scaled_info(info, scale),
        "run_time": solver.getRunTime(),
    }


def _run_interruptibly(solver: Any) -> None:
    """Run HiGHS so that Ctrl-C stops it at once instead of after the solve."""
    solver.HandleUserInterrupt = True
    with ThreadPoolExecutor(max_workers=1) as worker:
        running = worker.submit(solver.run)
        try:
            running.result()
        except KeyboardInterrupt:
            solver.cancelSolve()
            raise


def _scaled_info(info: Any, scale: float) -> SimpleNamespace:
    counts = ("simplex", "ipm", "crossover", "pdlp", "qp")
    fields = {f"{count}_iteration_count": getattr(info, f"{count}_iteration_count") for count in counts}
    return SimpleNamespace(objective_function_value=info.objective_function_value * scale, **fields)


def _model(data: dict[str, Any], costs: np.ndarray) -> Any:
    import highspy

    matrix = data["A"].tocsc()
    equalities = data["dims"].zero
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = matrix.shape
    model.col_cost_ = costs
    model.row_upper_ = data["b"]
    model.row_lower_ = np.concatenate([data["b"][:equalities], np.full(len(data["b"]) - equalities, -highspy.kHighsInf)])
    model.col_lower_ = _bounds(data["lower_bounds"], -highspy.kHighsInf, len(costs))
    model.col_upper_ = _bounds(data["upper_bounds"], highspy.kHighsInf, len(costs))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = matrix.indptr
    model.a_matrix_.index_ = matrix.indices
    model.a_matrix_.value_ = matrix.data
    return model


def _bounds(bounds: np.ndarray | None, default: float, count: int) -> np.ndarray:
    return np.full(count, default) if bounds is None else np.asarray(bounds, dtype=float)
