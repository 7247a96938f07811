"""What it is worth that jobs are elastic, on the workloads of Sia (SOSP 2023), beside its published times.

    python benchmarks/elastic_traces.py --traces FOLDER [FOLDER] --workloads FOLDER [--write]

The data are not part of gavel-py. --traces: the tables of step times and gradient statistics of siasosp23/artifacts
(sia-simulator/traces), or several folders that have them together; --workloads: workload-1.csv to workload-4.csv of
sia-simulator/workloads/philly. Takes about five minutes; --write puts the table into benchmarks/RESULTS.md.

The cluster, the cost of restarts and the slowdowns are those of Sia's simulator.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tables

import gavel_py as gp

NODES = {"t4": (4, 6), "aws": (4, 6), "dgx-ext": (8, 2), "rtx": (8, 3)}
"""GPUs of a node and nodes of each type: T4 (t4 in the tables of Pollux, aws in Sia's), A100, 2080Ti."""

RESTART_SECONDS = {"cifar10": 50, "deepspeech2": 25, "bert": 120, "yolov3": 80, "imagenet": 250}
SLOWDOWNS = {"cifar10": 1.8, "deepspeech2": 1.2, "bert": 1.2, "yolov3": 1.2, "imagenet": 1.2}
"""How much longer steps took on Sia's cluster than in the tables."""

WORKLOADS = (1, 2, 3, 4)

Change = Callable[[gp.Job], gp.Job]


def model_of(job_type: str) -> str:
    return job_type.partition(" (")[0]


def profile_of(folders: list[Path]) -> gp.ThroughputProfile:
    """Return the tables of all folders as one profile, with the slowdowns."""
    with tempfile.TemporaryDirectory() as name:
        for file in (file for folder in folders for file in sorted(folder.glob("*/*.csv")) if file.parent.name in SLOWDOWNS):
            (Path(name) / file.parent.name).mkdir(exist_ok=True)
            (Path(name) / file.parent.name / file.name).symlink_to(file.resolve())
        found = gp.ThroughputProfile.from_file(name, "sia", format="pollux")
    rows = [
        row.model_copy(update={"steps_per_second": row.steps_per_second / SLOWDOWNS[model_of(row.job_type)]})
        for row in found.measurements
    ]
    return gp.ThroughputProfile("sia", rows)


def cluster_of(profile: gp.ThroughputProfile) -> gp.Cluster:
    return gp.Cluster(
        [
            gp.Node(name=f"{accelerator}-{n}", accelerator=accelerator, num_gpus=NODES[accelerator][0])
            for accelerator in profile.accelerators
            for n in range(NODES[accelerator][1])
        ]
    )


def adaptive(job: gp.Job) -> gp.Job:
    return job


def batch_size_kept(job: gp.Job) -> gp.Job:
    """A job as requested, with the number of GPUs to choose."""
    return gp.Job(
        job.job_id, job_type=job.job_type, min_gpus=1, max_gpus=64, total_steps=job.total_steps, arrival_seconds=job.arrival_seconds
    )


SETTINGS: list[tuple[str, tuple[str, Change, str, float, bool]]] = [
    ("`direct`, elastic, rounds of 60 s", ("pollux", adaptive, "direct", 60, False)),
    ("`direct`, elastic with the batch sizes requested", ("pollux-fixed", batch_size_kept, "direct", 60, False)),
    ("`direct`, gangs as requested, rounds of 60 s", ("pollux-fixed", adaptive, "direct", 60, False)),
    ("`max_min_fairness`, elastic, rounds of 360 s", ("pollux", adaptive, "deficit", 360, False)),
    ("the same with starts between rounds", ("pollux", adaptive, "deficit", 360, True)),
    ("`max_min_fairness`, gangs as requested, rounds of 360 s", ("pollux-fixed", adaptive, "deficit", 360, False)),
    ("the same with starts between rounds", ("pollux-fixed", adaptive, "deficit", 360, True)),
    ("gangs as requested with the published mechanism (`priority`)", ("pollux-fixed", adaptive, "priority", 360, False)),
]
"""Name, format of the workloads, change of their jobs, mechanism, length of a round, and whether gangs start between rounds."""


def played(
    workload: Path, profile: gp.ThroughputProfile, form: str, change: Change, mechanism: str, seconds: float, between: bool
) -> list[float]:
    """Return mean completion time in hours, restarts and GPU-hours per job."""
    jobs = [
        change(job).model_copy(update={"restart_seconds": RESTART_SECONDS[model_of(job.job_type)]})
        for job in gp.read_trace(workload, format=form).jobs
        if model_of(job.job_type) in SLOWDOWNS
    ]
    cluster = cluster_of(profile)
    run = gp.simulate(jobs, cluster, profile, mechanism=mechanism, round_seconds=seconds, starts_between_rounds=between)
    records = list(run.jobs.values())
    times = [record.jct_seconds for record in records if record.jct_seconds is not None]
    assert len(times) == len(jobs)
    restarts, gpu_seconds = ([getattr(record, name) for record in records] for name in ("starts", "gpu_seconds"))
    return [float(np.mean(times)) / 3600, float(np.mean(restarts)) - 1, float(np.mean(gpu_seconds)) / 3600]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, nargs="+", required=True)
    parser.add_argument("--workloads", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    asked = parser.parse_args()
    profile = profile_of(asked.traces)
    rows: list[list[object]] = [["Sia, as published (SOSP 2023, table 3)", "0.6 ± 0.1", None, 4.0]]
    for name, setting in SETTINGS:
        files = [asked.workloads / f"workload-{n}.csv" for n in WORKLOADS]
        each = [played(file, profile, *setting) for file in files]
        rows.append([name, *(f"{value:.{digits}f}" for value, digits in zip(np.mean(each, axis=0), (2, 1, 1), strict=True))])
        print(rows[-1], flush=True)
    text = tables.markdown(["", "mean completion time, h", "restarts per job", "GPU-hours per job"], rows)
    print(text)
    if asked.write:
        tables.write("elastic_traces", text)


if __name__ == "__main__":
    main()
