"""Batch tasks of Alibaba's cluster-trace-v2018, whose names encode workflows: M2_1 is task 2 of its job and waits for task 1.

The columns are task_name, inst_num, job_name, task_type, status, start_time, end_time, plan_cpu, plan_mem, without a header line;
copies with job_name before inst_num are also read: of these two cells, the one that is not a number is the job name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gavel_py.errors import refuse
from gavel_py.io.records import number_of
from gavel_py.workloads.intake import FileHead, Intake, TraceFormat, amount, known_status, run_between, skip_if, table_rows

COLUMNS = ("task_name", "second", "third", "task_type", "status", "start_time", "end_time", "plan_cpu", "plan_mem")

STATUS = {"Terminated": "passed", "Failed": "failed"}
UNFINISHED = {"Waiting", "Running", "Interrupted", "Ready", "Cancelled"}

DAG_NAME = re.compile(r"[A-Za-z]+(\d+)((?:_\d+)*)_?")
"""Letters have no meaning; the first number is the task, the others are the tasks that it waits for."""

ONE_GPU = "Tasks use no GPUs in the trace; each is a job of one GPU: {n}."
ARRIVAL = "Workflows arrive with the first start of one of their tasks, since the trace has no submission times."

Row = tuple[str, Mapping[str, str]]


def _recognises(head: FileHead) -> bool:
    cells = list(head.columns())
    named = len(cells) == len(COLUMNS) and cells[4] in STATUS.keys() | UNFINISHED
    return named and bool(DAG_NAME.fullmatch(cells[0]) or cells[0].startswith("task_"))


def _read(path: Path, intake: Intake) -> None:
    workflows: dict[str, list[Row]] = {}
    for where, row in table_rows(path, intake, columns=COLUMNS):
        with intake.entry(where):
            known_status(row["status"], "status", STATUS, UNFINISHED)
            is_outside = not amount(row, "start_time") or not amount(row, "end_time")
            skip_if((is_outside, "began or ended outside the time of the trace"))
            workflows.setdefault(_job_name(row), []).append((where, row))
    for job_name, rows in workflows.items():
        arrival = min(amount(row, "start_time") for _, row in rows)
        for place, task in rows:
            with intake.entry(place):
                _read_task(job_name, task, arrival, intake)
    if intake.submissions:
        intake.assume(ONE_GPU, len(intake.submissions))
        intake.assume(ARRIVAL)


def _job_name(row: Mapping[str, str]) -> str:
    """Return the job of a task: of two cells, the one that is not a number."""
    names = [row[name] for name in ("second", "third") if not number_of(row[name]) >= 0]
    text = f"must be a name beside a number of instances, found {row['second']!r}, {row['third']!r}"
    refuse("", (len(names) != 1 or not names[0], "job_name", text))
    return names[0]


def _read_task(job_name: str, row: Mapping[str, str], arrival: float, intake: Intake) -> None:
    name = DAG_NAME.fullmatch(row["task_name"])
    parents = [] if name is None else [parent for parent in name[2].split("_") if parent]
    start, end = amount(row, "start_time"), amount(row, "end_time")
    status = STATUS[row["status"]]
    intake.job(
        {
            "job_id": f"{job_name}/{row['task_name'] if name is None else name[1]}",
            "arrival_seconds": arrival,
            "workflow": job_name,
            "depends_on": tuple(f"{job_name}/{parent}" for parent in dict.fromkeys(parents)),
        },
        run_seconds=run_between(start, end, "end_time"),
        status=status,
        failed_attempts=int(status == "failed"),
        labels=(("task", row["task_name"]), ("task_type", row["task_type"])),
    )


FORMAT = TraceFormat("alibaba2018", "batch tasks of Alibaba's cluster-trace-v2018, workflows", _recognises, _read)
