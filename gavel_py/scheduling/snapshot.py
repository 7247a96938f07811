"""Scheduler snapshots: a scheduler as plain data, from which it continues with the same rounds.

Profiles are not saved, nor policies and mechanisms of the user's own: these must be passed again on loading. The throughputs of the
saved jobs are checked against the profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault, decode, encode
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.serialization import policy_document, policy_from
from gavel_py.problem.arrays import Floats
from gavel_py.problem.from_jobs import Profile
from gavel_py.scheduling.mechanism import MechanismName
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.older_snapshots import is_older, upgraded
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.scheduling.planner import RoundPlanner
from gavel_py.scheduling.state import SchedulerState

SCHEDULER = SnapshotFormat("gavel-py scheduler", 3, "the state of a scheduler, as RoundScheduler.save writes it")

DEFAULTS = {"solve_seconds": 0.0, "time_limit_seconds": None}
"""Options that earlier versions did not have; a file contains them only if they differ from these values."""

HAD = "that the scheduler had"


def to_document(planner: RoundPlanner, state: SchedulerState) -> dict[str, Any]:
    """Return a scheduler as plain data."""
    policy, options = planner.solver.policy, planner.options
    return {
        "options": {name: value for name, value in options.numbers.items() if name not in DEFAULTS or value != DEFAULTS[name]},
        "policy": {"label": policy.label, "document": policy_document(policy)},
        "mechanism": options.mechanism if isinstance(options.mechanism, str) else None,
        "speeds": {name: encode(table) for name, table in _throughputs(state, planner).items()},
        "scheduler": state.to_dict(),
        "solver": planner.solver.to_dict(),
    }


def from_document(
    document: Mapping[str, Any],
    source: str | Path,
    profile: Profile,
    policy: str | Policy | None,
    mechanism: MechanismName | Mechanism | None,
) -> tuple[RoundPlanner, SchedulerState]:
    """Return the planner and the state that `to_document` described. Raises `InputError`.

    Args:
        document: The plain data.
        source: Where it comes from, for messages.
        profile: The profile that the scheduler had.
        policy: None if the document contains it.
        mechanism: None if the document contains it.
    """
    with damage_as_fault(source):
        if is_older(document["scheduler"]):
            document = upgraded(document)
        _check_accelerators(source, document["scheduler"], profile)
        saved = DEFAULTS | document["options"]
        solver = Solver(_policy(source, document["policy"], policy), time_limit_seconds=saved["time_limit_seconds"])
        solver.resume(document["solver"])
        mechanism = _mechanism(source, document["mechanism"], mechanism)
        numbers = {each.name: saved[each.name] for each in fields(SchedulerOptions) if each.name != "mechanism"}
        planner = RoundPlanner(solver, profile, SchedulerOptions(mechanism=mechanism, **numbers))
        state = SchedulerState.from_dict(document["scheduler"], profile, whole_gangs=planner.options.whole_gangs)
        _check_throughputs(source, document["speeds"], state, planner)
        _check_eligibility(source, state, planner)
        return planner, state


def _policy(source: str | Path, document: Mapping[str, Any], given: str | Policy | None) -> Policy:
    label = document["label"]
    if given is None:
        if document["document"] is None:
            text = f"holds no more of the policy than its name, {label}; hand it in, as in RoundScheduler.load(..., policy=...)"
            raise InputError(Fault(str(source), "", text))
        return policy_from(document["document"])
    policy = resolve_policy(given)
    if policy.label != label:
        text = f"was written under the policy {label}, and {policy.label} was handed in; set another one when it is loaded"
        raise InputError(Fault(str(source), "", text))
    return policy


def _mechanism(
    source: str | Path, name: MechanismName | None, given: MechanismName | Mechanism | None
) -> MechanismName | Mechanism:
    if given is not None:
        return given
    if name is None:
        text = "was written by a scheduler with a mechanism of its own; hand it in, as in RoundScheduler.load(..., mechanism=...)"
        raise InputError(Fault(str(source), "", text))
    return name


def _throughputs(state: SchedulerState, planner: RoundPlanner) -> dict[str, Floats]:
    """Return (N, K) throughputs of the jobs in the system, and of the jobs of the current allocation."""
    cache, table = planner.cache(state), state.table
    tables = {"jobs": cache.consolidated(table.gangs[table.saved_rows[: len(table)]])}
    current = state.current_allocation
    return tables if current is None else tables | {"allocation": cache.consolidated(current.policy_input.gangs)}


def _check_accelerators(source: str | Path, document: Mapping[str, Any], profile: Profile) -> None:
    types = [kind["name"] for kind in document["cluster"]["accelerator_types"]]
    unknown = [name for name in types if name not in profile.accelerators]
    text = f"which profile {profile.name!r} does not know; hand in the profile {HAD}"
    InputError.raise_any([Fault(str(source), "", f"is about accelerator {name!r}, {text}") for name in unknown])


def _check_throughputs(source: str | Path, document: Mapping[str, Any], state: SchedulerState, planner: RoundPlanner) -> None:
    """Raise for a profile with other throughputs, which would lead to other rounds."""
    current, profile = state.current_allocation, planner.profile
    ids = {"jobs": list(state.table.by_id), "allocation": [] if current is None else list(current.problem.job_ids)}
    for name, table in _throughputs(state, planner).items():
        then = decode(document[name])
        for row, column in np.argwhere(then != table)[:1].tolist():
            text = (
                f"was written when job {ids[name][row]!r} did {then[row, column]:g} steps/s on "
                f"{state.nodes.cluster.accelerator_names[column]!r}, and profile {profile.name!r} says {table[row, column]:g}; "
                f"hand in the profile {HAD}"
            )
            raise InputError(Fault(str(source), "", text))


def _check_eligibility(source: str | Path, state: SchedulerState, planner: RoundPlanner) -> None:
    """Raise for a profile by which a job needs more GPU memory than the types have where it may run."""
    current = state.current_allocation
    if current is None:
        return
    can_run = planner.cache(state).can_run(current.policy_input.gangs)
    for row, column in np.argwhere(current.runnable_if_up & ~can_run)[:1].tolist():
        text = (
            f"was written when job {current.problem.job_ids[row]!r} could run on {current.problem.accelerator_types[column]!r}, "
            f"where it does not fit by profile {planner.profile.name!r}; hand in the profile {HAD}"
        )
        raise InputError(Fault(str(source), "", text))
