"""Microsoft's Philly trace, as published and in the form of a table.

`LOG_FORMAT` reads cluster_job_log, a JSON list of jobs with their attempts; `TABLE_FORMAT` timestamp, duration, num_gpus,
gpu_time, cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.io import reading
from gavel_py.workloads.intake import (
    Head,
    Intake,
    SkipError,
    TraceFormat,
    amount,
    count,
    is_missing,
    labels_of,
    moment,
    required_moment,
    run_between,
    table_rows,
    with_columns,
)

LOG, MACHINES = "cluster_job_log", "cluster_machine_list"
STATUS = {"Pass": "passed", "Killed": "killed", "Failed": "failed"}
OPEN_ENDED = "Attempts without a start or an end are ignored: {n}."


def _recognises(head: Head) -> bool:
    has_keys = head.is_json and all(re.search(rf'"{key}"\s*:', head.text) for key in ("attempts", "jobid"))
    return LOG in head.inside or has_keys


def _read(path: Path, intake: Intake) -> None:
    log = path / LOG if path.is_dir() else path
    memory = _memory_of_machines(log.parent / MACHINES, intake)
    document = reading.json_document(log)
    if not isinstance(document, list):
        raise InputError(Fault(f"{log}, line 1", "", "must be a list of jobs"))
    for number, job in enumerate(document, 1):
        with intake.entry(f"{log}, entry {number}"):
            _read_job(job, memory, intake)


def _read_job(job: Any, memory: Mapping[str, str], intake: Intake) -> None:
    if not isinstance(job, dict):
        raise InputError(Fault("", "", f"must be an object, found {type(job).__name__}"))
    attempts = _objects(job.get("attempts") or [], "attempts")
    detail = _objects(attempts[0].get("detail") or [], "detail") if attempts else []
    num_gpus = sum(len(machine.get("gpus") or ()) for machine in detail)
    if not num_gpus:
        raise SkipError("never got a GPU, so its gang size is unknown")
    arrival = required_moment(job, "submitted_time")
    runs = list(_runs(attempts))
    if len(runs) < len(attempts):
        intake.assume(OPEN_ENDED, len(attempts) - len(runs))
    if not runs:
        raise SkipError("has no attempt with a start and an end")
    status = _status(job)
    tenant = "" if is_missing(job.get("vc")) else job["vc"]
    intake.job(
        {"job_id": job.get("jobid"), "num_gpus": num_gpus, "arrival_seconds": arrival, "tenant": tenant},
        run_seconds=sum(end - start for start, end in runs),
        wait_seconds=intake.wait_between(arrival, runs[0][0]),
        status=status,
        # An attempt that was followed by another one had failed.
        failed_attempts=len(runs) if status == "failed" else len(runs) - 1,
        cancelled_seconds=runs[-1][1] if status == "killed" else None,
        accelerator=memory.get(str(detail[0].get("ip")), ""),
        labels=labels_of(job, user="user"),
    )


def _runs(attempts: list[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    for attempt in attempts:
        start, end = moment(attempt, "start_time"), moment(attempt, "end_time")
        if start is not None and end is not None:
            run_between(start, end, "end_time")
            yield start, end


def _status(job: Mapping[str, Any]) -> str:
    status = job.get("status")
    if is_missing(status):
        return ""
    if status not in STATUS:
        raise InputError(Fault("", "status", f"must be one of {', '.join(STATUS)}, found {status!r}"))
    return STATUS[status]


def _objects(value: Any, field: str) -> list[dict[str, Any]]:
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise InputError(Fault("", field, "must be a list of objects"))


def _memory_of_machines(path: Path, intake: Intake) -> dict[str, str]:
    """Return {machine: memory of one GPU, such as "24GB"}; the trace distinguishes GPU types only by memory."""
    if not path.is_file():
        intake.assume(f"The GPU types on which jobs ran are unknown, since there is no {MACHINES} beside the log.")
        return {}
    # The column names vary; the first column is the machine and the third the memory.
    rows = table_rows(path, intake, columns=("machine", "gpus", "memory"))
    return {row["machine"]: row["memory"] for _, row in rows if re.fullmatch(r"\d+ *GB", row["memory"])}


LOG_FORMAT = TraceFormat("philly", "Microsoft's Philly, the JSON cluster_job_log", _recognises, _read, has_dates=True)


COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
DUPLICATES = "Duplicate lines count as separate jobs: {n}."


def _read_table(path: Path, intake: Intake) -> None:
    seen: set[int] = set()
    for number, (where, row) in enumerate(table_rows(path, intake, required=COLUMNS), 1):
        with intake.entry(where):
            num_gpus = count(row, "num_gpus")
            if not num_gpus:
                raise SkipError("asks for no GPU")
            job = {"job_id": str(number), "num_gpus": num_gpus, "arrival_seconds": required_moment(row, "timestamp")}
            intake.job(job | {"tenant": row["cluster"]}, run_seconds=amount(row, "duration"))
            key = hash(tuple(row.values()))
            if key in seen:
                intake.assume(DUPLICATES)
            seen.add(key)


TABLE_FORMAT = TraceFormat("philly-csv", "Microsoft's Philly as a table", with_columns(*COLUMNS), _read_table, has_dates=True)
