"""Finished Workloads of Kueue as a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gavel_py as gp


def workload(name: str, **changes: Any) -> dict[str, Any]:
    """A Workload with 2 pods of 4 GPUs that has waited 10 minutes and run for 50."""
    container = {"resources": {"requests": {"nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "4"}}}
    template = {"metadata": {"annotations": {"gavel-py/job-type": "train"}}, "spec": {"containers": [container]}}
    stamps = {"QuotaReserved": "00:10:00", "Admitted": "00:10:00", "Finished": "01:00:00"}
    conditions = [
        {"type": each, "status": "True", "reason": "Succeeded", "lastTransitionTime": f"2026-01-01T{at}Z"}
        for each, at in stamps.items()
    ]
    assigned = [{"name": "main", "count": 2, "flavors": {"nvidia.com/gpu": "h100"}, "resourceUsage": {"nvidia.com/gpu": "8"}}]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "queueName": "main",
            "maximumExecutionTimeSeconds": 7200,
            "podSets": [{"name": "main", "count": 2, "template": template}],
        },
        "status": {"admission": {"clusterQueue": "research", "podSetAssignments": assigned}, "conditions": conditions} | changes,
    }


def read(path: Path, *items: Any) -> gp.Trace:
    file = path / "workloads.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return gp.read_trace(file)


def test_a_finished_workload_is_a_job(tmp_path: Path) -> None:
    (found,) = read(tmp_path, workload("one"))
    assert (found.job.job_id, found.job.job_type, found.job.num_gpus, found.job.tenant) == ("team/one", "train", 8, "research")
    assert (found.run_seconds, found.wait_seconds, found.status, found.accelerator) == (3000.0, 600.0, "passed", "h100")
    assert found.estimate_seconds == 7200.0
    assert dict(found.labels) == {"namespace": "team", "queue": "main"}


def test_stays_before_an_eviction_are_part_of_the_run(tmp_path: Path) -> None:
    (found,) = read(tmp_path, workload("one", accumulatedPastExecutionTimeSeconds=240))
    assert (found.run_seconds, found.wait_seconds) == (3240.0, 360.0)


def test_what_has_not_finished_and_other_objects_are_left_out(tmp_path: Path) -> None:
    waits, odd = workload("waits", conditions=[]), workload("odd")
    odd["spec"]["podSets"] = 3
    trace = read(tmp_path, {"kind": "Job", "apiVersion": "batch/v1"}, workload("one"), waits, odd)
    assert [each.job.job_id for each in trace] == ["team/one"]
    assert trace.report.skipped[0].reason == "had not ended"
    (fault,) = trace.report.faults
    assert "items[3]" in fault.where
    assert "is not a Workload of Kueue" in fault.problem


def test_a_failed_one_and_another_end(tmp_path: Path) -> None:
    items = [workload("failed"), workload("removed")]
    for each, reason in zip(items, ("Failed", "OutOfSync"), strict=True):
        each["status"]["conditions"][-1]["reason"] = reason
    assert [each.status for each in read(tmp_path, *items)] == ["failed", "killed"]


def test_a_file_without_a_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "workloads.json"
    file.write_text("[1]")
    with pytest.raises(gp.InputError, match="must be the output of kubectl get"):
        gp.read_trace(file, format="kueue")
