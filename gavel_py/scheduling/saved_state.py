"""The state of a scheduler as plain data, and back: a scheduler made of it goes on as the one that wrote it would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from gavel_py.allocation.result import Allocation
from gavel_py.io.snapshots import as_data, from_data
from gavel_py.problem.cluster import AcceleratorType, Cluster, Node
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling.assignment import Assignment, Round
from gavel_py.scheduling.carried import Carried
from gavel_py.scheduling.colocation.company_ledger import CompanyLedger
from gavel_py.scheduling.in_force import InForce, Question
from gavel_py.scheduling.job_book import JobBook
from gavel_py.scheduling.ledger import DeliveryLedger
from gavel_py.scheduling.node_states import NodeStates
from gavel_py.scheduling.running import Running
from gavel_py.scheduling.scheduler_state import Coming, SchedulerState
from gavel_py.scheduling.standing import Departure, Standing
from gavel_py.scheduling.waits import WAITS, Wait

__all__ = ["state_document", "state_from"]


def state_document(state: SchedulerState) -> dict[str, Any]:
    """Return the state as plain data."""
    state.ledger.close_gaps()
    return {
        "cluster": _cluster_document(state.nodes.cluster),
        "nodes": state.nodes.to_dict(),
        "jobs": [job.model_dump(mode="json") for job in state.book.jobs.values()],
        "standings": {job_id: asdict(past) for job_id, past in state.book.standings.items()},
        "ledger": {name: as_data(value) for name, value in vars(state.ledger).items()},
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
        coming=None if coming is None else Coming(coming["start_seconds"], _assignments_from(coming["assignments"])),
        last=None if last is None else Round.from_dict(last),
        newly_failed=dict(document["newly_failed"]),
        company=CompanyLedger.from_list(document["company"]),
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


def _book_from(document: Mapping[str, Any]) -> JobBook:
    book = JobBook()
    for each in document["jobs"]:
        book.put(Job(**each))
    for job_id, past in document["standings"].items():
        left = past["left"]
        # Files of version 1 do not say who has run.
        has_run = past["attained_gpu_seconds"] > 0 or past["running_since_seconds"] is not None
        book.standings[job_id] = Standing(**{"has_run": has_run} | past | {"left": None if left is None else Departure(left)})
    if not book.jobs.keys() <= book.standings.keys():
        raise ValueError("a job has no standing")
    return book


def _ledger_from(document: Mapping[str, Any], cluster: Cluster) -> DeliveryLedger:
    ledger = DeliveryLedger(cluster.accelerator_names)
    values = {name: from_data(value) for name, value in document.items()}
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
        "question": {name: as_data(value) for name, value in asked.items()},
        "jobs": [job.model_dump(mode="json") for job in question.jobs],
        "nodes": dict(in_force.nodes),
        "runnable": as_data(problem.runnable),
        "excluded": dict(problem.excluded),
        "lasting": as_data(in_force.lasting),
        "allocation": in_force.allocation.to_dict(),
        **({} if in_force.carried is None else {"carried": _carried_document(in_force.carried)}),
        **({"note": in_force.note} if in_force.note else {}),
    }


def _carried_document(carried: Carried) -> dict[str, Any]:
    return {"rows": as_data(carried.rows), "asked_seconds": carried.asked_seconds}


def _in_force_from(document: Mapping[str, Any], nodes: NodeStates, profile: Profile) -> InForce:
    asked = {name: from_data(value) for name, value in document["question"].items()}
    question = Question(jobs=tuple(Job(**job) for job in document["jobs"]), **asked)
    then = NodeStates.from_dict(nodes.cluster, document["nodes"])
    # What constraints have changed of the problem is told; the rest follows from what was asked.
    problem = replace(
        question.problem(then, profile), runnable=from_data(document["runnable"]), excluded=dict(document["excluded"])
    )
    allocation = Allocation.from_dict(document["allocation"])
    lasting, carried = np.asarray(from_data(document["lasting"])), _carried_from(document.get("carried"), allocation)
    found = InForce(question, then.to_dict(), problem, allocation, lasting, carried, document.get("note", ""))
    if not problem.throughputs.shape == problem.runnable.shape == lasting.shape == found.fractions.shape:
        raise ValueError("the arrays of the allocation in force do not fit each other")
    return found


def _carried_from(document: Mapping[str, Any] | None, allocation: Allocation) -> Carried | None:
    if document is None:
        return None
    rows = np.asarray(from_data(document["rows"]))
    if not np.isin(rows, np.arange(-1, len(allocation.job_ids))).all():
        raise ValueError("the allocation in force has no such rows")
    return Carried(rows, float(document["asked_seconds"]))


def _coming_document(coming: Coming) -> dict[str, Any]:
    return {"start_seconds": coming.start_seconds, "assignments": _assignments_document(coming.assignments)}


def _assignments_document(assignments: Mapping[str, Assignment]) -> dict[str, Any]:
    return {job_id: held.to_dict() for job_id, held in assignments.items()}


def _assignments_from(document: Mapping[str, Any]) -> dict[str, Assignment]:
    return {job_id: Assignment.from_dict(held) for job_id, held in document.items()}
