"""Finished Workloads of Kueue: the output of `kubectl get workloads -A -o json`, alone or with other objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gavel_py.errors import faults_from, refuse
from gavel_py.io.reading import document
from gavel_py.workloads.intake import NO_GPU, FileHead, Intake, TraceFormat, required_moment, run_between, skip_if

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
STATUS = {"Succeeded": "passed", "Failed": "failed"}
EVICTED = "Of jobs that were evicted, the earlier stays that Kueue has counted are part of the run: {n} (first: {first})."


def _read(path: Path, intake: Intake) -> None:
    file = document(path)
    items = file.value.get("items") if isinstance(file.value, Mapping) else None
    refuse(str(path), (not isinstance(items, list), "", 'must be the output of kubectl get -o json, with a list "items"'))
    for index, each in enumerate(items or []):
        if isinstance(each, Mapping) and each.get("kind") == "Workload":
            with (
                intake.entry(file.where("items", index)),
                faults_from("", "is not a Workload of Kueue", AttributeError, IndexError, KeyError, TypeError, ValueError),
            ):
                _read_job(each, intake)


def _read_job(each: Mapping[str, Any], intake: Intake) -> None:
    metadata, spec, status = each["metadata"], each["spec"], each.get("status") or {}
    found = {condition["type"]: condition for condition in status.get("conditions") or [] if condition["status"] == "True"}
    skip_if(("Finished" not in found, "had not ended"))
    gpus = sum(_gpus(pods) for pods in spec["podSets"])
    skip_if((not gpus, NO_GPU), ("Admitted" not in found, "never started"))
    created = required_moment(metadata, "creationTimestamp")
    started, ended = (required_moment(found[name], "lastTransitionTime") for name in ("Admitted", "Finished"))
    earlier = float(status.get("accumulatedPastExecutionTimeSeconds") or 0)
    run = run_between(started, ended, "status.conditions") + earlier
    if earlier:
        intake.assume(EVICTED)
    admission = status.get("admission") or {}
    flavors = {
        pods["flavors"][name]
        for pods in admission.get("podSetAssignments") or []
        for name in GPUS
        if name in (pods.get("flavors") or {})
    }
    job_type = ((spec["podSets"][0]["template"].get("metadata") or {}).get("annotations") or {}).get("gavel-py/job-type")
    outcome = STATUS.get(found["Finished"].get("reason", ""), "killed")
    intake.job(
        {
            "job_id": f"{metadata['namespace']}/{metadata['name']}",
            "num_gpus": gpus,
            "arrival_seconds": created,
            "tenant": str(admission.get("clusterQueue", "")),
            **({"job_type": job_type} if job_type else {}),
        },
        run_seconds=run,
        wait_seconds=max(0.0, intake.wait_between(created, ended) - run),
        status=outcome,
        cancelled_seconds=ended if outcome == "killed" else None,
        estimate_seconds=float(spec["maximumExecutionTimeSeconds"]) if spec.get("maximumExecutionTimeSeconds") else None,
        accelerator=flavors.pop() if len(flavors) == 1 else "",
        labels=(("namespace", metadata["namespace"]), ("queue", str(spec.get("queueName", "")))),
    )


def _gpus(pods: Mapping[str, Any]) -> int:
    """Return the GPUs of all pods of a pod set."""
    total = 0
    for container in pods["template"]["spec"].get("containers") or []:
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        total += sum(int(asked[name]) for name in GPUS if name in asked)
    return total * (1 if pods.get("count") is None else int(pods["count"]))


def _recognises(head: FileHead) -> bool:
    return head.is_json and re.search(r'"apiVersion":\s*"kueue\.x-k8s\.io/', head.text) is not None


FORMAT = TraceFormat("kueue", "Kueue, the output of kubectl get workloads -A -o json", _recognises, _read, has_dates=True)
