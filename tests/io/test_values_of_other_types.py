"""Each place of each JSON file that users write, with a value of another type: read, or refused with an `InputError`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp

VALUES: list[Any] = [[], ["x"], [[1]], {"a": {"b": 1}}, 5, -1.5, 10**400, True, None, "", "text", float("inf"), float("nan")]

JOB = {
    "job_id": "a",
    "job_type": "t",
    "num_gpus": 1,
    "weight": 1.0,
    "priority": 0,
    "total_steps": 9,
    "arrival_seconds": 0,
    "tenant": "x",
    "allowed_accelerators": ["v100"],
    "locality": "any",
    "even_split": False,
    "depends_on": ["b"],
    "recorded_run_seconds": 5,
    "recorded_status": "passed",
    "recorded_accelerator": "v100",
    "recorded_label_user": "u",
}
JOBS = [JOB, {"job_id": "b", "gpu_counts": [1, 2], "deadline_factor": 2.0}, {"job_id": "c", "min_gpus": 1, "max_gpus": 4}]
CLUSTER = {
    "accelerator_types": {"v100": {"memory_gb": 16, "price_per_hour": 2.5}},
    "nodes": [{"name": "n", "count": 2, "accelerator": "v100", "num_gpus": 4, "rack": "r", "cpus": 8, "memory_gb": 64}],
}
CONSTRAINTS = {
    "constraints": [
        {"kind": "quota", "tenant": "t", "share": 0.5, "borrowable": True, "guaranteed": True, "soft": 1.0},
        {"kind": "reserve", "accelerator": "v100", "gpus": 1, "reserved_for": ["t"], "min_gang": 2},
        {"kind": "forbid", "job": "a", "accelerators": ["v100"]},
    ]
}
TENANTS = {"policy": "fairness", "tenants": {"t": {"weight": 1, "policy": "fifo"}, "u": {"tenants": {"v": {"weight": 2}}}}}
SERVICES = {"services": [{"name": "x", "model": "m", "rate": 3, "mix": {"128/128": 1}, "slo_seconds": 5, "cv": 1.0}]}
RATES = {"rates": [{"model": "m", "accelerator": "v100", "num_gpus": 1, "requests_per_second": 4.0, "condition": "offline"}]}
PROFILE = {"v100": {"('t', 1)": {"null": 5.0, "('u', 1)": [1.0, 2.0]}, "('u', 1)": {"null": 3.0, "('t', 1)": [2.0, 1.0]}}}
GROUPS = {"groups": [{"stage_seconds": {"chat": [0.1, 0.2]}, "operator_parallel": 1, "accelerator": "v100"}]}

READERS: dict[str, tuple[Any, Callable[[Path], object]]] = {
    "jobs": (JOBS, gp.JobSet.from_file),
    "trace": (JOBS, lambda path: gp.read_trace(path, "json")),
    "cluster": (CLUSTER, gp.Cluster.from_file),
    "constraints": (CONSTRAINTS, gp.read_constraints),
    "tenants": (TENANTS, gp.TenantTree.from_file),
    "services": (SERVICES, gp.read_services),
    "rates": (RATES, gp.ServingProfile.from_file),
    "profile": (PROFILE, gp.ThroughputProfile.from_file),
    "groups": (GROUPS, gp.read_groups),
}


def ways(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys and positions that lead to each place of a document."""
    yield way
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from ways(value[key], (*way, key))


def replaced(document: Any, way: tuple[Any, ...], value: Any) -> Any:
    holder = [copy.deepcopy(document)]
    part: Any = holder
    for key in (0, *way)[:-1]:
        part = part[key]
    part[(0, *way)[-1]] = value
    return holder[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_value_of_another_type_is_read_or_refused(tmp_path: Path, name: str) -> None:
    document, read = READERS[name]
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(document))
    read(path)
    refused = 0
    for way in ways(document):
        for value in VALUES:
            path.write_text(json.dumps(replaced(document, way, value)))
            try:
                read(path)
            except gp.InputError:
                refused += 1
    assert refused > len(VALUES)


def test_a_changed_allocation_is_refused() -> None:
    problem = gp.AllocationProblem.from_arrays([[4.0, 1.0]], [1, 1], accelerator_types=["v100", "k80"], job_ids=["a"])
    document = json.loads(gp.solve(problem).to_json())
    for way in (("jobs", 0, "throughput"), ("jobs", 0, "time_fractions", "v100"), ("utilization", "k80")):
        for value in (10**400, ["x"], {}):
            with pytest.raises(gp.InputError, match="not an allocation written by gavel"):
                gp.Allocation.from_json(json.dumps(replaced(document, way, value)))
