"""Rules that look at the answer to one problem, and at the policy that gave it."""

from __future__ import annotations

import dataclasses

import numpy as np

import gavel_py as gp
from gavel_py.testing.problems import BY_JOB
from gavel_py.testing.trial import SOLVED, BrokenError, InapplicableError, Trial, state_of

__all__ = ["empty", "equal_jobs", "options", "proven", "repeatable", "solved", "unchanged", "valid"]

PLAIN = (str, int, float, tuple, list, dict, set, frozenset, type(None))
"""Values of options that a label must say so that it can be read back; a type of its own cannot be typed on a command line."""


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
    """Other problems may have come in between; and twice more, lest a policy that takes turns comes round just then."""
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
    by_job = [values for name, values in trial.case.items() if name in BY_JOB and name != "job_ids"]
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
        raise InapplicableError  # made of other policies, which no line of options can say
    policy = _without_objects(policy)
    label, plain = policy.label, _with_defaults(policy)
    try:
        texts = dict(part.split("=", 1) for part in label.split(",")[1:])
        again = gp.resolve_policy(plain, **texts)
    except ValueError as error:
        raise BrokenError("options that can be read from its label", f"{label}: {error}", ("policy.label",), False) from error
    if again != policy:
        raise BrokenError(f"{policy!r}", f"{again!r} from its label {label!r}", ("policy.label",), False)


def _check_fields(policy: gp.Policy) -> None:
    """Look for what Python takes silently: options of a class that is no dataclass, and class attributes that became options."""
    for cls in type(policy).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, dataclasses.Field):
                expected = f"{cls.__name__} to be decorated with @dataclass(frozen=True, kw_only=True), since it has options"
                raise BrokenError(expected, f"no decorator, so `{name}` is no option", ("policy",), False)
    for field in dataclasses.fields(policy):
        if field.name in ("reads", "direction", "reduces", "agnostic_view", "empty_objective"):
            expected = f"`{field.name}` to be an attribute of the class, without a type annotation or with ClassVar"
            raise BrokenError(expected, "an option, which is what an annotation makes of it", (f"policy.{field.name}",), False)


def _without_objects(policy: gp.Policy) -> gp.Policy:
    """Return the policy with defaults where values are objects, such as a tree of tenants: no line of text says those."""
    known = gp.policy_options(type(policy))
    objects = [option for name, option in known.items() if not isinstance(getattr(policy, name), PLAIN)]
    if any(option.required for option in objects):
        raise InapplicableError
    return dataclasses.replace(policy, **{option.name: option.default for option in objects}) if objects else policy


def _with_defaults(policy: gp.Policy) -> gp.Policy:
    known = gp.policy_options(type(policy))
    return dataclasses.replace(policy, **{name: option.default for name, option in known.items() if not option.required})
