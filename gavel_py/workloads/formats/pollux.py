"""Workloads of Pollux (OSDI 2021) and Sia (SOSP 2023): jobs that adapt their batch size or keep the requested one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from gavel_py.errors import InputError, unknown_names
from gavel_py.workloads.intake import FileHead, Intake, TraceFormat, amount, count, table_rows, with_columns

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")

STEPS = {
    "bert": 14774.0,
    "cifar10": 39062.91,
    "deepspeech2": 28536.0,
    "imagenet": 576525.59,
    "ncf": 194174.0,
    "yolov3": 103443.98,
}
"""Steps with the smallest batch until each model reaches its accuracy: the progress at the end of the last epoch, from the
validation files of petuum/adaptdl, branch osdi21-artifact (`throughput_profiles.pollux` has the epochs)."""

CLUSTER_GPUS = 64
"""GPUs of the cluster, all of which a job may use."""

ADAPTIVE = "Jobs adapt their batch size and may run on any number of GPUs; num_replicas and batch_size are not read: {n}."
FIXED = "Jobs keep the number of GPUs and the batch size that are requested: {n}."


def _read(path: Path, intake: Intake, *, adaptive: bool) -> None:
    for where, row in table_rows(path, intake, required=COLUMNS):
        with intake.entry(where):
            model = row["application"]
            InputError.raise_any(unknown_names("", "application", [model], STEPS))
            fields = {"job_id": row["name"], "arrival_seconds": amount(row, "time"), "total_steps": STEPS[model]}
            if adaptive:
                intake.job({**fields, "job_type": model, "max_gpus": CLUSTER_GPUS})
            else:
                job_type = f"{model} (batch size {count(row, 'batch_size')})"
                intake.job({**fields, "job_type": job_type, "num_gpus": count(row, "num_replicas")})
            intake.assume(ADAPTIVE if adaptive else FIXED)


def _never(head: FileHead) -> bool:  # noqa: ARG001
    """Return False: the columns are those of the other format, so this one is selected only by name."""
    return False


FORMAT = TraceFormat(
    "pollux", "workloads of Pollux and Sia, with elastic jobs", with_columns(*COLUMNS), partial(_read, adaptive=True)
)
FIXED_FORMAT = TraceFormat(
    "pollux-fixed", "the same with gangs and batch sizes as requested", _never, partial(_read, adaptive=False)
)
