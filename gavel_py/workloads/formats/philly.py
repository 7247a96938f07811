"""Microsoft's Philly trace, as published and in the form of a table.

`LOG_FORMAT` reads cluster_job_log, a JSON list of jobs with their attempts; `TABLE_FORMAT` timestamp, duration, num_gpus,
gpu_time, cluster.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gavel_py.errors import check_type
from gavel_py.io import reading
from gavel_py.workloads.intake import (
    NO_GPU,
    FileHead,
    Intake,
    TraceFormat,
    amount,
    count,
    known_status,
    labels_of,
    moment,
    required_moment,
    run_between,
    skip_if,
    table_rows,
    text,
    with_columns,
    wrong_cell,
)

LOG, MACHINES = "cluster_job_log", "cluster_machine_list"
STATUS = {"Pass": "passed", "Killed": "killed", "Failed": "failed", "": ""}
OPEN_ENDED = "Attempts without a start or an end are ignored: {n}."
TOO_MANY = f"Jobs with more GPUs on a machine than in {MACHINES} keep them, without a recorded type: {{n}} (first: {{first}})."
MIXED = "Jobs on machines with different GPUs have all of them as their recorded type, as in 12GB+24GB: {n} (first: {first})."
UNLISTED = f"Jobs on machines whose GPUs {MACHINES} lacks have no recorded type: {{n}} (first: {{first}})."
RETRIED = "Jobs that ran again on machines with different GPUs have the recorded type of their first attempt: {n} (first: {first})."


class Machine(NamedTuple):
    """A machine of the cluster: its number of GPUs, if known, and the memory of each, such as "24GB"."""

    gpus: int | None
    memory: str


def _recognises(head: FileHead) -> bool:
    has_keys = head.is_json and all(re.search(rf'"{key}"\s*:', head.text) for key in ("attempts", "jobid"))
    return LOG in head.inside or has_keys


def _read(path: Path, intake: Intake) -> None:
    log = path / LOG if path.is_dir() else path
    machines = _machines(log.parent / MACHINES, intake)
    document = reading.json_document(log)
    check_type(f"{log}, line 1", "", document, list, "must be a list of jobs")
    for number, job in enumerate(document, 1):
        with intake.entry(f"{log}, entry {number}"):
            _read_job(job, machines, intake)


def _read_job(job: Any, machines: Mapping[str, Machine], intake: Intake) -> None:
    check_type("", "", job, dict, "must be an object")
    attempts = _list_of(dict, job, "attempts")
    gangs = [_gpus_by_machine(attempt) for attempt in attempts]
    num_gpus = gangs[0].total() if gangs else 0
    skip_if((not num_gpus, "never got a GPU, so its gang size is unknown"))
    arrival = required_moment(job, "submitted_time")
    runs = list(_runs(attempts))
    if len(runs) < len(attempts):
        intake.assume(OPEN_ENDED, len(attempts) - len(runs))
    skip_if((not runs, "has no attempt with a start and an end"))
    status = known_status(text(job, "status"), "status", STATUS)
    intake.job(
        {"job_id": text(job, "jobid"), "num_gpus": num_gpus, "arrival_seconds": arrival, "tenant": text(job, "vc")},
        run_seconds=sum(end - start for start, end in runs),
        wait_seconds=intake.wait_between(arrival, runs[0][0]),
        status=status,
        # An attempt that was followed by another one had failed.
        failed_attempts=len(runs) if status == "failed" else len(runs) - 1,
        cancelled_seconds=runs[-1][1] if status == "killed" else None,
        accelerator=_accelerator(gangs, machines, intake),
        labels=labels_of(job, user="user"),
    )


def _runs(attempts: list[dict[str, Any]]) -> Iterator[tuple[float, float]]:
    for attempt in attempts:
        start, end = moment(attempt, "start_time"), moment(attempt, "end_time")
        if start is not None and end is not None:
            run_between(start, end, "end_time")
            yield start, end


def _list_of(kind: type, record: Mapping[str, Any], field: str) -> list[Any]:
    """Return a list of objects or of texts in a record, empty if it is missing."""
    value = [] if record.get(field) is None else record[field]
    if isinstance(value, list) and all(isinstance(item, kind) for item in value):
        return value
    raise wrong_cell(field, f"must be a list of {'objects' if kind is dict else 'texts'}", value)


def _gpus_by_machine(attempt: Mapping[str, Any]) -> Counter[str]:
    """Return {machine: number of GPUs} of an attempt."""
    gpus: Counter[str] = Counter()
    for machine in _list_of(dict, attempt, "detail"):
        gpus[text(machine, "ip")] += len(_list_of(str, machine, "gpus"))
    return gpus


def _accelerator(gangs: list[Counter[str]], machines: Mapping[str, Machine], intake: Intake) -> str:
    """Return the memory of the GPUs of the first attempt, "" if it is unknown; gangs: {machine: GPUs} of each attempt."""
    if not machines:
        return ""
    first, *later = [{machines[name].memory if name in machines else "" for name in +gang} for gang in gangs]
    if "" in first:
        intake.assume(UNLISTED)
        return ""
    if any(gpus > (machines[name].gpus or gpus) for name, gpus in (+gangs[0]).items()):
        intake.assume(TOO_MANY)
        return ""
    if len(first) > 1:
        intake.assume(MIXED)
    elif any(kinds - first for kinds in later):
        intake.assume(RETRIED)
    return "+".join(sorted(first))


def _machines(path: Path, intake: Intake) -> dict[str, Machine]:
    """Return {name: machine}; the trace distinguishes GPU types only by memory."""
    if not path.is_file():
        intake.assume(f"The GPU types on which jobs ran are unknown, since there is no {MACHINES} beside the log.")
        return {}
    # The column names vary; the first column is the machine, the second its number of GPUs, and the third the memory of each.
    rows = table_rows(path, intake, columns=("machine", "gpus", "memory"))
    return {
        row["machine"]: Machine(int(row["gpus"]) if re.fullmatch(r"[0-9]{1,4}", row["gpus"]) else None, row["memory"])
        for _, row in rows
        if re.fullmatch(r"\d+ *GB", row["memory"])
    }


LOG_FORMAT = TraceFormat("philly", "Microsoft's Philly, the JSON cluster_job_log", _recognises, _read, has_dates=True)


COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
DUPLICATES = "Duplicate lines count as separate jobs: {n}."


def _read_table(path: Path, intake: Intake) -> None:
    seen: set[int] = set()
    for number, (where, row) in enumerate(table_rows(path, intake, required=COLUMNS), 1):
        with intake.entry(where):
            num_gpus = count(row, "num_gpus")
            skip_if((not num_gpus, NO_GPU))
            job = {"job_id": str(number), "num_gpus": num_gpus, "arrival_seconds": required_moment(row, "timestamp")}
            intake.job(job | {"tenant": row["cluster"]}, run_seconds=amount(row, "duration"))
            key = hash(tuple(row.values()))
            if key in seen:
                intake.assume(DUPLICATES)
            seen.add(key)


TABLE_FORMAT = TraceFormat("philly-csv", "Microsoft's Philly as a table", with_columns(*COLUMNS), _read_table, has_dates=True)
