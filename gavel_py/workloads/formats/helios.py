"""SenseTime's Helios trace: cluster_log.csv."""

from __future__ import annotations

from pathlib import Path

from gavel_py.workloads.intake import (
    NO_GPU,
    Intake,
    TraceFormat,
    amount,
    contradicts,
    count,
    host_requests,
    known_status,
    labels_of,
    moment,
    required_moment,
    run_between,
    skip_if,
    table_rows,
    with_columns,
)

COLUMNS = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
STATUS = {"COMPLETED": "passed", "CANCELLED": "killed", "TIMEOUT": "killed", "FAILED": "failed", "NODE_FAIL": "failed"}
DURATION = "Where duration differs from end_time - start_time, duration is used: {n}."


def _read(path: Path, intake: Intake) -> None:
    for where, row in table_rows(path, intake, required=COLUMNS):
        with intake.entry(where):
            num_gpus = count(row, "gpu_num")
            skip_if((not num_gpus, NO_GPU))
            submitted, started, ended = required_moment(row, "submit_time"), moment(row, "start_time"), moment(row, "end_time")
            status = known_status(row["state"], "state", STATUS, {"SUSPENDED"})
            skip_if(("start_time" in row and started is None, "never started"))
            run = amount(row, "duration")
            if started is not None and ended is not None:
                run_between(started, ended, "end_time")
            intake.job(
                {
                    "job_id": row["job_id"],
                    "num_gpus": num_gpus,
                    "arrival_seconds": submitted,
                    "tenant": row["vc"],
                    **host_requests(num_gpus, amount(row, "cpu_num", 0)),
                },
                run_seconds=run,
                wait_seconds=None if started is None else intake.wait_between(submitted, started),
                status=status,
                failed_attempts=int(status == "failed"),
                cancelled_seconds=ended if status == "killed" else None,
                labels=labels_of(row, user="user"),
            )
            if contradicts(run, started, ended):
                intake.assume(DURATION)


FORMAT = TraceFormat("helios", "SenseTime's Helios, cluster_log.csv", with_columns(*COLUMNS), _read, has_dates=True)
