"""The table that the simulator of Alibaba's PAI trace (gpu-v2020) reads: one line per job, GPUs per instance."""

from __future__ import annotations

from pathlib import Path

from gavel_py.workloads.intake import Head, Importer, Intake, SkipError, amount, count, is_missing, table_rows, whole_or_part

COLUMNS = ("job_id", "num_gpu", "num_inst", "submit_time", "duration")
ESTIMATES = ("group_gpu_dur", "group_dur", "user_gpu_dur", "user_dur")
"""Columns of expected durations, the most specific first: by group and GPUs, by group, by user and GPUs, by user."""

ROUNDED = "Jobs of more than one GPU that is no whole number (num_inst x num_gpu) get the next larger one: {n}."
JOINED = "Jobs of several instances that ask for less than one GPU together get that part of a single GPU: {n}."


def _recognises(head: Head) -> bool:
    return head.has_columns(*COLUMNS)


def _read(path: Path, intake: Intake) -> None:
    for where, row in table_rows(path, intake, required=COLUMNS):
        with intake.entry(where) as entry:
            instances = count(row, "num_inst", 1)
            requested = amount(row, "num_gpu", 0) * instances
            if not requested:
                raise SkipError("asks for no GPU")
            num_gpus = whole_or_part(requested)
            accelerator = row.get("gpu_type", "")
            entry.job(
                {
                    "job_id": row["job_id"],
                    "num_gpus": num_gpus,
                    "arrival_seconds": amount(row, "submit_time"),
                    "tenant": row.get("user", ""),
                    "cpus_per_gpu": amount(row, "num_cpu", 0) * instances / num_gpus,
                },
                run_seconds=amount(row, "duration"),
                wait_seconds=amount(row, "wait_time", 0) if not is_missing(row.get("wait_time")) else None,
                estimate_seconds=next((amount(row, name) for name in ESTIMATES if not is_missing(row.get(name))), None),
                accelerator="" if accelerator == "CPU" or is_missing(accelerator) else accelerator,
            )
            if num_gpus > 1 and num_gpus != round(requested, 6):
                intake.assume(ROUNDED)
            if num_gpus < 1 and instances > 1:
                intake.assume(JOINED)


IMPORTER = Importer("pai-csv", "the simulator of Alibaba's PAI (gpu-v2020)", _recognises, _read)
