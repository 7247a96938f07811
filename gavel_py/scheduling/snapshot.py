"""Scheduler snapshots: a scheduler as plain data, from which it continues with the same rounds.

Profiles are not saved, and neither are user-defined policies and mechanisms: these must be passed again on loading. The throughputs
of the saved jobs are checked against the profile. The observations of a learner are saved, and restored to the learner that is
passed on loading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError, refuse
from gavel_py.io.records import without_collection
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault, decode, decode_array, encode
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.serialization import policy_document, policy_from
from gavel_py.problem.arrays import Floats, Indices
from gavel_py.problem.profile import Profile
from gavel_py.scheduling.colocation.groups import ColocationLedger
from gavel_py.scheduling.current_allocation import CurrentAllocation
from gavel_py.scheduling.jobs.history import ScheduledJobs
from gavel_py.scheduling.jobs.waiting import Backoffs, BlockedJobs
from gavel_py.scheduling.learning import Learner, observed
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.mechanism.tenants import TenantLedger
from gavel_py.scheduling.nodes import NodeStates, cluster_from_dict, cluster_to_dict
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.scheduling.placement.gangs import HeldGpus
from gavel_py.scheduling.planner import RoundPlanner
from gavel_py.scheduling.round import Assignments, Fallback, Round
from gavel_py.scheduling.state import InputChanges, RoundPlan, SchedulerState

SCHEDULER = SnapshotFormat("gavel-py scheduler", 3, "a scheduler state written by RoundScheduler.save")

HAD = "that the scheduler used"

Given = TypeVar("Given")


def to_document(planner: RoundPlanner, state: SchedulerState) -> dict[str, Any]:
    """Return a scheduler as plain data."""
    policy, options = planner.solver.policy, planner.options
    return {
        "options": options.model_dump(exclude={"mechanism"}),
        "policy": {"label": policy.label, "document": policy_document(policy)},
        "mechanism": options.mechanism if isinstance(options.mechanism, str) else None,
        "speeds": {name: encode(table) for name, table in _throughputs(state, planner).items()},
        "scheduler": _state_to_dict(state),
        "solver": planner.solver.to_dict(),
        **({} if planner.observer is None else {"learner": planner.observer.to_dict()}),
    }


def from_document(
    document: Mapping[str, Any],
    source: str | Path,
    profile: Profile | Learner,
    policy: str | Policy | None,
    mechanism: str | Mechanism | None,
) -> tuple[RoundPlanner, SchedulerState]:
    """Restore the planner and the state from `to_document`. Raises `InputError`.

    Args:
        document: The plain data.
        source: Where it comes from, for messages.
        profile: The profile that the scheduler had.
        policy: None if the document contains it.
        mechanism: None if the document contains it.
    """
    with damage_as_fault(source), without_collection():
        known, observer = observed(profile, _types(document["scheduler"]))
        if "learner" in document:
            text = "was written by a scheduler that learns throughputs; pass a ThroughputLearner made like the one it had"
            known = _passed(source, observer, text).resume(document["learner"])
        _check_accelerators(source, document["scheduler"], known)
        options = SchedulerOptions(mechanism=_mechanism(source, document["mechanism"], mechanism), **document["options"])
        solver = Solver(_policy(source, document["policy"], policy), time_limit_seconds=options.time_limit_seconds)
        solver.resume(document["solver"])
        planner = RoundPlanner(solver, known, options, observer)
        state = _state_from_dict(document["scheduler"], known, whole_gangs=planner.options.whole_gangs)
        _check_throughputs(source, document["speeds"], state, planner)
        _check_eligibility(source, state, planner)
        return planner, state


def _state_to_dict(state: SchedulerState) -> dict[str, Any]:
    """Return a state without caches as plain data; jobs are identified by their places in the saved job table."""
    current, table = state.current_allocation, state.table
    rows = table.saved_rows
    places = {row: place for place, row in enumerate(rows.tolist())}
    running, plan, last = state.gangs.rows, state.plan, state.last
    return {
        "cluster": cluster_to_dict(state.nodes.cluster),
        "nodes": state.nodes.to_dict(),
        "jobs": table.to_dict(),
        "ledger": state.ledger.to_dict(rows),
        "allocation": None if current is None else current.to_dict(table, places),
        "inputs_changed": state.changes.of_inputs,
        "must_solve": state.changes.must_solve,
        "running": _held_to_dict(running, state.gangs.of(running), places),
        "plan": None if plan is None else {"start_seconds": plan.start_seconds, **_held_to_dict(plan.rows, plan.held, places)},
        "last": None if last is None else replace(last, assignments={}).to_dict() | {"assignments": _assignments_to_dict(last)},
        "newly_failed": dict(state.newly_failed),
        "colocation": state.colocation_ledger.to_list(),
        **({"tenants": tenants} if (tenants := state.tenant_ledger.to_dict()) else {}),
        **({"counted_since": dict(state.counted_since)} if state.counted_since else {}),
        **({"backoffs": state.backoffs.to_dict()} if state.backoffs else {}),
        **({"fallback_rounds": [[*astuple(k), n] for k, n in fallbacks.items()]} if (fallbacks := state.fallback_rounds) else {}),
        **({"limit_rounds": {name: list(each) for name, each in state.limit_rounds.items()}} if state.limit_rounds else {}),
        **({"failed_meanwhile": sorted(state.failed_meanwhile)} if state.failed_meanwhile else {}),
        **({"blocked": blocked} if (blocked := state.blocked.to_dict()) else {}),
    }


def _state_from_dict(document: Mapping[str, Any], profile: Profile, *, whole_gangs: bool) -> SchedulerState:
    """Restore a state from `_state_to_dict`; profile: the throughputs with which it was saved."""
    cluster = cluster_from_dict(document["cluster"])
    state = SchedulerState(
        NodeStates.from_dict(cluster, document["nodes"]),
        ScheduledJobs.from_dict(document["jobs"]),
        changes=InputChanges(document["inputs_changed"], document["must_solve"]),
        newly_failed=dict(document["newly_failed"]),
        colocation_ledger=ColocationLedger.from_list(document["colocation"]),
        tenant_ledger=TenantLedger.from_dict(document.get("tenants", {})),
        counted_since=dict(document.get("counted_since", {})),
        backoffs=Backoffs.from_dict(document.get("backoffs", {})),
        failed_meanwhile=set(document.get("failed_meanwhile", ())),
        limit_rounds={name: (rounds, exceeded) for name, (rounds, exceeded) in document.get("limit_rounds", {}).items()},
        fallback_rounds=Counter({Fallback(*each): number for *each, number in document.get("fallback_rounds", ())}),
    )
    if not state.backoffs.by_job.keys() <= state.table.by_id.keys():
        raise ValueError("a job that is not in the system waits after a failure")
    state.blocked = BlockedJobs.from_dict(document.get("blocked", {}), state.table.jobs_at(state.table.natural_order.rows))
    cache = state.problem_cache(profile, whole_gangs=whole_gangs)
    state.ledger = DeliveryLedger.from_dict(document["ledger"])
    if state.ledger.accelerator_types != cluster.accelerator_names:
        raise ValueError("the accelerator types of the accounts are not those of the cluster")
    state.fit()
    if document["allocation"] is not None:
        state.allocation = CurrentAllocation.from_dict(document["allocation"], cluster, state.table, cache)
    rows, held = _held_from_dict(document["running"], state)
    state.gangs.begin(rows, held, state.spans.are_spread(held, state.layout))
    state.gangs.moved = None
    if document["plan"] is not None:
        if state.allocation is None:
            raise ValueError("a round is planned without an allocation")
        state.plan = RoundPlan(
            document["plan"]["start_seconds"], *_held_from_dict(document["plan"], state), allocation=state.allocation
        )
    if document["last"] is not None:
        state.last = Round.from_dict(document["last"] | {"assignments": {}})
        jobs, gpus = (document["last"]["assignments"][name] for name in ("jobs", "gpus"))
        held = HeldGpus.from_dict(gpus, len(jobs), state.layout)
        state.last = replace(state.last, assignments=Assignments(tuple(jobs), held, state.layout))
    return state


def _assignments_to_dict(last: Round) -> dict[str, Any]:
    assert isinstance(last.assignments, Assignments)  # noqa: S101
    return {"jobs": list(last.assignments.ids), "gpus": last.assignments.held.to_dict()}


def _held_to_dict(rows: Indices, held: HeldGpus, places: Mapping[int, int]) -> dict[str, Any]:
    return {"jobs": [places[row] for row in rows.tolist()], "gpus": held.to_dict()}


def _held_from_dict(document: Mapping[str, Any], state: SchedulerState) -> tuple[Indices, HeldGpus]:
    count = len(document["jobs"])
    rows = decode_array(document["jobs"], (count,), range(state.table.capacity)).astype(np.int64)
    return rows, HeldGpus.from_dict(document["gpus"], count, state.layout)


def _passed(source: str | Path, given: Given | None, problem: str) -> Given:
    """Return what the file does not contain and the caller must pass. Raises `InputError` if it is None."""
    if given is None:
        raise InputError(Fault(str(source), "", problem))
    return given


def _policy(source: str | Path, document: Mapping[str, Any], given: str | Policy | None) -> Policy:
    label = document["label"]
    if given is None:
        text = f"contains only the name of the policy, {label}; pass the policy, as in RoundScheduler.load(..., policy=...)"
        return policy_from(_passed(source, document["document"], text))
    policy = resolve_policy(given)
    text = f"was written under the policy {label}, but {policy.label} was passed; change the policy after loading"
    refuse(str(source), (policy.label != label, "", text))
    return policy


def _mechanism(source: str | Path, name: str | None, given: str | Mechanism | None) -> str | Mechanism:
    text = "was written by a scheduler with a custom mechanism; pass it, as in RoundScheduler.load(..., mechanism=...)"
    return given if given is not None else _passed(source, name, text)


def _throughputs(state: SchedulerState, planner: RoundPlanner) -> dict[str, Floats]:
    """Return (N, K) throughputs of the jobs in the system, and of the jobs of the current allocation."""
    cache, table = planner.cache(state), state.table
    tables = {"jobs": cache.consolidated(table.gangs[table.saved_rows[: len(table)]])}
    current = state.current_allocation
    return tables if current is None else tables | {"allocation": cache.consolidated(current.policy_input.gangs)}


def _types(document: Mapping[str, Any]) -> list[str]:
    """Return the accelerator types by their names in the profile."""
    return [kind.get("profile_name") or kind["name"] for kind in document["cluster"]["accelerator_types"]]


def _check_accelerators(source: str | Path, document: Mapping[str, Any], profile: Profile) -> None:
    text = f"which profile {profile.name!r} does not have; pass the profile {HAD}"
    cases = ((name not in profile.accelerators, "", f"is about accelerator {name!r}, {text}") for name in _types(document))
    refuse(str(source), *cases)


def _check_throughputs(source: str | Path, document: Mapping[str, Any], state: SchedulerState, planner: RoundPlanner) -> None:
    """Raise for a profile with other throughputs, which would lead to other rounds; a learner may have changed its profile."""
    current, profile = state.current_allocation, planner.profile
    ids = {"jobs": list(state.table.by_id), "allocation": [] if current is None else list(current.problem.job_ids)}
    for name, table in _throughputs(state, planner).items():
        then = decode(document[name])
        for row, column in np.argwhere(then != table)[:1].tolist():
            if planner.observer is not None:
                state.changes.require_solve()
                return
            text = (
                f"was written when job {ids[name][row]!r} did {then[row, column]:g} steps/s on "
                f"{state.nodes.cluster.accelerator_names[column]!r}, but profile {profile.name!r} has {table[row, column]:g}; "
                f"pass the profile {HAD}"
            )
            raise InputError(Fault(str(source), "", text))


def _check_eligibility(source: str | Path, state: SchedulerState, planner: RoundPlanner) -> None:
    """Raise for a profile in which a job needs more GPU memory than a type on which it could run has."""
    current = state.current_allocation
    if current is None:
        return
    can_run = planner.cache(state).can_run(current.policy_input.gangs)
    job_ids, types = current.problem.job_ids, current.problem.accelerator_types
    text = "was written when job {!r} could run on {!r}, where it does not fit according to profile {!r}; pass the profile " + HAD
    found = np.argwhere(current.runnable_if_up & ~can_run)[:1].tolist()
    InputError.raise_any([Fault(str(source), "", text.format(job_ids[i], types[j], planner.profile.name)) for i, j in found])
