"""Scheduler snapshots: a scheduler as plain data, from which it continues with the same rounds.

Profiles are not saved, and neither are user-defined policies and mechanisms: these must be passed again on loading. The throughputs
of the saved jobs are checked against the profile. The observations of a learner are saved, and restored to the learner that is
passed on loading. Files of earlier versions are converted first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel_py.allocation.solver import Solver
from gavel_py.errors import Fault, InputError
from gavel_py.io.records import without_collection
from gavel_py.io.snapshots import SnapshotFormat, damage_as_fault, decode, encode
from gavel_py.policies import Policy, resolve_policy
from gavel_py.policies.serialization import policy_document, policy_from
from gavel_py.problem.arrays import Floats
from gavel_py.problem.from_jobs import Profile
from gavel_py.problem.job import Job
from gavel_py.scheduling.delivery import WAITS, Wait
from gavel_py.scheduling.jobs import DEPARTURES, HISTORY_COLUMNS
from gavel_py.scheduling.learning import observed
from gavel_py.scheduling.mechanism.demand import Mechanism
from gavel_py.scheduling.nodes import cluster_from_dict
from gavel_py.scheduling.options import SchedulerOptions
from gavel_py.scheduling.placement.gangs import HeldGpus
from gavel_py.scheduling.placement.topology import Layout
from gavel_py.scheduling.planner import RoundPlanner
from gavel_py.scheduling.state import SchedulerState

if TYPE_CHECKING:
    from gavel_py.throughput_profiles.learning import ThroughputLearner

SCHEDULER = SnapshotFormat("gavel-py scheduler", 3, "a scheduler state written by RoundScheduler.save")

DEFAULTS = {"solve_seconds": 0.0, "time_limit_seconds": None, "retry_seconds": 0.0, "by_workflow": True}
"""Options that earlier versions did not have; a file contains them only if they differ from these values."""

HAD = "that the scheduler used"


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
        **({} if planner.observer is None else {"learner": planner.observer.to_dict()}),
    }


def from_document(
    document: Mapping[str, Any],
    source: str | Path,
    profile: Profile | ThroughputLearner,
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
        if _is_older(document["scheduler"]):
            document = _upgraded(document)
        known, observer = observed(profile, _types(document["scheduler"]))
        if "learner" in document:
            if observer is None:
                text = "was written by a scheduler that learns throughputs; pass a ThroughputLearner made like the one it had"
                raise InputError(Fault(str(source), "", text))
            known = observer.resume(document["learner"])
        _check_accelerators(source, document["scheduler"], known)
        saved = DEFAULTS | document["options"]
        solver = Solver(_policy(source, document["policy"], policy), time_limit_seconds=saved["time_limit_seconds"])
        solver.resume(document["solver"])
        mechanism = _mechanism(source, document["mechanism"], mechanism)
        numbers = {each.name: saved[each.name] for each in fields(SchedulerOptions) if each.name != "mechanism"}
        planner = RoundPlanner(solver, known, SchedulerOptions(mechanism=mechanism, **numbers), observer)
        state = SchedulerState.from_dict(document["scheduler"], known, whole_gangs=planner.options.whole_gangs)
        _check_throughputs(source, document["speeds"], state, planner)
        _check_eligibility(source, state, planner)
        return planner, state


def _policy(source: str | Path, document: Mapping[str, Any], given: str | Policy | None) -> Policy:
    label = document["label"]
    if given is None:
        if document["document"] is None:
            text = f"contains only the name of the policy, {label}; pass the policy, as in RoundScheduler.load(..., policy=...)"
            raise InputError(Fault(str(source), "", text))
        return policy_from(document["document"])
    policy = resolve_policy(given)
    if policy.label != label:
        text = f"was written under the policy {label}, but {policy.label} was passed; change the policy after loading"
        raise InputError(Fault(str(source), "", text))
    return policy


def _mechanism(source: str | Path, name: str | None, given: str | Mechanism | None) -> str | Mechanism:
    if given is not None:
        return given
    if name is None:
        text = "was written by a scheduler with a custom mechanism; pass it, as in RoundScheduler.load(..., mechanism=...)"
        raise InputError(Fault(str(source), "", text))
    return name


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
    unknown = [name for name in _types(document) if name not in profile.accelerators]
    text = f"which profile {profile.name!r} does not have; pass the profile {HAD}"
    InputError.raise_any([Fault(str(source), "", f"is about accelerator {name!r}, {text}") for name in unknown])


def _check_throughputs(source: str | Path, document: Mapping[str, Any], state: SchedulerState, planner: RoundPlanner) -> None:
    """Raise for a profile with other throughputs, which would lead to other rounds; a learner may have changed its profile."""
    current, profile = state.current_allocation, planner.profile
    ids = {"jobs": list(state.table.by_id), "allocation": [] if current is None else list(current.problem.job_ids)}
    for name, table in _throughputs(state, planner).items():
        then = decode(document[name])
        for row, column in np.argwhere(then != table)[:1].tolist():
            if planner.observer is not None:
                state.require_solve()
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
    for row, column in np.argwhere(current.runnable_if_up & ~can_run)[:1].tolist():
        text = (
            f"was written when job {current.problem.job_ids[row]!r} could run on {current.problem.accelerator_types[column]!r}, "
            f"where it does not fit according to profile {planner.profile.name!r}; pass the profile {HAD}"
        )
        raise InputError(Fault(str(source), "", text))


# Versions 1 and 2, which identified jobs by their ids

TABLES = {
    "promised": "promised",
    "delivered": "delivered",
    "deficits": "deficits",
    "received": "received",
    "apart": "spread_deficits",
    "waits": "waits",
    "short": "short",
    "misplaced": "misplaced",
    "rounds": "rounds",
}
"""{earlier name of a table of accounts: present name}."""


def _is_older(scheduler: Mapping[str, Any]) -> bool:
    """Return whether the state of a scheduler is of version 1 or 2."""
    return "standings" in scheduler


def _upgraded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of version 1 or 2 as one of version 3."""
    old = document["scheduler"]
    cluster = cluster_from_dict(old["cluster"])
    layout, current = Layout(cluster.nodes, cluster.accelerator_names), old["in_force"]
    jobs = {job["job_id"]: job for job in old["jobs"]}
    if not jobs.keys() <= old["standings"].keys():
        raise ValueError("a job has no history")
    past = {job["job_id"]: job for job in ([] if current is None else current["jobs"])}
    ids = [*jobs, *(job_id for job_id in old["standings"] if job_id not in jobs)]
    places = {job_id: place for place, job_id in enumerate(ids)}
    histories = [old["standings"][job_id] for job_id in ids]
    planned, last, speeds = old["coming"], old["last"], dict(document["speeds"])
    if "in_force" in speeds:
        speeds["allocation"] = speeds.pop("in_force")
    state = {
        "cluster": old["cluster"],
        "nodes": old["nodes"],
        "jobs": {
            "jobs": _columns([jobs.get(job_id, past.get(job_id, {"job_id": job_id})) for job_id in ids]),
            "present": len(jobs),
            "histories": {name: [_history(each, name) for each in histories] for name in HISTORY_COLUMNS if name not in LATER},
        },
        "ledger": _ledger(old["ledger"], places),
        "allocation": None if current is None else _allocation(current, places, list(cluster.accelerator_names)),
        "inputs_changed": old["changed"],
        "must_solve": old.get("at_once", False),
        "running": _held(old["running"], places, layout),
        "plan": None
        if planned is None
        else {"start_seconds": planned["start_seconds"], **_held(planned["assignments"], places, layout)},
        "last": None if last is None else {**last, "assignments": _assignments(last["assignments"], layout)},
        "newly_failed": old["newly_failed"],
        "colocation": old["company"],
    }
    return {**document, "speeds": speeds, "scheduler": state}


LATER = ("starts", "kept_until_seconds")
"""Columns that these versions do not have."""


def _history(old: Mapping[str, Any], name: str) -> Any:
    if name == "has_run" and name not in old:  # in version 1, it follows from the other fields
        return old["attained_gpu_seconds"] > 0 or old["running_since_seconds"] is not None
    if name == "left":
        return -1 if old["left"] is None else [str(each) for each in DEPARTURES].index(old["left"])
    return old[name]


def _columns(jobs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    defaults = {name: None if field.is_required() else field.default for name, field in Job.model_fields.items()}
    return {name: [job.get(name, default) for job in jobs] for name, default in defaults.items()}


def _held(assignments: Mapping[str, Any], places: Mapping[str, int], layout: Layout) -> dict[str, Any]:
    found = _assignments(assignments, layout)
    return found | {"jobs": [places[job_id] for job_id in found["jobs"]]}


def _assignments(assignments: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    ids, each = list(assignments), list(assignments.values())
    gpus = [layout.numbers([(node, index) for node, index in held["gpus"]]).tolist() for held in each]
    held = HeldGpus.of([layout.type_number[held["accelerator"]] for held in each], gpus).to_dict()
    parts = [held.get("gpu_part", 1.0) for held in each]
    partners = [[i, one["shared_with"]] for i, one in enumerate(each) if one.get("shared_with")]
    if min(parts, default=1.0) < 1 or partners:
        held |= {"parts": encode(np.array(parts, dtype=float)), "partners": partners}
    return {"jobs": ids, "gpus": held}


def _allocation(old: Mapping[str, Any], places: Mapping[str, int], types: list[str]) -> dict[str, Any]:
    question, jobs = old["question"], old["jobs"]
    by_job = {name: decode(question[name]) for name in ("waiting_seconds", "isolated_seconds", "attained_gpu_seconds")}
    running_on = [-1 if name is None else types.index(name) for name in decode(question["running_on"])]
    found = {
        "input": {
            "now_seconds": question["now_seconds"],
            "jobs": [places[job["job_id"]] for job in jobs],
            "steps_done": encode(np.array([job["steps_done"] for job in jobs], dtype=float)),
            "changed": [[i, job] for i, job in enumerate(jobs)],
            **{name: encode(np.array(values, dtype=float)) for name, values in by_job.items()},
            "running_on": encode(np.array(running_on, dtype=np.int64)),
            **{name: question[name] for name in ("previous_fractions", "whole_gangs", "sharing", "min_gain")},
        },
        **{name: old[name] for name in ("nodes", "runnable", "excluded", "allocation")},
        "runnable_if_up": old["lasting"],
    }
    if "carried" in old:
        found["reused"] = {"rows": old["carried"]["rows"], "solved_seconds": old["carried"]["asked_seconds"]}
    return found | ({"note": old["note"]} if "note" in old else {})


def _ledger(old: Mapping[str, Any], places: Mapping[str, int]) -> dict[str, Any]:
    values = {name: decode(value) for name, value in old.items()}
    if not values.keys() & {"_offered", "_round_seconds"}:
        values |= _of_version_1(values["_tables"], np.array(values["_num_gpus"], dtype=float))
    rows, known = values["_rows"], values["_tables"]
    at = np.array([places[job_id] for job_id in rows], dtype=np.int64)
    order = np.array(list(rows.values()), dtype=np.int64)
    sizes = np.zeros(len(places))
    sizes[at] = np.array(values["_num_gpus"], dtype=float)[order]
    tables: dict[str, Any] = {"num_gpus": encode(sizes)}
    for name, now in TABLES.items():
        table = np.zeros((len(places), *known[name].shape[1:]))
        table[at] = known[name][order]
        tables[now] = encode(table.ravel() if now in {"misplaced", "rounds"} else table)
    common = {"offered": encode(values["_offered"]), "round_seconds": values["_round_seconds"]}
    return {"accelerator_types": list(values["accelerator_types"]), **tables, **common}


def _of_version_1(tables: dict[str, np.ndarray[Any, Any]], num_gpus: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return the fields of the ledger that files of version 1 lack, estimated from the others.

    Number and length of the rounds are unknown. GPU-seconds offered are at least those promised and those delivered, so that the
    bound of the least shortfall is smaller but holds.

    Args:
        tables: Tables of the file; the missing ones are added to a copy.
        num_gpus: (N,) gang sizes of the rows.
    """
    promised, delivered, waits = tables["promised"], tables["delivered"], tables["waits"]
    waits = np.pad(waits, ((0, 0), (0, len(WAITS) - waits.shape[1])))
    reasons = waits.copy()
    # A job with a shortfall that has never waited ran on another of its types.
    reasons[~waits.any(axis=1), WAITS.index(Wait.OTHER_TYPE)] = 1.0
    short = np.maximum(0.0, promised - delivered).sum(axis=1, keepdims=True) * reasons / reasons.sum(axis=1, keepdims=True)
    tables = tables | {"waits": waits, "short": short, "rounds": np.full((len(num_gpus), 1), -1.0)}
    return {"_tables": tables, "_offered": num_gpus @ np.maximum(promised, delivered), "_round_seconds": 0.0}
