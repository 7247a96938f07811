"""Compilation of constraints to rules of a problem, their outcomes in an allocation, and constraint files.

`constrained` restricts the types of jobs and returns the rules that the allocation must keep. It also finds conflicts among the
constraints of a single job (`check_single_jobs`).
`given_constraints` checks those that a caller passes; `read_constraints` reads YAML and JSON (docs/file-formats.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.errors import (
    ConflictError,
    Fault,
    InputError,
    apart,
    check_type,
    nearest,
    refuse,
    relocated_faults,
    together,
    unknown_names,
)
from gavel_py.io import reading
from gavel_py.optimization.formulation.linear_rows import NO_RULES, CompiledConstraint, Limit, Rules, floors_of
from gavel_py.policies.constraints.base import Constraint, Scope
from gavel_py.policies.constraints.shares import CostBudget, MaxGpus, Quota, Reserve, Shared
from gavel_py.policies.constraints.single_jobs import Deadline, Forbid, KeepRunning, MinThroughput, Pin, SwitchCost
from gavel_py.problem.tolerances import MET

if TYPE_CHECKING:
    from gavel_py.problem.arrays import Mask
    from gavel_py.problem.problem import AllocationProblem

FILES = "read a file of constraints with gp.read_constraints, or pass it with --constraints on the command line"
Where = Callable[..., str]


@dataclass(frozen=True)
class _Ban:
    """A restriction of one job to (K,) types. insists: whether the job must run there; shared: whether it is a limit of a group."""

    name: str
    allowed: Mask
    insists: bool
    shared: bool


def check_single_jobs(problem: AllocationProblem, rules: Rules) -> None:
    """Raise `ConflictError` if no type gives a job its required throughput, or a job that must run has no type left.

    problem: restricted by all places. If several rules of a job conflict, the error names those of the first such job.
    """
    before, least = rules.unplaced, rules.least
    if before is None:
        return
    slow = np.flatnonzero(least > problem.fastest * (1 + MET)).tolist() if least is not None else []
    lost = np.flatnonzero(before.runnable.any(axis=1) & ~problem.runnable.any(axis=1)).tolist()
    bans = _bans(rules, {*slow, *lost})
    own = {i: [ban for ban in bans[i] if not ban.shared] for i in lost}
    insisted = [i for i in lost if any(ban.insists for ban in own[i]) and not _fastest(before, i, own[i])]
    conflicts = [min((_nowhere(before, i, own[i], ban) for ban in own[i] if ban.insists), key=len) for i in insisted]
    conflicts += [_too_slow(before, rules, i, bans.get(i, [])) for i in slow if i not in insisted]
    single = [conflict[0] for conflict in conflicts if len(conflict) == 1]
    if single:
        raise ConflictError(single, alone=True)
    if conflicts:
        raise ConflictError(conflicts[0], alone=False)


def _bans(rules: Rules, jobs: set[int]) -> dict[int, list[_Ban]]:
    """Return the restrictions of each of these jobs."""
    found: dict[int, list[_Ban]] = {}
    for place in (place for each in rules.constraints for place in each.places) if jobs else ():
        for row, allowed in zip(place.rows.tolist(), place.allowed, strict=True):
            if row in jobs:
                found.setdefault(row, []).append(_Ban(place.name_of(row), allowed, place.insists, place.shared))
    return found


def _too_slow(problem: AllocationProblem, rules: Rules, i: int, bans: list[_Ban]) -> list[str]:
    """Return a minimal set of rules under which a job cannot get its required throughput; a single rule comes with the reason."""
    assert rules.least is not None  # noqa: S101
    name, least = rules.name_of_least(i), float(rules.least[i])
    own = [ban for ban in bans if ban.name == name]

    def conflicts(others: Sequence[_Ban]) -> bool:
        return _fastest(problem, i, [*own, *others]) * (1 + MET) < least

    if not conflicts([]):
        return [*(ban.name for ban in _fewest([ban for ban in bans if ban.name != name], conflicts)), name]
    if np.isinf(least):
        return [f"{name}: the job is already late by that much"]
    fastest = _fastest(problem, i, own)
    if not fastest:
        return [f"{name}: the job gets no time, {problem.excluded[problem.job_ids[i]]}"]
    required, given = apart(least, fastest)
    return [f"{name}: it requires {required} steps/s, but all of the time on the fastest type gives only {given}"]


def _nowhere(problem: AllocationProblem, i: int, bans: list[_Ban], insists: _Ban) -> list[str]:
    """Return a minimal set of rules that leave no type to a job that must run; a single rule comes with the reason."""

    def conflicts(others: Sequence[_Ban]) -> bool:
        return not _fastest(problem, i, [insists, *others])

    if conflicts([]):
        where = ", ".join(np.array(problem.accelerator_types)[problem.runnable[i]])
        return [f"{insists.name}: the job can run only on {where}"]
    return [*(ban.name for ban in _fewest([ban for ban in bans if ban is not insists], conflicts)), insists.name]


def _fastest(problem: AllocationProblem, i: int, bans: Iterable[_Ban]) -> float:
    """Return the throughput of a job on the fastest type that is left."""
    left = np.logical_and.reduce([problem.runnable[i], *(ban.allowed for ban in bans)])
    return float(np.where(left, problem.best_throughputs[i], 0.0).max())


def _fewest(bans: list[_Ban], conflicts: Callable[[Sequence[_Ban]], bool]) -> list[_Ban]:
    """Return a minimal subset that still conflicts (deletion filter)."""
    for ban in list(bans):
        fewer = [other for other in bans if other is not ban]
        if conflicts(fewer):
            bans = fewer
    return bans


def constrained(problem: AllocationProblem, constraints: Sequence[Constraint]) -> tuple[AllocationProblem, Rules]:
    """Return the problem without the types that constraints rule out for jobs, and the remaining rules.

    Raises `InputError` with all faults, such as unknown types or guarantees of more than 100 %, and `ConflictError` if a job cannot
    satisfy its own constraints, independent of other jobs.
    """
    if not constraints:
        return problem, NO_RULES
    scope = Scope(problem)
    InputError.raise_any([fault for each in constraints for fault in each.faults(scope)] + _guaranteed(scope, constraints))
    with_places = _with_places(scope, constraints)
    scope.problem = _placed(problem, with_places)
    compiled = tuple(
        replace(
            each,
            rows=tuple(constraint.rows(scope)),
            needs=tuple(constraint.needs(scope)),
            switch_cost=constraint.cost if isinstance(constraint, SwitchCost) else 0.0,
        )
        for constraint, each in zip(constraints, with_places, strict=True)
    )
    rules = Rules(
        rows=tuple(row for each in compiled for row in each.rows),
        floors=floors_of([need for each in compiled for need in each.needs], scope.problem.fastest),
        switch_cost=sum(each.switch_cost for each in compiled),
        constraints=compiled,
        unplaced=problem if problem.counts is scope.problem.counts else replace(problem, counts=scope.problem.counts),
    )
    check_single_jobs(scope.problem, rules)
    return scope.problem, rules


def limits_on(problem: AllocationProblem, constraints: Sequence[Constraint]) -> list[tuple[Shared, list[Limit]]]:
    """Return the hard constraints that limit the GPUs of groups, with their limits for the jobs of a problem, without warnings."""
    scope = Scope(problem, warns=False)
    hard = (each for each in constraints if isinstance(each, Shared) and each.penalty is None)
    return [(each, limits) for each in hard if (limits := each.limits(scope))]


def placed(problem: AllocationProblem, constraints: Sequence[Constraint]) -> AllocationProblem:
    """Return the problem that `constrained` returns, for constraints that it has accepted before."""
    return _placed(problem, _with_places(Scope(problem), constraints)) if constraints else problem


def _with_places(scope: Scope, constraints: Sequence[Constraint]) -> list[CompiledConstraint]:
    return [CompiledConstraint(each.text, each.penalty, places=tuple(each.places(scope))) for each in constraints]


def _guaranteed(scope: Scope, constraints: Sequence[Constraint]) -> list[Fault]:
    """Return a fault if all guarantees together exceed the GPUs; a solve would find this only once all tenants have jobs."""
    quotas: dict[str, float] = {}
    for each in constraints:
        if isinstance(each, Quota) and each.guaranteed and each.penalty is None:
            quotas[each.tenant] = max(quotas.get(each.tenant, 0.0), each.gpus_of(scope))
    total, available = sum(quotas.values()), float(scope.problem.capacities.sum())
    if total <= available * (1 + MET):
        return []
    named, (wanted, there) = ", ".join(f"{tenant}: {gpus:g}" for tenant, gpus in quotas.items()), apart(total, available)
    return [Fault("quotas", "", f"guarantee {wanted} GPUs in total ({named}), but the cluster has {there}")]


def _placed(problem: AllocationProblem, compiled: Sequence[CompiledConstraint]) -> AllocationProblem:
    """Return the problem in which jobs run only where their places allow it; jobs without a type are excluded."""
    places = [place for each in compiled for place in each.places]
    if not places:
        return problem
    runnable, counts = problem.runnable.copy(), problem.counts
    for place in places:
        runnable[place.rows] &= place.allowed
        if place.numbers is not None and counts is not None:
            counts = counts.restricted(place.rows, place.numbers)
    names: dict[int, list[str]] = {i: [] for i in np.flatnonzero(problem.runnable.any(axis=1) & ~runnable.any(axis=1)).tolist()}
    for place in places if names else ():
        for i in names.keys() & place.rows.tolist():
            names[i].append(place.name_of(i))
    excluded = {problem.job_ids[i]: f"a constraint forbids it: {'; '.join(found)}" for i, found in names.items()}
    return replace(problem, runnable=runnable, excluded=problem.excluded | excluded, counts=counts)


KINDS: dict[str, type[Constraint]] = {
    cls.kind: cls for cls in (MinThroughput, Deadline, CostBudget, MaxGpus, Quota, Reserve, Pin, Forbid, KeepRunning, SwitchCost)
}
"""The classes of constraints by their names in files."""

KEY = "constraints"


def read_constraints(path: str | Path) -> tuple[Constraint, ...]:
    """Return the constraints listed in a file, in its order.

    Args:
        path: A YAML or JSON file (docs/file-formats.md); its suffix gives the format.

    Raises:
        InputError: All faults of the file, each with its place and field.
    """
    read = reading.document(path)
    document = read.value
    entries = document.get(KEY) if isinstance(document, dict) else None
    is_list = isinstance(entries, list)
    refuse(read.line(KEY), (not is_list, "", f"must be a mapping with the key {KEY} for a list of constraints"))
    with together() as attempt:
        attempt(lambda: InputError.raise_any(unknown_names(read.where, "", document, [KEY], noun="key")))
        found = [
            attempt(partial(_constraint, entry, lambda *field, at=at: read.line(KEY, at, *field) + f", {KEY}[{at}]" * read.is_json))
            for at, entry in enumerate(entries or ())
        ]
    return tuple(found)


def _constraint(entry: Any, where: Where) -> Constraint:
    check_type(where(), "", entry, Mapping, "must be a mapping of field to value")
    fields = {str(name): value for name, value in entry.items() if value is not None}
    kind = fields.pop("kind", None)
    refuse(where(), (kind is None, "kind", f"is required; one of {', '.join(KINDS)}"))
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InputError(Fault(where("kind"), "kind", f"{kind!r} is not a kind of constraint{nearest(str(kind), KINDS)}"))
    # An empty tenant must not become a limit on all jobs.
    empty = [name for name, each in cls.model_fields.items() if name in entry and entry[name] is None and not each.is_required()]
    InputError.raise_any(
        [Fault(f"{where(name)} ({cls.label})", name, "is empty; give a value, or leave the field out") for name in empty]
    )
    refuse(f"{where('penalty')} ({cls.label})", ("penalty" in fields, "penalty", "is not known; use soft instead"))
    if "soft" in fields:
        fields["penalty"] = fields.pop("soft")

    def relocate(fault: Fault) -> Fault:
        """Return a fault at the place of its field, or of the constraint if the file does not have the field."""
        field = "soft" if fault.field == "penalty" else fault.field
        name = field.split(".")[0]
        return Fault(f"{where(name) if name in entry else where()} ({cls.label})", field, fault.problem)

    with relocated_faults(relocate):
        return cls(**fields).placed(where())


def given_constraints(given: Any, where: str) -> tuple[Constraint, ...]:
    """Return the constraints of any iterable; raises `InputError`, which names `where`, for anything else."""
    # Text and mappings are iterable too, but their items are not constraints.
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes | Path | Mapping)
    is_single = isinstance(given, Constraint)
    if is_single or not is_list:  # not `refuse`, since writing out a long list takes time
        text = f"a single constraint; write [{given!r}]" if is_single else f"{given!r:.60}{_hint(given)}"
        raise InputError(Fault(where, "constraints", f"must be a list{'' if is_single else ' of constraints'}, found {text}"))
    found = tuple(given)
    wrong = [each for each in found if not isinstance(each, Constraint)]
    text = "must be constraints, found"
    InputError.raise_any([Fault(where, "constraints", f"{text} {each!r:.60}{_hint(each)}") for each in wrong])
    return found


def _hint(given: object) -> str:
    """Return the end of a message about something that is no constraint."""
    if inspect.isclass(given) and issubclass(given, Constraint):
        return " (this is a class; call it to create one)"
    return f"; {FILES}" if isinstance(given, str | Path) else ""
