"""The tables of Alibaba's PAI trace (gpu-v2020): a folder of CSV files without header lines.

The tables of jobs and tasks are required; those of instances, machines, group tags and sensors are optional.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError
from gavel_py.workloads.intake import Head, Importer, Intake, SkipError, amount, count, is_missing, table_rows, whole_or_part

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


@dataclass
class Instances:
    """Start and end times of all instances of a job, instances by GPU type, and the most restarts of any worker."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    types: Counter[str] = field(default_factory=Counter)
    retries: int = 0


def pai_rows(path: Path, intake: Intake) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each line, except lines that repeat the column names."""
    if not path.is_file():
        raise InputError(Fault(str(path), "", "is not there; the tables of jobs and tasks are needed"))
    columns = COLUMNS[path.name]
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
    types = _types_of_machines(folder, intake)
    jobs: dict[str, Instances] = defaultdict(Instances)
    for worker, (start, end, machine) in last.items():
        job = jobs[worker[0]]
        job.starts += [start] if start else []
        job.ends += [end] if end else []
        job.retries = max(job.retries, starts[worker] - 1)
        if machine in types:
            job.types[types[machine]] += 1
    return jobs


def _types_of_machines(folder: Path, intake: Intake) -> dict[str, str]:
    """Return {machine: GPU type} of machines with GPUs, empty if the table is absent."""
    path = folder / MACHINES
    if not path.is_file():
        return {}
    return {row["machine"]: row["gpu_type"] for _, row in pai_rows(path, intake) if row["gpu_type"] not in ("", "CPU")}


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


def required_types(folder: Path, intake: Intake) -> dict[str, str]:
    """Return {inst_id: required GPU type} from the table of group tags, empty if it is absent."""
    path = folder / TAGS
    if not path.is_file():
        intake.assume(f"Every job may run on every type of GPU, since {TAGS} is absent.")
        return {}
    rows = pai_rows(path, intake)
    return {row["inst_id"]: row["gpu_type_spec"] for _, row in rows if not is_missing(row["gpu_type_spec"])}


JOBS, TASKS = "pai_job_table.csv", "pai_task_table.csv"

STATUS = {"Terminated": "passed", "Failed": "failed"}

ROUNDED = "Jobs of more than one GPU that is no whole number (sum of inst_num x plan_gpu / 100) get the next larger one: {n}."

JOINED = "Jobs of several instances that ask for less than one GPU together get that part of a single GPU: {n}."


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

    @property
    def one_gpu_each(self) -> bool:
        """Whether each instance uses a single GPU that it shares with no other instance of the job."""
        return self.whole or (self.instances == 1 and self.gpus <= 1)


def _recognises(head: Head) -> bool:
    return {JOBS, TASKS} <= head.inside or head.path.name == JOBS


def _read(path: Path, intake: Intake) -> None:
    folder = path if path.is_dir() else path.parent
    tasks = _tasks_by_job(folder, intake)
    instances = instances_by_job(folder, intake)
    types, memory = required_types(folder, intake), gpu_memory_by_job(folder, intake)
    for where, row in pai_rows(folder / JOBS, intake):
        with intake.entry(where) as entry:
            own = tasks.get(row["job_name"], Tasks())
            fields, recorded = _job(row, own, instances.get(row["job_name"]), intake)
            if required := types.get(row["inst_id"]):
                fields["allowed_accelerators"] = (required,)
            if own.one_gpu_each:
                fields["gpu_memory_gb"] = memory.get(row["job_name"])
            entry.job(fields, **recorded)
            if fields["num_gpus"] > 1 and fields["num_gpus"] != round(own.gpus, 6):
                intake.assume(ROUNDED)
            if fields["num_gpus"] < 1 and own.instances > 1:
                intake.assume(JOINED)


def _job(row: dict[str, str], tasks: Tasks, instances: Instances | None, intake: Intake) -> tuple[dict[str, Any], dict[str, Any]]:
    if not tasks.gpus:
        raise SkipError("asks for no GPU")
    submitted = amount(row, "start_time", 0)
    if not submitted:
        raise SkipError("has no start_time, so its submission is not known")
    if row["status"] not in STATUS:
        raise SkipError(f"had not ended (status {row['status'] or 'empty'})")
    start, end = _run(tasks, instances)
    num_gpus = whole_or_part(tasks.gpus)
    # Machines are preferred to tasks, which call some types MISC.
    types: Mapping[str, float] = (instances.types if instances else {}) or tasks.types
    fields = {
        "job_id": row["job_name"],
        "num_gpus": num_gpus,
        "arrival_seconds": submitted,
        "tenant": row["user"],
        "cpus_per_gpu": tasks.cpus / num_gpus,
        "memory_gb_per_gpu": tasks.memory_gb / num_gpus,
    }
    status = STATUS[row["status"]]
    recorded = {
        "run_seconds": end - start,
        "wait_seconds": intake.wait_between(submitted, start),
        "status": status,
        "failed_attempts": (instances.retries if instances else 0) + int(status == "failed"),
        "accelerator": max(types, key=lambda name: types[name], default=""),
    }
    return fields, recorded


def _run(tasks: Tasks, instances: Instances | None) -> tuple[float, float]:
    """Return the first start and the last end of the instances, or of the tasks if those of the instances are unknown."""
    known = instances if instances and instances.starts and instances.ends else tasks
    if not known.starts or not known.ends:
        raise SkipError("has no task with a start and an end, so its duration is not known")
    start, end = min(known.starts), max(known.ends)
    if end < start:
        raise InputError(Fault("", "end_time", "its tasks end before they start"))
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


IMPORTER = Importer("pai", "Alibaba's PAI tables (gpu-v2020), a folder", _recognises, _read)
