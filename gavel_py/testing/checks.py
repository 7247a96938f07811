"""The rules of the contract, each with its name, its text, its test and the problems on which it runs.

Some rules test the answer to one problem, or the policy itself. Others compare the answers to related problems.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import gavel_py as gp
from gavel_py.testing.problems import BY_TYPE, Case, job_count
from gavel_py.testing.trial import SOLVED, BrokenError, InapplicableError, Trial, problem_code, state_of

PLAIN = (str, int, float, tuple, list, dict, set, frozenset, type(None))
"""Types of option values that a label must contain so that it can be parsed; other types have no text form."""


def solved(trial: Trial) -> None:
    wrong = trial.failure.check if isinstance(trial.failure, gp.PolicyError) else None
    if isinstance(trial.failure, gp.InputError) and wrong != "solved":
        raise InapplicableError
    if trial.failure is not None:
        text = f"{type(trial.failure).__name__}: {trial.failure}"
        raise BrokenError("a proven allocation, or an InputError that names what is wrong", text, (SOLVED,)) from trial.failure


def valid(trial: Trial) -> None:
    problem, x = trial.problem, trial.allocation.time_fractions
    if x.shape != problem.throughputs.shape or not np.isfinite(x).all():
        trial.breaks(f"finite numbers of the shape {problem.throughputs.shape}", f"{x.tolist()}", SOLVED)
    rules = {
        "X >= 0": -x.min(initial=0.0),
        "Σ_j X_ij <= 1": x.sum(axis=1).max(initial=0.0) - 1,
        "Σ_i s_i X_ij <= c_j": ((problem.num_gpus @ x - problem.capacities) / np.maximum(1.0, problem.capacities)).max(),
        "X_ij = 0 where job i cannot run": np.where(problem.runnable, 0.0, np.abs(x)).max(initial=0.0),
    }
    for rule, excess in rules.items():
        if not excess <= 1e-9:
            trial.breaks(rule, f"broken by {excess:.3g} in {x.tolist()}", SOLVED)


def proven(trial: Trial) -> None:
    found = trial.allocation
    value, bound = found.objective_value, found.objective_bound
    stated = trial.policy.empty_objective
    if {value is None, bound is None, found.shadow_prices is None} != {stated is None}:
        expected = "value, bound and shadow prices, or none of them and `empty_objective = None` in the class"
        text = f"value {value}, bound {bound}, shadow prices {found.shadow_prices}, empty_objective {stated}"
        trial.breaks(expected, text, SOLVED)
    try:
        again = trial.proof
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise BrokenError("verify() to prove it again", text, (SOLVED, "allocation.verify()")) from error
    if again.value != value:
        trial.breaks(f"verify() to find the value {value!r}", repr(again.value), SOLVED, "allocation.verify()")
    if value is not None and bound is not None and not abs(value - bound) <= trial.tolerance():
        text = "allocation.objective_value, allocation.objective_bound"
        trial.breaks(f"a bound of {value!r} to 1e-6", repr(bound), SOLVED, text)


def repeatable(trial: Trial) -> None:
    """Solve twice more, after other problems: a policy that alternates between two answers would pass with one repetition."""
    first = trial.allocation
    for _ in range(2):
        again = trial.relative(trial.problem, "other = problem")
        pairs = {
            "time_fractions": (first.time_fractions.tobytes(), again.time_fractions.tobytes()),
            "objective_value": (first.objective_value, again.objective_value),
            "shadow_prices": (repr(first.shadow_prices), repr(again.shadow_prices)),
        }
        for name, (one, other) in pairs.items():
            if one != other:
                text = f"{getattr(first, name)} and then {getattr(again, name)}"
                trial.breaks(f"the same {name} every time, also with other problems in between", text, SOLVED, SOLVED)


def unchanged(trial: Trial) -> None:
    after = state_of(trial.policy)
    changed = [name for name in {**trial.before, **after} if trial.before.get(name) != after.get(name)]
    for name in changed:
        expected = f"`policy.{name}` to stay {trial.before.get(name, 'absent')}"
        trial.breaks(expected, after.get(name, "nothing"), SOLVED, f"policy.{name}")


def equal_jobs(trial: Trial) -> None:
    if not trial.policy.reduces or "job_ids" in trial.policy.reads:
        raise InapplicableError
    x = trial.allocation.time_fractions
    first: dict[str, int] = {}
    by_job = [values for name, values in trial.case.items() if name not in (*BY_TYPE, "job_ids")]
    for i in range(len(x)):
        twin = first.setdefault(repr([values[i] for values in by_job]), i)
        if not np.array_equal(x[i], x[twin]):
            expected = f"{trial.name(i)} to get {x[twin].tolist()} as {trial.name(twin)} does"
            trial.breaks(expected, str(x[i].tolist()), SOLVED, f"allocation.time_fractions[[{twin}, {i}]]")
    if len(first) == len(x):
        raise InapplicableError


def empty(trial: Trial) -> None:
    found = trial.allocation
    if found.time_fractions.any() or found.time_fractions.shape != trial.problem.throughputs.shape:
        trial.breaks(f"zeros of the shape {trial.problem.throughputs.shape}", str(found.time_fractions.tolist()), SOLVED)
    if found.status != gp.AllocationStatus.EMPTY or len(found.excluded) != trial.problem.num_jobs:
        trial.breaks("the status empty and all jobs excluded", f"{found.status!s}, excluded {found.excluded}", SOLVED)
    if found.objective_value is not None and not np.isfinite(found.objective_value):
        trial.breaks("a finite `empty_objective`, or None", repr(found.objective_value), SOLVED)


def options(trial: Trial) -> None:
    policy = trial.policy
    _check_fields(policy)
    if type(policy).label is not gp.Policy.label:
        raise InapplicableError  # a composition, whose label has another syntax
    known = gp.policy_options(type(policy))
    # Options whose values are objects without a text form, such as a tree of tenants, get their defaults.
    objects = [option for name, option in known.items() if not isinstance(getattr(policy, name), PLAIN)]
    if any(option.required for option in objects):
        raise InapplicableError
    policy = dataclasses.replace(policy, **{option.name: option.default for option in objects})
    plain = dataclasses.replace(policy, **{name: option.default for name, option in known.items() if not option.required})
    label = policy.label
    try:
        texts = dict(part.split("=", 1) for part in label.split(",")[1:])
        again = gp.resolve_policy(plain, **texts)
    except ValueError as error:
        raise BrokenError("options that can be read from its label", f"{label}: {error}", ("policy.label",), False) from error
    if again != policy:
        raise BrokenError(f"{policy!r}", f"{again!r} from its label {label!r}", ("policy.label",), False)


def _check_fields(policy: gp.Policy) -> None:
    """Find mistakes that Python accepts: options in a class that is not a dataclass, and class attributes annotated as fields."""
    for cls in type(policy).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, dataclasses.Field):
                expected = f"{cls.__name__} to be decorated with @dataclass(frozen=True, kw_only=True), since it has options"
                raise BrokenError(expected, f"no decorator, so `{name}` is not an option", ("policy",), False)
    for field in dataclasses.fields(policy):
        if field.name in ("reads", "direction", "reduces", "agnostic_view", "empty_objective"):
            expected = f"`{field.name}` to be an attribute of the class, without a type annotation or with ClassVar"
            raise BrokenError(expected, "an option, since it has an annotation", (f"policy.{field.name}",), False)


OTHER = "other_allocation = gp.solve(other, policy)"


def order(trial: Trial) -> None:
    """Compare with the same jobs in another order, and in other rows of the job classes."""
    if isinstance(trial.failure, gp.PolicyError) and trial.failure.check == "order":
        trial.breaks("the same objective however jobs are assigned to rows", f"PolicyError: {trial.failure}", SOLVED)
    count = trial.problem.num_jobs
    if trial.failure is not None or count < 2:
        raise InapplicableError
    for rows in (list(range(count))[::-1], [*range(1, count), 0]):
        line = f"other = problem.select(np.array({rows}))"
        other = trial.relative(trial.problem.select(np.array(rows)), line)
        _same_rows(trial, trial.allocation.time_fractions[rows], other, rows, line)
    if trial.policy.reduces:
        _same_in_other_rows(trial)


def _same_in_other_rows(trial: Trial) -> None:
    """Compare with one row per job, in the order of the problem, instead of one per class."""

    class OneByOne(type(trial.policy)):  # type: ignore[misc]
        reduces = False

    separate = copy(trial.policy)
    object.__setattr__(separate, "__class__", OneByOne)
    by_job = 'class OneByOne(type(policy)):\n    reduces = False\n\nobject.__setattr__(policy, "__class__", OneByOne)'
    for rows in (list(range(trial.problem.num_jobs)), [*range(1, trial.problem.num_jobs), 0]):
        try:
            found = gp.solve(trial.problem.select(np.array(rows)), separate)
        except gp.SolverError:
            continue  # without reduction there is no safer route to fall back on
        _same_objective(trial, found, rows, f"other = problem.select(np.array({rows}))\n{by_job}")


def names(trial: Trial) -> None:
    ids = trial.problem.job_ids
    renamed = [f"task-{job_id.rpartition('-')[2]}" for job_id in ids]
    other = trial.case | {"job_ids": renamed}
    code = problem_code("other", other)
    found = trial.relative(gp.AllocationProblem.from_arrays(**other), code)
    _same_rows(trial, trial.allocation.time_fractions, found, list(range(len(ids))), code)


def reads(trial: Trial) -> None:
    """Compare with undeclared attributes moved to the next unfinished job."""
    of_family = ("arrival_seconds", "running_on") if isinstance(trial.policy, gp.OrderedPolicy) else ()
    known = ("throughputs", "num_gpus", "job_ids", *of_family, *trial.policy.reads)
    left = trial.case.get("steps_remaining", [1.0] * job_count(trial.case))
    unfinished = [i for i, steps in enumerate(left) if steps > 0]
    changes: Case = {}
    for name in trial.case:
        if name not in (*BY_TYPE, *known):
            values = list(trial.case[name])
            for i, before in zip(unfinished, [*unfinished[1:], *unfinished[:1]], strict=True):
                values[i] = trial.case[name][before]
            if values != trial.case[name]:
                changes[name] = values
    if not changes:
        raise InapplicableError
    code = problem_code("other", trial.case | changes)
    found = trial.relative(gp.AllocationProblem.from_arrays(**(trial.case | changes)), code)
    undeclared = f"whatever its {' and '.join(changes)}, not declared in `reads`"
    _same_rows(trial, trial.allocation.time_fractions, found, list(range(len(left))), code, reason=undeclared)


def units(trial: Trial) -> None:
    count = job_count(trial.case)
    scales = [(2.0**20, 1.0, 2.0**-20)[i % 3] for i in range(count)]
    changes: Case = {"throughputs": [[f * rate for rate in row] for f, row in zip(scales, trial.case["throughputs"], strict=True)]}
    for name in ("steps_remaining", "total_steps"):
        if name in trial.case:
            changes[name] = [f * steps for f, steps in zip(scales, trial.case[name], strict=True)]
    code = problem_code("other", trial.case | changes)
    found = trial.relative(gp.AllocationProblem.from_arrays(**(trial.case | changes)), code)
    _same_objective(trial, found, list(range(count)), code)


def more_gpus(trial: Trial) -> None:
    value = trial.allocation.objective_value
    if value is None:
        raise InapplicableError
    sign = -1.0 if getattr(trial.policy, "direction", "max") == "min" else 1.0
    for j in range(len(trial.problem.capacities)):
        counts = trial.problem.capacities + (np.arange(len(trial.problem.capacities)) == j)
        line = f"other = problem.with_capacities({counts.tolist()})"
        other = trial.relative(trial.problem.with_capacities(counts), line)
        if other.objective_value is None or sign * (value - other.objective_value) > trial.tolerance(other):
            word = "more" if sign < 0 else "less"
            trial.breaks(f"an objective of no {word} than {value!r}", repr(other.objective_value), SOLVED, line, OTHER)


def excluded(trial: Trial) -> None:
    problem, found = trial.problem, trial.allocation
    rows = np.flatnonzero(problem.runnable.any(axis=1))
    if len(rows) in (0, problem.num_jobs):
        raise InapplicableError
    out = sorted(set(range(problem.num_jobs)) - set(rows.tolist()))
    for i in out:
        if found.time_fractions[i].any() or problem.job_ids[i] not in found.excluded:
            trial.breaks(f"{trial.name(i)} to be excluded without any time", str(found.time_fractions[i].tolist()), SOLVED)
    line = f"other = problem.select(np.array({rows.tolist()}))"
    other = trial.relative(problem.select(rows), line)
    _same_objective(trial, other, rows.tolist(), line)


def _same_rows(
    trial: Trial,
    expected: NDArray[np.float64],
    other: gp.Allocation,
    rows: list[int],
    line: str,
    tolerance: float = 0.0,
    reason: str = "as before",
) -> None:
    """Compare the rows of two answers, bit for bit unless there is a tolerance; rows: the rows of these jobs in the problem."""
    differ = np.flatnonzero(~(np.abs(expected - other.time_fractions) <= tolerance).all(axis=1))
    for k in differ[:1].tolist():
        text = f"{trial.name(rows[k])} to get {expected[k].tolist()} {reason}"
        trial.breaks(text, str(other.time_fractions[k].tolist()), SOLVED, line, OTHER)


def _same_objective(trial: Trial, other: gp.Allocation, rows: list[int], line: str) -> None:
    """Compare the objectives, since optima may differ, or without an objective the answers; rows: of the jobs in the problem."""
    found = trial.allocation
    if found.objective_value is None or other.objective_value is None:
        _same_rows(trial, found.time_fractions[rows], other, rows, line, 1e-9)
    elif abs(found.objective_value - other.objective_value) > trial.tolerance(other):
        text = f"an objective of {found.objective_value!r} as before"
        trial.breaks(text, repr(other.objective_value), SOLVED, line, OTHER)


@dataclass(frozen=True)
class Check:
    """A rule. text: what it requires; on: "each" problem, the "empty" problems in which no job can run, or "once".

    needs_answer: whether the test requires an answer to the problem.
    """

    name: str
    text: str
    test: Callable[[Trial], None]
    on: Literal["each", "empty", "once"] = "each"
    needs_answer: bool = True

    def make(self, trial: Trial) -> None:
        """Raise `BrokenError` if the rule is broken, `InapplicableError` if it does not apply to this problem."""
        if self.needs_answer and trial.failure is not None:
            raise InapplicableError
        self.test(trial)


CHECKS: tuple[Check, ...] = (
    Check("solved", "every problem is solved and proven, or refused with a reason", solved, needs_answer=False),
    Check("valid", "X >= 0, no job exceeds its time, no type exceeds its GPUs, no job runs where it cannot", valid),
    Check("proven", "value and bound agree to 1e-6, and verify() finds the same", proven),
    Check("repeatable", "the same problem has the same answer, bit for bit, regardless of other solves in between", repeatable),
    Check("unchanged", "a solve does not change the policy object", unchanged),
    Check("order", "permuting the jobs permutes the answer, bit for bit", order, needs_answer=False),
    Check("names", "other names in the same order change nothing", names),
    Check("reads", "attributes that are not declared in `reads` change nothing", reads),
    Check("equal_jobs", "jobs with equal attributes get equal time (unless the policy serves one job after another)", equal_jobs),
    Check("units", "scaling a job's steps and throughputs alike changes nothing", units),
    Check("more_gpus", "one more GPU does not make the objective worse, with unchanged normalisers", more_gpus),
    Check("excluded", "jobs that have finished or can run nowhere get nothing and change nothing for the others", excluded),
    Check("empty", "without a job that can run, the answer is empty", empty, "empty"),
    Check("options", "the options can be read back from the policy's label", options, "once", needs_answer=False),
)
"""The checks, in the order in which they run."""
