"""Pods of Alibaba's openb trace (gpu-v2023)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from gavel_py.workloads.intake import (
    NO_GPU,
    Intake,
    TraceFormat,
    amount,
    count,
    host_requests,
    is_missing,
    labels_of,
    requested_types,
    run_between,
    skip_if,
    table_rows,
    with_columns,
)

COLUMNS = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
STATUS = {"Succeeded": "passed", "Failed": "failed"}
GB_PER_MIB = 2**20 / 1e9
SEVERAL = "Pods that requested fractions of several GPUs (gpu_milli below 1000) get whole GPUs: {n}."
RUNNING = "Pods still in phase Running are treated as ended at their deletion_time: {n}."
CUT_OFF = "Pods still Running at the last deletion_time of the trace may have run longer than recorded in the trace: {n}."


def _read(path: Path, intake: Intake) -> None:
    ends: Counter[float] = Counter()  # {deletion_time: pods in phase Running}
    for where, row in table_rows(path, intake, required=COLUMNS):
        with intake.entry(where):
            gpus, part = count(row, "num_gpu", 0), amount(row, "gpu_milli", 1000) / 1000
            num_gpus = part if gpus == 1 and part < 1 else gpus
            skip_if(
                (not gpus, NO_GPU),
                (is_missing(row["scheduled_time"]), "was never scheduled, so its duration is unknown"),
                (is_missing(row["deletion_time"]), "had not ended (no deletion_time)"),
            )
            scheduled, created, deleted = (amount(row, name) for name in ("scheduled_time", "creation_time", "deletion_time"))
            run = run_between(scheduled, deleted, "deletion_time")
            wait = run_between(created, scheduled, "scheduled_time")
            status = STATUS.get(row.get("pod_phase", ""), "")
            intake.job(
                {"job_id": row["name"], "num_gpus": num_gpus, "arrival_seconds": created, **_requests(row, num_gpus)},
                run_seconds=run,
                wait_seconds=wait,
                status=status,
                failed_attempts=int(status == "failed"),
                labels=labels_of(row, qos="qos"),
            )
            ends[deleted] += row.get("pod_phase") == "Running"
            if gpus > 1 and part < 1:
                intake.assume(SEVERAL)
    if still_running := ends.total():
        intake.assume(RUNNING, still_running)
    if ends and (running_at_end := ends[max(ends)]):
        intake.assume(CUT_OFF, running_at_end)


def _requests(row: dict[str, str], num_gpus: float) -> dict[str, Any]:
    """Return the fields of `Job` for CPUs, memory and GPU models."""
    requests = host_requests(num_gpus, amount(row, "cpu_milli", 0) / 1000, amount(row, "memory_mib", 0) * GB_PER_MIB)
    return requests | requested_types(row.get("gpu_spec", "").split("|"))


FORMAT = TraceFormat("openb", "Alibaba's openb pods (gpu-v2023)", with_columns(*COLUMNS), _read)
