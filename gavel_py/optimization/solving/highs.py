"""Linear programs, and `LinearSolver`, which solves them with HiGHS within a time limit, each from the last basis of its name.

HiGHS is called directly, because a kept `highspy.Highs` can start from an old basis, which cvxpy's own warm start cannot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gavel_py.errors import Fault, InputError, SolverError
from gavel_py.problem.arrays import Floats
from gavel_py.problem.tolerances import CLEAR, SOLVER_TOLERANCE

if TYPE_CHECKING:
    from gavel_py.optimization.formulation.linear_rows import SparseMatrix

logger = logging.getLogger(__name__)

Keys = NDArray[np.uint64]
Result = TypeVar("Result")

GRACE_SECONDS = 0.05
"""Additional time to wait for a native solver that enforces the limit itself."""


class TimeLimitReached(Exception):  # noqa: N818  (control flow inside one solve; callers of `solve` never see it)
    """The time limit has passed. Carries the results so far, which need not be optimal or even valid.

    Args:
        solution: The solution at which HiGHS stopped (`highs.Solution`), if known.
        fractions: Candidates for an allocation, each (G, K) time fractions of the job classes.
        prices: Dual prices of GPUs and limits (`certificates.Prices`), for bounds.
    """

    def __init__(self, solution: Any = None, fractions: tuple[Floats, ...] = (), prices: tuple[Any, ...] = ()) -> None:
        super().__init__("the time limit was reached")
        self.solution = solution
        self.fractions = fractions
        self.prices = prices


class TimeLimit:
    """A number of seconds counted from the creation of this object, or no limit at all (None)."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = np.inf if seconds is None else time.monotonic() + seconds

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return bool(self._end < np.inf)

    @property
    def remaining(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return max(0.0, self._end - time.monotonic()) if self.is_set else np.inf

    def check(self, needed_seconds: float = 0.0) -> None:
        """Raise `TimeLimitReached` if no time is left, or less than an uninterruptible operation needs."""
        if self.is_set and self.remaining <= needed_seconds:
            raise TimeLimitReached


NO_LIMIT = TimeLimit()


def checked_limit(owner: str, seconds: float | None) -> float | None:
    """Return the time limit of an owner; raises `InputError` unless it is None or a finite number greater than 0."""
    is_valid = isinstance(seconds, Real) and not isinstance(seconds, bool) and 0 < seconds < np.inf
    if seconds is not None and not is_valid:
        raise InputError(Fault(owner, "time_limit_seconds", f"must be a finite number greater than 0, found {seconds!r}"))
    return None if seconds is None else float(seconds)


def run_stoppable(work: Callable[[], Result], stop: Callable[[], object], limit: TimeLimit) -> Result:
    """Run `work` in another thread and return its result; Ctrl-C and the time limit end the wait.

    At the end of the wait, `stop` asks the native code to end, and the thread is abandoned: the objects that it uses must not be
    used again. It is not a daemon thread, because native code that returns while the interpreter shuts down would crash the
    process.

    Raises:
        TimeLimitReached: `work` was still running at the end of the limit.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised again by `outcome.result`)
            outcome.set_exception(error)

    threading.Thread(target=run, name="gavel-py solver").start()
    try:
        return outcome.result(limit.remaining + GRACE_SECONDS if limit.is_set else None)
    except TimeoutError:
        stop()
        raise TimeLimitReached from None
    except KeyboardInterrupt:
        stop()
        raise


# HiGHS's tolerances are absolute. The rows of programs are scaled to about 1 (`formulation`), and the costs are scaled to 1 here,
# so that `SOLVER_TOLERANCE` means the same in every unit of the objective.
OPTIONS: dict[str, object] = {
    # The order of pivots, and with it the choice among equal optima, must not depend on the machine. HiGHS reads these
    # two options only once, at its first run.
    "threads": 1,
    "random_seed": 0,
    "primal_feasibility_tolerance": SOLVER_TOLERANCE,
    "dual_feasibility_tolerance": SOLVER_TOLERANCE,
    "presolve": "off",  # mistakes very thin feasible sets for empty ones, and saves no time on these programs
}


def new_highs(options: Mapping[str, object] | None = None) -> Any:
    """Return a new HiGHS with these options, which prints nothing."""
    highs = _silent_highs()()
    for name, value in (options or {}).items():
        highs.setOptionValue(name, value)
    return highs


@cache
def _silent_highs() -> Any:
    import highspy

    class SilentHighs(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:  # noqa: N802  (its constructor calls this, where HiGHS 1.16 would print its version)
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    return SilentHighs


def run_here(highs: Any) -> None:
    """Run a HiGHS on this thread, also where the caller's own use of HiGHS has fixed another number of threads for it."""
    highs.HandleUserInterrupt = False
    highs.run()
    if highs.getModelStatus().name == "kNotset":
        highs.setOptionValue("threads", 0)
        highs.run()
        highs.setOptionValue("threads", OPTIONS["threads"])


class Algorithm(StrEnum):
    """The algorithm with which HiGHS solves a program."""

    SIMPLEX = "simplex"
    """Simplex: starts from an old basis and ends with one."""
    INTERIOR_POINT = "interior point"
    """Interior point and crossover: for programs on which the simplex method fails."""


ALGORITHMS: dict[Algorithm, dict[str, object]] = {
    Algorithm.SIMPLEX: {"solver": "simplex"},
    Algorithm.INTERIOR_POINT: {"solver": "ipm", "run_crossover": "on", "ipm_iteration_limit": 500},
}
"""Interior point needs about 20 to 100 iterations. Without a limit, it may never converge on a program whose coefficients differ by
many orders of magnitude.
"""

DUAL, PRIMAL = 1, 4
"""HiGHS's simplex strategies: dual if right-hand sides have changed since the last basis, primal if costs have."""

DEVEX, STEEPEST_EDGE = 1, -1
"""Weights of rows in the dual simplex method: by default steepest edge, whose weights would have to be computed first for a basis
of another program; devex there, if the program is large.
"""

RETRIES: tuple[dict[str, object], ...] = (
    {},
    {"presolve": "off"},
    {"presolve": "on"},
    {"presolve": "off", "simplex_strategy": PRIMAL},
)
"""Options to try until HiGHS finds an optimum; all but the first start from scratch.

From an old basis, a thin feasible set may look empty, for example with a job that needs all of its time. With types of nearly equal
speed, the pivots of one method may all be too small, and those of another are not.
"""

FEW_ROWS = 2_000
"""Programs up to this size take milliseconds and run on the calling thread, without a second thread that waits for Ctrl-C."""

LOGGED = "%d rows, %d columns, %d non-zeros: %s, %s after %d iterations, %.3f s"

MANY_ROWS = 20_000
"""Above this size, interior point replaces a simplex method that would start from a corner that is not dual feasible. The first
iterations of the simplex method would take most of the time there, and cannot be interrupted.
"""


@dataclass(frozen=True)
class LinearProgram:
    """min costs·z + offset with matrix z <= limits (the first `equalities` rows with =), lower <= z <= upper.

    matrix: its entries are in the order of its columns.
    columns, rows: the columns of cvxpy's variables and the rows of its constraints, by id, if cvxpy compiled the program.
    """

    costs: Floats
    offset: float
    matrix: SparseMatrix
    limits: Floats
    equalities: int
    lower: Floats
    upper: Floats
    columns: Mapping[int, slice] = field(default_factory=dict)
    rows: Mapping[int, slice] = field(default_factory=dict)

    @property
    def starts_dual_feasible(self) -> bool:
        """Whether the corner of all lower bounds is dual feasible: costs are >= 0, and > 0 only with a lower bound."""
        return not ((self.costs < 0) | ((self.costs != 0) & np.isneginf(self.lower))).any()


@dataclass(frozen=True)
class Solution:
    """An optimum of `program`: values z, and duals y of the rows, >= 0 for the rows with <=."""

    program: LinearProgram
    values: Floats
    duals: Floats

    @property
    def value(self) -> float:
        """costs·z + offset."""
        return float(self.program.costs @ self.values) + self.program.offset

    @property
    def has_unique_duals(self) -> bool:
        """Whether the optimum is known not to be degenerate: values and rows off their bounds are as many as rows."""
        program = self.program
        inside = (self.values > program.lower + CLEAR) & (self.values < program.upper - CLEAR)
        slack = program.limits - program.matrix @ self.values > CLEAR
        return int(inside.sum() + slack.sum()) >= len(program.limits)


class KeptBasis(NamedTuple):
    """A basis of HiGHS with the keys of its columns and rows."""

    basis: Any
    columns: Keys
    rows: Keys

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptBasis.from_dict, (self.to_dict(),)  # highspy objects cannot be pickled

    def on(self, columns: Keys, rows: Keys) -> Any:
        """Return the basis for other columns and rows: those with a known key keep their status, and new ones are nonbasic."""
        import highspy

        if np.array_equal(self.columns, columns) and np.array_equal(self.rows, rows):
            return self.basis
        carried = highspy.HighsBasis()
        outside, inside = highspy.HighsBasisStatus.kLower, highspy.HighsBasisStatus.kBasic
        carried.col_status = _matched(list(self.basis.col_status), self.columns, columns, outside)
        carried.row_status = _matched(list(self.basis.row_status), self.rows, rows, inside)
        carried.valid = carried.alien = True  # alien: HiGHS repairs it if it is no longer a basis
        return carried

    def to_dict(self) -> dict[str, Any]:
        """Return the basis as plain data: statuses as digits, keys as whole numbers."""
        basis = self.basis
        return {
            "columns": [[str(key) for key in each] for each in self.columns.tolist()],
            "rows": [[str(key) for key in each] for each in self.rows.tolist()],
            "column_status": "".join(str(int(status)) for status in basis.col_status),
            "row_status": "".join(str(int(status)) for status in basis.row_status),
            "valid": bool(basis.valid),
            "alien": bool(basis.alien),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> KeptBasis:
        """Return the basis that `to_dict` described."""
        import highspy

        basis = highspy.HighsBasis()
        basis.col_status = [highspy.HighsBasisStatus(int(digit)) for digit in document["column_status"]]
        basis.row_status = [highspy.HighsBasisStatus(int(digit)) for digit in document["row_status"]]
        basis.valid, basis.alien = document["valid"], document["alien"]
        keys = (np.array(document[name], dtype=object).astype(np.uint64) for name in ("columns", "rows"))
        return cls(basis, *keys)


def _matched(statuses: list[Any], old: Keys, new: Keys, default: Any) -> list[Any]:
    places = np.full(new.shape[1], len(statuses))
    for known, wanted in zip(old[::-1], new[::-1], strict=True):
        order = np.argsort(known, kind="stable")
        at = order[np.minimum(np.searchsorted(known[order], wanted), len(order) - 1)]
        places = np.where(known[at] == wanted, at, places)
    return list(map([*statuses, default].__getitem__, places.tolist()))


@dataclass
class LinearSolver:
    """Solves linear programs with one kept `highspy.Highs`, each from the last basis of the same name.

    A basis is kept with the keys of its columns and rows, so that it can start a program with other ones; new ones are nonbasic.

    Attributes:
        programs, iterations: Numbers of programs and iterations so far.
        prices: (K,) prices of GPUs, then those of limits if there were constraints, from which the next level search starts.
        tight: The names of the limits without clear slack in the last answer, as keys.
        latest: The algorithm of the latest program.
    """

    algorithm: Algorithm = Algorithm.SIMPLEX
    limit: TimeLimit = NO_LIMIT
    programs: int = 0
    iterations: int = 0
    prices: Floats | None = None
    tight: dict[str, None] = field(default_factory=dict)
    latest: Algorithm = Algorithm.SIMPLEX
    _highs: Any = None
    _bases: dict[str, KeptBasis] = field(default_factory=dict)
    _scale: float = 1.0
    _loaded: LinearProgram | None = None

    def solve(self, program: LinearProgram, name: str, columns: Keys, rows: Keys, *, feasible: str | None = None) -> Solution:
        """Solve `program`, whose columns and rows have these keys, and keep its basis as `name`.

        feasible: the name of another basis to start from, by the primal simplex method; it must be feasible in this program.

        Raises `SolverError` if HiGHS ends with any status but optimal, `TimeLimitReached` at the time limit. In the latter case,
        the basis reached is kept too, and the next solve continues from it.
        """
        self.limit.check()
        highs = self._ready()
        self._load(program)
        start = feasible or name
        algorithm = self.algorithm
        basis = self._bases[start].on(columns, rows) if start in self._bases and algorithm is Algorithm.SIMPLEX else None
        if basis is not None:
            highs.setBasis(basis)
        else:
            highs.clearSolver()  # the basis of another program with this matrix is a bad start
            if len(program.limits) > MANY_ROWS and not program.starts_dual_feasible:
                algorithm = Algorithm.INTERIOR_POINT
        self._set_algorithm(algorithm)
        highs.setOptionValue("simplex_strategy", PRIMAL if start == feasible else DUAL)
        weights = DEVEX if basis is not None and basis.alien and len(program.limits) > FEW_ROWS else STEEPEST_EDGE
        highs.setOptionValue("simplex_dual_edge_weight_strategy", weights)
        try:
            solution = self._run()
        except TimeLimitReached:
            if self._highs is not None and highs.getBasis().valid:
                self._bases[name] = KeptBasis(highs.getBasis(), columns, rows)
            raise
        self._bases[name] = KeptBasis(highs.getBasis(), columns, rows)
        return solution

    def solve_first(self, program: LinearProgram) -> Solution:
        """Solve a program without an initial basis, and keep none. Raises the errors of `solve`."""
        self._ready()
        self._load(program)
        return self._run()

    def again(self, limits: Floats, *, keep: str | None = None) -> Solution:
        """Solve the last program with other limits from its optimal basis. keep: name under which to keep the new basis."""
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
        """Return the prices and bases from which the next solve starts, as plain data."""
        prices = None if self.prices is None else self.prices.tolist()
        return {
            "prices": prices,
            "bases": {name: basis.to_dict() for name, basis in self._bases.items()},
            **({"tight": list(self.tight)} if self.tight else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LinearSolver:
        """Return a solver that starts from the prices and bases of `to_dict`."""
        prices = None if document["prices"] is None else np.array(document["prices"], dtype=float)
        bases = {name: KeptBasis.from_dict(basis) for name, basis in document["bases"].items()}
        return cls(prices=prices, tight=dict.fromkeys(document.get("tight", ())), _bases=bases)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which starts from the same bases with a separate instance of HiGHS."""
        return vars(self) | {"_bases": dict(self._bases), "_highs": None, "_loaded": None}

    def _load(self, program: LinearProgram) -> None:
        """Pass the program to HiGHS, or only its vectors if it has the same matrix as the last one."""
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
            self._highs = new_highs(OPTIONS)
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
        usual = {name: self._highs.getOptionValue(name)[1] for name in ("presolve", "simplex_strategy")}
        for options in RETRIES:
            if options:  # retry without the old basis
                self._highs.clearSolver()
            for name, value in options.items():
                self._highs.setOptionValue(name, value)
            # HiGHS measures its limit from its first run.
            self._highs.setOptionValue("time_limit", self._highs.getRunTime() + self.limit.remaining)
            if len(program.limits) <= FEW_ROWS:
                run_here(self._highs)
            else:
                self._run_interruptibly()
            info = self._highs.getInfo()
            self.iterations += max(0, info.simplex_iteration_count) + max(0, info.ipm_iteration_count)
            status = self._highs.getModelStatus().name.removeprefix("k").lower()
            size, iterations, seconds = program.matrix.shape, self.iterations - before, time.perf_counter() - started
            logger.debug(LOGGED, *size, len(program.matrix.values), self.latest, status, iterations, seconds)
            if status in ("optimal", "timelimit"):
                break
        for name, value in usual.items():
            self._highs.setOptionValue(name, value)
        if status not in ("optimal", "timelimit"):
            raise SolverError(f"HiGHS ended with status {status!r}, not optimal; there is no allocation")
        answer = self._highs.getSolution()
        duals = -np.array(answer.row_dual) * self._scale
        duals[program.equalities :] = np.maximum(0.0, duals[program.equalities :])
        found = Solution(program, np.array(answer.col_value), duals)
        if status == "timelimit":
            raise TimeLimitReached(found if answer.value_valid and answer.dual_valid else None)
        return found

    def _run_interruptibly(self) -> None:
        """Run HiGHS on another thread, so that Ctrl-C and the time limit end the wait for it at once."""
        highs = self._highs
        highs.HandleUserInterrupt = True
        try:
            run_stoppable(highs.run, highs.cancelSolve, self.limit)
        except (KeyboardInterrupt, TimeLimitReached):
            self._highs = self._loaded = None  # may still be running, so the next solve needs a new instance
            self._bases.clear()
            raise


def solved_once(program: LinearProgram) -> Solution:
    """Solve one program independently of all earlier ones. Raises `SolverError`."""
    return LinearSolver().solve_first(program)


@dataclass(frozen=True)
class WholeSolution:
    """A valid solution with whole numbers. bound: lower bound on all costs; is_optimal: whether the required gap is reached."""

    values: Floats
    value: float
    bound: float
    is_optimal: bool


class InfeasibleError(SolverError):
    """A program with whole numbers has no valid values."""


WHOLE_OPTIONS: dict[str, object] = {
    "presolve": "on",
    "primal_feasibility_tolerance": 1e-7,
    "mip_feasibility_tolerance": 1e-7,
    "mip_detect_symmetry": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_root_reduced_cost": False,
}
"""Branch and bound is slow without presolve, and cannot add cuts within tighter tolerances. Symmetry detection and searches near
the relaxation take half of the time of small programs, but find no better values.
"""


FEW_NODES = 100

FEW_NODES_OPTIONS: dict[str, object] = {"mip_allow_restart": False, "mip_heuristic_run_feasibility_jump": False}
"""Options for searches with at most `FEW_NODES` nodes. Restarts, and heuristics before the relaxation is solved, take a third of
their time, but find no better values.
"""

PATIENCE_SECONDS = 10.0
"""How long to wait for branch and bound after its time limit."""


def solve_whole(
    program: LinearProgram,
    whole: NDArray[np.bool_],
    *,
    gap: float = 1e-6,
    limit: TimeLimit = NO_LIMIT,
    start: Floats | None = None,
    nodes: int | None = None,
) -> WholeSolution | None:
    """Solve a program in which some values are whole numbers, by branch and bound.

    Args:
        program: The program; its rows should be scaled to about 1, since the tolerances are absolute.
        whole: Whether each value must be a whole number.
        gap: Relative difference between value and bound at which to stop.
        limit: Time limit.
        start: Values to begin with; HiGHS checks them and completes them if they are not valid.
        nodes: Limit of the nodes of the tree. Unlike a time limit, it gives the same answer each time.

    Returns:
        The best values found, with whole numbers exactly whole, or None if a limit was reached without any.

    Raises:
        InfeasibleError: The program has no valid values.
        SolverError: It is unbounded, or HiGHS fails.
    """
    import highspy

    scale = float(np.abs(program.costs).max(initial=0.0)) or 1.0
    model = _model(program, program.costs / scale)
    kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
    model.integrality_ = [kinds[int(is_whole)] for is_whole in whole.tolist()]
    few = FEW_NODES_OPTIONS if nodes is not None and nodes <= FEW_NODES else {}
    highs = new_highs({**OPTIONS, **WHOLE_OPTIONS, **few, "mip_rel_gap": gap})
    if limit.is_set:
        highs.setOptionValue("time_limit", limit.remaining)
    if nodes is not None:
        highs.setOptionValue("mip_max_nodes", nodes)
    highs.passModel(model)
    if start is not None:
        first = highspy.HighsSolution()
        first.col_value = start.tolist()
        highs.setSolution(first)
    highs.HandleUserInterrupt = True
    try:
        # HiGHS enforces the limit itself and returns its best values, but checks the clock only at intervals.
        run_stoppable(highs.run, highs.cancelSolve, TimeLimit(limit.remaining + PATIENCE_SECONDS) if limit.is_set else NO_LIMIT)
    except TimeLimitReached:
        return None
    status = highs.getModelStatus().name.removeprefix("k").lower()
    if status == "infeasible":
        raise InfeasibleError("HiGHS ended with status 'infeasible': there are no valid values in whole numbers")
    if status not in ("optimal", "timelimit", "solutionlimit"):
        raise SolverError(f"HiGHS ended with status {status!r}, not optimal; there is no solution in whole numbers")
    info = highs.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    values = np.array(highs.getSolution().col_value)
    values[whole] = np.round(values[whole])
    bound = info.mip_dual_bound * scale + program.offset
    return WholeSolution(values, float(program.costs @ values) + program.offset, bound, status == "optimal")


def write_model(
    program: LinearProgram, path: Path, columns: Mapping[int, str], rows: Mapping[int, str], *, maximize: bool = False
) -> None:
    """Write a program in the format of the file's ending, .mps or .lp.

    columns, rows: names of some of them, of letters, digits and _; maximize: write the same program as a maximisation.
    """
    import highspy

    model = _model(program, -program.costs if maximize else program.costs)
    model.offset_ = -program.offset if maximize else program.offset
    model.sense_ = highspy.ObjSense.kMaximize if maximize else highspy.ObjSense.kMinimize
    model.col_names_ = [columns.get(n, f"z_{n}") for n in range(len(program.costs))]
    model.row_names_ = [rows.get(n, f"row_{n}") for n in range(len(program.limits))]
    highs = new_highs()
    highs.passModel(model)
    if highs.writeModel(str(path)) == highspy.HighsStatus.kError:
        raise SolverError(f"HiGHS could not write the program to {path}")


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
    model.a_matrix_.start_ = np.searchsorted(program.matrix.columns, np.arange(len(costs) + 1)).astype(np.int32)
    model.a_matrix_.index_ = program.matrix.rows.astype(np.int32)
    model.a_matrix_.value_ = program.matrix.values
    return model


def _row_lower(limits: Floats, equalities: int) -> Floats:
    return np.concatenate([limits[:equalities], np.full(len(limits) - equalities, -np.inf)])
