"""From a cvxpy problem to HiGHS and back: the only place where a solver is called.

cvxpy compiles the problem and reads the answer back; the call in between is ours, because the scaling, the tolerances and
the statuses decide whether an answer can be trusted, and because a kept `highspy.Highs` can start from an old basis while
cvxpy's own warm start cannot.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import InputError, SolverError

if TYPE_CHECKING:
    import cvxpy as cp

__all__ = ["SolvedProgram", "solve_linear_program"]

Floats = NDArray[np.float64]

# HiGHS's tolerances are absolute. Programs are written with rows of about 1 (`program`), and the cost vector is
# scaled to 1 here, so that 1e-9 means the same in every unit of the objective.
OPTIONS: dict[str, object] = {
    "output_flag": False,
    "threads": 1,  # the order of pivots, and so the answer among equal optima, must not depend on the machine
    "random_seed": 0,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
}
ITERATION_KINDS = ("simplex", "ipm", "crossover", "pdlp", "qp")


@dataclass(frozen=True)
class SolvedProgram:
    """A compiled program, min costs·z + offset with matrix z <= limits (the first rows with =) and lower <= z <= upper, solved.

    values: z; duals: y, one per row, >= 0 for the rows with <=; start_of: {id of a cvxpy variable: its first column}.
    """

    costs: Floats
    offset: float
    matrix: Any
    limits: Floats
    lower: Floats
    upper: Floats
    values: Floats
    duals: Floats
    start_of: dict[int, int]


def solve_linear_program(problem: cp.Problem) -> SolvedProgram:
    """Solve `problem` to optimality, set its variables and the dual values of its constraints, and return it as compiled.

    Raises `InputError` when it is not a linear program, `SolverError` when HiGHS ends with any status but optimal.
    """
    data, chain, inverse = _compiled(problem)
    solver, scale = _run(data)
    status = solver.getModelStatus().name
    if status != "kOptimal":
        raise SolverError(f"HiGHS ended with status {status.removeprefix('k').lower()!r}, not optimal; there is no allocation")
    answer = solver.getSolution()
    duals = -np.array(answer.row_dual) * scale
    equalities = data["dims"].zero
    duals[equalities:] = np.maximum(0.0, duals[equalities:])
    solved = SolvedProgram(
        costs=data["c"],
        offset=float(inverse[-1]["offset"]),
        matrix=data["A"],
        limits=data["b"],
        lower=_bounds(data["lower_bounds"], -np.inf, len(data["c"])),
        upper=_bounds(data["upper_bounds"], np.inf, len(data["c"])),
        values=np.array(answer.col_value),
        duals=duals,
        start_of=dict(data["param_prob"].var_id_to_col),
    )
    problem.unpack_results(_as_cvxpy_reads_it(solver, solved), chain, inverse)
    return solved


def _compiled(problem: cp.Problem) -> tuple[dict[str, Any], Any, Any]:
    import cvxpy as cp

    try:
        compiled: tuple[dict[str, Any], Any, Any] = problem.get_problem_data(cp.HIGHS)
    except cp.error.DCPError as error:
        raise InputError(f"the objective or a constraint of this policy is not convex: {error}") from None
    except cp.error.SolverError as error:
        text = "this policy is not a linear program, which is what HiGHS solves: no logarithms, powers or other curves"
        raise InputError(text) from error
    data = compiled[0]
    if data.get("P") is not None or data["bool_vars_idx"] or data["int_vars_idx"]:
        raise InputError("this policy has a quadratic objective or whole-number variables; only linear programs are solved")
    return compiled


def _run(data: dict[str, Any]) -> tuple[Any, float]:
    """Hand cvxpy's data to HiGHS; return it after the run, and the number by which the costs were divided.

    What does not end with an optimum is tried once more without presolve, which takes a feasible set as thin as the tolerance
    for an empty one: keeping a level that jobs of tiny need have reached leaves them no more room than that.
    """
    import highspy

    scale = float(np.abs(data["c"]).max(initial=0.0)) or 1.0
    model = _model(data, data["c"] / scale)
    for presolve in ("on", "off"):
        solver = highspy.Highs()
        for name, value in (OPTIONS | {"presolve": presolve}).items():
            solver.setOptionValue(name, value)
        solver.passModel(model)
        _run_interruptibly(solver)
        if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            break
    return solver, scale


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


def _as_cvxpy_reads_it(solver: Any, solved: SolvedProgram) -> dict[str, Any]:
    """The answer in the form that cvxpy's own call of HiGHS returns, in unscaled costs."""
    info = solver.getInfo()
    counts = {f"{kind}_iteration_count": getattr(info, f"{kind}_iteration_count") for kind in ITERATION_KINDS}
    value = float(solved.costs @ solved.values)
    return {
        "model_status": solver.getModelStatus().name,
        "solution": SimpleNamespace(col_value=solved.values, row_dual=-solved.duals),
        "info": SimpleNamespace(objective_function_value=value, **counts),
        "run_time": solver.getRunTime(),
    }


def _model(data: dict[str, Any], costs: Floats) -> Any:
    import highspy

    matrix = data["A"].tocsc()
    equalities = data["dims"].zero
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = matrix.shape
    model.col_cost_ = costs
    model.row_upper_ = data["b"]
    model.row_lower_ = np.concatenate([data["b"][:equalities], np.full(len(data["b"]) - equalities, -np.inf)])
    model.col_lower_ = _bounds(data["lower_bounds"], -np.inf, len(costs))
    model.col_upper_ = _bounds(data["upper_bounds"], np.inf, len(costs))
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = matrix.indptr
    model.a_matrix_.index_ = matrix.indices
    model.a_matrix_.value_ = matrix.data
    return model


def _bounds(bounds: Floats | None, default: float, count: int) -> Floats:
    return np.full(count, default) if bounds is None else np.asarray(bounds, dtype=float)
