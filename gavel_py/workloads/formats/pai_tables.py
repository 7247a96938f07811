"""The tables of Alibaba's PAI trace beside those of jobs and tasks, and the columns of all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gavel_py.errors import Fault, InputError
from gavel_py.workloads.intake import Intake, amount, is_missing, table_rows

__all__ = ["Instances", "gpu_memory_by_job", "instances_by_job", "pai_rows", "required_types"]

COLUMNS = {
    "pai_job_table.csv": ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "pai_task_table.csv": (
        "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu", "gpu_type"
    ),
    "pai_instance_table.csv": (
        "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine"
    ),
    "pai_sensor_table.csv": (
        "job_name", "task_name", "worker_name", "inst_id", "machine", "gpu_name", "cpu_usage", "gpu_wrk_util", "avg_mem", "max_mem",
        "avg_gpu_wrk_mem", "max_gpu_wrk_mem", "read", "write", "read_count", "write_count",
    ),
    "pai_machine_spec.csv": ("machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"),
    "pai_group_tag_table.csv": ("inst_id", "user", "gpu_type_spec", "group", "workload"),
}  # fmt: skip
INSTANCES, SENSORS = "pai_instance_table.csv", "pai_sensor_table.csv"
TAGS, MACHINES = "pai_group_tag_table.csv", "pai_machine_spec.csv"

Last = tuple[float, float, str]
"""Start, end and machine of the last line of a worker."""


@dataclass
class Instances:
    """All instances of one job: when they ran, on which types of GPU, and how often one of them was started again."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    types: dict[str, float] = field(default_factory=dict)
    retries: int = 0


def pai_rows(path: Path, intake: Intake) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each line; a line that repeats the names of the columns is passed over."""
    if not path.is_file():
        raise InputError(Fault(str(path), "", "is not there; the tables of jobs and tasks are needed"))
    columns = COLUMNS[path.name]
    for where, row in table_rows(path, intake, columns=columns):
        if row[columns[0]] != columns[0]:
            yield where, row


def instances_by_job(folder: Path, intake: Intake) -> dict[str, Instances]:
    """Return what the table of instances says of each job; nothing where it is absent."""
    path = folder / INSTANCES
    if not path.is_file():
        intake.assume(f"A job ran from the first start to the last end of its tasks, since {INSTANCES} is absent.")
        return {}
    last: dict[tuple[str, str], Last] = {}
    times: dict[tuple[str, str], int] = defaultdict(int)
    for where, row in pai_rows(path, intake):
        key = row["job_name"], row["worker_name"]
        try:
            # A worker that is started again has another line; the last one counts.
            last[key] = amount(row, "start_time", 0), amount(row, "end_time", 0), row["machine"]
        except InputError as error:
            intake.broken(where, *error.faults)
            continue
        times[key] += 1
    return _gathered(last, times, _types_of_machines(folder, intake))


def _gathered(last: dict[tuple[str, str], Last], times: dict[tuple[str, str], int], types: dict[str, str]) -> dict[str, Instances]:
    jobs: dict[str, Instances] = defaultdict(Instances)
    for key, (start, end, machine) in last.items():
        job = jobs[key[0]]
        job.starts.extend([start] if start else [])
        job.ends.extend([end] if end else [])
        job.retries = max(job.retries, times[key] - 1)
        if machine in types:
            job.types[types[machine]] = job.types.get(types[machine], 0) + 1
    return jobs


def _types_of_machines(folder: Path, intake: Intake) -> dict[str, str]:
    """Return the type of GPU in each machine that has some; nothing where the table is absent."""
    path = folder / MACHINES
    if not path.is_file():
        return {}
    return {row["machine"]: row["gpu_type"] for _, row in pai_rows(path, intake) if row["gpu_type"] not in ("", "CPU")}


def gpu_memory_by_job(folder: Path, intake: Intake) -> dict[str, float]:
    """Return the most GPU memory, GB, that any worker of a job ever used, as far as it was recorded; nothing where nothing was."""
    path, most = folder / SENSORS, dict[str, float]()
    if not path.is_file():
        return most
    for where, row in pai_rows(path, intake):
        try:
            used = amount(row, "max_gpu_wrk_mem", 0)
        except InputError as error:
            intake.broken(where, *error.faults)
            continue
        if used:
            most[row["job_name"]] = max(used, most.get(row["job_name"], 0.0))
    return most


def required_types(folder: Path, intake: Intake) -> dict[str, str]:
    """Return the type of GPU that each inst_id asks for, from the table of group tags; nothing where it is absent."""
    path = folder / TAGS
    if not path.is_file():
        intake.assume(f"Every job may run on every type of GPU, since {TAGS} is absent.")
        return {}
    rows = pai_rows(path, intake)
    return {row["inst_id"]: row["gpu_type_spec"] for _, row in rows if not is_missing(row["gpu_type_spec"])}
