"""Converts scheduler snapshots of versions 1 and 2, which named jobs by their ids, to those of version 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gavel_py.io.snapshots import decode, encode
from gavel_py.problem.job import Job
from gavel_py.scheduling.delivery import WAITS, Wait
from gavel_py.scheduling.held_gpus import HeldGpus
from gavel_py.scheduling.jobs import DEPARTURES, HISTORY_COLUMNS
from gavel_py.scheduling.nodes import cluster_from_dict
from gavel_py.scheduling.placement.topology import Layout

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
"""Names of the tables of accounts, then and now."""


def is_older(scheduler: Mapping[str, Any]) -> bool:
    """Return whether the state of a scheduler is of version 1 or 2."""
    return "standings" in scheduler


def upgraded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document of version 1 or 2 as one of version 3."""
    old = document["scheduler"]
    cluster = cluster_from_dict(old["cluster"])
    layout, current = Layout(cluster.nodes, cluster.accelerator_names), old["in_force"]
    jobs = {job["job_id"]: job for job in old["jobs"]}
    if not jobs.keys() <= old["standings"].keys():
        raise ValueError("a job has no standing")
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
            "histories": {name: [_history(each, name) for each in histories] for name in HISTORY_COLUMNS},
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
