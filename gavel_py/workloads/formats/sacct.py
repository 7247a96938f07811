"""Slurm's accounting: the output of `sacct --parsable2`, with its header line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gavel_py.errors import Fault, InputError, nearest
from gavel_py.workloads.cells import is_missing, moment, required_moment, run_between
from gavel_py.workloads.formats.importer import Importer
from gavel_py.workloads.formats.slurm_cells import gpus_of, length_of
from gavel_py.workloads.heads import Head
from gavel_py.workloads.intake import Intake, SkipError
from gavel_py.workloads.tables import table_rows

__all__ = ["IMPORTER"]

COLUMNS = ("JobID", "Submit", "State")
STATUS = {
    "COMPLETED": "passed",
    "CANCELLED": "killed",
    "TIMEOUT": "killed",
    "DEADLINE": "killed",
    "PREEMPTED": "killed",
    "REVOKED": "killed",
    "FAILED": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
}
UNFINISHED = {"PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED", "CONFIGURING", "COMPLETING"}

Latest = dict[str, tuple[str, dict[str, str], int, float]]
"""By job id: place and cells of its last record, how many came before it, and the seconds that these ran."""


def _recognises(head: Head) -> bool:
    return head.has_columns(*COLUMNS, separator="|")


def _read(path: Path, intake: Intake) -> None:
    records: Latest = {}
    for where, row in table_rows(path, intake, required=COLUMNS, separator="|"):
        if _is_step(row["JobID"]):
            intake.skip(where, "is a step, part of a job that has a line of its own")
            continue
        # With --duplicates a job that was started again has a line for each start; the last one tells how it ended.
        place, earlier, count, seconds = records.get(row["JobID"], (where, None, 0, 0.0))
        if earlier is not None:
            intake.skip(place, "is a start of a job that was started again later; it counts as an attempt that failed")
            count, seconds = count + 1, seconds + (_seconds(earlier) or 0.0)
        records[row["JobID"]] = (where, row, count, seconds)
    for where, row, earlier_starts, earlier_seconds in records.values():
        with intake.entry(where) as entry:
            fields, recorded = _job(row, earlier_starts, earlier_seconds)
            entry.job(fields, **recorded)


def _is_step(job_id: str) -> bool:
    return "." in job_id


def _job(row: Mapping[str, str], earlier_starts: int, earlier_seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    gpus, kind = gpus_of(row)
    if not gpus:
        raise SkipError("asks for no GPU")
    status = _status(row["State"])
    submitted, started, ended = required_moment(row, "Submit"), moment(row, "Start"), moment(row, "End")
    run = _seconds(row)
    if started is None or run is None:
        raise SkipError("never started")
    fields = {
        "job_id": row["JobID"],
        "num_gpus": gpus,
        "arrival_seconds": submitted,
        "tenant": row.get("Account", ""),
        "cpus_per_gpu": _whole(row, "NCPUS") / gpus,
    }
    recorded = {
        "run_seconds": run + earlier_seconds,
        "wait_seconds": max(0.0, started - submitted),
        "status": status,
        "failed_attempts": earlier_starts + int(status == "failed"),
        "cancelled_seconds": ended if status == "killed" else None,
        "estimate_seconds": length_of(row, "Timelimit"),
        "accelerator": kind,
    }
    return fields, recorded


def _status(state: str) -> str:
    # "CANCELLED by 1000" names the user; a trailing "+" marks a word that was cut.
    word = re.split(r"[ +]", state.strip())[0]
    if word in UNFINISHED:
        raise SkipError(f"had not ended (state {word})")
    if word not in STATUS:
        raise InputError(Fault("", "State", f"{state!r} is not known{nearest(word, [*STATUS, *UNFINISHED])}"))
    return STATUS[word]


def _seconds(row: Mapping[str, str]) -> float | None:
    """How long this record ran, by ElapsedRaw, Elapsed, or start and end."""
    for name in ("ElapsedRaw", "Elapsed"):
        if not is_missing(row.get(name)):
            return length_of(row, name)
    start, end = moment(row, "Start"), moment(row, "End")
    return None if start is None or end is None else run_between(start, end, "End")


def _whole(row: Mapping[str, str], name: str) -> int:
    text = row.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


IMPORTER = Importer("sacct", "Slurm, the output of sacct --parsable2", _recognises, _read, has_dates=True)
