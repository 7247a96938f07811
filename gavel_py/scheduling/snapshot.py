"""A scheduler as plain data and as a file, from which it continues exactly as the one that wrote it would.

`state_document` and `state_from` convert the state; `save` and `load` are the file, with what must be handed in again on loading:
the profile, and a policy or mechanism that no file can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gavel_py.allocation.result import Allocation
from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault, decode, encode
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.serialization import policy_document, policy_from
from gavel_py.problem.cluster import Cluster
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.problem.nodes import AcceleratorType, Node
from gavel_py.problem.problem import AllocationProblem
from gavel_py.scheduling.colocation.groups import ColocationLedger
from gavel_py.scheduling.current_allocation import InForce, PolicyInput, ReusedAllocation
from gavel_py.scheduling.delivery import WAITS, Wait
from gavel_py.scheduling.jobs import Departure, JobHistory, JobRegistry
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.mechanism import MechanismName
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.nodes import NodeStates
from gavel_py.scheduling.round import Assignment, Round
from gavel_py.scheduling.state import PlannedRound, Running, SchedulerState

Floats = np.ndarray[Any, np.dtype[np.float64]]


def state_document(state: SchedulerState) -> dict[str, Any]:
    """Return the state as plain data."""
    state.ledger.close_gaps()
    return {
        "cluster": _cluster_document(state.nodes.cluster),
        "nodes": state.nodes.to_dict(),
        "jobs": [job.model_dump(mode="json") for job in state.book.jobs.values()],
        "standings": {job_id: asdict(past) for job_id, past in state.book.standings.items()},
        "ledger": {name: encode(value) for name, value in vars(state.ledger).items()},
        "in_force": None if state.in_force is None else _in_force_document(state.in_force),
        "changed": state.changed,
        **({"at_once": True} if state.at_once else {}),
        "running": _assignments_document(state.running),
        "coming": None if state.coming is None else _coming_document(state.coming),
        "last": None if state.last is None else state.last.to_dict(),
        "newly_failed": dict(state.newly_failed),
        "company": state.company.to_list(),
    }


def state_from(document: Mapping[str, Any], profile: Profile) -> SchedulerState:
    """Return the state that `state_document` described; profile: the one that it was made with."""
    nodes = NodeStates.from_dict(_cluster_from(document["cluster"]), document["nodes"])
    in_force, coming, last = document["in_force"], document["coming"], document["last"]
    return SchedulerState(
        _book_from(document),
        nodes,
        _ledger_from(document["ledger"], nodes.cluster),
        told=None if in_force is None else _in_force_from(in_force, nodes, profile),
        changed=document["changed"],
        at_once=document.get("at_once", False),
        gangs=Running(_assignments_from(document["running"])),
        coming=None if coming is None else PlannedRound(coming["start_seconds"], _assignments_from(coming["assignments"])),
        last=None if last is None else Round.from_dict(last),
        newly_failed=dict(document["newly_failed"]),
        company=ColocationLedger.from_list(document["company"]),
    )


def _cluster_document(cluster: Cluster) -> dict[str, Any]:
    kinds = [kind.model_dump(mode="json") for kind in cluster.accelerator_types]
    nodes = [node.model_dump(mode="json") for node in cluster.nodes]
    return {"accelerator_types": kinds, "nodes": nodes, "left_out": cluster.left_out}


def _cluster_from(document: Mapping[str, Any]) -> Cluster:
    nodes = (Node(**node) for node in document["nodes"])
    cluster = Cluster(nodes, (AcceleratorType(**kind) for kind in document["accelerator_types"]))
    left = document["left_out"]
    cluster.left_out = dict(left) if isinstance(left, Mapping) else dict.fromkeys(left, 0)  # of an earlier version, without GPUs
    return cluster


def _book_from(document: Mapping[str, Any]) -> JobRegistry:
    book = JobRegistry()
    for each in document["jobs"]:
        book.put(Job(**each))
    for job_id, past in document["standings"].items():
        left = past["left"]
        # Files of version 1 do not say who has run.
        has_run = past["attained_gpu_seconds"] > 0 or past["running_since_seconds"] is not None
        book.standings[job_id] = JobHistory(**{"has_run": has_run} | past | {"left": None if left is None else Departure(left)})
    if not book.jobs.keys() <= book.standings.keys():
        raise ValueError("a job has no standing")
    return book


def _ledger_from(document: Mapping[str, Any], cluster: Cluster) -> DeliveryLedger:
    ledger = DeliveryLedger(cluster.accelerator_names)
    values = {name: decode(value) for name, value in document.items()}
    if not values.keys() & {"_offered", "_round_seconds"}:
        values |= _of_version_1(values["_tables"], np.array(values["_num_gpus"], dtype=float))
    if set(values) != set(vars(ledger)):
        raise KeyError("ledger")
    vars(ledger).update(values)
    return ledger


def _of_version_1(tables: dict[str, np.ndarray[Any, Any]], num_gpus: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the fields of the ledger that files of version 1 lack, estimated from those that they have.

    The number and length of the rounds is unknown, and so are the GPU-seconds offered, other than that they cover what was
    promised and what was delivered; the least shortfall is bounded by less then.

    Args:
        tables: the tables of the file; the missing ones are added to a copy.
        num_gpus: (N,) the gang sizes of the rows.
    """
    promised, delivered, waits = tables["promised"], tables["delivered"], tables["waits"]
    waits = np.pad(waits, ((0, 0), (0, len(WAITS) - waits.shape[1])))
    reasons = waits.copy()
    # A job that is owed time and has never waited ran on another of its types.
    reasons[~waits.any(axis=1), WAITS.index(Wait.OTHER_TYPE)] = 1.0
    short = np.maximum(0.0, promised - delivered).sum(axis=1, keepdims=True) * reasons / reasons.sum(axis=1, keepdims=True)
    tables = tables | {"waits": waits, "short": short, "rounds": np.full((len(num_gpus), 1), -1.0)}
    return {"_tables": tables, "_offered": num_gpus @ np.maximum(promised, delivered), "_round_seconds": 0.0}


def _in_force_document(in_force: InForce) -> dict[str, Any]:
    question, problem = in_force.question, in_force.problem
    asked = {field.name: getattr(question, field.name) for field in fields(question) if field.name != "jobs"}
    return {
        "question": {name: encode(value) for name, value in asked.items()},
        "jobs": [job.model_dump(mode="json") for job in question.jobs],
        "nodes": dict(in_force.nodes),
        "runnable": encode(problem.runnable),
        "excluded": dict(problem.excluded),
        "lasting": encode(in_force.lasting),
        "allocation": in_force.allocation.to_dict(),
        **({} if in_force.carried is None else {"carried": _carried_document(in_force.carried)}),
        **({"note": in_force.note} if in_force.note else {}),
    }


def _carried_document(carried: ReusedAllocation) -> dict[str, Any]:
    return {"rows": encode(carried.rows), "asked_seconds": carried.asked_seconds}


def _in_force_from(document: Mapping[str, Any], nodes: NodeStates, profile: Profile) -> InForce:
    asked = {name: decode(value) for name, value in document["question"].items()}
    question = PolicyInput(jobs=tuple(Job(**job) for job in document["jobs"]), **asked)
    then = NodeStates.from_dict(nodes.cluster, document["nodes"])
    # What constraints have changed of the problem is told; the rest follows from what was asked.
    problem = replace(question.problem(then, profile), runnable=decode(document["runnable"]), excluded=dict(document["excluded"]))
    allocation = Allocation.from_dict(document["allocation"])
    lasting, carried = np.asarray(decode(document["lasting"])), _reused_from(document.get("carried"), allocation)
    found = InForce(question, then.to_dict(), problem, allocation, lasting, carried, document.get("note", ""))
    if not problem.throughputs.shape == problem.runnable.shape == lasting.shape == found.fractions.shape:
        raise ValueError("the arrays of the allocation in force do not fit each other")
    return found


def _reused_from(document: Mapping[str, Any] | None, allocation: Allocation) -> ReusedAllocation | None:
    if document is None:
        return None
    rows = np.asarray(decode(document["rows"]))
    if not np.isin(rows, np.arange(-1, len(allocation.job_ids))).all():
        raise ValueError("the allocation in force has no such rows")
    return ReusedAllocation(rows, float(document["asked_seconds"]))


def _coming_document(coming: PlannedRound) -> dict[str, Any]:
    return {"start_seconds": coming.start_seconds, "assignments": _assignments_document(coming.assignments)}


def _assignments_document(assignments: Mapping[str, Assignment]) -> dict[str, Any]:
    return {job_id: held.to_dict() for job_id, held in assignments.items()}


def _assignments_from(document: Mapping[str, Any]) -> dict[str, Assignment]:
    return {job_id: Assignment.from_dict(held) for job_id, held in document.items()}


OPTIONS = (
    "round_seconds",
    "restart_seconds",
    "min_run_seconds",
    "whole_gangs",
    "sharing",
    "min_gain",
    "by_events",
    "solve_seconds",
    "time_limit_seconds",
)
"""The numbers that a scheduler is made with."""

UNSAID = {"solve_seconds": 0.0, "time_limit_seconds": None}
"""Those that a file tells only where they are others: earlier versions did not know them."""

HAD = "that the scheduler had"

SCHEDULER = SnapshotFormat("gavel-py scheduler", 2, "the state of a scheduler, as RoundScheduler.save writes it")


@dataclass(frozen=True)
class Saved:
    """All that a scheduler is made of. options: the values of `OPTIONS`."""

    solver: Solver
    profile: Profile
    mechanism: MechanismName | Mechanism
    options: dict[str, Any]
    state: SchedulerState


def save(path: str | Path, saved: Saved) -> None:
    """Write a scheduler to a file. Raises `InputError` where that cannot be written."""
    SCHEDULER.write(path, document_of(saved))


def load(path: str | Path, profile: Profile, policy: str | Policy | None, mechanism: MechanismName | Mechanism | None) -> Saved:
    """Read a scheduler from a file. policy, mechanism: None where the file has them. Raises `InputError`."""
    return saved_from(SCHEDULER.read(path), path, profile, policy, mechanism)


def document_of(saved: Saved) -> dict[str, Any]:
    """Return a scheduler as plain data."""
    policy = saved.solver.policy
    return {
        "options": {name: value for name, value in saved.options.items() if name not in UNSAID or value != UNSAID[name]},
        "policy": {"label": policy.label, "document": policy_document(policy)},
        "mechanism": saved.mechanism if isinstance(saved.mechanism, str) else None,
        "speeds": {name: encode(table) for name, table in _speeds(saved.state, saved.profile).items()},
        "scheduler": state_document(saved.state),
        "solver": saved.solver.to_dict(),
    }


def saved_from(
    document: Mapping[str, Any],
    path: str | Path,
    profile: Profile,
    policy: str | Policy | None,
    mechanism: MechanismName | Mechanism | None,
) -> Saved:
    """Return the scheduler that `document_of` described; path: where it stood, for messages. Raises `InputError`."""
    with damage_as_fault(path):
        _check_accelerators(path, document["scheduler"], profile)
        options = UNSAID | document["options"]
        solver = Solver(_policy(path, document["policy"], policy), time_limit_seconds=options["time_limit_seconds"])
        solver.resume(document["solver"])
        used = _mechanism(path, document["mechanism"], mechanism)
        state = state_from(document["scheduler"], profile)
        _check_speeds(path, document["speeds"], state, profile)
        _check_places(path, state, profile)
        return Saved(solver, profile, used, {name: options[name] for name in OPTIONS}, state)


def _policy(path: str | Path, document: Mapping[str, Any], given: str | Policy | None) -> Policy:
    label = document["label"]
    if given is None:
        if document["document"] is None:
            text = f"holds no more of the policy than its name, {label}; hand it in, as in RoundScheduler.load(..., policy=...)"
            raise InputError(Fault(str(path), "", text))
        return policy_from(document["document"])
    policy = resolve_policy(given)
    if policy.label != label:
        text = f"was written under the policy {label}, and {policy.label} was handed in; set another one when it is loaded"
        raise InputError(Fault(str(path), "", text))
    return policy


def _mechanism(path: str | Path, name: MechanismName | None, given: MechanismName | Mechanism | None) -> MechanismName | Mechanism:
    if given is not None:
        return given
    if name is None:
        text = "was written by a scheduler with a mechanism of its own; hand it in, as in RoundScheduler.load(..., mechanism=...)"
        raise InputError(Fault(str(path), "", text))
    return name


def _speeds(state: SchedulerState, profile: Profile) -> dict[str, Floats]:
    """(N, K) throughputs of the jobs in the system, and of those that the allocation in force is about."""
    jobs = AllocationProblem.from_jobs(state.book.jobs.values(), state.nodes.cluster, profile, whole_gangs=False)
    tables = {"jobs": jobs.throughputs}
    return tables if state.in_force is None else tables | {"in_force": state.in_force.problem.throughputs}


def _check_accelerators(path: str | Path, document: Mapping[str, Any], profile: Profile) -> None:
    types = [kind["name"] for kind in document["cluster"]["accelerator_types"]]
    unknown = [name for name in types if name not in profile.accelerators]
    text = f"which profile {profile.name!r} does not know; hand in the profile {HAD}"
    InputError.raise_any([Fault(str(path), "", f"is about accelerator {name!r}, {text}") for name in unknown])


def _check_speeds(path: str | Path, document: Mapping[str, Any], state: SchedulerState, profile: Profile) -> None:
    """Other throughputs would make other rounds of the same state."""
    ids = {"jobs": list(state.book.jobs), "in_force": [] if state.in_force is None else list(state.in_force.problem.job_ids)}
    for name, table in _speeds(state, profile).items():
        then = decode(document[name])
        for row, column in np.argwhere(then != table)[:1].tolist():
            text = (
                f"was written when job {ids[name][row]!r} did {then[row, column]:g} steps/s on "
                f"{state.nodes.cluster.accelerator_names[column]!r}, and profile {profile.name!r} says {table[row, column]:g}; "
                f"hand in the profile {HAD}"
            )
            raise InputError(Fault(str(path), "", text))


def _check_places(path: str | Path, state: SchedulerState, profile: Profile) -> None:
    """Nor may the allocation in force give a job GPUs whose memory it exceeds, by what the profile says now."""
    if state.in_force is None:
        return
    now = AllocationProblem.from_jobs(state.in_force.jobs, state.nodes.cluster, profile, whole_gangs=False)
    for row, column in np.argwhere(state.in_force.lasting & ~now.runnable)[:1].tolist():
        text = (
            f"was written when job {now.job_ids[row]!r} could run on {now.accelerator_types[column]!r}, "
            f"where it does not fit by profile {profile.name!r}; hand in the profile {HAD}"
        )
        raise InputError(Fault(str(path), "", text))
