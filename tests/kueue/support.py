"""Small clusters with Kueue, as kubectl prints them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gavel_py as gp

API, GPU = "kueue.x-k8s.io/v1beta2", "nvidia.com/gpu"
START = "2026-01-01T00:00:00Z"


def stamp(minutes: float) -> str:
    """A time after the start."""
    seconds = round(minutes * 60)
    return f"2026-01-01T{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}Z"


def flavor(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {"nodeLabels": {"gpu": name}, **spec}}


def queue(name: str, quotas: Mapping[str, Any], cohort: str | None = "all", **spec: Any) -> dict[str, Any]:
    """A ClusterQueue; quotas: {flavor: GPUs, or the fields of a quota}."""
    flavors = [
        {"name": each, "resources": [{"name": GPU, **(quota if isinstance(quota, Mapping) else {"nominalQuota": str(quota)})}]}
        for each, quota in quotas.items()
    ]
    own = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": [GPU], "flavors": flavors}],
    }
    if cohort:
        own["cohortName"] = cohort
    return {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name, "uid": f"q-{name}"}, "spec": {**own, **spec}}


def local_queue(name: str, **spec: Any) -> dict[str, Any]:
    """A LocalQueue `main` in the namespace of the same name as the ClusterQueue."""
    metadata = {"name": "main", "namespace": name}
    return {"apiVersion": API, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name, **spec}}


def workload(
    name: str,
    team: str = "a",
    *,
    gpus: int = 1,
    hours: float = 1.0,
    pin: str | None = None,
    job_type: str | None = None,
    made: float = 0.0,
    on: str | None = None,
    reserved: float = 0.0,
    priority: int = 0,
    **more: Any,
) -> dict[str, Any]:
    """A Workload; pin: flavor of its node selector; on: the flavor that it holds since minute `reserved`."""
    pod: dict[str, Any] = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {GPU: str(gpus)}}}]}
    if pin:
        pod["nodeSelector"] = {"gpu": pin}
    template: dict[str, Any] = {"spec": pod}
    if job_type:
        template["metadata"] = {"annotations": {"gavel-py/job-type": job_type}}
    found: dict[str, Any] = {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": team,
            "uid": f"w-{name}",
            "creationTimestamp": stamp(made),
            "ownerReferences": [{"kind": "Job", "name": f"job-{name}"}],
        },
        "spec": {
            "queueName": "main",
            "priority": priority,
            "maximumExecutionTimeSeconds": round(hours * 3600),
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
        "status": {},
    }
    if on:
        assigned = [{"name": "main", "count": 1, "flavors": {GPU: on}, "resourceUsage": {GPU: str(gpus)}}]
        found["status"]["admission"] = {"clusterQueue": team, "podSetAssignments": assigned}
        found["status"]["conditions"] = [
            {"type": each, "status": "True", "reason": each, "message": "", "lastTransitionTime": stamp(reserved)}
            for each in ("QuotaReserved", "Admitted")
        ]
    found["spec"].update(more)
    return found


def job_of(each: Mapping[str, Any]) -> dict[str, Any]:
    """The Job of a Workload."""
    metadata = {
        "name": f"job-{each['metadata']['name']}",
        "namespace": each["metadata"]["namespace"],
        "uid": f"j-{each['metadata']['name']}",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"suspend": True, "template": each["spec"]["podSets"][0]["template"]},
    }


def two_queues(a: Mapping[str, Any], b: Mapping[str, Any] | None = None, *workloads: Any, **spec: Any) -> list[dict[str, Any]]:
    """Queue a, and b if it has quotas, of one cohort, with flavors named by the quotas."""
    queues = [queue("a", a, **spec), *([queue("b", b)] if b is not None else [])]
    names = dict.fromkeys([*a, *(b or {})])
    return [*map(flavor, names), *queues, *(local_queue(each["metadata"]["name"]) for each in queues), *workloads]


def written(path: Path, items: Sequence[Mapping[str, Any]]) -> Path:
    """The file that kubectl would write."""
    file = path / "state.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
    return file


def profile(speeds: Mapping[str, Mapping[str, float]], gpus: int = 1) -> gp.ThroughputProfile:
    """Speeds by job type and flavor, for gangs of this size."""
    return gp.ThroughputProfile(
        "speeds",
        [
            gp.Measurement(job_type=job_type, num_gpus=gpus, accelerator=name, steps_per_second=value)
            for job_type, found in speeds.items()
            for name, value in found.items()
        ],
    )


def state(path: Path, items: Sequence[Mapping[str, Any]], **settings: Any) -> gp.KueueState:
    return gp.read_kueue(written(path, items), gp.KueueSettings(**settings))
