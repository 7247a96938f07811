"""Alibaba's PAI trace (gpu-v2020), as published and in the form that its simulator reads.

`FORMAT` reads a folder of CSV files without header lines: the tables of jobs and tasks are required; those of instances,
machines, group tags and sensors are optional. `SIMULATOR_FORMAT` reads a table with one line per job, GPUs per instance.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gavel_py.errors import InputError, refuse
from gavel_py.workloads.intake import (
    NO_GPU,
    FileHead,
    Intake,
    TraceFormat,
    amount,
    count,
    host_requests,
    is_missing,
    labels_of,
    requested_types,
    skip_if,
    table_rows,
    with_columns,
)
from gavel_py.workloads.submission import Labels

TABLES = {
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

JOBS, TASKS, INSTANCES = "pai_job_table.csv", "pai_task_table.csv", "pai_instance_table.csv"
SENSORS, MACHINES, TAGS = "pai_sensor_table.csv", "pai_machine_spec.csv", "pai_group_tag_table.csv"


@dataclass
class Instances:
    """Start and end times of all instances of a job, instances by GPU type, and the most restarts of any worker."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    types: Counter[str] = field(default_factory=Counter)
    retries: int = 0


def pai_rows(path: Path, intake: Intake) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each line, except lines that repeat the column names."""
    refuse(str(path), (not path.is_file(), "", "is missing; the tables of jobs and tasks are required"))
    columns = TABLES[path.name]
    for where, row in table_rows(path, intake, columns=columns):
        if row[columns[0]] != columns[0]:
            yield where, row


def instances_by_job(folder: Path, intake: Intake) -> dict[str, Instances]:
    """Return {job name: its instances}, empty if the table of instances is absent."""
    path = folder / INSTANCES
    if not path.is_file():
        intake.assume(f"A job ran from the first start to the last end of its tasks, since {INSTANCES} is absent.")
        return {}
    last: dict[tuple[str, str], tuple[float, float, str]] = {}  # start, end and machine of a worker's last line
    starts: Counter[tuple[str, str]] = Counter()
    for where, row in pai_rows(path, intake):
        worker = row["job_name"], row["worker_name"]
        try:
            # A worker has one line per start; the last line replaces the earlier ones.
            last[worker] = amount(row, "start_time", 0), amount(row, "end_time", 0), row["machine"]
        except InputError as error:
            intake.broken(where, *error.faults)
            continue
        starts[worker] += 1
    types: dict[str, str] = {}  # GPU type of machines with GPUs
    if (folder / MACHINES).is_file():
        machines = pai_rows(folder / MACHINES, intake)
        types = {row["machine"]: row["gpu_type"] for _, row in machines if row["gpu_type"] not in ("", "CPU")}
    jobs: dict[str, Instances] = defaultdict(Instances)
    for worker, (start, end, machine) in last.items():
        job = jobs[worker[0]]
        job.starts += [start] if start else []
        job.ends += [end] if end else []
        job.retries = max(job.retries, starts[worker] - 1)
        if machine in types:
            job.types[types[machine]] += 1
    return jobs


def gpu_memory_by_job(folder: Path, intake: Intake) -> dict[str, float]:
    """Return {job name: largest recorded GPU memory of any worker, in GB}, empty if the table of sensors is absent."""
    path, peak = folder / SENSORS, dict[str, float]()
    if not path.is_file():
        return peak
    for where, row in pai_rows(path, intake):
        try:
            used = amount(row, "max_gpu_wrk_mem", 0)
        except InputError as error:
            intake.broken(where, *error.faults)
            continue
        if used:
            peak[row["job_name"]] = max(used, peak.get(row["job_name"], 0.0))
    return peak


def tags_by_instance(folder: Path, intake: Intake) -> dict[str, tuple[str, Labels]]:
    """Return {inst_id: (required GPU type or "", labels)} from the table of group tags, empty if it is absent."""
    path = folder / TAGS
    if not path.is_file():
        intake.assume(f"Every job may run on every type of GPU, since {TAGS} is absent.")
        return {}
    tags = {}
    for _, row in pai_rows(path, intake):
        required = "" if is_missing(row["gpu_type_spec"]) else row["gpu_type_spec"]
        tags[row["inst_id"]] = required, labels_of(row, group="group", workload="workload")
    return tags


STATUS = {"Terminated": "passed", "Failed": "failed"}
ROUNDED = "Jobs with more than one GPU but not a whole number ({sum}) get the next larger number: {n}."
JOINED = "Jobs of several instances that request less than one GPU together get that fraction of a single GPU: {n}."


@dataclass
class Tasks:
    """Resource requests and run times of all tasks of a job with GPUs.

    instances: number of instances with GPUs; whole: whether each of them has exactly one GPU; types: GPUs by GPU type.
    """

    gpus: float = 0.0
    instances: int = 0
    whole: bool = True
    cpus: float = 0.0
    memory_gb: float = 0.0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    types: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def _recognises(head: FileHead) -> bool:
    return {JOBS, TASKS} <= head.inside or head.path.name == JOBS


def _read(path: Path, intake: Intake) -> None:
    folder = path if path.is_dir() else path.parent
    tasks = _tasks_by_job(folder, intake)
    instances = instances_by_job(folder, intake)
    tags, memory = tags_by_instance(folder, intake), gpu_memory_by_job(folder, intake)
    for where, row in pai_rows(folder / JOBS, intake):
        with intake.entry(where):
            own = tasks.get(row["job_name"], Tasks())
            required, labels = tags.get(row["inst_id"], ("", ()))
            limits = requested_types([required])
            if own.whole or (own.instances == 1 and own.gpus <= 1):  # each instance has a single GPU to itself
                limits["gpu_memory_gb"] = memory.get(row["job_name"])
            _read_job(row, own, instances.get(row["job_name"]), limits, labels, intake)
            _assume_gang(intake, own.gpus, own.instances, "sum of inst_num x plan_gpu / 100")


def _gang(gpus: float) -> float:
    """Return the GPUs of a job that requests `gpus` in total: a fraction below 1 unchanged, otherwise rounded up."""
    requested = round(gpus, 6)  # a sum of fractions
    return requested if requested < 1 else math.ceil(requested)


def _assume_gang(intake: Intake, gpus: float, instances: int, total: str) -> None:
    """Record how `_gang` changed the GPUs of a job of several instances; total: the formula for the sum of its GPUs."""
    if _gang(gpus) > 1 and _gang(gpus) != round(gpus, 6):
        intake.assume(ROUNDED.replace("{sum}", total))
    if _gang(gpus) < 1 and instances > 1:
        intake.assume(JOINED)


def _read_job(
    row: dict[str, str], tasks: Tasks, instances: Instances | None, limits: dict[str, Any], labels: Labels, intake: Intake
) -> None:
    """Add a job; limits: further fields of `Job`."""
    skip_if((not tasks.gpus, NO_GPU))
    submitted = amount(row, "start_time", 0)
    skip_if(
        (not submitted, "has no start_time, so its submission time is unknown"),
        (row["status"] not in STATUS, f"had not ended (status {row['status'] or 'empty'})"),
    )
    start, end = _run(tasks, instances)
    num_gpus = _gang(tasks.gpus)
    # GPU types of machines are preferred to those of tasks, which call some types MISC.
    types: Mapping[str, float] = (instances.types if instances else {}) or tasks.types
    status = STATUS[row["status"]]
    fields = {
        "job_id": row["job_name"],
        "num_gpus": num_gpus,
        "arrival_seconds": submitted,
        "tenant": row["user"],
        **host_requests(num_gpus, tasks.cpus, tasks.memory_gb),
    }
    intake.job(
        fields | limits,
        run_seconds=end - start,
        wait_seconds=intake.wait_between(submitted, start),
        status=status,
        failed_attempts=(instances.retries if instances else 0) + int(status == "failed"),
        accelerator=max(types, key=lambda name: types[name], default=""),
        labels=labels,
    )


def _run(tasks: Tasks, instances: Instances | None) -> tuple[float, float]:
    """Return the first start and the last end of the instances, or of the tasks if those of the instances are unknown."""
    known = instances if instances and instances.starts and instances.ends else tasks
    skip_if((not known.starts or not known.ends, "has no task with a start and an end, so its duration is unknown"))
    start, end = min(known.starts), max(known.ends)
    refuse("", (end < start, "end_time", "its tasks end before they start"))
    return start, end


def _tasks_by_job(folder: Path, intake: Intake) -> dict[str, Tasks]:
    jobs: dict[str, Tasks] = defaultdict(Tasks)
    for where, row in pai_rows(folder / TASKS, intake):
        try:
            _add(jobs[row["job_name"]], row)
        except InputError as error:
            intake.broken(where, *error.faults)
    return jobs


def _add(job: Tasks, row: dict[str, str]) -> None:
    instances, gpus = count(row, "inst_num", 1), amount(row, "plan_gpu", 0) / 100
    if not gpus:
        return  # a parameter server or evaluator
    job.gpus += instances * gpus
    job.instances += instances
    job.whole = job.whole and gpus == 1
    job.cpus += instances * amount(row, "plan_cpu", 0) / 100
    job.memory_gb += instances * amount(row, "plan_mem", 0)
    start, end = amount(row, "start_time", 0), amount(row, "end_time", 0)
    job.starts += [start] if start else []
    job.ends += [end] if end else []
    if not is_missing(row["gpu_type"]):
        job.types[row["gpu_type"]] += instances * gpus


FORMAT = TraceFormat("pai", "Alibaba's PAI tables (gpu-v2020), a folder", _recognises, _read)


COLUMNS = ("job_id", "num_gpu", "num_inst", "submit_time", "duration")
ESTIMATES = ("group_gpu_dur", "group_dur", "user_gpu_dur", "user_dur")
"""Columns of expected durations, the most specific first: by group and GPUs, by group, by user and GPUs, by user."""


def _read_simulator(path: Path, intake: Intake) -> None:
    for where, row in table_rows(path, intake, required=COLUMNS):
        with intake.entry(where):
            instances = count(row, "num_inst", 1)
            requested = amount(row, "num_gpu", 0) * instances
            skip_if((not requested, NO_GPU))
            num_gpus = _gang(requested)
            accelerator = row.get("gpu_type", "")
            intake.job(
                {
                    "job_id": row["job_id"],
                    "num_gpus": num_gpus,
                    "arrival_seconds": amount(row, "submit_time"),
                    "tenant": row.get("user", ""),
                    **host_requests(num_gpus, amount(row, "num_cpu", 0) * instances),
                },
                run_seconds=amount(row, "duration"),
                wait_seconds=amount(row, "wait_time", 0) if not is_missing(row.get("wait_time")) else None,
                estimate_seconds=next((amount(row, name) for name in ESTIMATES if not is_missing(row.get(name))), None),
                accelerator="" if accelerator == "CPU" or is_missing(accelerator) else accelerator,
                labels=labels_of(row, group="group"),
            )
            _assume_gang(intake, requested, instances, "num_inst x num_gpu")


SIMULATOR_FORMAT = TraceFormat("pai-csv", "the simulator of Alibaba's PAI (gpu-v2020)", with_columns(*COLUMNS), _read_simulator)
